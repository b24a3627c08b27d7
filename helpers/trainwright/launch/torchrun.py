"""Run a job on this host through torchrun: start it, watch it, and leave no process behind, whatever happens."""

from __future__ import annotations

import dataclasses
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from trainwright import heartbeat, probe
from trainwright.errors import MissingPackageError, UserError
from trainwright.job import Job
from trainwright.launch import folder, manifest
from trainwright.launch.processes import TOKEN, Processes
from trainwright.launch.watch import Clocks, Progress
from trainwright.progress import Step, silent

WORKER = "trainwright.train.run"
TORCHRUN = "trainwright.train.elastic"  # torchrun's own main, under a watch that ends it when this process is gone
STALL_S = 120.0  # importing torch and the first step of a small job take well under a minute on a busy machine
GRACE_S = 5.0
SAVING_S = 60.0  # the same for a job that saves checkpoints: its step is finished and saved first
_LOOK_S = 0.1

Status = Literal["running", "completed", "failed", "timeout", "interrupted"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended. `returncode` is torchrun's (negative: the signal that ended it), None where it never started."""

    status: Status
    returncode: int | None
    run_dir: str
    reason: str = ""
    seconds: float = 0.0

    @property
    def completed(self) -> bool:
        return self.status == "completed"


def command(job: Job, run_dir: str, worker: str = WORKER) -> list[str]:
    """The argv that starts the job. One host, a free port, no restart: a restarted rank would hide what ended it."""
    torchrun = [sys.executable, "-m", TORCHRUN, "--standalone", "--nnodes", "1", "--local-addr", "127.0.0.1"]
    ranks = ["--nproc-per-node", str(job.world_size), "--max-restarts", "0"]
    logs = ["--log-dir", os.path.join(run_dir, "logs"), "-r", "3"]
    return [*torchrun, *ranks, *logs, "-m", worker, "--job", os.path.join(run_dir, "job.json")]


def variables(job: Job, token: str) -> dict[str, str]:
    """What the job's environment has beside the caller's; each rank inherits it from torchrun."""
    threads = max(1, probe.cpu_count() // job.world_size)
    return {
        **probe.python_variables(),
        "PYTHONFAULTHANDLER": "1",  # a crash, and the end of a stall, write the Python stacks
        "PYTHON_EXEC": sys.executable,  # torchrun starts its workers with this one where it is set
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(threads),
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(round(grace_s(job))),
        "TRAINWRIGHT_LAUNCHER_PID": str(os.getpid()),
        TOKEN: token,
    }


def grace_s(job: Job) -> float:
    """Seconds that the ranks have from the request to end until they are killed."""
    return SAVING_S if job.checkpoint_every else GRACE_S


def run(
    job: Job,
    run_dir: str,
    timeout_s: float | None = None,
    step: Step = silent,
    *,
    stall_s: float = STALL_S,
    force: bool = False,
    worker: str = WORKER,
) -> Outcome:
    """Run `job` in the new folder `run_dir` and wait for its end; `timeout_s` overrides the job's own.

    Ctrl-C, SIGTERM and SIGHUP end the job and give the status "interrupted" (they raise nothing here).
    Raises UserError where the folder, the model or the config will not do, MissingPackageError without torch.
    """
    if not probe.importable("torch"):
        raise MissingPackageError("torch", "running a job")
    run_dir = os.path.abspath(run_dir)
    job = dataclasses.replace(job, run_dir=run_dir, timeout_s=timeout_s or job.timeout_s)
    if force and any(_inside(place, run_dir) for place in (job.resume, job.init_from)):
        raise UserError(f"--force would remove {run_dir}, whose checkpoints this job starts from; name a new --run-dir")
    token = secrets.token_hex(8)
    settings = variables(job, token)
    argv = command(job, run_dir, worker)
    facts = manifest.begin(job, argv, settings, token)
    with _stop_signals() as stop:
        place = folder.create(run_dir, force)
        job.write(str(place / "job.json"))
        manifest.write(place, facts)
        attempt = _Attempt(job, place, argv, settings, facts, step, stall_s, stop)
        return attempt.run()


def _inside(place: str, folder: str) -> bool:
    """Whether `place` is `folder` or lies in it, links followed."""
    return bool(place) and Path(os.path.realpath(folder)) in (here := Path(os.path.realpath(place)), *here.parents)


@dataclass(slots=True)
class _Stop:
    """Signals that asked the launcher to end."""

    seen: list[int] = field(default_factory=list)

    def asked(self) -> bool:
        return bool(self.seen)

    def insisted(self) -> bool:
        return len(self.seen) > 1


@contextmanager
def _stop_signals() -> Iterator[_Stop]:
    """Note SIGINT, SIGTERM and SIGHUP instead of acting on them, so that none can fall between a start and its record.

    Outside the main thread Python takes no handlers: the signals then reach whoever runs there.
    """
    stop = _Stop()
    before: dict[int, Any] = {}
    try:
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:  # nohup stays nohup
                before[number] = signal.signal(number, lambda received, frame: stop.seen.append(received))
    except ValueError:
        pass
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _no_core_files() -> Iterator[None]:
    """Children inherit a core limit of 0: the stacks they write at an abort are enough, their memory image is not wanted."""
    try:
        import resource
    except ImportError:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)


@dataclass(frozen=True, slots=True)
class _End:
    """What ended a run; where a clock did, which ("total" or "stall") and how long no rank had written by then."""

    status: Status
    reason: str = ""
    clock: str = ""
    idle_s: float | None = None


@dataclass(slots=True)
class _Attempt:
    """One start of one job, from its manifest to the end of its last process."""

    job: Job
    place: Path
    argv: list[str]
    settings: dict[str, str]
    facts: dict[str, Any]
    step: Step
    stall_s: float
    stop: _Stop

    def run(self) -> Outcome:
        started = time.monotonic()
        kills = probe.oom_kills()
        processes: Processes | None = None
        end = _End("interrupted", "a fault in the launcher")
        try:
            if self.stop.asked():
                end = self._signalled()
            else:
                processes = self._start()
                end = self._watch(processes, Clocks(started, self.job.timeout_s, self.stall_s))
        finally:
            left = processes.end(grace_s(self.job) + 3, self.stop.insisted) if processes else []
            returncode = processes.launcher.poll() if processes else None
            found = {"returncode": returncode, "oom_kills": _difference(kills, probe.oom_kills())}
            ours = {"signals_sent": processes.sent if processes else [], "not_ended": left}
            self.facts.update(ended=manifest.now(), outcome={**dataclasses.asdict(end), **found, **ours})
            manifest.write(self.place, self.facts)
        return Outcome(end.status, returncode, str(self.place), end.reason, time.monotonic() - started)

    def _start(self) -> Processes:
        log = self.place / "logs" / "launcher.log"
        try:
            with probe.environment(self.settings), _no_core_files(), open(log, "wb") as output:
                launcher = subprocess.Popen(
                    self.argv,
                    cwd=self.place,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as problem:
            raise UserError(f"{self.argv[0]} cannot be started: {problem.strerror or problem}") from None
        return Processes(launcher, self.settings[TOKEN])

    def _watch(self, processes: Processes, clocks: Clocks) -> _End:
        """Wait for the end of the job: its own, a clock's, or one that a signal asks for."""
        progress = Progress(str(self.place / "perf"))
        shown = -1
        while (returncode := processes.launcher.poll()) is None and not self.stop.asked():
            progress.look()
            if clock := clocks.expired(progress):
                where = heartbeat.stuck(heartbeat.read(str(self.place)))
                reason = f"{clocks.reason(clock)}{'; ' if where else ''}{where}"
                end = _End("timeout", reason, clock, round(progress.idle_s(), 3))
                processes.dump_stacks()
                return end
            if (done := progress.slowest(self.job.world_size)) != shown:
                shown = done
                self.step(f"step {done} of {self.job.steps}" if done else "starting", done / self.job.steps)
            time.sleep(_LOOK_S)
        if self.stop.asked():
            return self._signalled()
        return _End("completed") if returncode == 0 else _End("failed", f"torchrun ended with {returncode}")

    def _signalled(self) -> _End:
        return _End("interrupted", f"the launcher got {signal.Signals(self.stop.seen[0]).name}")


def _difference(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before
