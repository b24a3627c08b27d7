# plan/calibrate.py without its comments
from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from trainwright.cost.constants import CALIBRATED, Constants, changed
from trainwright.cost.footprint import GIB, MEMORY_CALIBRATED, Footprint, MemoryConstants, StageMemory
from trainwright.cost.machine import Machine, with_profile
from trainwright.cost.step import StepModel, StepTime
from trainwright.errors import UserError
from trainwright.hardware import Hardware, from_table
from trainwright.plan import fitting
from trainwright.plan.rows import Row

NOISE = 0.04
MEMORY_NOISE = 0.015
PER_DEVICE = ("sustained", "attention")


@dataclass(frozen=True, slots=True)
class Basis:

    kind: str
    rows: int
    factors: int
    devices: tuple[str, ...]
    device: str

    @property
    def tag(self) -> Literal["calibrated", "assumed"]:
        return "calibrated" if self.rows and self.device in self.devices else "assumed"

    @property
    def sure(self) -> bool:
        return self.tag == "calibrated" and self.rows >= self.factors

    @property
    def doubt(self) -> str:
        if not self.rows or self.sure:
            return ""
        if self.device not in self.devices:
            return f"{self.kind} calibrated on {', '.join(self.devices) or 'devices that the fit does not name'}, not on {self.device}"
        few = f"{self.rows} row{'s' if self.rows > 1 else ''} for {self.factors} factors"
        return f"{self.kind} calibrated on {few}: too few to narrow the interval"


@dataclass(frozen=True, slots=True)
class Fit:

    time: dict[str, float] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)
    time_rows: int = 0
    memory_rows: int = 0
    largest: int = 0
    profile: dict[str, Any] | None = None
    weighed: tuple[str, ...] = ()

    def hardware(self) -> Hardware | None:
        return None if self.profile is None else from_table(self.profile, "the calibration's profile")

    def machine(self, found: Machine) -> Machine:
        profile = self.hardware()
        return found if profile is None else with_profile(found, profile)

    def constants(self, device: str) -> Constants:
        mine = {name.partition(":")[0]: factor for name, factor in self.time.items() if name.partition(":")[2] in ("", device)}
        found = changed(Constants(), mine)
        return replace(found, intra=min(found.intra, 1.0), inter=min(found.inter, 1.0))

    def memory_constants(self) -> MemoryConstants:
        return changed(MemoryConstants(), self.memory)

    @property
    def timed(self) -> tuple[str, ...]:
        return tuple(sorted({name.partition(":")[2] for name in self.time} - {""}))

    def time_of(self, device: str) -> Basis:
        return Basis("step time", self.time_rows, len(self.time), self.timed, device)

    def memory_of(self, device: str) -> Basis:
        return Basis("memory", self.memory_rows, len(self.memory), self.weighed or self.timed, device)

    def to_json(self) -> dict[str, Any]:
        rows = {"time_rows": self.time_rows, "memory_rows": self.memory_rows, "largest": self.largest, "weighed": list(self.weighed)}
        return {"time": self.time, "memory": self.memory, **rows, "profile": self.profile}


SHIPPED = Fit()


def model_of(row: Row, fit: Fit = SHIPPED) -> StepModel:
    assert row.network is not None and row.machine is not None
    return StepModel(row.network, fit.machine(row.machine), row.seq_len, row.global_batch, fit.constants(row.machine.device.name))


def step_of(row: Row, fit: Fit = SHIPPED) -> StepTime | None:
    if row.plan is None or row.machine is None or fit.machine(row.machine).device.missing():
        return None
    return model_of(row, fit).step(row.plan)


def memory_of(row: Row, fit: Fit = SHIPPED) -> StageMemory | None:
    return None if row.plan is None else Footprint(model_of(row, fit), fit.memory_constants()).peak(row.plan)


def calibrate(rows: Sequence[Row], kind: str = "both", profile: dict[str, Any] | None = None) -> Fit:
    timed = [row for row in rows if has_time(row)] if kind != "memory" else []
    weighed = [row for row in rows if has_memory(row)] if kind != "time" else []
    if not timed and not weighed:
        raise UserError("no row has a measured step_time_s or mem_gb and a plan that the model can price")
    largest = max(row.machine.devices for row in (*timed, *weighed) if row.machine)
    return Fit(_fit_time(timed), _fit_memory(weighed), len(timed), len(weighed), largest, profile, _devices(weighed))


def _devices(rows: Sequence[Row]) -> tuple[str, ...]:
    return tuple(sorted({row.machine.device.name for row in rows if row.machine}))


def has_time(row: Row) -> bool:
    return row.seconds is not None and row.plan is not None and row.machine is not None and not row.machine.device.missing()


def has_memory(row: Row) -> bool:
    return row.memory_gib is not None and row.plan is not None


def _fit_time(rows: Sequence[Row]) -> dict[str, float]:
    if not rows:
        return {}
    devices = _devices(rows)
    widths: dict[str, float] = {}
    for name, width in CALIBRATED.items():
        widths |= {f"{name}:{device}": width for device in devices} if name in PER_DEVICE else {name: width}
    shares = _shares(rows)
    return fitting.fit(lambda factors: _weighed([time_error(row, Fit(time=factors)) for row in rows], shares), widths, NOISE)


def _fit_memory(rows: Sequence[Row]) -> dict[str, float]:
    if not rows:
        return {}
    shares = _shares(rows)
    return fitting.fit(
        lambda factors: _weighed([memory_error(row, Fit(memory=factors)) for row in rows], shares), MEMORY_CALIBRATED, MEMORY_NOISE
    )


def _shares(rows: Sequence[Row]) -> list[float]:
    sizes = Counter(row.source for row in rows)
    return [math.sqrt(len(rows) / len(sizes) / sizes[row.source]) for row in rows]


def _weighed(errors: Sequence[float], shares: Sequence[float]) -> list[float]:
    return [error * share for error, share in zip(errors, shares, strict=True)]


def time_error(row: Row, fit: Fit) -> float:
    model = model_of(row, fit)
    assert row.plan is not None and row.seconds is not None
    return math.log(model.seconds(row.plan, model.split(row.plan)) / row.seconds)


def memory_error(row: Row, fit: Fit) -> float:
    found = memory_of(row, fit)
    assert found is not None and row.memory_gib is not None
    return math.log(found.total / GIB / row.memory_gib)
