"""What is known of accelerators (hardware.yaml), and the memory of this machine."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright.document import load_mapping
from trainwright.errors import UserError

TABLE = Path(__file__).with_name("hardware.yaml")

# What the allocator of an accelerator cannot give to tensors: a CUDA context of 0.47 to 0.92 GiB and 1 to 2 GiB of NCCL were
# measured (references/sources.yaml: device-overhead). The upper ends, so that advice errs to the safe side.
RESERVE_BYTES = 3 * 2**30
RESERVE_FOR = "device context and communication buffers, which no tensor shows"


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One torch device: memory in bytes, dense bf16 peak in FLOP/s; None where unknown, with the reason."""

    name: str
    title: str
    per: str
    memory_bytes: int | None
    memory_reason: str
    peak_bf16_flops: float | None
    peak_reason: str
    reserve_bytes: int = RESERVE_BYTES
    reserve_for: str = RESERVE_FOR


def accelerator(name: str) -> Accelerator:
    """The entry of that name; raises UserError naming the nearest, MissingPackageError without PyYAML."""
    table = load_mapping(str(TABLE)).value
    key = name.lower()
    if key not in table:
        near = difflib.get_close_matches(key, table, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise UserError(f"there is no accelerator {name[:80]!r}; {hint}known are {', '.join(table)}")
    row = table[key]
    memory, peak = _figure(row["memory_bytes"]), _figure(row["peak_bf16_flops"])
    bytes_ = None if memory[0] is None else int(memory[0])
    return Accelerator(key, row["title"], row["per"], bytes_, memory[1], peak[0], peak[1])


def _figure(row: dict[str, Any]) -> tuple[float | None, str]:
    return row["value"], row.get("reason", "")
