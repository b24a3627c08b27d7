"""`trainwright diagnose`: what happened in a run, to whom, and what would confirm it."""

from __future__ import annotations

import argparse
import os

from trainwright.diagnose.measure import Measures
from trainwright.diagnose.page import page
from trainwright.diagnose.run_folder import Run, read_files, read_run
from trainwright.diagnose.verdict import Diagnosis, diagnose
from trainwright.errors import UserError
from trainwright.report import Report
from trainwright.units import format_bytes, format_seconds

EXAMPLES = """examples:
  trainwright diagnose out/run1
  trainwright diagnose out/run1/perf/rank0.jsonl out/run1/logs/launcher.log --format json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", metavar="PATH", help="the folder of one run, or perf and log files of one run")
    parser.add_argument("--html", metavar="FILE", help="write the run's page, with its charts, to FILE")


def run(options: argparse.Namespace) -> Report:
    """One run's report; raises UserError for what is neither a run folder nor files of one."""
    found = _read(options.paths)
    diagnosis = diagnose(found)
    report = Report("diagnose", data=diagnosis.to_json(), findings=diagnosis.findings)
    report.text = _text(found, diagnosis)
    report.page = page(found, diagnosis) if options.html else ""
    report.summary = f"{found.path}: {found.status or 'no word on its end'}"
    for name, reason in (*found.notes, *diagnosis.measures.not_measured):
        report.skip(name, reason)
    if found.status in ("", "running"):
        report.skip("outcome", "the run has not ended, or its launcher was ended before it could say how")
    return report


def _read(paths: list[str]) -> Run:
    if len(paths) == 1 and os.path.isdir(paths[0]):
        return read_run(paths[0])
    folders = [path for path in paths if os.path.isdir(path)]
    if folders:
        raise UserError(f"{folders[0]} is a folder beside other paths; diagnose one run at a time")
    return read_files(paths)


def _text(found: Run, diagnosis: Diagnosis) -> list[str]:
    measures = diagnosis.measures
    asked = f" of {measures.steps_asked}" if measures.steps_asked else ""
    world = f"{measures.world_size} ranks" if measures.world_size else "ranks unknown"
    lines = [f"{found.path}: {found.status or 'no word on its end'}; {world}, {measures.steps}{asked} steps"]
    if live := measures.strategy:
        share = live.get("shard_ratio")
        held = f", each rank holds {share:.0%} of the parameters" if isinstance(share, float) else ""
        lines.append(f"ran {live.get('name')} ({live.get('wrapper')}) on {live.get('world_size')} ranks{held}")
    lines += _speed(measures)
    if measures.peak_memory_bytes is not None:
        lines.append(f"peak tensor memory of a rank: {format_bytes(measures.peak_memory_bytes)} (tracked)")
    for stated in diagnosis.diagnoses:
        culprit = f"rank {stated['culprit']['value']}" if stated["culprit"] else "no single rank"
        confirm = f"; to confirm: {stated['confirm']}" if stated["confirm"] else ""
        lines.append(f"{stated['class']}: {culprit}, confidence {stated['confidence']}{confirm}")
        lines += [f"  {line['file']}:{line['line'] or '?'}: {line['text'][:160]}" for line in stated["evidence"][:3]]
    return lines


def _speed(measures: Measures) -> list[str]:
    lines = []
    if measures.first_step_time_s is not None:
        lines.append(f"first step {format_seconds(measures.first_step_time_s)}")
    if measures.median_step_time_s is None or measures.p90_step_time_s is None:
        return lines
    rate = f", {measures.tokens_per_s:,.0f} tokens/s over all ranks" if measures.tokens_per_s else ""
    spread = f", slowest rank +{measures.rank_spread:.1%}" if measures.rank_spread is not None else ""
    step = f"median step {format_seconds(measures.median_step_time_s)} (p90 {format_seconds(measures.p90_step_time_s)}"
    lines.append(f"{step}, {measures.steady_steps} steady steps){rate}{spread}")
    phases = {name[:-2]: format_seconds(value) for name, value in measures.phases.items() if value is not None}
    waits = phases.pop("communication", None)
    within = f"; of these waiting in collectives {waits}" if waits else ""
    return [*lines, f"phases: {', '.join(f'{name} {time}' for name, time in phases.items())}{within}"] if phases else lines
