"""The solver against scipy, numeric derivatives and simulated truths: no recorded data needed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import interpolate, optimize, stats  # type: ignore[import-untyped]

from trainwright.isoflop import akima, approach2, approach3, vpnls
from trainwright.isoflop.newton import Array
from trainwright.isoflop.power import REFERENCE
from trainwright.isoflop.profile import profile, profile_interval
from trainwright.isoflop.statistics import f_tail, huber_ratio, t_probability, t_quantile
from trainwright.isoflop.surface import Design, Surface, huber

Arrays = Callable[..., tuple[Array, Array, Array, Array]]


@pytest.mark.parametrize("delta", [1e-3, 0.05, np.inf])
def test_derivatives_of_the_huber_objective(study_arrays: Arrays, delta: float) -> None:
    n, d, _, loss = study_arrays(sigma=0.01)
    design = Design.of(n, d)
    y, w = np.log(loss)[None], np.random.default_rng(1).exponential(size=(1, len(n)))
    t = design.unknowns(np.array([[1.7, 500.0, 2000.0, 0.33, 0.38]]))
    _, gradient, hessian = huber(design, y, w, t, delta)
    step = 1e-6 * np.eye(5)
    numeric = [(huber(design, y, w, t + s, delta)[0][0] - huber(design, y, w, t - s, delta)[0][0]) / 2e-6 for s in step]
    assert gradient[0] == pytest.approx(numeric, rel=1e-5, abs=1e-9)
    if delta > 0.01:  # with a small delta rows cross its kink within the step
        numeric = [(huber(design, y, w, t + s, delta)[1][0] - huber(design, y, w, t - s, delta)[1][0]) / 2e-6 for s in step]
        assert hessian[0] == pytest.approx(np.array(numeric), rel=1e-4, abs=1e-6)


def test_derivatives_of_the_projected_squares(study_arrays: Arrays) -> None:
    n, d, _, loss = study_arrays(sigma=0.01)
    design, w, t = Design.of(n, d), np.ones((1, len(n))), np.array([[0.3, 0.42]])
    _, gradient, hessian = vpnls.reduced(design, loss[None], w, t, None)
    step = 1e-5 * np.eye(2)
    ahead, behind = ([vpnls.reduced(design, loss[None], w, t + sign * s, None) for s in step] for sign in (1, -1))
    assert gradient[0] == pytest.approx([(a[0][0] - b[0][0]) / 2e-5 for a, b in zip(ahead, behind, strict=True)], rel=1e-5)
    numeric = np.array([(a[1][0] - b[1][0]) / 2e-5 for a, b in zip(ahead, behind, strict=True)])
    assert hessian[0] == pytest.approx(numeric, rel=1e-4)


def test_the_optimum_is_not_above_scipys(study_arrays: Arrays) -> None:
    n, d, _, loss = study_arrays(sigma=0.01, seed=3)
    found = approach3.fit(n, d, loss)
    design = Design.of(n, d)

    def value(t: Array) -> float:
        return float(huber(design, np.log(loss)[None], np.ones((1, len(n))), t[None], 1e-3)[0][0])

    rng = np.random.default_rng(0)
    starts = found.point + rng.normal(0, 0.1, (10, 5))
    best = min(
        optimize.minimize(value, start, method="Nelder-Mead", options={"maxiter": 4000, "xatol": 1e-9, "fatol": 1e-14}).fun
        for start in starts
    )
    assert found.objective <= best + 1e-12


def test_nnls_against_scipy(study_arrays: Arrays) -> None:
    n, d, _, loss = study_arrays(sigma=0.02)
    design = Design.of(n, d)
    pairs = np.array([(0.1, 0.2), (0.4, 0.3), (1.5, 0.05), (0.02, 1.0)])
    u, v = vpnls.columns(design, pairs)
    for k, found in enumerate(vpnls.linear_part(design, loss, np.ones_like(loss), pairs)):
        exact, _ = optimize.nnls(np.stack([np.ones_like(n), u[k], v[k]], 1), loss)
        assert found == pytest.approx(exact, rel=1e-6, abs=1e-9)


def test_noise_free_studies_give_their_surface_back(study_arrays: Arrays) -> None:
    n, d, _, _ = study_arrays()
    loss = REFERENCE.loss(n, d)
    for surface in (approach3.fit(n, d, loss).surface, vpnls.fit(n, d, loss).surface):
        assert surface.exponent == pytest.approx(REFERENCE.exponent, abs=1e-6)
        assert (surface.E, surface.alpha) == pytest.approx((REFERENCE.E, REFERENCE.alpha), rel=1e-5)


def test_fixed_e_and_tied_exponents_are_held(study_arrays: Arrays) -> None:
    n, d, _, loss = study_arrays(sigma=0.003)
    assert pytest.approx(1.8, abs=1e-12) == approach3.fit(n, d, loss, fixed_e=1.8).surface.E
    assert vpnls.fit(n, d, loss, fixed_e=1.8).surface.E == 1.8
    tied = approach3.fit(n, d, loss, tied=True)
    assert tied.surface.alpha == pytest.approx(tied.surface.beta, abs=1e-14)
    assert tied.objective >= approach3.fit(n, d, loss).objective


def test_every_run_is_the_same(study_arrays: Arrays) -> None:
    n, d, _, loss = study_arrays(sigma=0.01)
    one, two = (approach3.fit(n, d, loss) for _ in range(2))
    assert (one.objective, one.surface) == (two.objective, two.surface)


def test_units_of_n_and_d_do_not_matter(study_arrays: Arrays) -> None:
    n, d, _, loss = study_arrays(sigma=0.005)
    one, two = approach3.fit(n, d, loss).surface, approach3.fit(n / 1e6, d / 1e9, loss).surface
    assert two.exponent == pytest.approx(one.exponent, abs=1e-6) and pytest.approx(one.E, rel=1e-6) == two.E
    assert two.A * 1e6**two.alpha == pytest.approx(one.A, rel=1e-3)


def test_the_profile_is_lowest_at_the_fit(study_arrays: Arrays) -> None:
    n, d, _, loss = study_arrays(sigma=0.01)
    found = approach3.fit(n, d, loss)
    grid, values = profile(found, loss, points=9)
    assert values.min() == pytest.approx(found.objective, rel=1e-8) and grid[values.argmin()] == pytest.approx(found.surface.exponent)
    assert values[0] > values.min() < values[-1]


def test_the_interval_of_the_profile_does_not_hang_on_its_grid(study_arrays: Arrays) -> None:
    n, d, _, loss = study_arrays(sigma=0.002)
    found = approach3.fit(n, d, loss)
    ends = [profile_interval(found, loss, *profile(found, loss, points)) for points in (21, 41, 201)]
    low, high = ends[-1]
    assert low is not None and high is not None and low + 0.002 < found.surface.exponent < high - 0.002
    assert all(pair == pytest.approx((low, high), abs=0.002) for pair in ends)
    assert profile_interval(found, loss, np.array([0.4, 0.5]), np.array([np.nan, np.nan])) == (None, None)


def test_quantiles_against_scipy() -> None:
    for degrees in (1, 3, 12, 200):
        for level in (0.5, 0.9, 0.99):
            assert t_quantile(level, degrees) == pytest.approx(stats.t.ppf(0.5 + level / 2, degrees), rel=1e-9)
        assert t_probability(1.3, degrees) == pytest.approx(1 - 2 * stats.t.sf(1.3, degrees), rel=1e-10)
        assert f_tail(2.2, degrees, 7) == pytest.approx(stats.f.sf(2.2, degrees, 7), rel=1e-9)
    assert f_tail(0.0, 2, 3) == 1.0 and t_quantile(0.95, 0) == float("inf")


def test_the_likelihood_ratio_is_that_of_its_density() -> None:
    rng, delta = np.random.default_rng(1), 0.001
    best, held = rng.laplace(0, 0.003, 300), rng.laplace(0, 0.004, 300)

    def objective(residual: Array) -> float:
        size = np.abs(residual)
        return float(np.where(size < delta, size**2 / 2, delta * (size - delta / 2)).sum())

    def unlikely(residual: Array, t: float) -> float:
        grid = np.linspace(-0.2, 0.2, 400_001)
        size = np.abs(grid)
        density = np.exp(-np.where(size < delta, size**2 / 2, delta * (size - delta / 2)) / t)
        return objective(residual) / t + len(residual) * float(np.log(density.sum() * (grid[1] - grid[0])))

    least = [optimize.minimize_scalar(lambda x, r=r: unlikely(r, np.exp(x)), bounds=(-16, -10), method="bounded").fun for r in (held, best)]
    found = huber_ratio(objective(held), objective(best), 300, delta)
    assert found is not None and found[0] == pytest.approx(2 * (least[0] - least[1]), rel=1e-3)
    assert found[1] == pytest.approx(stats.chi2.sf(found[0], 5), rel=1e-9)
    assert huber_ratio(1.0, 1.0, 9, float("inf")) is None


def test_akima_against_scipy() -> None:
    rng = np.random.default_rng(0)
    x, y = np.sort(rng.random(9)), rng.random((20, 9))
    y[0] = 1.0
    at = np.linspace(x[0], x[-1], 101)
    exact = np.stack([interpolate.Akima1DInterpolator(x, row)(at) for row in y])
    assert akima.interpolate(x, y, at) == pytest.approx(exact, abs=1e-12)


# arXiv 2603.22339: error of D* at 1e24 FLOP, in percent, for grids of +-2, 4, 8, 16x; surfaces of (alpha, beta) as named.
SURFACES = {"symmetric": (0.31, 0.31), "chinchilla": (0.34, 0.28), "asymmetric": (0.465, 0.155)}
BIAS = {
    ("symmetric", "centred"): (0.0, 0.0, 0.0, 0.0),
    ("chinchilla", "centred"): (-0.33, -1.30, -2.90, -5.10),
    ("asymmetric", "centred"): (-1.67, -6.50, -13.91, -23.12),
    ("symmetric", "offset"): (3.97, 3.47, 2.65, 1.51),
    ("chinchilla", "offset"): (7.11, 5.69, 3.38, 0.24),
    ("asymmetric", "offset"): (19.22, 14.41, 6.96, -2.42),
    ("symmetric", "drift"): (6.07, 5.17, 3.70, 1.69),
    ("chinchilla", "drift"): (11.61, 9.83, 6.94, 3.05),
    ("asymmetric", "drift"): (34.57, 30.04, 22.97, 14.00),
}


@pytest.mark.parametrize(("name", "design"), BIAS)
def test_bias_of_noise_free_parabolas(name: str, design: str) -> None:
    """Offsets are of the grid's centre in D, by 3x, or drifting to 3x over five budgets of fifteen points."""
    surface = Surface(1.69, 406.4, 410.7, *SURFACES[name])
    found = [round(_bias(surface, design, reach), 2) for reach in (2, 4, 8, 16)]
    assert found == pytest.approx(BIAS[name, design], abs=0.0051)


def _bias(surface: Surface, design: str, reach: float) -> float:
    budgets: Array = 10.0 ** np.arange(17, 22).astype(float)
    offset = {"centred": np.ones(5), "offset": np.full(5, 3.0), "drift": 3 ** (np.arange(5) / 4)}[design]
    n = (surface.optimal_params(budgets) / offset)[:, None] * np.exp(np.linspace(-1, 1, 15) * np.log(reach))
    c = np.repeat(budgets, 15)
    params, tokens = n.ravel(), c / 6 / n.ravel()
    loss = surface.loss(params, tokens)
    tops = []
    for group in approach2.groups_of(params, tokens, c):
        at, _ = approach2.vertices(group, approach2.parabolas(group, loss[None, group.rows], np.ones((1, 15))))
        tops.append(at[0] + group.centre)
    slope, intercept = approach2.line(np.log(budgets), np.array([tops]), np.ones(5))
    best = np.exp(intercept[0] + slope[0] * np.log(1e24))
    return 100 * (float(surface.optimal_params(np.array(1e24))) / float(best) - 1)
