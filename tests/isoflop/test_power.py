"""What a design can tell: the published design table, the projector ladder, and remedies that do what they say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from trainwright.isoflop.power import REFERENCE, Plan, around_optimum, condition, ladder, power, remedy

Ask = Callable[..., tuple[int, dict[str, Any]]]
BUDGETS = np.array([1e17, 1e18, 1e19])
# Seven points a budget: (sigma in nats, N spread) -> predicted sd of a, P(all minima inside) or None where not published.
DESIGNS = {
    (0.002, 1.2): (0.019, 0.21),
    (0.002, 2): (0.005, 1),
    (0.005, 1.2): (0.047, 0.10),
    (0.005, 2): (0.012, 0.93),
    (0.005, 4): (0.006, 1),
    (0.005, 10): (0.004, 1),
    (0.012, 1.5): (0.051, 0.18),
    (0.012, 2): (0.030, 0.50),
    (0.012, 4): (0.015, 0.99),
    (0.012, 10): (0.009, 1),
    (0.012, 30): (0.006, None),
}


@pytest.mark.parametrize("design", DESIGNS)
def test_the_design_table(design: tuple[float, float]) -> None:
    sigma, spread = design
    sd, inside = DESIGNS[design]
    found = power(around_optimum(REFERENCE, BUDGETS, 7, spread, sigma), draws=8000)
    assert found.sd_exponent == pytest.approx(sd, rel=0.10, abs=0.0005)
    assert inside is None or found.interior == pytest.approx(inside, abs=0.03)


@pytest.mark.parametrize(("spread", "published"), [(100, 122), (10, 292), (4, 398), (2, 618), (1.5, 1040), (1.2, 2310), (1.03, 13400)])
def test_conditions(spread: float, published: float) -> None:
    plan = around_optimum(REFERENCE, BUDGETS, 7, spread, 0.01)
    assert condition(REFERENCE, plan.params, plan.tokens) == pytest.approx(published, rel=0.07)


def test_sd_is_what_simulated_fits_show() -> None:
    """The delta method against the spread of least-squares fits of simulated studies."""
    from trainwright.isoflop import approach3

    plan = around_optimum(REFERENCE, BUDGETS, 9, 10, 0.004, relative=True)
    found = approach3.fit(plan.params, plan.tokens, REFERENCE.loss(plan.params, plan.tokens), np.inf)
    y = np.log(REFERENCE.loss(plan.params, plan.tokens)) + np.random.default_rng(0).normal(0, 0.004, (400, len(plan.params)))
    surfaces, _ = approach3.refit(found, y, np.ones((1, len(plan.params))))
    draws = surfaces[:, 4] / (surfaces[:, 3] + surfaces[:, 4])
    assert power(plan, 50).sd_exponent == pytest.approx(draws.std(), rel=0.12)


def test_a_projector_ladder_is_refused_before_launch(ask: Ask) -> None:
    sizes = [str(1.236e9 * f) for f in (1.0, 1.004, 1.012, 1.021, 1.03)]
    code, said = ask("power", "--budgets", "1e18", "1e19", "1e20", "--sizes", *sizes, "--sigma", "0.012")
    assert code == 1 and said["data"]["verdict"] == "underdetermined" and said["findings"][0]["rule"] == "iso-underdetermined"
    assert "no fit will be identified" in said["findings"][0]["message"] and said["data"]["remedy"]["runs"]


def test_around_the_optimum_three_percent_tell_nothing_and_ten_times_do(ask: Ask) -> None:
    common = ("--budgets", "1e17", "1e18", "1e19", "--points", "5", "--sigma", "0.012")
    code, narrow = ask("power", *common, "--n-spread", "1.03")
    assert code == 1 and narrow["data"]["sd_exponent"] == pytest.approx(0.78, rel=0.1)
    code, wide = ask("power", *common, "--n-spread", "10")
    assert (code, wide["data"]["verdict"]) == (0, "identified") and wide["data"]["remedy"] is None


def test_a_wide_ladder_with_much_noise_is_not_identified(ask: Ask) -> None:
    code, said = ask("power", "--budgets", "1e17", "1e18", "1e19", "--n-spread", "10", "--sigma", "0.3")
    assert code == 1 and said["data"]["verdict"] == "underdetermined"


def test_sizes_far_from_the_optimum_show_no_minimum() -> None:
    found = power(ladder(REFERENCE, BUDGETS, np.geomspace(1e10, 1e11, 7), 0.002))
    assert found.interior == pytest.approx(0, abs=0.01) and found.verdict == "underdetermined"


@pytest.mark.parametrize("spread", [1.03, 1.5])
def test_the_remedy_reaches_what_it_says_and_no_run_of_it_is_spare(spread: float) -> None:
    plan = around_optimum(REFERENCE, BUDGETS, 5, spread, 0.008)
    found = remedy(plan, 0.02)
    assert found.reached and found.cost == pytest.approx(sum(run[0] for run in found.runs))
    flops, params, tokens = map(np.array, zip(*found.runs, strict=True))
    assert params * tokens * 6 == pytest.approx(flops)
    assert power(plan.with_runs(params, tokens, flops)).sd_exponent <= 0.02
    for k in range(len(found.runs)):
        rest = [np.delete(values, k) for values in (params, tokens, flops)]
        fewer = power(plan.with_runs(*rest), 500, 1)
        assert fewer.sd_exponent > 0.02 or (fewer.interior or 0) < 0.9


def test_one_size_or_one_budget_tells_nothing() -> None:
    for plan in (ladder(REFERENCE, BUDGETS, np.array([1e8]), 0.005), ladder(REFERENCE, BUDGETS[:1], np.geomspace(1e7, 1e8, 7), 0.005)):
        found = power(plan, 50)
        assert found.verdict == "underdetermined" and found.sd_exponent > 0.1


def test_repeats_lower_the_sd_by_their_root() -> None:
    one, four = (power(around_optimum(REFERENCE, BUDGETS, 7, 4, 0.01, repeats=r), 50).sd_exponent for r in (1, 4))
    assert four == pytest.approx(one / 2)


def test_a_plan_may_hold_any_runs() -> None:
    rng = np.random.default_rng(0)
    n, c = 10 ** rng.uniform(6, 9, 12), 10 ** rng.uniform(17, 19, 12)
    assert np.isfinite(power(Plan(n, c / 6 / n, c, REFERENCE, 0.01), 50).sd_exponent)


@pytest.mark.parametrize(
    "wrong", [["--n-spread", "0.5"], ["--n-spread", "4", "--points", "0"], ["--sizes", "-5"], ["--n-spread", "4", "--draws", "0"]]
)
def test_refused_options(ask: Ask, wrong: list[str]) -> None:
    code, _ = ask("power", "--budgets", "1e17", "1e18", "--sigma", "0.01", *wrong)
    assert code == 2
