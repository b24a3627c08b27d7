# plan/predict.py without its comments
from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainwright.cost.footprint import GIB
from trainwright.errors import UserError
from trainwright.plan.calibrate import Basis, Fit, memory_of, step_of
from trainwright.plan.rows import LOSS_ASSUMED, Row

SHIPPED_SPREAD, CALIBRATED_SPREAD = 0.35, 0.15
SHIPPED_MEMORY, CALIBRATED_MEMORY = 0.30, 0.12
OOM_MARGIN = 0.06
ADDED = (
    "predicted_step_time_s",
    "predicted_step_time_low_s",
    "predicted_step_time_high_s",
    "predicted_memory_gb",
    "predicted_memory_low_gb",
    "predicted_memory_high_gb",
    "predicted_oom",
    "prediction_tag",
    "prediction_note",
)


def short(value: float) -> float:
    return float(f"{value:.7g}")


@dataclass(frozen=True, slots=True)
class Interval:

    value: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        return {"value": short(self.value), "low": short(self.low), "high": short(self.high)}


@dataclass(frozen=True, slots=True)
class Prediction:

    row: Row
    seconds: Interval | None
    memory_gib: Interval | None
    oom: bool | None
    tag: str
    note: str

    def cells(self) -> dict[str, str]:
        time, memory = self.seconds, self.memory_gib
        numbers = [*(_text(time) if time else [""] * 3), *(_text(memory) if memory else [""] * 3)]
        oom = "" if self.oom is None else str(int(self.oom))
        return dict(zip(ADDED, (*numbers, oom, self.tag, self.note), strict=True))

    def to_json(self) -> dict[str, Any]:
        return {
            "row": self.row.name,
            "line": self.row.number,
            "plan": self.row.plan.name if self.row.plan else None,
            "step_time_s": self.seconds.to_json() if self.seconds else None,
            "memory_gib": self.memory_gib.to_json() if self.memory_gib else None,
            "oom": self.oom,
            "tag": self.tag,
            "note": self.note,
        }


def _text(interval: Interval) -> list[str]:
    return [f"{value:.6g}" for value in (interval.value, interval.low, interval.high)]


def spread(value: float, half: float) -> Interval:
    return Interval(value, value * math.exp(-half), value * math.exp(half))


def time_half(basis: Basis) -> float:
    return CALIBRATED_SPREAD if basis.sure else SHIPPED_SPREAD


def memory_half(basis: Basis) -> float:
    return CALIBRATED_MEMORY if basis.sure else SHIPPED_MEMORY


def predict(row: Row, fit: Fit) -> Prediction:
    if row.plan is None or row.machine is None:
        return Prediction(row, None, None, None, "", row.reason)
    note = "; ".join(f"assumed: {one}" for one in row.assumed)
    try:
        step, memory = step_of(row, fit), memory_of(row, fit)
    except UserError as problem:
        return Prediction(row, None, None, None, "", str(problem))
    assert memory is not None
    if step is None:
        missing = fit.machine(row.machine).device.missing()
        note = "; ".join(filter(None, (note, f"no step time is predicted before these are measured: {missing}")))
    device = row.machine.device.name
    of_time, of_memory = fit.time_of(device), fit.memory_of(device)
    note = "; ".join(filter(None, (note, of_time.doubt, of_memory.doubt)))
    time = spread(step.seconds, time_half(of_time)) if step else None
    weight = spread(memory.total / GIB, memory_half(of_memory))
    return Prediction(row, time, weight, _oom(row, memory.total, fit), of_time.tag, note)


def _oom(row: Row, used: float, fit: Fit) -> bool | None:
    capacity = row.machine.device.memory_bytes if row.machine else None
    if capacity is None or row.plan is None:
        return None
    if LOSS_ASSUMED in row.assumed:
        lean = memory_of(replace(row, plan=replace(row.plan, loss="chunked")), fit)
        used = lean.total if lean else used
    return used > capacity * (1 + OOM_MARGIN if fit.memory_rows else 1.0)


def table(columns: Sequence[str], predictions: Sequence[Prediction]) -> str:
    kept = [name for name in columns if name not in ADDED]
    out = io.StringIO()
    writer = csv.DictWriter(out, [*kept, *ADDED], extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for one in predictions:
        writer.writerow({**one.row.cells, **one.cells()})
    return out.getvalue()
