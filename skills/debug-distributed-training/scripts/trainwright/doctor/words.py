"""What doctor tells a person: a line for each thing that was seen, the next command last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from trainwright.doctor.observe import Seen
from trainwright.environment import Torch
from trainwright.units import format_bytes

_SHOWN = ("accelerate", "deepspeed", "transformers", "numpy", "triton", "intel-extension-for-pytorch", "oneccl-bind-pt", "megatron-core")


def lines(seen: Seen, data: dict[str, Any]) -> list[str]:
    """The report's lines before its findings."""
    return [*_place(seen), *_stack(seen), *_devices(seen, data), *_host(seen), *_missing(data), _next(data)]


def _place(seen: Seen) -> Iterator[str]:
    place = seen.place
    job = f"; the job has {place.nodes or '?'} nodes, {place.ranks_per_node or '?'} ranks each" if place.job else ""
    scheduler = f", {place.scheduler}" if place.scheduler else ""
    yield f"place: {place.site or 'no known site'}{scheduler}; {place.role}: {place.reason}{job}"


def _stack(seen: Seen) -> Iterator[str]:
    found = seen.environment
    loaded = [*found.modules[-6:], *([f"conda {seen.conda}"] if seen.conda else [])]
    loaded += [f"venv {seen.virtual_environment}"] if seen.virtual_environment else []
    if loaded:
        more = f" (and {len(found.modules) - 6} modules before)" if len(found.modules) > 6 else ""
        yield f"stack: {', '.join(loaded)}{more}"
    yield f"python: {found.python or '?'} at {seen.python} ({seen.python_reason})"
    yield f"torch: {_torch(found.torch)}"
    versions = [f"{name} {found.versions[name]}" for name in _SHOWN if name in found.versions]
    if versions:
        yield f"packages: {', '.join(versions)}"


def _torch(torch: Torch) -> str:
    if torch.state == "absent":
        return "not installed"
    built = [f"{name} {version}" for name, version in (("CUDA", torch.cuda), ("ROCm", torch.hip), ("XPU", torch.xpu)) if version]
    states = {
        "ok": "imports",
        "broken": "its import raises",
        "ended": "its import ends the process",
        "unfinished": "its import took longer than it was given",
        "unknown": "whether it imports is unknown",
    }
    backends = f"; backends {', '.join(torch.backends)}" if torch.backends else ""
    return f"{torch.version or '?'}, built for {', '.join(built) or 'CPU only'}; {states[torch.state]}{backends}"


def _devices(seen: Seen, data: dict[str, Any]) -> Iterator[str]:
    kinds = Counter((row["name"], row["memory_bytes"], row["entry"] or "", row["reason"]) for row in data["devices"])
    for (name, memory, entry, reason), count in kinds.items():
        size = f", {format_bytes(memory)}" if memory else ""
        known = f"accelerator {entry}" if entry else f"not in the table: {reason}"
        yield f"devices: {count} x {name}{size} ({known}; seen by {seen.devices_by})"
    if not kinds:
        cards = ", ".join(f"{count} {maker}" for maker, count in seen.kernel.cards.items())
        asked = seen.environment.torch.state == "ok"
        yield f"devices: {'torch sees none' if asked else 'none seen'}" + (f"; the kernel shows cards: {cards}" if cards else "")


def _host(seen: Seen) -> Iterator[str]:
    cpus, memory = seen.processors, seen.environment.memory_bytes
    cores = f" of {cpus.logical} ({cpus.cores} cores)" if cpus.logical and cpus.cores else ""
    quota = f", by a quota of {cpus.quota:g}" if cpus.quota else ""
    limit = " (a control group's limit)" if seen.memory_limit_bytes is not None and seen.memory_limit_bytes == memory else ""
    shm = f", /dev/shm {format_bytes(seen.limits.shm_bytes)}" if seen.limits.shm_bytes is not None else ""
    many = "processors" if cpus.usable > 1 else "processor"
    yield f"host: {cpus.usable} {many} usable{cores}{quota}; memory {format_bytes(memory) if memory else '?'}{limit}{shm}"


def _missing(data: dict[str, Any]) -> Iterator[str]:
    for gap in data["missing"]:
        command = f": {gap['command']}" if gap["command"] else ""
        yield f"missing: {gap['name']}, for {gap['needed_for']}; instead: {gap['instead']}{command}"


def _next(data: dict[str, Any]) -> str:
    return f"next: {data['next']['command']}   ({data['next']['reason']})"
