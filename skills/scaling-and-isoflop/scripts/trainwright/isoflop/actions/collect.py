# isoflop/actions/collect.py without its comments
from __future__ import annotations

import argparse

from trainwright.errors import UserError
from trainwright.isoflop.actions.rows_options import count, need_numpy, number
from trainwright.output import write_text
from trainwright.report import Finding, Report, Severity

SUMMARY = "one table out of run folders, CSV, JSON lines, exports and TensorBoard event files; every row left out with its reason"
EXAMPLES = """examples:
  trainwright isoflop collect out/runs --csv out/runs.csv
  trainwright isoflop collect export.csv history.csv --eval-window 5 --csv runs.csv
  trainwright isoflop collect tb/run1 --columns loss=eval/loss tokens=seen --set params=1.2e8 flops_per_token=8.1e8"""
_SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", metavar="PATH", help="run folders, folders of them, tables, event files")
    parser.add_argument("--csv", metavar="FILE", help="write the table; without it what would be written is only told")
    parser.add_argument("--eval-window", type=count, metavar="N", help="one row a run: the mean of its last N losses (curves: default 1)")
    parser.add_argument("--every-eval", action="store_true", help="curves: a row for each evaluation (approach 1)")
    parser.add_argument("--columns", nargs="+", action="extend", default=[], metavar="FIELD=COLUMN", help="columns or tags by field")
    parser.add_argument("--where", nargs="+", action="extend", default=[], metavar="COLUMN=VALUE", help="only rows with this value")
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="FIELD=VALUE", help="a field that nothing holds")
    parser.add_argument("--flops-rule", choices=("6nd", "2nd"), default="", help="derive tokens or FLOPs by C = 6 N D or 2 N D")
    parser.add_argument(
        "--repeats", choices=("last", "all", "min", "mean"), default="last", help="which of several rows with equal settings"
    )
    parser.add_argument("--min-steps", type=number, default=0.0, metavar="N", help="leave out runs of fewer steps as undercooked")
    parser.add_argument("--budget-tolerance", type=number, default=0.1, metavar="SHARE", help="how far FLOPs may be off the budget")


def run(options: argparse.Namespace) -> Report:
    need_numpy()
    from trainwright.isoflop.columns import mapping
    from trainwright.isoflop.gather import as_csv, gather
    from trainwright.isoflop.rows import Wishes, study

    if options.eval_window == 0:
        raise UserError("--eval-window 0: a window holds one loss or more")
    if options.every_eval and options.eval_window:
        raise UserError("--every-eval keeps each loss and --eval-window one a run; name one of them")
    table = gather(options.paths, mapping(options.columns, options.where, options.set), options.eval_window, options.every_eval)
    rules = Wishes(options.flops_rule, 0, options.repeats, options.min_steps, options.budget_tolerance)
    found = study(table, rules)
    report = Report("isoflop")
    rows = {
        "read": len(found) + len(found.excluded),
        "used": len(found),
        "excluded": len(found.excluded),
        "not_selected": table.not_selected,
    }
    report.data = {
        "action": "collect",
        "rows": rows,
        "csv": options.csv,
        "excluded": found.excluded,
        "notes": [f"{a}: {b}" for a, b in table.notes],
    }
    report.text = [f"{rows['used']} rows stand, {rows['excluded']} are left out"]
    report.text += [f"  left out {row['row']}: {row['reason']}" for row in found.excluded[:_SHOWN]]
    if len(found.excluded) > _SHOWN:
        report.text.append(f"  ... {len(found.excluded) - _SHOWN} more (--format json lists them all)")
    for name, value, source in found.inferred:
        report.infer(name, value, source)
    for name, why in table.notes:
        report.skip(name, why)
    if found.excluded:
        report.findings.append(Finding("iso-excluded", Severity.INFO, f"{len(found.excluded)} rows are left out, each with its reason"))
    if not len(found):
        report.findings.append(Finding("iso-no-rows", Severity.ERROR, "no row stands: nothing is written"))
    elif options.csv:
        write_text(options.csv, as_csv(found))
        report.text.append(f"wrote {options.csv}")
    report.summary = f"{rows['used']} rows"
    return report
