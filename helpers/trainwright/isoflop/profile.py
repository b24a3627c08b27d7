"""How the objective of approach 3 rises when the exponent is held at other values, and how the answer moves with Huber's delta."""

from __future__ import annotations

import numpy as np

from trainwright.isoflop import approach3
from trainwright.isoflop.approach3 import SurfaceFit
from trainwright.isoflop.newton import Array
from trainwright.isoflop.surface import solve

DELTAS = (1e-4, 1e-3, 1e-2, 1e-1, float("inf"))
_CHI2_95 = 3.841459  # of one degree of freedom


def profile(found: SurfaceFit, loss: Array, points: int = 41) -> tuple[Array, Array]:
    """Exponents a and the least objective at each, from 0.25 below the fit to 0.25 above, inside (0.02, 0.98)."""
    best = found.surface.exponent
    grid = np.unique(np.clip(np.append(np.linspace(best - 0.25, best + 0.25, points), best), 0.02, 0.98))
    middle = int(np.argmin(np.abs(grid - best)))
    values = np.empty(len(grid))
    for order in (range(middle, len(grid)), range(middle - 1, -1, -1)):
        point = found.point
        for k in order:
            point, values[k] = _held(found, loss, float(grid[k]), point)
    return grid, values


def _held(found: SurfaceFit, loss: Array, a: float, start: Array) -> tuple[Array, float]:
    """The best point with beta = alpha a / (1 - a), from `start` and from the fit."""
    ratio = a / (1 - a)
    free = np.zeros((5, 4))
    free[[0, 1, 3, 2, 4], [0, 1, 1, 2, 3]] = [1.0, 1.0, ratio, 1.0, 1.0]
    if found.free.shape[1] in (3, 4) and not found.free[4].any():
        free = free[:, :3]
    starts = []
    for point in (start, found.point):
        alpha = float(point[1] + point[3]) / (1 + ratio)
        starts.append([point[0], alpha, point[2], alpha * ratio, point[4]])
    minima = solve(found.design, np.log(loss)[None], np.ones((1, len(loss))), np.array(starts), found.delta, free, 200, 1e-11)
    k = minima.best()
    return minima.points[k], float(minima.values[k])


def profile_interval(found: SurfaceFit, loss: Array, grid: Array, values: Array) -> tuple[float | None, float | None]:
    """Where the scaled rise stays below the 95 % point of chi-squared; None at a side where it never gets there.

    The scale is that of M-estimates: the mean square of psi over the mean of its derivative (Ronchetti's rho test).
    """
    residual = approach3.residuals(found, loss)
    psi = np.clip(residual, -found.delta, found.delta)
    slope = float((np.abs(residual) < found.delta).mean())
    n, unknowns = len(loss), found.free.shape[1]
    if n <= unknowns or not slope:
        return None, None
    scale = float(psi @ psi) / (n - unknowns) / slope
    inside = 2 * (values - values.min()) / max(scale, 1e-300) <= _CHI2_95
    low, high = int(np.argmax(inside)), len(grid) - 1 - int(np.argmax(inside[::-1]))
    return (float(grid[low]) if low > 0 else None), (float(grid[high]) if high < len(grid) - 1 else None)


def delta_sensitivity(params: Array, tokens: Array, loss: Array, tied: bool, fixed_e: float | None) -> list[dict[str, float]]:
    """The fit at several deltas: delta, exponent a, E, alpha, beta."""
    rows = []
    for delta in DELTAS:
        surface = approach3.fit(params, tokens, loss, delta, tied, fixed_e).surface
        rows.append({"delta": delta, "a": surface.exponent, "E": surface.E, "alpha": surface.alpha, "beta": surface.beta})
    return rows
