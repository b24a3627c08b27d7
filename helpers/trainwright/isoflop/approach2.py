"""Approach 2: a parabola per budget, its minimum N*, and a line through ln N* against ln C (Hoffmann et al. 2022, section 3.2).

Legend: per budget L = p x^2 + q x + r, x = ln N - mean; x* = -q / 2p. Replicates [R] are solved together: losses y and weights w
are [1, n] or [R, n]. A budget is refused where its parabola shows no minimum that one may believe, and says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trainwright.isoflop.newton import Array
from trainwright.isoflop.statistics import t_quantile

LEAST_POINTS = 4
_LEVEL = 0.95


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The rows of one budget."""

    flops: float
    rows: NDArray[np.intp]
    x: Array
    centre: float
    log_d: Array  # coefficients of ln D as a parabola in x: what D goes with N*

    @property
    def distinct(self) -> int:
        return len(np.unique(self.x))

    @property
    def half_step(self) -> float:
        sizes = np.unique(self.x)
        return float(np.median(np.diff(sizes)) / 2) if len(sizes) > 1 else 0.0

    @property
    def spread(self) -> float:
        """Largest N over smallest N."""
        return float(np.exp(np.ptp(self.x)))


@dataclass(frozen=True, slots=True)
class Minimum:
    """What one budget's parabola says: N*, D*, the loss there, the sd of ln N*, or why it is refused."""

    flops: float
    points: int
    spread: float
    curvature: float
    curvature_t: float
    params: float | None
    tokens: float | None
    loss: float | None
    sd: float | None
    flat: tuple[float, float] | None
    refused: str


@dataclass(frozen=True, slots=True, eq=False)
class ParabolaFit:
    """All budgets and the line through their minima: ln N* = intercept + slope ln C; None where fewer than two minima stand."""

    groups: Sequence[Group]
    minima: Sequence[Minimum]
    exponent: float | None
    intercept: float | None
    token_exponent: float | None
    sigma: float
    degrees: int
    weights: Array = field(default_factory=lambda: np.zeros(0))

    @property
    def kept(self) -> list[int]:
        return [i for i, minimum in enumerate(self.minima) if not minimum.refused]

    def optimal_params(self, flops: Array) -> Array | None:
        if self.exponent is None or self.intercept is None:
            return None
        return np.exp(self.intercept + self.exponent * np.log(flops))


def groups_of(params: Array, tokens: Array, budgets: Array) -> list[Group]:
    """One group a budget, in the order of the budgets."""
    groups = []
    for budget in np.unique(budgets):
        rows = np.flatnonzero(budgets == budget)
        log_n = np.log(params[rows])
        centre = float(log_n.mean())
        x = log_n - centre
        degree = min(2, len(np.unique(x)) - 1)
        log_d = np.zeros(3)
        log_d[2 - degree :] = np.polyfit(x, np.log(tokens[rows]), degree) if degree else [np.log(tokens[rows]).mean()]
        groups.append(Group(float(budget), rows, x, centre, log_d))
    return groups


def at_budget(params: Array, flops: Array, loss: Array, budgets: Array) -> tuple[Array, float | None]:
    """The losses carried to their budget where rows of one budget differ in FLOPs by more than 1 %, and the slope dL / d ln C used.

    The slope is common to all budgets and found with the parabolas: both L and ln C are first freed of what a parabola explains.
    """
    off = np.log(flops / budgets)
    if not len(off) or np.ptp(off) < 0.01:
        return loss, None
    top = bottom = 0.0
    for budget in np.unique(budgets):
        rows = np.flatnonzero(budgets == budget)
        x = np.log(params[rows]) - np.log(params[rows]).mean()
        if len(np.unique(x)) < LEAST_POINTS:
            continue
        basis = np.stack([x**2, x, np.ones_like(x)], 1)
        both = np.stack([off[rows], loss[rows]], 1)
        free = both - basis @ np.linalg.lstsq(basis, both, rcond=None)[0]
        top, bottom = top + float(free[:, 0] @ free[:, 1]), bottom + float(free[:, 0] @ free[:, 0])
    slope = top / bottom if bottom > 1e-12 else 0.0
    return loss - slope * off, slope


def parabolas(group: Group, y: Array, w: Array) -> Array:
    """Weighted least squares for (p, q, r), [R, 3]; NaN where fewer than three sizes carry weight."""
    rows = max(len(y), len(w))
    basis = np.stack([group.x**2, group.x, np.ones_like(group.x)], 1)
    weights = np.broadcast_to(w, (len(w), len(group.x)))
    gram = np.einsum("rn,ni,nj->rij", weights, basis, basis)
    moments = (weights * y) @ basis
    gram = np.broadcast_to(gram, (rows, 3, 3))
    scale = np.sqrt(np.einsum("rii->ri", gram))
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = gram / scale[:, :, None] / scale[:, None, :]
        singular = ~(np.abs(np.linalg.det(np.nan_to_num(scaled))) > 1e-10)
        scaled = np.where(singular[:, None, None], np.eye(3), scaled)
        found = np.linalg.solve(scaled, (moments / scale)[..., None])[..., 0] / scale
    return np.where(singular[:, None], np.nan, found)


def vertices(group: Group, coefficients: Array) -> tuple[Array, NDArray[np.bool_]]:
    """x* [R] and whether it is a minimum inside the sizes tried [R]."""
    p, q = coefficients[:, 0], coefficients[:, 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        at = -q / (2 * p)
        inside = (p > 0) & (at >= group.x.min()) & (at <= group.x.max())
    return at, inside


def fit(
    params: Array, tokens: Array, loss: Array, budgets: Array, weighted: bool = True, sigma: float | None = None, least: int = LEAST_POINTS
) -> ParabolaFit:
    """Parabolas, refusals and the line; `sigma` is the noise of the loss where repeats told it, else the pooled residuals tell."""
    groups = groups_of(params, tokens, budgets)
    solved = [parabolas(group, loss[None, group.rows], np.ones((1, len(group.rows))))[0] for group in groups]
    squares, degrees = _pooled(groups, solved, loss)
    noise = sigma if sigma is not None else float(np.sqrt(squares / degrees)) if degrees else float("nan")
    quantile = t_quantile(_LEVEL, degrees if sigma is None else 10**6)
    minima = [_minimum(group, c, noise, quantile, least) for group, c in zip(groups, solved, strict=True)]
    kept = [i for i, minimum in enumerate(minima) if not minimum.refused]
    if len(kept) < 2:
        return ParabolaFit(groups, minima, None, None, None, noise, degrees)
    weights = line_weights([minima[i].sd for i in kept]) if weighted else np.ones(len(kept))
    log_c = np.log([groups[i].flops for i in kept])
    slope, intercept = line(log_c, np.log([[minima[i].params or np.nan for i in kept]]), weights)
    token_slope, _ = line(log_c, np.log([[minima[i].tokens or np.nan for i in kept]]), weights)
    return ParabolaFit(groups, minima, float(slope[0]), float(intercept[0]), float(token_slope[0]), noise, degrees, weights)


def line_weights(sds: Sequence[float | None]) -> Array:
    """1 / var of each ln N*, equal where no noise is known."""
    values = np.array([sd if sd else 0.0 for sd in sds])
    floor = 1e-3 * values.max()
    return np.ones(len(values)) if not values.max() > 0 else 1 / np.maximum(values, floor) ** 2


def line(log_c: Array, y: Array, weights: Array) -> tuple[Array, Array]:
    """Weighted least squares of y [R, m] on log_c [m]: slopes and intercepts [R]; weights [m] or [R, m], zero leaves a budget out."""
    w = np.broadcast_to(weights, y.shape)
    y = np.where(w > 0, y, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        total = w.sum(1)
        mean_c, mean_y = (w * log_c).sum(1) / total, (w * y).sum(1) / total
        away = log_c - mean_c[:, None]
        slope = (w * away * y).sum(1) / (w * away**2).sum(1)
    return slope, mean_y - slope * mean_c


def _pooled(groups: Sequence[Group], solved: Sequence[Array], loss: Array) -> tuple[float, int]:
    """Sum of squared residuals and degrees of freedom over the budgets whose parabola exists."""
    squares, degrees = 0.0, 0
    for group, c in zip(groups, solved, strict=True):
        if np.isfinite(c).all() and len(group.rows) > 3:
            residual = loss[group.rows] - np.polyval(c, group.x)
            squares, degrees = squares + float(residual @ residual), degrees + len(group.rows) - 3
    return squares, degrees


def covariance(group: Group) -> Array:
    """Of (p, q, r) for unit noise, [3, 3]."""
    basis = np.stack([group.x**2, group.x, np.ones_like(group.x)], 1)
    return np.asarray(np.linalg.pinv(basis.T @ basis))


def _minimum(group: Group, c: Array, sigma: float, quantile: float, least: int) -> Minimum:
    points, spread = len(group.rows), group.spread
    if group.distinct < least:
        why = f"{group.distinct} sizes, at least {least} are needed for a parabola that can be judged"
        return Minimum(group.flops, points, spread, float("nan"), float("nan"), None, None, None, None, None, why)
    p, q = float(c[0]), float(c[1])
    at = -q / (2 * p) if p else float("nan")
    unit = covariance(group)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = float(np.float64(p) / (sigma * np.sqrt(unit[0, 0])))
    why = _refusal(group, p, at, t, quantile)
    gradient = np.array([q / (2 * p**2), -1 / (2 * p), 0.0]) if p else np.zeros(3)
    sd = float(sigma * np.sqrt(gradient @ unit @ gradient))
    if why:
        return Minimum(group.flops, points, spread, p, t, None, None, None, None, None, why)
    best = float(np.polyval(c, at))
    width = float(np.sqrt(max(sigma, 0.0) / p)) if np.isfinite(sigma) else float("nan")
    flat = (float(np.exp(group.centre + at - width)), float(np.exp(group.centre + at + width)))
    where = float(np.exp(group.centre + at)), float(np.exp(np.polyval(group.log_d, at)))
    return Minimum(group.flops, points, spread, p, t, *where, best, sd, flat, "")


def _refusal(group: Group, p: float, at: float, t: float, quantile: float) -> str:
    """Why this budget's parabola is no evidence of a minimum, or ""."""
    if not p > 0:
        return "concave: the parabola opens downward, its turning point is a maximum"
    if at < group.x.min() or at > group.x.max():
        return f"minimum outside the sizes tried ({'below the smallest' if at < 0 else 'above the largest'}): an edge is no optimum"
    if at - group.x.min() < group.half_step or group.x.max() - at < group.half_step:
        return "edge: the minimum stands within half a grid step of the smallest or largest size"
    if t < quantile:  # NaN where there is no noise estimate: nothing to refuse by
        return f"curvature not significant: t = {t:.2f}, the 95 % interval of the curvature includes 0"
    return ""
