# isoflop/profile.py without its comments
from __future__ import annotations

import numpy as np

from trainwright.isoflop import approach3
from trainwright.isoflop.approach3 import SurfaceFit
from trainwright.isoflop.newton import Array
from trainwright.isoflop.surface import Surface, solve

DELTAS = (1e-4, 1e-3, 1e-2, 1e-1, float("inf"))
_CHI2_95 = 3.841459


def profile(found: SurfaceFit, loss: Array, points: int = 41) -> tuple[Array, Array]:
    best = found.surface.exponent
    centre, reach = (best, 0.25) if 0.02 < best < 0.98 else (0.5, 0.48)
    steps = np.linspace(-1, 1, points)
    grid = np.unique(np.clip(np.append(centre + reach * np.sign(steps) * np.abs(steps) ** 1.5, centre), 0.02, 0.98))
    ratio = grid / (1 - grid)
    free = np.zeros((len(grid), 5, 4))
    free[:, [0, 1, 2, 4], [0, 1, 2, 3]] = 1.0
    free[:, 3, 1] = ratio
    if not found.free[4].any():
        free = free[:, :, :3]
    total = max(float(found.point[1] + found.point[3]), 0.2)
    starts = []
    for factor in (1.0, 0.6, 1.6):
        start = np.repeat(found.point[None], len(grid), axis=0)
        start[:, 1] = factor * total / (1 + ratio)
        start[:, 3] = start[:, 1] * ratio
        starts.append(start)
    every, once = np.tile(free, (3, 1, 1)), np.ones((1, len(loss)))
    minima = solve(found.design, np.log(loss)[None], once, np.concatenate(starts), found.delta, every, 150, 1e-11)
    return grid, np.asarray(minima.values.reshape(3, len(grid)).min(0))


def profile_interval(found: SurfaceFit, loss: Array, grid: Array, values: Array) -> tuple[float | None, float | None]:
    residual = approach3.residuals(found, loss)
    psi = np.clip(residual, -found.delta, found.delta)
    slope = float((np.abs(residual) < found.delta).mean())
    n, unknowns = len(loss), found.free.shape[1]
    values = np.nan_to_num(values, nan=np.inf)
    if n <= unknowns or not slope or not np.isfinite(values).any():
        return None, None
    scale = float(psi @ psi) / (n - unknowns) / slope
    root = np.sqrt(2 * (values - values.min()) / max(scale, 1e-300)) - np.sqrt(_CHI2_95)
    return _crossing(grid[::-1], root[::-1]), _crossing(grid, root)


def _crossing(grid: Array, root: Array) -> float | None:
    last = int(np.flatnonzero(root <= 0)[-1])
    if last == len(grid) - 1:
        return None
    share = -root[last] / (root[last + 1] - root[last])
    return float(grid[last] + share * (grid[last + 1] - grid[last]))


def delta_sensitivity(found: SurfaceFit, loss: Array) -> list[dict[str, float]]:
    held = float(np.exp(found.point[4])) if not found.free[4].any() else None
    tied = found.free.shape[1] == 4 - (held is not None)
    cold = approach3.cold_starts(found.design, loss, tied, held, (0.1, 0.35, 0.85))
    starts = np.concatenate([found.point[None], cold])
    rows = []
    for delta in DELTAS:
        minima = solve(found.design, np.log(loss)[None], np.ones((1, len(loss))), starts, delta, found.free, 300, 1e-12)
        surface = Surface(*map(float, found.design.surfaces(minima.points)[minima.best()]))
        rows.append({"delta": delta, "a": surface.exponent, "E": surface.E, "alpha": surface.alpha, "beta": surface.beta})
    return rows
