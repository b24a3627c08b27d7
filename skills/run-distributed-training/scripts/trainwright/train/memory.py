"""The memory cap of a rank, enforced by the system, and what a process holds. All sizes in bytes."""

from __future__ import annotations

import ctypes
import errno
import mmap
import resource
import sys

import torch

OWN_MAPPING = 32 * 1024  # an allocation this large or larger gets pages of its own under a cap; with 128 KiB holes grew for 40 steps
OUT_OF_MEMORY = ("can't allocate memory", "Cannot allocate memory", "bad_alloc")  # torch's CPU allocator, the system, C++
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # glibc's malloc.h


def steady_allocator() -> None:
    """Make glibc give each large block back at once, so that a cap on the process is a cap on its tensors.

    By default the threshold for a mapping of its own grows to 32 MiB as blocks are freed, and holes in the heap stay
    counted. One arena, because each thread's arena keeps its own holes. Nothing happens without glibc.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim"):
        for option, value in ((M_MMAP_THRESHOLD, OWN_MAPPING), (M_TRIM_THRESHOLD, OWN_MAPPING), (M_ARENA_MAX, 1)):
            libc.mallopt(option, value)
        libc.malloc_trim(0)


def enforce(cap: int, device: torch.device) -> str:
    """From now on this process cannot allocate more than `cap` bytes on top of what it has; "" or why that is not so.

    CPU: RLIMIT_DATA counts private writable memory, so the kernel itself refuses and torch raises its own error. What
    the process holds already (interpreter, libraries, threads, buffers) is not counted: call this after a warm-up and
    before the model is allocated. CUDA, XPU: the share of the device that torch's allocator may take.
    """
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
    """Take the cap off a CPU rank, so that a process that ran out of memory can still say so."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def held_bytes() -> int | None:
    """VmData of this process: its private writable memory, what RLIMIT_DATA counts; None where /proc does not say."""
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
    """Whether an exception means that memory ran out: torch on an accelerator or a CPU, Python, C++, or the system."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY)


def resident_bytes() -> int:
    """Resident memory of this process now (its peak where /proc is missing)."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
