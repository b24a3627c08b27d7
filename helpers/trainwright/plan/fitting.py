"""Robust least squares in logarithms with a prior: few rows leave what they do not tell where it was.

Minimises the sum of rho(residual / noise) + (log factor / width)^2, rho the Student-t loss of FREEDOM degrees, by Gauss-Newton steps on
reweighted residuals with a numerical Jacobian.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

FREEDOM = 4.0
ROUNDS = 12
DELTA = 0.02  # of a numerical derivative, in logarithms
LONGEST_STEP = 0.5  # in logarithms


def fit(residuals: Callable[[dict[str, float]], list[float]], widths: Mapping[str, float], noise: float) -> dict[str, float]:
    """The factor of each name in `widths`; `residuals` are logarithms of predicted over measured at given factors."""
    import numpy as np

    names, prior = list(widths), np.array(list(widths.values()))
    logs = np.zeros(len(names))

    def at(values: np.ndarray) -> np.ndarray:
        return np.array(residuals({name: math.exp(value) for name, value in zip(names, values, strict=True)})) / noise

    now = at(logs)
    for _ in range(ROUNDS):
        weights = (FREEDOM + 1) / (FREEDOM + now**2)
        slopes = np.stack([(at(logs + DELTA * unit) - now) / DELTA for unit in np.eye(len(names))], axis=1)
        normal = slopes.T @ (weights[:, None] * slopes) + np.diag(1 / prior**2)
        step = np.linalg.solve(normal, slopes.T @ (weights * now) + logs / prior**2)
        step *= min(1.0, LONGEST_STEP / max(float(np.abs(step).max()), 1e-12))
        logs = logs - step
        now = at(logs)
        if float(np.abs(step).max()) < 1e-3:
            break
    return {name: float(f"{math.exp(value):.4g}") for name, value in zip(names, logs, strict=True)}
