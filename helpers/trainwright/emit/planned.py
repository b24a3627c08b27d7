"""A plan with the facts of its job that backends write down, the plan in its one normal form, and the refusal of what they cannot say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from trainwright.cost.split import equal
from trainwright.errors import UserError
from trainwright.model import ModelSpec
from trainwright.parallel import Plan, PlanError


class NotExpressibleError(UserError):
    """A plan that a backend has no words for; `reasons` are short and alike for plans that fail alike."""

    def __init__(self, backend: str, reasons: list[str]) -> None:
        super().__init__(f"{backend} cannot express this plan: {'; '.join(reasons)}")
        self.reasons = tuple(reasons)


@dataclass(frozen=True, slots=True)
class Planned:
    """What a file of a backend says: the plan, sequences of a step, tokens of a sequence, layers of the model.

    `model` helps to write (names of classes, widths) and is no part of what is read back.
    """

    plan: Plan
    global_batch: int
    seq_len: int
    layers: int
    model: ModelSpec | None = field(default=None, compare=False)

    @property
    def microbatches(self) -> int:
        """Passes of one data-parallel rank in a step."""
        return self.plan.microbatches(self.global_batch)

    def normal(self) -> Planned:
        """The same job with what has one meaning said in one way: the split of a pipeline is spelled out, idle fields are at their default.

        Raises PlanError where the layers do not go into the split.
        """
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
        return replace(self, plan=replace(plan, **idle))  # type: ignore[arg-type]


def refuse(backend: str, problems: Iterable[tuple[bool, str]]) -> None:
    """Raise NotExpressibleError with every problem that holds."""
    if reasons := [reason for holds, reason in problems if holds]:
        raise NotExpressibleError(backend, reasons)


def never(plan: Plan) -> list[tuple[bool, str]]:
    """What only describes old stacks and no backend of today has a switch for."""
    return [(plan.one_rail, "gathering over one link of the network a rank (one_rail)")]


def unread(backend: str, what: str) -> UserError:
    """The error of a file that is not one of this backend's."""
    return UserError(f"{what[:200]}: this is no file that a plan was written to for {backend}")
