"""The fit of factors: exact where the rows tell, still where they do not, deaf to single wild rows."""

from __future__ import annotations

import math
import random

import pytest

from trainwright.plan.fitting import fit, solve


def test_solve() -> None:
    rng = random.Random(1)
    for size in (1, 2, 7):
        base = [[rng.gauss(0, 1) for _ in range(size)] for _ in range(size)]
        matrix = [[sum(base[k][i] * base[k][j] for k in range(size)) + (i == j) for j in range(size)] for i in range(size)]
        wanted = [rng.gauss(0, 1) for _ in range(size)]
        right = [sum(matrix[i][j] * wanted[j] for j in range(size)) for i in range(size)]
        assert solve(matrix, right) == pytest.approx(wanted)


def rows(count: int, seed: int = 0) -> list[tuple[float, float]]:
    """Shares of two kinds of time in each of some runs."""
    rng = random.Random(seed)
    return [(rng.uniform(0.5, 1), rng.uniform(0, 0.5)) for _ in range(count)]


def errors(found: dict[str, float], shares: list[tuple[float, float]], truth: tuple[float, float]) -> list[float]:
    return [math.log((a * found["a"] + b * found["b"]) / (a * truth[0] + b * truth[1])) for a, b in shares]


def test_factors_are_found() -> None:
    shares = rows(40)
    found = fit(lambda f: errors(f, shares, (1.3, 0.6)), {"a": 1.0, "b": 1.0}, 0.01)
    assert found["a"] == pytest.approx(1.3, rel=0.01) and found["b"] == pytest.approx(0.6, rel=0.02)


def test_one_wild_row_does_not_pull() -> None:
    shares = rows(20)

    def residuals(factors: dict[str, float]) -> list[float]:
        found = errors(factors, shares, (1.2, 1.0))
        return [found[0] + 1.0, *found[1:]]

    found = fit(residuals, {"a": 1.0, "b": 1.0}, 0.02)
    assert found["a"] == pytest.approx(1.2, rel=0.02)


def test_what_no_row_tells_stays() -> None:
    found = fit(lambda f: [math.log(f["a"] / 1.1)], {"a": 0.3, "b": 0.3}, 0.02)
    assert found["b"] == 1.0 and found["a"] == pytest.approx(1.1, rel=0.01)
