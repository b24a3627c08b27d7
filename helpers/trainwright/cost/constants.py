"""The few scalars of the cost model that are not a device's: each with what it means, its kind and its source.

`plan calibrate` moves those named in CALIBRATED, and only those; all others stay as they are shipped.
"""

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
    """Shares and factors without unit unless the name says one. A factor of 1 leaves the device's figure as it is."""

    # compute
    sustained: float = 0.93  # of a large product's rate, over the many shapes of a step
    ramp: float = 320.0  # rows that a product's start and end cost, whatever its size
    traffic: float = 1.0  # how far a product's reads and writes add to its time (0 hidden, 1 in full)
    hbm_share: float = 0.75  # of the memory's rate that elementwise kernels reach
    elementwise: float = 1.0  # bytes moved outside products, against the count in compute.py
    attention: float = 1.0  # speed of fused attention, against the device's share
    repeated: float = 1.0  # time of what the backward computes again, against its first time
    launch_s: float = 5e-6  # between two kernels where the device waits for the host
    host_link: float = 20e9  # bytes/s between a device and its host, both ways in turn: a PCIe 4 x16 slot inside a step
    host_memory: float = 20e9  # bytes/s of the host's memory for each device of a node, all updating at once
    # communication
    intra: float = 0.85  # of a node's bus bandwidth, inside a step
    inter: float = 0.80  # of the network's nominal rate, inside a step
    latency: float = 1.0  # of the levels' latencies
    overlap_cost: float = 0.15  # of the smaller of two that run at once, added to the larger
    jitter: float = 0.01  # of the step per doubling of nodes, where all ranks meet at every layer


# What a fit may move, and how far in factors of e one may expect it to: the width of its prior.
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
    """The same with fields multiplied; raises UserError for a field that is none or a factor that is not above 0."""
    known = {field.name for field in fields(constants)}
    for name, factor in factors.items():
        if name not in known:
            raise UserError(f"{name[:80]!r} is no constant of the cost model; they are {', '.join(sorted(known))}")
        if not (factor > 0 and math.isfinite(factor)):
            raise UserError(f"{name} would be multiplied by {factor}; give a factor above 0")
    return replace(constants, **{name: getattr(constants, name) * factor for name, factor in factors.items()})
