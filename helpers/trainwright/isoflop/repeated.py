"""Repeated data: the surface on effective parameters and tokens, which grow ever less with every epoch (Muennighoff et al. 2023).

U_D unique tokens, D tokens trained on, R_D = max(D / U_D - 1, 0) repetitions; D' = U_D + U_D R_D* (1 - exp(-R_D / R_D*)). U_N is the size
that is optimal for U_D (never above N), R_N = N / U_N - 1, and N' likewise with R_N*. The surface is given (from runs of one epoch);
R_D* and R_N* are found by the Huber sum on ln L, by Newton's method with exact derivatives in their logarithms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainwright.isoflop.newton import Array, Derivatives, minimise
from trainwright.isoflop.surface import Surface

_STARTS = np.log([(d, n) for d in (0.5, 2.0, 8.0, 30.0, 100.0) for n in (0.5, 2.0, 8.0, 30.0, 100.0)])


@dataclass(frozen=True, slots=True)
class RepeatedFit:
    """How many repetitions data (R_D*) and excess parameters (R_N*) are worth, and the Huber sum there.

    `minima` are all local ones that starts ended in, best first, as (R_D*, R_N*, objective): where several are about as good the
    rows do not tell which holds.
    """

    data_repetitions: float
    parameter_repetitions: float
    objective: float
    minima: tuple[tuple[float, float, float], ...]


def optimal_size(surface: Surface, unique: Array) -> Array:
    """The size for which `unique` tokens are compute-optimal."""
    alpha, beta = surface.alpha, surface.beta
    ratio = (alpha * surface.A / (beta * surface.B)) ** (1 / (alpha + beta))
    return np.asarray((unique * ratio) ** (beta / alpha) * ratio)


def fit(surface: Surface, params: Array, tokens: Array, unique: Array, loss: Array, delta: float = 1e-3) -> RepeatedFit:
    """The best of 25 starts."""
    size = np.minimum(optimal_size(surface, unique), params)
    extra_d, extra_n = np.maximum(tokens / unique - 1, 0.0), params / size - 1
    y = np.log(loss)

    def objective(t: Array, _: NDArray[np.intp]) -> Derivatives:
        data, d1, d2 = _saturating(t[:, :1], unique, extra_d)
        room, n1, n2 = _saturating(t[:, 1:], size, extra_n)
        share_b, b1, b2 = _powered(surface.B, surface.beta, data, d1, d2)
        share_a, a1, a2 = _powered(surface.A, surface.alpha, room, n1, n2)
        total = surface.E + share_a + share_b
        residual = y - np.log(total)
        psi = np.clip(residual, -delta, delta)
        first = np.stack([b1, a1], 1) / total[:, None]
        second = np.zeros((len(t), 2, 2, len(y)))
        second[:, 0, 0], second[:, 1, 1] = b2 / total, a2 / total
        second -= first[:, :, None] * first[:, None]
        inside = np.abs(residual) < delta
        hessian = np.einsum("rn,rin,rjn->rij", inside.astype(float), first, first) - np.einsum("rn,rijn->rij", psi, second)
        return (psi * (residual - psi / 2)).sum(1), -np.einsum("rn,rin->ri", psi, first), hessian

    found = minimise(objective, _STARTS, np.ones(2), 300, 1e-13)
    minima: list[tuple[float, float, float]] = []
    for k in np.argsort(found.values, kind="stable").tolist():
        data, room = np.exp(found.points[k]).tolist()
        if found.converged[k] and not any(np.hypot(np.log(data / d), np.log(room / n)) < 0.02 for d, n, _ in minima):
            minima.append((data, room, float(found.values[k])))
    best = found.best()
    at_data, at_room = np.exp(found.points[best]).tolist()
    return RepeatedFit(at_data, at_room, float(found.values[best]), tuple(minima[:6]))


def _saturating(log_star: Array, base: Array, extra: Array) -> tuple[Array, Array, Array]:
    """ln of base (1 + star (1 - exp(-extra / star))) and its two derivatives in ln star, [R, n] each."""
    star = np.exp(np.clip(log_star, -12.0, 25.0))  # beyond these nothing, or everything, counts as new
    ratio = extra / star
    ratio = np.minimum(ratio, 700.0)
    decay = np.exp(-ratio)
    value = 1 + star * -np.expm1(-ratio)
    slope = star * (-np.expm1(-ratio) - ratio * decay)
    bend = slope - star * ratio**2 * decay
    first = slope / value
    return np.log(base) + np.log(value), first, bend / value - first**2


def _powered(factor: float, exponent: float, log_x: Array, first: Array, second: Array) -> tuple[Array, Array, Array]:
    """factor x^-exponent and its two derivatives in the unknown."""
    value = factor * np.exp(-exponent * log_x)
    return value, -exponent * value * first, value * (exponent**2 * first**2 - exponent * second)
