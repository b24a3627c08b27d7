# cost/constants.py without its comments
from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, TypeVar

from trainwright.errors import UserError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True, slots=True)
class Constants:

    sustained: float = 0.93
    ramp: float = 320.0
    traffic: float = 1.0
    hbm_share: float = 0.75
    elementwise: float = 1.0
    attention: float = 1.0
    repeated: float = 1.0
    launch_s: float = 5e-6
    host_link: float = 20e9
    host_memory: float = 20e9
    intra: float = 0.85
    inter: float = 0.80
    latency: float = 1.0
    overlap_cost: float = 0.15
    jitter: float = 0.01


CALIBRATED = {
    "sustained": 0.25,
    "ramp": 0.7,
    "traffic": 0.5,
    "elementwise": 0.4,
    "attention": 0.4,
    "repeated": 0.15,
    "intra": 0.3,
    "inter": 0.4,
    "overlap_cost": 0.7,
    "jitter": 0.7,
}


T = TypeVar("T", bound="DataclassInstance")


def changed(constants: T, factors: Mapping[str, float]) -> T:
    known = {field.name for field in fields(constants)}
    for name, factor in factors.items():
        if name not in known:
            raise UserError(f"{name[:80]!r} is no constant of the cost model; they are {', '.join(sorted(known))}")
        if not (factor > 0 and math.isfinite(factor)):
            raise UserError(f"{name} would be multiplied by {factor}; give a factor above 0")
    return replace(constants, **{name: getattr(constants, name) * factor for name, factor in factors.items()})
