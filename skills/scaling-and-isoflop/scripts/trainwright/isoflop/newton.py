# isoflop/newton.py without its comments
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Derivatives = tuple[Array, Array, Array]
Objective = Callable[[Array, NDArray[np.intp]], Derivatives]
"""(points [R, p], which problems [R]) -> values [R], gradients [R, p], Hessians [R, p, p]."""

_SMALLEST, _LARGEST = 1e-14, 1e14


@dataclass(frozen=True, slots=True)
class Minima:

    points: Array
    values: Array
    converged: NDArray[np.bool_]

    def best(self) -> int:
        return int(np.argmin(self.values))


@dataclass(slots=True)
class _State:

    index: NDArray[np.intp]
    points: Array
    values: Array
    gradients: Array
    hessians: Array
    damping: Array
    growth: Array

    def keep(self, which: NDArray[np.bool_]) -> _State:
        return _State(*(getattr(self, name)[which] for name in self.__dataclass_fields__))


def minimise(objective: Objective, starts: Array, scale: Array, iterations: int = 200, tolerance: float = 1e-12) -> Minima:
    points, values = starts.copy(), np.full(len(starts), np.inf)
    converged = np.zeros(len(starts), bool)
    index = np.arange(len(starts))
    first = objective(starts, index)
    level = np.abs(np.einsum("rii->ri", first[2]) / scale).max(1)
    state = _State(index, starts.copy(), *first, np.maximum(1e-3 * level, 1e-10), np.full(len(starts), 2.0))
    for _ in range(iterations):
        steps, promised = _steps(state, scale)
        done = promised <= tolerance * np.abs(state.values)
        stuck = ~done & (state.damping > _LARGEST * np.maximum(np.abs(state.values), 1e-300))
        _record(state, done | stuck, points, values, converged, done)
        going = ~(done | stuck)
        if not going.any():
            return Minima(points, values, converged)
        state = state.keep(going)
        _advance(objective, state, steps[going], promised[going])
    _record(state, np.ones(len(state.index), bool), points, values, converged, np.zeros(len(state.index), bool))
    return Minima(points, values, converged)


def _record(
    state: _State, which: NDArray[np.bool_], points: Array, values: Array, converged: NDArray[np.bool_], done: NDArray[np.bool_]
) -> None:
    at = state.index[which]
    points[at], values[at], converged[at] = state.points[which], state.values[which], done[which]


def _advance(objective: Objective, state: _State, steps: Array, promised: Array) -> None:
    values, gradients, hessians = objective(state.points + steps, state.index)
    with np.errstate(invalid="ignore"):
        gain = (state.values - values) / promised
    better = gain > 0
    state.points[better] += steps[better]
    state.values[better], state.gradients[better], state.hessians[better] = values[better], gradients[better], hessians[better]
    factor = np.where(better, np.maximum(1 / 9, 1 - (2 * np.clip(np.where(better, gain, 0.0), 0.0, 1.0) - 1) ** 3), state.growth)
    state.growth = np.where(better, 2.0, np.minimum(state.growth * 2, 1e6))
    state.damping = np.maximum(state.damping * factor, _SMALLEST * np.abs(state.values))


def _steps(state: _State, scale: Array) -> tuple[Array, Array]:
    steps, definite = _solve(state.hessians, state.gradients, state.damping, scale)
    for _ in range(60):
        if definite.all():
            break
        bad = ~definite
        level = np.abs(np.einsum("rii->ri", state.hessians[bad]) / scale).max(1)
        state.damping[bad] = np.maximum(4 * state.damping[bad], 1e-4 * level + 1e-300)
        steps[bad], definite[bad] = _solve(state.hessians[bad], state.gradients[bad], state.damping[bad], scale)
    curved = np.einsum("ri,rij,rj->r", steps, state.hessians, steps)
    promised = -np.einsum("ri,ri->r", steps, state.gradients) - 0.5 * curved
    return steps, np.maximum(promised, 0.0)


def _solve(hessians: Array, gradients: Array, damping: Array, scale: Array) -> tuple[Array, NDArray[np.bool_]]:
    size = len(scale)
    system = np.empty((size, size + 1, len(hessians)))
    system[:, :size], system[:, size] = hessians.transpose(1, 2, 0), -gradients.T
    diagonal = system[np.arange(size), np.arange(size)] + damping * scale[:, None]
    system[np.arange(size), np.arange(size)] = diagonal
    definite = np.ones(len(hessians), bool)
    for j in range(size):
        pivot = system[j, j]
        sound = pivot > 1e-13 * np.abs(diagonal[j])
        definite &= sound
        system[j, j] = np.where(sound, pivot, 1.0)
        if j + 1 < size:
            system[j + 1 :, j + 1 :] -= (system[j + 1 :, j] / system[j, j])[:, None] * system[j, j + 1 :]
    steps = np.empty((size, len(hessians)))
    for j in reversed(range(size)):
        rest = system[j, size]
        if j + 1 < size:
            rest = rest - np.einsum("kr,kr->r", system[j, j + 1 : size], steps[j + 1 :])
        steps[j] = rest / system[j, j]
    return steps.T.copy(), definite
