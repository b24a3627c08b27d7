# host.py without its comments
from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from trainwright.errors import UserError

_MOST = 4 * 2**20


def memory_bytes(root: str = "/") -> int:
    limits = [size for size in (installed_bytes(root), memory_limit_bytes(root)) if size is not None]
    if not limits:
        raise UserError("this system does not tell how much memory it has; give --memory")
    return min(limits)


def installed_bytes(root: str = "/") -> int | None:
    if (total := meminfo(root).get("MemTotal")) is not None:
        return total
    if root == "/" and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def meminfo(root: str = "/") -> dict[str, int]:
    lines = re.findall(r"^(\w+):\s+(\d+) kB", text(Path(root) / "proc" / "meminfo"), re.MULTILINE)
    return {name: int(value) * 1024 for name, value in lines}


def memory_limit_bytes(root: str = "/") -> int | None:
    found = [line.strip() for line in group_files(root, "memory", "memory.max", "memory.limit_in_bytes")]
    return min((int(value) for value in found if value.isdecimal() and int(value) > 0), default=None)


@dataclass(frozen=True, slots=True)
class Processors:

    logical: int | None
    cores: int | None
    sockets: int | None
    numa_nodes: int | None
    allowed: int | None
    quota: float | None

    @property
    def usable(self) -> int:
        found = [value for value in (self.allowed or self.logical, self.quota) if value]
        return max(1, int(min(found))) if found else 1

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "usable": self.usable}


def processors(root: str = "/") -> Processors:
    folders = list((Path(root) / "sys/devices/system/cpu").glob("cpu[0-9]*"))
    siblings = {text(f / "topology/thread_siblings_list").strip() for f in folders} - {""}
    packages = {text(f / "topology/physical_package_id").strip() for f in folders} - {"", "-1"}
    nodes = list((Path(root) / "sys/devices/system/node").glob("node[0-9]*"))
    return Processors(
        logical=len(folders) or os.cpu_count(),
        cores=len(siblings) or None,
        sockets=len(packages) or None,
        numa_nodes=len(nodes) or None,
        allowed=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        quota=_quota(root),
    )


def _quota(root: str) -> float | None:
    found = [float(m[1]) / float(m[2]) for line in group_files(root, "cpu", "cpu.max", "") if (m := re.match(r"(\d+) ([1-9]\d*)", line))]
    quotas = group_files(root, "cpu", "", "cpu.cfs_quota_us")
    periods = group_files(root, "cpu", "", "cpu.cfs_period_us")
    for quota, period in zip(quotas, periods, strict=False):
        if quota.strip().isdecimal() and period.strip().isdecimal() and int(period):
            found.append(int(quota) / int(period))
    return min((value for value in found if value > 0), default=None)


def group_files(root: str, controller: str, v2: str, v1: str) -> Iterator[str]:
    mount = Path(root) / "sys" / "fs" / "cgroup"
    for line in text(Path(root) / "proc" / "self" / "cgroup").splitlines():
        controllers, _, group = line.partition(":")[2].partition(":")
        if controllers == "" and v2:
            yield from _upwards([mount], group, v2)
        elif v1 and controller in controllers.split(","):
            yield from _upwards([mount / controllers, mount / controller], group, v1)


def _upwards(mounts: list[Path], group: str, name: str) -> Iterator[str]:
    mount = next((place for place in mounts if place.is_dir()), mounts[-1])
    parts = [part for part in PurePosixPath(group).parts if part not in ("/", "..")]
    for length in range(len(parts), -1, -1):
        if found := text(mount.joinpath(*parts[:length]) / name):
            yield found


def text(path: Path, most: int = _MOST) -> str:
    try:
        if not path.is_file():
            return ""
        with open(path, "rb") as file:
            return file.read(most).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""
