"""RUN/perf/rank{r}.jsonl: one header, a line a step, and an end line in every ending that Python sees."""

from __future__ import annotations

import json
import os
import platform
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from trainwright.errors import UserError
from trainwright.report import finite
from trainwright.train.tracker import Tracker

PACKAGES = ("torch", "accelerate", "numpy")
LONGEST = 500  # characters of an error message; torch appends C++ frames to some


class Records:
    """The file of one rank. Any thread may end it; the first end line stands and nothing follows it."""

    def __init__(self, run_dir: str, rank: int, opening: Mapping[str, Any]) -> None:
        """Create the file; `opening` is what the header holds whatever happens. Raises UserError where it cannot be written."""
        path = Path(run_dir, "perf", f"rank{rank}.jsonl")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "w", encoding="utf-8", newline="\n")
        except OSError as problem:
            raise UserError(f"cannot write {path}: {problem.strerror or problem}; name a writable run_dir") from None
        self._lock = threading.Lock()
        self._opening = dict(opening)
        self._begun = self._ended = False
        self.steps = 0
        self.tracker: Tracker | None = None  # where one is set, its peak stands in the end line
        self.data: Callable[[], Mapping[str, Any]] | None = None  # where one is set, what was read by then stands there too

    def header(self, facts: Mapping[str, Any]) -> None:
        """The first line: the opening and what the live model said of itself."""
        self._begun = True
        self._write({"kind": "header", **self._opening, **facts})

    def step(self, row: Mapping[str, Any]) -> None:
        self._write({"kind": "step", **row})
        self.steps += 1

    def checkpoint(self, row: Mapping[str, Any]) -> None:
        """A checkpoint is complete: {"step", "path", "seconds"}; no step's time has the saving in it."""
        self._write({"kind": "checkpoint", **row})

    def end(self, status: str, error: Mapping[str, Any] | None = None) -> None:
        """The last line, once; before it a header without a strategy where the model never came to life."""
        if not self._begun:
            self.header({"strategy": None, "applied": [], "not_applied": []})
        peak = {"peak_memory_bytes": self.tracker and self.tracker.peak_bytes, "memory": self.tracker and self.tracker.categories}
        read: dict[str, Any] = {}
        if self.data:
            with suppress(RuntimeError):  # the watchdog's thread may look while the main thread notes another shard
                read = {"data": self.data()}
        self._write({"kind": "end", "status": status, "steps": self.steps, **peak, **read, "error": error}, last=True)

    def _write(self, row: dict[str, Any], last: bool = False) -> None:
        line = json.dumps(finite(row), separators=(",", ":"), ensure_ascii=False, default=str) + "\n"
        with self._lock:
            if self._ended:
                return
            self._ended = last
            try:
                self._file.write(line)
                self._file.flush()
                if last:
                    self._file.close()
            except OSError as problem:
                raise UserError(f"cannot write {self._file.name}: {problem.strerror or problem}; free some space") from None


def failure(kind: str, exception: str, message: str, phase: str) -> dict[str, str]:
    """The `error` of an end line; kind is out_of_memory, exception or terminated."""
    return {"type": kind, "exception": exception, "message": message.strip()[:LONGEST], "phase": phase}


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def host() -> dict[str, Any]:
    return {"host": platform.node(), "pid": os.getpid()}


def versions() -> dict[str, str | None]:
    """Of Python and of the packages a run depends on; None where one is not installed."""
    return {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
