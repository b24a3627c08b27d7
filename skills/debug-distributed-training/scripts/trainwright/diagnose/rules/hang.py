"""The rule on a run that hung, or was not finished in its time."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator

from trainwright.diagnose.cause import Cause, gathered
from trainwright.diagnose.events import initiated, of_kind, ranks_word
from trainwright.diagnose.hang import at_init, behind
from trainwright.diagnose.lines import Line
from trainwright.diagnose.run_folder import Run, number, whole
from trainwright.report import Severity
from trainwright.rules import Hit, rule
from trainwright.units import format_seconds


@rule("RUN004", Severity.ERROR, Run, fails_at="first step", checked="run", source="torch-2.13.0-elastic")
def timeout_or_stall(run: Run) -> Iterator[Hit]:
    """The job stalled, or was not finished in its time, or a collective waited in vain.

    The rank that complains of a timeout is the one that waited. The culprit is the rank that did not come: the one
    whose Python stack stands outside torch while the others stand in a collective, else the one that says nothing,
    else the one with fewer steps. A job that still made progress when its time was over only needs more of it.

    Bad `manifest.json`:
        {"schema": "trainwright/manifest/1", "outcome": {"status": "timeout", "clock": "stall", "reason": "no rank wrote a line for 60 s"}}
    Bad `perf/rank0.jsonl`:
        {"kind": "header", "rank": 0, "world_size": 1}

    Good `manifest.json`:
        {"schema": "trainwright/manifest/1", "outcome": {"status": "completed", "returncode": 0}}
    Good `perf/rank0.jsonl`:
        {"kind": "header", "rank": 0, "world_size": 1}
        {"kind": "end", "status": "completed", "steps": 1, "error": null}
    """
    waited = of_kind(run, "timeout")
    if initiated(run) or not (waited or run.status == "timeout"):
        return
    reason = str(run.outcome.get("reason") or "")[:300]
    if run.status == "timeout" and run.outcome.get("clock") == "total" and _progressed(run):
        yield _walltime(run, reason).hit()
        return
    said = reason if run.status == "timeout" else f"{ranks_word(e.rank.number for e in waited)} timed out in a collective"
    late = behind(run)
    evidence = (*(late.evidence if late else gathered(e.evidence for e in waited)), *_outcome_line(run))
    confirm = "the Python stack of every rank while it hangs (py-spy dump --pid N), or a flight recorder dump"
    if late is None:
        message = f"the job hung after step {run.last_step} ({said}); its files do not tell which rank the others waited for"
        yield Cause("hang_cause_unknown", message, "low", evidence, None, confirm).hit()
        return
    numbers = [rank.number for rank in late.ranks]
    message = f"the job hung after step {run.last_step} ({said}): {ranks_word(numbers)} {late.why}"
    rank = numbers[0] if len(numbers) == 1 else None
    name = "init_rank_missing" if at_init(run) else "hang_rank_not_in_collective"
    yield Cause(name, message, late.confidence, evidence, rank, confirm).hit()


def _progressed(run: Run) -> bool:
    """Whether steps still came when the time was over: the last line was no older than a few steps take."""
    idle, each = number(run.outcome.get("idle_s")), _step_time(run)
    return each is not None and (idle is None or idle <= max(10.0, 5 * each))


def _step_time(run: Run) -> float | None:
    """The median time of a step after the first, of the first rank that has any; seconds."""
    times = [[row.step_time_s for row in rank.steps[1:] if row.step_time_s is not None] for rank in run.in_order]
    return next((statistics.median(found) for found in times if found), None)


def _walltime(run: Run, reason: str) -> Cause:
    each, steps = _step_time(run), whole(run.job.get("steps"))
    need = f"; at {format_seconds(each)} a step the rest takes {format_seconds(each * (steps - run.last_step))}" if each and steps else ""
    message = f"the job was {reason or 'not finished in its time'}, and still made progress: step {run.last_step} of {steps or '?'}{need}"
    return Cause("walltime", message, "high", _outcome_line(run), None, "the same job with a longer --timeout, or fewer steps")


def _outcome_line(run: Run) -> tuple[Line, ...]:
    """The line of the manifest in which the launcher says why it ended the job."""
    log = run.manifest_log
    line = (log.find(re.compile(r'"reason"')) or log.find(re.compile(r'"outcome"'))) if log else None
    return (line,) if line else ()
