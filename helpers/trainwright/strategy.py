"""How the ranks of a job share a model: the noun that advise chooses, emit writes, check reads and train applies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["single", "ddp", "fsdp", "zero", "local_sgd"]
Precision = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to place parameters, gradients and optimizer states on the ranks.

    `reshard_after_forward`, `wrap_classes` and `replicas` mean something to fsdp only: the ranks form a mesh of `replicas`
    rows, each of which holds the whole model in shards (HSDP where there is more than one; ranks of a row are neighbours,
    as on a node). `zero_stage` is DeepSpeed's, 1 to 3. precision "bf16" is mixed precision: parameters, gradients and
    optimizer states stay fp32, compute and gathered parameters are bf16 (with zero: DeepSpeed's own, bf16 beside an fp32
    copy). `checkpoint_every` n: with activation checkpointing, every n-th block.
    """

    kind: Kind
    reshard_after_forward: bool = True
    wrap_classes: tuple[str, ...] = ()
    precision: Precision = "fp32"
    activation_checkpointing: bool = False
    cpu_offload: bool = False
    replicas: int = 1
    zero_stage: int = 0
    checkpoint_every: int = 1

    @property
    def name(self) -> str:
        """The field's short name: single, ddp, local_sgd, fsdp_full_shard, hsdp_shard_grad_op, zero_2 ..."""
        if self.kind == "zero":
            return f"zero_{self.zero_stage}"
        if self.kind != "fsdp":
            return self.kind
        return f"{'hsdp' if self.replicas > 1 else 'fsdp'}_{'full_shard' if self.reshard_after_forward else 'shard_grad_op'}"
