"""`trainwright plan search | compare | predict | calibrate | score`."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from trainwright.errors import UserError
from trainwright.output import write_text
from trainwright.parallel import Plan
from trainwright.plan import answer, inputs, score
from trainwright.plan.accuracy import markdown
from trainwright.plan.calibrate import SHIPPED, Fit, calibrate
from trainwright.plan.predict import predict, table
from trainwright.plan.rows import Row, read_rows
from trainwright.plan.score import Errors
from trainwright.plan.search import search
from trainwright.report import Finding, Report, Severity

EXAMPLES = """examples:
  trainwright plan search --model 70b --accelerator h100 --devices 64 --network 400Gbps --memory 80GiB --global-batch 512
  trainwright plan compare --plan tp=8,dp_shard=8,zero_stage=3 --plan tp=4,pp=4,schedule=1f1b,dp_shard=4,zero_stage=1 ...
  trainwright plan calibrate runs.csv --save fit.json
  trainwright plan predict rows.csv --calibration fit.json --output predicted.csv
  trainwright plan score runs.csv --held-out 0.2"""
ACTIONS = ("search", "compare", "predict", "calibrate", "score")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "trainwright plan ACTION [ROWS.csv] [options]"
    parser.add_argument("action", choices=ACTIONS, metavar="ACTION", help="search, compare, predict, calibrate or score")
    parser.add_argument("file", nargs="?", metavar="ROWS.csv", help="measured runs: predict, calibrate, score")
    inputs.add_arguments(parser)
    parser.add_argument("--plan", action="append", default=[], metavar="PLAN", help="compare: key=value,... or a JSON file")
    rows = parser.add_argument_group("calibrate, score")
    rows.add_argument("--save", metavar="FIT", help="calibrate: write the fit to FIT")
    rows.add_argument("--table", metavar="FILE.md", help="score: the tables as Markdown")
    rows.add_argument("--held-out", type=float, metavar="SHARE", help="score: fit this share of each source")
    rows.add_argument("--splits", type=int, default=20, metavar="N", help="score: seeded splits (default 20)")
    rows.add_argument("--other-sources", action="store_true", help="score: fit all but each source")


def run(options: argparse.Namespace) -> Report:
    report = Report("plan")
    faces = {"search": _search, "compare": _compare, "predict": _predict, "calibrate": _calibrate, "score": _score}
    faces[options.action](options, report)
    return report


# --- search, compare ------------------------------------------------------------------------------------------------


def _search(options: argparse.Namespace, report: Report) -> None:
    given = inputs.read(options, report)
    found = search(given.job, given.steps, given.footprint, given.capacity, given.space)
    report.data = answer.search_data(given, found, options.steps)
    answer.search_text(report, report.data)
    answer.refuse_nothing_fits(report, given, found)
    if found.best is None:
        message = f"no plan of {found.size:,} fits in the memory of a device"
        report.findings.append(Finding("PLAN-NO-FIT", Severity.ERROR, message, fails_at="first step"))
    _say_unprofiled(given, report)


def _say_unprofiled(given: inputs.Inputs, report: Report) -> None:
    if missing := given.machine.device.missing():
        report.skip(
            "step time", f"{given.machine.device.name} was never profiled here; measure first: {missing}. Plans are ordered all the same"
        )


def _compare(options: argparse.Namespace, report: Report) -> None:
    if len(options.plan) < 2:
        raise UserError("plan compare needs --plan twice or more")
    given = inputs.read(options, report)
    plans = [plan_of(text, given) for text in options.plan]
    entries = [answer.entry(given, plan) for plan in plans]
    report.data = {"action": "compare", "job": answer.job_data(given), "plans": entries, "figures": answer.figures(given)}
    order = sorted(range(len(plans)), key=lambda i: given.steps.step(plans[i]).seconds)
    report.text = [answer.line(f"plan {i + 1}", entries[i]) for i in order]
    report.findings = [_too_large(i, entries[i]) for i in order if not entries[i]["fits"]]
    _say_unprofiled(given, report)


def plan_of(text: str, given: inputs.Inputs) -> Plan:
    """The Plan of one --plan; raises UserError for a field that is none or a plan that is not of this job."""
    values = inputs.plan_text(text)
    known = {field.name for field in dataclasses.fields(Plan)}
    if unknown := sorted(set(values) - known - {"dp", "world_size", "name"}):
        raise UserError(f"--plan {text[:80]!r}: {unknown[0]!r} is no field of a plan; they are {', '.join(sorted(known))}")
    values = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items() if key in known}
    try:
        plan = Plan(**{"precision": given.job.precision, "compiled": given.job.compiled, **values})
    except TypeError as problem:
        raise UserError(f"--plan {text[:80]!r}: {problem}") from None
    given.steps.step(plan)
    return plan


def _too_large(number: int, entry: dict[str, Any]) -> Finding:
    message = f"plan {number + 1} ({entry['plan']['name']}) needs more than the device has"
    return Finding("PLAN-NO-FIT", Severity.WARNING, message, fails_at="first step")


# --- rows -----------------------------------------------------------------------------------------------------------


def _rows(options: argparse.Namespace, report: Report) -> tuple[list[str], list[Row]]:
    if not options.file:
        raise UserError(f"plan {options.action} needs a file of rows: plan {options.action} ROWS.csv")
    columns, rows = read_rows(options.file)
    for row in rows:
        if row.plan is None:
            report.skip(row.name, row.reason)
    return columns, rows


def _fit(options: argparse.Namespace) -> Fit:
    return inputs.read_fit(options.calibration) if options.calibration else SHIPPED


def _predict(options: argparse.Namespace, report: Report) -> None:
    columns, rows = _rows(options, report)
    fit = _fit(options)
    found = [predict(row, fit) for row in rows]
    timed = sum(one.seconds is not None for one in found)
    report.data = {"action": "predict", "fit": fit.to_json(), "rows": [one.to_json() for one in found], "output": None}
    report.text = [f"{len(found)} rows: {timed} with a step time, {sum(one.memory_gib is not None for one in found)} with memory"]
    if str(options.output).endswith(".csv"):  # the table is what was asked for; the report about it goes to stdout
        write_text(options.output, table(columns, found))
        report.data["output"], options.output = options.output, "-"
        report.text.append(f"wrote {report.data['output']}")


def _calibrate(options: argparse.Namespace, report: Report) -> None:
    _, rows = _rows(options, report)
    fit = calibrate(rows)
    before = {"time": score.time_errors(rows, lambda row: SHIPPED), "memory": score.memory_errors(rows, lambda row: SHIPPED)}
    inside = {"time": score.time_errors(rows, lambda row: fit), "memory": score.memory_errors(rows, lambda row: fit)}
    left = {kind: score.left_out(rows, kind) for kind in ("time", "memory")}
    groups = {"shipped": before, "fitted": inside, "left_out": left}
    report.data = {"action": "calibrate", "fit": fit.to_json(), "errors": {name: _errors_json(group) for name, group in groups.items()}}
    for kind in ("time", "memory"):
        report.text += [_said(f"{kind}, {words}", group[kind][0]) for words, group in _named(groups) if group[kind]]
    report.text += [f"  {name} x {factor:g}" for name, factor in sorted({**fit.time, **fit.memory}.items())]
    if options.save:
        write_text(options.save, inputs.fit_text(fit))
        report.text.append(f"wrote {options.save}")


def _named(groups: dict[str, dict[str, list[Errors]]]) -> list[tuple[str, dict[str, list[Errors]]]]:
    words = {"shipped": "as shipped", "fitted": "fitted, on the same rows", "left_out": "fitted without the rows tested"}
    return [(words[name], group) for name, group in groups.items()]


def _errors_json(group: dict[str, list[Errors]]) -> dict[str, Any]:
    return {kind: [one.to_json() for one in found] for kind, found in group.items()}


def _said(name: str, one: Errors) -> str:
    return (
        f"{name}: {one.count} predictions, median error {one.median:.1%}, p90 {one.p90:.1%}, worst {one.worst:.1%}, bias x {one.bias:.3f}"
    )


def _score(options: argparse.Namespace, report: Report) -> None:
    _, rows = _rows(options, report)
    fit = _fit(options)
    groups: dict[str, dict[str, list[Errors]]] = {
        "fit": {"time": score.time_errors(rows, lambda row: fit), "memory": score.memory_errors(rows, lambda row: fit)}
    }
    if options.held_out is not None:
        if not 0 < options.held_out < 1 or not 0 < options.splits <= 1000:
            raise UserError("--held-out is a share between 0 and 1, and --splits from 1 to 1000")
        groups["held_out"] = {kind: score.held_out(rows, options.held_out, options.splits, kind) for kind in ("time", "memory")}
    if options.other_sources:
        groups["other_sources"] = {kind: score.other_sources(rows, kind) for kind in ("time", "memory")}
    report.data = {"action": "score", "fit": fit.to_json(), "errors": {name: _errors_json(group) for name, group in groups.items()}}
    for name, group in groups.items():
        for kind, found in group.items():
            report.text += [_said(f"{name.replace('_', ' ')}, {kind}, {one.name[:60]}", one) for one in found]
    _ranked(rows, fit, report)
    if options.table:
        write_text(options.table, markdown(report.data, _said_command(options)))
        report.text.append(f"wrote {options.table}")


def _said_command(options: argparse.Namespace) -> str:
    """The command that makes the table again, files by their names."""
    words = ["trainwright plan score", Path(options.file).name]
    if options.held_out is not None:
        words.append(f"--held-out {options.held_out:g} --splits {options.splits}")
    if options.other_sources:
        words.append("--other-sources")
    return " ".join([*words, f"--table {Path(options.table).name}"])


def _ranked(rows: list[Row], fit: Fit, report: Report) -> None:
    chosen, gaps = score.choices(rows, lambda row: fit), score.pairs(rows, lambda row: fit)
    report.data |= {
        "oom": score.oom_counts(rows, lambda row: fit),
        "pairs": gaps,
        "choices": [one.to_json() for one in chosen],
        "regret": score.regrets(chosen),
    }
    if chosen:
        means = report.data["regret"]
        words = ", ".join(f"{name.replace('_', ' ')} {value:.1%}" for name, value in means["mean"].items())
        report.text.append(f"regret over {len(chosen)} workloads: {words}; {means['within_5_percent']} within 5 %")
    report.text += [f"pairs {one['gap']} apart: {one['right']} of {one['pairs']} ordered right" for one in gaps if one["pairs"]]
