"""`trainwright doctor`: what is this machine, which stack, what is wrong with its environment, what next."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from typing import Any

from trainwright.check.rules import environment as environment_rules
from trainwright.check.rules import environment_variables
from trainwright.doctor import redact
from trainwright.doctor.advice import Situation, entry_of, missing, next_command
from trainwright.doctor.observe import Seen, observe
from trainwright.doctor.profile import as_yaml, profile
from trainwright.doctor.words import lines
from trainwright.document import load_mapping
from trainwright.environment import Environment, from_json
from trainwright.errors import UserError
from trainwright.output import write_text
from trainwright.report import Location, Report
from trainwright.rules import check_all
from trainwright.units import parse_seconds
from trainwright.version import VERSION

EXAMPLES = """examples:
  trainwright doctor                                   what is here, what is wrong, what to type next (under 2 s)
  trainwright doctor --python /path/to/python --timeout 60s --format json
  trainwright doctor --hardware --output machine.yaml  this machine in the format of hardware.yaml
  trainwright doctor --report report.json              to share: no paths, no names of users, hosts or projects
  trainwright doctor --from report.json                judge what was recorded elsewhere"""

QUICK, PATIENT = 1.2, 60.0  # seconds that other programs get: by default, and where the devices themselves are asked for
LOADED = (environment_rules, environment_variables)  # importing them registers their rules


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--python", metavar="PATH", help="the job's interpreter (default: this one, or another that has torch)")
    parser.add_argument(
        "--timeout", type=_seconds, metavar="TIME", help="what torch may take to import (default 1.2s; 60s with --hardware)"
    )
    parser.add_argument(
        "--hardware", action="store_true", help="write this machine's hardware profile instead (YAML, or JSON in the envelope)"
    )
    parser.add_argument("--report", metavar="FILE", help="also write a report to share, without paths, user, host or project names")
    parser.add_argument(
        "--from", dest="recorded", metavar="FILE", help="judge a report or environment (JSON or YAML) and look at nothing here"
    )


def _seconds(text: str) -> float:
    try:
        value = parse_seconds(text)
    except UserError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None
    if not 0 < value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 0 and an hour")
    return value


def run(options: argparse.Namespace) -> Report:
    if options.recorded is not None:
        if options.hardware or options.python or options.report:
            raise UserError("--from judges a file: --hardware, --python and --report look at this machine; give one or the other")
        return _recorded(options.recorded)
    seen = observe(options.python, options.timeout, PATIENT if options.hardware else QUICK)
    if options.hardware:
        return _hardware(seen)
    report = Report("doctor", findings=check_all(seen.environment))
    for name, reason in seen.unknown:
        report.skip(name, reason)
    report.infer("the job's interpreter", seen.python, seen.python_reason)
    _describe(report, seen)
    if options.report:
        shared = redact.report(seen.environment, report.findings, VERSION)
        write_text(options.report, json.dumps(shared, indent=1, ensure_ascii=True) + "\n")
        report.text.append(f"report: {options.report}, with no paths and no names of users, hosts or projects; read it before you share it")
    return report


def _describe(report: Report, seen: Seen) -> None:
    environment, place = seen.environment, seen.place
    entries = {device: entry_of(device) for device in environment.devices}
    gaps = list(missing(environment, seen.python, place.stack))
    entry = next((name for name, _ in entries.values()), None)
    situation = Situation(seen.python, seen.python_named, seen.seconds, place.interactive, place.stack, entry)
    following = next_command(environment, report.findings, situation)
    report.data = {
        "environment": environment.to_json(),
        "interpreter": {
            "path": seen.python,
            "chosen": seen.python_reason,
            "conda": seen.conda,
            "virtual_environment": seen.virtual_environment,
        },
        "place": {
            "site": place.site,
            "role": place.role,
            "reason": place.reason,
            "scheduler": place.scheduler,
            "job": place.job,
            "nodes": place.nodes,
            "ranks_per_node": place.ranks_per_node,
        },
        "devices": [
            {**asdict(d), "entry": entries[d][0], "reason": entries[d][1], "seen_by": seen.devices_by} for d in environment.devices
        ],
        "host": {
            "processors": seen.processors.to_json(),
            "memory_bytes": environment.memory_bytes,
            "memory_limit_bytes": seen.memory_limit_bytes,
            **seen.limits.to_json(),
            "cards": seen.kernel.cards,
            "nvidia_driver": environment.nvidia_driver,
            "nics": [{"name": name, "bits_per_s": rate} for name, rate in seen.kernel.nics],
        },
        "missing": [gap.to_json() for gap in gaps],
        "next": {"command": following.command, "reason": following.reason},
    }
    report.text = lines(seen, report.data)
    report.summary = f"{place.role}, torch {environment.torch.state}"


def _hardware(seen: Seen) -> Report:
    """The profile; its text is YAML and nothing else, so that `--output machine.yaml` is a file that hardware.load reads."""
    table = profile(seen)
    head = [
        "# The hardware profile of one machine, in the format of hardware.yaml, written by `trainwright doctor --hardware`.",
        *(f"# not known: {name} ({reason})" for name, reason in seen.unknown),
    ]
    return Report("doctor", data={"hardware": table}, text=[*head, *as_yaml(table)])


def _recorded(path: str) -> Report:
    document = load_mapping(path)
    environment = _environment_of(document.value, path)
    # Nothing in it has a line of its own: the file is the place.
    findings = [replace(finding, where=Location(path)) for finding in check_all(environment)]
    return Report("doctor", data={"environment": environment.to_json()}, findings=findings, summary="a recorded environment")


def _environment_of(row: dict[str, Any], path: str) -> Environment:
    """The environment in a report to share, in doctor's own envelope, or alone; what was hidden in a report is unknown."""
    inner = row.get("environment") or (row.get("data") or {}).get("environment") if isinstance(row.get("data") or {}, dict) else None
    body = dict(inner) if isinstance(inner, dict) else dict(row)
    if isinstance(body.get("variables"), dict):
        body["variables"] = {key: value for key, value in body["variables"].items() if value != redact.HIDDEN}
    return from_json(body, path)
