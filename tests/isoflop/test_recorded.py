"""Published fits and the true optima beneath them, recomputed from the recorded points. Tolerances are the sources' own digits."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats  # type: ignore[import-untyped]

from trainwright.isoflop import akima, approach3, repeated, vpnls
from trainwright.isoflop.bootstrap import Around, replicates
from trainwright.isoflop.estimates import Settings, by_parabolas, by_surface, clusters, strata
from trainwright.isoflop.forecast import at_run
from trainwright.isoflop.identify import judge
from trainwright.isoflop.power import condition
from trainwright.isoflop.profile import delta_sensitivity
from trainwright.isoflop.rows import Study
from trainwright.isoflop.surface import Surface

Read = Callable[..., Study]
Ask = Callable[..., tuple[int, dict[str, Any]]]
EPOCH = ("params=Model Size", "flops=Training FLOP", "loss=loss")
BEST = 0.00101827402


@pytest.fixture
def chinchilla(recorded: Path, read: Read) -> Study:
    return read(recorded / "epoch_chinchilla" / "svg_extracted_data.csv", EPOCH, exclude_highest_loss=5)


def test_chinchilla_reaches_the_true_optimum_from_every_cold_start(chinchilla: Study) -> None:
    assert (len(chinchilla), len(chinchilla.excluded)) == (240, 5)
    found = approach3.fit(chinchilla.params, chinchilla.tokens, chinchilla.loss)
    assert found.objective <= BEST and found.converged and found.starts_agreeing > found.starts / 2
    again = approach3.objective(found.surface, chinchilla.params, chinchilla.tokens, chinchilla.loss)
    assert again == pytest.approx(found.objective, rel=1e-9)
    surface = found.surface
    assert pytest.approx((482.01, 2085.43), rel=0.03) == (surface.A, surface.B)
    assert pytest.approx(482.01, rel=0.01) == surface.A
    assert surface.alpha == pytest.approx(0.3478, abs=5e-4) and surface.beta == pytest.approx(0.3658, abs=1.5e-3)
    assert pytest.approx(1.8172, abs=1e-4) == surface.E and surface.exponent == pytest.approx(0.513898, abs=2e-6)


def test_the_published_parameters_are_no_optimum(chinchilla: Study) -> None:
    published = Surface(1.8172, 482.01, 2085.43, 0.3478, 0.3658)
    assert approach3.objective(published, chinchilla.params, chinchilla.tokens, chinchilla.loss) > BEST


def test_printed_parameters_give_the_printed_objective(recorded: Path, ask: Ask) -> None:
    file = str(recorded / "epoch_chinchilla" / "svg_extracted_data.csv")
    code, said = ask("fit", "--csv", file, "--columns", *EPOCH, "--approach", "3", "--exclude-highest-loss", "5", "--bootstrap", "100")
    fit = said["data"]["fits"][0]
    assert code == 0 and fit["approach"] == "3" and (fit["rows_used"], fit["rows_excluded"]) == (240, 5)
    assert len(said["data"]["excluded"]) == 5 and all(row["reason"] for row in said["data"]["excluded"])
    rows = rows_of(file)
    n, c, loss = (np.array([float(row[key]) for row in rows]) for key in ("Model Size", "Training FLOP", "loss"))
    keep = loss < np.sort(loss)[-5]
    p = fit["parameters"]
    residual = np.log(loss) - np.log(p["E"] + p["A"] / n ** p["alpha"] + p["B"] / (c / (6 * n)) ** p["beta"])
    size = np.abs(residual[keep])
    assert np.where(size < 1e-3, size**2 / 2, 1e-3 * (size - 5e-4)).sum() <= BEST


def test_the_likelihood_ratio_to_the_unrounded_parameters_of_the_paper(recorded: Path, ask: Ask) -> None:
    """Published as 84.0 (p 1.2e-16) against a fit that had not converged; chi-squared has five degrees of freedom."""
    file = str(recorded / "epoch_chinchilla" / "svg_extracted_data.csv")
    held = f"{np.exp(0.5267228)},{np.exp(6.0073404)},{np.exp(6.0179186)},0.33917084,0.2849083"
    asked = ("--columns", *EPOCH, "--approach", "3", "--exclude-highest-loss", "5", "--bootstrap", "0", "--compare", held)
    _, said = ask("fit", "--csv", file, *asked)
    ratio = said["data"]["compare"]["likelihood_ratio"]
    assert ratio["statistic"] == pytest.approx(84.0, rel=0.015) and ratio["p"] == pytest.approx(stats.chi2.sf(ratio["statistic"], 5))


def test_all_245_rows_move_the_exponent(recorded: Path, read: Read) -> None:
    every = read(recorded / "epoch_chinchilla" / "svg_extracted_data.csv", EPOCH)
    assert len(every) == 245
    assert approach3.fit(every.params, every.tokens, every.loss).surface.exponent == pytest.approx(0.565, abs=2e-3)


def test_delta_sensitivity(chinchilla: Study) -> None:
    found = approach3.fit(chinchilla.params, chinchilla.tokens, chinchilla.loss)
    rows = delta_sensitivity(found, chinchilla.loss)
    assert [round(row["a"], 4) for row in rows[:4]] == [0.5126, 0.5139, 0.5184, 0.5298]


def test_the_condition_of_the_chinchilla_points(chinchilla: Study) -> None:
    surface = approach3.fit(chinchilla.params, chinchilla.tokens, chinchilla.loss).surface
    assert condition(surface, chinchilla.params, chinchilla.tokens) == pytest.approx(220, rel=0.05)


SPREADS = {
    "case": (0.0192, 0.481, 0.557),
    "cluster": (0.0212, 0.478, 0.561),
    "dirichlet": (0.0190, 0.486, 0.558),
    "wild": (0.0163, 0.483, 0.542),
}
SPREADS |= {"residual": (0.0082, 0.499, 0.529)}


@pytest.mark.parametrize("kind", SPREADS)
def test_bootstrap_kinds_spread_as_published(chinchilla: Study, kind: str) -> None:
    found = approach3.fit(chinchilla.params, chinchilla.tokens, chinchilla.loss)
    residual = approach3.residuals(found, chinchilla.loss)
    j = approach3.jacobian(found.design, found.point)
    leverage = np.einsum("ni,ij,nj->n", j, np.linalg.inv(j.T @ j), j)
    around = Around(np.log(chinchilla.loss) - residual, residual, leverage, 0.0, 5)
    y, w = replicates(kind, 1500, around, strata(chinchilla), clusters(chinchilla), np.random.default_rng(7))
    surfaces, _ = approach3.refit(found, y, w)
    draws = surfaces[:, 4] / (surfaces[:, 3] + surfaces[:, 4])
    sd, low, high = SPREADS[kind]
    assert draws.std() == pytest.approx(sd, rel=0.12)
    assert np.quantile(draws, [0.025, 0.975]) == pytest.approx([low, high], abs=0.008)


def test_the_case_bootstrap_gives_the_published_intervals(chinchilla: Study) -> None:
    found = approach3.fit(chinchilla.params, chinchilla.tokens, chinchilla.loss)
    w = np.random.default_rng(0).multinomial(240, np.full(240, 1 / 240), 4000).astype(float)
    surfaces, _ = approach3.refit(found, np.log(chinchilla.loss)[None], w)
    low, high = np.quantile(surfaces, [0.025, 0.975], axis=0)
    assert (low[0], high[0]) == pytest.approx((1.769, 1.871), abs=0.006)
    assert (low[3], high[3]) == pytest.approx((0.317, 0.373), abs=0.003)
    assert (low[4], high[4]) == pytest.approx((0.331, 0.415), abs=0.006)
    assert (low[1], high[1]) == pytest.approx((285.2, 743.6), rel=0.06)
    assert (low[2], high[2]) == pytest.approx((1042, 5810), rel=0.10)
    assert surfaces.std(0)[[0, 3, 4]] == pytest.approx([0.0257, 0.0154, 0.0206], rel=0.1)
    a = surfaces[:, 4] / (surfaces[:, 3] + surfaces[:, 4])
    assert a.std() == pytest.approx(0.020, abs=0.001)
    assert np.subtract(*np.quantile(a, [0.9, 0.1])) == pytest.approx(0.051, abs=0.002)


def rows_of(path: Path | str) -> list[dict[str, str]]:
    with open(path, encoding="utf-8") as file:
        return list(csv.DictReader(file))


GEMSTONES = ("hot", "cool_end", "cool_begin", "lr_ablation_hot", "hot_sampled_like_chinchilla", "slim_chinchilla")


@pytest.mark.parametrize("delta", [1e-3, 1e-4])
@pytest.mark.parametrize("name", GEMSTONES)
def test_gemstones_objectives_are_nowhere_above_the_published(recorded: Path, read: Read, name: str, delta: float) -> None:
    (row,) = (r for r in rows_of(recorded / "gemstones_check.csv") if r["ds"] == name and float(r["delta"]) == delta)
    study = read(recorded / "gemstones" / f"{name}.jsonl", ["params=params_active_precise"], repeats="all")
    assert len(study) == int(row["n"])
    found = approach3.fit(study.params, study.tokens, study.loss, delta)
    assert found.objective <= float(row["pub_obj"]) and found.objective <= float(row["our_obj"]) + 1e-12


STUDIES = {  # (file, dataset, hparams, warmup, decay, param_count): (published exponent, noise)
    ("summary_df", "rw", "base", "long", "kaplan", "kaplan"): (0.8353, 0.002),
    ("summary_df", "rw", "base", "long", "kaplan", "standard"): (0.7065, 0.002),
    ("summary_df", "rw", "base", "short", "kaplan", "standard"): (0.6020, 0.002),
    ("summary_df", "rw", "base", "short", "chinchilla", "standard"): (0.5715, 0.002),
    ("summary_df", "rw", "tuned", "short", "const", "standard"): (0.4969, 0.002),
    ("summary_df_owt2", "owt2", "base", "long", "kaplan", "kaplan"): (0.8635, 0.01),
    ("summary_df_owt2", "owt2", "base", "long", "kaplan", "standard"): (0.6985, 0.01),
    ("summary_df_owt2", "owt2", "base", "short", "kaplan", "standard"): (0.6032, 0.01),
    ("summary_df_owt2", "owt2", "base", "short", "chinchilla", "standard"): (0.5743, 0.01),
    ("summary_df_owt2", "owt2", "tuned", "short", "const", "standard"): (0.5185, 0.01),
    ("summary_df_att", "rw", "base", "long", "kaplan", "attention"): (0.7171, 0.002),
    ("summary_df_att", "rw", "base", "short", "kaplan", "attention"): (0.6223, 0.002),
    ("summary_df_att", "rw", "base", "short", "chinchilla", "attention"): (0.5772, 0.002),
    ("summary_df_att", "rw", "tuned", "short", "const", "attention"): (0.5053, 0.002),
    ("summary_df_kaplan_tuned_hparams", "rw", "tuned", "long", "const", "kaplan"): (0.7115, 0.002),
}


def test_porian_exponents_by_their_recipe(recorded: Path, read: Read) -> None:
    names = ("file", "dataset", "hparams", "warmup", "decay", "param_count")
    for study_, (published, noise) in STUDIES.items():
        where = [f"{name}={value}" for name, value in zip(names, study_, strict=True)]
        study = read(recorded / "porian" / "isoflop_points.csv", where=where, repeats="min")
        found = akima.porian(study.params, study.loss, study.budgets, noise, 1000, np.random.default_rng(0))
        assert found.exponent == pytest.approx(published, abs=0.005), study_


def test_olmo_ladder_forecast_and_its_doubt(recorded: Path, read: Read) -> None:
    ladder = read(recorded / "olmo_ladder" / "ladder_summary.csv", ["loss=c4_ce_ma5"], ["mode=train"])
    settings = Settings(approaches=("3",), replicates=300)
    answer = by_surface(ladder, settings)
    assert at_run(answer, 13202396160, 596057 * 8388608, 0.95)["loss"] == pytest.approx(2.3444, abs=5e-5)
    assert at_run(answer, 6887575552, 3945065873408, 0.95)["loss"] == pytest.approx(2.4337, abs=5e-5)
    assert judge(ladder, answer, [answer, by_parabolas(ladder, settings)], {}).verdict == "underdetermined"


def test_olmo_raw_curves_by_eval_window(recorded: Path, ask: Ask, tmp_path: Path) -> None:
    loss = "loss=eval/c4_en-validation/CrossEntropyLoss"
    out = tmp_path / "olmo.csv"
    file = str(recorded / "olmo_ladder" / "190M-1xC.csv")
    code, _ = ask(
        "collect",
        file,
        "--columns",
        loss,
        "steps=_step",
        "--set",
        "params=190354176",
        "batch_tokens=524288",
        "--eval-window",
        "5",
        "--csv",
        str(out),
    )
    (row,) = rows_of(out)
    assert code == 0 and float(row["loss"]) == pytest.approx(3.605174493789673, abs=1e-12) and row["tokens"] == "3812622336"


def test_olmo_13b_tokens_are_seen_to_be_of_one_step(recorded: Path, read: Read) -> None:
    study = read(recorded / "olmo_ladder" / "ladder_summary.csv", ["loss=c4_ce_ma5"])
    reasons = {row["row"].rpartition(":")[2]: row["reason"] for row in study.excluded}
    assert "tokens of one step" in reasons["19"]


@pytest.mark.parametrize(("dataset", "a"), [("c4_original", 0.509), ("rpj", 0.529), ("rw_original", 0.566)])
def test_gadre_exponents(recorded: Path, read: Read, dataset: str, a: float) -> None:
    study = read(recorded / "mlf_scaling" / "models.csv", ["loss=loss_c4_val"], [f"dataset={dataset}"])
    assert approach3.fit(study.params, study.tokens, study.loss).surface.exponent == pytest.approx(a, abs=6e-4)


def test_own_study_trusts_parabolas_and_rejects_the_surface(recorded: Path, ask: Ask) -> None:
    file = str(recorded / "own_study" / "runs_v2.csv")
    code, said = ask("fit", "--csv", file, "--columns", "params=N_head", "--where", "seed=0", "--approach", "2", "3", "--bootstrap", "300")
    data = said["data"]
    two, three = data["fits"]
    assert code == 0 and data["trusted"] == "2" and 0.50 < two["exponents"]["a"] < 0.56
    assert all(budget["params"] for budget in data["budgets"]) and len(data["budgets"]) == 4
    assert any("surface form rejected, trust approach 2" in d["reason"] for d in three["diagnostics"] if d["level"] != "identified")


def test_vpnls_is_the_least_squares_optimum(chinchilla: Study) -> None:
    found = vpnls.fit(chinchilla.params, chinchilla.tokens, chinchilla.loss)
    residual = chinchilla.loss - found.surface.loss(chinchilla.params, chinchilla.tokens)
    assert found.objective == pytest.approx(float(residual @ residual), rel=1e-10)
    rng = np.random.default_rng(0)
    s = found.surface
    for _ in range(200):
        near = Surface(*(np.array([s.E, s.A, s.B, s.alpha, s.beta]) * np.exp(rng.normal(0, 0.003, 5))))
        off = chinchilla.loss - near.loss(chinchilla.params, chinchilla.tokens)
        assert off @ off >= found.objective


# Left out by hand in the source ("outliers removed"), beside repeats by seed and other hyperparameters.
REPEATED_OUTLIERS = [
    "2b84b4b", "2b88b4b", "2b812b4b", "2b816b4b", "2b824b4b", "2b855b1b25", "4b212b12b", "4b224b12b", "4b284b1b9", "4b284b6b",
    "2b8100m100m", "14m7b5100m", "14m300b100m", "1b12b7100m", "1b13b9100m", "1b15b9100m", "1b17b5100m", "619m3b9100m", "619m5b9100m",
    "619m7b5100m", "2b84b8100m", "1b58b8100m", "1b112b100m", "619m22b100m", "421m300b1b5", "221m91b400m", "221m174b400m",
    "221m600b400m", "8b712b12b", "8b712b1b5", "8b712b400m", "8b712b100m", "3b926b1b5", "2b836b1b5", "2b836b400m", "2b836b100m",
    "2b246b400m", "2b246b100m", "1b566b1b5", "1b566b100m", "1b191b400m", "1b191b1b5", "1b1250b1b5", "1b5174b1b5", "2b291b1b5",
    "2b2174b1b5", "8b720b1b5", "2b877b1b5"
]  # fmt: skip


def test_repeated_data_has_the_published_minimum_and_a_lower_one(recorded: Path) -> None:
    """R_D* 15.388 and R_N* 5.310 are a local minimum of the published objective; another lies 0.03 % lower: the rows do not tell."""
    rows = rows_of(recorded / "datablations" / "c4_val_losses.csv")
    kept = [r for r in rows if r["name"] not in REPEATED_OUTLIERS and not any(word in r["name"] for word in ("seed", "opt", "dedup"))]
    n, d, u, loss = (np.array([float(r[key]) for r in kept]) for key in ("params", "tokens", "unique_tokens", "val_loss"))
    surface = Surface(np.exp(0.6254804), np.exp(6.255414), np.exp(7.3049974), 0.3526596, 0.3526596)
    found = repeated.fit(surface, n, d, u, loss)
    assert len(kept) == 181
    near = [m for m in found.minima if m[0] == pytest.approx(15.388, rel=0.01) and m[1] == pytest.approx(5.310, rel=0.01)]
    assert len(near) == 1 and found.objective < near[0][2] < found.objective * 1.001
