"""What a run measured: step time, throughput, phases, memory, loss; over all ranks, after warm-up."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from trainwright.diagnose.run_folder import Rank, Run, StepRow, whole

PHASES = ("forward_s", "backward_s", "optimizer_s", "data_s", "communication_s")
WARM_UP = 1  # the first step pays for allocation, buffers and connections


@dataclass(frozen=True, slots=True)
class RankMeasures:
    """One rank: how far it came, how it ended, its medians (seconds) over steady steps and its peaks (bytes)."""

    rank: int
    steps: int
    status: str
    exitcode: int | None
    median_step_time_s: float | None
    peak_memory_bytes: int | None
    peak_rss_bytes: int | None


@dataclass(slots=True)
class Measures:
    """Steady steps are those after the first that no tracker slowed and every rank recorded; a figure without them is None.

    A step of the job takes as long as its slowest rank. `rank_spread` is the slowest rank's median step over the
    fastest's, less one. `not_measured` names each figure that is missing, and why.
    """

    status: str
    world_size: int | None
    steps: int
    steps_asked: int | None
    strategy: dict[str, Any] | None
    steady_steps: int = 0
    first_step_time_s: float | None = None
    median_step_time_s: float | None = None
    p90_step_time_s: float | None = None
    tokens_per_step: float | None = None
    tokens_per_s: float | None = None
    rank_spread: float | None = None
    phases: dict[str, float | None] = field(default_factory=dict)
    peak_memory_bytes: int | None = None
    memory: dict[str, Any] | None = None
    first_loss: float | None = None
    last_loss: float | None = None
    ranks: list[RankMeasures] = field(default_factory=list)
    not_measured: list[tuple[str, str]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        rows = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "not_measured"}
        return rows | {"ranks": [dataclasses.asdict(rank) for rank in self.ranks]}


def measure(run: Run) -> Measures:
    """The Measures of a run; what cannot be told is None and named in `not_measured`."""
    with_steps = [rank for rank in run.in_order if rank.steps]
    result = Measures(
        status=run.status,
        world_size=run.world_size,
        steps=min((rank.last_step for rank in run.with_header), default=0),
        steps_asked=whole(run.job.get("steps")),
        strategy=run.effective,
        peak_memory_bytes=run.peak_memory_bytes,
        memory=_memory(run),
    )
    if with_steps:
        _measure_steps(result, run, with_steps)
    else:
        result.not_measured.append(("step time and throughput", "no rank recorded a step"))
    result.ranks = [_rank(rank, _steady([rank])) for rank in run.in_order]
    return result


def _measure_steps(result: Measures, run: Run, ranks: list[Rank]) -> None:
    first = [row.step_time_s for rank in ranks if ((row := rank.steps[0]).step == 1 or row.first) and row.step_time_s is not None]
    result.first_step_time_s = max(first, default=None)
    losses = ranks[0].steps[0].loss, ranks[0].steps[-1].loss
    result.first_loss, result.last_loss = losses
    steady = _steady(ranks)
    result.steady_steps = len(steady)
    if len(steady) < 2:
        why = f"{len(steady)} steady steps, and a median needs 2: the first step and tracked ones do not count"
        result.not_measured.append(("step time and throughput", why))
        return
    times = [max(_known(row.step_time_s for row in rows)) for rows in steady.values()]
    result.median_step_time_s = statistics.median(times)
    result.p90_step_time_s = _percentile(times, 0.9)
    result.phases = {name: _median(getattr(row, name) for rows in steady.values() for row in rows) for name in PHASES}
    result.rank_spread = _spread(steady, len(ranks))
    missing = (run.world_size or len(ranks)) - len(ranks)
    if missing > 0:
        result.not_measured.append(("tokens/s over all ranks", f"{missing} of {run.world_size} ranks recorded no step"))
    elif all(row.tokens is not None for rows in steady.values() for row in rows):
        result.tokens_per_step = statistics.median(sum(_known(row.tokens for row in rows)) for rows in steady.values())
        result.tokens_per_s = result.tokens_per_step / result.median_step_time_s if result.median_step_time_s else None
    else:
        result.not_measured.append(("tokens/s over all ranks", "steps do not say how many tokens they had"))


def _steady(ranks: list[Rank]) -> dict[int, list[StepRow]]:
    """{step: the row of each rank} of the steps that count."""
    rows: dict[int, list[StepRow]] = {}
    for rank in ranks:
        for row in rank.steps:
            if row.step > WARM_UP and not row.first and not row.tracked and row.step_time_s is not None and 0 < row.step_time_s < math.inf:
                rows.setdefault(row.step, []).append(row)
    return {step: found for step, found in rows.items() if len(found) == len(ranks)}


def _spread(steady: dict[int, list[StepRow]], count: int) -> float | None:
    if count < 2:
        return None
    medians = [statistics.median(_known(rows[index].step_time_s for rows in steady.values())) for index in range(count)]
    return max(medians) / min(medians) - 1


def _rank(rank: Rank, steady: dict[int, list[StepRow]]) -> RankMeasures:
    status = str(rank.end.get("status") or "")[:40]
    rss = [row.rss_bytes for row in rank.steps if row.rss_bytes is not None and 0 <= row.rss_bytes < math.inf]
    median = _median(rows[0].step_time_s for rows in steady.values()) if len(steady) > 1 else None
    peak = whole(rank.end.get("peak_memory_bytes"))
    return RankMeasures(rank.number, rank.last_step, status, rank.exitcode, median, peak, round(max(rss)) if rss else None)


def _memory(run: Run) -> dict[str, Any] | None:
    """The categories at the peak, of the rank whose peak is the largest."""
    with_peak = [rank for rank in run.in_order if whole(rank.end.get("peak_memory_bytes")) is not None]
    if not with_peak:
        return None
    largest = max(with_peak, key=lambda rank: rank.end["peak_memory_bytes"])
    categories = largest.end.get("memory")
    return categories if isinstance(categories, dict) else None


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.median(known) if known else None


def _percentile(values: list[float], share: float) -> float:
    """The value that `share` of the sorted values do not exceed (nearest rank)."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
