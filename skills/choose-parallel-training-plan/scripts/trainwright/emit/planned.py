# emit/planned.py without its comments
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from trainwright.cost.split import equal
from trainwright.errors import UserError
from trainwright.model import ModelSpec
from trainwright.parallel import Plan, PlanError


class NotExpressibleError(UserError):

    def __init__(self, backend: str, reasons: list[str]) -> None:
        super().__init__(f"{backend} cannot express this plan: {'; '.join(reasons)}")
        self.reasons = tuple(reasons)


@dataclass(frozen=True, slots=True)
class Planned:

    plan: Plan
    global_batch: int
    seq_len: int
    layers: int
    model: ModelSpec | None = field(default=None, compare=False)

    @property
    def microbatches(self) -> int:
        return self.plan.microbatches(self.global_batch)

    def normal(self) -> Planned:
        plan = self.plan
        split = plan.layer_split if plan.layer_split is not None or plan.pp == 1 else equal(self.layers, plan.chunks)
        if split is not None and sum(split) != self.layers:
            raise PlanError(f"layer_split places {sum(split)} layers; the model has {self.layers}")
        idle = {
            "layer_split": split if plan.pp > 1 else None,
            "activation_budget": plan.activation_budget if plan.recompute == "budget" else 1.0,
            "reshard_after_forward": plan.reshard_after_forward or plan.zero_stage != 3,
            "sequence_parallel": plan.sequence_parallel and plan.tp > 1,
            "async_tp": plan.async_tp and plan.tp > 1,
            "one_rail": plan.one_rail and plan.zero_stage == 3,
            "context": plan.context if plan.cp > 1 else "ring",
        }
        if plan.zero_stage == 0:
            idle |= {"dp_replicate": plan.dp, "dp_shard": 1}
        return replace(self, plan=replace(plan, **idle))


def refuse(backend: str, problems: Iterable[tuple[bool, str]]) -> None:
    if reasons := [reason for holds, reason in problems if holds]:
        raise NotExpressibleError(backend, reasons)


def never(plan: Plan) -> list[tuple[bool, str]]:
    return [(plan.one_rail, "gathering over one link of the network a rank (one_rail)")]


def unread(backend: str, what: str) -> UserError:
    return UserError(f"{what[:200]}: this is no file that a plan was written to for {backend}")
