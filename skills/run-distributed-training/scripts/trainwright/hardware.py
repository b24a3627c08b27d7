"""What is known of accelerators (hardware.yaml), and the memory of this machine."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from trainwright.document import load_mapping
from trainwright.errors import UserError

TABLE = Path(__file__).with_name("hardware.yaml")
CPU = "cpu"

# What a device holds beside tensors: 0.47 to 0.92 GiB of CUDA context and 1 to 2 GiB of NCCL were measured by others. The upper
# ends are kept free, so that advice errs to the safe side; no such figure is known for ROCm or Level Zero.
DEVICE_RESERVE_BYTES = 3 * 2**30
DEVICE_RESERVE_FOR = "device context and communication buffers, which no tensor shows (assumed from CUDA and NCCL)"
# A CPU rank is a process: 366 to 440 MB were resident with a model of 1 M parameters (torch 2.13, DDP, FSDP2, ZeRO).
PROCESS_RESERVE_BYTES = 2**29
PROCESS_RESERVE_FOR = "the interpreter and the libraries of a rank's process"


@dataclass(frozen=True, slots=True)
class Figure:
    """A number and where it is from; `value` is None where it is unknown, and `reason` then says why."""

    value: float | None
    source: str = ""
    date: str = ""
    checked: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One torch device of the kind `device`: its memory in bytes, its dense bf16 peak in FLOP/s.

    `per` is device, tile or GCD; or machine, whose memory all ranks that run there share.
    """

    name: str
    title: str
    per: str
    device: str
    memory: Figure
    peak_bf16: Figure
    reserve_bytes: int
    reserve_for: str

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory.value is None else int(self.memory.value)

    def to_json(self) -> dict[str, Any]:
        """The entry with the sources of its figures."""
        return asdict(self)


def accelerator(name: str) -> Accelerator:
    """The entry of that name, in any case; "cpu" is this machine.

    Raises UserError that names the nearest entries and lists all, MissingPackageError without PyYAML.
    """
    wanted = name.strip().lower().replace("_", "-").replace(" ", "-")
    if wanted == CPU:
        return _this_machine()
    table = load_mapping(str(TABLE)).value
    if wanted not in table:
        near = difflib.get_close_matches(wanted, table, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise UserError(f"there is no accelerator {name[:80]!r}; {hint}known are {', '.join((*table, CPU))}")
    row = table[wanted]
    memory, peak = Figure(**row["memory_bytes"]), Figure(**row["peak_bf16_flops"])
    return Accelerator(wanted, row["title"], row["per"], row["device"], memory, peak, DEVICE_RESERVE_BYTES, DEVICE_RESERVE_FOR)


def _this_machine() -> Accelerator:
    memory = Figure(this_machine_memory_bytes(), source="/proc/meminfo and cgroup limits", checked="run")
    peak = Figure(None, reason="no peak is stated for a CPU; measure it")
    return Accelerator(CPU, "this machine", "machine", CPU, memory, peak, PROCESS_RESERVE_BYTES, PROCESS_RESERVE_FOR)


def this_machine_memory_bytes(root: str = "/") -> int:
    """The memory that processes here may use: the machine's own, or less where a cgroup (v1 or v2) says so.

    `root` is the top of the file system. Raises UserError where the system does not tell.
    """
    limits = [*_installed(Path(root)), *_cgroup_limits(Path(root))]
    if not limits:
        raise UserError("this system does not tell how much memory it has; give --memory")
    return min(limits)


def _installed(root: Path) -> Iterator[int]:
    for line in _lines(root / "proc" / "meminfo"):
        if line.startswith("MemTotal:"):
            yield int(line.split()[1]) * 1024
            return
    if root == Path("/") and "SC_PHYS_PAGES" in os.sysconf_names:
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cgroup_limits(root: Path) -> Iterator[int]:
    """The limit of this process's cgroup and of each above it; the files are named as the kernel documents them."""
    mount = root / "sys" / "fs" / "cgroup"
    for line in _lines(root / "proc" / "self" / "cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers == "":
            yield from _limits_up(mount, group, "memory.max")
        elif "memory" in controllers.split(","):
            yield from _limits_up(mount / "memory", group, "memory.limit_in_bytes")


def _limits_up(mount: Path, group: str, name: str) -> Iterator[int]:
    # In a container the group may be a path that only the host sees: its parts are then missing here, and the mount's own file counts.
    parts = [part for part in PurePosixPath(group).parts if part not in ("/", "..")]
    for length in range(len(parts), -1, -1):
        for line in _lines(mount.joinpath(*parts[:length]) / name):
            if line.strip().isdecimal() and int(line) > 0:
                yield int(line)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
