"""Schedules of a pipeline: the time of a step from its stages' times, and how many microbatches each stage holds.

Uneven stages: T = sum of all stages + (m - 1) x the slowest, with the transfers that a stage waits for (Narayanan et al. 2021 for equal
stages; the sum and the maximum part where they differ). Interleaving divides the fill by v; zero-bubble (Qi et al. 2023, ZB-H1) fills it
with weight gradients, a third of a step's work. Legend: p stages, v chunks a stage, m microbatches.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainwright.parallel import Plan, Schedule

ZERO_BUBBLE = 1 / 3  # of the fill is left by ZB-H1


def step_seconds(stages: Sequence[float], transfers: float, microbatches: int, schedule: Schedule, virtual: int = 1) -> float:
    """Seconds of all microbatches; `stages` are forward and backward of one microbatch, `transfers` of one boundary, both ways."""
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
    """Microbatches whose activations a stage holds at most, counted over all of its layers."""
    p, v = plan.pp, plan.virtual_stages
    if p == 1:
        return 1
    if plan.schedule == "gpipe":
        return microbatches
    if plan.schedule == "interleaved" and v > 1:
        # Stage s warms up 2 (p - s - 1) + (v - 1) p chunks of 1 / v of its layers (Narayanan et al. 2021; stage 0: 1 + (p - 1) / p v).
        return min(microbatches, (2 * (p - stage - 1) + (v - 1) * p + 1) / v)
    return min(microbatches, p - stage)
