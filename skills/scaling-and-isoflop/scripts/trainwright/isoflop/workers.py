# isoflop/workers.py without its comments
from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainwright import probe
from trainwright.isoflop.study import Study, close, request
from trainwright.output import make_folder, write_text
from trainwright.progress import Step

_LOOK_S = 0.2
_GRACE_S = 90.0


@dataclass(slots=True)
class Worked:

    rows: list[dict[str, Any]] = field(default_factory=list)
    again: list[str] = field(default_factory=list)
    interrupted: bool = False


@dataclass(slots=True)
class _Active:
    run: dict[str, Any]
    child: subprocess.Popen[bytes]
    log: Path


def work(study: Study, workers: int, timeout_s: float, step: Step, retry: bool = False) -> Worked:
    if not study.plan.get("trainer") and probe.importable("trainwright.isoflop.by_reference"):
        from trainwright.isoflop import by_reference

        by_reference.write_backend(study.folder)
    waiting = sorted(left(study, retry), key=lambda run: -run["flops"])
    whole = sum(run["flops"] for run in study.runs)
    done = whole - sum(run["flops"] for run in waiting)
    found, active = Worked(), list[_Active]()
    with _signals() as asked:
        try:
            while (waiting or active) and not asked:
                while waiting and len(active) < workers:
                    active.append(_start(study, waiting.pop(0), timeout_s))
                for one in [one for one in active if one.child.poll() is not None]:
                    active.remove(one)
                    done += one.run["flops"]
                    _finish(study, one, found)
                names = ", ".join(one.run["id"] for one in active[:3])
                step(f"{len(study.runs) - len(waiting) - len(active)} of {len(study.runs)} runs; {names}", done / whole)
                time.sleep(_LOOK_S)
        finally:
            found.interrupted = bool(asked)
            _end(active)
            found.again += [one.run["id"] for one in active] + [run["id"] for run in waiting]
    return found


def left(study: Study, retry: bool) -> list[dict[str, Any]]:
    rows = [(run, study.row(run)) for run in study.runs]
    return [run for run, row in rows if row is None or (retry and row["state"] != "finished")]


def _start(study: Study, run: dict[str, Any], timeout_s: float) -> _Active:
    asked = Path(study.folder, "asked", f"{run['id']}.json")
    make_folder(asked.parent)
    write_text(asked, json.dumps(request(study, run, timeout_s)) + "\n")
    log = asked.with_suffix(".log")
    threads = str((study.plan.get("job") or {}).get("threads") or 1)
    argv = [sys.executable, "-m", "trainwright.isoflop.one_run", str(asked)]
    with probe.environment({**probe.python_variables(), "OMP_NUM_THREADS": threads}), open(log, "wb") as output:
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    return _Active(run, child, log)


def _finish(study: Study, one: _Active, found: Worked) -> None:
    words = one.log.read_text(encoding="utf-8", errors="replace").strip()[-400:]
    row = close(study, one.run, one.child.returncode, words)
    if row is None:
        found.again.append(one.run["id"])
    else:
        found.rows.append(row)


def _end(active: list[_Active]) -> None:
    for one in active:
        if one.child.poll() is None:
            one.child.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_S
    for one in active:
        try:
            one.child.wait(max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            one.child.kill()
            one.child.wait()


@contextmanager
def _signals() -> Iterator[list[int]]:
    asked: list[int] = []
    before: dict[int, Any] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, lambda received, frame: asked.append(received))
    except ValueError:
        pass
    try:
        yield asked
    finally:
        for kept, handler in before.items():
            signal.signal(kept, handler)
