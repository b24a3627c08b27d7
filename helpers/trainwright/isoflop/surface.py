"""The surface L = E + A / N^alpha + B / D^beta: its logarithm, and the Huber objective with exact derivatives.

Legend: n rows, R problems (starts or bootstrap replicates) solved together. Unknowns per problem, on centred logarithms
x = ln N - mean and z = ln D - mean: t = (a, alpha, b, beta, e) with A-term exp(a - alpha x), B-term exp(b - beta z), E = exp(e).
The objective is sum_i w_i Huber_delta(ln L_i - ln(exp(a - alpha x_i) + exp(b - beta z_i) + exp(e))), the sum of Hoffmann et al. 2022
(approach 3), never its mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainwright.isoflop.newton import Array, Derivatives, Minima, minimise

_FAR = 300.0  # exponents beyond it overflow; no sensible start comes near
_CHUNK = 24_000  # numbers per work array: what stays in a core's cache
FREE = np.eye(5)
TIED = np.array([[1, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]], float)  # (a, b, alpha = beta, e)


@dataclass(frozen=True, slots=True)
class Surface:
    """The five numbers of a fitted surface."""

    E: float
    A: float
    B: float
    alpha: float
    beta: float

    @property
    def exponent(self) -> float:
        """a of N* ~ C^a; NaN where the surface has no optimum."""
        total = self.alpha + self.beta
        return self.beta / total if total else float("nan")

    def loss(self, params: Array, tokens: Array) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):  # exponents of a fit that went astray
            return np.asarray(self.E + self.A * params**-self.alpha + self.B * tokens**-self.beta)

    def optimal_params(self, flops: Array, flops_per_param_token: float = 6.0) -> Array:
        """N* that minimises the loss at C = k N D; NaN where the surface has no minimum."""
        one, other, total = self.alpha * self.A, self.beta * self.B, self.alpha + self.beta
        if not (one > 0 and other > 0 and total > 0):
            return np.full(np.shape(flops), np.nan)
        with np.errstate(over="ignore", under="ignore"):
            return np.asarray(np.exp((np.log(one) - np.log(other)) / total) * (flops / flops_per_param_token) ** self.exponent)

    def to_json(self) -> dict[str, float]:
        return {"E": self.E, "A": self.A, "B": self.B, "alpha": self.alpha, "beta": self.beta}


@dataclass(frozen=True, slots=True, eq=False)
class Design:
    """Where the rows stand: centred logarithms of N and D, and the products that the Hessian needs."""

    x: Array
    z: Array
    centre: tuple[float, float]
    basis: Array  # [n, 6]: 1, -x, -z, x^2, z^2, x z

    @staticmethod
    def of(params: Array, tokens: Array) -> Design:
        log_n, log_d = np.log(params), np.log(tokens)
        centre = (float(log_n.mean()), float(log_d.mean()))
        x, z = log_n - centre[0], log_d - centre[1]
        return Design(x, z, centre, np.stack([np.ones_like(x), -x, -z, x * x, z * z, x * z], axis=1))

    @property
    def scale(self) -> Array:
        return np.array([1.0, max(self.x.var(), 1e-4), 1.0, max(self.z.var(), 1e-4), 1.0])

    def unknowns(self, surfaces: Array) -> Array:
        """[R, 5] of (E, A, B, alpha, beta) to t."""
        e, a, b, alpha, beta = surfaces.T
        tiny = np.finfo(float).tiny
        return np.stack(
            [
                np.log(np.maximum(a, tiny)) - alpha * self.centre[0],
                alpha,
                np.log(np.maximum(b, tiny)) - beta * self.centre[1],
                beta,
                np.log(np.maximum(e, tiny)),
            ],
            axis=1,
        )

    def surfaces(self, unknowns: Array) -> Array:
        """t back to (E, A, B, alpha, beta)."""
        a, alpha, b, beta, e = unknowns.T
        with np.errstate(over="ignore"):
            big_a, big_b = np.exp(a + alpha * self.centre[0]), np.exp(b + beta * self.centre[1])
        return np.stack([np.exp(e), big_a, big_b, alpha, beta], axis=1)


def huber(design: Design, y: Array, w: Array, t: Array, delta: float) -> Derivatives:
    """Values [R], gradients [R, 5] and Hessians [R, 5, 5]; y = ln L and w are [R, n] or [1, n], delta may be infinite (least squares)."""
    work = np.empty((8, len(t), len(design.x)))
    share_a, share_b, c, q = work[0], work[1], work[2], work[5]
    np.exp(np.clip(t[:, :2] @ design.basis[:, :2].T, -_FAR, _FAR), out=share_a)
    np.exp(np.clip(t[:, 2:4] @ design.basis[:, ::2][:, :2].T, -_FAR, _FAR), out=share_b)
    total = share_a + share_b
    total += np.exp(np.clip(t[:, 4:], -_FAR, _FAR))
    share_a /= total
    share_b /= total
    residual = np.log(total, out=total)
    np.subtract(y, residual, out=residual)
    np.clip(residual, -delta, delta, out=q)
    np.multiply(residual - 0.5 * q, q, out=work[6])
    values = np.einsum("rn,rn->r", work[6], np.broadcast_to(w, work[6].shape))
    inside = (np.abs(residual) < delta) * w
    q *= w
    np.add(inside, q, out=c)
    np.multiply(c, share_a, out=work[3])
    np.multiply(c, share_b, out=work[4])
    np.multiply(q, share_a, out=work[6])
    np.multiply(q, share_b, out=work[7])
    q_sums, qa, qb = (work[k] @ design.basis for k in (5, 6, 7))
    ca_share = work[3] @ design.basis
    cb_share = work[4] @ design.basis
    c_sum = c.sum(1)
    np.multiply(work[4], share_b, out=work[7])
    np.multiply(work[3], share_b, out=work[6])
    np.multiply(work[3], share_a, out=work[5])
    return values, *_assemble(q_sums[:, 0], qa, qb, c_sum, ca_share, cb_share, *(work[k] @ design.basis for k in (5, 6, 7)))


def _assemble(q: Array, qa: Array, qb: Array, c: Array, ca: Array, cb: Array, caa: Array, cab: Array, cbb: Array) -> tuple[Array, Array]:
    """Gradients and Hessians out of sums over rows of products with the shares of the A and B terms; E's share is 1 - those."""
    gradients = -np.stack([qa[:, 0], qa[:, 1], qb[:, 0], qb[:, 2], q - qa[:, 0] - qb[:, 0]], axis=1)
    hessians = np.empty((len(q), 5, 5))

    def put(i: int, j: int, entry: Array) -> None:
        hessians[:, i, j] = hessians[:, j, i] = entry

    put(0, 0, caa[:, 0] - qa[:, 0])
    put(0, 1, caa[:, 1] - qa[:, 1])
    put(1, 1, caa[:, 3] - qa[:, 3])
    put(2, 2, cbb[:, 0] - qb[:, 0])
    put(2, 3, cbb[:, 2] - qb[:, 2])
    put(3, 3, cbb[:, 4] - qb[:, 4])
    for (i, j), column in {(0, 2): 0, (1, 2): 1, (0, 3): 2, (1, 3): 5}.items():
        put(i, j, cab[:, column])
    put(0, 4, ca[:, 0] - caa[:, 0] - cab[:, 0])
    put(1, 4, ca[:, 1] - caa[:, 1] - cab[:, 1])
    put(2, 4, cb[:, 0] - cab[:, 0] - cbb[:, 0])
    put(3, 4, cb[:, 2] - cab[:, 2] - cbb[:, 2])
    put(4, 4, c - 2 * ca[:, 0] - 2 * cb[:, 0] + caa[:, 0] + 2 * cab[:, 0] + cbb[:, 0] - (q - qa[:, 0] - qb[:, 0]))
    return gradients, hessians


def solve(
    design: Design,
    y: Array,
    w: Array,
    starts: Array,
    delta: float,
    free: Array = FREE,
    iterations: int = 200,
    tolerance: float = 1e-12,
) -> Minima:
    """Minimise the Huber objective from `starts` [R, 5]; unknowns move in the columns of `free` [5, p] (or [R, 5, p]) only.

    y and w are [1, n] or [R, n]. The points of the answer are t [R, 5].
    """
    rows = max(1, _CHUNK // len(design.x))
    parts = [_solve(design, _part(y, k, rows), _part(w, k, rows), starts[k : k + rows], delta, _own(free, k, rows), iterations, tolerance)
             for k in range(0, len(starts), rows)]  # fmt: skip
    return Minima(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("points", "values", "converged")))


def _own(free: Array, first: int, rows: int) -> Array:
    return free[first : first + rows] if free.ndim == 3 else free[None]


def _part(values: Array, first: int, rows: int) -> Array:
    return values if len(values) == 1 else values[first : first + rows]


def _solve(design: Design, y: Array, w: Array, starts: Array, delta: float, free: Array, iterations: int, tolerance: float) -> Minima:
    def objective(moves: Array, which: NDArray[np.intp]) -> Derivatives:
        own = _rows(free, which)
        value, gradient, hessian = huber(design, _rows(y, which), _rows(w, which), starts[which] + _along(own, moves), delta)
        return value, (gradient[:, None] @ own)[:, 0], own.transpose(0, 2, 1) @ hessian @ own

    scale = (free**2).max(0).T @ design.scale
    found = minimise(objective, np.zeros((len(starts), free.shape[2])), scale, iterations, tolerance)
    return Minima(starts + _along(free, found.points), found.values, found.converged)


def _along(free: Array, moves: Array) -> Array:
    """[R, 5] of moves [R, p] in the columns of free [R or 1, 5, p]."""
    return np.asarray((free @ moves[:, :, None])[:, :, 0])


def _rows(values: Array, which: NDArray[np.intp]) -> Array:
    return values if len(values) == 1 else values[which]
