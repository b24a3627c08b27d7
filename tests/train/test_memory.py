"""The cap that the kernel enforces: in processes of their own, since it cannot be undone for threads and buffers."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from trainwright.train.memory import held_bytes, is_out_of_memory, resident_bytes

needs_proc = pytest.mark.skipif(held_bytes() is None, reason="this system does not say how much data memory a process holds")

CAPPED = """
import torch
from trainwright.train import memory

memory.steady_allocator()
torch.ones(1000, 1000) @ torch.ones(1000, 1000)
why = memory.enforce(64 * 2**20, torch.device("cpu"))
assert why == "", why
for _ in range(4):  # 52 MiB each time: what is freed is given back, or the second would not fit
    torch.ones(13 * 2**20)
kept = [torch.ones(2**20) for _ in range(15)]  # 60 MiB
del kept
try:
    kept = [torch.ones(2**20) for _ in range(17)]  # 68 MiB
except RuntimeError as error:
    assert memory.is_out_of_memory(error)
    print(error)
    memory.lift()
    torch.ones(100 * 2**20)
"""


@needs_proc
def test_a_cap_holds_to_a_few_mib_and_torch_raises_its_own_error(paths: None) -> None:
    done = subprocess.run([sys.executable, "-c", CAPPED], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4194304 bytes" in done.stdout


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (MemoryError(), True),
        (OSError(12, "Cannot allocate memory"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("std::bad_alloc"), True),
        (RuntimeError("Connection closed by peer"), False),
        (OSError(2, "No such file or directory"), False),
        (ValueError("can't allocate memory"), False),
    ],
    ids=lambda value: value if isinstance(value, bool) else type(value).__name__,
)
def test_out_of_memory_is_told_from_other_errors(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


@needs_proc
def test_held_and_resident_bytes_grow_with_a_tensor() -> None:
    held, resident = held_bytes(), resident_bytes()
    kept = torch.ones(50 * 2**18)
    assert (held_bytes() or 0) - (held or 0) >= 49 * 2**20 and resident_bytes() - resident > 40 * 2**20
    assert kept.numel()
