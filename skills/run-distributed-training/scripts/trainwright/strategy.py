# strategy.py without its comments
from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["single", "ddp", "fsdp", "zero", "local_sgd"]
Precision = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True, slots=True)
class Strategy:

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
        if self.kind == "zero":
            return f"zero_{self.zero_stage}"
        if self.kind != "fsdp":
            return self.kind
        return f"{'hsdp' if self.replicas > 1 else 'fsdp'}_{'full_shard' if self.reshard_after_forward else 'shard_grad_op'}"
