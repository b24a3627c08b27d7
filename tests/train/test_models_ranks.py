"""Every kind of model on two ranks: under DDP and FSDP2 its gradients are those of one process with the whole batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainwright.train.projected import REGIMES
from trainwright.train.signals import MODALITIES

pytestmark = pytest.mark.long
HERE = Path(__file__).resolve().parent
HELPERS = HERE.parents[1] / "helpers"
CASES = HERE.parent / "families" / "cases"
NAMES = ["gpt2-plain", "bloom-plain", "falcon-groups", "gemma2-plain", "gemma3-text-pattern", "olmo2-plain", "phi-grouped-norms-tied"]
NAMES += ["qwen2-moe-every-second", "mixtral-plain", "deepseek-v3-plain", "mistral-window-tied", "mpt-plain", "llama-grouped-tied"]
PROJECTED = [f"{modality}+{regime}" for modality in MODALITIES for regime in REGIMES]


def furthest(kinds: str, names: list[str]) -> dict[str, float]:
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(HERE / "ranks" / "families.py")]
    variables = {"PATH": os.defpath, "PYTHONPATH": str(HELPERS), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*argv, kinds, *names], env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("names", [[str(CASES / f"{name}.json") for name in NAMES], PROJECTED], ids=["families", "projected"])
def test_gradients_on_two_ranks_are_those_of_one(names: list[str]) -> None:
    found = furthest("ddp,full,grad", names)
    assert len(found) == 3 * len(names)
    assert max(found.values()) < 2e-5, {name: value for name, value in found.items() if value >= 2e-5}


@pytest.mark.parametrize("names", [[str(CASES / f"{name}.json") for name in NAMES], PROJECTED], ids=["families", "projected"])
def test_bf16_shards_stay_near(names: list[str]) -> None:
    """Parameters of 8 bits' precision: a wrong factor of 2 or a lost sample would show, rounding does not."""
    found = furthest("bf16", names)
    assert max(found.values()) < 0.35, {name: value for name, value in found.items() if value >= 0.35}
