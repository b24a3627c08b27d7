"""Approach 1: the lower envelope of loss over compute, from whole training curves, and lines through N and D along it.

The envelope is the lower convex hull of the points (ln C, ln L), its decreasing part: few points carry it, so its interval comes from
resampling whole runs. Curves whose learning rate had not decayed where the envelope touches them bias it (Porian et al. 2024).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainwright.isoflop.approach2 import line
from trainwright.isoflop.newton import Array
from trainwright.isoflop.rows import Study


@dataclass(frozen=True, slots=True, eq=False)
class EnvelopeFit:
    """The rows that touch the envelope, and the lines ln N = intercept + exponent ln C, ln D likewise."""

    support: NDArray[np.intp]
    exponent: float | None
    intercept: float
    token_exponent: float | None
    objective: float

    def optimal_params(self, flops: Array) -> Array | None:
        return None if self.exponent is None else np.asarray(np.exp(self.intercept + self.exponent * np.log(flops)))


def why_not(study: Study) -> str:
    """Why approach 1 does not apply to these rows, or ""."""
    runs = study.table.code("run_id")
    if not (runs > 0).any():
        return "no column names the run of a row (--columns run_id=COLUMN): which rows are one training curve is not known"
    codes, counts = np.unique(runs[runs > 0], return_counts=True)
    curves = np.isin(runs, codes[counts >= 3])
    sizes = len(np.unique(study.params[curves]))
    if sizes < 3:
        return f"no curves: runs of {sizes} sizes have three rows or more, and approach 1 needs whole training curves of three sizes"
    return ""


def hull(flops: Array, loss: Array) -> NDArray[np.intp]:
    """Indices of the lower convex hull of (ln C, ln L), from the left up to the lowest loss."""
    x, y = np.log(flops), np.log(loss)
    order = np.lexsort((y, x))
    chain: list[int] = []
    for i in order.tolist():
        while len(chain) >= 2 and _turns(x, y, chain[-2], chain[-1], i) <= 0:
            chain.pop()
        if not chain or x[i] > x[chain[-1]]:
            chain.append(i)
    lowest = int(np.argmin(y[chain]))
    return np.array(chain[: lowest + 1], np.intp)


def _turns(x: Array, y: Array, a: int, b: int, c: int) -> float:
    return float((x[b] - x[a]) * (y[c] - y[a]) - (y[b] - y[a]) * (x[c] - x[a]))


def fit(params: Array, tokens: Array, flops: Array, loss: Array) -> EnvelopeFit:
    """The envelope and its lines; the exponents are None where fewer than three sizes touch it.

    The smallest and the largest size touch it where the ladder ends, not where they are best: they are left out.
    """
    support = hull(flops, loss)
    support = support[(params[support] > params.min()) & (params[support] < params.max())]
    if len(np.unique(params[support])) < 3:
        return EnvelopeFit(support, None, 0.0, None, 0.0)
    log_c, log_n, ones = np.log(flops[support]), np.log(params[support]), np.ones(len(support))
    slope, intercept = line(log_c, log_n[None], ones)
    token_slope, _ = line(log_c, np.log(tokens[support])[None], ones)
    residual = log_n - intercept[0] - slope[0] * log_c
    return EnvelopeFit(support, float(slope[0]), float(intercept[0]), float(token_slope[0]), float(residual @ residual))


def resampled(study: Study, clusters: NDArray[np.intp], count: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Exponents a and b of envelopes over runs drawn with replacement; NaN where too few sizes touch one."""
    members = [np.flatnonzero(clusters == k) for k in range(int(clusters.max()) + 1)]
    draws = np.full((2, count), np.nan)
    for r in range(count):
        rows = np.concatenate([members[k] for k in np.unique(rng.integers(len(members), size=len(members)))])
        found = fit(study.params[rows], study.tokens[rows], study.flops[rows], study.loss[rows])
        if found.exponent is not None and found.token_exponent is not None:
            draws[:, r] = found.exponent, found.token_exponent
    return draws[0], draws[1]
