"""How fast the surface fit is beside the published procedure, both run here, on one thread, in CPU seconds.

usage: PYTHONPATH=helpers python3 tools/bench_isoflop.py [--csv FILE] [--starts 60] [--replicates 60]

The published procedure (Hoffmann et al. 2022 as repeated by Besiroglu et al. 2024): scipy's L-BFGS-B with finite differences from a grid of
4,500 starts; then 4,000 bootstrap fits by BFGS with exact gradients from one start. It is run on every k-th start and on the first
replicates and scaled to the whole; ours is run whole. Without --csv the points are simulated: 240 rows on the published surface.
The exit code is 1 where ours is less than 100 and 40 times faster, or ends at a higher objective.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy is loaded

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize  # type: ignore[import-untyped]

from trainwright.isoflop import approach3
from trainwright.isoflop.columns import mapping
from trainwright.isoflop.power import REFERENCE
from trainwright.isoflop.rows import Wishes, study
from trainwright.isoflop.table import read_tables

Array = NDArray[np.float64]
DELTA = 1e-3
FULL_STARTS, FULL_REPLICATES = 4500, 4000
GRID = list(
    itertools.product(np.arange(0, 30, 5), np.arange(0, 30, 5), np.arange(-1, 1.5, 0.5), np.arange(0, 2.5, 0.5), np.arange(0, 2.5, 0.5))
)
PUBLISHED = np.array([np.log(406.4), np.log(410.7), np.log(1.69), 0.3392, 0.2849])


def points(path: str | None) -> tuple[Array, Array, Array]:
    """params, tokens, loss: the Chinchilla points of a file, or simulated ones with the same tails."""
    if path:
        columns = ["params=Model Size", "flops=Training FLOP", "loss=loss"]
        found = study(read_tables([path], mapping(columns, [], [])), Wishes(exclude_highest_loss=5))
        return found.params, found.tokens, found.loss
    rng = np.random.default_rng(0)
    flops = 10 ** rng.uniform(18, 21.5, 240)
    params = REFERENCE.optimal_params(flops) * np.exp(rng.uniform(-1.5, 1.5, 240))
    tokens = flops / 6 / params
    return params, tokens, REFERENCE.loss(params, tokens) * np.exp(0.004 * rng.standard_t(3, 240))


def terms(t: Array, log_n: Array, log_d: Array) -> tuple[Array, Array, Array]:
    a, b, e, alpha, beta = t
    return a - alpha * log_n, b - beta * log_d, np.full(len(log_n), e)


def value(t: Array, log_n: Array, log_d: Array, log_l: Array) -> float:
    residual = log_l - np.logaddexp.reduce(np.stack(terms(t, log_n, log_d)), axis=0)
    size = np.abs(residual)
    return float(np.where(size < DELTA, 0.5 * residual**2, DELTA * (size - 0.5 * DELTA)).sum())


def gradient(t: Array, log_n: Array, log_d: Array, log_l: Array) -> Array:
    parts = np.stack(terms(t, log_n, log_d))
    total = np.logaddexp.reduce(parts, axis=0)
    share_a, share_b, share_e = np.exp(parts - total)
    psi = np.clip(log_l - total, -DELTA, DELTA)
    return -np.array([psi @ share_a, psi @ share_b, psi @ share_e, -(psi * log_n) @ share_a, -(psi * log_d) @ share_b])


def theirs_fit(log_n: Array, log_d: Array, log_l: Array, starts: int) -> tuple[float, float]:
    """CPU seconds for all 4,500 starts, scaled, and the best objective of those that were run."""
    chosen = GRID[:: max(1, FULL_STARTS // starts)][:starts]
    begun = time.process_time()
    best = min(minimize(value, start, args=(log_n, log_d, log_l), method="L-BFGS-B").fun for start in chosen)
    return (time.process_time() - begun) * FULL_STARTS / len(chosen), float(best)


def theirs_bootstrap(log_n: Array, log_d: Array, log_l: Array, rows: NDArray[np.intp]) -> tuple[float, Array]:
    """CPU seconds for 4,000 replicates, scaled, and the objectives of those that were run."""
    begun = time.process_time()
    values = [minimize(value, PUBLISHED, args=(log_n[r], log_d[r], log_l[r]), jac=gradient, method="BFGS").fun for r in rows]
    return (time.process_time() - begun) * FULL_REPLICATES / len(rows), np.array(values)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--csv", metavar="FILE", help="the Chinchilla points")
    parser.add_argument("--starts", type=int, default=60, help="of the 4,500 (default 60)")
    parser.add_argument("--replicates", type=int, default=60, help="of the 4,000 (default 60)")
    options = parser.parse_args()
    params, tokens, loss = points(options.csv)
    logs = np.log(params), np.log(tokens), np.log(loss)
    rows = np.random.default_rng(42).integers(len(loss), size=(FULL_REPLICATES, len(loss)))
    counts = np.stack([np.bincount(r, minlength=len(loss)) for r in rows]).astype(float)
    approach3.fit(params[::4], tokens[::4], loss[::4])  # what is loaded on first use is no part of either

    begun = time.process_time()
    found = approach3.fit(params, tokens, loss)
    our_fit = time.process_time() - begun
    begun = time.process_time()
    _, our_values = approach3.refit(found, logs[2][None], counts)
    our_bootstrap = time.process_time() - begun
    their_fit, their_best = theirs_fit(*logs, options.starts)
    their_bootstrap, their_values = theirs_bootstrap(*logs, rows[: options.replicates])

    excess = our_values[: options.replicates] - their_values
    sys.stdout.write(
        f"full fit: ours {our_fit:.3f} CPU s, objective {found.objective:.14g}; published procedure {their_fit:.1f} CPU s "
        f"({options.starts} of {FULL_STARTS} starts, scaled), objective {their_best:.14g}: {their_fit / our_fit:.0f} times faster\n"
        f"{FULL_REPLICATES} bootstraps: ours {our_bootstrap:.3f} CPU s; published procedure {their_bootstrap:.1f} CPU s "
        f"({options.replicates} replicates, scaled): {their_bootstrap / our_bootstrap:.0f} times faster; "
        f"objectives: ours - theirs mean {excess.mean():.3g}, largest {excess.max():.3g}\n"
    )
    no_higher = found.objective <= their_best * (1 + 1e-9) and excess.mean() <= 0 and excess.max() <= 1e-9
    return 0 if no_higher and their_fit >= 100 * our_fit and their_bootstrap >= 40 * our_bootstrap else 1


if __name__ == "__main__":
    sys.exit(main())
