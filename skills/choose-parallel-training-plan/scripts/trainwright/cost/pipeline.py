# cost/pipeline.py without its comments
from __future__ import annotations

from collections.abc import Sequence

from trainwright.parallel import Plan, Schedule

ZERO_BUBBLE = 1 / 3


def step_seconds(stages: Sequence[float], transfers: float, microbatches: int, schedule: Schedule, virtual: int = 1) -> float:
    if len(stages) == 1:
        return microbatches * stages[0]
    slowest = max(stages)
    fill = sum(stages) - slowest + (len(stages) - 1) * transfers
    if schedule == "interleaved":
        fill = fill / virtual + (len(stages) - 1) * transfers * (virtual - 1) / virtual
    elif schedule == "zero-bubble":
        fill *= ZERO_BUBBLE
    return fill + microbatches * slowest


def in_flight(plan: Plan, stage: int, microbatches: int) -> float:
    p, v = plan.pp, plan.virtual_stages
    if p == 1:
        return 1
    if plan.schedule == "gpipe":
        return microbatches
    if plan.schedule == "interleaved" and v > 1:
        return min(microbatches, (2 * (p - stage - 1) + (v - 1) * p + 1) / v)
    return min(microbatches, p - stage)
