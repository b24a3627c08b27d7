"""`trainwright isoflop ACTION`: scaling studies, from the question whether one can answer to the answer with its doubts."""

from __future__ import annotations

import argparse
import importlib
from importlib.util import find_spec

from trainwright.report import Report

# In the order of a study. A module answers `SUMMARY`, `EXAMPLES`, `add_arguments(parser)` and `run(options)`.
ACTIONS = {
    "calibrate": "trainwright.isoflop.actions.calibrate",
    "power": "trainwright.isoflop.actions.power",
    "plan": "trainwright.isoflop.actions.plan",
    "launch": "trainwright.isoflop.actions.launch",
    "collect": "trainwright.isoflop.actions.collect",
    "fit": "trainwright.isoflop.actions.fit",
    "plot": "trainwright.isoflop.actions.plot",
    "demo": "trainwright.isoflop.actions.demo",
}
EXAMPLES = """examples:
  trainwright isoflop power --budgets 1e17 1e18 1e19 --n-spread 10 --points 7 --sigma 0.005
  trainwright isoflop collect out/runs --csv out/runs.csv
  trainwright isoflop fit --csv out/runs.csv --approach 2 3 --output-md out/fit.md
  trainwright isoflop plot --csv out/runs.csv --html out/fit.html
`trainwright isoflop ACTION --help` shows an action's options, with --format json and the others of every report"""


def add_arguments(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """One parser an action; the report's options go to each."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    parsers = []
    for name, module in ACTIONS.items():
        if find_spec(module) is None:  # a skill's copy holds no demo: it has no trainer
            continue
        face = importlib.import_module(module)
        action = actions.add_parser(
            name,
            help=face.SUMMARY.replace("%", "%%"),
            description=face.SUMMARY,
            epilog=face.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        face.add_arguments(action)
        parsers.append(action)
    return parsers


def run(options: argparse.Namespace) -> Report:
    """The report of one action; raises UserError as that action does."""
    report: Report = importlib.import_module(ACTIONS[options.action]).run(options)
    return report
