"""`isoflop demo`: a real study on this machine's processors, from nothing but Python's own sources to a fit with its verdict."""

from __future__ import annotations

import argparse
import os
import tempfile
from typing import Any

from trainwright import probe
from trainwright.errors import MissingPackageError
from trainwright.isoflop import calibration, planning, workers
from trainwright.isoflop import study as studies
from trainwright.isoflop.actions import fit, launch
from trainwright.isoflop.actions import plan as plans
from trainwright.isoflop.actions.rows_options import count, need_numpy
from trainwright.isoflop.ladder import Member
from trainwright.isoflop.reference import need_reference
from trainwright.output import write_text
from trainwright.progress import progress
from trainwright.report import Report

SUMMARY = "a real study here in minutes: 28 small models trained on Python's own sources, fitted and judged"
EXAMPLES = """examples:
  trainwright isoflop demo                                     # 4 budgets x 7 sizes; some 1,000 CPU seconds, on 2 free processors 9 minutes
  trainwright isoflop demo --smoke --scaling-study-dir out/demo --html demo.html"""
# Widths of a budget: seven around its minimum. Seen on the recorded study of the same settings: all four minima lie inside.
GRID: dict[float, tuple[int, ...]] = {
    3e10: (6, 8, 12, 16, 20, 24, 32),
    1e11: (8, 12, 16, 20, 24, 32, 48),
    3e11: (12, 16, 20, 24, 32, 48, 64),
    1e12: (20, 24, 32, 40, 48, 64, 96),
}
SMOKE: dict[float, tuple[int, ...]] = {1e10: (6, 8, 12, 16, 24), 2e10: (6, 8, 12, 16, 24), 4e10: (8, 12, 16, 24, 32)}
SEQ_LEN, VOCABULARY, LAYERS = 64, 97, 2
JOB = {**plans.DEFAULT_JOB, "order": "study", "tokens": "counted", "single_pass": True, "eval_windows": 1024}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--smoke", action="store_true", help="3 budgets x 5 sizes, some 250 CPU seconds")
    parser.add_argument("--scaling-study-dir", metavar="DIR", help="keep the study here; a second call goes on in it")
    parser.add_argument("--workers", type=count, default=0, metavar="N", help="runs at a time (default: processors)")
    parser.add_argument("--csv", metavar="FILE", help="write the rows")
    parser.add_argument("--output-json", metavar="FILE", help="write the fit's data")
    parser.add_argument("--output-md", metavar="FILE", help="write the fit as Markdown")
    parser.add_argument("--html", metavar="FILE", help="write the fit as one page with its charts")


def run(options: argparse.Namespace) -> Report:
    """The fit of the study that it ran; raises MissingPackageError without torch or numpy."""
    need_reference("demo", "`isoflop launch` runs a plan with a trainer of yours")
    need_numpy()
    if not probe.importable("torch"):
        raise MissingPackageError("torch", "isoflop demo")
    with tempfile.TemporaryDirectory(prefix="trainwright-isoflop-") as scratch:
        folder = os.path.abspath(options.scaling_study_dir or scratch)
        study = studies.Study(folder, demo_plan(SMOKE if options.smoke else GRID, folder))
        with studies.held(study), progress("isoflop demo", options.quiet) as step:
            done = workers.work(study, options.workers or launch.parallel(study.plan), 3600.0, step)
        report = Report("isoflop")
        launch.conclude(report, options, study, done)
        if done.interrupted or report.exit is not None:
            return report
        table = options.csv or os.path.join(folder, "runs.csv")
        write_text(table, studies.table(study.rows()))
        return _fitted(options, report, table)


def demo_plan(grid: dict[float, tuple[int, ...]], folder: str) -> dict[str, Any]:
    """The plan of the small study: every setting fixed."""
    widths = sorted({width for row in grid.values() for width in row})
    rows = []
    for width in widths:
        config = {"model_type": "plain", "vocab_size": VOCABULARY, "hidden_size": width, "num_hidden_layers": LAYERS,
                  "max_position_embeddings": SEQ_LEN}  # fmt: skip
        member = Member(f"d{width}", config)
        rows.append(calibration.describe(member, member.spec(folder), SEQ_LEN))
    rules, names = planning.Rules(), {budget: [f"d{width}" for width in row] for budget, row in grid.items()}
    planned = planning.plan_runs(list(grid), rows, rules, [0], grid=names)
    return planning.document(planned, rows, rules, {"job": JOB, "trainer": None, "hardware": None})


def _fitted(options: argparse.Namespace, report: Report, table: str) -> Report:
    """The report of `fit` on the study's table, after the lines of the runs."""
    parser = argparse.ArgumentParser()
    fit.add_arguments(parser)
    asked = parser.parse_args(["--csv", table])
    asked.output_json, asked.output_md, asked.html = options.output_json, options.output_md, options.html
    found = fit.run(asked)
    found.text = [*report.text, "", *found.text]
    found.findings = [*report.findings, *found.findings]
    return found
