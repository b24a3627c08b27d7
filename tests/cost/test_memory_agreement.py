"""The ledger against torch's own memory tracker, in real jobs: torchrun, gloo, the reference trainer, its config from a file."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from trainwright.cost.memory import Ledger, Workload, ledger
from trainwright.emit import accelerate
from trainwright.job import Job
from trainwright.model import load_model
from trainwright.strategy import Strategy

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]
HELPERS = Path(__file__).resolve().parents[2] / "helpers"
DEMO = json.loads((HELPERS / "trainwright/models/llama-demo/config.json").read_text(encoding="utf-8"))
SMALL = DEMO | {"vocab_size": 1000, "hidden_size": 128, "intermediate_size": 320, "num_hidden_layers": 4, "num_attention_heads": 4}
BLOCK = ("LlamaDecoderLayer",)
SINGLE, DDP = Strategy("single"), Strategy("ddp")
FULL, GRAD, WHOLE = Strategy("fsdp", True, BLOCK), Strategy("fsdp", False, BLOCK), Strategy("fsdp", True, ())
BAR = 0.05
TRACKED_STEPS = 3  # optimizer states exist from the second step on, DDP's buckets are rebuilt after the first


def bf16(strategy: Strategy) -> Strategy:
    return Strategy(strategy.kind, strategy.reshard_after_forward, strategy.wrap_classes, "bf16", strategy.activation_checkpointing)


def checkpointed(strategy: Strategy) -> Strategy:
    return Strategy(strategy.kind, strategy.reshard_after_forward, strategy.wrap_classes, strategy.precision, True)


@dataclass(frozen=True)
class Case:
    """A job: what differs from the base config, how it is placed, and what each rank trains on."""

    strategy: Strategy
    ranks: int
    micro_batch: int
    seq_len: int
    differs: dict[str, Any] = field(default_factory=dict)
    base: dict[str, Any] = field(default_factory=lambda: SMALL)
    accumulation: int = 1


CASES = {
    "demo-ddp": Case(DDP, 4, 2, 128, base=DEMO),
    "demo-full-shard": Case(FULL, 4, 2, 128, base=DEMO),
    "demo-shard-grad-op": Case(GRAD, 4, 2, 128, base=DEMO),
    "demo-full-shard-bf16": Case(bf16(FULL), 4, 2, 128, base=DEMO),
    "one-rank": Case(SINGLE, 1, 2, 128),
    "one-rank-bf16": Case(bf16(SINGLE), 1, 4, 256),
    "one-rank-long": Case(SINGLE, 1, 1, 512, {"hidden_size": 192, "num_attention_heads": 8, "num_key_value_heads": 8}),
    "one-rank-sharded": Case(FULL, 1, 2, 128),
    "ddp-bf16": Case(bf16(DDP), 2, 4, 64),
    "ddp-tied": Case(DDP, 2, 1, 64, {"vocab_size": 8000, "tie_word_embeddings": True}),
    "ddp-few-tokens": Case(DDP, 2, 1, 16, {"hidden_size": 256, "num_attention_heads": 8}),
    "large-vocabulary": Case(FULL, 2, 1, 64, {"vocab_size": 20000}),
    "small-vocabulary": Case(FULL, 2, 8, 128, {"vocab_size": 97, "hidden_size": 192, "intermediate_size": 512}),
    "tied-shard-grad-op": Case(GRAD, 2, 8, 64, {"vocab_size": 8000, "tie_word_embeddings": True}),
    "wide-checkpointed": Case(
        checkpointed(FULL), 2, 4, 512, {"hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 8, "num_key_value_heads": 8}
    ),
    "deep-checkpointed-bf16": Case(checkpointed(bf16(FULL)), 4, 8, 128, {"num_hidden_layers": 12}),
    "uneven-rows": Case(FULL, 4, 2, 96, {"vocab_size": 1001, "hidden_size": 132, "intermediate_size": 322, "num_attention_heads": 6}),
    "biases": Case(bf16(GRAD), 2, 2, 128, {"attention_bias": True, "mlp_bias": True, "head_dim": 64}),
    "one-layer": Case(GRAD, 4, 2, 64, {"num_hidden_layers": 1, "intermediate_size": 512}),
    "one-unit": Case(WHOLE, 2, 2, 64),
    "copies-in-shards": Case(replace(FULL, replicas=2), 4, 2, 128),
    "copies-in-shards-bf16": Case(replace(bf16(GRAD), replicas=2), 4, 4, 64),
    "copies-few-tokens": Case(replace(FULL, replicas=2), 4, 1, 16, {"hidden_size": 256, "num_attention_heads": 8}),
    "ddp-rounds": Case(DDP, 2, 2, 64, accumulation=3),
    "single-rounds": Case(SINGLE, 1, 2, 64, accumulation=2),
    "full-shard-rounds": Case(FULL, 2, 2, 64, accumulation=3),
    "full-shard-rounds-bf16": Case(bf16(FULL), 2, 4, 64, accumulation=2),
    "copies-rounds": Case(replace(FULL, replicas=2), 4, 2, 64, accumulation=2),
    "every-2nd": Case(replace(checkpointed(FULL), checkpoint_every=2), 2, 8, 128, {"num_hidden_layers": 6}),
    "every-2nd-bf16": Case(replace(checkpointed(bf16(FULL)), checkpoint_every=2), 2, 8, 256, {"num_hidden_layers": 5}),
    "every-3rd-ddp": Case(replace(checkpointed(DDP), checkpoint_every=3), 2, 8, 128, {"num_hidden_layers": 7}),
    "every-2nd-autocast": Case(replace(checkpointed(bf16(SINGLE)), checkpoint_every=2), 1, 8, 128, {"num_hidden_layers": 4}),
    "local-sgd": Case(Strategy("local_sgd"), 2, 2, 64),
}


def track(case: Case, folder: Path) -> tuple[Ledger, list[dict[str, Any]]]:
    """The ledger of the case, and rank 0's records of its run."""
    model, config = folder / "config.json", folder / "accelerate.yaml"
    model.write_text(json.dumps(case.base | case.differs))
    strategy = case.strategy
    every = strategy.checkpoint_every if strategy.activation_checkpointing else 0
    written = replace(
        strategy, kind="ddp" if strategy.kind == "local_sgd" else strategy.kind, activation_checkpointing=False, checkpoint_every=1
    )
    config.write_text(accelerate.write(written, case.ranks, "cpu"))
    job = Job(
        str(model),
        str(config),
        case.ranks,
        steps=TRACKED_STEPS,
        micro_batch=case.micro_batch,
        seq_len=case.seq_len,
        track_memory_steps=TRACKED_STEPS,
        timeout_s=120.0,
        accumulation=case.accumulation,
        local_sgd_steps=2 if strategy.kind == "local_sgd" else 0,
        activation_checkpoint_every=every,
        run_dir=str(folder),
    )
    job.write(str(folder / "job.json"))
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(case.ranks)]
    argv += ["-m", "trainwright.train.run", "--job", str(folder / "job.json")]
    variables = {"PATH": os.defpath, "PYTHONPATH": str(HELPERS), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, cwd=folder, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in (folder / "perf/rank0.jsonl").read_text().splitlines()]
    return ledger(
        load_model(str(model)), case.strategy, Workload(case.micro_batch, case.seq_len, case.ranks, accumulation=case.accumulation)
    ), rows


@pytest.mark.parametrize("name", CASES)
def test_the_ledger_is_what_torch_counts(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    found, rows = track(case, tmp_path)
    header, end = rows[0], rows[-1]
    assert header["strategy"]["name"] == case.strategy.name, "the job ran as it was asked to"
    assert end["kind"] == "end" and end["steps"] == TRACKED_STEPS
    tracked, memory = end["peak_memory_bytes"], end["memory"]
    error = found.peak_bytes / tracked - 1
    print(f"{name}: ledger {found.peak_bytes:,} tracker {tracked:,} {error:+.4%} at {found.peak_phase}")
    assert abs(error) <= BAR
    parameters, _, optimizer = found.states
    assert memory["parameters"] == parameters.bytes and memory["optimizer_states"] == optimizer.bytes, "states are exact"
