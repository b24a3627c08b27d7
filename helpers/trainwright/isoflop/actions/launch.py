"""`isoflop launch`: run a plan, several runs at a time; what is done stays done."""

from __future__ import annotations

import argparse
from typing import Any

from trainwright import probe
from trainwright.errors import Exit, MissingPackageError, UserError
from trainwright.isoflop import study as studies
from trainwright.isoflop import workers
from trainwright.isoflop.actions import plan as plans
from trainwright.isoflop.actions.rows_options import count
from trainwright.isoflop.reference import need_reference
from trainwright.output import write_text
from trainwright.progress import progress
from trainwright.report import Finding, Report, Severity
from trainwright.units import parse_seconds

SUMMARY = "run a plan with the reference trainer or yours, several runs at a time; can be killed and goes on"
EXAMPLES = """examples:
  trainwright isoflop launch --plan out/plan.yaml --scaling-study-dir out/study                 # shows the runs and the grid
  trainwright isoflop launch --plan out/plan.yaml --scaling-study-dir out/study --workers 2 --csv out/runs.csv --execute
  trainwright isoflop launch --scaling-study-dir out/study --execute --retry-failed             # goes on by the plan in the folder"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plan", metavar="FILE", help="what `isoflop plan` wrote (default: the plan in the study's folder)")
    parser.add_argument("--scaling-study-dir", required=True, metavar="DIR", help="the study's folder; a second launch goes on in it")
    parser.add_argument("--workers", type=count, default=0, metavar="N", help="runs at a time (default: processors / threads of a run)")
    parser.add_argument("--timeout", default="24h", metavar="TIME", help="of one run (default 24h)")
    parser.add_argument("--csv", metavar="FILE", help="write the rows of all runs that are over")
    parser.add_argument("--retry-failed", action="store_true", help="run again what failed or diverged")
    parser.add_argument("--execute", action="store_true", help="run; without it nothing is started or written")


def run(options: argparse.Namespace) -> Report:
    """The plan's runs and, with --execute, their rows; raises UserError for a plan or folder that will not do."""
    study = studies.open_study(options.scaling_study_dir, options.plan)
    timeout_s = parse_seconds(options.timeout)
    judge(study, timeout_s)
    report = Report("isoflop")
    todo = workers.left(study, options.retry_failed)
    if not options.execute:
        report.text = [*plans.lines(study.plan), *grid(study.plan)]
        report.data = _data(options, study, None, [run["id"] for run in todo])
        plans.examine(report, study.plan)
        _foretell(report, study, len(todo))
        return report
    if todo:
        need_trainer(study)
    with studies.held(study), progress("isoflop", options.quiet) as step:
        done = workers.work(study, options.workers or parallel(study.plan), timeout_s, step, options.retry_failed)
    conclude(report, options, study, done)
    return report


def need_trainer(study: studies.Study) -> None:
    """Raises UserError where the plan names no trainer and the reference trainer or its torch is not here."""
    if study.plan.get("trainer"):
        return
    need_reference("launch", "a plan with --trainer FILE runs yours")
    if not probe.importable("torch"):
        raise MissingPackageError("torch", "isoflop launch")


def _foretell(report: Report, study: studies.Study, todo: int) -> None:
    """What --execute would do: start the runs, or end because there is nothing here that trains."""
    to_do = f"{todo} of {len(study.runs)} runs to do"
    try:
        if todo:
            need_trainer(study)
        report.text.append(f"{to_do}; --execute starts them")
    except UserError as problem:
        report.text.append(f"{to_do}; --execute would start none and end with exit {int(problem.exit)}")
        report.findings.append(Finding("iso-no-trainer", Severity.WARNING, str(problem)))


def judge(study: studies.Study, timeout_s: float) -> None:
    """Raises UserError for what would end every run at its start."""
    threads = (study.plan.get("job") or {}).get("threads", 1)
    if type(threads) is not int or not 1 <= threads <= 4096:
        raise UserError("the plan's job: threads is not a whole number from 1")
    if not study.plan.get("trainer") and probe.importable("trainwright.isoflop.by_reference"):
        from trainwright.isoflop import by_reference

        for run in study.runs:
            by_reference.judge(studies.job_of(study, run, timeout_s), run["id"])


def parallel(plan: dict[str, Any]) -> int:
    """Runs at a time: a run of the reference trainer has as many threads as the plan says; of another, one at a time."""
    if plan.get("trainer"):
        return 1
    return max(1, probe.cpu_count() // max(int((plan.get("job") or {}).get("threads") or 1), 1))


def conclude(report: Report, options: argparse.Namespace, study: studies.Study, done: workers.Worked) -> None:
    """Rows, table and findings of a study whose runs have been worked on."""
    rows = study.rows()
    if options.csv:
        write_text(options.csv, studies.table(rows))
        report.text.append(f"wrote {options.csv}")
    report.data = _data(options, study, rows, done.again)
    states = {state: sum(row["state"] == state for row in rows) for state in dict.fromkeys(row["state"] for row in rows)}
    said = ", ".join(f"{number} {state}" for state, number in states.items()) or "none over"
    report.text.insert(0, f"{len(rows)} of {len(study.runs)} runs are over ({said}); {len(done.rows)} of them in this launch")
    for row in rows:
        if row["state"] != "finished":
            words = f"{row['run_id']} {row['state']} after {row['steps']} of {row['planned_steps']} steps: {row['error']}"
            report.findings.append(Finding(f"iso-{'diverged' if row['state'] == 'diverged' else 'failed'}", Severity.WARNING, words))
    if done.interrupted:
        report.exit = Exit.INTERRUPTED
        report.text.append("interrupted; the same command goes on")
    elif not any(row["state"] == "finished" for row in rows):
        report.exit = Exit.FAILED
    report.summary = f"{len(rows)} of {len(study.runs)} runs over"


def _data(options: argparse.Namespace, study: studies.Study, rows: list[dict[str, Any]] | None, todo: list[str]) -> dict[str, Any]:
    told = {"study": study.folder, "csv": options.csv, "executed": rows is not None}
    planned = [{key: run[key] for key in ("id", "member", "budget", "params", "tokens", "steps", "batch", "lr", "seed", "flops")}
               for run in study.runs]  # fmt: skip
    return {"action": "launch", **told, "runs": planned, "to_do": todo, "rows": [_row(row) for row in rows] if rows is not None else None}


def _row(row: dict[str, Any]) -> dict[str, Any]:
    kept = ("run_id", "budget", "params", "tokens", "flops", "loss", "seed", "steps", "state", "error", "wall_sec", "tokens_per_sec")
    return {key: row.get(key) for key in kept}


def grid(plan: dict[str, Any]) -> list[str]:
    """Budgets over sizes, as text: how many runs stand at each place."""
    runs = plan["runs"]
    budgets = sorted({run["budget"] for run in runs}, reverse=True)
    order = {run["member"]: run["params"] for run in runs}
    names = sorted(order, key=lambda name: order[name])
    wide = max(len(name) for name in names) + 1
    lines = ["", f"{'FLOP':>10} |" + "".join(f"{name:>{wide}}" for name in names)]
    for budget in budgets:
        at = [sum(run["budget"] == budget and run["member"] == name for run in runs) for name in names]
        lines.append(f"{budget:>10.4g} |" + "".join(f"{number or '.':>{wide}}" for number in at))
    return [*lines, ""]
