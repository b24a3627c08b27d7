"""What would make a job fit that fits nowhere: each remedy is tried on the ledger before it is named."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainwright.cost.memory import Workload, ledger
from trainwright.model import ModelSpec
from trainwright.strategy import Precision, Strategy
from trainwright.units import format_bytes

MOST_RANKS = 65536
NONE_HELPS = "neither a smaller batch, bf16, recomputation nor more ranks: one unit is too large; take larger devices or split tensors"


@dataclass(frozen=True, slots=True)
class Limits:
    """The job and the bytes that the tensors of each rank may take."""

    model: ModelSpec
    workload: Workload
    memory_bytes: int
    precision: Precision

    def peak(self, strategy: Strategy, workload: Workload) -> int | None:
        """The peak where it fits, else None."""
        peak = ledger(self.model, strategy, workload).peak_bytes
        return peak if peak <= self.memory_bytes else None


def all_that_help(limits: Limits, least: Strategy, max_micro_batch: int) -> list[str]:
    """Cheapest first: a smaller batch, bf16, recomputation, more ranks; one line says so where none helps.

    `least` is the strategy with the lowest peak, `max_micro_batch` its ceiling.
    """
    found = [
        *_smaller_batch(least, max_micro_batch),
        *_bf16(limits, least),
        *_checkpointing(limits),
        *_more_ranks(limits),
    ]
    return found or [NONE_HELPS]


def full_shard(model: ModelSpec, precision: Precision, checkpointing: bool = False) -> Strategy:
    """Every block a unit, freed after use: what holds least."""
    return Strategy("fsdp", wrap_classes=(model.block_class,), precision=precision, activation_checkpointing=checkpointing)


def _smaller_batch(least: Strategy, max_micro_batch: int) -> list[str]:
    return [f"micro batch {max_micro_batch} fits under {least.name} (accumulate to keep the global batch)"] if max_micro_batch else []


def _bf16(limits: Limits, least: Strategy) -> list[str]:
    peak = limits.peak(replace(least, precision="bf16"), limits.workload) if limits.precision == "fp32" else None
    return [f"bf16 mixed precision: {least.name} then peaks at {format_bytes(peak)}"] if peak else []


def _checkpointing(limits: Limits) -> list[str]:
    """Only sharded: an Accelerate file asks for recomputation inside fsdp_config and nowhere else."""
    if limits.workload.world_size == 1:
        return []
    strategy = full_shard(limits.model, limits.precision, checkpointing=True)
    peak = limits.peak(strategy, limits.workload)
    return [f"activation checkpointing: {strategy.name} then peaks at {format_bytes(peak)}, for about a third more compute"] if peak else []


def _more_ranks(limits: Limits) -> list[str]:
    ranks = fewest_ranks(limits)
    return [f"{ranks} ranks of this memory: full_shard then fits at this micro batch"] if ranks else []


def fewest_ranks(limits: Limits) -> int | None:
    """The smallest number of ranks, by doubling and halving, on which full sharding fits; None up to MOST_RANKS."""
    strategy = full_shard(limits.model, limits.precision)

    def fits(ranks: int) -> bool:
        return limits.peak(strategy, replace(limits.workload, world_size=ranks)) is not None

    low, high = limits.workload.world_size, limits.workload.world_size * 2
    while not fits(high):
        if high >= MOST_RANKS:
            return None
        low, high = high, min(high * 2, MOST_RANKS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
