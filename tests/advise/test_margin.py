"""Whether the margin of advice is enough in the world: real jobs whose memory the kernel limits."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainwright.advise.decide import LEDGER_ERROR, MARGIN, strategies
from trainwright.cost.memory import Workload, ledger
from trainwright.emit import accelerate
from trainwright.job import Job
from trainwright.model import load_model

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts private memory in RLIMIT_DATA"),
]
HELPERS = Path(__file__).resolve().parents[2] / "helpers"
MODEL = HELPERS / "trainwright/models/llama-demo/config.json"
JOB = Workload(2, 128, 4)
PLACED = {strategy.name: strategy for strategy in strategies(load_model(str(MODEL)), JOB.world_size)}


def run_under(cap: int, name: str, folder: Path) -> dict[str, Any]:
    """Rank 0's last record of three steps whose tensors may take `cap` bytes."""
    config = folder / "accelerate.yaml"
    config.write_text(accelerate.write(PLACED[name], JOB.world_size, "cpu"))
    job = Job(str(MODEL), str(config), JOB.world_size, steps=3, memory_cap_bytes=cap, timeout_s=60.0, run_dir=str(folder))
    job.write(str(folder / "job.json"))
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(JOB.world_size)]
    argv += ["-m", "trainwright.train.run", "--job", str(folder / "job.json")]
    variables = {"PATH": os.defpath, "PYTHONPATH": str(HELPERS), "OMP_NUM_THREADS": "1"}
    subprocess.run(argv, cwd=folder, env=variables, stdin=subprocess.DEVNULL, capture_output=True, timeout=300)
    last: dict[str, Any] = json.loads((folder / "perf/rank0.jsonl").read_text().splitlines()[-1])
    return last


@pytest.mark.parametrize("name", PLACED)
def test_what_advice_calls_safe_runs(name: str, tmp_path: Path) -> None:
    """The least memory for which `decide` calls the strategy safe is enough, buffers of gloo and of the allocator included."""
    peak = ledger(load_model(str(MODEL)), PLACED[name], JOB).peak_bytes
    assert run_under(int(peak / (1 - MARGIN)) + 1, name, tmp_path)["status"] == "completed"


@pytest.mark.parametrize("name", ["ddp", "fsdp_full_shard"])
def test_what_the_ledger_excludes_does_not_run(name: str, tmp_path: Path) -> None:
    peak = ledger(load_model(str(MODEL)), PLACED[name], JOB).peak_bytes
    assert run_under(int(peak * (1 - LEDGER_ERROR)), name, tmp_path)["status"] == "failed"
