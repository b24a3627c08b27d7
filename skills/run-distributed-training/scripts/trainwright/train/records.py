# train/records.py without its comments
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
LONGEST = 500


class Records:

    def __init__(self, run_dir: str, rank: int, opening: Mapping[str, Any]) -> None:
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
        self.tracker: Tracker | None = None
        self.data: Callable[[], Mapping[str, Any]] | None = None

    def header(self, facts: Mapping[str, Any]) -> None:
        self._begun = True
        self._write({"kind": "header", **self._opening, **facts})

    def step(self, row: Mapping[str, Any]) -> None:
        self._write({"kind": "step", **row})
        self.steps += 1

    def checkpoint(self, row: Mapping[str, Any]) -> None:
        self._write({"kind": "checkpoint", **row})

    def end(self, status: str, error: Mapping[str, Any] | None = None) -> None:
        if not self._begun:
            self.header({"strategy": None, "applied": [], "not_applied": []})
        peak = {"peak_memory_bytes": self.tracker and self.tracker.peak_bytes, "memory": self.tracker and self.tracker.categories}
        read: dict[str, Any] = {}
        if self.data:
            with suppress(RuntimeError):
                read = {"data": self.data()}
        self._write({"kind": "end", "status": status, "steps": self.steps, **peak, **read, "error": error}, last=True)

    def _write(self, row: dict[str, Any], last: bool = False) -> None:
        line = json.dumps(finite(row), separators=(",", ":"), default=str) + "\n"
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
    return {"type": kind, "exception": exception, "message": message.strip()[:LONGEST], "phase": phase}


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def host() -> dict[str, Any]:
    return {"host": platform.node(), "pid": os.getpid()}


def versions() -> dict[str, str | None]:
    return {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
