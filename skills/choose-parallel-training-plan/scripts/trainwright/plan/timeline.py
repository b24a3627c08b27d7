# plan/timeline.py without its comments
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from trainwright.parallel import Plan

Kind = Literal["forward", "backward", "weights"]
Op = tuple[Kind, int, int]


@dataclass(frozen=True, slots=True)
class Slot:

    stage: int
    kind: Kind
    chunk: int
    microbatch: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Sending:

    origin: int
    target: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Timeline:

    stages: int
    microbatches: int
    slots: tuple[Slot, ...]
    sendings: tuple[Sending, ...]

    @property
    def seconds(self) -> float:
        return max(slot.end for slot in self.slots)

    def busy(self, stage: int) -> float:
        return sum(slot.end - slot.start for slot in self.slots if slot.stage == stage) / self.seconds


def play(plan: Plan, forward: Sequence[float], backward: Sequence[float], transfer: float, microbatches: int) -> Timeline:
    split = plan.schedule == "zero-bubble"

    def length(op: Op) -> float:
        kind, chunk, _ = op
        if kind == "forward":
            return forward[chunk]
        return backward[chunk] / 2 if split else backward[chunk]

    orders = [order(plan, stage, microbatches) for stage in range(plan.pp)]
    done, slots, sendings = _run(plan, orders, length, transfer)
    assert len(done) == sum(map(len, orders)), "the orders of the stages wait for one another"
    return Timeline(plan.pp, microbatches, tuple(slots), tuple(sendings))


def _run(
    plan: Plan, orders: Sequence[Sequence[Op]], length: Callable[[Op], float], transfer: float
) -> tuple[dict[Op, float], list[Slot], list[Sending]]:
    done: dict[Op, float] = {}
    free, at = [0.0] * plan.pp, [0] * plan.pp
    slots, sendings, moved = [], [], True
    while moved:
        moved = False
        for stage, ops in enumerate(orders):
            while at[stage] < len(ops):
                op = ops[at[stage]]
                needed = _needs(op, plan.chunks)
                if needed is not None and needed not in done:
                    break
                arrives = 0.0
                if needed is not None:
                    origin = plan.stage_of(needed[1])
                    arrives = done[needed] + (transfer if origin != stage else 0.0)
                    if origin != stage:
                        sendings.append(Sending(origin, stage, done[needed], arrives))
                start = max(free[stage], arrives)
                free[stage] = done[op] = start + length(op)
                slots.append(Slot(stage, *op, start, free[stage]))
                at[stage] += 1
                moved = True
    return done, slots, sendings


def _needs(op: Op, chunks: int) -> Op | None:
    kind, chunk, microbatch = op
    if kind == "forward":
        return ("forward", chunk - 1, microbatch) if chunk else None
    if kind == "weights":
        return ("backward", chunk, microbatch)
    return ("backward", chunk + 1, microbatch) if chunk < chunks - 1 else ("forward", chunk, microbatch)


def order(plan: Plan, stage: int, microbatches: int) -> list[Op]:
    m, p = microbatches, plan.pp
    if plan.schedule == "interleaved":
        return _interleaved(plan, stage, m)
    if plan.schedule == "gpipe":
        return [("forward", stage, i) for i in range(m)] + [("backward", stage, i) for i in range(m)]
    warm = min(p - stage, m)
    ops: list[Op] = [("forward", stage, i) for i in range(warm)]
    late = stage if plan.schedule == "zero-bubble" else None
    for i in range(m):
        ops.append(("backward", stage, i))
        if late is not None and i >= late:
            ops.append(("weights", stage, i - late))
        if warm + i < m:
            ops.append(("forward", stage, warm + i))
    if late is not None:
        ops += [("weights", stage, i) for i in range(max(m - late, 0), m)]
    return ops


def _interleaved(plan: Plan, stage: int, m: int) -> list[Op]:
    p, v = plan.pp, plan.virtual_stages

    def at(number: int, last_first: bool) -> tuple[int, int]:
        group, rest = divmod(number, p * v)
        local = rest // p
        return (v - 1 - local if last_first else local) * p + stage, group * p + rest % p

    total = m * v
    warm = min(2 * (p - stage - 1) + (v - 1) * p, total)
    ops: list[Op] = [("forward", *at(i, False)) for i in range(warm)]
    for i in range(total - warm):
        ops += [("forward", *at(warm + i, False)), ("backward", *at(i, True))]
    return ops + [("backward", *at(i, True)) for i in range(total - warm, total)]


def shown(plan: Plan, microbatches: int, most: int) -> int:
    fitting = max(most // (2 * plan.chunks), 1)
    if plan.schedule == "interleaved":
        fitting = max(fitting // plan.pp, 1) * plan.pp
    return min(microbatches, fitting)
