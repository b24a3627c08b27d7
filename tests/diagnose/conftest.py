"""Fabricated run folders: small, made for reading tests, and never the record of a real job."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SUMMARY = """\
E0801 10:00:00.000000 1 torch/distributed/elastic/api.py:1] failed (exitcode: {code}) local_rank: {rank} (pid: {pid}) of binary: python
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
trainwright.train.run FAILED
------------------------------------------------------------
Failures:
{others}------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-08-01_10:00:00
  host      : localhost
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: {pid})
  error_file: <N/A>
  traceback : none
============================================================
"""
OTHER = """\
[1]:
  time      : 2026-08-01_10:00:00
  host      : localhost
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: {pid})
  error_file: <N/A>
"""


class Folder:
    """Writes the files of one fabricated run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()

    def perf(self, rank: int, *rows: dict[str, Any] | str, world_size: int = 2, **header: Any) -> Folder:
        first = {"kind": "header", "rank": rank, "world_size": world_size, "pid": 100 + rank, "device": "cpu", **header}
        lines = [row if isinstance(row, str) else json.dumps(row) for row in (first, *rows)]
        return self.file(f"perf/rank{rank}.jsonl", "".join(f"{line}\n" for line in lines))

    def manifest(self, status: str, **outcome: Any) -> Folder:
        value = {"schema": "trainwright/manifest/1", "outcome": {"status": status, "returncode": None, **outcome}}
        return self.file("manifest.json", json.dumps(value, indent=1))

    def job(self, **fields: Any) -> Folder:
        return self.file("job.json", json.dumps({"schema": "trainwright/job/1", "world_size": 2, "steps": 4, **fields}))

    def stderr(self, rank: int, text: str) -> Folder:
        return self.file(f"logs/some_id/attempt_0/{rank}/stderr.log", text)

    def exits(self, codes: dict[int, int]) -> Folder:
        """torchrun's summary: the first code is its "root cause"."""
        (rank, code), *rest = codes.items()
        others = "".join(OTHER.format(rank=r, code=c, pid=100 + r) for r, c in rest)
        return self.file("logs/launcher.log", SUMMARY.format(rank=rank, code=code, pid=100 + rank, others=others))

    def file(self, name: str, text: str | bytes) -> Folder:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return self


def step(number: int, seconds: float = 0.5, **fields: Any) -> dict[str, Any]:
    return {"kind": "step", "step": number, "step_time_s": seconds, "tokens": 256, "loss": 5.0 / number, "memory_bytes": None, **fields}


def end(error: str = "", kind: str = "exception", steps: int = 4, **fields: Any) -> dict[str, Any]:
    if not error:
        return {"kind": "end", "status": "completed", "steps": steps, "error": None, **fields}
    name, _, message = error.partition(": ")
    return {
        "kind": "end",
        "status": "failed",
        "steps": steps,
        "error": {"type": kind, "exception": name, "message": message, "phase": "forward"},
    }


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "run")


@pytest.fixture
def row() -> Callable[..., dict[str, Any]]:
    """A step line."""
    return step


@pytest.fixture
def last() -> Callable[..., dict[str, Any]]:
    """An end line: completed, or failed with "Name: message"."""
    return end
