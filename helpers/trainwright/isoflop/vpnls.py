"""VPNLS: variable projection with non-negative least squares, on the raw loss.

For fixed exponents the surface is linear in (E, A, B), which are found in closed form with none below zero; what remains is a
smooth problem in (alpha, beta), solved by Newton's method with the exact reduced Hessian. The objective is the sum of squared
residuals of the loss itself: another estimator than approach 3, and named so (the Gaussian likelihood of additive noise).

Legend: x = ln N - mean, z = ln D - mean; columns 1, exp(-alpha x), exp(-beta z) and coefficients c = (E, A', B'), A' = A exp(-alpha mean).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from trainwright.isoflop.newton import Array, Derivatives, Minima, minimise
from trainwright.isoflop.surface import Design, Surface

_CHUNK, _MANY = 24_000, 4000
_SUBSETS = [subset for size in (3, 2, 1) for subset in combinations(range(3), size)]
GRID = np.array([(a, b) for a in (0.05, 0.15, 0.3, 0.5, 0.8, 1.3) for b in (0.05, 0.15, 0.3, 0.5, 0.8, 1.3)])


@dataclass(frozen=True, slots=True, eq=False)
class VpnlsFit:
    """The surface, its sum of squares, and the exponents its bootstraps start from."""

    surface: Surface
    objective: float
    point: Array
    design: Design
    fixed_e: float | None


def columns(design: Design, exponents: Array) -> tuple[Array, Array]:
    """exp(-alpha x) and exp(-beta z), each [R, n], for exponents [R, 2]."""
    bounded = np.clip(exponents, -20.0, 20.0)
    with np.errstate(over="ignore"):
        return np.exp(np.outer(bounded[:, 0], -design.x)), np.exp(np.outer(bounded[:, 1], -design.z))


def linear_part(design: Design, loss: Array, w: Array, exponents: Array, fixed_e: float | None = None) -> Array:
    """Non-negative least squares for (E, A', B') at each pair of exponents: [R, 3]. loss and w are [n] or [R, n]."""
    u, v = columns(design, exponents)
    return _coefficients(u, v, np.broadcast_to(loss, u.shape), np.broadcast_to(w, u.shape), fixed_e)[0]


def _coefficients(u: Array, v: Array, y: Array, w: Array, fixed_e: float | None) -> tuple[Array, Array]:
    """(E, A', B') [R, 3] and the sum of squares [R]; the best subset of columns whose coefficients are all positive."""
    parts = (np.ones_like(u), u, v)
    gram = np.stack([np.stack([np.einsum("rn,rn,rn->r", w, a, b) for b in parts], -1) for a in parts], -2)
    if fixed_e is not None:
        y = y - fixed_e
    moments = np.stack([np.einsum("rn,rn,rn->r", w, a, y) for a in parts], -1)
    best, gain = np.zeros((len(u), 3)), np.zeros(len(u))
    for subset in _SUBSETS:
        if fixed_e is not None and 0 in subset:
            continue
        solution = _solve_subset(gram, moments, subset)
        won = np.einsum("ri,ri->r", solution, moments)
        better = (solution[:, subset] > 0).all(1) & (won > gain)
        best[better], gain[better] = solution[better], won[better]
    if fixed_e is not None:
        best[:, 0] = fixed_e
    residual = y - (0.0 if fixed_e is not None else best[:, :1]) - best[:, 1:2] * u - best[:, 2:] * v
    return best, np.einsum("rn,rn,rn->r", w, residual, residual)


def _solve_subset(gram: Array, moments: Array, subset: tuple[int, ...]) -> Array:
    """Least squares in some of the columns, the others zero; a singular system gives zeros."""
    index = list(subset)
    matrix, right = gram[:, index][:, :, index], moments[:, index]
    root = np.sqrt(np.maximum(np.einsum("rii->ri", matrix), 1e-300))
    scaled = matrix / root[:, :, None] / root[:, None, :] + 1e-13 * np.eye(len(index))
    solution = np.zeros((len(gram), 3))
    solution[:, index] = np.linalg.solve(scaled, (right / root)[..., None])[..., 0] / root
    return np.nan_to_num(solution, nan=0.0, posinf=0.0, neginf=0.0)


def reduced(design: Design, y: Array, w: Array, exponents: Array, fixed_e: float | None) -> Derivatives:
    """Half the sum of squares [R] with E, A, B at their best, its gradient and Hessian in (alpha, beta).

    The gradient is that of the full problem (the envelope theorem); the Hessian is its Schur complement.
    """
    u, v = columns(design, exponents)
    y, w = np.broadcast_to(y, u.shape), np.broadcast_to(w, u.shape)
    c, squares = _coefficients(u, v, y, w, fixed_e)
    term_a, term_b = c[:, 1:2] * u, c[:, 2:] * v
    wr = w * (y - c[:, :1] - term_a - term_b)
    da, db = term_a * -design.x, term_b * -design.z
    gradients = -np.stack([(wr * da).sum(1), (wr * db).sum(1)], 1)
    outer = np.stack([da, db], 1)
    inner = np.stack([np.ones_like(u), u, v], 1) * ((c > 0) & [fixed_e is None, True, True])[:, :, None]
    weighted = outer * w[:, None]
    tt = weighted @ outer.transpose(0, 2, 1)
    tt[:, 0, 0] -= (wr * term_a) @ design.x**2
    tt[:, 1, 1] -= (wr * term_b) @ design.z**2
    tl = weighted @ inner.transpose(0, 2, 1)
    tl[:, 0, 1] -= (wr * u) @ -design.x * (c[:, 1] > 0)
    tl[:, 1, 2] -= (wr * v) @ -design.z * (c[:, 2] > 0)
    ll = (inner * w[:, None]) @ inner.transpose(0, 2, 1)
    ll += np.einsum("ri,ij->rij", np.einsum("rii->ri", ll) * 1e-13 + (np.einsum("rii->ri", ll) == 0), np.eye(3))
    return squares / 2, gradients, tt - tl @ np.linalg.solve(ll, tl.transpose(0, 2, 1))


def solve(design: Design, y: Array, w: Array, starts: Array, fixed_e: float | None, iterations: int, tolerance: float) -> Minima:
    """Minimise over exponents from `starts` [R, 2]; y = L and w are [1, n] or [R, n]."""
    rows = max(1, _CHUNK // len(design.x))
    parts = []
    for first in range(0, len(starts), rows):
        y_part = y if len(y) == 1 else y[first : first + rows]
        w_part = w if len(w) == 1 else w[first : first + rows]

        def objective(t: Array, which: NDArray[np.intp], y_part: Array = y_part, w_part: Array = w_part) -> Derivatives:
            y_here, w_here = (values if len(values) == 1 else values[which] for values in (y_part, w_part))
            return reduced(design, y_here, w_here, t, fixed_e)

        parts.append(minimise(objective, starts[first : first + rows], np.ones(2), iterations, tolerance))
    return Minima(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("points", "values", "converged")))


def fit(params: Array, tokens: Array, loss: Array, fixed_e: float | None = None) -> VpnlsFit:
    """The best of 36 starts over a grid of exponents; the objective is the full sum of squares."""
    design = Design.of(params, tokens)
    step = -(-len(loss) // _MANY)  # of very many rows an even part finds the start
    part = Design(design.x[::step], design.z[::step], design.centre, design.basis[::step])
    found = solve(part, loss[None, ::step], np.ones((1, len(part.x))), GRID, fixed_e, 200, 1e-13)
    if step > 1:
        found = solve(design, loss[None], np.ones((1, len(loss))), found.points[[found.best()]], fixed_e, 200, 1e-13)
    best = found.best()
    surfaces = surfaces_of(design, loss[None], np.ones((1, len(loss))), found.points[best : best + 1], fixed_e)
    return VpnlsFit(Surface(*map(float, surfaces[0])), float(2 * found.values[best]), found.points[best], design, fixed_e)


def refit(found: VpnlsFit, y: Array, w: Array) -> tuple[Array, Array]:
    """Surfaces [R, 5] and objectives [R] of replicates that all start at the fit; y = L."""
    starts = np.repeat(found.point[None], max(len(y), len(w)), axis=0)
    minima = solve(found.design, y, w, starts, found.fixed_e, 60, 1e-9)
    return surfaces_of(found.design, y, w, minima.points, found.fixed_e), 2 * minima.values


def surfaces_of(design: Design, y: Array, w: Array, exponents: Array, fixed_e: float | None) -> Array:
    """(E, A, B, alpha, beta) [R, 5] at given exponents."""
    rows = max(1, _CHUNK // len(design.x))
    parts = []
    for k in range(0, len(exponents), rows):
        t = exponents[k : k + rows]
        parts.append(linear_part(design, y if len(y) == 1 else y[k : k + rows], w if len(w) == 1 else w[k : k + rows], t, fixed_e))
    e, a, b = np.concatenate(parts).T
    with np.errstate(over="ignore"):
        big_a, big_b = a * np.exp(exponents[:, 0] * design.centre[0]), b * np.exp(exponents[:, 1] * design.centre[1])
    return np.stack([e, big_a, big_b, exponents[:, 0], exponents[:, 1]], axis=1)
