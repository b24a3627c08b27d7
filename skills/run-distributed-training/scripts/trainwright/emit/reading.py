# emit/reading.py without its comments
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trainwright.job import Job
from trainwright.strategy import Strategy


@dataclass(frozen=True, slots=True)
class KeyUse:

    key: str
    value: Any
    meaning: str


@dataclass(frozen=True, slots=True)
class Reading:

    strategy: Strategy
    num_processes: int | None
    applied: tuple[KeyUse, ...]
    not_applied: tuple[KeyUse, ...]
    job: Mapping[str, Any] = field(default_factory=dict)

    def under(self, job: Job) -> Reading:
        decided = {}
        if job.local_sgd_steps:
            decided["distributed_type"] = f"the job's local_sgd_steps {job.local_sgd_steps}: no gradient is shared"
        if job.activation_checkpoint_every is not None:
            decided["fsdp_activation_checkpointing"] = f"the job's activation_checkpoint_every {job.activation_checkpoint_every} decides"
        moved = tuple(replace(use, meaning=decided[name]) for use in self.applied if (name := use.key.rpartition(".")[2]) in decided)
        kept = tuple(use for use in self.applied if use.key.rpartition(".")[2] not in decided)
        return replace(self, strategy=job.placed(self.strategy), applied=kept, not_applied=(*self.not_applied, *moved))
