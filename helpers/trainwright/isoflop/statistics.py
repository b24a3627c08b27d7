"""The few distributions that intervals need, without scipy: quantiles of t by its inverse series and of the normal."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from trainwright.isoflop.newton import Array


def t_quantile(level: float, degrees: float) -> float:
    """The two-sided quantile of Student's t: P(|T| <= t) = level. Bisection on the distribution function; infinite without degrees."""
    if degrees <= 0:
        return math.inf
    if degrees > 1e5:
        return NormalDist().inv_cdf(0.5 + level / 2)
    low, high = 0.0, 1e3
    while t_probability(high, degrees) < level and high < 1e300:
        high *= 1e3
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if t_probability(middle, degrees) < level else (low, middle)
    return (low + high) / 2


def t_probability(t: float, degrees: float) -> float:
    """P(|T| <= t) for Student's t, by the regularised incomplete beta function."""
    return 1 - _beta(degrees / (degrees + t * t), degrees / 2, 0.5)


def f_tail(value: float, above: float, below: float) -> float:
    """P(F > value) with (above, below) degrees of freedom."""
    if not value > 0 or above <= 0 or below <= 0:
        return 1.0
    return _beta(below / (below + above * value), below / 2, above / 2)


def _beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by Lentz's continued fraction."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    c, d = 1.0, 1 / _away(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, 500):
        for factor in (m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)), -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))):
            c, d = _away(1 + factor / c), 1 / _away(1 + factor * d)
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return front * value


def _away(value: float) -> float:
    return value if abs(value) > 1e-300 else 1e-300


def interval(values: Array, level: float = 0.95) -> tuple[float, float]:
    """The percentile interval of what is finite; NaN where nothing is."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return float("nan"), float("nan")
    low, high = np.quantile(finite, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def huber_ratio(held: float, best: float, rows: int, delta: float) -> tuple[float, float] | None:
    """The likelihood ratio statistic of two objectives and its p against chi-squared of five degrees of freedom; None for least squares.

    The density of a residual r is exp(-Huber(r) / t) over its integral, with the t that is likeliest for each.
    """
    if not math.isfinite(delta) or held <= 0 or best <= 0:
        return None
    statistic = 2 * (_least_unlikely(held, rows, delta) - _least_unlikely(best, rows, delta))
    x = max(statistic, 0.0)
    return statistic, math.erfc(math.sqrt(x / 2)) + math.sqrt(2 * x / math.pi) * math.exp(-x / 2) * (1 + x / 3)


def _least_unlikely(objective: float, rows: int, delta: float) -> float:
    """The least negative log likelihood over t, by golden section on ln t."""

    def unlikely(log_t: float) -> float:
        t = math.exp(log_t)
        inner = math.sqrt(2 * math.pi * t) * math.erf(delta / math.sqrt(2 * t))
        return objective / t + rows * math.log(inner + 2 * t / delta * math.exp(-delta * delta / (2 * t)))

    middle = math.log(objective / rows)
    low, high, golden = middle - 8.0, middle + 8.0, (math.sqrt(5) - 1) / 2
    for _ in range(80):
        one, other = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, other) if unlikely(one) < unlikely(other) else (one, high)
    return unlikely((low + high) / 2)
