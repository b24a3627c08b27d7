"""Approach 3: the surface fitted to every row at once, by Huber loss on the logarithm, from cold starts.

Hoffmann et al. 2022, section 3.3 and appendix D.3; Besiroglu et al. 2024 repeat it. Least squares on ln L is the same with an
infinite delta. The starts are a grid over (alpha, beta) with A, B and E found by linear least squares: none is near an answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from trainwright.isoflop.newton import Array
from trainwright.isoflop.surface import FREE, TIED, Design, Surface, huber, solve
from trainwright.isoflop.vpnls import linear_part

DELTA = 1e-3
_FIRST, _AHEAD = 100, 8  # iterations of every start, and how many of the best go on until they have converged
_MANY = 4000  # rows; more are fitted whole only from the best starts on a part of them
EXPONENTS = (0.05, 0.1, 0.2, 0.35, 0.55, 0.85, 1.3, 2.0)


@dataclass(frozen=True, slots=True, eq=False)
class SurfaceFit:
    """A fitted surface with what its bootstraps start from; `starts_agreeing` counts the cold starts that ended at the same value."""

    surface: Surface
    objective: float
    point: Array
    design: Design
    free: Array
    delta: float
    starts: int
    starts_agreeing: int
    converged: bool


def free_columns(tied: bool, fixed_e: bool) -> Array:
    """The directions in which the unknowns (a, alpha, b, beta, e) may move."""
    columns = TIED if tied else FREE
    return columns[:, :-1] if fixed_e else columns


def fit(
    params: Array,
    tokens: Array,
    loss: Array,
    delta: float = DELTA,
    tied: bool = False,
    fixed_e: float | None = None,
    w: Array | None = None,
) -> SurfaceFit:
    """The best of all starts; `tied` keeps alpha = beta, `fixed_e` holds the irreducible loss."""
    design = Design.of(params, tokens)
    free = free_columns(tied, fixed_e is not None)
    starts = cold_starts(design, loss, tied, fixed_e)
    weights = np.ones((1, len(loss))) if w is None else w[None]
    part, rows = _sampled(design)
    first = solve(part, np.log(loss[rows])[None], weights[:, rows], starts, delta, free, iterations=_FIRST, tolerance=1e-13)
    ahead = first.points[np.argsort(first.values, kind="stable")[: _AHEAD if len(rows) == len(loss) else 2]]
    found = solve(design, np.log(loss)[None], weights, ahead, delta, free, iterations=400, tolerance=1e-13)
    best = found.best()
    goal = found.values[best] if len(rows) == len(loss) else first.values.min()
    agreeing = int((first.values <= goal * (1 + 1e-6) + 1e-18).sum())
    surface = Surface(*map(float, design.surfaces(found.points[best : best + 1])[0]))
    return SurfaceFit(
        surface, float(found.values[best]), found.points[best], design, free, delta, len(starts), agreeing, bool(found.converged[best])
    )


def _sampled(design: Design) -> tuple[Design, NDArray[np.intp]]:
    """Every row, or of very many an even part, on the same centre: all starts try the part, the best go on with every row."""
    rows = np.arange(len(design.x))
    if len(rows) <= _MANY:
        return design, rows
    rows = rows[:: -(-len(rows) // _MANY)]
    return Design(design.x[rows], design.z[rows], design.centre, design.basis[rows]), rows


def cold_starts(design: Design, loss: Array, tied: bool, fixed_e: float | None, exponents: tuple[float, ...] = EXPONENTS) -> Array:
    """One start [5] per pair of exponents, the linear coefficients by least squares on relative residuals; none may vanish at the start."""
    pairs = np.array([(a, b) for a, b in product(exponents, exponents) if not tied or a == b])
    part, rows = _sampled(design)
    linear = linear_part(part, loss[rows], 1 / loss[rows] ** 2, pairs, fixed_e)
    least = 1e-3 * loss.min()
    e, a, b = np.maximum(linear, least).T
    if fixed_e is not None:
        e = np.full(len(pairs), fixed_e)
    return np.stack([np.log(a), pairs[:, 0], np.log(b), pairs[:, 1], np.log(e)], axis=1)


def refit(found: SurfaceFit, y: Array, w: Array) -> tuple[Array, Array]:
    """Surfaces [R, 5] and objectives [R] of replicates: y = ln L and weights w, each [1, n] or [R, n]; all start at the fit."""
    count = max(len(y), len(w))
    starts = np.repeat(found.point[None], count, axis=0)
    minima = solve(found.design, y, w, starts, found.delta, found.free, iterations=100, tolerance=1e-9)
    return found.design.surfaces(minima.points), minima.values


def residuals(found: SurfaceFit, loss: Array) -> Array:
    """ln L minus its fit, per row."""
    a, alpha, b, beta, e = found.point
    design = found.design
    return np.asarray(np.log(loss) - np.log(np.exp(a - alpha * design.x) + np.exp(b - beta * design.z) + np.exp(e)))


def jacobian(design: Design, point: Array) -> Array:
    """d ln L / d (a, alpha, b, beta, e) per row, [n, 5]."""
    a, alpha, b, beta, e = point
    term_a, term_b = np.exp(a - alpha * design.x), np.exp(b - beta * design.z)
    total = term_a + term_b + np.exp(e)
    share_a, share_b = term_a / total, term_b / total
    return np.stack([share_a, -share_a * design.x, share_b, -share_b * design.z, 1 - share_a - share_b], axis=1)


def objective(surface: Surface, params: Array, tokens: Array, loss: Array, delta: float = DELTA) -> float:
    """The Huber sum of printed parameters, for instance of a published fit."""
    design = Design.of(params, tokens)
    point = design.unknowns(np.array([[surface.E, surface.A, surface.B, surface.alpha, surface.beta]]))
    return float(huber(design, np.log(loss)[None], np.ones((1, len(loss))), point, delta)[0][0])
