# isoflop/curves.py without its comments
from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainwright.isoflop.newton import Array
from trainwright.isoflop.table import Table


@dataclass(slots=True)
class Curve:

    run_id: str
    source: str
    facts: dict[str, Any] = field(default_factory=dict)
    points: dict[int, tuple[float, float]] = field(default_factory=dict)
    started: str = ""

    def row(self, window: int) -> dict[str, Any]:
        steps = sorted(self.points)
        tail = [step for step in steps if math.isfinite(self.points[step][1])][-window:]
        row = {"run_id": self.run_id, **self.facts}
        if steps:
            row.setdefault("steps", steps[-1])
        if steps and math.isfinite(self.points[steps[-1]][0]):
            row.setdefault("tokens", self.points[steps[-1]][0])
        if tail:
            losses = [self.points[step][1] for step in tail]
            last = self.points[steps[-1]][1]
            row["loss"] = float(np.mean(losses)) if math.isfinite(last) else "nan"
            if len(losses) > 1:
                row["loss_std"] = float(np.std(losses, ddof=1))
        elif steps:
            row["loss"] = "nan"
        return row

    def rows(self) -> list[dict[str, Any]]:
        facts = {key: value for key, value in self.facts.items() if key not in _ENDS}
        return [
            {"run_id": self.run_id, **facts, "steps": step, "loss": loss if math.isfinite(loss) else "nan",
             **({"tokens": tokens} if math.isfinite(tokens) else {})}
            for step, (tokens, loss) in sorted(self.points.items())
        ]


_ENDS = frozenset(("budget", "tokens", "flops", "steps", "loss", "loss_std", "wall_sec"))


def joined(curves: Iterable[Curve]) -> tuple[list[Curve], list[tuple[str, str]]]:
    runs: dict[str, Curve] = {}
    notes = []
    for curve in sorted(curves, key=lambda c: (c.started, c.source)):
        first = runs.get(curve.run_id)
        if first is None:
            runs[curve.run_id] = curve
            continue
        again = len(first.points.keys() & curve.points.keys())
        notes.append((curve.source, f"is a later piece of run {curve.run_id} ({again} steps were run again; the later ones count)"))
        begin = min(curve.points, default=0)
        first.points = {step: point for step, point in first.points.items() if step < begin} | curve.points
        first.facts |= curve.facts
        first.source = curve.source
    return list(runs.values()), notes


def windowed(table: Table, window: int) -> tuple[Table, int]:
    runs = table.code("run_id")
    keys = np.where(runs > 0, runs.astype(np.int64), -1 - table.file.astype(np.int64))
    order_by = next(
        (table.number(name) for name in ("steps", "tokens", "flops") if name in table.numbers), np.arange(len(table), dtype=float)
    )
    loss = table.number("loss").copy()
    spread = np.full(len(table), np.nan)
    kept = []
    for key in np.unique(keys):
        rows = np.flatnonzero(keys == key)
        rows = rows[np.argsort(np.nan_to_num(order_by[rows], nan=-1.0), kind="stable")]
        tail = rows[np.isfinite(loss[rows])][-window:]
        if not len(tail):
            kept.append(rows[-1])
            continue
        last = tail[-1]
        values: Array = loss[tail]
        loss[last], spread[last] = values.mean(), values.std(ddof=1) if len(values) > 1 else np.nan
        kept.append(last)
    table.numbers["loss"] = loss
    if np.isfinite(spread).any():
        table.numbers["loss_std"] = spread
    return table.take(np.sort(np.array(kept, np.intp))), len(table) - len(kept)
