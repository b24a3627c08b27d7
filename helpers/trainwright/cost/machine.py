"""The machine that a plan runs on: devices, and the levels of links between them; every figure says what kind it is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from trainwright.document import load_mapping
from trainwright.errors import UserError

TABLE = Path(__file__).with_name("machines.yaml")
NETWORK = "network"
Tag = Literal["measured", "calibrated", "spec", "assumed"]


@dataclass(frozen=True, slots=True)
class Number:
    """A figure with its kind and its source; None where it is unknown, and `source` then says what to measure."""

    value: float | None
    tag: Tag
    source: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"value": self.value, "tag": self.tag, "source": self.source}


@dataclass(frozen=True, slots=True)
class Level:
    """A domain of `size` devices; `bus` maps ranks of a group inside it to bus bandwidth in bytes/s, `latency_s` is one hop's."""

    name: str
    size: int
    bus: tuple[tuple[int, float], ...]
    latency_s: float
    tag: Tag = "spec"
    source: str = ""

    def bandwidth(self, ranks: int) -> float:
        """Bus bandwidth of a group of `ranks` in this domain: the table's, between its entries by their logarithms."""
        known = self.bus
        if ranks <= known[0][0]:
            return known[0][1]
        for (low, below), (high, above) in pairwise(known):
            if ranks <= high:
                share = math.log(ranks / low) / math.log(high / low)
                return float(below * (above / below) ** share)
        return known[-1][1]


@dataclass(frozen=True, slots=True)
class Device:
    """One torch device. Rates in FLOP/s and bytes/s; `attention` is the share of matmul_flops that fused attention reaches.

    sustained: the share of matmul_flops that the device holds in a step, under its power. units: what tiles of a product are spread on
    (streaming multiprocessors, compute units, Xe cores). unprofiled: what to measure first, where the figures only order plans.
    """

    name: str
    peak_flops: Number
    matmul_flops: Number
    matmul_flops_fp8: Number
    hbm: Number
    attention: Number
    sustained: Number
    units: int
    memory_bytes: float | None
    unprofiled: str = ""

    def missing(self) -> str:
        """What has to be measured before a step on this device can be predicted; "" where nothing is missing."""
        figures = {"matmul_flops": self.matmul_flops, "hbm": self.hbm, "attention": self.attention}
        lost = [f"{name} ({figure.source})" for name, figure in figures.items() if figure.value is None]
        return "; ".join((*lost, *((self.unprofiled,) if self.unprofiled else ())))

    def matmul(self, precision: str) -> float | None:
        """What a large product reaches; fp32 at a quarter of bf16, fp8 where a figure is known, else as bf16."""
        rate = self.matmul_flops.value
        if rate is None or precision in ("bf16", "fp16"):
            return rate
        if precision == "fp8":
            return self.matmul_flops_fp8.value or rate
        return rate / 4


@dataclass(frozen=True, slots=True)
class Machine:
    """`devices` equal devices in domains that nest: levels from the smallest (a node's links) to the whole job's.

    slowest: the time of the slowest device as a multiple of the others' (1.0: none is slow).
    """

    device: Device
    devices: int
    levels: tuple[Level, ...]
    slowest: float = 1.0
    notes: tuple[str, ...] = field(default=())

    @property
    def inside(self) -> tuple[Level, ...]:
        """The levels of one node."""
        return tuple(level for level in self.levels if level.name != NETWORK)

    @property
    def node(self) -> int:
        """Devices that share the fast links."""
        return self.inside[-1].size


def machine(
    name: str,
    devices: int,
    per_node: int | None = None,
    inter_bytes_s: float | None = None,
    memory_bytes: float | None = None,
    slowest: float = 1.0,
) -> Machine:
    """The machine of `devices` devices called `name`, `per_node` in a node, each with `inter_bytes_s` of the network.

    Raises UserError where a name is unknown, a rate is not above 0, or a job of several nodes comes with no network.
    """
    key, row = _row(name)
    node = per_node or int(row["domain"])
    for said, value in (("devices", devices), ("devices per node", node)):
        if value < 1:
            raise UserError(f"{said} is {value}; give 1 or more")
    if inter_bytes_s is not None and not (inter_bytes_s > 0 and math.isfinite(inter_bytes_s)):
        raise UserError(f"a network of {inter_bytes_s:g} B/s carries nothing; give a bandwidth above 0")
    if slowest < 1 or not math.isfinite(slowest):
        raise UserError(f"the slowest device takes {slowest:g} times the others' time; give 1 or more")
    if devices > node and inter_bytes_s is None:
        raise UserError(f"{devices} devices are more than one node of {node}, and no network is given: a count has no topology")
    return Machine(_device(key, row, memory_bytes), devices, _levels(row, node, devices, inter_bytes_s), slowest)


def _levels(row: Mapping[str, Any], node: int, devices: int, inter: float | None) -> tuple[Level, ...]:
    levels = []
    if "pair" in row:
        levels.append(_level("pair", 2, {2: row["pair"]["value"]}, 3e-6, row["pair"]))
    levels.append(_level("node", node, row["bus"]["value"], 3e-6, row["bus"]))
    if devices > node:
        assert inter is not None
        levels.append(Level(NETWORK, devices, ((1, inter),), 10e-6, "spec", "given per device"))
    return tuple(levels)


def _level(name: str, size: int, bus: Mapping[int, float], latency: float, figure: Mapping[str, Any]) -> Level:
    table = tuple(sorted((int(ranks), float(rate)) for ranks, rate in bus.items()))
    return Level(name, size, table, latency, figure["tag"], figure["source"])


def _device(key: str, row: Mapping[str, Any], memory: float | None) -> Device:
    def number(field_name: str) -> Number:
        found = row.get(field_name, {"value": None, "tag": "assumed", "source": "unknown"})
        return Number(found["value"], found["tag"], found["source"])

    return Device(
        name=key,
        peak_flops=number("peak_flops"),
        matmul_flops=number("matmul_flops"),
        matmul_flops_fp8=number("matmul_flops_fp8"),
        hbm=number("hbm"),
        attention=number("attention"),
        sustained=number("sustained"),
        units=int(row["units"]),
        memory_bytes=memory,
        unprofiled=row.get("unprofiled", ""),
    )


def _row(name: str) -> tuple[str, Mapping[str, Any]]:
    """The entry whose longest name starts `name`, whatever follows in brackets."""
    wanted = name.strip().lower().replace("_", "-").replace(" ", "-").split("(")[0]
    found = max(
        ((len(alias), key) for key, row in _table().items() for alias in row["names"] if wanted.startswith(alias)),
        default=None,
    )
    if found is None:
        raise UserError(f"there is no device {name[:80]!r} in the cost model; known are {', '.join(_table())}")
    return found[1], _table()[found[1]]


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = load_mapping(str(TABLE)).value
    return table
