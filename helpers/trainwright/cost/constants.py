"""The few scalars of the cost model that are not a device's: each with what it means, its kind and its source.

`plan calibrate` moves those named in CALIBRATED, and only those; all others stay as they are shipped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from trainwright.errors import UserError


@dataclass(frozen=True, slots=True)
class Constants:
    """Shares and factors without unit unless the name says one. A factor of 1 leaves the device's figure as it is."""

    # compute
    sustained: float = 0.90  # of a large product's rate, over the many shapes of a step
    ramp: float = 64.0  # rows that a product's start and end cost, whatever its size
    traffic: float = 1.0  # how far a product's reads and writes add to its time (0 hidden, 1 in full)
    hbm_share: float = 0.75  # of the memory's rate that elementwise kernels reach
    elementwise: float = 1.0  # bytes moved outside products, against the count in compute.py
    attention: float = 1.0  # speed of fused attention, against the device's share
    repeated: float = 1.0  # time of what the backward computes again, against its first time
    launch_s: float = 5e-6  # between two kernels where the device waits for the host
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


def changed(constants: Constants, **factors: float) -> Constants:
    """The same with fields multiplied; raises UserError for a field that is none or a factor that is not above 0."""
    found: dict[str, Any] = {}
    for name, factor in factors.items():
        if not hasattr(constants, name):
            raise UserError(f"{name!r} is no constant of the cost model; they are {', '.join(Constants.__slots__)}")
        if not factor > 0:
            raise UserError(f"{name} would be multiplied by {factor}; give a factor above 0")
        found[name] = getattr(constants, name) * factor
    return replace(constants, **found)
