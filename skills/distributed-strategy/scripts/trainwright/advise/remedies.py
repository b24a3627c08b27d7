"""What would make a job fit that fits nowhere: each remedy is tried on the ledger before it is named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from trainwright.cost.memory import Workload, ledger
from trainwright.model import ModelSpec
from trainwright.strategy import Precision, Strategy
from trainwright.units import format_bytes

MOST_RANKS = 65536
SHORTEST = 128  # tokens: what a sequence is halved down to before it is given up
ONE_UNIT = "one unit is too large"


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
    """Cheapest first: a smaller batch, bf16, recomputation, more ranks; where none helps alone, the first combination that does.

    One line says so where nothing helps: that one unit is too large only where it is, else what was tried.

    `least` is the strategy with the lowest peak, `max_micro_batch` its ceiling.
    """
    found = [
        *_smaller_batch(least, max_micro_batch),
        *_bf16(limits, least),
        *_checkpointing(limits),
        *_more_ranks(limits),
    ]
    return found or [_too_large(limits) or next(_together(limits), None) or _tried(limits)]


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
    ranks = fewest_ranks(limits, full_shard(limits.model, limits.precision))
    return [f"{ranks} ranks of this memory: full_shard then fits at this micro batch"] if ranks else []


def fewest_ranks(limits: Limits, strategy: Strategy) -> int | None:
    """The smallest number of ranks, by doubling and halving, on which `strategy` fits; None up to MOST_RANKS."""

    def fits(ranks: int) -> bool:
        return limits.peak(strategy, replace(limits.workload, world_size=ranks)) is not None

    low, high = limits.workload.world_size, limits.workload.world_size * 2
    if low >= MOST_RANKS:
        return None
    while not fits(high):
        if high >= MOST_RANKS:
            return None
        low, high = high, min(high * 2, MOST_RANKS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _precisions(limits: Limits) -> tuple[Precision, ...]:
    return ("fp32", "bf16") if limits.precision == "fp32" else (limits.precision,)


def _lengths(seq_len: int) -> Iterator[int]:
    """This length, then halves of it down to SHORTEST tokens."""
    yield seq_len
    while seq_len // 2 >= SHORTEST:
        seq_len //= 2
        yield seq_len


def _together(limits: Limits) -> Iterator[str]:
    """Combinations that fit by the ledger; those that shorten the sequence, and so change what is trained, come last."""
    batches = dict.fromkeys((limits.workload.micro_batch, 1))
    for seq_len, precision, batch in product(_lengths(limits.workload.seq_len), _precisions(limits), batches):
        workload = replace(limits.workload, seq_len=seq_len, micro_batch=batch)
        changed = _changed(limits, workload, precision)
        for strategy, ranks in _placed(replace(limits, workload=workload, precision=precision)):
            recomputed = ["activation checkpointing"] if strategy.activation_checkpointing else []
            more = [f"{ranks} ranks of this memory"] if ranks != workload.world_size else []
            peak = ledger(limits.model, strategy, replace(workload, world_size=ranks)).peak_bytes
            yield f"together: {', '.join([*more, *recomputed, *changed])}: {strategy.name} then peaks at {format_bytes(peak)}"


def _placed(limits: Limits) -> Iterator[tuple[Strategy, int]]:
    """What holds this workload: on these ranks, on these with recomputation, on more with it."""
    plain, recomputed = (full_shard(limits.model, limits.precision, checkpointing) for checkpointing in (False, True))
    here = limits.workload.world_size
    alone = Strategy("single", precision=limits.precision)
    for strategy in (alone,) if here == 1 else (plain, recomputed):
        if limits.peak(strategy, limits.workload) is not None:
            yield strategy, here
    if ranks := fewest_ranks(limits, recomputed):
        yield recomputed, ranks


def _changed(limits: Limits, workload: Workload, precision: Precision) -> list[str]:
    was = limits.workload
    said = [f"{precision} mixed precision"] if precision != limits.precision else []
    said += [f"micro batch {workload.micro_batch}"] if workload.micro_batch != was.micro_batch else []
    return said + ([f"sequences of {workload.seq_len} tokens"] if workload.seq_len != was.seq_len else [])


def _too_large(limits: Limits) -> str | None:
    """Where one token a rank with recomputation is too much on every number of ranks, no share and no batch is small enough.

    Every power of two is tried: past the rows of a tensor, padding makes what a rank gathers grow with the ranks.
    """
    least = replace(limits.workload, micro_batch=1, seq_len=1)
    shards = [full_shard(limits.model, precision, checkpointing=True) for precision in _precisions(limits)]
    counts = [2**power for power in range(1, MOST_RANKS.bit_length())]
    tried = ((ledger(limits.model, s, replace(least, world_size=ranks)).peak_bytes, ranks) for s, ranks in product(shards, counts))
    peak, ranks = min(tried)
    if peak <= limits.memory_bytes:
        return None
    held = f"with one token a rank and recomputation {shards[0].name} peaks at {format_bytes(peak)} at the least, on {ranks} ranks"
    return f"{ONE_UNIT}: {held}; take larger devices or split tensors"


def _tried(limits: Limits) -> str:
    shortest = list(_lengths(limits.workload.seq_len))[-1]
    tried = f"micro batch 1, bf16, recomputation, up to {MOST_RANKS} ranks, sequences down to {shortest} tokens, and these together"
    return f"nothing that was tried: {tried}; take larger devices or split tensors"
