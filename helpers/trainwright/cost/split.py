"""Which layers each stage holds: the contiguous split whose slowest stage is fastest, under a memory cap for each stage. Exact.

With a threshold on time every stage takes as many layers as it may; reaching furthest is never worse, for costs are not negative.
So a threshold is feasible exactly where that walk ends behind the last layer, and bisection finds the least one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

ROUNDS = 60  # halvings: beyond the precision of a float


@dataclass(frozen=True, slots=True)
class Stage:
    """What a stage costs beside its layers: seconds and bytes; `held` multiplies the activations of its layers; `cap` in bytes."""

    seconds: float = 0.0
    bytes: float = 0.0
    held: float = 1.0
    cap: float = float("inf")


def equal(layers: int, parts: int) -> tuple[int, ...]:
    """As equal as it goes; what is left over goes to the middle, where neither table nor head stands."""
    share, rest = divmod(layers, parts)
    first = (parts - rest) // 2
    return tuple(share + (first <= i < first + rest) for i in range(parts))


def split(seconds: Sequence[float], states: Sequence[float], activations: Sequence[float], stages: Sequence[Stage]) -> tuple[int, ...] | None:
    """Layers of each stage, or None where no split fits. Per layer: seconds, bytes of states, bytes of activations of one microbatch."""
    time = [0.0, *accumulate(seconds)]
    state, activation = [0.0, *accumulate(states)], [0.0, *accumulate(activations)]
    held = {stage.held: [a + stage.held * b for a, b in zip(state, activation, strict=True)] for stage in stages}

    def walk(threshold: float) -> tuple[int, ...] | None:
        at, found = 0, []
        for stage in stages:
            memory = held[stage.held]
            by_time = bisect_right(time, time[at] + (threshold - stage.seconds) * (1 + 1e-12)) - 1
            by_memory = bisect_right(memory, memory[at] + stage.cap - stage.bytes) - 1
            end = min(by_time, by_memory)
            if end < at:
                return None
            found.append(end - at)
            at = end
        return tuple(found) if at == len(seconds) else None

    high = time[-1] + max(stage.seconds for stage in stages)
    best = walk(high)
    if best is None:
        return None
    low = max(stage.seconds for stage in stages) * (1 - 1e-9)
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        found = walk(middle)
        low, high, best = (low, middle, found) if found is not None else (middle, high, best)
        if high - low <= 1e-9 * high:
            break
    return best
