# isoflop/rows.py without its comments
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainwright.errors import UserError
from trainwright.isoflop.newton import Array
from trainwright.isoflop.table import Table, unread_said

RULES = {"6nd": 6.0, "2nd": 2.0}
_UNFINISHED = ("failed", "crashed", "killed", "running", "preempted", "diverged", "timeout", "interrupted", "pending", "starting")
_GROSS = 30.0
_MISCOUNTED = 2.4
_BUDGET = 0.1
_WIDEST = 1.35


@dataclass(frozen=True, slots=True)
class Wishes:

    flops_rule: str = ""
    exclude_highest_loss: int = 0
    repeats: str = "last"
    min_steps: float = 0.0
    budget_tolerance: float = _BUDGET
    need_tokens: bool = True


@dataclass(slots=True, eq=False)
class Study:

    table: Table
    params: Array
    tokens: Array
    flops: Array
    loss: Array
    budgets: Array
    excluded: list[dict[str, Any]] = field(default_factory=list)
    inferred: list[tuple[str, Any, str]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.loss)


class _Sieve:

    def __init__(self, table: Table) -> None:
        self.table = table
        self.reason: dict[int, str] = {}
        self.alive = np.ones(len(table), bool)

    def out(self, rows: NDArray[np.bool_] | NDArray[np.intp], why: Any) -> None:
        for row in (np.flatnonzero(rows) if rows.dtype == bool else rows).tolist():
            if self.alive[row]:
                self.alive[row] = False
                self.reason[row] = why if isinstance(why, str) else why(row)

    def listed(self) -> list[dict[str, Any]]:
        return [{"row": self.table.place(row), "reason": why} for row, why in sorted(self.reason.items())]


def study(table: Table, wishes: Wishes) -> Study:
    with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
        numbers, inferred = _derive(table, wishes.flops_rule)
    sieve = _Sieve(table)
    _states(table, sieve)
    _broken(table, numbers, sieve)
    _units(table, numbers, sieve)
    _cooked(table, numbers, sieve, wishes)
    _schedules(table, sieve)
    loss = numbers["loss"].copy()
    _repeats(table, numbers, loss, sieve, wishes.repeats)
    _highest(numbers["loss"], sieve, wishes.exclude_highest_loss)
    rows = np.flatnonzero(sieve.alive)
    if wishes.repeats == "mean":
        inferred.append(("loss", "mean of repeats", "rows of equal settings were averaged"))
    kept = {name: values[rows] for name, values in numbers.items()}
    budgets, how = budgets_of(kept["flops"], kept["budget"])
    inferred.append(("budgets", len(np.unique(budgets)), how))
    excluded = [*table.unread, *sieve.listed()]
    return Study(table.take(rows), kept["params"], kept["tokens"], kept["flops"], loss[rows], budgets, excluded, inferred)


def _derive(table: Table, rule: str) -> tuple[dict[str, Array], list[tuple[str, Any, str]]]:
    numbers = {name: table.number(name) for name in ("params", "tokens", "flops", "loss", "budget")}
    inferred: list[tuple[str, Any, str]] = [
        (name, table.fields[name], "the column it was read from") for name in ("params", "tokens", "flops", "loss") if name in table.fields
    ]
    for name in ("params", "loss"):
        if name not in table.numbers:
            said = f"the column {table.fields[name]!r} holds no {name}" if name in table.fields else f"no column holds {name}"
            raise UserError(f"{said}{unread_said(table)}; name one that does: --columns {name}=COLUMN (or --set {name}=VALUE)")
    if "tokens" not in table.numbers and {"steps", "batch_tokens"} <= set(table.numbers):
        numbers["tokens"] = table.numbers["tokens"] = table.numbers["steps"] * table.numbers["batch_tokens"]
        inferred.append(("tokens", "steps x batch_tokens", "no column holds tokens"))
    given = {name: name in table.numbers for name in ("tokens", "flops")}
    per_token = table.number("flops_per_token")
    if given["tokens"] and not given["flops"] and not np.isnan(per_token).all():
        numbers["flops"] = per_token * numbers["tokens"]
        inferred.append(("flops", "flops_per_token x tokens", "no column holds flops"))
    elif not given["tokens"] and given["flops"] and not np.isnan(per_token).all() and not rule:
        numbers["tokens"] = numbers["flops"] / per_token
        inferred.append(("tokens", "flops / flops_per_token", "no column holds tokens"))
    elif given["tokens"] and given["flops"] and not np.isnan(per_token).all():
        numbers["flops"] = np.where(np.isnan(numbers["flops"]), per_token * numbers["tokens"], numbers["flops"])
    elif given["tokens"] != given["flops"]:
        name = "flops" if given["tokens"] else "tokens"
        factor = RULES[rule or "6nd"]
        known = numbers["tokens" if given["tokens"] else "flops"]
        numbers[name] = factor * numbers["params"] * known if name == "flops" else known / (factor * numbers["params"])
        source = f"--flops-rule {rule}" if rule else "no column holds them; the rule C = 6 N D was assumed (--flops-rule names another)"
        inferred.append((name, f"C = {factor:g} N D", source))
    elif not given["tokens"]:
        raise UserError("no column holds tokens, and none holds flops; name one: --columns tokens=COLUMN or flops=COLUMN")
    return numbers, inferred


def _broken(table: Table, numbers: dict[str, Array], sieve: _Sieve) -> None:
    texts = {(row, name): text for row, name, text in table.problems}
    for row, name, text in table.problems:
        if name in ("params", "tokens", "flops", "loss"):
            sieve.out(np.array([row]), f"{name} is {text!r}: {_kind(text)}")
    for name in ("params", "loss", "tokens", "flops"):
        values = numbers[name]
        sieve.out(np.isnan(values) & np.isin(np.arange(len(table)), [r for r, n in texts if n == name], invert=True), f"{name} is missing")
        sieve.out(np.isinf(values), f"{name} is not finite")
        sieve.out(values <= 0, lambda row, name=name, values=values: f"{name} is {values[row]:g}; it has to be above zero")


def _kind(text: str) -> str:
    lower = text.lower().lstrip("+-")
    try:
        return "not finite" if "_" not in lower and not np.isfinite(float(lower)) else "no plain number"
    except ValueError:
        pass
    if any(c.isdigit() for c in text):
        return "no plain number (a unit or separator stands in it); give plain numbers such as 1.3e9"
    return "no number"


def _states(table: Table, sieve: _Sieve) -> None:
    codes = table.code("state")
    for code in np.unique(codes):
        if table.vocabulary[code].lower() in _UNFINISHED:
            sieve.out(codes == code, f"the run's state is {table.vocabulary[code]}")


def _units(table: Table, numbers: dict[str, Array], sieve: _Sieve) -> None:
    given = np.array([name in table.numbers for name in ("tokens", "flops")]).all()
    steps = table.number("steps")
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        per_step = numbers["tokens"] / steps
        factor = numbers["flops"] / (numbers["params"] * numbers["tokens"])
    if (sieve.alive & np.isfinite(per_step)).sum() >= 3:
        usual = float(np.median(per_step[sieve.alive & np.isfinite(per_step)]))
        sieve.out(
            np.isfinite(per_step) & (per_step < usual / _GROSS),
            lambda row: (
                f"tokens {numbers['tokens'][row]:g} are {per_step[row]:.3g} a step where the other rows have {usual:.3g}: "
                "tokens of one step, or steps, in place of tokens"
            ),
        )
    if given and sieve.alive.sum() >= 3:
        usual_factor = float(np.median(factor[sieve.alive]))
        off = factor / usual_factor
        sieve.out(
            (off > _GROSS) | (off < 1 / _GROSS),
            lambda row: (
                f"C / (N D) is {factor[row]:.3g} where the other rows have {usual_factor:.3g}: tokens or flops stand in another unit"
            ),
        )
        sieve.out(
            (off > _MISCOUNTED) | (off < 1 / _MISCOUNTED),
            lambda row: (
                f"C / (N D) is {factor[row]:.3g} where the other rows have {usual_factor:.3g}: "
                f"{'counted as 2ND among 6ND' if off[row] < 1 else 'counted as 6ND among 2ND'} or the like"
            ),
        )


def _cooked(table: Table, numbers: dict[str, Array], sieve: _Sieve, wishes: Wishes) -> None:
    budget, flops, steps, planned = numbers["budget"], numbers["flops"], table.number("steps"), table.number("planned_steps")
    with np.errstate(divide="ignore", invalid="ignore"):
        share, done = flops / budget, steps / planned
    low, high = 1 - wishes.budget_tolerance, 1 + wishes.budget_tolerance
    sieve.out(share < low, lambda row: f"undercooked: {share[row]:.0%} of its budget {budget[row]:g}")
    sieve.out(share > high, lambda row: f"spent {share[row]:.0%} of the budget it is filed under ({budget[row]:g})")
    constant = [k for k, word in enumerate(table.vocabulary) if word.lower() == "constant"]
    sieve.out(
        (done < 0.98) & ~np.isin(table.code("schedule"), constant),
        lambda row: f"unmatched schedule: read at step {steps[row]:g} of a schedule over {planned[row]:g}, before its decay ended",
    )
    sieve.out(steps < wishes.min_steps, lambda row: f"undercooked: {steps[row]:g} steps, --min-steps asks {wishes.min_steps:g}")


def _schedules(table: Table, sieve: _Sieve) -> None:
    codes = table.code("schedule")
    present = np.unique(codes[sieve.alive & (codes > 0)])
    if len(present) < 2:
        return
    main = present[np.argmax([(codes[sieve.alive] == code).sum() for code in present])]
    for code in present:
        if code != main:
            text = (
                f"schedule {table.vocabulary[code]} among {table.vocabulary[main]}: mixed schedules make no one curve (--where picks one)"
            )
            sieve.out(codes == code, text)


_SETTINGS = ("params", "tokens", "flops", "budget", "lr", "batch_tokens", "steps", "warmup", "epochs", "unique_tokens")
_LABELS = ("labels", "experiment", "seed", "schedule", "family", "backbone", "regime", "flops_rule", "data_sha")


def _repeats(table: Table, numbers: dict[str, Array], loss: Array, sieve: _Sieve, keep: str) -> None:
    rows = np.flatnonzero(sieve.alive)
    if len(rows) < 2:
        return
    values = [np.nan_to_num(numbers.get(name, table.number(name))[rows], nan=-1.0) for name in _SETTINGS]
    keys = np.stack([*values, *(table.code(name)[rows].astype(float) for name in _LABELS)], axis=1)
    _, group, counts = np.unique(keys[:, np.ptp(keys, axis=0) > 0], axis=0, return_inverse=True, return_counts=True)
    group = group.ravel()
    order = np.argsort(group, kind="stable")
    ends = np.cumsum(counts)
    for g in np.flatnonzero(counts > 1):
        members = rows[order[ends[g] - counts[g] : ends[g]]]
        _settle(table, loss, sieve, members, keep)


def _settle(table: Table, loss: Array, sieve: _Sieve, members: NDArray[np.intp], keep: str) -> None:
    distinct: dict[float, int] = {}
    for row in members.tolist():
        if loss[row] in distinct:
            sieve.out(np.array([row]), f"duplicate of {table.place(distinct[loss[row]])}")
        else:
            distinct[float(loss[row])] = row
    left = list(distinct.values())
    if len(left) < 2 or keep == "all":
        return
    chosen = min(left, key=lambda row: loss[row]) if keep == "min" else left[-1]
    if keep == "mean":
        loss[chosen] = float(np.mean(loss[left]))
    why = {"min": "a higher loss than", "mean": "averaged into", "last": "run again: the same settings as"}[keep]
    hint = "" if keep != "last" else " further down, which is kept (--repeats all keeps both, a seed column tells them apart)"
    sieve.out(np.array([row for row in left if row != chosen]), f"{why} {table.place(chosen)}{hint}")


def _highest(loss: Array, sieve: _Sieve, count: int) -> None:
    alive = np.flatnonzero(sieve.alive)
    if count <= 0:
        return
    if count >= len(alive):
        raise UserError(f"--exclude-highest-loss {count} would leave none of the {len(alive)} rows")
    least = np.sort(loss[alive])[-count]
    sieve.out(alive[loss[alive] >= least], f"among the {count} highest losses (--exclude-highest-loss)")


def budgets_of(flops: Array, budget: Array) -> tuple[Array, str]:
    if len(budget) and np.isfinite(budget).all():
        return budget, "the budget column"
    order = np.argsort(flops, kind="stable")
    budgets = np.empty(len(flops))
    for rows in _clusters(order, np.log(flops[order])):
        budgets[rows] = np.exp(np.median(np.log(flops[rows])))
    return budgets, "rows of about equal FLOPs share one (gaps above 10 %, no group wider than 35 %)"


def _clusters(order: NDArray[np.intp], log_c: Array) -> list[NDArray[np.intp]]:
    waiting, found = [(0, len(order))] if len(order) else [], []
    gaps = np.diff(log_c)
    while waiting:
        first, end = waiting.pop()
        inner = gaps[first : end - 1]
        if len(inner) and (inner.max() > np.log(1 + _BUDGET) or log_c[end - 1] - log_c[first] > np.log(_WIDEST)):
            cut = first + 1 + int(np.argmax(inner))
            waiting += [(first, cut), (cut, end)]
        else:
            found.append(order[first:end])
    return found
