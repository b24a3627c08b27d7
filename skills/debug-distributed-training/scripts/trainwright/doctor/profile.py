"""This machine as an entry in the format of hardware.yaml: what is seen is filled in, what has to be measured is left open."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from trainwright import hardware
from trainwright.doctor.advice import entry_of
from trainwright.doctor.observe import Seen
from trainwright.environment import Device

NAME = "this-machine"
TO_MEASURE = "not measured: nothing of this release measures it; a figure may be written here by hand, with its source"
_PER = {"cuda": "device", "xpu": "tile", "hpu": "device"}


def profile(seen: Seen) -> dict[str, Any]:
    """{"accelerators": ..., "nodes": {"this-machine": ...}}, which hardware.load reads back; no name of host or user is in it."""
    kinds = Counter(seen.environment.devices)
    entries = {f"{NAME}-{number}" if len(kinds) > 1 else f"{NAME}-device": device for number, device in enumerate(kinds)}
    accelerators = {name: _device(device) for name, device in entries.items()} or {f"{NAME}-cpu": _cpu(seen)}
    counts = {name: kinds[device] for name, device in entries.items()} or {f"{NAME}-cpu": 1}
    return {"accelerators": accelerators, "nodes": {NAME: _node(seen, counts, _known(seen))}}


def _known(seen: Seen) -> hardware.Node | None:
    """The kind of node of this site that has the devices which are seen here; None where the site or the kind is not known."""
    if seen.place.site is None:
        return None
    entries = Counter(entry_of(device)[0] for device in seen.environment.devices)
    kinds = [hardware.node(name) for name, _ in hardware.site(seen.place.site).nodes]
    return next((kind for kind in kinds if {group.accelerator: group.count for group in kind.devices} == entries), None)


def _seen(value: float | None, per: str, note: str = "") -> dict[str, Any]:
    if value is None:
        return {"value": None, "per": per, "reason": "this machine does not tell"}
    today = time.strftime("%Y-%m-%d")
    figure = {"value": value, "per": per, "source": NAME, "date": today, "checked": "run"}
    return {**figure, **({"note": note} if note else {})}


def _open(per: str) -> dict[str, Any]:
    return {"value": None, "per": per, "reason": TO_MEASURE}


def _device(device: Device) -> dict[str, Any]:
    """One kind of device: its memory as torch tells it, its peaks from the table where it is known there."""
    entry, reason = entry_of(device)
    known = hardware.accelerator(entry) if entry else None
    per = known.per if known else _PER.get(device.kind, "device")
    unknown = {"value": None, "per": per, "reason": reason or "no figure is known"}
    return {
        "title": known.title if known else device.name,
        "per": per,
        "device": device.kind,
        "names": list(known.names) if known else [],
        "memory_bytes": _seen(device.memory_bytes, per),
        "peak_bf16_flops": _stated(known.peak_bf16) if known else unknown,
        "measured_bf16_flops": _open(per),
        "memory_bytes_per_s": _stated(known.memory_bandwidth) if known else unknown,
        "measured_memory_bytes_per_s": _open(per),
    }


def _stated(figure: hardware.Figure) -> dict[str, Any]:
    if figure.value is None:
        return {"value": None, "per": figure.per, "reason": figure.reason}
    return figure.to_json()


def _cpu(seen: Seen) -> dict[str, Any]:
    return {
        "title": "the processors of this machine",
        "per": "machine",
        "device": "cpu",
        "names": [],
        "memory_bytes": _seen(seen.environment.memory_bytes, "machine", "what processes may use here, control groups counted"),
        "peak_bf16_flops": {"value": None, "per": "machine", "reason": "no peak is stated for a CPU; measure it"},
        "measured_bf16_flops": _open("machine"),
        "memory_bytes_per_s": {"value": None, "per": "machine", "reason": "no bandwidth is stated for a CPU; measure it"},
        "measured_memory_bytes_per_s": _open("machine"),
    }


def _node(seen: Seen, counts: dict[str, int], known: hardware.Node | None) -> dict[str, Any]:
    cpus = seen.processors
    threads = cpus.logical // cpus.cores if cpus.logical and cpus.cores and cpus.logical % cpus.cores == 0 else None
    note = f"{cpus.usable} processors may be used" + (f", by a quota of {cpus.quota:g}" if cpus.quota else "")
    return {
        "title": f"this machine, as doctor saw it{f'; a node of the kind {known.name}' if known else ''}",
        "devices": [{"accelerator": name, "count": count} for name, count in counts.items()],
        "cards": _cards(seen),
        "sockets": cpus.sockets,
        "cores": _seen(cpus.cores, "node", note),
        "threads_per_core": threads,
        "reserved_cores": _reserved(known),
        "host_memory_bytes": _seen(seen.environment.memory_bytes, "node"),
        "nics": _seen(len(seen.kernel.nics), "node"),
        "links": [_open_link(link) for link in known.links] if known else list(_links(seen, sum(counts.values()))),
    }


def _reserved(known: hardware.Node | None) -> dict[str, Any]:
    if known is None or known.reserved_cpus is None:
        return {"cpus": None, "reason": "which processors the system keeps for itself is not told"}
    return {"cpus": list(known.reserved_cpus), "source": NAME, "note": f"of the entry {known.name}"}


def _open_link(link: hardware.Link) -> dict[str, Any]:
    """A level of the known kind of node: what is stated of it stays, what others measured is left to be measured here."""
    head = {"level": link.level, "kind": link.kind, "group": link.group, "shape": link.shape, "duplex": link.duplex}
    ends = {"from": link.origin, "to": link.target} if link.origin else {}
    stated = {name: link[name].to_json() for name in ("bytes_per_s", "reverse_bytes_per_s") if link[name].value is not None}
    per = next((figure.per for figure in link.figures.values() if figure.value is not None), "device")
    return {**head, **ends, **stated, "measured_bytes_per_s": _open(per), "alpha_s": _open(per)}


def _cards(seen: Seen) -> dict[str, Any]:
    if not seen.environment.devices:
        return {"value": None, "per": "node", "reason": "no accelerator is seen"}
    return _seen(sum(seen.kernel.cards.values()) or None, "node")


def _links(seen: Seen, devices: int) -> Iterator[dict[str, Any]]:
    if len(seen.environment.devices) > 1:
        yield _link("node", "between the devices of this machine", devices, "pair")
    if seen.environment.devices:
        yield _link("host", "between host and device", 1, "device")
    if seen.kernel.nics:
        slowest = min((rate for _, rate in seen.kernel.nics if rate), default=None)
        stated = {"bytes_per_s": _seen(slowest / 8 if slowest else None, "NIC", "what the interface says it runs at")}
        yield _link("network", seen.kernel.nics[0][0].split()[0], devices, "NIC", stated)


def _link(level: str, kind: str, group: int, per: str, stated: dict[str, Any] | None = None) -> dict[str, Any]:
    head = {"level": level, "kind": kind, "group": group, "shape": "unknown", "duplex": "unknown"}
    return {**head, **(stated or {}), "measured_bytes_per_s": _open(per), "alpha_s": _open(per)}


def as_yaml(table: dict[str, Any]) -> list[str]:
    """The lines of a profile: block style down to the figures, which are one line each. Every scalar is quoted JSON or a number."""
    return list(_block(table, 0))


def _block(value: dict[str, Any], depth: int) -> Iterator[str]:
    pad = "  " * depth
    for key, item in value.items():
        if isinstance(item, dict) and "value" not in item and "cpus" not in item:
            yield f"{pad}{key}:"
            yield from _block(item, depth + 1)
        elif key == "links" and item:
            yield f"{pad}{key}:"
            for link in item:
                first, *rest = _block(link, depth + 2)
                yield f"{pad}  - {first.strip()}"
                yield from rest
        else:
            yield f"{pad}{key}: {_flow(item)}"


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 1e+16 is text in YAML 1.1
    if isinstance(value, str):
        return '"' + "".join(map(_letter, value)) + '"'
    text = json.dumps(value)
    return text.replace("e", ".0e") if isinstance(value, float) and "." not in text else text


def _letter(letter: str) -> str:
    """A character between double quotes of YAML; half a surrogate pair is none, and becomes a question mark."""
    code = ord(letter)
    if 0xD800 <= code < 0xE000:
        return "?"
    if letter in '"\\':
        return "\\" + letter
    return letter if letter.isascii() and letter.isprintable() else f"\\U{code:08x}"
