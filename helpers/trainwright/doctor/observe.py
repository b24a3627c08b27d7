"""All that doctor sees here, put together as an Environment for the rules and as facts for the report."""

from __future__ import annotations

import os
import platform
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from trainwright import host
from trainwright.check.traps import VARIABLES
from trainwright.doctor import asking
from trainwright.doctor.kernel import Kernel, Limits, limits, look
from trainwright.doctor.place import Place, place
from trainwright.environment import Device, Environment, Torch, Unmet
from trainwright.errors import UserError
from trainwright.probe import host_memory


@dataclass(slots=True)
class Seen:
    """What was seen: the environment that rules judge, and what only the report and the profile show."""

    environment: Environment
    place: Place
    kernel: Kernel
    limits: Limits
    processors: host.Processors
    memory_limit_bytes: int | None
    python: str
    python_reason: str
    python_named: bool
    seconds: float | None  # that torch was given by name; None: not named
    devices_by: str | None
    conda: str | None
    virtual_environment: str | None
    unknown: list[tuple[str, str]] = field(default_factory=list)


def observe(python: str | None, seconds: float | None, quick: float) -> Seen:
    """Look around for at most `seconds`, or `quick` where none are named (and what little else it takes).

    torch is not imported on a login node unless time for it is named. Raises UserError for a --python that cannot be run.
    """
    began, where = time.monotonic(), place(platform.node())
    path, reason = asking.interpreter(python)
    importing = seconds is not None or where.role != "login"
    named_seconds, seconds = seconds, seconds or quick
    asked, smi = asking.ask_interpreter(path, seconds, importing), asking.ask_nvidia_smi()
    try:
        shown, bounds, cpus = look(), limits(), host.processors()
    finally:
        told = asking.interpreter_told(asked, seconds - (time.monotonic() - began), importing)
    if python is not None and told.trouble and asked.finished:
        raise UserError(f"--python {path}: {told.trouble}; it is no Python 3.8 or newer that works")
    # What nvidia-smi says was ready long before, unless the driver hangs: then it gets no second chance.
    named, smi_driver = asking.nvidia_smi_told(smi, max(0.2, seconds - (time.monotonic() - began))) if smi else ([], None)
    devices, devices_by = _devices(told, named, shown)
    found = Environment(
        variables={name: value for name in VARIABLES if (value := os.environ.get(name)) is not None},
        versions=(told.packages.get("versions") or {}),
        python=told.packages.get("python"),
        torch=_torch(told),
        devices=devices,
        seen=tuple(sorted({*shown.seen, *(["nvidia"] if named else [])})),
        nvidia_driver=shown.nvidia_driver or smi_driver,
        unmet=tuple(Unmet(**gap) for gap in told.packages.get("unmet") or ()),
        user_packages=tuple(told.packages.get("user_packages") or ()),
        modules=tuple(part for part in os.environ.get("LOADEDMODULES", "").split(os.pathsep) if part),
        site=where.site,
        role=where.role,
        scheduler=where.scheduler,
        nodes=where.nodes,
        ranks_per_node=where.ranks_per_node,
        processors=cpus.usable,
        memory_bytes=_memory(),
        shm_bytes=bounds.shm_bytes,
        shadows=_shadows(),
    )
    conda = os.environ.get("CONDA_DEFAULT_ENV") or os.environ.get("CONDA_PREFIX")
    limit, virtual = host_memory().limit_bytes, os.environ.get("VIRTUAL_ENV")
    said = (path, reason, python is not None, named_seconds, devices_by)
    return Seen(found, where, shown, bounds, cpus, limit, *said, conda, virtual, _unknown(told, where, seconds, importing))


def _memory() -> int | None:
    try:
        return host.memory_bytes()
    except UserError:
        return None


def _torch(told: asking.Told) -> Torch:
    built: dict[str, Any] = told.packages.get("torch", {})
    answer = told.torch
    return Torch(
        state=str(answer.get("state") or built.get("state") or "unknown"),
        version=(told.packages.get("versions") or {}).get("torch") or answer.get("version"),
        cuda=built.get("cuda"),
        hip=built.get("hip"),
        xpu=built.get("xpu"),
        error=answer.get("error"),
        backends=tuple(answer.get("backends") or ()),
    )


def _devices(told: asking.Told, named: list[tuple[str, int | None]], shown: Kernel) -> tuple[tuple[Device, ...], str | None]:
    """Devices as torch addresses them; where torch did not tell, NVIDIA's as its tool or the kernel names them."""
    if told.torch.get("state") == "ok":
        return tuple(Device(**row) for row in told.torch.get("devices") or ()), "torch"
    if named:
        return tuple(Device("cuda", name, memory) for name, memory in named), "nvidia-smi"
    names = tuple(Device("cuda", name) for name in shown.names)
    return names, "kernel" if names else None


def _shadows() -> tuple[str, ...]:
    """Files of the working folder that are called as modules of the standard library."""
    try:
        with os.scandir(".") as entries:
            names = [entry.name for _, entry in zip(range(10_000), entries, strict=False) if entry.name.endswith(".py")]
    except OSError:
        return ()
    return tuple(sorted(name for name in names if name[:-3] in sys.stdlib_module_names and not name.startswith("_")))


def _unknown(told: asking.Told, where: Place, seconds: float, importing: bool) -> list[tuple[str, str]]:
    unknown = [("the site", where.unknown)] if where.unknown else []
    more = "doctor --timeout 60s waits longer"
    if told.trouble:
        unknown.append(("versions, and whether torch imports", f"the interpreter: {told.trouble}; {more}"))
    elif not importing and told.packages["torch"]["state"] != "absent":
        unknown.append(("whether torch imports, and its devices", "not tried on a login node; doctor --timeout 60s tries it"))
    elif told.torch.get("state") == "unfinished":
        unknown.append(
            ("whether torch imports, and its devices", f"it had not imported after {seconds:.1f} s, which is often no fault; {more}")
        )
    return unknown
