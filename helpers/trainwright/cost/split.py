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


def split(
    seconds: Sequence[float], states: Sequence[float], activations: Sequence[float], stages: Sequence[Stage]
) -> tuple[int, ...] | None:
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


def uniform(layers: int, seconds: float, states: float, activations: float, stages: Sequence[Stage]) -> tuple[int, ...] | None:
    """`split` where all layers are equal, in closed form: the same optimum, and as even as it allows."""
    most = [_most(stage, states + stage.held * activations, layers) for stage in stages]
    if min(most) < 0 or sum(most) < layers:
        return None
    tops = sorted({stage.seconds for stage in stages})
    if seconds <= 0:
        return _even(layers, most)
    for threshold in _thresholds(layers, seconds, tops, len(stages)):
        found = [min(limit, _within(threshold - stage.seconds, seconds)) for limit, stage in zip(most, stages, strict=True)]
        if min(found) >= 0 and sum(found) >= layers:
            return _even(layers, found)
    return None


def _most(stage: Stage, each: float, layers: int) -> int:
    """Layers that the memory of a stage has room for; -1 where not even none fit."""
    room = stage.cap - stage.bytes
    if room < 0:
        return -1
    return layers if each <= 0 or room == float("inf") else min(layers, int(room / each))


def _within(room: float, seconds: float) -> int:
    return int(room / seconds + 1e-9) if room >= -1e-12 else -1


def _thresholds(layers: int, seconds: float, tops: Sequence[float], stages: int) -> list[float]:
    """Every time that a slowest stage can take, from the least that is possible upwards."""
    least = max((seconds * layers + min(tops) * stages) / stages, max(tops))
    counts = {top: max(int((least - top) / seconds) - 1, 0) for top in tops}
    return sorted(top + n * seconds for top in tops for n in range(counts[top], layers + 1) if top + n * seconds >= least * (1 - 1e-12))


def _even(layers: int, limits: Sequence[int]) -> tuple[int, ...]:
    """Fill stages level by level up to their limits; where the last level is not full, the outer stages go without."""
    low, high = 0, max(limits)
    while low < high:
        level = (low + high) // 2
        low, high = (level + 1, high) if sum(min(limit, level) for limit in limits) < layers else (low, level)
    found = [min(limit, low) for limit in limits]
    spare = sum(found) - layers
    for at in sorted((i for i, n in enumerate(found) if n == low and n), key=lambda i: -abs(2 * i - len(limits) + 1))[:spare]:
        found[at] -= 1
    return tuple(found)
