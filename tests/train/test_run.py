"""The worker as a program: alone, and under a real torchrun."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainwright.emit.reading import KeyUse, Reading
from trainwright.strategy import Strategy

MIB = 2**20
TINY = Path(__file__).resolve().parents[2] / "helpers" / "trainwright" / "models" / "tiny" / "config.json"
FSDP = Strategy("fsdp", wrap_classes=("LlamaDecoderLayer",))
KEPT = dataclasses.replace(FSDP, reshard_after_forward=False)
Run = Callable[..., Any]


def worker(job: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "trainwright.train.run", "--job", str(job)]
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)


def test_a_refused_field_moves_its_key() -> None:
    from trainwright.train.run import uses

    keys = (KeyUse("mixed_precision", "no", "fp32"), KeyUse("fsdp_config.fsdp_offload_params", True, "host memory"))
    reading = Reading(FSDP, 2, keys, (KeyUse("use_cpu", True, "the job decides"),))
    applied, not_applied = uses(reading, {"cpu_offload": "already there"})
    assert applied == [{"key": "mixed_precision", "value": "no", "becomes": "fp32"}]
    assert not_applied == [
        {"key": "use_cpu", "value": True, "reason": "the job decides"},
        {"key": "fsdp_config.fsdp_offload_params", "value": True, "reason": "already there"},
    ]


def damaged(write_job: Callable[..., Path], folder: Path, **fields: object) -> Path:
    """A job for one rank with some fields of job.json replaced."""
    job = write_job(folder, Strategy("single"), 1)
    job.write_text(json.dumps(json.loads(job.read_text()) | fields), encoding="utf-8")
    return job


MISTAKES: dict[str, tuple[dict[str, object], str]] = {
    "no number of steps": ({"steps": "many"}, "steps is 'many', not a whole number"),
    "ranks that did not start": ({"world_size": 2}, "the job is for 2 ranks and 1 started"),
    "a device that is not here": ({"device": "xpu"}, "which torch"),
    "no model": ({"model": "/nowhere/config.json"}, "/nowhere/config.json"),
    "no config": ({"backend_config": "/nowhere/acc.yaml"}, "/nowhere/acc.yaml"),
    "a sequence too long": ({"seq_len": 4096}, "max_position_embeddings 512"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_and_exit_2(write_job: Callable[..., Path], tmp_path: Path, paths: None, name: str) -> None:
    fields, words = MISTAKES[name]
    done = worker(damaged(write_job, tmp_path / "run", **fields))
    assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.long
def test_a_class_that_is_not_there_is_one_line_and_in_the_record(run_job: Run) -> None:
    ran = run_job("run", Strategy("fsdp", wrap_classes=("BertLayer",)), 1)
    assert ran.returncode == 2 and ran.stderr.count("\n") == 1 and "no module of this model is a BertLayer" in ran.stderr
    assert ran.ranks[0][0]["strategy"] is None
    assert ran.end()["error"]["type"] == "exception" and "BertLayer" in ran.end()["error"]["message"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("strategy", "wrapper", "ratio", "units"),
    [(Strategy("ddp"), "DistributedDataParallel", 1.0, 0), (FSDP, "FSDPModule", 0.5, 9), (KEPT, "FSDPModule", 0.5, 9)],
    ids=lambda v: getattr(v, "name", None),
)
def test_two_ranks_compute_what_one_does(run_job: Run, strategy: Strategy, wrapper: str, ratio: float, units: int) -> None:
    """Losses and gradient norms at the same global batch, in fp32: 4 steps, so 3 updates are in it."""
    alone = run_job("alone", Strategy("single"), 1, steps=4, micro_batch=2)
    both = run_job("both", strategy, 2, steps=4, micro_batch=1)
    assert (alone.returncode, both.returncode) == (0, 0), both.stderr
    for rank in (0, 1):
        header = both.ranks[rank][0]
        live = header["strategy"]
        assert (live["name"], live["wrapper"], live["world_size"]) == (strategy.name, wrapper, 2)
        assert (live["shard_ratio"], live["units"]) == (ratio, units)
        assert (header["rank"], header["parameters"], header["backend"]) == (rank, 18_880_896, "gloo")
        for ours, theirs in zip(both.steps(rank), alone.steps(), strict=True):
            assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
            assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-5)
        assert both.end(rank)["status"] == "completed" and both.end(rank)["steps"] == 4
    assert both.steps(0)[0]["loss"] != both.steps(0)[1]["loss"]


@pytest.mark.long
def test_copies_in_shards_run_from_their_file(run_job: Run) -> None:
    """Six samples in steps of four: in the last one two ranks have none."""
    ran = run_job("hsdp", dataclasses.replace(FSDP, replicas=2), 4, model=str(TINY), samples=6, clip_norm=0.5, schedule="cosine")
    assert ran.returncode == 0, ran.stderr
    live = ran.ranks[3][0]["strategy"]
    assert (live["name"], live["world_size"], live["replicas"], live["shard_ratio"]) == ("hsdp_full_shard", 4, 2, 0.5)
    assert [row["tokens"] for row in ran.steps(1)] == [32, 32] and [row["tokens"] for row in ran.steps(3)] == [32, 0]
    assert all([row["loss"] for row in ran.steps(rank)] == [row["loss"] for row in ran.steps()] for rank in (1, 2, 3))


@pytest.mark.long
def test_zero_runs_from_its_json_and_says_what_became_of_each_key(write_job: Callable[..., Path], tmp_path: Path, paths: None) -> None:
    pytest.importorskip("deepspeed")
    keys = {"zero_optimization": {"stage": 2, "reduce_bucket_size": 100_000}, "train_micro_batch_size_per_gpu": 2, "tensorboard": {}}
    (tmp_path / "ds.json").write_text(json.dumps(keys))
    job = write_job(
        tmp_path / "run", Strategy("single"), 1, backend_config=str(tmp_path / "ds.json"), model=str(TINY), micro_batch=2, clip_norm=1.0
    )
    done = worker(job)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "run" / "perf" / "rank0.jsonl").read_text().splitlines()]
    assert rows[0]["strategy"]["name"] == "zero_2" and rows[0]["strategy"]["wrapper"] == "DeepSpeedEngine"
    assert [row["key"] for row in rows[0]["not_applied"]] == ["tensorboard"] and rows[-1]["status"] == "completed"
    wrong = write_job(tmp_path / "other", Strategy("single"), 1, backend_config=str(tmp_path / "ds.json"), model=str(TINY), micro_batch=3)
    refused = worker(wrong)
    assert (
        refused.returncode == 2 and "micro_batch 2 in the file, 3 in the job; clip_norm 1.0 in the file, None in the job" in refused.stderr
    )


@pytest.mark.long
def test_a_loss_that_is_no_number_is_one_line_and_its_own_kind_of_error(run_job: Run) -> None:
    ran = run_job("nan", Strategy("ddp"), 2, model=str(TINY), learning_rate=1e12, steps=9)
    assert ran.returncode == 1 and "train/loop.py" not in ran.stderr, "no traceback of ours"
    errors = [rows[-1]["error"] for rows in ran.ranks.values()]
    assert {error["type"] for error in errors} <= {"nonfinite", "terminated"} and "nonfinite" in {error["type"] for error in errors}
    assert any("in step" in error["message"] and "the job stops with the weights of step" in error["message"] for error in errors)
    assert len(ran.steps()) < 9


@pytest.mark.long
def test_a_cap_stops_ddp_where_its_memory_ends_and_lets_fsdp_run(run_job: Run) -> None:
    """Two ranks, 1 x 32 tokens: DDP needs 288 MiB for its states alone, FSDP half of that and a unit."""
    ddp = run_job("ddp", Strategy("ddp"), 2, memory_cap_bytes=240 * MIB)
    assert ddp.returncode == 1
    errors = [rows[-1]["error"] for rows in ddp.ranks.values() if rows[-1]["kind"] == "end"]
    assert "out_of_memory" in {error["type"] for error in errors}
    reason = next(error for error in errors if error["type"] == "out_of_memory")
    assert "DefaultCPUAllocator: can't allocate memory" in reason["message"] and reason["phase"] in ("forward", "backward", "optimizer")
    assert "Traceback" in ddp.stderr and "DefaultCPUAllocator: can't allocate memory" in ddp.stderr
    fsdp = run_job("fsdp", FSDP, 2, memory_cap_bytes=240 * MIB)
    assert fsdp.returncode == 0 and fsdp.end()["status"] == "completed", fsdp.stderr
    assert fsdp.ranks[0][0]["memory_cap_bytes"] == 240 * MIB


@pytest.mark.long
@pytest.mark.parametrize("strategy", [Strategy("ddp"), FSDP], ids=lambda s: s.name)
def test_the_tracked_peak_is_what_a_cap_has_to_allow(run_job: Run, strategy: Strategy) -> None:
    """A cap 5 % below the tracked peak stops the job, one 5 % above does not: peak and cap measure the same thing."""
    tracked = run_job("tracked", strategy, 2, seq_len=128, track_memory_steps=2)
    peak = tracked.end()["peak_memory_bytes"]
    assert sum(tracked.end()["memory"].values()) == peak == max(row["memory_bytes"] or 0 for row in tracked.steps())
    assert run_job("below", strategy, 2, seq_len=128, memory_cap_bytes=int(0.95 * peak)).returncode == 1
    assert run_job("above", strategy, 2, seq_len=128, memory_cap_bytes=int(1.05 * peak)).returncode == 0


def started(job: Path, argv: list[str]) -> subprocess.Popen[bytes]:
    """A long job under torchrun, after its first step."""
    launcher = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 90
    while (
        not all('"kind":"step"' in file.read_text() for file in (job.parent / "perf" / f"rank{r}.jsonl" for r in (0, 1)) if file.exists())
        or len(list((job.parent / "perf").glob("*"))) < 2
    ):
        assert launcher.poll() is None and time.monotonic() < deadline, "the job did not start"
        time.sleep(0.1)
    return launcher


def pids(job: Path) -> list[int]:
    return [json.loads(file.read_text().splitlines()[0])["pid"] for file in sorted((job.parent / "perf").glob("*"))]


def ended(numbers: list[int], within_s: float = 15) -> bool:
    deadline = time.monotonic() + within_s
    while any(os.path.exists(f"/proc/{n}") for n in numbers) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not any(os.path.exists(f"/proc/{n}") for n in numbers)


@pytest.mark.long
@pytest.mark.parametrize("how", ["launcher killed", "launcher terminated", "rank killed", "owner gone"])
def test_no_worker_stays(
    write_job: Callable[..., Path], argv: Callable[..., list[str]], tmp_path: Path, paths: None, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    owner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    monkeypatch.setenv("TRAINWRIGHT_LAUNCHER_PID", str(owner.pid))
    job = write_job(tmp_path / "run", Strategy("ddp"), 2, steps=10_000)
    launcher = started(job, argv(job, 2))
    workers = pids(job)
    try:
        if how == "launcher killed":
            launcher.kill()
        elif how == "launcher terminated":
            launcher.terminate()
        elif how == "rank killed":
            os.kill(workers[1], signal.SIGKILL)
        else:
            owner.kill()
        launcher.wait(timeout=30)
        assert ended(workers)
    finally:
        for process in (launcher, owner):
            process.kill()
            process.wait()
        for number in workers:
            if os.path.exists(f"/proc/{number}"):
                os.kill(number, signal.SIGKILL)
    ends = [json.loads(file.read_text().splitlines()[-1]) for file in sorted((job.parent / "perf").glob("*"))]
    assert ends[0]["kind"] == "end" and ends[0]["status"] == "failed"
    if how == "rank killed":
        assert ends[1]["kind"] == "step"  # nothing can write an end for it
    else:
        assert {end["error"]["type"] for end in ends} <= {"terminated", "exception"} and "terminated" in {
            end["error"]["type"] for end in ends
        }
