"""How the devices of a job share a model along named axes: the noun that `plan` chooses, the cost model prices and emitters write."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from trainwright.errors import UserError

Schedule = Literal["none", "gpipe", "1f1b", "interleaved", "zero-bubble"]
Recompute = Literal["none", "selective", "selective_op", "budget", "full"]
Loss = Literal["eager", "compiled", "chunked"]
Precision = Literal["bf16", "fp16", "fp8", "fp32"]
Offload = Literal["none", "optimizer"]
Context = Literal["ring", "ulysses"]

SCHEDULES: tuple[Schedule, ...] = ("none", "gpipe", "1f1b", "interleaved", "zero-bubble")
RECOMPUTES: tuple[Recompute, ...] = ("none", "selective", "selective_op", "budget", "full")
LOSSES: tuple[Loss, ...] = ("eager", "compiled", "chunked")
PRECISIONS: tuple[Precision, ...] = ("bf16", "fp16", "fp8", "fp32")
LARGEST = 10**7
_WORDS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("schedule", SCHEDULES),
    ("recompute", RECOMPUTES),
    ("loss", LOSSES),
    ("precision", PRECISIONS),
    ("offload", ("none", "optimizer")),
    ("context", ("ring", "ulysses")),
    ("zero_stage", (0, 1, 2, 3)),
    ("gradient_bytes", (2, 4)),
)
_FLAGS = ("sequence_parallel", "reshard_after_forward", "compiled", "flash_attention", "async_tp", "overlap_gradients", "one_rail")


class PlanError(UserError):
    """A plan that no job can be: axes, batch or schedule contradict one another."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to spread a model and its batch. Sizes are counts of devices unless they say otherwise.

    dp_replicate: copies that only reduce gradients. dp_shard: devices that share states by `zero_stage` (0 none; 1 optimizer;
    2 and gradients; 3 and parameters). tp: parts of every matrix; sequence_parallel: activations between them are cut along
    the sequence too. pp: pipeline stages, each of `virtual_stages` chunks. cp: parts of each sequence. ep: parts of the
    experts, inside dp * cp * tp. micro_batch: sequences of one data-parallel rank in one pass. layer_split: layers of
    each chunk, first chunk of the pipeline first (None: as equal as the model allows). activation_budget: the share of activations
    kept under recompute "budget". reshard_after_forward and one_rail speak of zero_stage 3: weights are freed between forward and
    backward; they are gathered over one link of the network a rank and not all of a node's (DeepSpeed's of 2021).
    """

    dp_replicate: int = 1
    dp_shard: int = 1
    tp: int = 1
    sequence_parallel: bool = False
    pp: int = 1
    cp: int = 1
    ep: int = 1
    virtual_stages: int = 1
    micro_batch: int = 1
    schedule: Schedule = "none"
    recompute: Recompute = "none"
    activation_budget: float = 1.0
    zero_stage: int = 0
    reshard_after_forward: bool = True
    offload: Offload = "none"
    loss: Loss = "eager"
    layer_split: tuple[int, ...] | None = None
    precision: Precision = "bf16"
    gradient_bytes: int = 4
    compiled: bool = False
    flash_attention: bool = True
    async_tp: bool = False
    overlap_gradients: bool = True
    one_rail: bool = False
    context: Context = "ring"

    def __post_init__(self) -> None:
        for name in ("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep", "virtual_stages", "micro_batch"):
            value = getattr(self, name)
            if type(value) is not int or not 0 < value <= LARGEST:
                raise PlanError(f"{name} is {value!r}; it has to be a whole number from 1 to {LARGEST:,}")
        self._judge_words()
        self._judge_schedule()

    def _judge_words(self) -> None:
        for name, known in _WORDS:
            if getattr(self, name) not in known:
                raise PlanError(f"{name} is {getattr(self, name)!r}; it has to be one of {', '.join(map(str, known))}")
        for name in _FLAGS:
            if type(getattr(self, name)) is not bool:
                raise PlanError(f"{name} is {getattr(self, name)!r}; it has to be true or false")
        if not isinstance(self.activation_budget, int | float) or not 0 < self.activation_budget <= 1:
            raise PlanError(f"activation_budget is {self.activation_budget!r}; it has to be above 0 and at most 1")

    def _judge_schedule(self) -> None:
        if (self.pp == 1) != (self.schedule == "none"):
            raise PlanError(f"schedule {self.schedule!r} with pp {self.pp}: a schedule and more than one stage come together")
        if self.virtual_stages > 1 and self.schedule != "interleaved":
            raise PlanError(f"virtual_stages {self.virtual_stages} need the schedule interleaved, not {self.schedule}")
        split = self.layer_split
        if split is not None and (len(split) != self.chunks or any(type(n) is not int or n < 0 for n in split)):
            raise PlanError(f"layer_split has {len(split)} parts; pp x virtual_stages = {self.chunks} are needed, none negative")
        if self.ep > 1 and (self.dp * self.cp * self.tp) % self.ep:
            raise PlanError(f"ep {self.ep} does not divide dp x cp x tp = {self.dp * self.cp * self.tp}")

    @property
    def dp(self) -> int:
        """Data-parallel ranks: each has sequences of its own."""
        return self.dp_replicate * self.dp_shard

    @property
    def world_size(self) -> int:
        return self.dp * self.tp * self.pp * self.cp

    @property
    def chunks(self) -> int:
        """Parts of the pipeline, virtual ones counted."""
        return self.pp * self.virtual_stages

    @property
    def fully_sharded(self) -> bool:
        """Whether parameters are gathered when they are used."""
        return self.zero_stage == 3 and self.dp_shard * self.cp > 1

    def microbatches(self, global_batch: int) -> int:
        """Passes of one step; raises PlanError where the batch does not divide."""
        at_once = self.dp * self.micro_batch
        if global_batch < 1 or global_batch % at_once:
            raise PlanError(f"global batch {global_batch} is no multiple of dp {self.dp} x micro batch {self.micro_batch} = {at_once}")
        return global_batch // at_once

    def stage_of(self, chunk: int) -> int:
        """The stage that holds a chunk: chunks go around the stages."""
        return chunk % self.pp

    @property
    def name(self) -> str:
        """The plan in one line: only what differs from one device's."""
        kind = ("ddp", "zero1-", "zero2-", "fsdp")[self.zero_stage]
        axes = [("dp", self.dp_replicate), (kind, self.dp_shard), ("tp", self.tp), ("pp", self.pp), ("cp", self.cp), ("ep", self.ep)]
        words = [f"{axis}{size}" for axis, size in axes if size > 1] or ["single"]
        words += [f"v{self.virtual_stages}"] * (self.virtual_stages > 1) + ["sp"] * (self.sequence_parallel and self.tp > 1)
        words += [f"mbs{self.micro_batch}"] + [self.schedule] * (self.pp > 1)
        words += [f"recompute-{self.recompute}"] * (self.recompute != "none") + ["offload"] * (self.offload != "none")
        words += [f"loss-{self.loss}"] * (self.loss != "eager")
        return " ".join(words)

    def simplicity(self) -> tuple[Any, ...]:
        """A stable order among equals: fewer axes, smaller pp, smaller tp, smaller cp, no extra machinery, then the rest."""
        axes = sum(size > 1 for size in (self.dp_replicate, self.dp_shard, self.tp, self.pp, self.cp, self.ep))
        extras = (self.virtual_stages > 1) + (self.recompute != "none") + (self.offload != "none") + (self.loss != "eager")
        words = (SCHEDULES.index(self.schedule), RECOMPUTES.index(self.recompute), LOSSES.index(self.loss), self.offload)
        sizes = (self.zero_stage, self.virtual_stages, self.micro_batch, self.dp_shard, self.ep, self.sequence_parallel)
        return (axes, self.pp, self.tp, self.cp, extras, *sizes, *words, self.layer_split or ())

    def to_json(self) -> dict[str, Any]:
        row = asdict(self)
        row["layer_split"] = None if self.layer_split is None else list(self.layer_split)
        return {**row, "dp": self.dp, "world_size": self.world_size, "name": self.name}
