"""One fit by each approach, with its bootstrap: what `fit` reports, before anything is judged.

The default kind of bootstrap per approach is the one whose 95 % intervals covered best on simulated studies (docs/isoflop-coverage.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainwright.isoflop import approach1, approach2, approach3, vpnls
from trainwright.isoflop.bootstrap import WEIGHING, Around, replicates
from trainwright.isoflop.newton import Array
from trainwright.isoflop.rows import Study
from trainwright.isoflop.statistics import interval, t_quantile
from trainwright.isoflop.surface import Surface

DEFAULT_KIND = {"1": "cluster", "2": "residual", "3": "dirichlet", "vpnls": "case"}
_WORK = 20_000_000  # rows x replicates: beyond it fewer replicates are drawn
_NAMES = ("E", "A", "B", "alpha", "beta")


@dataclass(frozen=True, slots=True)
class Settings:
    """How to fit. `kind` "" is each approach's default; `sigma` the sd of ln L between seeds where it is known."""

    approaches: tuple[str, ...] = ("2", "3", "vpnls")
    delta: float = approach3.DELTA
    kind: str = ""
    replicates: int = 1000
    seed: int = 0
    level: float = 0.95
    tied: bool = False
    fixed_e: float | None = None
    sigma: float | None = None
    weighted: bool = True
    least_points: int = approach2.LEAST_POINTS


@dataclass(slots=True, eq=False)
class Estimate:
    """One approach's answer. `draws` are the replicates' exponents a; `surfaces` [R, 5] theirs where there is a surface.

    `refused` says in one line why there is no answer. `notes` are what a reader has to know to read the numbers.
    """

    approach: str
    objective: float | None = None
    objective_kind: str = ""
    surface: Surface | None = None
    exponent: float | None = None
    token_exponent: float | None = None
    kind: str = ""
    draws: Array = field(default_factory=lambda: np.zeros(0))
    surfaces: Array = field(default_factory=lambda: np.zeros((0, 5)))
    intercepts: Array = field(default_factory=lambda: np.zeros(0))
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    interior: float | None = None
    parabolas: approach2.ParabolaFit | None = None
    envelope: approach1.EnvelopeFit | None = None
    found: Any = None
    residuals: Array = field(default_factory=lambda: np.zeros(0))
    fitted_loss: Array = field(default_factory=lambda: np.zeros(0))
    surface_squares: float | None = None  # of ln L, by the best surface on the rows that approach 2 judged
    refused: str = ""
    notes: list[str] = field(default_factory=list)

    def optimal_params(self, flops: Array, factor: float) -> Array | None:
        """N* by this approach."""
        if self.parabolas is not None:
            return self.parabolas.optimal_params(flops)
        if self.envelope is not None:
            return self.envelope.optimal_params(flops)
        return self.surface.optimal_params(flops, factor) if self.surface else None


def estimate_all(study: Study, settings: Settings) -> list[Estimate]:
    """Every approach that was asked, in that order."""
    makers: dict[str, Callable[[Study, Settings], Estimate]] = {"1": by_envelope, "2": by_parabolas, "3": by_surface, "vpnls": by_vpnls}
    return [makers[name](study, settings) for name in settings.approaches]


def clusters(study: Study) -> NDArray[np.intp]:
    """Rows of one run are one cluster; where no run has several rows, rows of one model size are."""
    runs = study.table.code("run_id")
    source = runs if len(np.unique(runs)) < len(runs) and (runs > 0).all() else study.params
    return np.asarray(np.unique(source, return_inverse=True)[1].ravel(), np.intp)


def strata(study: Study) -> NDArray[np.intp]:
    return np.asarray(np.unique(study.budgets, return_inverse=True)[1].ravel(), np.intp)


def _drawn(study: Study, settings: Settings, around: Around, kind: str) -> tuple[Array, Array, int]:
    count = min(settings.replicates, max(20, _WORK // max(len(study), 1)))
    rng = np.random.default_rng(settings.seed)
    y, w = replicates(kind, count, around, strata(study), clusters(study), rng)
    return y, w, count


def too_few(study: Study, unknowns: int) -> str:
    """Why a surface cannot be fitted to these rows, or ""."""
    sizes, amounts = len(np.unique(study.params)), len(np.unique(study.tokens))
    if len(study) <= unknowns:
        return f"{len(study)} rows for {unknowns} unknowns; at least {unknowns + 1} are needed"
    if sizes < 3 or amounts < 3:
        return f"{sizes} model sizes and {amounts} amounts of data; the surface needs three or more of each"
    return ""


def by_surface(study: Study, settings: Settings) -> Estimate:
    """Approach 3."""
    free = approach3.free_columns(settings.tied, settings.fixed_e is not None)
    kind = f"sum of Huber({settings.delta:g}) on ln L" if np.isfinite(settings.delta) else "half the sum of squares of ln L"
    answer = Estimate("3", objective_kind=kind, refused=too_few(study, free.shape[1]))
    if answer.refused:
        return answer
    found = approach3.fit(study.params, study.tokens, study.loss, settings.delta, settings.tied, settings.fixed_e)
    answer.objective, answer.surface, answer.found = found.objective, found.surface, found
    answer.exponent, answer.token_exponent = found.surface.exponent, 1 - found.surface.exponent
    answer.notes.append(
        f"{found.starts_agreeing} of {found.starts} cold starts were there within 100 steps; the best go on until they converge"
    )
    answer.residuals = approach3.residuals(found, study.loss)
    if settings.replicates:
        _bootstrap_surface(
            study, settings, answer, np.log(study.loss), lambda y, w: approach3.refit(found, y, w)[0], found.point, found.design
        )
    return answer


def by_vpnls(study: Study, settings: Settings) -> Estimate:
    """VPNLS; with tied exponents it is left out, for its outer problem is in both."""
    answer = Estimate("vpnls", objective_kind="sum of squares of L", refused=too_few(study, 5 - (settings.fixed_e is not None)))
    if settings.tied:
        answer.refused = "tied exponents are fitted by approach 3 only"
    if answer.refused:
        return answer
    found = vpnls.fit(study.params, study.tokens, study.loss, settings.fixed_e)
    answer.objective, answer.surface, answer.found = found.objective, found.surface, found
    answer.exponent, answer.token_exponent = found.surface.exponent, 1 - found.surface.exponent
    answer.residuals = study.loss - found.surface.loss(study.params, study.tokens)
    if settings.replicates:
        surface = np.array([[getattr(found.surface, name) for name in _NAMES]])
        point = found.design.unknowns(surface)[0]
        _bootstrap_surface(study, settings, answer, study.loss, lambda y, w: vpnls.refit(found, y, w)[0], point, found.design)
    return answer


def _bootstrap_surface(
    study: Study, settings: Settings, answer: Estimate, y: Array, refit: Callable[[Array, Array], Array], point: Array, design: Any
) -> None:
    """Fill in draws and intervals; `y` is what was fitted (L or ln L), `point` the unknowns whose Jacobian tells the leverages."""
    kind = settings.kind or DEFAULT_KIND[answer.approach]
    jacobian = approach3.jacobian(design, point)
    unknowns = 5 - settings.tied - (settings.fixed_e is not None)
    leverage = np.zeros(len(study))
    if np.isfinite(jacobian).all():  # a fit that went astray has none, and is judged as such
        leverage = np.einsum("ni,ij,nj->n", jacobian, np.linalg.pinv(jacobian.T @ jacobian), jacobian)
    degrees = max(len(study) - unknowns, 1)
    sigma = settings.sigma if settings.sigma is not None else float(np.sqrt(answer.residuals @ answer.residuals / degrees))
    around = Around(y - answer.residuals, answer.residuals, leverage, sigma, unknowns)
    new_y, w, _ = _drawn(study, settings, around, kind)
    answer.kind, answer.surfaces = kind, refit(new_y, w)
    alpha, beta = answer.surfaces[:, 3], answer.surfaces[:, 4]
    with np.errstate(divide="ignore", invalid="ignore"):
        answer.draws = beta / (alpha + beta)
    columns = {name: answer.surfaces[:, k] for k, name in enumerate(_NAMES)} | {"a": answer.draws, "b": 1 - answer.draws}
    centre = {name: getattr(answer.surface, name) for name in _NAMES} | {"a": answer.exponent, "b": answer.token_exponent}
    widen = 1.0 if kind in WEIGHING or settings.sigma is not None else t_ratio(settings.level, degrees)
    answer.intervals = {name: widened(interval(values, settings.level), centre[name], widen) for name, values in columns.items()}


def t_ratio(level: float, degrees: int) -> float:
    """What an interval is widened by because the noise was estimated from so few degrees of freedom."""
    return t_quantile(level, degrees) / t_quantile(level, 10**9)


def widened(found: tuple[float, float], centre: float | None, factor: float) -> tuple[float, float]:
    if factor == 1.0 or centre is None:
        return found
    return centre - (centre - found[0]) * factor, centre + (found[1] - centre) * factor


def by_parabolas(study: Study, settings: Settings) -> Estimate:
    """Approach 2. `interior` is the share of replicates in which every budget that has enough sizes shows its minimum inside them."""
    sigma = settings.sigma * float(study.loss.mean()) if settings.sigma is not None else None
    loss, slope = approach2.at_budget(study.params, study.flops, study.loss, study.budgets)
    found = approach2.fit(study.params, study.tokens, loss, study.budgets, settings.weighted, sigma, settings.least_points)
    answer = Estimate("2", objective_kind="weighted squares of ln N* about the line", parabolas=found, fitted_loss=loss)
    if slope is not None:
        answer.notes.append(f"rows of one budget differ in FLOPs: losses were carried to the budget along dL/dlnC = {slope:.4g}")
    answer.exponent, answer.token_exponent = found.exponent, found.token_exponent
    answer.residuals = np.full(len(study), np.nan)
    judged = [i for i, group in enumerate(found.groups) if group.distinct >= settings.least_points]
    if len(found.kept) < 2:
        answer.exponent = answer.token_exponent = None
        answer.refused = _too_few_minima(found, judged)
    else:
        answer.objective = _about_line(found)
    if settings.replicates and judged:
        _bootstrap_parabolas(study, settings, answer, found, judged)
    return answer


def _too_few_minima(found: approach2.ParabolaFit, judged: list[int]) -> str:
    if not judged:
        sizes = max(group.distinct for group in found.groups)
        return f"no budget has the sizes a parabola needs: {len(found.groups)} budgets, at most {sizes} sizes in one"
    reasons = "; ".join(f"{found.minima[i].flops:.3g} FLOP: {found.minima[i].refused}" for i in judged if found.minima[i].refused)
    return f"{len(found.kept)} of {len(judged)} budgets show a minimum, a line needs two: {reasons}"


def _about_line(found: approach2.ParabolaFit) -> float:
    kept = found.kept
    log_n = np.log([found.minima[i].params or np.nan for i in kept])
    fitted = (found.intercept or 0.0) + (found.exponent or 0.0) * np.log([found.groups[i].flops for i in kept])
    return float(found.weights @ (log_n - fitted) ** 2)


def _bootstrap_parabolas(study: Study, settings: Settings, answer: Estimate, found: approach2.ParabolaFit, judged: list[int]) -> None:
    kind = settings.kind or DEFAULT_KIND["2"]
    around = _around_parabolas(study, answer, found, judged)
    y, w, count = _drawn(study, settings, around, kind)
    inside, x = np.ones((count, len(judged)), bool), np.full((count, len(judged)), np.nan)
    log_d = np.full((count, len(judged)), np.nan)
    for column, i in enumerate(judged):
        group = found.groups[i]
        at, inside[:, column] = approach2.vertices(group, approach2.parabolas(group, y[:, group.rows], w[:, group.rows]))
        x[:, column], log_d[:, column] = at + group.centre, np.polyval(group.log_d, at)
    answer.kind, answer.interior = kind, float(inside.all(1).mean())
    if answer.exponent is None:
        return
    kept = [column for column, i in enumerate(judged) if i in found.kept]
    log_c = np.log([found.groups[judged[column]].flops for column in kept])
    weights = np.where(inside[:, kept], found.weights, 0.0)
    enough = inside[:, kept].sum(1) >= 2
    slopes, intercepts = approach2.line(log_c, x[:, kept], weights)
    token_slopes, _ = approach2.line(log_c, log_d[:, kept], weights)
    answer.draws, answer.intercepts = np.where(enough, slopes, np.nan), np.where(enough, intercepts, np.nan)
    widen = 1.0 if kind in WEIGHING or settings.sigma is not None else t_ratio(settings.level, found.degrees)
    pairs = {"a": (answer.draws, answer.exponent), "b": (np.where(enough, token_slopes, np.nan), answer.token_exponent)}
    answer.intervals = {name: widened(interval(draws, settings.level), centre, widen) for name, (draws, centre) in pairs.items()}


def _around_parabolas(study: Study, answer: Estimate, found: approach2.ParabolaFit, judged: list[int]) -> Around:
    """Fitted values, residuals and leverages of the judged budgets' parabolas; rows of others keep their loss."""
    loss = answer.fitted_loss
    fitted, leverage = loss.copy(), np.zeros(len(study))
    for i in judged:
        group = found.groups[i]
        c = approach2.parabolas(group, loss[None, group.rows], np.ones((1, len(group.rows))))[0]
        fitted[group.rows] = np.polyval(c, group.x)
        basis = np.stack([group.x**2, group.x, np.ones_like(group.x)], 1)
        leverage[group.rows] = np.einsum("ni,ij,nj->n", basis, approach2.covariance(group), basis)
        answer.residuals[group.rows] = loss[group.rows] - fitted[group.rows]
    sigma = found.sigma if np.isfinite(found.sigma) else 0.0
    return Around(fitted, loss - fitted, np.minimum(leverage, 0.95), sigma, 3 * len(judged))


def by_envelope(study: Study, settings: Settings) -> Estimate:
    """Approach 1: legal only where every point of the envelope ended its own schedule; needs curves, several rows a run."""
    answer = Estimate("1", objective_kind="squares of ln N about the line")
    answer.refused = approach1.why_not(study)
    if answer.refused:
        return answer
    found = approach1.fit(study.params, study.tokens, study.flops, study.loss)
    answer.envelope, answer.exponent, answer.token_exponent = found, found.exponent, found.token_exponent
    if found.exponent is None:
        answer.refused = f"{len(found.support)} points support the envelope; three sizes or more are needed"
        return answer
    answer.objective = found.objective
    answer.notes.append(f"{len(found.support)} points support the envelope; each has to be the end of its own schedule")
    if settings.replicates:
        answer.kind = "cluster"
        rng = np.random.default_rng(settings.seed)
        answer.draws, draws_b = approach1.resampled(study, clusters(study), min(settings.replicates, 500), rng)
        answer.intervals = {"a": interval(answer.draws, settings.level), "b": interval(draws_b, settings.level)}
    return answer
