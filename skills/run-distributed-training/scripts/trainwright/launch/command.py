# launch/command.py without its comments
from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from trainwright import probe
from trainwright.document import load_mapping
from trainwright.emit import backend
from trainwright.emit.reading import Reading
from trainwright.errors import Exit, MissingPackageError, UserError
from trainwright.job import Job
from trainwright.launch import folder, torchrun
from trainwright.launch.ends import ends_of
from trainwright.launch.settings import add_options, job_fields, rare_options
from trainwright.model import ModelSpec, load_model
from trainwright.possible import possible
from trainwright.presets import preset_path
from trainwright.progress import progress
from trainwright.report import Report, Severity
from trainwright.units import format_bytes, format_seconds, parse_count, parse_seconds

EXAMPLES = f"""{rare_options()}

examples:
  trainwright launch --model config.json --backend-config fsdp.yaml --nproc 4 --run-dir out/run1
  trainwright launch --model config.json --backend-config fsdp.yaml --run-dir out/run1 --memory-cap 300MiB --execute"""

DIAGNOSE_SKILL = "debug-distributed-training"
CHECK_SKILL = "distributed-training-backends"
STATES_BYTES = 16
_MOST_ENDS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "trainwright launch --model FILE --backend-config FILE --run-dir DIR [options] [--execute]"
    parser.add_argument("--model", required=True, metavar="FILE", help="a config.json, or a preset")
    parser.add_argument(
        "--backend-config",
        required=True,
        metavar="FILE",
        help="Accelerate YAML or JSON, or a DeepSpeed JSON: how the ranks share the model",
    )
    parser.add_argument("--run-dir", required=True, metavar="DIR", help="the folder of this run, made new")
    parser.add_argument("--nproc", metavar="N", help="ranks on this host (default: num_processes of the backend config)")
    add_options(parser)
    parser.add_argument("--stall", default="2min", metavar="TIME", help="end it when no rank wrote a line for TIME (default 2min)")
    parser.add_argument("--force", action="store_true", help="replace an earlier run in DIR; nothing else is ever replaced")
    parser.add_argument("--no-check", action="store_true", help="start even where check finds an error")
    parser.add_argument("--execute", action="store_true", help="run the job; without it nothing is started or written")


@dataclass(frozen=True, slots=True)
class _Plan:

    job: Job
    run_dir: str
    stall_s: float
    reading: Reading


def run(options: argparse.Namespace) -> Report:
    report = Report("launch")
    model = load_model(options.model)
    plan = _plan(options, model, report)
    folder.check(plan.run_dir, options.force)
    too_large = _too_large(plan, model)
    if too_large and options.execute and not options.no_check:
        raise UserError(f"{too_large}; take fewer ranks, a smaller model or a --memory-cap (--no-check starts it all the same)")
    report.data = _data(plan)
    report.text = _text(plan)
    if not options.no_check and not _checked(plan, model, report):
        report.text.append("not started: the backend config has errors (--no-check starts it all the same)")
    elif options.execute:
        _execute(plan, options, report)
    else:
        report.text.append(f"nothing was started: --execute {f'would refuse it: {too_large}' if too_large else 'runs it'}")
        if not probe.importable("torch"):
            report.skip("torch", "this Python does not have it; --execute will ask for: pip install torch")
    return report


def _plan(options: argparse.Namespace, model: ModelSpec, report: Report) -> _Plan:
    reading = backend.read(load_mapping(options.backend_config), model)
    paths = {"model": os.path.abspath(preset_path(options.model)), "backend_config": os.path.abspath(options.backend_config)}
    world_size = _world_size(options, reading, report)
    fields = job_fields(options, reading, world_size, report)
    job = Job(**paths, world_size=world_size, run_dir=os.path.abspath(options.run_dir), **fields)
    if job.seq_len > model.max_positions:
        raise UserError(f"--seq-len {job.seq_len} is more than the {model.max_positions} positions of {options.model}")
    reading = reading.under(job)
    possible(model, reading.strategy, job)
    return _Plan(job, job.run_dir, parse_seconds(options.stall), reading)


def _too_large(plan: _Plan, model: ModelSpec) -> str:
    job, have = plan.job, probe.free_memory_bytes()
    if job.device != "cpu" or have is None:
        return ""
    need = _host_bytes(plan, model)
    return f"{job.world_size} ranks here need about {format_bytes(need)} of memory, and {format_bytes(have)} is free" if need > have else ""


def _host_bytes(plan: _Plan, model: ModelSpec) -> int:
    job, strategy = plan.job, plan.reading.strategy
    if job.modality == "text" and probe.importable("trainwright.cost.memory"):
        from trainwright.cost.memory import Workload, host_bytes

        work = Workload(job.micro_batch, job.seq_len, job.world_size, accumulation=job.accumulation, whole_gradients=job.whole_gradients)
        with suppress(UserError):
            return host_bytes(model, strategy, work, job.memory_cap_bytes)
    copies = strategy.replicas if strategy.kind in ("fsdp", "zero") else job.world_size
    states = STATES_BYTES * model.decoder_parameters * copies
    return min(states, job.world_size * job.memory_cap_bytes) if job.memory_cap_bytes else states


def _world_size(options: argparse.Namespace, reading: Reading, report: Report) -> int:
    if options.nproc:
        return parse_count(options.nproc)
    if reading.num_processes is None:
        raise UserError(f"{options.backend_config} does not say how many ranks; say it with --nproc")
    report.infer("nproc", reading.num_processes, f"num_processes in {options.backend_config}")
    return reading.num_processes


def _checked(plan: _Plan, model: ModelSpec, report: Report) -> bool:
    if probe.importable("trainwright.check.judge"):
        from trainwright.check.judge import judge
        from trainwright.check.subject import Context

        checked = judge([plan.job.backend_config], Context(plan.job.world_size, model, plan.job.device))
        report.findings += checked.findings
        report.not_checked += checked.not_checked
    else:
        report.skip("check", f"check is not in this copy; the skill {CHECK_SKILL} has it: judge {plan.job.backend_config} there")
    return not any(finding.severity is Severity.ERROR for finding in report.findings)


def _execute(plan: _Plan, options: argparse.Namespace, report: Report) -> None:
    if not probe.importable("torch"):
        raise MissingPackageError("torch", "launch --execute")
    with progress("launch", options.quiet) as step:
        outcome = torchrun.run(plan.job, plan.run_dir, step=step, stall_s=plan.stall_s, force=options.force)
    took = f" after {format_seconds(outcome.seconds)}" + (f": {outcome.reason}" if outcome.reason else "")
    report.text.append(f"{outcome.status}{took}; diagnose {plan.run_dir} tells more")
    report.data["outcome"] = dataclasses.asdict(outcome)
    if outcome.status == "interrupted":
        report.exit = Exit.INTERRUPTED
        return
    _read_back(plan, report)
    report.exit = None if outcome.completed else Exit.FAILED


def _read_back(plan: _Plan, report: Report) -> None:
    if probe.importable("trainwright.diagnose.verdict"):
        from trainwright.diagnose.run_folder import read_run
        from trainwright.diagnose.verdict import diagnose

        found = diagnose(read_run(plan.run_dir))
        report.findings += found.findings
        report.data["diagnosis"] = found.to_json()
        return
    ends = ends_of(plan.run_dir, plan.job.world_size)
    report.data["ends"] = [dataclasses.asdict(end) for end in ends]
    failed = sorted((end for end in ends if not end.completed), key=lambda end: end.type == "terminated")
    report.text += [str(end) for end in failed[:_MOST_ENDS]]
    report.text += [f"... and {len(failed) - _MOST_ENDS} more ranks"] if len(failed) > _MOST_ENDS else []
    report.skip("diagnosis", f"diagnose is not in this copy; the skill {DIAGNOSE_SKILL} has it")


def _data(plan: _Plan) -> dict[str, Any]:
    reading = plan.reading
    return {
        "job": plan.job.to_json(),
        "argv": torchrun.command(plan.job, plan.run_dir),
        "environment": torchrun.variables(plan.job, "TOKEN"),
        "strategy": plan.reading.strategy.name,
        "num_processes": reading.num_processes,
        "applied": [{"key": use.key, "value": use.value, "becomes": use.meaning} for use in reading.applied],
        "not_applied": [{"key": use.key, "value": use.value, "reason": use.meaning} for use in reading.not_applied],
        "outcome": None,
        "diagnosis": None,
        "ends": None,
    }


def _text(plan: _Plan) -> list[str]:
    job, reading = plan.job, plan.reading
    cap = f", {format_bytes(job.memory_cap_bytes)} a rank enforced" if job.memory_cap_bytes else ""
    rounds = f"{job.accumulation} x " if job.accumulation > 1 else ""
    batch = f"{rounds}{job.micro_batch} x {job.seq_len} tokens"
    lines = [
        f"job: {job.world_size} ranks on {job.device}, {job.last_step} steps of {batch} a rank{cap}",
        f"strategy: {plan.reading.strategy.name}, from {job.backend_config}",
        *(f"  applied: {use.key} {use.value} -> {use.meaning}" for use in reading.applied),
        *(f"  not applied: {use.key} {use.value}: {use.meaning}" for use in reading.not_applied),
    ]
    if reading.num_processes is not None and reading.num_processes != job.world_size:
        lines.append(f"num_processes {reading.num_processes} in the file, --nproc {job.world_size}: the run has {job.world_size} ranks")
    settings = torchrun.variables(job, "a random token")
    return [
        *lines,
        f"folder: {plan.run_dir}",
        f"limits: {format_seconds(job.timeout_s)} in all, {format_seconds(plan.stall_s)} without a line",
        *(f"  {name}={shlex.quote(value)}" for name, value in settings.items()),
        shlex.join(torchrun.command(job, plan.run_dir)),
    ]
