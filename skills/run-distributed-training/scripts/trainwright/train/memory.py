# train/memory.py without its comments
from __future__ import annotations

import ctypes
import errno
import mmap
import resource
import sys

import torch

OWN_MAPPING = 32 * 1024
OUT_OF_MEMORY = ("can't allocate memory", "Cannot allocate memory", "bad_alloc")
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8


def steady_allocator() -> None:
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim"):
        for option, value in ((M_MMAP_THRESHOLD, OWN_MAPPING), (M_TRIM_THRESHOLD, OWN_MAPPING), (M_ARENA_MAX, 1)):
            libc.mallopt(option, value)
        libc.malloc_trim(0)


def enforce(cap: int, device: torch.device) -> str:
    if device.type != "cpu":
        module = getattr(torch, device.type)
        module.set_per_process_memory_fraction(min(cap / module.get_device_properties(device).total_memory, 1.0), device)
        return ""
    held = held_bytes()
    if held is None:
        return f"{sys.platform} does not say how much data memory a process holds"
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if hard != resource.RLIM_INFINITY and held + cap > hard:
        return f"the limit of {hard} bytes that this process was started with is lower"
    resource.setrlimit(resource.RLIMIT_DATA, (held + cap, hard))
    if _refused(cap + 2 * OWN_MAPPING):
        return ""
    lift()
    return "this kernel does not enforce RLIMIT_DATA"


def lift() -> None:
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def held_bytes() -> int | None:
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            lines = [line for line in file if line.startswith("VmData:")]
        return int(lines[0].split()[1]) * 1024
    except (OSError, IndexError, ValueError):
        return None


def _refused(size: int) -> bool:
    try:
        mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError:
        return True
    return False


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY)


def resident_bytes() -> int:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
