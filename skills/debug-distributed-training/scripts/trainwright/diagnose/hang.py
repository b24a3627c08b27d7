"""Which rank the others waited for, when a job stalled or a collective timed out."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from trainwright import heartbeat
from trainwright.diagnose.cause import Confidence
from trainwright.diagnose.events import events, of_kind, ranks_word
from trainwright.diagnose.lines import Line, Log, read_log
from trainwright.diagnose.run_folder import Rank, Run

_STACK = re.compile(r"^Current thread 0x[0-9a-f]+.*\(most recent call first\)")
_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+) in (.+)')


@dataclass(frozen=True, slots=True)
class Behind:
    """The ranks that the others waited for (as a rule one), and on what that rests."""

    ranks: tuple[Rank, ...]
    why: str
    confidence: Confidence
    evidence: tuple[Line, ...]


def behind(run: Run) -> Behind | None:
    """By stacks where the launcher had them written, else by the heartbeats, else by who never complained of a timeout, else
    by steps; None: unknown."""
    return _by_stack(run) or _by_heartbeat(run) or _by_silence(run) or _by_steps(run)


def stack_top(log: Log | None) -> Line | None:
    """The innermost Python frame in which a rank stood when it was asked for its stacks (SIGABRT under faulthandler)."""
    if log is None:
        return None
    starts = [index for index, line in enumerate(log.lines) if _STACK.match(line.text)]
    following = log.lines[starts[-1] + 1 : starts[-1] + 2] if starts else ()
    return next((line for line in following if _FRAME.match(line.text)), None)


def at_init(run: Run) -> bool:
    """Whether the ranks that waited were still joining the process group."""
    joining = re.compile(r"\bin init_process_group\b|DistStoreError")
    return any(rank.log and rank.log.find(joining) for rank in run.in_order)


def _by_stack(run: Run) -> Behind | None:
    """A rank that stands outside torch while others stand inside it is not in their collective."""
    tops = {rank.number: line for rank in run.in_order if (line := stack_top(rank.log))}
    waiting = [line for line in tops.values() if _in_torch(line)]
    outside = {number: line for number, line in tops.items() if not _in_torch(line)}
    if not waiting or not outside or len(outside) > len(waiting):
        return None
    ranks = tuple(run.ranks[number] for number in outside)
    place = _FRAME.match(next(iter(outside.values())).text)
    why = f"stood in {place[3]} ({place[1]}:{place[2]})" if place else "stood outside torch"
    confidence: Confidence = "high" if len(outside) == 1 else "medium"
    return Behind(ranks, f"{why} while {_others(tops, outside)} waited in torch", confidence, (*outside.values(), *waiting))


def _others(tops: dict[int, Line], outside: dict[int, Line]) -> str:
    return ranks_word(number for number in tops if number not in outside)


def _in_torch(line: Line) -> bool:
    frame = _FRAME.match(line.text)
    return bool(frame and re.search(r"[/\\]torch[/\\]", frame[1]))


def _by_heartbeat(run: Run) -> Behind | None:
    """A rank that is in an earlier phase than the others wait in has not come to their collective.

    Rounds of forward and backward follow each other in a step, so that these two alone tell little.
    """
    if not os.path.isdir(run.path):
        return None
    beats = heartbeat.read(run.path)
    late = heartbeat.behind(beats)
    if not late or any(beat.rank not in run.ranks for beat in late):
        return None
    where = f"sat in {late[0].phase} of step {late[0].step}"
    others = Counter(f"{beat.phase} of step {beat.step}" for beat in beats.values() if beat not in late)
    sure: Confidence = "low" if late[0].phase in ("forward", "backward") else "medium"
    evidence = tuple(_beat_line(run, beat.rank) for beat in late)
    return Behind(
        tuple(run.ranks[beat.rank] for beat in late), f"{where} while others were in {others.most_common(1)[0][0]}", sure, evidence
    )


def _beat_line(run: Run, rank: int) -> Line:
    name = f"{heartbeat.FOLDER}/rank{rank}"
    return read_log(Path(run.path, name), name, heartbeat.WIDTH, 0).lines[0]


def _by_silence(run: Run) -> Behind | None:
    """Ranks whose collective timed out were waiting; one that says nothing of it did not come."""
    waited = of_kind(run, "timeout")
    quiet = [event.rank for event in events(run) if event.kind in ("silent", "ended", "completed")]
    if not waited or not quiet or len(quiet) > len(waited):
        return None
    why = f"said nothing while {ranks_word(e.rank.number for e in waited)} timed out in a collective"
    return Behind(tuple(quiet), why, "medium", tuple(e.evidence[0] for e in waited if e.evidence))


def _by_steps(run: Run) -> Behind | None:
    done = Counter({rank.number: rank.last_step for rank in run.in_order})
    if len(set(done.values())) < 2:
        return None
    least = min(done.values())
    ranks = tuple(rank for rank in run.in_order if rank.last_step == least)
    if len(ranks) * 2 > len(done):
        return None
    evidence = tuple(rank.steps[-1].line for rank in ranks if rank.steps)
    return Behind(ranks, f"finished {least} steps, others up to {max(done.values())}", "low", evidence)
