"""The trainer saved and taken up under every strategy: the same bits on as many ranks, within rounding elsewhere."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainwright.job import Job

torch = pytest.importorskip("torch")

from trainwright.train.saving import GRACE_VARIABLE, Stopped, changes, grace_s  # noqa: E402

RANKS = Path(__file__).parent / "ranks" / "resumed.py"
ROUNDING = 1e-6
CONFIG: dict[str, object] = {"model_type": "llama", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
CONFIG |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5}
Case = dict[str, Any]

FULL: Case = {"strategy": {"kind": "fsdp", "wrap_classes": ["LlamaDecoderLayer"]}}
DDP: Case = {"strategy": {"kind": "ddp"}}
HAS_DEEPSPEED = importlib.util.find_spec("deepspeed") is not None


def zero(stage: int) -> Case:
    return {"strategy": {"kind": "zero", "zero_stage": stage}, "config": {"zero_optimization": {"stage": stage}}}


STAGES = {f"zero_{stage}": zero(stage) for stage in (1, 2, 3)} if HAS_DEEPSPEED else {}
HSDP: Case = {"strategy": FULL["strategy"] | {"replicas": 2}}
KEPT: Case = {"strategy": FULL["strategy"] | {"reshard_after_forward": False}}


def trained(root: Path, ranks: int, cases: dict[str, Case]) -> dict[str, dict[str, Any]]:
    (root / "config.json").write_text(json.dumps(CONFIG))
    file = root / f"cases{ranks}.json"
    file.write_text(json.dumps([{"name": name, **case} for name, case in cases.items()]))
    argv = [sys.executable, "-W", "ignore", str(RANKS), str(ranks), str(file)]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"name"')]
    assert [row["name"] for row in rows] == list(cases)
    return {row["name"]: row for row in rows}


EXACT: dict[int, dict[str, Case]] = {
    1: {"single": {"strategy": {"kind": "single"}}},
    2: {
        "ddp, 2 rounds, cosine": DDP | {"job": {"accumulation": 2, "schedule": "cosine"}},
        "ddp, fp16 hook": DDP | {"job": {"comm_hook": "fp16"}},
        "full_shard, recomputed": FULL | {"job": {"activation_checkpoint_every": 1}},
        "shard_grad_op": KEPT,
        "local_sgd": DDP | {"job": {"local_sgd_steps": 3}},
        **STAGES,
    },
    4: {"ddp": DDP, "hsdp": HSDP, **{name: STAGES[name] for name in ("zero_2", "zero_3") if name in STAGES}},
}


@pytest.mark.long
@pytest.mark.parametrize("ranks", EXACT)
def test_the_last_steps_are_the_same_to_the_bit(tmp_path: Path, paths: None, ranks: int) -> None:
    """Loss, gradient norm, learning rate of each step and every parameter; and the weights alone start another run."""
    for name, row in trained(tmp_path, ranks, EXACT[ranks]).items():
        assert row["rows"] and row["different"] == [], (name, row)
        assert (row["exact"], row["why"], row["changed"], row["done"]) == (True, "", [], True), (name, row)
        assert (row["begun"], row["kept"]) == (True, 0), (name, row)


@pytest.mark.long
def test_another_number_of_ranks_and_another_strategy_go_on_from_there(tmp_path: Path, paths: None) -> None:
    """2 -> 4 and 4 -> 1 at the same global batch, and between DDP, FSDP2, HSDP and ZeRO, whichever saved."""
    four: Case = {"job": {"accumulation": 2}}
    trained(tmp_path, 2, {name: case | four for name, case in {"ddp": DDP, "full": FULL, **STAGES}.items()})
    changed = {"hsdp of ddp": HSDP | {"from": "ddp"}, "ddp of full": DDP | {"from": "full"}}
    changed |= {f"{name} of full": case | {"from": "full"} for name, case in STAGES.items()}
    changed |= {f"full of {name}": FULL | {"from": name} for name in STAGES}
    rows = trained(tmp_path, 4, changed | {"four": FULL})
    for name in changed:
        check(rows[name], "saved on 2 ranks and resumed on 4")
    alone: Case = {"strategy": {"kind": "single"}, "job": {"accumulation": 4}}
    check(trained(tmp_path, 1, {"single of four": alone | {"from": "four"}})["single of four"], "saved on 4 ranks and resumed on 1")
    if STAGES:
        across = {"zero_3 of zero_1": zero(3) | four | {"from": "zero_1"}, "ddp of zero_3": DDP | four | {"from": "zero_3"}}
        rows = trained(tmp_path, 2, across)
        check(rows["zero_3 of zero_1"], "saved under zero_1 and resumed under zero_3")
        check(rows["ddp of zero_3"], "saved under zero_3 and resumed under ddp")


def check(row: dict[str, Any], why: str) -> None:
    assert row["names"] and row["step"] == 2 and row["gap"] < ROUNDING and why in row["why"], row


def job(**fields: Any) -> Job:
    return Job(**{"model": "/m/config.json", "backend_config": "/c.yaml", "world_size": 2, **fields})


def test_what_makes_it_another_run_is_named() -> None:
    then = job(steps=4, run_dir="/one").to_json()
    assert changes(job(steps=8, run_dir="/two", checkpoint_every=3), then) == ()
    assert changes(job(steps=4, seed=3), then) == ("seed: 0 -> 3",)
    cosine = job(steps=4, schedule="cosine").to_json()
    assert changes(job(steps=8, schedule="cosine"), cosine) == ("steps: 4 -> 8",)  # the schedule ends elsewhere
    assert changes(job(), {"schema": "trainwright/job/1", "world_size": 2, "model": "/m"}) == ()  # fields of a later version have defaults
    assert changes(job(), None) == ("the job: not recorded",)


@pytest.mark.parametrize(("text", "seconds"), [("30", 29.5), ("0", 0.0), ("soon", 0.0)])
def test_the_grace_is_a_little_less_than_torchruns(monkeypatch: pytest.MonkeyPatch, text: str, seconds: float) -> None:
    monkeypatch.setenv(GRACE_VARIABLE, text)
    assert grace_s() == seconds


def test_an_end_that_was_asked_for_says_where_it_is_saved() -> None:
    assert str(Stopped(15, 7, Path("/run/checkpoints/step_00000007"))) == (
        "ended by SIGTERM after step 7, which is saved in /run/checkpoints/step_00000007"
    )
