# isoflop/bootstrap.py without its comments
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainwright.isoflop.newton import Array

KINDS = ("case", "stratified", "cluster", "dirichlet", "wild", "residual", "parametric")
WEIGHING = KINDS[:4]


@dataclass(frozen=True, slots=True, eq=False)
class Around:

    fitted: Array
    residuals: Array
    leverage: Array
    sigma: float
    unknowns: int


def replicates(
    kind: str, count: int, around: Around, strata: NDArray[np.intp], clusters: NDArray[np.intp], rng: np.random.Generator
) -> tuple[Array, Array]:
    n = len(around.fitted)
    if kind in WEIGHING:
        return (around.fitted + around.residuals)[None], _weights(kind, count, n, strata, clusters, rng)
    return around.fitted + _noise(kind, (count, n), around, rng), np.ones((1, n))


def _weights(kind: str, count: int, n: int, strata: NDArray[np.intp], clusters: NDArray[np.intp], rng: np.random.Generator) -> Array:
    if kind == "case":
        return rng.multinomial(n, np.full(n, 1 / n), count).astype(float)
    if kind == "dirichlet":
        weights = rng.exponential(size=(count, n))
        return np.asarray(weights * (n / weights.sum(1, keepdims=True)))
    if kind == "cluster":
        size = int(clusters.max()) + 1
        return rng.multinomial(size, np.full(size, 1 / size), count).astype(float)[:, clusters]
    weights = np.empty((count, n))
    for stratum in np.unique(strata):
        rows = np.flatnonzero(strata == stratum)
        weights[:, rows] = rng.multinomial(len(rows), np.full(len(rows), 1 / len(rows)), count)
    return weights


def _noise(kind: str, shape: tuple[int, int], around: Around, rng: np.random.Generator) -> Array:
    if kind == "wild":
        return np.where(rng.random(shape) < 0.5, -1.0, 1.0) * (around.residuals / np.maximum(1 - around.leverage, 0.05))
    if kind == "residual":
        n = shape[1]
        pool = (around.residuals - around.residuals.mean()) * np.sqrt(n / max(n - around.unknowns, 1))
        return np.asarray(rng.choice(pool, shape))
    return rng.normal(0.0, around.sigma, shape)
