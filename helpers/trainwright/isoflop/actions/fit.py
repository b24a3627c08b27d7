"""`isoflop fit`: the exponents by several approaches, their intervals, and whether the rows identify them."""

from __future__ import annotations

import argparse
import json

from trainwright.isoflop.actions import rows_options
from trainwright.isoflop.actions.rows_options import count, five, number, positive, share
from trainwright.output import write_text
from trainwright.report import Report, finite

SUMMARY = "exponents by several approaches with intervals, diagnostics and a verdict"
EXAMPLES = """examples:
  trainwright isoflop fit --csv runs.csv --output-json fit.json --output-md fit.md
  trainwright isoflop fit --csv points.csv --columns params="Model Size" flops="Training FLOP" --approach 3 --exclude-highest-loss 5
  trainwright isoflop fit --csv runs.csv --approach 2 --bootstrap 4000 --bootstrap-kind wild --forecast-flops 1e21"""
APPROACHES = ("1", "2", "3", "vpnls")
KINDS = ("case", "stratified", "cluster", "dirichlet", "wild", "residual", "parametric")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    rows_options.add(parser)
    add_fit_arguments(parser)
    parser.add_argument("--output-json", metavar="FILE", help="write the fit's data as JSON")
    parser.add_argument("--output-md", metavar="FILE", help="write the fit as Markdown, with every excluded row")
    parser.add_argument("--html", metavar="FILE", help="write the fit as one page with its charts")


def add_fit_arguments(parser: argparse.ArgumentParser) -> None:
    fit = parser.add_argument_group("fit")
    fit.add_argument(
        "--approach",
        nargs="+",
        action="extend",
        choices=(*APPROACHES, "all"),
        help="1 envelope, 2 parabolas, 3 surface, vpnls (default all)",
    )
    fit.add_argument("--delta", type=_delta, default=1e-3, help="Huber's delta on ln L for approach 3 (default 1e-3; inf: least squares)")
    fit.add_argument("--bootstrap", type=count, default=1000, metavar="N", help="replicates (default 1000; 0: no intervals)")
    fit.add_argument("--bootstrap-kind", choices=KINDS, default="", help="default: 2 residual, 3 dirichlet, vpnls case, 1 cluster")
    fit.add_argument("--seed", type=count, default=0, help="of the bootstrap (default 0)")
    fit.add_argument("--level", type=share, default=0.95, help="of the intervals (default 0.95)")
    fit.add_argument("--tied", action="store_true", help="approach 3 with alpha = beta")
    fit.add_argument("--fixed-e", type=positive, metavar="E", help="hold the irreducible loss at E")
    fit.add_argument("--sigma", type=positive, help="sd of ln L between seeds, where it is known")
    fit.add_argument("--weights", choices=("delta", "equal"), default="delta", help="of the budgets in approach 2 (default delta)")
    fit.add_argument("--min-points", type=count, default=4, metavar="N", help="sizes a budget needs for its parabola (default 4)")
    fit.add_argument("--recipe", choices=("porian",), help="a published recipe for the minima of approach 2, in addition")
    fit.add_argument("--noise", type=number, default=0.002, help="sd of the loss between seeds for --recipe porian (default 0.002)")
    fit.add_argument("--forecast-flops", nargs="+", action="extend", type=positive, default=[], metavar="C", help="forecast N*, D*, loss")
    fit.add_argument(
        "--forecast-run", nargs=2, action="append", type=positive, default=[], metavar=("N", "D"), help="forecast a run's loss"
    )
    fit.add_argument(
        "--repeated-data",
        type=five,
        metavar="E,A,B,ALPHA,BETA",
        help="fit R_D* and R_N* of repeated data over this surface (field unique_tokens)",
    )
    fit.add_argument("--compare", type=five, metavar="E,A,B,ALPHA,BETA", help="the objective of these parameters beside approach 3")


def _delta(text: str) -> float:
    return float("inf") if text.strip() == "inf" else positive(text)


def run(options: argparse.Namespace) -> Report:
    """The fit's report; raises UserError for unreadable rows."""
    study = rows_options.read_study(options)
    from trainwright.isoflop.analysis import analyse
    from trainwright.isoflop.fit_text import checklist, checklist_lines, findings, lines, markdown

    result = analyse(study, options)
    result.data["checklist"] = [{"item": item, "answer": answer} for item, answer in checklist(result)]
    report = Report("isoflop", data=result.data, findings=findings(result))
    report.text = [*lines(result), "", *checklist_lines(result)]
    report.summary = f"verdict {result.data['verdict']}, by approach {result.data['trusted']}"
    for name, value, source in study.inferred:
        report.infer(name, value, source)
    for name, reason in [*study.table.notes, *result.skipped]:
        report.skip(name, reason)
    if options.output_json:
        write_text(options.output_json, json.dumps(finite(result.data), indent=1) + "\n")
    if options.output_md:
        write_text(options.output_md, markdown(result))
    if options.html:
        from trainwright.isoflop.fit_page import page

        report.page = page(result)
    return report
