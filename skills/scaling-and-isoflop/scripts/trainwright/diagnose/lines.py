# helpers/trainwright/diagnose/lines.py without its comments
from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

HEAD_BYTES = 2**20
TAIL_BYTES = 8 * 2**20
MOST_ROWS = 100_000

_ANSI = re.compile(r"\033\[[0-9;?]*[ -/]*[@-~]")


@dataclass(frozen=True, slots=True)
class Line:

    file: str
    number: int | None
    text: str

    def to_json(self) -> dict[str, str | int | None]:
        return {"file": self.file, "line": self.number, "text": self.text.strip()[:500]}


@dataclass(frozen=True, slots=True)
class Log:

    file: str
    lines: tuple[Line, ...]
    skipped_bytes: int = 0
    cut_short: bool = False

    @property
    def text(self) -> str:
        return "\n".join(line.text for line in self.lines)

    def find(self, pattern: re.Pattern[str]) -> Line | None:
        return next((line for line in self.lines if pattern.search(line.text)), None)

    def find_last(self, pattern: re.Pattern[str]) -> Line | None:
        return next((line for line in reversed(self.lines) if pattern.search(line.text)), None)


def read_log(path: Path, name: str, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES) -> Log:
    head, tail, skipped = _read(path, head_bytes, tail_bytes)
    lines = _lines(name, head, 1)
    if skipped:
        lines = lines[: head.count(b"\n")] + _lines(name, tail, None)[1:]
    return Log(name, tuple(lines), skipped, cut_short=not (tail or head).endswith((b"\n", b"\r")) and bool(tail or head))


def _read(path: Path, head_bytes: int, tail_bytes: int) -> tuple[bytes, bytes, int]:
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise OSError("it is not a regular file")
        if facts.st_size <= head_bytes + tail_bytes:
            return _crop(file.read(head_bytes + tail_bytes))
        head = file.read(head_bytes)
        file.seek(facts.st_size - tail_bytes)
        tail = file.read(tail_bytes)
    head, tail = _first_rows(head), _last_rows(tail)
    return head, tail, facts.st_size - len(head) - len(tail)


def _crop(raw: bytes) -> tuple[bytes, bytes, int]:
    if raw.count(b"\n") <= 2 * MOST_ROWS:
        return raw, b"", 0
    head, tail = _first_rows(raw), _last_rows(raw)
    return head, tail, len(raw) - len(head) - len(tail)


def _first_rows(raw: bytes) -> bytes:
    rows = raw.split(b"\n", MOST_ROWS)
    return raw if len(rows) <= MOST_ROWS else raw[: len(raw) - len(rows[-1])]


def _last_rows(raw: bytes) -> bytes:
    rows = raw.rsplit(b"\n", MOST_ROWS)
    return raw if len(rows) <= MOST_ROWS else raw[len(rows[0]) :]


def _lines(name: str, raw: bytes, first: int | None) -> list[Line]:
    rows = raw.decode("utf-8", "replace").split("\n")
    if rows and not rows[-1]:
        rows.pop()
    return [Line(name, None if first is None else first + index, _clean(row)) for index, row in enumerate(rows)]


def _clean(row: str) -> str:
    last = row.rstrip("\r").rpartition("\r")[2]
    return _ANSI.sub("", last)
