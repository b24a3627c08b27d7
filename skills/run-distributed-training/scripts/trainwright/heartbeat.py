# heartbeat.py without its comments
from __future__ import annotations

import json
import math
import os
import platform
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

FOLDER = "heartbeat"
PHASES = ("data", "forward", "backward", "optimizer", "averaging", "checkpoint", "ended")
WIDTH = 256
_NAME = re.compile(r"rank(\d{1,6})")
_PHASE_MOST = 32


@dataclass(frozen=True, slots=True)
class Beat:

    rank: int
    step: int
    phase: str
    wall: float
    monotonic: float
    pid: int
    host: str

    def since_s(self) -> float:
        if self.host == platform.node()[:64]:
            return max(0.0, time.monotonic() - self.monotonic)
        return max(0.0, time.time() - self.wall)


class Heartbeat:

    def __init__(self, run_dir: str, rank: int) -> None:
        self._file = -1
        self._tail = f',"rank":{rank},"pid":{os.getpid()},"host":{json.dumps(platform.node()[:64])}}}'
        self.count = 0
        self.step = 0
        folder = Path(run_dir, FOLDER)
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(folder / f"rank{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)

    def beat(self, phase: str) -> None:
        if self._file < 0:
            return
        head = f'{{"step":{self.step},"phase":"{phase[:_PHASE_MOST]}","wall":{time.time():.3f},"monotonic":{time.monotonic():.3f}'
        line = (head + self._tail)[: WIDTH - 1].ljust(WIDTH - 1) + "\n"
        try:
            os.pwrite(self._file, line.encode("utf-8", "replace")[:WIDTH], 0)
        except OSError:
            return
        self.count += 1


def read(run_dir: str) -> dict[int, Beat]:
    return {beat.rank: beat for path in _files(run_dir) if (beat := _beat(path)) is not None}


def stuck(beats: dict[int, Beat]) -> str:
    groups: dict[tuple[int, str], list[Beat]] = {}
    for beat in beats.values():
        groups.setdefault((beat.step, beat.phase), []).append(beat)
    rows = sorted(groups.items(), key=lambda group: (group[0][0], -round(max(beat.since_s() for beat in group[1])), len(group[1])))
    return "; ".join(_words(step, phase, group) for (step, phase), group in rows)


def behind(beats: dict[int, Beat]) -> list[Beat]:
    places = {rank: (beat.step, PHASES.index(beat.phase)) for rank, beat in beats.items() if beat.phase in PHASES}
    if len(places) < len(beats) or len(set(places.values())) < 2:
        return []
    last = min(places.values())
    found = [beats[rank] for rank in sorted(places) if places[rank] == last]
    return found if len(found) * 2 < len(beats) or len(beats) == 2 else []


def _words(step: int, phase: str, group: list[Beat]) -> str:
    ranks = sorted(beat.rank for beat in group)
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    verb = "rank {} sits" if len(ranks) == 1 else "ranks {} sit"
    place = f"{phase} of step {step}" if step else phase
    return f"{verb.format(shown)} in {place} since {max(beat.since_s() for beat in group):.0f} s"


def _files(run_dir: str) -> Iterator[Path]:
    try:
        names = sorted(os.listdir(os.path.join(run_dir, FOLDER)))
    except OSError:
        return
    yield from (Path(run_dir, FOLDER, name) for name in names if _NAME.fullmatch(name))


def _beat(path: Path) -> Beat | None:
    try:
        if path.is_symlink() or not path.is_file():
            return None
        with open(path, "rb") as file:
            row = json.loads(file.read(WIDTH))
        beat = Beat(*(row[name] for name in Beat.__dataclass_fields__))
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return None
    return beat if _sound(beat) and beat.rank == int(path.name[4:]) else None


def _sound(beat: Beat) -> bool:
    wholes = all(type(n) is int and 0 <= n < 2**53 for n in (beat.rank, beat.step, beat.pid))
    times = all(type(t) in (int, float) and math.isfinite(t) and 0 <= t < 2**53 for t in (beat.wall, beat.monotonic))
    return (
        wholes
        and times
        and isinstance(beat.host, str)
        and isinstance(beat.phase, str)
        and re.fullmatch(r"[\w -]{1,32}", beat.phase) is not None
    )
