# isoflop/identify.py without its comments
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainwright.isoflop import approach3
from trainwright.isoflop.estimates import Estimate
from trainwright.isoflop.newton import Array
from trainwright.isoflop.power import INTERIOR_BAD, INTERIOR_GOOD, NARROW, WIDE, condition
from trainwright.isoflop.rows import Study
from trainwright.isoflop.statistics import f_tail, interval

LEVELS = ("identified", "weak", "underdetermined")
_REJECT = 0.01
_LARGE_CONDITION = 2000.0
_FEW_BUDGETS = 8
_PRACTICAL = 0.01
_MATTERS = 1.5
_COLLINEAR, _HOPELESSLY_COLLINEAR = 0.95, 0.995


@dataclass(frozen=True, slots=True)
class Diagnostic:

    key: str
    name: str
    value: Any
    level: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {"key": self.key, "name": self.name, "value": self.value, "level": self.level, "reason": self.reason}


@dataclass(slots=True)
class Verdict:

    verdict: str
    diagnostics: list[Diagnostic] = field(default_factory=list)

    @property
    def reasons(self) -> list[str]:
        return [d.reason for d in self.diagnostics if d.level == self.verdict and d.level != "identified"]

    @property
    def doubts(self) -> list[str]:
        return [d.reason for d in self.diagnostics if d.level != "identified"]


def worst(diagnostics: Sequence[Diagnostic]) -> str:
    return LEVELS[max((LEVELS.index(d.level) for d in diagnostics), default=0)]


def judge(study: Study, answer: Estimate, others: Sequence[Estimate], left_out: dict[str, Any]) -> Verdict:
    if answer.refused or answer.exponent is None:
        return Verdict("underdetermined", [Diagnostic("refused", "fit", None, "underdetermined", answer.refused or "no exponent")])
    parabolas = next((other for other in others if other.approach == "2"), None)
    found = [*_width(answer), *(_schedule(study) if answer.approach == "1" else _evidence(answer, parabolas)), *_design(study)]
    if answer.surface is not None:
        found += [*_surface(study, answer), *_lack_of_fit(study, answer, parabolas), *_held_out(study, answer, left_out)]
    found += _disagreement(answer, others)
    return Verdict(worst(found), found)


def _level(bad: bool, doubtful: bool) -> str:
    return "underdetermined" if bad else "weak" if doubtful else "identified"


def _width(answer: Estimate) -> list[Diagnostic]:
    draws = answer.draws
    if not len(draws):
        return [Diagnostic("c", "width of the 90 % interval", None, "weak", "no bootstrap was asked for: the exponent has no interval")]
    low, high = interval(draws, 0.9)
    scale = 1.0
    if answer.exponent is not None and "a" in answer.intervals:
        plain = np.subtract(*interval(draws, 0.95)[::-1])
        scale = float(np.subtract(*answer.intervals["a"][::-1]) / plain) if plain > 0 else 1.0
    width = (high - low) * max(scale, 1.0)
    lost = float(1 - np.isfinite(draws).mean())
    level = _level(not width <= WIDE or lost > 0.5, width > NARROW or lost > 0.1)
    reason = f"the 90 % interval of the exponent is {width:.3f} wide" + (f", and {lost:.0%} of replicates have none" if lost > 0.1 else "")
    return [Diagnostic("c", "width of the 90 % interval", width, level, f"{reason} (above {NARROW} weak, above {WIDE} nothing)")]


def _evidence(answer: Estimate, parabolas: Estimate | None) -> list[Diagnostic]:
    if parabolas is None or parabolas.parabolas is None:
        return [Diagnostic("b", "minima", None, "weak", "approach 2 was not run: nothing shows that the budgets have minima")]
    found = parabolas.parabolas
    least = 4
    judged = [i for i, group in enumerate(found.groups) if group.distinct >= least]
    kept = len(found.kept)
    value = {"budgets": len(found.groups), "judged": len(judged), "with_minimum": kept, "interior": parabolas.interior}
    if len(judged) < 3:
        level = "underdetermined" if answer.approach == "2" else "weak"
        reason = f"{len(judged)} budgets have the four sizes a parabola needs: the exponent rests on the form of the surface alone"
        return [Diagnostic("b", "minima", value, level, reason)]
    reason = f"{kept} of {len(judged)} budgets show a minimum with significant curvature inside the sizes tried"
    rows = [Diagnostic("b", "minima", value, _level(kept < 3 or kept < len(judged) / 2, kept < len(judged) * 2 / 3), reason)]
    inside = parabolas.interior
    if inside is not None:
        text = f"all budgets keep their minimum inside in {inside:.0%} of replicates ({parabolas.kind} bootstrap)"
        few = len(judged) <= _FEW_BUDGETS
        level = _level(few and inside < INTERIOR_BAD and kept < len(judged), few and inside < INTERIOR_GOOD)
        rows.append(Diagnostic("b", "all minima inside", inside, level, text))
    return rows


def _schedule(study: Study) -> list[Diagnostic]:
    text = "the envelope touches points inside runs: their learning rate had not decayed there, unless the schedule is constant"
    return [Diagnostic("schedule", "schedule", None, "weak", text)]


def _design(study: Study) -> list[Diagnostic]:
    spreads = [float(np.ptp(np.log(study.params[study.budgets == budget]))) for budget in np.unique(study.budgets)]
    spread = float(np.exp(np.median(spreads)))
    budgets, sizes = len(spreads), len(np.unique(study.params))
    text = f"N spreads {spread:.3g}x in the median budget; {budgets} budgets, {sizes} sizes"
    rows = [Diagnostic("j", "N-spread", {"median": spread, "budgets": budgets, "sizes": sizes}, "identified", text)]
    log_n, log_d = np.log(study.params), np.log(study.tokens)
    if log_n.std() == 0 or log_d.std() == 0:
        return [*rows, Diagnostic("k", "collinearity", 1.0, "underdetermined", "N or D is the same in every row")]
    r = float(np.corrcoef(log_n, log_d)[0, 1])
    level = _level(abs(r) > _HOPELESSLY_COLLINEAR, r > _COLLINEAR)
    return [
        *rows,
        Diagnostic("k", "collinearity", r, level, f"ln N and ln D correlate at {r:.3f}: a ladder with D ~ N cannot part alpha from beta"),
    ]


def _surface(study: Study, answer: Estimate) -> list[Diagnostic]:
    surface = answer.surface
    assert surface is not None
    number = condition(surface, study.params, study.tokens)
    rows = [
        Diagnostic(
            "d", "condition", number, _level(False, not number < _LARGE_CONDITION), f"the scaled Jacobian's condition is {number:.3g}"
        )
    ]
    least = float(study.loss.min())
    with np.errstate(over="ignore", invalid="ignore"):
        shares = {
            "E": surface.E / least,
            "A": float(np.max(surface.A * study.params**-surface.alpha)) / least,
            "B": float(np.max(surface.B * study.tokens**-surface.beta)) / least,
        }
    gone = [name for name, share in shares.items() if not share > 1e-3]
    bad_exponent = [name for name, value in (("alpha", surface.alpha), ("beta", surface.beta)) if not 0.01 < value < 3]
    if gone or bad_exponent:
        level = "weak" if gone == ["E"] and not bad_exponent else "underdetermined"
        rows.append(Diagnostic("f", "bounds", [*gone, *bad_exponent], level, f"at a bound: {', '.join([*gone, *bad_exponent])}"))
    if surface.E / least > 1:
        rows.append(Diagnostic("g", "E", surface.E, "underdetermined", f"E = {surface.E:.4g} is above the lowest loss {least:.4g}"))
    return rows


def _lack_of_fit(study: Study, answer: Estimate, parabolas: Estimate | None) -> list[Diagnostic]:
    if parabolas is None or parabolas.parabolas is None:
        return []
    found = parabolas.parabolas
    rows = np.flatnonzero(np.isfinite(parabolas.residuals))
    groups = [group for group in found.groups if np.isfinite(parabolas.residuals[group.rows]).all()]
    free = len(rows) - 3 * len(groups)
    spent = 3 * len(groups) - 5
    if free < 3 or spent < 1:
        return []
    relative = parabolas.residuals[rows] / study.loss[rows]
    if parabolas.surface_squares is None:
        least_squares = approach3.fit(study.params[rows], study.tokens[rows], study.loss[rows], np.inf)
        parabolas.surface_squares = 2 * least_squares.objective
    inner, outer = float(relative @ relative), parabolas.surface_squares
    f = max(outer - inner, 0.0) / spent / max(inner / free, 1e-300)
    p = f_tail(f, spent, free)
    rms = float(np.sqrt(outer / len(rows)))
    text = f"the best surface misses ln L by {rms:.4f} rms where parabolas leave {np.sqrt(inner / free):.4f} (F test p = {p:.2g})"
    rejected = p < _REJECT and outer / len(rows) > _MATTERS**2 * inner / free
    verb = "surface form rejected, trust approach 2: " if rejected else ""
    return [Diagnostic("fit", "lack of fit", p, _level(False, rejected), f"{verb}{text}")]


def _held_out(study: Study, answer: Estimate, left_out: dict[str, Any]) -> list[Diagnostic]:
    row = next((r for r in left_out.get("fits", []) if r["approach"] == answer.approach), None)
    if row is None or "loss_error_rms" not in row:
        return []
    error = row["loss_error_rms"]
    assert answer.surface is not None
    own = study.loss / answer.surface.loss(study.params, study.tokens) - 1
    noise = float(np.sqrt(np.mean(own**2)))
    text = f"left out, the largest budget is forecast with an error of {error:.2%} rms; the fit's own is {noise:.2%}"
    return [Diagnostic("i", "leave largest out", error, _level(False, error > max(0.02, 5 * noise)), text)]


def _disagreement(answer: Estimate, others: Sequence[Estimate]) -> list[Diagnostic]:
    rows = []
    for other in others:
        if other.approach == answer.approach or other.refused or other.exponent is None or answer.exponent is None:
            continue
        if "a" not in other.intervals or "a" not in answer.intervals:
            continue
        joint = float(np.hypot(*(np.subtract(*f.intervals["a"][::-1]) / 2 for f in (answer, other))))
        gap = abs(answer.exponent - other.exponent)
        if not gap <= max(joint, _PRACTICAL):
            text = f"approaches {answer.approach} and {other.approach} differ by {gap:.3f}, beyond their joint interval of +-{joint:.3f}"
            rows.append(Diagnostic("h", "disagreement", gap, "weak", text))
    return rows


def overall(verdicts: dict[str, Verdict]) -> tuple[str, str]:
    order = [name for name in ("2", "3", "vpnls", "1") if name in verdicts]
    trusted = min(order, key=lambda name: LEVELS.index(verdicts[name].verdict))
    return trusted, verdicts[trusted].verdict


def noise_of_repeats(params: Array, tokens: Array, loss: Array) -> tuple[float | None, int]:
    keys = np.stack([params, tokens], axis=1)
    _, group = np.unique(keys, axis=0, return_inverse=True)
    group = group.ravel()
    counts = np.bincount(group)
    log_l = np.log(loss)
    means = np.bincount(group, log_l) / counts
    degrees = int((counts - 1).sum())
    if degrees < 3:
        return None, degrees
    return float(np.sqrt(((log_l - means[group]) ** 2).sum() / degrees)), degrees
