# isoflop/actions/rows_options.py without its comments
from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from trainwright.errors import MissingPackageError, UserError

if TYPE_CHECKING:
    from trainwright.isoflop.rows import Study


def add(parser: argparse.ArgumentParser) -> None:
    rows = parser.add_argument_group("rows")
    rows.add_argument("--csv", nargs="+", action="extend", required=True, metavar="FILE", help="CSV, TSV or JSON-lines tables")
    rows.add_argument("--columns", nargs="+", action="extend", default=[], metavar="FIELD=COLUMN", help='such as params="Model Size"')
    rows.add_argument("--where", nargs="+", action="extend", default=[], metavar="COLUMN=VALUE", help="only rows with this value")
    rows.add_argument("--set", nargs="+", action="extend", default=[], metavar="FIELD=VALUE", help="a field that no column holds")
    rows.add_argument("--flops-rule", choices=("6nd", "2nd"), default="", help="derive tokens or FLOPs by C = 6 N D or 2 N D")
    rows.add_argument("--exclude-highest-loss", type=count, default=0, metavar="N", help="leave out the N highest losses, and ties")
    rows.add_argument(
        "--repeats", choices=("last", "all", "min", "mean"), default="last", help="which of several rows with equal settings (default last)"
    )
    rows.add_argument("--min-steps", type=number, default=0.0, metavar="N", help="leave out runs of fewer steps as undercooked")
    rows.add_argument(
        "--budget-tolerance", type=number, default=0.1, metavar="SHARE", help="how far a run's FLOPs may be off its budget (default 0.1)"
    )


def read_study(options: argparse.Namespace) -> Study:
    need_numpy()
    from trainwright.isoflop.columns import mapping
    from trainwright.isoflop.rows import Wishes, study
    from trainwright.isoflop.table import read_tables

    table = read_tables(options.csv, mapping(options.columns, options.where, options.set))
    wishes = Wishes(options.flops_rule, options.exclude_highest_loss, options.repeats, options.min_steps, options.budget_tolerance)
    found = study(table, wishes)
    if not len(found):
        reasons = list(dict.fromkeys(row["reason"] for row in found.excluded))
        raise UserError(
            f"{', '.join(options.csv)}: no row may be fitted: all {len(found.excluded)} are excluded ({'; '.join(reasons[:3])})"
        )
    return found


def need_numpy() -> None:
    try:
        import numpy
    except ImportError:
        raise MissingPackageError("numpy", "fitting") from None


def count(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a count")
    return int(text)


def number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number of zero or more")
    return value


def positive(text: str) -> float:
    value = number(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not above zero")
    return value


def share(text: str) -> float:
    value = number(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not between 0 and 1")
    return value


def five(text: str) -> tuple[float, float, float, float, float]:
    parts = text.split(",")
    if len(parts) != 5:
        raise argparse.ArgumentTypeError(f"{text[:60]!r} is not E,A,B,alpha,beta")
    e, a, b, alpha, beta = map(positive, parts)
    return e, a, b, alpha, beta
