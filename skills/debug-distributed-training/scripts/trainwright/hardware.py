"""Accelerators, nodes and sites (hardware.yaml), and profiles of machines in the same format; every figure with its source."""

from __future__ import annotations

import difflib
import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from trainwright import host
from trainwright.document import load_mapping
from trainwright.errors import MissingPackageError, UserError

TABLE = Path(__file__).with_name("hardware.yaml")
CPU = "cpu"

# What a device holds beside tensors: 0.47 to 0.92 GiB of CUDA context and 1 to 2 GiB of NCCL were measured by others. The upper
# ends are kept free, so that advice errs to the safe side; no such figure is known for ROCm or Level Zero.
DEVICE_RESERVE_BYTES = 3 * 2**30
DEVICE_RESERVE_FOR = "device context and communication buffers, which no tensor shows (assumed from CUDA and NCCL)"
# A CPU rank is a process: 366 to 440 MB were resident with a model of 1 M parameters (torch 2.13, DDP, FSDP2, ZeRO).
PROCESS_RESERVE_BYTES = 2**29
PROCESS_RESERVE_FOR = "the interpreter and the libraries of a rank's process"

_Entry = TypeVar("_Entry")
NOT_STATED = "no figure was found in what was read"
LINK_FIGURES = (
    "bytes_per_s",
    "reverse_bytes_per_s",
    "measured_bytes_per_s",
    "reverse_measured_bytes_per_s",
    "both_measured_bytes_per_s",
    "node_measured_bytes_per_s",
    "reverse_node_measured_bytes_per_s",
    "alpha_s",
)


@dataclass(frozen=True, slots=True)
class Figure:
    """A number and where it is from; `value` is None where it is unknown, and `reason` then says why.

    `per` is what it is of (device, tile, GCD, card, pair, NIC, node, machine, site); `checked` is report.CHECKED's word.
    """

    value: float | None
    source: str = ""
    date: str = ""
    checked: str = ""
    reason: str = ""
    per: str = ""
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value != "" or key == "value"}


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One torch device of the kind `device`: memory in bytes, dense peaks and a measured matmul rate in FLOP/s, bandwidth in bytes/s.

    `per` is device, tile, GCD or card; or machine, whose memory all ranks that run there share.
    """

    name: str
    title: str
    per: str
    device: str
    memory: Figure
    peak_bf16: Figure
    reserve_bytes: int
    reserve_for: str
    measured_bf16: Figure = Figure(None, reason=NOT_STATED)
    peak_fp16: Figure = Figure(None, reason=NOT_STATED)
    memory_bandwidth: Figure = Figure(None, reason=NOT_STATED)
    measured_memory_bandwidth: Figure = Figure(None, reason=NOT_STATED)
    names: tuple[str, ...] = ()

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory.value is None else int(self.memory.value)

    def to_json(self) -> dict[str, Any]:
        """The entry as reports show it: the figures that a ledger rests on, with their sources."""
        keys = ("value", "source", "date", "checked", "reason")
        shown = {name: {key: getattr(getattr(self, name), key) for key in keys} for name in ("memory", "peak_bf16")}
        facts = {"name": self.name, "title": self.title, "per": self.per, "device": self.device}
        return {**facts, **shown, "reserve_bytes": self.reserve_bytes, "reserve_for": self.reserve_for}


@dataclass(frozen=True, slots=True)
class Link:
    """One level of a node's links: `group` devices joined in a `shape`; `origin` and `target` where the two directions differ.

    `figures` holds LINK_FIGURES, an unknown one with its reason. bytes_per_s is one direction while the other is idle.
    """

    level: str
    kind: str
    group: int | None
    shape: str
    duplex: str
    origin: str
    target: str
    figures: Mapping[str, Figure]

    def __getitem__(self, name: str) -> Figure:
        return self.figures[name]


@dataclass(frozen=True, slots=True)
class Devices:
    """`count` devices of one kind in a node; a node of mixed devices has several."""

    accelerator: str
    count: int


@dataclass(frozen=True, slots=True)
class Node:
    """One kind of machine. `reserved_cpus` are numbers of processors that no job may use, None where that is unknown."""

    name: str
    title: str
    devices: tuple[Devices, ...]
    cards: Figure
    sockets: int | None
    cores: Figure
    threads_per_core: int | None
    reserved_cpus: tuple[int, ...] | None
    reserved_reason: str
    host_memory: Figure
    nics: Figure
    links: tuple[Link, ...]

    @property
    def num_devices(self) -> int:
        return sum(group.count for group in self.devices)

    @property
    def mixed(self) -> bool:
        return len({group.accelerator for group in self.devices}) > 1

    def link(self, level: str) -> Link | None:
        return next((link for link in self.links if link.level == level), None)


@dataclass(frozen=True, slots=True)
class Site:
    """A place with its kinds of nodes (name, count), its scheduler, and what its hosts are called (patterns of full names)."""

    name: str
    title: str
    nodes: tuple[tuple[str, Figure], ...]
    scheduler: str | None
    launcher: str
    hosts: tuple[str, ...]
    login_hosts: tuple[str, ...]
    stack: str | None
    interactive: str | None
    topology: str | None
    checked: str
    variable: str = ""


@dataclass(frozen=True, slots=True)
class Hardware:
    """One table: the bundled one, or the profile of a machine."""

    accelerators: Mapping[str, Accelerator]
    nodes: Mapping[str, Node]
    sites: Mapping[str, Site]


def load(path: str) -> Hardware:
    """A profile in the format of hardware.yaml. Raises UserError where it cannot be read or is no such table."""
    return from_table(load_mapping(path).value, path)


@cache
def bundled() -> Hardware:
    """hardware.yaml itself; raises MissingPackageError without PyYAML."""
    if importlib.util.find_spec("yaml") is None:
        raise MissingPackageError("PyYAML", "reading hardware.yaml", "pyyaml")
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # our own file: the fast parser, where it was built
    return from_table(yaml.load(TABLE.read_text(encoding="utf-8"), Loader=loader), str(TABLE))


def from_table(table: Any, path: str) -> Hardware:
    """The Hardware of a mapping in the format of hardware.yaml; raises UserError, with `path`, where it is none."""
    try:
        return Hardware(
            {key: _accelerator(key, row) for key, row in (table.get("accelerators") or {}).items()},
            {key: _node(key, row) for key, row in (table.get("nodes") or {}).items()},
            {key: _site(key, row) for key, row in (table.get("sites") or {}).items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise UserError(f"{path} is no hardware profile: {type(problem).__name__}: {str(problem)[:200]}") from None


def _figure(row: Mapping[str, Any], key: str, per: str = "") -> Figure:
    if row.get(key) is None:
        return Figure(None, reason=NOT_STATED, per=per)
    found = Figure(**row[key])
    if isinstance(found.value, bool) or not isinstance(found.value, (int, float, type(None))):
        raise ValueError(f"{key} is {found.value!r}, not a number (YAML 1.1 needs a dot and a sign: 3.12e+14)")
    return found


def _accelerator(key: str, row: Mapping[str, Any]) -> Accelerator:
    per, shared = str(row["per"]), str(row["per"]) == "machine"
    return Accelerator(
        key,
        str(row["title"]),
        per,
        str(row["device"]),
        _figure(row, "memory_bytes", per),
        _figure(row, "peak_bf16_flops", per),
        PROCESS_RESERVE_BYTES if shared else DEVICE_RESERVE_BYTES,
        PROCESS_RESERVE_FOR if shared else DEVICE_RESERVE_FOR,
        _figure(row, "measured_bf16_flops", per),
        _figure(row, "peak_fp16_flops", per),
        _figure(row, "memory_bytes_per_s", per),
        _figure(row, "measured_memory_bytes_per_s", per),
        tuple(row.get("names") or ()),
    )


def _node(key: str, row: Mapping[str, Any]) -> Node:
    reserved = row["reserved_cores"]
    return Node(
        key,
        str(row["title"]),
        tuple(Devices(str(group["accelerator"]), int(group["count"])) for group in row["devices"]),
        _figure(row, "cards", "node"),
        row.get("sockets"),
        _figure(row, "cores", "node"),
        row.get("threads_per_core"),
        None if reserved["cpus"] is None else tuple(reserved["cpus"]),
        str(reserved.get("reason", "")),
        _figure(row, "host_memory_bytes", "node"),
        _figure(row, "nics", "node"),
        tuple(_link(link) for link in row.get("links") or ()),
    )


def _link(row: Mapping[str, Any]) -> Link:
    figures = {name: _figure(row, name) for name in LINK_FIGURES}
    ends = (str(row.get("from", "")), str(row.get("to", "")))
    return Link(str(row["level"]), str(row["kind"]), row["group"], str(row["shape"]), str(row["duplex"]), *ends, figures)


def _site(key: str, row: Mapping[str, Any]) -> Site:
    return Site(
        key,
        str(row["title"]),
        tuple((str(kind["node"]), _figure(kind, "count", "site")) for kind in row["nodes"]),
        row.get("scheduler"),
        str(row["launcher"]),
        tuple(row.get("hosts") or ()),
        tuple(row.get("login_hosts") or ()),
        row.get("stack"),
        row.get("interactive"),
        row.get("topology"),
        str(row["checked"]),
        str(row.get("variable", "")),
    )


def accelerator(name: str, table: Hardware | None = None) -> Accelerator:
    """The entry of that name, in any case, of the profile `table` or the bundled table; "cpu" is this machine.

    Raises UserError that names the nearest entries and lists all, MissingPackageError without PyYAML.
    """
    wanted = _key(name)
    if table is not None and wanted in table.accelerators:
        return table.accelerators[wanted]
    return _this_machine() if wanted == CPU else _pick(bundled().accelerators, wanted, name, "accelerator", also=(CPU,))


def node(name: str, table: Hardware | None = None) -> Node:
    """The kind of node of that name, or the only kind that the site of that name has; looked up and refused as accelerator() does."""
    wanted = _key(name)
    if table is not None and wanted in table.nodes:
        return table.nodes[wanted]
    found = bundled()
    if wanted not in found.nodes and wanted in found.sites:
        kinds = [kind for kind, _ in found.sites[wanted].nodes]
        if len(kinds) > 1:
            raise UserError(f"{wanted} has several kinds of nodes; name one of {', '.join(kinds)}")
        wanted = kinds[0]
    return _pick(found.nodes, wanted, name, "node")


def site(name: str, table: Hardware | None = None) -> Site:
    """The site of that name; raises UserError as accelerator() does."""
    return _pick((table or bundled()).sites, _key(name), name, "site")


def site_of_host(hostname: str) -> tuple[Site, bool] | None:
    """The site that a host's name belongs to, and whether it is one of its login nodes; None for any other name.

    A domain has to hold the site's name. Where none is told, a site whose hosts are called as many others are is known by its variable.
    """
    short, _, domain = hostname.lower().partition(".")
    for found in bundled().sites.values():
        name, _, value = found.variable.partition("=")
        told = found.name in domain if domain else not name or os.environ.get(name) == value or found.name in short
        for patterns, login in ((found.login_hosts, True), (found.hosts, False)):
            if told and any(re.match(pattern, hostname.lower()) for pattern in patterns):
                return found, login
    return None


def _key(name: str) -> str:
    return re.sub(r"[\s_]+", "-", name.strip().lower())


def _pick(entries: Mapping[str, _Entry], wanted: str, name: str, kind: str, also: tuple[str, ...] = ()) -> _Entry:
    if wanted in entries:
        return entries[wanted]
    begin = [entry for entry in entries if wanted and entry.startswith(wanted)]
    near = list(dict.fromkeys([*begin, *difflib.get_close_matches(wanted, entries, n=3, cutoff=0.4)]))[:3]
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise UserError(f"there is no {kind} {name[:80]!r}; {hint}known are {', '.join((*entries, *also))}")


def _this_machine() -> Accelerator:
    memory = Figure(host.memory_bytes(), source="/proc/meminfo and cgroup limits", checked="run", per="machine")
    peak = Figure(None, reason="no peak is stated for a CPU; measure it", per="machine")
    return Accelerator(CPU, "this machine", "machine", CPU, memory, peak, PROCESS_RESERVE_BYTES, PROCESS_RESERVE_FOR)
