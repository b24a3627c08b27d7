# plan/profiles.py without its comments
from __future__ import annotations

from typing import Any

from trainwright.cost.machine import Machine, machine, profile_devices
from trainwright.errors import UserError
from trainwright.hardware import Hardware


def changes(profile: Hardware) -> list[dict[str, Any]]:
    found = []
    for entry, device in zip(profile.accelerators, profile_devices(profile), strict=True):
        now = machine(entry, 1, profile=profile)
        before = _shipped(device)
        figures = {name: {"shipped": _of(before, name), "profiled": _of(now, name)} for name in ("matmul_flops", "hbm", "node_bus")}
        found.append({"device": device, "entry": entry, "figures": figures, "missing": now.device.missing()})
    return found


def _shipped(device: str) -> Machine | None:
    try:
        return machine(device, 1)
    except UserError:
        return None


def _of(found: Machine | None, name: str) -> dict[str, Any] | None:
    if found is None:
        return None
    if name == "node_bus":
        level = found.inside[-1]
        return {"value": level.bus[-1][1], "tag": level.tag, "source": level.source}
    row: dict[str, Any] = getattr(found.device, name).to_json()
    return row


def said(found: list[dict[str, Any]]) -> list[str]:
    lines = []
    for one in found:
        for name, figure in one["figures"].items():
            before, now = figure["shipped"], figure["profiled"]
            if now["value"] is None:
                lines.append(f"{one['device']}: {name} unknown")
            elif before is None or before["value"] is None:
                lines.append(f"{one['device']}: {name} {now['value']:.4g} ({now['tag']})")
            else:
                lines.append(f"{one['device']}: {name} {before['value']:.4g} ({before['tag']}) -> {now['value']:.4g} ({now['tag']})")
        if one["missing"]:
            lines.append(f"{one['device']}: no step time before this is measured: {one['missing']}")
    return lines
