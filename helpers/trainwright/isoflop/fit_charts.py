"""What a fit looks like: the charts that the page and the picture files share, as data."""

from __future__ import annotations

import numpy as np

from trainwright.isoflop import approach2
from trainwright.isoflop.analysis import Analysis, factor_of, sane
from trainwright.isoflop.charts import Chart, Series
from trainwright.isoflop.estimates import Estimate
from trainwright.isoflop.newton import Array
from trainwright.isoflop.power import REFERENCE, around_optimum, predicted_sd
from trainwright.isoflop.statistics import interval
from trainwright.page import COLOURS

_MOST_BUDGETS, _MOST_POINTS = 24, 4000


def charts(result: Analysis) -> list[Chart]:
    """Curves with parabolas and minima, N* and D* over C with bands, residuals, the profile, the replicates, the power of the design."""
    with np.errstate(all="ignore"):
        return _made(result)


def _made(result: Analysis) -> list[Chart]:
    made = [_curves(result), *_optima(result), _residuals(result), _profile(result), _draws(result), _power(result)]
    return [chart for chart in made if chart is not None and any(len(series.points) for series in chart.series)]


def _points(x: Array, y: Array) -> list[tuple[float, float]]:
    step = max(1, len(x) // _MOST_POINTS)
    return list(zip(x[::step].tolist(), y[::step].tolist(), strict=True))


def _parabolas(result: Analysis) -> Estimate | None:
    return result.answer("2")


def _curves(result: Analysis) -> Chart | None:
    study, answer = result.study, _parabolas(result)
    chart = Chart("Loss over N at each budget, with parabolas and minima", "N", "loss", log_x=True)
    if answer is None or answer.parabolas is None:
        chart.series.append(Series("rows", _points(study.params, study.loss), "dots"))
        return chart
    found = answer.parabolas
    loss = answer.fitted_loss
    judged = [i for i, group in enumerate(found.groups) if group.distinct >= 3]
    for k, i in enumerate(judged[-_MOST_BUDGETS:]):
        group, minimum, colour = found.groups[i], found.minima[i], COLOURS[k % len(COLOURS)]
        name = f"{group.flops:.3g} FLOP{' (refused)' if minimum.refused else ''}"
        chart.series.append(Series(name, _points(study.params[group.rows], loss[group.rows]), "dots", colour))
        c = approach2.parabolas(group, loss[None, group.rows], np.ones((1, len(group.rows))))[0]
        x = np.linspace(group.x.min(), group.x.max(), 60)
        chart.series.append(
            Series("", _points(np.exp(x + group.centre), np.polyval(c, x)), "dashes" if minimum.refused else "line", colour)
        )
        if minimum.params is not None and minimum.loss is not None:
            chart.series.append(Series("", [(minimum.params, minimum.loss)], "rings", colour))
    return chart


def _optima(result: Analysis) -> list[Chart]:
    study, factor = result.study, factor_of(result.study)
    flops = np.geomspace(study.flops.min() / 2, study.flops.max() * 10, 60)
    sizes = Chart(f"N* over C, {result.settings.level:.0%} bands", "C in FLOP", "N*", log_x=True, log_y=True)
    tokens = Chart("D* over C", "C in FLOP", "D*", log_x=True, log_y=True)
    answer = _parabolas(result)
    if answer is not None and answer.parabolas is not None:
        kept = [m for m in answer.parabolas.minima if m.params and m.tokens]
        sizes.series.append(Series("minima", [(m.flops, m.params or 0.0) for m in kept], "dots", "#555"))
        tokens.series.append(Series("minima", [(m.flops, m.tokens or 0.0) for m in kept], "dots", "#555"))
    for k, one in enumerate(result.answers):
        best = one.optimal_params(flops, factor)
        if best is None or result.verdicts[one.approach].verdict == "underdetermined":
            continue
        colour = COLOURS[k % len(COLOURS)]
        name = f"approach {one.approach}" if one.approach.isdigit() else one.approach
        sizes.series.append(Series("", _band(one, flops, factor, result.settings.level), "band", colour))
        sizes.series.append(Series(name, _points(flops, best), "line", colour))
        tokens.series.append(Series(name, _points(flops, flops / (factor * best)), "line", colour))
    return [sizes, tokens]


def _band(answer: Estimate, flops: Array, factor: float, level: float) -> list[tuple[float, float]]:
    """The replicates' interval of N* along C, there and back."""
    if len(answer.intercepts):
        with np.errstate(over="ignore"):
            draws = np.exp(answer.intercepts[:, None] + answer.draws[:, None] * np.log(flops))
    elif len(answer.surfaces):
        _, a, b, alpha, beta = answer.surfaces.T
        with np.errstate(all="ignore"):
            ratio = (alpha * a / (beta * b)) ** (1 / (alpha + beta))
            draws = ratio[:, None] * (flops / factor) ** (beta / (alpha + beta))[:, None]
    else:
        return []
    pairs = [interval(draws[:, k], level) for k in range(len(flops))]
    low = [(float(c), p[0]) for c, p in zip(flops, pairs, strict=True)]
    high = [(float(c), p[1]) for c, p in zip(flops, pairs, strict=True)]
    return low + high[::-1]


def _residuals(result: Analysis) -> Chart:
    chart = Chart("Residuals of ln L over C", "C in FLOP", "ln L minus its fit", log_x=True)
    for answer in (a for a in result.answers if a.surface is not None):
        assert answer.surface is not None
        study = result.study
        residual = np.log(study.loss / answer.surface.loss(study.params, study.tokens))
        chart.series.append(
            Series(f"approach {answer.approach}" if answer.approach.isdigit() else answer.approach, _points(study.flops, residual), "dots")
        )
    return chart


def _profile(result: Analysis) -> Chart | None:
    profile = result.data["profile"]
    if not profile:
        return None
    pairs = list(zip(profile["a"], profile["objective"], strict=True))
    return Chart("Least objective of approach 3 at each exponent", "a", "objective", [Series("objective", pairs)])


def _draws(result: Analysis) -> Chart:
    """How the replicates' exponents are spread: a histogram as a line, each approach's."""
    chart = Chart("Exponents of the replicates", "a", "share of replicates")
    for answer in result.answers:
        draws = answer.draws[np.isfinite(answer.draws)]
        if len(draws) < 20:
            continue
        low, high = np.quantile(draws, [0.005, 0.995])
        counts, edges = np.histogram(draws, bins=40, range=(float(low), float(high) if high > low else float(low) + 1e-9))
        middle = (edges[1:] + edges[:-1]) / 2
        name = f"approach {answer.approach}" if answer.approach.isdigit() else answer.approach
        chart.series.append(Series(name, _points(middle, counts / len(draws)), "line"))
    return chart


def _power(result: Analysis) -> Chart | None:
    """The predicted sd of the exponent over the N spread of such a design: as many budgets, sizes and as much noise as here."""
    answer, study = _parabolas(result), result.study
    if answer is None or answer.parabolas is None or not np.isfinite(answer.parabolas.sigma) or not answer.parabolas.sigma > 0:
        return None
    groups = [group for group in answer.parabolas.groups if group.distinct >= approach2.LEAST_POINTS]
    if len(groups) < 2:
        return None
    fitted = result.answer("3")
    surface = fitted.surface if fitted is not None and fitted.surface is not None and sane(fitted.surface, study) else REFERENCE
    budgets, points = np.array([group.flops for group in groups]), int(np.median([group.distinct for group in groups]))
    spreads = np.geomspace(1.1, 100, 40)
    sds = [predicted_sd(around_optimum(surface, budgets, points, s, answer.parabolas.sigma, factor_of(study))) for s in spreads.tolist()]
    chart = Chart(
        "Predicted sd of the exponent over the N spread of a budget", "largest N over smallest N", "sd of a", log_x=True, log_y=True
    )
    chart.series.append(Series(f"{len(budgets)} budgets, {points} sizes each, noise as here", _points(spreads, np.array(sds))))
    here = float(np.median([group.spread for group in groups]))
    at = predicted_sd(around_optimum(surface, budgets, points, here, answer.parabolas.sigma, factor_of(study)))
    chart.series.append(Series("this study", [(here, at)], "rings"))
    return chart
