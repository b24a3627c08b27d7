# isoflop/actions/plan.py without its comments
from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from statistics import median
from typing import Any

from trainwright import probe
from trainwright.errors import UserError
from trainwright.isoflop import calibration, planning, trainer
from trainwright.isoflop.actions.rows_options import count, number, positive, share
from trainwright.isoflop.shapes import SCHEDULES
from trainwright.output import write_text
from trainwright.report import Finding, Report, Severity
from trainwright.units import format_count, format_seconds

SUMMARY = "budgets x sizes to a plan: steps, batch, learning rate, seeds, cost; FLOPs within 1 % of the budget"
EXAMPLES = """examples:
  trainwright isoflop plan --calibration-dir out/cal --budgets 1e15 3e15 1e16 --plan out/plan.yaml
  trainwright isoflop plan --calibration-dir out/cal --budgets 1e19 1e20 --hardware h100-sxm --mfu 0.35 --devices 64 --plan p.yaml
  trainwright isoflop plan --calibration-dir out/cal --budgets 1e18 --lr-rule fixed --lr 3e-4 --trainer trainer.yaml --plan p.yaml"""
_SHOWN = 40
_SLACK = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--calibration-dir", required=True, metavar="DIR", help="what `isoflop calibrate` wrote (the folder, or its JSON)")
    parser.add_argument("--budgets", nargs="+", type=positive, required=True, metavar="C", help="budgets in FLOP, kept exactly")
    parser.add_argument("--plan", metavar="FILE", help="write the plan here (YAML)")
    parser.add_argument("--seeds", nargs="+", type=count, default=[0], metavar="N", help="a run each (default 0)")
    parser.add_argument("--params-rule", choices=planning.PARAMS, default="matmul", help="what N counts (default matmul: blocks and head)")
    parser.add_argument("--lr-rule", choices=tuple(planning.LR_RULES), default="width", help="default width: min(cap, k sqrt(B) / d)")
    parser.add_argument("--lr", type=positive, metavar="X", help="k of the rule width (default 0.11), or the rate of the rule fixed")
    parser.add_argument("--lr-cap", type=positive, default=0.03, metavar="X", help="of the rule width (default 0.03)")
    parser.add_argument("--batch", type=count, metavar="B", help="sequences a step, for every run")
    parser.add_argument("--batch-rule", choices=("sqrt", "steplaw"), default="sqrt", help="where no --batch is given (default sqrt)")
    parser.add_argument("--batch-range", nargs=2, type=count, default=[2, 32], metavar=("LEAST", "MOST"), help="default 2 32")
    parser.add_argument("--warmup", type=number, default=0.1, metavar="SHARE", help="of each run's steps (default 0.1)")
    parser.add_argument("--schedule", choices=SCHEDULES, default="cosine", help="to each run's own end (default cosine)")
    parser.add_argument("--tokens-per-param", nargs=2, type=number, metavar=("LEAST", "MOST"), help="leave out runs outside this range")
    parser.add_argument("--eval-windows", type=count, default=1024, metavar="N", help="of the text kept from training (default 1024)")
    parser.add_argument(
        "--checkpoint-every", type=count, default=0, metavar="N", help="steps; a killed run then goes on (default: starts again)"
    )
    parser.add_argument("--data", metavar="PATH", help="text or token shards for the reference trainer (default: Python's own sources)")
    parser.add_argument("--tokens", choices=("bytes", "counted", "ids"), default="bytes", help="what a token of it is (default bytes)")
    parser.add_argument("--single-pass", action="store_true", help="a run that would read a sample twice is an error")
    parser.add_argument("--trainer", metavar="FILE", help="run this trainer: argv: [...], results: FILE")
    parser.add_argument("--hardware", metavar="NAME", help="device hours on this accelerator")
    parser.add_argument("--peak-tflops", type=positive, metavar="X", help="its dense peak, where the table does not know it")
    parser.add_argument("--mfu", type=share, default=0.4, help="share of its dense bf16 peak that is assumed (default 0.4)")
    parser.add_argument("--devices", type=count, default=1, metavar="N", help="of that hardware (default 1)")


def run(options: argparse.Namespace) -> Report:
    members = calibration.read_calibration(options.calibration_dir)
    rules = _rules(options)
    hardware = _hardware(options) if options.hardware or options.peak_tflops else None
    planned = planning.plan_runs(options.budgets, members, rules, sorted(set(options.seeds)), hardware)
    plan = planning.document(planned, members, rules, _extra(options, hardware))
    report = Report("isoflop", data={"action": "plan", "plan": options.plan, **summary(plan)})
    report.text = lines(plan)
    examine(report, plan)
    report.summary = f"{len(planned.runs)} runs"
    if options.plan:
        write_text(options.plan, planning.dump(plan))
        report.text.append(f"wrote {options.plan}; next: isoflop launch --plan {options.plan} --scaling-study-dir DIR")
    return report


def _rules(options: argparse.Namespace) -> planning.Rules:
    if options.lr_rule == "fixed" and options.lr is None:
        raise UserError("--lr-rule fixed needs --lr X")
    least, most = options.batch_range
    if not 1 <= least <= most:
        raise UserError("--batch-range LEAST MOST: LEAST from 1, MOST not below it")
    if options.warmup >= 1:
        raise UserError("--warmup is a share of the steps, below 1")
    batch = {"batch": "fixed", "batch_value": float(options.batch)} if options.batch else {"batch": options.batch_rule}
    ratio = dict(zip(("least_ratio", "most_ratio"), options.tokens_per_param, strict=True)) if options.tokens_per_param else {}
    return planning.Rules(
        lr=options.lr_rule, lr_value=options.lr or 0.11, lr_cap=options.lr_cap, batch_least=least, batch_most=most,
        warmup=options.warmup, schedule=options.schedule, params=options.params_rule, **batch, **ratio,
    )


def _hardware(options: argparse.Namespace) -> planning.Hardware:
    name, devices = options.hardware or "the hardware given", max(options.devices, 1)
    if options.peak_tflops:
        return planning.Hardware(name, options.peak_tflops * 1e12, "", options.mfu, devices)
    if probe.importable("trainwright.hardware"):
        from trainwright.hardware import accelerator

        found = accelerator(options.hardware)
        reason = found.peak_bf16.reason or f"the dense bf16 peak of {found.name} is not known; --peak-tflops says it"
        return planning.Hardware(found.name, found.peak_bf16.value, reason, options.mfu, devices)
    return planning.Hardware(name, None, "the table of accelerators is not in this copy; --peak-tflops says the peak", options.mfu, devices)


def _extra(options: argparse.Namespace, hardware: planning.Hardware | None) -> dict[str, Any]:
    job = {"eval_windows": options.eval_windows, "checkpoint_every": options.checkpoint_every, "tokens": options.tokens}
    job |= {"single_pass": options.single_pass, "order": "study"} | DEFAULT_JOB
    if options.data:
        job["data"] = os.path.abspath(options.data)
    return {
        "job": job,
        "trainer": trainer.read_trainer(options.trainer).to_json() if options.trainer else None,
        "hardware": None if hardware is None else {key: getattr(hardware, key) for key in hardware.__dataclass_fields__},
    }


DEFAULT_JOB = {"beta1": 0.9, "beta2": 0.95, "weight_decay": 0.1, "decay": "matrices", "clip_norm": 1.0, "threads": 1}


def summary(plan: dict[str, Any]) -> dict[str, Any]:
    runs = plan["runs"]
    seconds, hours = ([run.get(key) for run in runs] for key in ("seconds_here", "device_hours"))
    return {
        "runs": runs,
        "left_out": plan["left_out"],
        "rules": plan["rules"],
        "cost": {
            "flops": sum(run["flops"] for run in runs),
            "seconds_here": None if None in seconds else sum(seconds),
            "device_hours": None if None in hours else sum(hours),
            "reason": next((run[key] for run in runs for key in ("hours_reason", "seconds_reason") if run.get(key)), ""),
        },
    }


def lines(plan: dict[str, Any]) -> list[str]:
    runs = plan["runs"]
    head = f"{'run':<24} {'N':>9} {'tokens':>9} {'steps':>8} {'batch':>5} {'lr':>9} {'D/N':>7} {'off C':>8} {'here':>9}"
    text = [head, *(_line(run) for run in runs[:_SHOWN])]
    text += [f"... {len(runs) - _SHOWN} more runs"] if len(runs) > _SHOWN else []
    text += [f"left out: {row['member']} at {row['budget']:g} FLOP: {row['reason']}" for row in plan["left_out"][:_SHOWN]]
    cost = summary(plan)["cost"]
    here = "unknown" if cost["seconds_here"] is None else format_seconds(cost["seconds_here"])
    text.append(_counted(plan))
    text.append(f"{len(runs)} runs, {cost['flops']:.4g} FLOP; here, one after another: {here}")
    if plan.get("hardware"):
        hours, where = cost["device_hours"], plan["hardware"]
        said = f"unknown: {cost['reason']}" if hours is None else f"{hours:.4g} ({hours / where['devices']:.4g} h on {where['devices']})"
        text.append(f"device hours on {where['name']} at {where['mfu']:.0%} of its peak: {said}")
    return text


def _counted(plan: dict[str, Any]) -> str:
    rules = ", ".join(sorted({str(member.get("flops_rule", "unknown")) for member in plan["members"]}))
    return f"N counts {_rule(plan)} weights; FLOP by the rule {rules}"


def _rule(plan: dict[str, Any]) -> str:
    return str((plan.get("rules") or {}).get("params", "unknown"))


def _line(run: dict[str, Any]) -> str:
    here = "-" if run.get("seconds_here") is None else format_seconds(run["seconds_here"])
    return (
        f"{run['id']:<24} {format_count(run['params']):>9} {format_count(run['tokens']):>9} {run['steps']:>8} {run['batch']:>5} "
        f"{run['lr']:>9.4g} {run['tokens'] / run['params']:>7.4g} {run['off_budget']:>+8.3%} {here:>9}"
    )


def examine(report: Report, plan: dict[str, Any]) -> None:
    report.findings = findings(plan)
    if not probe.importable("numpy"):
        report.skip("iso-off-optimum", "numpy is not installed")


def findings(plan: dict[str, Any]) -> list[Finding]:
    found = []
    runs = plan["runs"]
    text = {member["name"] for member in plan["members"] if member.get("modality", "text") == "text"}
    for budget in dict.fromkeys(run["budget"] for run in runs):
        sizes = sorted({run["params"] for run in runs if run["budget"] == budget})
        if len(sizes) < 4:
            words = f"{budget:g} FLOP: {len(sizes)} sizes, and a parabola with its doubt needs four or more"
            found.append(Finding("iso-few-sizes", Severity.WARNING, words, checked="derived"))
        found += _off_optimum(budget, [run for run in runs if run["budget"] == budget and run["member"] in text], _rule(plan))
    short = [run["id"] for run in runs if run["steps"] < planning.UNDERCOOKED]
    if short:
        words = f"{len(short)} runs have fewer than {planning.UNDERCOOKED} steps and may be undercooked: {', '.join(short[:4])}"
        found.append(Finding("iso-undercooked", Severity.WARNING, f"{words}{' ...' if len(short) > 4 else ''}", checked="run"))
    if len({run["budget"] for run in runs}) < 3:
        found.append(Finding("iso-few-budgets", Severity.WARNING, "fewer than three budgets: an exponent has no doubt that can be told"))
    return found


def _off_optimum(budget: float, runs: Sequence[dict[str, Any]], rule: str) -> list[Finding]:
    if not runs or not probe.importable("numpy"):
        return []
    from trainwright.isoflop.power import assumed_optimum

    sizes = sorted(run["params"] for run in runs)
    ratios = sorted(run["tokens"] / run["params"] for run in runs)
    factor = median(run["flops"] / run["params"] / run["tokens"] for run in runs)
    best = assumed_optimum(budget, factor) if factor > 0 else 0.0
    if not 0 < best < math.inf:
        return []
    if sizes[0] / _SLACK <= best <= sizes[-1] * _SLACK:
        return []
    there = f"N {format_count(round(best))}, D/N {budget / factor / best**2:.3g}"
    words = (
        f"{budget:g} FLOP: N ({rule}) {format_count(sizes[0])} to {format_count(sizes[-1])}, D/N {ratios[0]:.3g} to {ratios[-1]:.3g}, "
        f"cannot hold the minimum, which the published Chinchilla points put at {there}; "
        f"take {'larger' if best > sizes[-1] else 'smaller'} sizes or other budgets (`isoflop power` judges them)"
    )
    return [Finding("iso-off-optimum", Severity.WARNING, words, checked="derived")]
