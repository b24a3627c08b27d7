# isoflop/akima.py without its comments
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainwright.isoflop.approach2 import line
from trainwright.isoflop.newton import Array

FINE = 25
_FLOOR = 0.33


@dataclass(frozen=True, slots=True, eq=False)
class AkimaFit:

    flops: Array
    params: Array
    sd: Array
    interior: Array
    exponent: float
    intercept: float
    replicates: Array


def interpolate(x: Array, y: Array, at: Array) -> Array:
    h = np.diff(x)
    m = np.diff(y, axis=1) / h
    slopes = np.concatenate([np.zeros((len(y), 2)), m, np.zeros((len(y), 2))], axis=1)
    slopes[:, 1] = 2 * slopes[:, 2] - slopes[:, 3] if m.shape[1] > 1 else m[:, 0]
    slopes[:, 0] = 2 * slopes[:, 1] - slopes[:, 2]
    slopes[:, -2] = 2 * slopes[:, -3] - slopes[:, -4] if m.shape[1] > 1 else m[:, 0]
    slopes[:, -1] = 2 * slopes[:, -2] - slopes[:, -3]
    change = np.abs(np.diff(slopes, axis=1))
    right, left = change[:, 2:], change[:, :-2]
    total = right + left
    plain = (slopes[:, 3:] + slopes[:, :-3]) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        t = (right * slopes[:, 1:-2] + left * slopes[:, 2:-1]) / total
    t = np.where(total > 1e-9 * np.max(total, initial=0.0), t, plain)
    i = np.clip(np.searchsorted(x, at, side="right") - 1, 0, len(h) - 1)
    s = at - x[i]
    c2 = (3 * m - 2 * t[:, :-1] - t[:, 1:]) / h
    c3 = (t[:, :-1] + t[:, 1:] - 2 * m) / h**2
    return np.asarray(y[:, i] + s * (t[:, i] + s * (c2[:, i] + s * c3[:, i])))


def porian(params: Array, loss: Array, budgets: Array, noise: float, replicates: int, rng: np.random.Generator) -> AkimaFit:
    flops = np.unique(budgets)
    stars = np.full((len(flops), replicates), np.nan)
    floor = np.full(len(flops), np.nan)
    for k, budget in enumerate(flops):
        rows = budgets == budget
        sizes, lowest = _lowest(params[rows], loss[rows])
        if len(sizes) < 3:
            continue
        noisy = lowest + noise * rng.normal(size=(replicates, len(sizes)))
        stars[k] = _argmin(np.log(sizes), np.log(np.maximum(noisy, 1e-12)))
        floor[k] = _FLOOR * np.log(sizes[-1] / sizes[0]) / (len(sizes) - 1)
        if not np.isfinite(_argmin(np.log(sizes), np.log(lowest)[None])[0]):
            stars[k] = np.nan
    interior = np.isfinite(stars).mean(1)
    standing = interior >= 0.5
    centre, sd = np.full(len(flops), np.nan), np.full(len(flops), np.nan)
    for k in np.flatnonzero(standing).tolist():
        centre[k] = np.nanmedian(stars[k])
        sd[k] = max(np.nanstd(stars[k]), floor[k]) / interior[k]
    log_c, weights = np.log(flops[standing]), 1 / sd[standing] ** 2
    if standing.sum() < 2:
        return AkimaFit(flops, np.exp(centre), sd, interior, float("nan"), float("nan"), np.zeros(0))
    slope, intercept = line(log_c, centre[None, standing], weights)
    each, _ = line(log_c, stars[standing].T, np.where(np.isfinite(stars[standing].T), weights, 0.0))
    return AkimaFit(flops, np.exp(centre), sd, interior, float(slope[0]), float(intercept[0]), each)


def _lowest(params: Array, loss: Array) -> tuple[Array, Array]:
    sizes, which = np.unique(params, return_inverse=True)
    return sizes, np.array([loss[which == k].min() for k in range(len(sizes))])


def _argmin(x: Array, y: Array) -> Array:
    grid = np.linspace(x[0], x[-1], (len(x) - 1) * FINE)
    at: NDArray[np.intp] = np.argmin(interpolate(x, y, grid), axis=1)
    return np.where((at > 0) & (at < len(grid) - 1), grid[at], np.nan)
