# plan/fitting.py without its comments
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

FREEDOM = 4.0
ROUNDS = 8
DELTA = 0.02
LONGEST_STEP = 0.5
SMALL = 5e-3

Vector = list[float]


def fit(residuals: Callable[[dict[str, float]], Sequence[float]], widths: Mapping[str, float], noise: float) -> dict[str, float]:
    names, prior = list(widths), list(widths.values())
    logs = [0.0] * len(names)

    def at(values: Sequence[float]) -> Vector:
        return [one / noise for one in residuals({name: math.exp(value) for name, value in zip(names, values, strict=True)})]

    now = at(logs)
    for _ in range(ROUNDS):
        slopes = [_slope(at, logs, i, now) for i in range(len(names))]
        step = _step(slopes, now, logs, prior)
        longest = max(map(abs, step))
        scale = min(1.0, LONGEST_STEP / max(longest, 1e-12))
        logs = [value - scale * change for value, change in zip(logs, step, strict=True)]
        now = at(logs)
        if scale * longest < SMALL:
            break
    return {name: float(f"{math.exp(value):.4g}") for name, value in zip(names, logs, strict=True)}


def _slope(at: Callable[[Sequence[float]], Vector], logs: Vector, which: int, now: Vector) -> Vector:
    moved = at([value + DELTA * (i == which) for i, value in enumerate(logs)])
    return [(then - before) / DELTA for then, before in zip(moved, now, strict=True)]


def _step(slopes: Sequence[Vector], now: Vector, logs: Vector, prior: Vector) -> Vector:
    weights = [(FREEDOM + 1) / (FREEDOM + one * one) for one in now]
    pulled = [[w * s for w, s in zip(weights, slope, strict=True)] for slope in slopes]
    matrix = [[math.fsum(map(_times, row, slope)) for slope in slopes] for row in pulled]
    for i, width in enumerate(prior):
        matrix[i][i] += 1 / width**2
    right = [math.fsum(map(_times, row, now)) + value / width**2 for row, value, width in zip(pulled, logs, prior, strict=True)]
    return solve(matrix, right)


def _times(a: float, b: float) -> float:
    return a * b


def solve(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> Vector:
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    size = len(rows)
    for i in range(size):
        for j in range(i + 1, size):
            share = rows[j][i] / rows[i][i]
            rows[j] = [a - share * b for a, b in zip(rows[j], rows[i], strict=True)]
    found = [0.0] * size
    for i in reversed(range(size)):
        found[i] = (rows[i][size] - math.fsum(rows[i][j] * found[j] for j in range(i + 1, size))) / rows[i][i]
    return found
