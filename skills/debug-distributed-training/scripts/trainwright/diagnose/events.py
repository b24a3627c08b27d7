"""What ended each rank, and in which role: what initiated the failure, and what only followed from another rank's.

torchrun's "Root Cause" is the first process that *exited*, often a victim; it is read for exit codes and never believed.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from trainwright.diagnose.lines import Line, Log
from trainwright.diagnose.run_folder import Rank, Run, whole

Kind = Literal["completed", "out_of_memory", "exception", "signal", "exit", "peer", "timeout", "ended", "nonfinite", "silent"]
INITIATING = ("out_of_memory", "exception", "signal", "exit", "nonfinite")

OUT_OF_MEMORY = re.compile(
    r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory)|OutOfMemoryError|(?:CUDA|XPU|HIP) out of memory|std::bad_alloc"
    r"|\bMemoryError\b|Cannot allocate memory|OUT_OF_DEVICE_MEMORY|Unable to allocate [\d.]+ [KMGT]iB"
)
# What a collective says when another rank is gone: the sender of such a line is the victim.
PEER_LOST = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|Socket closed|Connection was likely closed|recvValue failed"
    r"|NCCL communicator was aborted|remote process exited|DistNetworkError: (?!.*(?:EADDRINUSE|failed to listen))|SignalException"
)
# What it says when another rank did not come: the sender waited.
WAITED = re.compile(
    r"Timed out waiting \d+ ?ms|wait timeout after \d+ ?ms|failed to pass monitoredBarrier|Watchdog caught collective operation timeout"
    r"|Application timeout caused pair closure|Work timed out after"
)
_TOLD_TO_END = (128 + signal.SIGTERM, 128 + signal.SIGHUP, 128 + signal.SIGINT)
_TRACEBACK = "Traceback (most recent call last):"
_PREFIX = re.compile(r"^\s?(?:\[(?:rank|default)\d+\]: ?)+")
_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+)')


@dataclass(frozen=True, slots=True)
class Event:
    """How one rank ended. `text` is its own last word; `order` sorts events of a run by time where it is known."""

    rank: Rank
    kind: Kind
    text: str = ""
    phase: str = ""
    signal: int = 0
    evidence: tuple[Line, ...] = ()
    order: float = 0.0

    @property
    def initiating(self) -> bool:
        return self.kind in INITIATING


@lru_cache(maxsize=2)  # each rule asks, and the logs may be long
def events(run: Run) -> tuple[Event, ...]:
    """One Event for each rank; those that initiated first, by time."""
    ended_by_us = _torn_down(run)
    found = [_event(rank, ended_by_us) for rank in run.in_order]
    return tuple(sorted(found, key=lambda event: (not event.initiating, event.order, event.rank.number)))


def of_kind(run: Run, *kinds: Kind) -> list[Event]:
    return [event for event in events(run) if event.kind in kinds]


def initiated(run: Run) -> bool:
    """Whether some rank failed of its own: whatever its peers say then follows from it."""
    return any(event.initiating for event in events(run))


def _torn_down(run: Run) -> set[int]:
    """Ids of the processes that the launcher or torchrun ended: how those died says nothing on the cause."""
    sent = run.outcome.get("signals_sent")
    pids = {whole(row.get("pid")) for row in sent if isinstance(row, dict)} if isinstance(sent, list) else set()
    if run.launcher:
        pids |= {int(pid) for pid in re.findall(r"Unable to shutdown process (\d{1,10}) via", run.launcher.text)}
    return {pid for pid in pids if pid}


def _event(rank: Rank, torn_down: set[int]) -> Event:
    if rank.completed:
        return Event(rank, "completed")
    error = rank.end.get("error")
    if isinstance(error, dict):
        return _recorded(rank, error)
    code = rank.exitcode
    killed = code is not None and code < 0 and code != -signal.SIGTERM and rank.pid not in torn_down
    if rank.log and (line := rank.log.find_last(OUT_OF_MEMORY)):
        return Event(rank, "out_of_memory", strip(line.text), evidence=_lines(line, rank.exit_line))
    if killed and code is not None:
        return Event(rank, "signal", signal_name(-code), signal=-code, evidence=_lines(rank.exit_line, _fatal(rank.log)))
    if raised := last_exception(rank.log):
        return Event(rank, _kind(raised[0]), raised[0], evidence=raised[1], order=rank.changed)
    if code is not None and code > 0 and code not in _TOLD_TO_END:
        said = rank.log.find_last(re.compile(r"\S")) if rank.log else None
        return Event(rank, "exit", f"exit code {code}", evidence=_lines(said, rank.exit_line))
    return Event(rank, "silent" if code is None else "ended", evidence=_lines(rank.exit_line))


def _recorded(rank: Rank, error: dict[str, Any]) -> Event:
    """The event of an end line that the rank wrote itself."""
    if error.get("type") == "terminated":  # by SIGTERM, or because its launcher was gone
        return Event(rank, "ended", str(error.get("message") or ""), evidence=_lines(rank.end_line))
    message = str(error.get("message") or "")[:2000]
    if error.get("type") == "nonfinite":  # the trainer stopped itself; the step's record tells what was not finite
        return Event(rank, "nonfinite", message, evidence=_lines(rank.end_line), order=rank.changed)
    text = f"{error.get('exception') or 'an exception'}: {message}".strip()
    kind: Kind = "out_of_memory" if error.get("type") == "out_of_memory" else _kind(text)
    raised = last_exception(rank.log)
    evidence = _lines(*(raised[1] if raised else ()), rank.end_line)
    return Event(rank, kind, text, phase=str(error.get("phase") or "")[:40], evidence=evidence, order=rank.changed)


def _kind(text: str) -> Kind:
    text = text[:2000]  # a look ahead at each of many matches costs the square of a line's length
    if PEER_LOST.search(text):
        return "peer"
    if WAITED.search(text):
        return "timeout"
    return "out_of_memory" if OUT_OF_MEMORY.search(text) else "exception"


def last_exception(log: Log | None) -> tuple[str, tuple[Line, ...]] | None:
    """The last traceback that ended something: ("ValueError: text", that line and its innermost frame outside packages)."""
    if log is None:
        return None
    texts = [strip(line.text) for line in log.lines]
    for start in (index for index in range(len(texts) - 1, -1, -1) if texts[index].startswith(_TRACEBACK)):
        if start and texts[start - 1].startswith("Exception ignored in"):
            continue
        end = next((index for index in range(start + 1, len(texts)) if texts[index][:1].strip()), None)
        if end is not None:
            frames = [log.lines[index] for index in range(start + 1, end) if _FRAME.match(texts[index])]
            return texts[end], _lines(log.lines[end], _own_frame(frames))
    return None


def _own_frame(frames: list[Line]) -> Line | None:
    """The innermost frame of the user's own code; where all of it is in packages, the innermost."""
    own = [line for line in frames if not any(part in line.text for part in ("site-packages", "<frozen", "/lib/python"))]
    return own[-1] if own else frames[-1] if frames else None


def _fatal(log: Log | None) -> Line | None:
    return log.find(re.compile(r"Fatal Python error|terminate called|Bus error")) if log else None


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def strip(text: str) -> str:
    """A log line without the "[rank1]: " that torch puts before it."""
    return _PREFIX.sub("", text)


def ranks_word(numbers: Iterable[int]) -> str:
    """[2] -> "rank 2", [0, 1, 3] -> "ranks 0, 1, 3"; a long list is cut."""
    shown = sorted(numbers)
    names = ", ".join(map(str, shown[:8])) + (f" and {len(shown) - 8} more" if len(shown) > 8 else "")
    return f"rank{'s' if len(shown) > 1 else ''} {names}"


def _lines(*lines: Line | None) -> tuple[Line, ...]:
    return tuple(line for line in lines if line is not None)
