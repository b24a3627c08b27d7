# isoflop/approach3.py without its comments
from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from trainwright.isoflop.newton import Array
from trainwright.isoflop.surface import FREE, TIED, Design, Surface, huber, solve
from trainwright.isoflop.vpnls import linear_part

DELTA = 1e-3
_FIRST, _AHEAD = 100, 8
_MANY = 4000
EXPONENTS = (0.05, 0.1, 0.2, 0.35, 0.55, 0.85, 1.3, 2.0)


@dataclass(frozen=True, slots=True, eq=False)
class SurfaceFit:

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
    rows = np.arange(len(design.x))
    if len(rows) <= _MANY:
        return design, rows
    rows = rows[:: -(-len(rows) // _MANY)]
    return Design(design.x[rows], design.z[rows], design.centre, design.basis[rows]), rows


def cold_starts(design: Design, loss: Array, tied: bool, fixed_e: float | None, exponents: tuple[float, ...] = EXPONENTS) -> Array:
    pairs = np.array([(a, b) for a, b in product(exponents, exponents) if not tied or a == b])
    part, rows = _sampled(design)
    linear = linear_part(part, loss[rows], 1 / loss[rows] ** 2, pairs, fixed_e)
    least = 1e-3 * loss.min()
    e, a, b = np.maximum(linear, least).T
    if fixed_e is not None:
        e = np.full(len(pairs), fixed_e)
    return np.stack([np.log(a), pairs[:, 0], np.log(b), pairs[:, 1], np.log(e)], axis=1)


def refit(found: SurfaceFit, y: Array, w: Array) -> tuple[Array, Array]:
    count = max(len(y), len(w))
    starts = np.repeat(found.point[None], count, axis=0)
    minima = solve(found.design, y, w, starts, found.delta, found.free, iterations=100, tolerance=1e-9)
    return found.design.surfaces(minima.points), minima.values


def residuals(found: SurfaceFit, loss: Array) -> Array:
    a, alpha, b, beta, e = found.point
    design = found.design
    return np.asarray(np.log(loss) - np.log(np.exp(a - alpha * design.x) + np.exp(b - beta * design.z) + np.exp(e)))


def jacobian(design: Design, point: Array) -> Array:
    a, alpha, b, beta, e = point
    term_a, term_b = np.exp(a - alpha * design.x), np.exp(b - beta * design.z)
    total = term_a + term_b + np.exp(e)
    share_a, share_b = term_a / total, term_b / total
    return np.stack([share_a, -share_a * design.x, share_b, -share_b * design.z, 1 - share_a - share_b], axis=1)


def objective(surface: Surface, params: Array, tokens: Array, loss: Array, delta: float = DELTA) -> float:
    design = Design.of(params, tokens)
    point = design.unknowns(np.array([[surface.E, surface.A, surface.B, surface.alpha, surface.beta]]))
    return float(huber(design, np.log(loss)[None], np.ones((1, len(loss))), point, delta)[0][0])
