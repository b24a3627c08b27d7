"""How the ranks of a job share a model: the noun that advise chooses, emit writes, check reads and train applies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["single", "ddp", "fsdp"]
Precision = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to place parameters, gradients and optimizer states on the ranks.

    `reshard_after_forward` and `wrap_classes` mean something to fsdp only. precision "bf16" is mixed precision:
    parameters, gradients and optimizer states stay fp32, compute and gathered parameters are bf16.
    """

    kind: Kind
    reshard_after_forward: bool = True
    wrap_classes: tuple[str, ...] = ()
    precision: Precision = "fp32"
    activation_checkpointing: bool = False
    cpu_offload: bool = False

    @property
    def name(self) -> str:
        """The field's short name: single, ddp, fsdp_full_shard, fsdp_shard_grad_op."""
        if self.kind != "fsdp":
            return self.kind
        return "fsdp_full_shard" if self.reshard_after_forward else "fsdp_shard_grad_op"
