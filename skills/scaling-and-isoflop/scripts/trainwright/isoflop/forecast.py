# isoflop/forecast.py without its comments
from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from trainwright.isoflop.estimates import Estimate, Settings, estimate_all
from trainwright.isoflop.rows import Study
from trainwright.isoflop.statistics import interval
from trainwright.isoflop.surface import Surface


def at_compute(answer: Estimate, flops: float, factor: float, level: float) -> dict[str, Any]:
    target = np.array(flops)
    best = answer.optimal_params(target, factor)
    if best is not None and not (np.isfinite(best).all() and best > 0):
        best = None
    row: dict[str, Any] = {"flops": flops, "params": None if best is None else float(best)}
    row["tokens"] = None if best is None else float(flops / (factor * best))
    if answer.surface is not None and best is not None:
        surfaces = [
            Surface(*map(float, s)) for s in answer.surfaces if np.isfinite(s).all() and s[1] > 0 and s[2] > 0 and s[3] > 0 and s[4] > 0
        ]
        draws = np.array([s.optimal_params(target, factor) for s in surfaces])
        losses = np.array([s.loss(n, flops / (factor * n)) for s, n in zip(surfaces, draws, strict=True)])
        row["loss"] = float(answer.surface.loss(best, flops / (factor * best)))
        row["intervals"] = {"params": interval(draws, level), "loss": interval(losses, level)}
        row["flat"] = _flat(answer.surface, flops, factor, float(best))
    elif best is not None and len(answer.intercepts):
        with np.errstate(over="ignore"):
            row["intervals"] = {"params": interval(np.exp(answer.intercepts + answer.draws * np.log(flops)), level)}
    return row


def _flat(surface: Surface, flops: float, factor: float, best: float) -> tuple[float, float]:
    sizes = best * np.exp(np.linspace(-3, 3, 601))
    loss = surface.loss(sizes, flops / (factor * sizes))
    inside = np.flatnonzero(loss <= loss.min() * 1.001)
    return float(sizes[inside[0]]), float(sizes[inside[-1]])


def at_run(answer: Estimate, params: float, tokens: float, level: float) -> dict[str, Any]:
    if answer.surface is None:
        return {"params": params, "tokens": tokens, "loss": None}
    e, a, b, alpha, beta = answer.surfaces.T if len(answer.surfaces) else np.zeros((5, 0))
    with np.errstate(over="ignore", invalid="ignore"):
        losses = e + a * params**-alpha + b * tokens**-beta
    loss = float(answer.surface.loss(np.array(params), np.array(tokens)))
    return {"params": params, "tokens": tokens, "loss": loss, "intervals": {"loss": interval(losses, level)}}


def leave_largest_out(study: Study, settings: Settings) -> dict[str, Any]:
    budgets, counts = np.unique(study.budgets, return_counts=True)
    full = np.flatnonzero(counts >= 3)
    cut = int(full[-1]) if len(full) else len(budgets) - 1
    if cut < 3:
        return {"left_out": None, "reason": f"{cut} budgets would be left; three or more are needed", "fits": []}
    largest = study.budgets >= budgets[cut]
    rest = _part(study, ~largest)
    rows = []
    for answer in estimate_all(rest, replace(settings, replicates=0)):
        if answer.refused or answer.exponent is None:
            continue
        row: dict[str, Any] = {"approach": answer.approach, "exponent": answer.exponent}
        if answer.surface is not None:
            forecast = answer.surface.loss(study.params[largest], study.tokens[largest])
            off = forecast / study.loss[largest] - 1
            row["loss_error_mean"] = float(off.mean())
            row["loss_error_rms"] = float(np.sqrt((off**2).mean()))
        rows.append(row)
    return {"left_out": float(budgets[cut]), "rows": int(largest.sum()), "fits": rows}


def _part(study: Study, which: Any) -> Study:
    rows = np.flatnonzero(which)
    table = study.table.take(rows)
    return Study(table, study.params[rows], study.tokens[rows], study.flops[rows], study.loss[rows], study.budgets[rows])
