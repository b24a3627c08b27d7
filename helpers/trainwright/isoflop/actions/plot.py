"""`isoflop plot`: the fit as pictures and as one page."""

from __future__ import annotations

import argparse

from trainwright.errors import UserError
from trainwright.isoflop.actions import fit, rows_options
from trainwright.report import Report

SUMMARY = "curves, optima with bands, residuals and the profile, as SVG, PNG, PDF or one HTML page"
EXAMPLES = """examples:
  trainwright isoflop plot --csv runs.csv --html fit.html
  trainwright isoflop plot --csv runs.csv --outdir figures --image svg png      # png and pdf need matplotlib: the extra [plot]"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    rows_options.add(parser)
    fit.add_fit_arguments(parser)
    parser.add_argument("--html", metavar="FILE", help="write one page with every chart; it needs no library")
    parser.add_argument("--outdir", metavar="DIR", help="write a file a chart into DIR")
    parser.add_argument(
        "--image", nargs="+", choices=("svg", "png", "pdf"), default=["svg"], help="kinds of file for --outdir (default svg)"
    )


def run(options: argparse.Namespace) -> Report:
    """The files that were written; raises MissingPackageError where PNG or PDF is asked and matplotlib is missing."""
    if not options.html and not options.outdir:
        raise UserError("nothing to write: give --html FILE or --outdir DIR")
    study = rows_options.read_study(options)
    from trainwright.isoflop.analysis import analyse
    from trainwright.isoflop.fit_charts import charts
    from trainwright.isoflop.fit_page import page
    from trainwright.isoflop.fit_text import findings
    from trainwright.isoflop.pictures import write_pictures

    result = analyse(study, options)
    made = charts(result)
    written = write_pictures(made, options.outdir, list(dict.fromkeys(options.image))) if options.outdir else []
    report = Report("isoflop", findings=findings(result), summary=f"verdict {result.data['verdict']}")
    report.data = {
        "action": "plot",
        "verdict": result.data["verdict"],
        "charts": [chart.title for chart in made],
        "written": written,
        "html": options.html,
    }
    report.text = [f"wrote {path}" for path in written]
    if options.html:
        report.page = page(result)
        report.text.append(f"wrote {options.html}")
    return report
