"""What goes wrong in the middle of a real job: it is named, the state is saved or left intact, and no rank stays."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from trainwright.job import read
from trainwright.launch import torchrun
from trainwright.strategy import Strategy

CONFIG: dict[str, object] = {"model_type": "llama", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
CONFIG |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5}
DDP = Strategy("ddp")
FSDP = Strategy("fsdp", wrap_classes=("LlamaDecoderLayer",))
Write = Callable[..., Path]
Argv = Callable[..., list[str]]
Run = Callable[..., Any]

pytestmark = pytest.mark.long


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


@pytest.fixture
def started() -> Iterator[Callable[[list[str], Path], subprocess.Popen[bytes]]]:
    """Start torchrun and come back once both ranks have done a step; whatever lives at the test's end is ended."""
    left: list[subprocess.Popen[bytes]] = []
    workers: list[int] = []

    def start(argv: list[str], run_dir: Path) -> subprocess.Popen[bytes]:
        with open(run_dir / "launcher.log", "wb") as log:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        left.append(process)
        until(lambda: all(steps(run_dir, rank) > 0 for rank in (0, 1)), lambda: process.poll() is None)
        workers.extend(pids(run_dir))
        return process

    yield start
    for process in left:
        process.kill()
        process.wait()
    for number in filter(lives, workers):
        os.kill(number, signal.SIGKILL)


def until(done: Callable[[], bool], going: Callable[[], bool] = lambda: True, within_s: float = 90.0) -> None:
    deadline = time.monotonic() + within_s
    while not done():
        assert going() and time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.05)


def rows(run_dir: Path, rank: int) -> list[dict[str, Any]]:
    path = run_dir / "perf" / f"rank{rank}.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def steps(run_dir: Path, rank: int) -> int:
    return max((row["step"] for row in rows(run_dir, rank) if row["kind"] == "step"), default=0)


def pids(run_dir: Path) -> list[int]:
    return [rows(run_dir, rank)[0]["pid"] for rank in (0, 1)]


def lives(number: int) -> bool:
    return os.path.exists(f"/proc/{number}")


def complete(run_dir: Path) -> list[str]:
    return sorted(path.parent.name for path in run_dir.glob("checkpoints/*/complete.json"))


@pytest.mark.parametrize("to", ["the launcher", "one rank"])
def test_a_signal_in_a_step_ends_it_and_saves_it(
    write_job: Write, argv: Argv, run_job: Run, started: Any, tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    """Wherever the signal arrives, all ranks finish the same step, save it, and leave; the run is taken up from there."""
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "30")
    job = write_job(tmp_path / "run", FSDP, 2, model=model, steps=10**6, checkpoint_every=10**5)
    launcher, workers = started(argv(job, 2), job.parent), pids(job.parent)
    os.kill(launcher.pid if to == "the launcher" else workers[1], signal.SIGTERM)
    launcher.wait(timeout=60)
    until(lambda: not any(map(lives, workers)), within_s=20)
    last = steps(job.parent, 0)
    assert steps(job.parent, 1) == last and complete(job.parent) == [f"step_{last:08d}"]
    for rank in (0, 1):
        error = rows(job.parent, rank)[-1]["error"]
        assert (error["type"], error["exception"]) == ("terminated", "SIGTERM")
        assert f"after step {last}, which is saved in {job.parent}/checkpoints/step_{last:08d}" in error["message"]
    again = run_job("again", FSDP, 2, model=model, steps=last + 2, resume=str(job.parent))
    assert again.returncode == 0 and [row["step"] for row in again.steps(1)] == [last + 1, last + 2]
    assert again.ranks[0][0]["resumed"]["exact"] and again.ranks[0][0]["resumed"]["step"] == last


def test_a_rank_that_cannot_finish_its_step_ends_all_the_same(
    write_job: Write, argv: Argv, started: Any, tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 is stopped, so rank 0's step never ends: after the grace it leaves, and what was saved before stands."""
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "4")
    job = write_job(tmp_path / "run", DDP, 2, model=model, steps=10**6, checkpoint_every=1)
    launcher, workers = started(argv(job, 2), job.parent), pids(job.parent)
    until(lambda: bool(complete(job.parent)))
    os.kill(workers[1], signal.SIGSTOP)
    time.sleep(0.5)
    launcher.terminate()
    launcher.wait(timeout=60)
    until(lambda: not any(map(lives, workers)), within_s=20)
    error = rows(job.parent, 0)[-1]["error"]
    assert error["type"] == "terminated" and "the step did not end within 3.5 s, nothing of it is saved" in error["message"]
    assert complete(job.parent)


def test_a_file_that_cannot_be_written_ends_every_rank_with_one_line(
    write_job: Write, argv: Argv, tmp_path: Path, paths: None, model: str
) -> None:
    """The system refuses files above 100 KiB, as a full disk refuses them: a checkpoint has more, the records less."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    job = write_job(tmp_path / "run", FSDP, 2, model=model, steps=50, checkpoint_every=2)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100 * 2**10, before[1]))  # what is started here inherits it
        done = subprocess.run(argv(job, 2), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert done.returncode != 0
    for rank in (0, 1):
        assert steps(job.parent, rank) == 2
        error = rows(job.parent, rank)[-1]["error"]
        assert error["phase"] == "checkpoint" and error["exception"] == "UserError"
        assert "cannot save the checkpoint of step 2" in error["message"] and "File too large; there is none before it" in error["message"]
    assert complete(job.parent) == [] and not list(job.parent.glob("checkpoints/step_*"))
    assert f"trainwright.train.run: cannot save the checkpoint of step 2 in {job.parent}" in done.stderr


def test_a_loss_that_is_no_number_leaves_the_last_sound_checkpoint(run_job: Run, model: str) -> None:
    ran = run_job("run", DDP, 2, model=model, steps=50, learning_rate=1e17, checkpoint_every=1, keep_checkpoints=0)
    assert ran.returncode == 1
    last = ran.steps()[-1]["step"]
    for rank in (0, 1):
        assert ran.end(rank)["error"]["type"] == "nonfinite" and f"in step {last}" in ran.end(rank)["error"]["message"]
    assert complete(ran.run_dir) == [f"step_{step:08d}" for step in range(1, last)]


def test_data_that_is_missing_is_one_line(run_job: Run, model: str, tmp_path: Path) -> None:
    ran = run_job("run", DDP, 2, model=model, data=str(tmp_path / "nowhere"))
    errors = [ran.end(rank)["error"] for rank in (0, 1)]
    named = [error for error in errors if error["exception"] != "SIGTERM"]  # torchrun ends the other when the first has said it
    assert ran.returncode != 0 and named and not ran.steps()
    assert all(error["exception"] == "UserError" and str(tmp_path / "nowhere") in error["message"] for error in named)


@pytest.mark.parametrize("change", ["no checkpoint there", "another model", "all steps done"])
def test_a_checkpoint_that_does_not_fit_is_one_line(run_job: Run, model: str, tmp_path: Path, change: str) -> None:
    first = run_job("first", DDP, 2, model=model, steps=2, checkpoint_every=2)
    fields: dict[str, Any] = {"model": model, "steps": 4, "resume": str(first.run_dir)}
    words = {
        "no checkpoint there": "holds no complete checkpoint to resume from",
        "another model": "is of another model",
        "all steps done": "has done 2 steps, and the job ends with step 2",
    }[change]
    if change == "no checkpoint there":
        fields["resume"] = str(tmp_path)
    elif change == "another model":
        other = tmp_path / "other.json"
        other.write_text(json.dumps(CONFIG | {"hidden_size": 32}))
        fields["model"] = str(other)
    else:
        fields["steps"] = 2
    ran = run_job("second", DDP, 2, **fields)
    for rank in (0, 1):
        assert words in ran.end(rank)["error"]["message"] and not [row for row in ran.ranks[rank] if row["kind"] == "step"]
    assert ran.stderr.count("Traceback") == 1  # torchrun's own


LAUNCH = """
import sys
from trainwright.job import read
from trainwright.launch import torchrun
torchrun.run(read(sys.argv[1]), sys.argv[2])
"""


@pytest.mark.parametrize("after_s", [0.0, 0.5, 3.0])
def test_a_launcher_killed_while_it_starts_leaves_nothing(
    write_job: Write, tmp_path: Path, paths: None, model: str, after_s: float
) -> None:
    """Killed while torchrun imports torch, and while the ranks do: they end by themselves within seconds."""
    job = write_job(tmp_path / "source", DDP, 2, model=model, steps=10**6)
    run_dir = tmp_path / "run"
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCH, str(job), str(run_dir)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until(lambda: len(mentioning(run_dir)) > 1)
        time.sleep(after_s)
    finally:
        launcher.kill()
        launcher.wait()
    until(lambda: not mentioning(run_dir), within_s=8)


def mentioning(run_dir: Path) -> list[int]:
    """The processes whose command line names the run."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            line = Path("/proc", name, "cmdline").read_bytes()
        except OSError:
            continue
        found += [int(name)] if str(run_dir).encode() in line else []
    return found


def test_a_stall_says_where_each_rank_sits(write_job: Write, tmp_path: Path, paths: None, model: str) -> None:
    job, run_dir = read(str(write_job(tmp_path / "source", DDP, 2, model=model, steps=10**6))), tmp_path / "run"

    def stop_one() -> None:
        until(lambda: steps(run_dir, 1) > 1)
        os.kill(pids(run_dir)[1], signal.SIGSTOP)

    helper = threading.Thread(target=stop_one)
    helper.start()
    outcome = torchrun.run(job, str(run_dir), stall_s=25.0)
    helper.join()
    assert outcome.status == "timeout" and "no rank wrote a line for 25 s; rank" in outcome.reason
    assert "sit in" in outcome.reason or "sits in" in outcome.reason
    assert not mentioning(run_dir)
