"""Devices, network and limits as the kernel shows them in /proc, /sys and /dev; no driver is loaded and no program is run."""

from __future__ import annotations

import os
import re
import resource
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainwright import host

_VENDORS = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel", "0x1da3": "habana"}
# PCI classes of what computes and drives no screen: 3D and other display controllers, processing accelerators. Graphics of a
# laptop's processor is 0x0300 and does not count.
_COMPUTE = ("0x0302", "0x0380", "0x1200")
# What a process opens to use them: a container may show the host's cards and hold none of these.
_OPENED = {"nvidia": "dev/nvidiactl", "amd": "dev/kfd", "intel": "dev/dri/renderD*", "habana": "dev/accel/accel*"}


@dataclass(frozen=True, slots=True)
class Kernel:
    """`cards` counts PCI devices by maker, `seen` are the makers whose devices can be opened; `names` are NVIDIA's.

    `nics` are (name, bits/s or None) of what can carry a job.
    """

    cards: dict[str, int]
    seen: tuple[str, ...]
    names: tuple[str, ...]
    nvidia_driver: str | None
    nics: tuple[tuple[str, int | None], ...]


def look(root: str = "/") -> Kernel:
    """What is seen below `root`, the top of a file system."""
    top, cards = Path(root), _cards(Path(root))
    version = host.text(top / "proc/driver/nvidia/version")
    driver = re.search(r"Kernel Module(?: for \S+)?\s+(\d+\.[\d.]+)", version)
    names = tuple(
        found[1].strip()
        for file in sorted(top.glob("proc/driver/nvidia/gpus/*/information"))
        if (found := re.search(r"^Model:\s*(.+)$", host.text(file), re.MULTILINE))
    )
    if names or driver:
        cards["nvidia"] = max(cards.get("nvidia", 0), len(names))
    seen = tuple(maker for maker in sorted(cards) if (maker == "nvidia" and names) or any(top.glob(_OPENED[maker])))
    return Kernel(cards, seen, names, driver[1] if driver else None, _nics(top))


def _cards(top: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for device in top.glob("sys/bus/pci/devices/*"):
        maker = _VENDORS.get(host.text(device / "vendor").strip())
        if maker and host.text(device / "class").strip().startswith(_COMPUTE):
            found[maker] = found.get(maker, 0) + 1
    return found


def _nics(top: Path) -> tuple[tuple[str, int | None], ...]:
    """InfiniBand and Slingshot devices; where there is none, Ethernet that is up."""
    fast = [(f"infiniband {number}", _rate(place)) for number, place in enumerate(sorted(top.glob("sys/class/infiniband/*")))]
    fast += [(f"cxi {number}", _rate(place)) for number, place in enumerate(sorted(top.glob("sys/class/cxi/*")))]
    if fast:
        return tuple(fast)
    wired = [place for place in sorted(top.glob("sys/class/net/*")) if (place / "device").exists()]
    return tuple((f"ethernet {number}", _megabits(host.text(place / "speed"))) for number, place in enumerate(wired))


def _rate(place: Path) -> int | None:
    """ "200 Gb/sec (4X HDR)" -> 2 * 10**11."""
    found = next((m for file in sorted(place.glob("ports/*/rate")) if (m := re.match(r"([\d.]+) Gb/sec", host.text(file)))), None)
    return round(float(found[1]) * 1e9) if found else None


def _megabits(text: str) -> int | None:
    return int(text) * 10**6 if text.strip().isdecimal() and 0 < len(text.strip()) < 9 else None


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes of /dev/shm and of memory that may be locked, and files that may be open; None is unknown, -1 unlimited."""

    shm_bytes: int | None
    locked_bytes: int | None
    open_files: int | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def limits() -> Limits:
    try:
        status = os.statvfs("/dev/shm")
        shm: int | None = status.f_frsize * status.f_blocks
    except OSError:
        shm = None
    return Limits(shm, _soft("RLIMIT_MEMLOCK"), _soft("RLIMIT_NOFILE"))


def _soft(name: str) -> int | None:
    number = getattr(resource, name, None)
    return None if number is None else resource.getrlimit(number)[0]
