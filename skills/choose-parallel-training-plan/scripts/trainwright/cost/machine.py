# cost/machine.py without its comments
from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from trainwright import hardware
from trainwright.document import load_mapping
from trainwright.errors import UserError
from trainwright.hardware import Accelerator, Figure, Hardware, Link, Node

TABLE = Path(__file__).with_name("machines.yaml")
NETWORK = "network"
HOP_S, NETWORK_HOP_S = 3e-6, 10e-6
NOBODY = {"tag": "assumed", "source": "a device that no run behind the model had"}
UNPROFILED = "time a large bf16 product and an all-gather over one node and over two"
Tag = Literal["measured", "calibrated", "spec", "assumed"]


@dataclass(frozen=True, slots=True)
class Number:

    value: float | None
    tag: Tag
    source: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"value": self.value, "tag": self.tag, "source": self.source}


@dataclass(frozen=True, slots=True)
class Level:

    name: str
    size: int
    bus: tuple[tuple[int, float], ...]
    latency_s: float
    tag: Tag = "spec"
    source: str = ""

    def bandwidth(self, ranks: int) -> float:
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
        figures = {"matmul_flops": self.matmul_flops, "hbm": self.hbm, "attention": self.attention}
        lost = [f"{name} ({figure.source})" for name, figure in figures.items() if figure.value is None]
        return "; ".join((*lost, *((self.unprofiled,) if self.unprofiled else ())))

    def matmul(self, precision: str) -> float | None:
        rate = self.matmul_flops.value
        if rate is None or precision in ("bf16", "fp16"):
            return rate
        if precision == "fp8":
            return self.matmul_flops_fp8.value or rate
        return rate / 4


@dataclass(frozen=True, slots=True)
class Machine:

    device: Device
    devices: int
    levels: tuple[Level, ...]
    slowest: float = 1.0
    notes: tuple[str, ...] = field(default=())

    @property
    def inside(self) -> tuple[Level, ...]:
        return tuple(level for level in self.levels if level.name != NETWORK)

    @property
    def node(self) -> int:
        return self.inside[-1].size


@dataclass(frozen=True, slots=True)
class Known:

    key: str
    row: Mapping[str, Any]
    accelerator: Accelerator
    node: Node | None
    profiled: bool = False
    shipped: tuple[Accelerator | None, Node | None] = (None, None)


def machine(
    name: str,
    devices: int,
    per_node: int | None = None,
    inter_bytes_s: float | None = None,
    memory_bytes: float | None = None,
    slowest: float = 1.0,
    profile: Hardware | None = None,
) -> Machine:
    known = _known(name, profile)
    node = per_node or (known.node.num_devices if known.node else devices)
    for said, value in (("devices", devices), ("devices per node", node)):
        if value < 1:
            raise UserError(f"{said} is {value}; give 1 or more")
    if inter_bytes_s is not None and not (inter_bytes_s > 0 and math.isfinite(inter_bytes_s)):
        raise UserError(f"a network of {inter_bytes_s:g} B/s carries nothing; give a bandwidth above 0")
    if slowest < 1 or not math.isfinite(slowest):
        raise UserError(f"the slowest device takes {slowest:g} times the others' time; give 1 or more")
    if devices > node and inter_bytes_s is None:
        raise UserError(f"{devices} devices are more than one node of {node}, and no network is given: a count has no topology")
    return Machine(_device(known, memory_bytes), devices, _levels(known, node, devices, inter_bytes_s), slowest)


def _tells(link: Link, known: Known, source: Node) -> bool:
    return source is not known.node or not known.profiled or known.shipped[1] is None or _measured(link).value is not None


def network_share(node: Node) -> float | None:
    link = node.link(NETWORK)
    if link is None:
        return None
    figure = link["measured_bytes_per_s"] if link["measured_bytes_per_s"].value is not None else link["bytes_per_s"]
    if figure.value is None:
        return None
    if figure.per == "NIC":
        return None if node.nics.value is None else figure.value * node.nics.value / node.num_devices
    return figure.value / (node.num_devices if figure.per == "node" else 1)


def _levels(known: Known, node: int, devices: int, inter: float | None) -> tuple[Level, ...]:
    levels = []
    links = {
        link.level: link for source in (known.shipped[1], known.node) if source for link in source.links if _tells(link, known, source)
    }
    if (card := links.get("card")) is not None and (found := _measured(card)).value:
        levels.append(Level("pair", 2, ((2, found.value),), _hop(card, HOP_S), *_origin(found)))
    levels.append(_node_level(known.row, links, node, known.profiled))
    if devices > node:
        assert inter is not None
        hop = _hop(links[NETWORK], NETWORK_HOP_S) if NETWORK in links else NETWORK_HOP_S
        levels.append(Level(NETWORK, devices, ((1, inter),), hop, "spec", "given per device"))
    return tuple(levels)


def _node_level(row: Mapping[str, Any], links: Mapping[str, Link], node: int, profiled: bool) -> Level:
    link = links.get("node")
    measured = _measured(link) if link else Figure(None)
    if "bus" in row and not (profiled and measured.value):
        table = tuple(sorted((int(ranks), float(rate)) for ranks, rate in row["bus"]["value"].items()))
        return Level("node", node, table, HOP_S, row["bus"]["tag"], row["bus"]["source"])
    if link is None or (measured.value is None and link["bytes_per_s"].value is None):
        return Level("node", node, ((node, 25e9),), HOP_S, "assumed", "no link of this node is known: 25 GB/s a device")
    if measured.value is None:
        stated = link["bytes_per_s"]
        rate = 0.8 * (stated.value or 0.0)
        return Level("node", node, ((node, rate),), _hop(link, HOP_S), "assumed", f"four fifths of {stated.source}")
    pair = _measured(links["pair"]) if "pair" in links else Figure(None)
    slow = ((2, pair.value),) if pair.value else ()
    return Level("node", node, (*slow, (link.group or node, measured.value)), _hop(link, HOP_S), *_origin(measured))


def _measured(link: Link) -> Figure:
    return link["measured_bytes_per_s"]


def _hop(link: Link, otherwise: float) -> float:
    return link["alpha_s"].value or otherwise


def _origin(figure: Figure) -> tuple[Tag, str]:
    return "measured", figure.source


def _device(known: Known, memory: float | None) -> Device:
    row, chip = known.row, known.accelerator
    other = known.shipped[0] or chip
    peaks = (chip.peak_bf16, chip.peak_fp16, other.peak_bf16, other.peak_fp16)
    peak = next((figure for figure in peaks if figure.value is not None), chip.peak_bf16)
    return Device(
        name=known.key,
        peak_flops=_number(row, "peak_flops", (peak, "spec")),
        matmul_flops=_number(
            row if not _told(known, chip.measured_bf16) else {}, "matmul_flops", *_both(chip, other, "measured_bf16", "measured")
        ),
        matmul_flops_fp8=_number(row, "matmul_flops_fp8"),
        hbm=_number(
            row if not _told(known, chip.measured_memory_bandwidth) else {},
            "hbm",
            *_both(chip, other, "measured_memory_bandwidth", "measured"),
            *_both(chip, other, "memory_bandwidth", "spec"),
        ),
        attention=_number(row, "attention"),
        sustained=_number(row, "sustained"),
        units=int(row["units"]),
        memory_bytes=memory or chip.memory_bytes if known.profiled else memory,
        unprofiled="" if _profiled(known) else row.get("unprofiled", ""),
    )


def _both(chip: Accelerator, other: Accelerator, name: str, tag: Tag) -> tuple[tuple[Figure, Tag], ...]:
    return (getattr(chip, name), tag), (getattr(other, name), tag)


def _told(known: Known, figure: Figure) -> bool:
    return known.profiled and figure.value is not None


def _profiled(known: Known) -> bool:
    links = known.node.links if known.node else ()
    linked = any(link.level == "node" and _measured(link).value is not None for link in links)
    return known.profiled and known.accelerator.measured_bf16.value is not None and linked


def _number(row: Mapping[str, Any], name: str, *figures: tuple[Figure, Tag]) -> Number:
    if name in row:
        return Number(row[name]["value"], row[name]["tag"], row[name]["source"])
    for figure, tag in figures:
        if figure.value is not None:
            return Number(figure.value, tag, figure.source)
    return Number(None, "assumed", "unknown")


def _known(name: str, profile: Hardware | None) -> Known:
    if profile is not None:
        return _of_profile(name, profile)
    row = _row(name)
    if row is not None:
        return Known(row[0], row[1], hardware.accelerator(row[1]["accelerator"]), hardware.node(row[1]["node"]))
    entry = hardware.accelerator(name.split("(")[0])
    return Known(entry.name, _generic(entry), entry, _node_with(entry.name, hardware.bundled()))


def _of_profile(name: str, profile: Hardware) -> Known:
    if not profile.accelerators:
        raise UserError("the hardware profile names no accelerator")
    key = name if name in profile.accelerators else next(iter(profile.accelerators))
    entry = profile.accelerators[key]
    kind = _kind_of(entry)
    row = next(((own, one) for own, one in _table().items() if one["accelerator"] == kind), None) or _row(name)
    shipped = row[1] if row else _generic(entry)
    known = (hardware.accelerator(row[1]["accelerator"]), hardware.node(row[1]["node"])) if row else (None, None)
    return Known(row[0] if row else key, shipped, entry, _node_with(key, profile), True, known)


def _kind_of(entry: Accelerator) -> str:
    return next((key for key, one in hardware.bundled().accelerators.items() if set(one.names) & set(entry.names)), "")


def profile_devices(profile: Hardware) -> list[str]:
    return [_of_profile(name, profile).key for name in profile.accelerators]


def with_profile(found: Machine, profile: Hardware) -> Machine:
    for name in profile.accelerators:
        if _of_profile(name, profile).key == found.device.name:
            network = found.levels[-1].bus[0][1] if found.levels[-1].name == NETWORK else None
            return machine(name, found.devices, found.node, network, found.device.memory_bytes, found.slowest, profile)
    return found


def _node_with(name: str, table: Hardware) -> Node | None:
    return next((node for node in table.nodes.values() if not node.mixed and node.devices[0].accelerator == name), None)


def _generic(entry: Accelerator) -> dict[str, Any]:
    row: dict[str, Any] = {
        "units": 128,
        "sustained": {"value": 0.9, **NOBODY},
        "attention": {"value": 0.35, **NOBODY},
        "unprofiled": UNPROFILED,
    }
    peak = entry.peak_bf16.value or entry.peak_fp16.value
    if entry.measured_bf16.value is None and peak is not None:
        row["matmul_flops"] = {"value": 0.7 * peak, "tag": "assumed", "source": "seven tenths of the peak"}
    return row


def _row(name: str) -> tuple[str, Mapping[str, Any]] | None:
    wanted = name.strip().lower().replace("_", "-").replace(" ", "-").split("(")[0]
    if wanted in hardware.bundled().accelerators and all(wanted not in (row["accelerator"], *row["names"]) for row in _table().values()):
        return None
    found = max(
        ((len(alias), key) for key, row in _table().items() for alias in row["names"] if wanted.startswith(alias)),
        default=None,
    )
    return None if found is None else (found[1], _table()[found[1]])


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = load_mapping(str(TABLE)).value
    return table
