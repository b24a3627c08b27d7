# launch/ends.py without its comments
from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TAIL_BYTES = 2**16
_LONGEST = 300


@dataclass(frozen=True, slots=True)
class RankEnd:

    rank: int
    status: str = ""
    type: str = ""
    exception: str = ""
    message: str = ""
    phase: str = ""
    begun: bool = True

    @property
    def completed(self) -> bool:
        return self.status == "completed"

    def __str__(self) -> str:
        if not self.begun:
            return f"rank {self.rank} had not begun: where another failed first, torchrun ended it; else its stderr.log tells"
        if not self.status:
            return f"rank {self.rank} left no end record: something outside its Python ended it, see logs/launcher.log and its stderr.log"
        what = ": ".join(part for part in (self.exception or self.type, self.message[:_LONGEST]) if part)
        return f"rank {self.rank} {self.status} in {self.phase or 'an unknown phase'}: {what or 'no error recorded'}"


def ends_of(run_dir: str, world_size: int) -> list[RankEnd]:
    return [_end(rank, Path(run_dir, "perf", f"rank{rank}.jsonl")) for rank in range(world_size)]


def _end(rank: int, file: Path) -> RankEnd:
    lines = _tail(file)
    row: dict[str, Any] = next((found for line in reversed(lines) if (found := _row(line)) is not None), {})
    error = row.get("error")
    facts = error if isinstance(error, dict) else {}
    kind, exception, message, phase = (_text(facts.get(name)) for name in ("type", "exception", "message", "phase"))
    return RankEnd(rank, _text(row.get("status")), kind, exception, message, phase, bool(lines))


def _tail(file: Path) -> list[bytes]:
    try:
        if not file.is_file() or file.is_symlink():
            return []
        with open(file, "rb") as opened:
            opened.seek(max(0, os.fstat(opened.fileno()).st_size - _TAIL_BYTES))
            return opened.read(_TAIL_BYTES).splitlines()
    except OSError:
        return []


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and row.get("kind") == "end" else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
