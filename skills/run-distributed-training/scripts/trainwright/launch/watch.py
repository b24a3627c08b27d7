# launch/watch.py without its comments
from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field

_NEWS_BYTES = 2**20


@dataclass(slots=True)
class Progress:

    folder: str
    steps: dict[str, int] = field(default_factory=dict)
    grew: float = field(default_factory=time.monotonic)
    _read: dict[str, int] = field(default_factory=dict)

    def look(self) -> None:
        for name in self._names():
            news = self._news(name)
            if news:
                self.grew = time.monotonic()
                self.steps[name] = max([self.steps.get(name, 0), *_steps(news)])

    def slowest(self, world_size: int) -> int:
        return min(self.steps.values()) if len(self.steps) >= world_size else 0

    def idle_s(self) -> float:
        return time.monotonic() - self.grew

    def _names(self) -> list[str]:
        try:
            return [name for name in os.listdir(self.folder) if name.startswith("rank") and name.endswith(".jsonl")]
        except OSError:
            return []

    def _news(self, name: str) -> bytes:
        try:
            with open(os.path.join(self.folder, name), "rb") as file:
                file.seek(self._read.get(name, 0))
                news = file.read(_NEWS_BYTES)
        except OSError:
            return b""
        whole = news[: news.rfind(b"\n") + 1] or (news if len(news) == _NEWS_BYTES else b"")
        self._read[name] = self._read.get(name, 0) + len(whole)
        return whole


def _steps(lines: bytes) -> list[int]:
    return [step for line in lines.splitlines() if (step := _step(line)) is not None]


def _step(line: bytes) -> int | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    step = row.get("step") if isinstance(row, dict) and row.get("kind") == "step" else None
    return step if type(step) is int and 0 <= step < 2**53 else None


@dataclass(frozen=True, slots=True)
class Clocks:

    started: float
    timeout_s: float
    stall_s: float

    def expired(self, progress: Progress) -> str:
        if time.monotonic() - self.started > self.timeout_s:
            return "total"
        return "stall" if progress.idle_s() > self.stall_s else ""

    def reason(self, clock: str) -> str:
        if clock == "total":
            return f"not finished {self.timeout_s:g} s after the start"
        return f"no rank wrote a line for {self.stall_s:g} s"
