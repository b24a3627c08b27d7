"""Real jobs through torchrun: how they end, what is diagnosed, and that nothing of them stays."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trainwright import probe
from trainwright.diagnose.run_folder import read_run
from trainwright.diagnose.verdict import Diagnosis, diagnose
from trainwright.job import Job
from trainwright.launch import torchrun
from trainwright.launch.processes import alive
from trainwright.launch.torchrun import Outcome, run

DRIVE = str(Path(__file__).parent / "workers" / "drive.py")
MakeJob = Callable[..., Job]
Faulty = Callable[..., str]
Gone = Callable[..., None]


def manifest(run_dir: Path) -> dict[str, object]:
    text = (run_dir / "manifest.json").read_text(encoding="utf-8")
    found: dict[str, object] = json.loads(text)
    return found


def test_argv_names_one_host_and_no_restart(make_job: MakeJob) -> None:
    argv = torchrun.command(make_job(world_size=3), "/runs/a")
    assert argv[:4] == [sys.executable, "-m", "trainwright.train.elastic", "--standalone"]
    assert argv[argv.index("--nproc-per-node") + 1] == "3"
    assert argv[argv.index("--max-restarts") + 1] == "0"
    assert argv[-4:] == ["-m", "trainwright.train.run", "--job", "/runs/a/job.json"]


def test_threads_are_shared_out_unless_the_caller_says(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(probe, "cpu_count", lambda: 8)
    assert torchrun.variables(make_job(world_size=3), "t")["OMP_NUM_THREADS"] == "2"
    assert torchrun.variables(make_job(world_size=16), "t")["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert torchrun.variables(make_job(world_size=3), "t")["OMP_NUM_THREADS"] == "5"


def test_signals_are_noted_and_handlers_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with torchrun._stop_signals() as stop:
        assert not stop.asked()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.asked() and not stop.insisted()
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.insisted()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_before_the_start_starts_nothing(make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "importable", lambda name: True)

    @contextmanager
    def stopped() -> Iterator[torchrun._Stop]:
        yield torchrun._Stop([signal.SIGINT])

    monkeypatch.setattr(torchrun, "_stop_signals", stopped)
    outcome = run(make_job(), str(tmp_path / "run"))
    assert (outcome.status, outcome.returncode) == ("interrupted", None)
    assert manifest(tmp_path / "run")["outcome"]["status"] == "interrupted"  # type: ignore[index]


# --- real jobs ------------------------------------------------------------------------------------------------------


def ran(job: Job, run_dir: Path, worker: str, gone: Gone, **settings: float) -> tuple[Outcome, Diagnosis]:
    outcome = run(job, str(run_dir), worker=worker, **settings)  # type: ignore[arg-type]
    gone(run_dir)
    return outcome, diagnose(read_run(str(run_dir)))


@pytest.mark.long
def test_a_job_that_runs(make_job: MakeJob, faulty: Faulty, tmp_path: Path, gone: Gone) -> None:
    seen: list[str] = []
    ours = ("PYTHONSAFEPATH", "TRAINWRIGHT_RUN_TOKEN", "PYTHON_EXEC")
    before = [os.environ.get(name) for name in ours]
    outcome = run(
        make_job(steps=4), str(tmp_path / "a run"), step=lambda what, fraction=None: seen.append(what), worker=faulty("", STEP_S="0.3")
    )
    gone(tmp_path / "a run")
    assert (outcome.status, outcome.returncode) == ("completed", 0)
    assert seen[0] == "starting" and "step 2 of 4" in seen
    assert [os.environ.get(name) for name in ours] == before
    diagnosis = diagnose(read_run(str(tmp_path / "a run")))
    assert diagnosis.findings == []
    assert diagnosis.measures.steady_steps == 3
    assert diagnosis.measures.tokens_per_step == 24


FAULTS = {
    "1:raise@3": ("user_exception", "1", "RUN002"),
    "2:raise@0": ("user_exception", "2", "RUN002"),
    "1:SIGKILL@3": ("rank_killed_sigkill", "1", "RUN003"),
    "0:SIGKILL@2": ("rank_killed_sigkill", "0", "RUN003"),
    "2:SIGSEGV@2": ("segfault", "2", "RUN003"),
    "1:SIGABRT@2": ("insufficient_evidence", "1", "RUN003"),
    "1:allocate@2": ("host_oom_alloc", "1", "RUN001"),
    "1:exit@2": ("insufficient_evidence_need_rank_log", "1", "RUN002"),
    "2:return@3": ("rank_divergent_control_flow", "2", "RUN008"),
}


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_told_by_class_and_rank(fault: str, make_job: MakeJob, faulty: Faulty, tmp_path: Path, gone: Gone) -> None:
    outcome, diagnosis = ran(make_job(steps=5), tmp_path / "run", faulty(fault), gone)
    assert outcome.status == "failed"
    name, rank, rule = FAULTS[fault]
    assert [(d["class"], d["culprit"]) for d in diagnosis.diagnoses] == [(name, {"kind": "rank", "value": rank})]
    assert [finding.rule for finding in diagnosis.findings] == [rule]
    assert diagnosis.diagnoses[0]["evidence"]


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 2])
def test_a_hang_ends_by_the_stall_clock(rank: int, make_job: MakeJob, faulty: Faulty, tmp_path: Path, gone: Gone) -> None:
    outcome, diagnosis = ran(make_job(steps=5), tmp_path / "run", faulty(f"{rank}:hang@3"), gone, stall_s=15)
    assert outcome.status == "timeout" and "no rank wrote a line" in outcome.reason
    (found,) = diagnosis.diagnoses
    assert (found["class"], found["culprit"], found["confidence"]) == (
        "hang_rank_not_in_collective",
        {"kind": "rank", "value": str(rank)},
        "high",
    )
    assert "sleep_for_ever" in found["evidence"][0]["text"]


@pytest.mark.long
def test_a_hang_before_the_first_line(make_job: MakeJob, faulty: Faulty, tmp_path: Path, gone: Gone) -> None:
    outcome, diagnosis = ran(make_job(steps=5), tmp_path / "run", faulty("1:hang@0"), gone, stall_s=12)
    assert outcome.status == "timeout"
    assert (diagnosis.first_class, diagnosis.diagnoses[0]["culprit"]["value"]) == ("init_rank_missing", "1")


@pytest.mark.long
def test_a_job_that_needs_longer(make_job: MakeJob, faulty: Faulty, tmp_path: Path, gone: Gone) -> None:
    outcome, diagnosis = ran(make_job(steps=1000), tmp_path / "run", faulty("", STEP_S="0.5"), gone, timeout_s=15)
    assert outcome.status == "timeout"
    assert [(d["class"], d["culprit"]) for d in diagnosis.diagnoses] == [("walltime", None)]


@pytest.mark.long
def test_nan_on_one_rank(make_job: MakeJob, faulty: Faulty, tmp_path: Path, gone: Gone) -> None:
    outcome, diagnosis = ran(make_job(steps=4), tmp_path / "run", faulty("2:nan@3"), gone)
    assert outcome.status == "completed"
    assert [(d["class"], d["culprit"]["value"]) for d in diagnosis.diagnoses] == [("nonfinite_loss", "2")]


@pytest.mark.long
def test_ranks_that_ignore_sigterm_and_grandchildren_end_too(make_job: MakeJob, faulty: Faulty, tmp_path: Path, gone: Gone) -> None:
    worker = faulty("", STEP_S="0.5", STUBBORN="1", GRANDCHILD="1")
    outcome, _ = ran(make_job(steps=1000, world_size=2), tmp_path / "run", worker, gone, timeout_s=12)
    assert outcome.status == "timeout"


@pytest.mark.long
def test_a_grandchild_that_outlives_a_finished_job_ends(make_job: MakeJob, faulty: Faulty, tmp_path: Path, gone: Gone) -> None:
    outcome, _ = ran(make_job(steps=2, world_size=2), tmp_path / "run", faulty("", GRANDCHILD="1"), gone)
    assert outcome.status == "completed"


@pytest.mark.long
def test_a_kill_of_torchrun_itself(make_job: MakeJob, faulty: Faulty, tmp_path: Path, gone: Gone) -> None:
    run_dir = tmp_path / "run"
    launcher = drive(make_job(steps=1000, world_size=2), run_dir, faulty("", STEP_S="0.1"), tmp_path)
    wait_for(run_dir / "perf" / "rank1.jsonl")
    argv = b"trainwright.train.elastic"
    (torchrun_pid,) = [pid for pid in alive(str(manifest(run_dir)["token"])) if argv in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(torchrun_pid, signal.SIGKILL)
    answer, _ = launcher.communicate(timeout=60)
    gone(run_dir)
    assert answer.strip() == "failed"
    found = diagnose(read_run(str(run_dir)))
    assert found.first_class == "insufficient_evidence_need_rank_log"
    assert "torchrun itself was ended by SIGKILL" in found.findings[0].message


@pytest.mark.long
def test_a_fault_in_the_caller_leaves_nothing(make_job: MakeJob, faulty: Faulty, tmp_path: Path, gone: Gone) -> None:
    def step(what: str, fraction: float | None = None) -> None:
        if fraction:
            raise RuntimeError("the caller's own")

    with pytest.raises(RuntimeError, match="the caller's own"):
        run(make_job(steps=1000), str(tmp_path / "run"), step=step, worker=faulty("", STEP_S="0.2"))
    gone(tmp_path / "run")
    assert manifest(tmp_path / "run")["outcome"]["status"] == "interrupted"  # type: ignore[index]


@pytest.mark.long
def test_a_second_ctrl_c_does_not_wait_for_the_grace(make_job: MakeJob, faulty: Faulty, tmp_path: Path, gone: Gone) -> None:
    run_dir = tmp_path / "run"
    launcher = drive(make_job(steps=1000, world_size=2), run_dir, faulty("", STEP_S="0.1", STUBBORN="1"), tmp_path)
    wait_for(run_dir / "perf" / "rank1.jsonl")
    launcher.send_signal(signal.SIGINT)
    time.sleep(0.5)
    launcher.send_signal(signal.SIGINT)
    answer, _ = launcher.communicate(timeout=60)
    gone(run_dir)
    assert answer.strip() == "interrupted"
    sent = manifest(run_dir)["outcome"]["signals_sent"]  # type: ignore[index]
    assert {row["signal"] for row in sent} == {signal.SIGTERM, signal.SIGKILL}


def wait_for(path: Path, within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert path.exists()


def drive(job: Job, run_dir: Path, worker: str, tmp_path: Path) -> subprocess.Popen[str]:
    job.write(str(tmp_path / "job.json"))
    argv = [sys.executable, DRIVE, str(tmp_path / "job.json"), str(run_dir), worker]
    path = os.pathsep.join([probe.library_root(), os.environ["PYTHONPATH"]])
    variables = {**os.environ, "PYTHONPATH": path}
    return subprocess.Popen(argv, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)


MOMENTS = [(number, delay) for number in (signal.SIGINT, signal.SIGTERM) for delay in random.Random(7).sample(range(60), 6)]


@pytest.mark.long
@pytest.mark.parametrize("number, tenths", MOMENTS)
def test_a_signal_to_the_launcher_at_any_moment(
    number: signal.Signals, tenths: int, make_job: MakeJob, faulty: Faulty, tmp_path: Path, gone: Gone
) -> None:
    run_dir = tmp_path / "run"
    launcher = drive(make_job(steps=1000), run_dir, faulty("", STEP_S="0.1"), tmp_path)
    wait_for(run_dir / "manifest.json")
    time.sleep(tenths / 10)
    launcher.send_signal(number)
    answer, _ = launcher.communicate(timeout=60)
    gone(run_dir)
    assert (answer.strip(), launcher.returncode) == ("interrupted", 0)
    outcome = manifest(run_dir)["outcome"]
    assert outcome["status"] == "interrupted" and number.name in outcome["reason"]  # type: ignore[index]
    assert diagnose(read_run(str(run_dir))).findings == []


@pytest.mark.long
@pytest.mark.parametrize("delay_s", [0.5, 3.0, 8.0])
def test_sigkill_of_the_launcher(delay_s: float, make_job: MakeJob, faulty: Faulty, tmp_path: Path, gone: Gone) -> None:
    run_dir = tmp_path / "run"
    launcher = drive(make_job(steps=1000), run_dir, faulty("", STEP_S="0.1"), tmp_path)
    wait_for(run_dir / "logs" / "launcher.log")
    time.sleep(delay_s)
    launcher.kill()
    launcher.communicate(timeout=30)
    gone(run_dir, within_s=45)
    assert manifest(run_dir)["outcome"]["status"] == "running"  # type: ignore[index]
    found = diagnose(read_run(str(run_dir)))
    assert found.findings == []


@pytest.mark.long
def test_the_reference_trainer_out_of_memory_under_a_cap(
    make_job: MakeJob, tmp_path: Path, gone: Gone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    job = make_job("ddp", world_size=2, steps=2, memory_cap_bytes=100 * 2**20)
    outcome, diagnosis = ran(job, tmp_path / "run", torchrun.WORKER, gone)
    assert outcome.status == "failed"
    assert diagnosis.first_class == "host_oom_alloc"
    assert "under a cap of 100.0 MiB" in diagnosis.findings[0].message


@pytest.mark.long
def test_the_reference_trainer_runs_what_was_asked(make_job: MakeJob, tmp_path: Path, gone: Gone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    job = make_job("fsdp", world_size=2, steps=3, micro_batch=1, seq_len=16)
    outcome, diagnosis = ran(job, tmp_path / "run", torchrun.WORKER, gone)
    assert outcome.completed and diagnosis.findings == []
    assert diagnosis.measures.strategy is not None
    assert diagnosis.measures.strategy["wrapper"] == "FSDPModule"
    assert diagnosis.measures.tokens_per_s
