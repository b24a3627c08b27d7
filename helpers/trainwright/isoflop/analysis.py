"""One analysis: every fit that was asked, its diagnostics, verdicts, forecasts and remedy, as the data of the report."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainwright.errors import UserError
from trainwright.isoflop import akima, approach1, approach3, forecast, repeated
from trainwright.isoflop import profile as profiles
from trainwright.isoflop.estimates import Estimate, Settings, estimate_all
from trainwright.isoflop.identify import Verdict, judge, noise_of_repeats, overall
from trainwright.isoflop.power import NARROW, REFERENCE, Z90, Plan, Remedy, remedy
from trainwright.isoflop.rows import Study
from trainwright.isoflop.statistics import huber_ratio
from trainwright.isoflop.surface import Surface

_LEAST_REPLICATES = 20
_MANY_ROWS = 20_000  # above it what needs many full fits is left out, and said


@dataclass(slots=True, eq=False)
class Analysis:
    """What was found: the data of the report, and the objects that text and charts are drawn from."""

    study: Study
    settings: Settings
    answers: list[Estimate]
    verdicts: dict[str, Verdict]
    data: dict[str, Any] = field(default_factory=dict)
    skipped: list[tuple[str, str]] = field(default_factory=list)

    def answer(self, approach: str) -> Estimate | None:
        return next((a for a in self.answers if a.approach == approach), None)


def settings_of(study: Study, options: argparse.Namespace) -> Settings:
    """What the options ask; without --approach everything that applies: approach 1 only where there are curves."""
    if 0 < options.bootstrap < _LEAST_REPLICATES:
        raise UserError(f"--bootstrap {options.bootstrap}: 0 for no intervals, or {_LEAST_REPLICATES} replicates and more")
    asked = options.approach or ["all"]
    names = [name for name in ("1", "2", "3", "vpnls") if name in asked or "all" in asked]
    if "1" not in asked and approach1.why_not(study):
        names.remove("1") if "1" in names else None
    if options.tied and "vpnls" not in asked and "vpnls" in names:
        names.remove("vpnls")
    return Settings(
        approaches=tuple(names),
        delta=options.delta,
        kind=options.bootstrap_kind,
        replicates=options.bootstrap,
        seed=options.seed,
        level=options.level,
        tied=options.tied,
        fixed_e=options.fixed_e,
        sigma=options.sigma,
        weighted=options.weights == "delta",
        least_points=options.min_points,
    )


def analyse(study: Study, options: argparse.Namespace) -> Analysis:
    """Fit, judge, forecast. Fits that went astray leave infinities and NaN on their way, which are judged, not warned of."""
    with np.errstate(all="ignore"):
        return _analysed(study, options)


def _analysed(study: Study, options: argparse.Namespace) -> Analysis:
    settings = settings_of(study, options)
    answers = estimate_all(study, settings)
    witnesses = answers if any(a.approach == "2" for a in answers) else [*answers, *_witness(study, settings)]
    left_out: dict[str, Any] = {"left_out": None, "reason": f"not computed above {_MANY_ROWS} rows", "fits": []}
    if len(study) <= _MANY_ROWS:
        left_out = forecast.leave_largest_out(study, settings)
    verdicts = {answer.approach: judge(study, answer, witnesses, left_out) for answer in answers}
    result = Analysis(study, settings, answers, verdicts)
    trusted, verdict = overall(verdicts)
    data = result.data = {
        "action": "fit",
        "rows": {
            "read": len(study) + len(study.excluded),
            "used": len(study),
            "excluded": len(study.excluded),
            "not_selected": study.table.not_selected,
        },
        "fits": [_fit(result, answer) for answer in answers],
        "verdict": verdict,
        "trusted": trusted,
        "reasons": verdicts[trusted].reasons,
        "excluded": study.excluded,
        "budgets": _budgets(witnesses),
        "agreement": _agreement(answers),
        "left_out": left_out,
        "noise": _noise(study, settings),
    }
    data |= _sensitivity(result, answers)
    data["forecasts"] = _forecasts(result, answers, options)
    data["recipe"] = _recipe(study, options) if options.recipe else None
    data["compare"] = _compare(study, answers, options, settings) if options.compare else None
    data["repeated_data"] = _repeated(study, options, settings) if options.repeated_data else None
    data["remedy"] = None if verdict == "identified" else remedy_json(study, answers, witnesses)
    data["settings"] = _settings_json(settings)
    return result


def _witness(study: Study, settings: Settings) -> list[Estimate]:
    """Approach 2, which was not asked for: only its minima are looked at, as evidence."""
    from dataclasses import replace

    return estimate_all(study, replace(settings, approaches=("2",), kind="", replicates=min(settings.replicates, 300)))


def _fit(result: Analysis, answer: Estimate) -> dict[str, Any]:
    verdict = result.verdicts[answer.approach]
    minima = answer.parabolas
    return {
        "approach": answer.approach,
        "objective": answer.objective,
        "objective_kind": answer.objective_kind,
        "parameters": answer.surface.to_json() if answer.surface else None,
        "exponents": {"a": answer.exponent, "b": answer.token_exponent},
        "intercept": minima.intercept if minima else None,
        "intervals": {name: list(pair) for name, pair in answer.intervals.items()},
        "sd": {"a": float(np.nanstd(answer.draws))} if np.isfinite(answer.draws).any() else {},
        "bootstrap": {"kind": answer.kind, "replicates": len(answer.draws), "finite": int(np.isfinite(answer.draws).sum())},
        "rows_used": len(result.study),
        "rows_excluded": len(result.study.excluded),
        "refused": answer.refused,
        "verdict": verdict.verdict,
        "reasons": verdict.reasons,
        "diagnostics": [d.to_json() for d in verdict.diagnostics],
        "notes": answer.notes,
    }


def _budgets(answers: list[Estimate]) -> list[dict[str, Any]]:
    parabolas = next((a.parabolas for a in answers if a.parabolas is not None), None)
    if parabolas is None:
        return []
    return [
        {
            "flops": m.flops,
            "points": m.points,
            "n_spread": m.spread,
            "curvature": m.curvature,
            "curvature_t": m.curvature_t,
            "params": m.params,
            "tokens": m.tokens,
            "loss": m.loss,
            "log_params_sd": m.sd,
            "flat": m.flat,
            "refused": m.refused,
        }
        for m in parabolas.minima
    ]


def _agreement(answers: list[Estimate]) -> list[dict[str, Any]]:
    rows = []
    standing = [a for a in answers if a.exponent is not None]
    for i, one in enumerate(standing):
        for other in standing[i + 1 :]:
            gap = abs((one.exponent or 0.0) - (other.exponent or 0.0))
            joint = None
            if "a" in one.intervals and "a" in other.intervals:
                joint = float(np.hypot(*(np.subtract(*f.intervals["a"][::-1]) / 2 for f in (one, other))))
            rows.append(
                {
                    "approaches": [one.approach, other.approach],
                    "difference": gap,
                    "joint_half_width": joint,
                    "agree": joint is None or gap <= max(joint, 0.01),
                }
            )
    return rows


def _noise(study: Study, settings: Settings) -> dict[str, Any]:
    sd, degrees = noise_of_repeats(study.params, study.tokens, study.loss)
    if settings.sigma is not None:
        return {"log_loss_sd": settings.sigma, "source": "--sigma"}
    return {"log_loss_sd": sd, "source": f"repeats of equal N and D, {degrees} degrees of freedom" if sd is not None else None}


def _sensitivity(result: Analysis, answers: list[Estimate]) -> dict[str, Any]:
    """The profile over the exponent and the fits at other deltas, where approach 3 stands."""
    surface = next((a for a in answers if a.approach == "3" and a.found is not None), None)
    empty: dict[str, Any] = {"profile": None, "delta_sensitivity": []}
    if surface is None:
        return empty
    study, settings = result.study, result.settings
    if len(study) > _MANY_ROWS:
        result.skipped.append(("profile and delta sensitivity", f"{len(study)} rows; they are computed up to {_MANY_ROWS}"))
        return empty
    profile = None
    if not settings.tied:
        grid, values = profiles.profile(surface.found, study.loss)
        low, high = profiles.profile_interval(surface.found, study.loss, grid, values)
        profile = {"a": grid.tolist(), "objective": values.tolist(), "interval": [low, high]}
    rows = profiles.delta_sensitivity(surface.found, study.loss)
    return {
        "profile": profile,
        "delta_sensitivity": [{**row, "delta": row["delta"] if np.isfinite(row["delta"]) else "inf"} for row in rows],
    }


def factor_of(study: Study) -> float:
    """C / (N D), the median over the rows: 6 where C = 6 N D."""
    return float(np.median(study.flops / (study.params * study.tokens)))


def _forecasts(result: Analysis, answers: list[Estimate], options: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    level, factor = options.level, factor_of(result.study)
    for answer in (a for a in answers if a.exponent is not None):
        of = {"approach": answer.approach, "verdict": result.verdicts[answer.approach].verdict}
        rows += [of | forecast.at_compute(answer, c, factor, level) for c in options.forecast_flops]
        rows += [of | forecast.at_run(answer, n, d, level) for n, d in options.forecast_run if answer.surface]
    return rows


def _recipe(study: Study, options: argparse.Namespace) -> dict[str, Any]:
    found = akima.porian(
        study.params, study.loss, study.budgets, options.noise, max(options.bootstrap, 400), np.random.default_rng(options.seed)
    )
    low, high = np.nanquantile(found.replicates, [0.025, 0.975]) if len(found.replicates) else (np.nan, np.nan)
    keys = zip(found.flops.tolist(), found.params.tolist(), found.sd.tolist(), found.interior.tolist(), strict=True)
    budgets = [{"flops": c, "params": n, "log_params_sd": sd, "interior": p} for c, n, sd, p in keys]
    return {
        "name": "porian",
        "noise": options.noise,
        "exponents": {"a": found.exponent},
        "interval": [float(low), float(high)],
        "budgets": budgets,
    }


def _compare(study: Study, answers: list[Estimate], options: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    surface = Surface(*options.compare)
    value = approach3.objective(surface, study.params, study.tokens, study.loss, settings.delta)
    found: dict[str, Any] = {"parameters": surface.to_json(), "objective": value, "exponents": {"a": surface.exponent}}
    three = next((a for a in answers if a.approach == "3" and a.objective is not None), None)
    ratio = huber_ratio(value, three.objective or 0.0, len(study), settings.delta) if three is not None else None
    return found | ({"likelihood_ratio": {"statistic": ratio[0], "degrees": 5, "p": ratio[1]}} if ratio else {})


def _repeated(study: Study, options: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    """What repeated tokens and excess parameters are worth, over the given surface."""
    unique = study.table.number("unique_tokens")
    if not np.isfinite(unique).all():
        raise UserError("--repeated-data needs the unique tokens of every row: --columns unique_tokens=COLUMN")
    found = repeated.fit(Surface(*options.repeated_data), study.params, study.tokens, unique, study.loss, settings.delta)
    minima = [{"R_D": d, "R_N": n, "objective": value} for d, n, value in found.minima]
    return {"R_D": found.data_repetitions, "R_N": found.parameter_repetitions, "objective": found.objective, "minima": minima}


def remedy_json(study: Study, answers: list[Estimate], witnesses: list[Estimate]) -> dict[str, Any]:
    """The least set of runs that would make the study identify its exponent, on the fitted surface where it is a sane one."""
    surface = next((a.surface for a in answers if a.surface is not None and sane(a.surface, study)), None)
    relative = [a.residuals[np.isfinite(a.residuals)] for a in witnesses if a.approach == "2"]
    noise = float(np.std(relative[0]) / study.loss.mean()) if relative and len(relative[0]) > 3 else 0.005
    plan = Plan(study.params, study.tokens, study.budgets, surface or REFERENCE, max(noise, 1e-4), relative=True)
    if len(study) > _MANY_ROWS:
        return {"runs": [], "reason": f"{len(study)} rows; a remedy is searched for up to {_MANY_ROWS}"}
    found = remedy(plan, 0.9 * NARROW / Z90)
    if not found.runs:
        said = f"on the assumed surface these runs would do (predicted sd of a {found.sd_exponent:.3f}): the design is not at fault"
        return {"runs": [], "reason": f"{said}; look for rows that do not belong before adding runs"}
    return remedy_rows(found) | {
        "assumed_surface": (surface or REFERENCE).to_json(),
        "assumed_log_loss_sd": plan.sigma,
        "from_fit": surface is not None,
    }


def remedy_rows(found: Remedy) -> dict[str, Any]:
    runs = [{"flops": c, "params": n, "tokens": d} for c, n, d in found.runs]
    return {
        "runs": runs,
        "cost_flops": found.cost,
        "sd_exponent": found.sd_exponent,
        "all_minima_inside": found.interior,
        "reached": found.reached,
    }


def sane(surface: Surface, study: Study) -> bool:
    """A surface that a plan may be laid on: ordinary exponents, and an optimum not far from where runs were."""
    if not (0.05 < surface.alpha < 1.5 and 0.05 < surface.beta < 1.5 and surface.A > 0 and surface.B > 0):
        return False
    best = surface.optimal_params(study.flops, factor_of(study))
    return bool(np.median(np.abs(np.log(best / study.params))) < np.log(30))


def _settings_json(settings: Settings) -> dict[str, Any]:
    return {
        "approaches": list(settings.approaches),
        "delta": settings.delta if np.isfinite(settings.delta) else "inf",
        "bootstrap": settings.replicates,
        "bootstrap_kind": settings.kind or "each approach's default",
        "seed": settings.seed,
        "level": settings.level,
        "tied": settings.tied,
        "fixed_e": settings.fixed_e,
        "sigma": settings.sigma,
        "weights": "delta" if settings.weighted else "equal",
        "min_points": settings.least_points,
    }
