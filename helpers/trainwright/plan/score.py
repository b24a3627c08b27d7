"""How far predictions are from measured runs: errors by source, ordering of pairs, and the cost of choosing by the model (regret)."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import mean, median
from typing import Any

from trainwright.plan.calibrate import Fit, calibrate, has_memory, has_time, memory_error, time_error
from trainwright.plan.predict import predict
from trainwright.plan.rows import Row
from trainwright.progress import Step, silent

GAPS = ((0.0, 0.02), (0.02, 0.05), (0.05, 0.10), (0.10, 0.20), (0.20, 0.40), (0.40, math.inf))
LEAST_ROWS = 15
Fits = Callable[[Row], Fit]


@dataclass(frozen=True, slots=True)
class Errors:
    """|predicted / measured - 1| of some runs."""

    name: str
    count: int
    median: float
    p90: float
    worst: float
    bias: float

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "count": self.count, "median": self.median, "p90": self.p90, "worst": self.worst, "bias": self.bias}


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of them lie, between neighbours in proportion."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def errors(name: str, ratios: Sequence[float]) -> Errors:
    """From predicted / measured."""
    sizes = [abs(ratio - 1) for ratio in ratios]
    return Errors(name, len(sizes), median(sizes), quantile(sizes, 0.9), max(sizes), median(ratios))


def by_source(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Rows of one source, in the order of their first."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[row.source].append(row)
    return dict(found)


def time_errors(rows: Sequence[Row], fits: Fits) -> list[Errors]:
    """Of step times, all rows first, then each source."""
    return _errors([row for row in rows if has_time(row)], fits, time_error)


def memory_errors(rows: Sequence[Row], fits: Fits) -> list[Errors]:
    """Of memory, all rows first, then each source."""
    return _errors([row for row in rows if has_memory(row)], fits, memory_error)


def _errors(rows: Sequence[Row], fits: Fits, error: Callable[[Row, Fit], float]) -> list[Errors]:
    ratios = [(row.source, math.exp(error(row, fits(row)))) for row in rows]
    if not ratios:
        return []
    sources = dict.fromkeys(source for source, _ in ratios)
    groups = [errors(source, [ratio for name, ratio in ratios if name == source]) for source in sources]
    return [errors("all", [ratio for _, ratio in ratios]), *groups]


def oom_counts(rows: Sequence[Row], fits: Fits) -> dict[str, Any]:
    """Runs that ran out of memory and were not called so, and the other way round, by name."""
    known = [row for row in rows if row.oom is not None and row.plan is not None]
    called = {row.name: predict(row, fits(row)).oom for row in known}
    missed = [row.name for row in known if row.oom and not called[row.name]]
    false = [row.name for row in known if not row.oom and called[row.name]]
    return {"oom": sum(bool(row.oom) for row in known), "missed": missed, "fit": sum(not row.oom for row in known), "false": false}


# --- choosing -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Choice:
    """One workload: its plans, and how much slower than the best what each rule picks is (0.03: three per cent)."""

    workload: tuple[Any, ...]
    plans: int
    model: float
    tp8: float
    at_random: float

    def to_json(self) -> dict[str, Any]:
        names = {"model": self.model, "tp8_least_pp": self.tp8, "random": self.at_random}
        return {"workload": [str(part) for part in self.workload], "plans": self.plans, "regret": names}


def choices(rows: Sequence[Row], fits: Fits) -> list[Choice]:
    """Every workload with at least two timed plans; runs of one plan count by their mean."""
    found = []
    for workload, group in _workloads(rows).items():
        timed = {name: mean(row.seconds for row in same if row.seconds) for name, same in group.items()}
        if len(timed) < 2:
            continue
        first = {name: same[0] for name, same in group.items()}
        best = min(timed.values())
        predicted = {name: math.exp(time_error(row, fits(row))) * (row.seconds or 1) for name, row in first.items()}
        picked = min(predicted, key=lambda name: (predicted[name], name))
        rule = min(first, key=lambda name: _tp8(first[name]))
        found.append(Choice(workload, len(timed), timed[picked] / best - 1, timed[rule] / best - 1, mean(timed.values()) / best - 1))
    return found


def _workloads(rows: Sequence[Row]) -> dict[tuple[Any, ...], dict[str, list[Row]]]:
    found: dict[tuple[Any, ...], dict[str, list[Row]]] = {}
    for row in rows:
        if has_time(row) and row.plan:
            found.setdefault(row.workload, {}).setdefault(f"{row.plan.name} {row.plan}", []).append(row)
    return found


def _tp8(row: Row) -> tuple[Any, ...]:
    """Tensor parallel over a node, and as few stages as there are: what many start from."""
    assert row.plan is not None
    return (abs(row.plan.tp - 8), row.plan.pp, row.plan.micro_batch)


def pairs(rows: Sequence[Row], fits: Fits) -> list[dict[str, Any]]:
    """Pairs of plans of one workload by predicted gap: how often the one predicted faster was."""
    counted = [[0, 0] for _ in GAPS]
    for group in _workloads(rows).values():
        ones = [(mean(row.seconds for row in same if row.seconds), same[0]) for same in group.values()]
        points = [(seconds, math.exp(time_error(row, fits(row))) * (row.seconds or 1)) for seconds, row in ones]
        for (a, x), (b, y) in combinations(points, 2):
            gap = max(x, y) / min(x, y) - 1
            place = next(i for i, (low, high) in enumerate(GAPS) if low <= gap < high)
            counted[place][0] += 1
            counted[place][1] += (a < b) == (x < y)
    names = [f"{low:.0%} to {high:.0%}" if high < math.inf else f"above {low:.0%}" for low, high in GAPS]
    return [{"gap": name, "pairs": n, "right": right} for name, (n, right) in zip(names, counted, strict=True)]


# --- held out -------------------------------------------------------------------------------------------------------


def held_out(rows: Sequence[Row], share: float, splits: int, kind: str, step: Step = silent) -> list[Errors]:
    """Fit a seeded `share` of each source, test on its rest; sources with LEAST_ROWS usable rows. kind: time or memory."""
    usable, error = (has_time, time_error) if kind == "time" else (has_memory, memory_error)
    found, every = [], []
    for source, mine in by_source(row for row in rows if usable(row)).items():
        if len(mine) < LEAST_ROWS:
            continue
        ratios = []
        for seed in range(splits):
            step(f"{kind}, {source[:40]}", seed / splits)
            some, rest = draw(mine, share, seed)
            fit = calibrate(some, kind)
            ratios += [math.exp(error(row, fit)) for row in rest]
        found.append(errors(source, ratios))
        every += ratios
    return [errors("all", every), *found] if every else []


def held_out_oom(rows: Sequence[Row], share: float, splits: int, step: Step = silent) -> list[dict[str, Any]]:
    """Memory fitted on a seeded `share` of each source with runs that ran out: those not called on its rest, and those called in vain."""
    found = []
    for source, mine in by_source(rows).items():
        if sum(has_memory(row) for row in mine) < LEAST_ROWS or not any(row.oom and row.plan for row in mine):
            continue
        counts = []
        for seed in range(splits):
            step(f"out of memory, {source[:40]}", seed / splits)
            some, rest = draw(mine, share, seed)
            fit = calibrate([row for row in some if has_memory(row)], "memory")
            counts.append(oom_counts(rest, lambda row, fit=fit: fit))  # type: ignore[misc]
        missed = Counter(name for one in counts for name in one["missed"])
        total = {name: sum(one[name] if name in ("oom", "fit") else len(one[name]) for one in counts) for name in ("oom", "fit", "false")}
        most = max(len(one["missed"]) for one in counts)
        found.append({"name": source, "splits": splits, **total, "missed": dict(sorted(missed.items())), "most_missed": most})
    return found


def draw(rows: Sequence[Row], share: float, seed: int) -> tuple[list[Row], list[Row]]:
    """A seeded part of the rows, and the rest."""
    order = list(range(len(rows)))
    random.Random(seed).shuffle(order)
    size = max(round(share * len(rows)), 1)
    return [rows[i] for i in sorted(order[:size])], [rows[i] for i in sorted(order[size:])]


def other_sources(rows: Sequence[Row], kind: str, step: Step = silent) -> list[Errors]:
    """Each source predicted with a fit of all the others."""
    usable, error = (has_time, time_error) if kind == "time" else (has_memory, memory_error)
    groups = by_source(row for row in rows if usable(row))
    found, every = [], []
    for number, (source, mine) in enumerate(groups.items()):
        step(f"{kind}, without {source[:40]}", number / len(groups))
        rest = [row for name, group in groups.items() if name != source for row in group]
        if not rest:
            continue
        fit = calibrate(rest, kind)
        ratios = [math.exp(error(row, fit)) for row in mine]
        found.append(errors(source, ratios))
        every += ratios
    return [errors("all", every), *found] if every else []


def left_out(rows: Sequence[Row], kind: str, folds: int = 10, step: Step = silent) -> list[Errors]:
    """Each row predicted by a fit without it: one by one where there are few, else in seeded folds."""
    usable, error = (has_time, time_error) if kind == "time" else (has_memory, memory_error)
    mine = [row for row in rows if usable(row)]
    if len(mine) < 2:
        return []
    order = list(range(len(mine)))
    random.Random(0).shuffle(order)
    parts = [order[i :: min(folds, len(mine))] for i in range(min(folds, len(mine)))]
    ratios = []
    for number, part in enumerate(parts):
        step(f"{kind}, rows left out", number / len(parts))
        fit = calibrate([mine[i] for i in order if i not in set(part)], kind)
        ratios += [math.exp(error(mine[i], fit)) for i in part]
    return [errors("all", ratios)]


def regrets(chosen: Sequence[Choice]) -> dict[str, Any]:
    """Means over workloads, in how many the model's pick is within 5 % of the best, and the same of each source with two or more."""
    sources: dict[str, list[Choice]] = defaultdict(list)
    for one in chosen:
        sources[str(one.workload[0])].append(one)
    return {**_regret(chosen), "by_source": {name: _regret(some) for name, some in sources.items() if len(some) > 1}}


def _regret(chosen: Sequence[Choice]) -> dict[str, Any]:
    columns = {"model": [c.model for c in chosen], "tp8_least_pp": [c.tp8 for c in chosen], "random": [c.at_random for c in chosen]}
    means = {name: mean(values) for name, values in columns.items() if values}
    return {"workloads": len(chosen), "mean": means, "within_5_percent": sum(c.model <= 0.05 for c in chosen)}
