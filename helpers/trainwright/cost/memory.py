"""The memory ledger: every tensor on the fullest rank, phase by phase, and the phase where they peak.

It counts tensors of the reference trainer (train/), exactly where a formula allows; what no tensor shows is named in
`NOT_COUNTED` with no number rather than folded into one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from trainwright.cost.phases import Phase, phases_of
from trainwright.cost.rank import Rank
from trainwright.cost.saved import Activations, Item, Numerics
from trainwright.errors import UserError
from trainwright.hardware import PROCESS_RESERVE_BYTES
from trainwright.model import ModelSpec
from trainwright.strategy import Strategy
from trainwright.units import format_count

LARGEST_COUNT = 10**7  # ranks, sequences, tokens: a larger number is a slip of the keyboard
NOT_COUNTED = (
    (
        "DDP's own buckets",
        "gradient_as_bucket_view is on in the reference trainer; Accelerate and torch default to off: 4 B a parameter more",
    ),
    ("optimizer temporaries", "fused AdamW has none; torch's foreach default makes some of about the parameters' size"),
    ("allocator cache and fragmentation", "allocated tensors are counted, not what the allocator reserves around them"),
    ("device context and kernels", "0.47 to 0.92 GiB were measured with CUDA; it depends on driver and libraries"),
    ("communication library", "buffers of NCCL, RCCL, oneCCL or gloo: 1 to 2 GiB were measured with NCCL"),
    ("kernel workspace", "what a matmul or attention kernel allocates and frees inside one call"),
    ("host memory of the process", "Python and its libraries, which share the memory with the tensors when ranks run on CPU"),
)


@dataclass(frozen=True, slots=True)
class Workload:
    """What every rank trains on in one step; `device` is the kind of device that the ranks compute and talk on.

    `accumulation` rounds are summed before the update; with `whole_gradients` FSDP keeps their sum whole until the last.
    """

    micro_batch: int
    seq_len: int
    world_size: int = 1
    optimizer: str = "adamw"
    accumulation: int = 1
    device: str = "cpu"
    whole_gradients: bool = False

    def __post_init__(self) -> None:
        for name in ("micro_batch", "seq_len", "world_size", "accumulation"):
            value = getattr(self, name)
            if type(value) is not int or not 0 < value <= LARGEST_COUNT:
                raise UserError(f"{name} is {value!r}; it has to be a whole number from 1 to {LARGEST_COUNT:,}")
        if self.optimizer != "adamw":
            raise UserError(f"optimizer {self.optimizer!r} is not in the ledger; today it knows adamw")

    @property
    def tokens(self) -> int:
        return self.micro_batch * self.seq_len

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Ledger:
    """The bytes of one strategy on its fullest rank: `block` lists what one block keeps for its backward."""

    strategy: Strategy
    workload: Workload
    states: tuple[Item, ...]
    block: tuple[Item, ...]
    phases: tuple[Phase, ...]

    @property
    def peak(self) -> Phase:
        return max(self.phases, key=lambda phase: phase.bytes)

    @property
    def peak_phase(self) -> str:
        return self.peak.name

    @property
    def peak_bytes(self) -> int:
        return self.peak.bytes

    @property
    def items(self) -> tuple[Item, ...]:
        """What is alive at the peak; the bytes add up to `peak_bytes`."""
        return self.peak.items

    @property
    def states_bytes(self) -> int:
        """Parameters, gradients and optimizer states."""
        return sum(item.bytes for item in self.states)

    @property
    def activations_bytes(self) -> int:
        """The most that is kept for the backward at any moment, the loss apart."""
        return max(sum(item.bytes for item in phase.items if item.kind == "activation") for phase in self.phases)

    def bytes_of(self, kind: str) -> int:
        """Bytes of one kind at the peak: state, gathered, communication, activation, loss, batch, workspace."""
        return sum(item.bytes for item in self.items if item.kind == kind)

    def to_json(self) -> dict[str, Any]:
        return {
            "strategy": self.strategy.name,
            "precision": self.strategy.precision,
            "activation_checkpointing": self.strategy.activation_checkpointing,
            "world_size": self.workload.world_size,
            "micro_batch": self.workload.micro_batch,
            "seq_len": self.workload.seq_len,
            "states_bytes": self.states_bytes,
            "activations_bytes": self.activations_bytes,
            "peak_bytes": self.peak_bytes,
            "peak_phase": self.peak_phase,
            "states": [item.to_json() for item in self.states],
            "items": [item.to_json() for item in self.items],
            "block": [item.to_json() for item in self.block],
            "phases": [{"name": phase.name, "bytes": phase.bytes} for phase in self.phases],
            "not_counted": [{"name": name, "bytes": None, "reason": reason} for name, reason in NOT_COUNTED],
        }


def ledger(model: ModelSpec, strategy: Strategy, workload: Workload) -> Ledger:
    """The Ledger of `model` under `strategy`.

    Raises UserError for what the ledger does not know: ZeRO, whole gradients under FSDP, CPU offload, fp16, more ranks than one
    under "single", blocks unlike Llama's.
    """
    if unlike := model.unlike_llama:
        idle = model.active_parameters != model.total_parameters
        sizes = f"{format_count(model.total_parameters)} parameters" + (f", {format_count(model.active_parameters)} active" if idle else "")
        raise UserError(f"the ledger knows blocks like Llama's, and {model.name} has {', '.join(unlike)} ({sizes})")
    if strategy.cpu_offload:
        raise UserError("the ledger does not know CPU offload yet; it would be wrong about both memories")
    if strategy.kind == "zero":
        raise UserError(f"the ledger does not know DeepSpeed's buffers yet, so it says nothing of {strategy.name}; FSDP it knows")
    if strategy.kind == "fsdp" and workload.whole_gradients and workload.accumulation > 1:
        raise UserError("the ledger does not know whole gradients under FSDP; without whole_gradients they stay in shards")
    if workload.world_size % strategy.replicas:
        raise UserError(f"{workload.world_size} ranks cannot be divided by {strategy.replicas} replicas")
    if strategy.precision not in ("fp32", "bf16"):
        raise UserError(f"the ledger knows fp32 and bf16, not {strategy.precision}")
    if strategy.kind == "single" and workload.world_size != 1:
        raise UserError(f"the strategy single is one rank, not {workload.world_size}")
    if unknown := set(strategy.wrap_classes) - {model.block_class}:
        raise UserError(f"the ledger knows {model.block_class} as a unit of FSDP, not {', '.join(sorted(unknown))}")
    gloo = workload.device == "cpu"
    rank = Rank(model, strategy, workload.world_size, workload.accumulation, gloo, _activations(model, strategy, workload))
    return Ledger(strategy, workload, rank.states(), rank.saved.block(), phases_of(rank))


def host_bytes(model: ModelSpec, strategy: Strategy, workload: Workload, cap_bytes: int | None = None) -> int:
    """What all ranks of a job on CPU take of one machine: their tensors, or their cap where it is less, and their processes."""
    peak = ledger(model, strategy, workload).peak_bytes
    return workload.world_size * (PROCESS_RESERVE_BYTES + (min(peak, cap_bytes) if cap_bytes else peak))


def _activations(model: ModelSpec, strategy: Strategy, workload: Workload) -> Activations:
    numerics: Numerics = "fp32" if strategy.precision == "fp32" else "cast" if strategy.kind == "fsdp" else "autocast"
    return Activations(model, workload.tokens, workload.seq_len, numerics)


def max_micro_batch(model: ModelSpec, strategy: Strategy, workload: Workload, memory_bytes: int) -> int:
    """The largest micro batch whose peak is at most `memory_bytes`; 0 where not even 1 fits.

    Exact on the ledger: the peak never falls as the batch grows, so doubling and halving find the last one that fits.
    """

    def fits(batch: int) -> bool:
        return ledger(model, strategy, replace(workload, micro_batch=batch)).peak_bytes <= memory_bytes

    if not fits(1):
        return 0
    low, high = 1, 2
    while high <= LARGEST_COUNT and fits(high):
        low, high = high, high * 2
    high = min(high, LARGEST_COUNT + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
