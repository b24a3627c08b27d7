"""`isoflop power`: whether a study can answer its question, before anything is spent."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from trainwright.errors import UserError
from trainwright.isoflop.actions.rows_options import count, five, need_numpy, number, positive
from trainwright.report import Finding, Report, Severity
from trainwright.units import format_count

if TYPE_CHECKING:
    from trainwright.isoflop.power import Plan, Power, Remedy
    from trainwright.isoflop.surface import Surface

SUMMARY = "whether a study can answer its question, before anything is spent, and what to add at the least cost"
EXAMPLES = """examples:
  trainwright isoflop power --budgets 1e17 1e18 1e19 --n-spread 10 --points 7 --sigma 0.005
  trainwright isoflop power --budgets 1e18 1e19 1e20 --sizes 1.236e9 1.240e9 1.251e9 1.262e9 1.273e9 --sigma 0.012   # a projector ladder"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--budgets", nargs="+", type=positive, required=True, metavar="C", help="budgets in FLOP")
    sizes = parser.add_mutually_exclusive_group(required=True)
    sizes.add_argument("--sizes", nargs="+", type=positive, metavar="N", help="the ladder: these sizes at every budget")
    sizes.add_argument("--n-spread", type=positive, metavar="X", help="sizes around the assumed optimum, largest over smallest")
    parser.add_argument("--points", type=count, default=7, metavar="N", help="sizes a budget with --n-spread (default 7)")
    parser.add_argument("--repeats", type=count, default=1, metavar="N", help="seeds of every run (default 1)")
    parser.add_argument("--sigma", type=positive, required=True, help="sd of the loss between seeds, in the units of the loss")
    parser.add_argument("--relative", action="store_true", help="--sigma is relative to the loss")
    parser.add_argument(
        "--surface", type=five, metavar="E,A,B,ALPHA,BETA", help="the surface assumed (default: that of the Chinchilla points)"
    )
    parser.add_argument("--flops-per-param-token", type=positive, default=6.0, metavar="K", help="C = K N D (default 6)")
    parser.add_argument(
        "--target-sd", type=positive, metavar="SD", help="wanted sd of the exponent (default: that of a verdict `identified`)"
    )
    parser.add_argument("--draws", type=count, default=4000, metavar="N", help="simulated studies for the minima (default 4000)")
    parser.add_argument("--seed", type=count, default=0)
    parser.add_argument("--offset", type=number, default=1.0, help="with --n-spread: the sizes' centre over the optimum (default 1)")


def run(options: argparse.Namespace) -> Report:
    """The plan's power; a plan that cannot identify its exponent is an error, so that a script stops before it launches."""
    need_numpy()
    import numpy as np

    from trainwright.isoflop.power import NARROW, REFERENCE, Z90, power, remedy
    from trainwright.isoflop.surface import Surface

    surface = Surface(*options.surface) if options.surface else REFERENCE
    with np.errstate(all="ignore"):
        plan = _plan(options, surface)
    if not options.draws:
        raise UserError("--draws 0: the minima are told by simulated studies; give 100 or more")
    target = options.target_sd or NARROW / Z90
    with np.errstate(all="ignore"):  # what is not finite tells nothing, and is judged so
        found = power(plan, options.draws, options.seed)
        short = found.verdict != "identified" or found.sd_exponent > target
        extra = remedy(plan, min(target, 0.9 * NARROW / Z90) if not options.target_sd else target) if short else None
    report = Report("isoflop", data=_data(options, surface, plan, found, extra, target))
    report.text = _text(found, extra, target)
    report.findings = _findings(found, options.target_sd)
    report.summary = f"predicted verdict {found.verdict}"
    if not options.surface:
        report.infer("surface", surface.to_json(), "the optimum on the published Chinchilla points; --surface names another")
    return report


def _plan(options: argparse.Namespace, surface: Surface) -> Plan:
    import numpy as np

    from trainwright.isoflop.power import around_optimum, ladder

    budgets = np.unique(options.budgets)
    if options.repeats < 1 or options.points < 1:
        raise UserError("--repeats and --points have to be 1 or more")
    if len(budgets) * max(options.points, len(options.sizes or [])) * options.repeats > 100_000:
        raise UserError("this plan has more than 100000 runs; give fewer budgets, points or repeats")
    factor = options.flops_per_param_token
    if options.sizes:
        sizes = np.repeat(np.unique(options.sizes), options.repeats)
        return ladder(surface, budgets, sizes, options.sigma, factor, options.relative)
    if options.n_spread < 1 or options.offset <= 0:
        raise UserError("--n-spread is largest over smallest N, 1 or more; --offset is above zero")
    return around_optimum(
        surface, budgets, options.points, options.n_spread, options.sigma, factor, options.relative, options.offset, options.repeats
    )


def _data(options: argparse.Namespace, surface: Surface, plan: Plan, found: Power, extra: Remedy | None, target: float) -> dict[str, Any]:
    from trainwright.isoflop.analysis import remedy_rows

    keys = found.spread
    return {
        "action": "power",
        "verdict": found.verdict,
        "sd_exponent": found.sd_exponent,
        "width_90": found.width,
        "exponent": surface.exponent,
        "sd": found.sd,
        "condition": found.condition,
        "all_minima_inside": found.interior,
        "correlation": found.correlation,
        "budgets": [
            {"flops": c, "n_spread": keys[c], "sizes": found.sizes[c], "minimum_inside": found.interior_by_budget.get(c)} for c in keys
        ],
        "runs": len(plan.params),
        "cost_flops": found.cost,
        "sigma": options.sigma,
        "relative": options.relative,
        "surface": surface.to_json(),
        "target_sd": target,
        "remedy": remedy_rows(extra) if extra else None,
    }


def _text(found: Power, extra: Remedy | None, target: float) -> list[str]:
    inside = "unknown (budgets with fewer than four sizes have no parabola)" if found.interior is None else f"{found.interior:.2f}"
    text = [
        f"predicted sd of the exponent a: {found.sd_exponent:.4f} (90 % interval {found.width:.3f} wide)",
        f"P(all minima inside the sizes tried): {inside}",
        f"condition of the scaled Jacobian: {found.condition:.4g}; ln N and ln D correlate at {found.correlation:.3f}",
        f"cost: {found.cost:.4g} FLOP",
    ]
    for budget, spread in found.spread.items():
        chance = found.interior_by_budget.get(budget)
        said = "no parabola" if chance is None else f"minimum inside with P = {chance:.2f}"
        text.append(f"budget {budget:.4g} FLOP: {found.sizes[budget]} sizes, N spread {spread:.4g}x, {said}")
    text.append(f"predicted verdict: {found.verdict}")
    if extra is not None:
        text.append(
            f"to reach an sd of {target:.3f} with minima inside {'add' if extra.reached else '(not reached) best set found:'} "
            f"{len(extra.runs)} runs, {extra.cost:.3g} FLOP: predicted sd {extra.sd_exponent:.4f}"
        )
        text += [f"  {c:.3g} FLOP: N {format_count(n)}, D {format_count(d)}" for c, n, d in extra.runs]
    return text


def _findings(found: Power, target: float | None) -> list[Finding]:
    rows = []
    if found.verdict != "identified":
        severity = Severity.ERROR if found.verdict == "underdetermined" else Severity.WARNING
        inside = "" if found.interior is None else f", P(all minima inside) {found.interior:.2f}"
        no = "no fit will be identified" if found.verdict == "underdetermined" else "a fit will be weak"
        rows.append(
            Finding(
                f"iso-{found.verdict}", severity, f"{no}: predicted sd of the exponent {found.sd_exponent:.3g}{inside}", checked="derived"
            )
        )
    if target is not None and found.sd_exponent > target:
        rows.append(
            Finding("iso-target", Severity.ERROR, f"predicted sd {found.sd_exponent:.3g} is above the wanted {target:g}", checked="derived")
        )
    return rows
