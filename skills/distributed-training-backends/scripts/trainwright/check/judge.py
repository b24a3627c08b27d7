# check/judge.py without its comments
from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainwright.check.context import context_json
from trainwright.check.dialects import NOT_JUDGED
from trainwright.check.gather import Gatherer, holds
from trainwright.check.subject import (
    AccelerateConfig,
    Context,
    DeepSpeedConfig,
    FsdpBlock,
    Job,
    Megatron,
    Quantization,
    Source,
    Template,
    TrainingArguments,
    Unreadable,
)
from trainwright.document import Document
from trainwright.emit.accelerate_file import table as keys
from trainwright.errors import Exit
from trainwright.report import Finding, Report
from trainwright.rules import check_all, load_all

MODULES: dict[type, str] = {
    Document: "documents",
    Unreadable: "documents",
    Template: "documents",
    AccelerateConfig: "accelerate",
    DeepSpeedConfig: "deepspeed",
    TrainingArguments: "arguments",
    FsdpBlock: "fsdp",
    Megatron: "megatron",
    Quantization: "quantization",
    Source: "source",
    Job: "job",
}
_IN_PART = {
    "template": "rules.documents",
    "axolotl": "rules.deepspeed",
    "llama-factory": "rules.deepspeed",
    "verl": "rules.fsdp",
    "openrlhf": "rules.deepspeed",
    "gpt-neox": "rules.deepspeed",
}
_NAMES = {
    "accelerate": "Accelerate files",
    "deepspeed": "DeepSpeed configs",
    "arguments": "TrainingArguments",
    "fsdp": "FSDP blocks",
    "megatron": "Megatron-LM's arguments",
    "quantization": "quantization configs",
}


def judge(
    paths: Sequence[str],
    context: Context,
    line: str = "",
    dialect: str = "",
    report: Report | None = None,
    together: bool = False,
    texts: Mapping[str, str] | None = None,
) -> Report:
    report = report or Report("check")
    gathered = Gatherer(context, report, dialect, together, texts).gather(paths, line)
    jobs = []
    for job, subjects in gathered.jobs:
        for subject in [*subjects, job, *_programs(job, report)]:
            findings = [f for f in map(_placed(subject), findings_of(subject)) if not _said(report.findings, f)]
            report.findings += findings
            for finding in findings:
                _count(gathered.rows, finding)
        jobs.append((job, subjects))
    _not_held(report, jobs)
    _unknown(report, jobs)
    report.data = {"files": list(gathered.rows.values()), "context": context_json(context)}
    _outcome(report, paths)
    return report


def _programs(job: Job, report: Report) -> list[Any]:
    context = job.context
    if not (job.sources or context.call or context.ddp_kwargs or context.training_args or context.device_map):
        return []
    if importlib.util.find_spec("trainwright.check.source"):
        from trainwright.check.source.program import programs

        load_all("check", "source*")
        return programs(job, report)
    return []


def findings_of(subject: Any) -> list[Finding]:
    module = MODULES.get(type(subject))
    if module is not None:
        load_all("check", f"{module}*")
    return check_all(subject)


def _not_held(report: Report, jobs: list[tuple[Job, list[Any]]]) -> None:
    kinds = {MODULES[type(s)] for job, subjects in jobs for s in [*subjects, job] if type(s) in MODULES and type(s) is not Source}
    for module in sorted(kinds):
        if not importlib.util.find_spec(f"trainwright.check.rules.{module}"):
            report.skip(_NAMES.get(module, module), "this copy holds no rules on them")


def _placed(subject: Any) -> Callable[[Finding], Finding]:
    if isinstance(subject, AccelerateConfig) and subject.document.dialect == "line":
        return _as_flags
    if isinstance(subject, DeepSpeedConfig) and subject.document.dialect == "line":
        return lambda finding: replace(finding, fix=None)
    prefix = ".".join(map(str, subject.prefix)) if isinstance(subject, DeepSpeedConfig) else ""

    def placed(finding: Finding) -> Finding:
        if not prefix:
            return finding
        fix = replace(finding.fix, set={f"{prefix}.{key}": value for key, value in finding.fix.set.items()}) if finding.fix else None
        return replace(finding, path=f"{prefix}.{finding.path}".rstrip("."), fix=fix)

    return placed


def _as_flags(finding: Finding) -> Finding:
    blocks = [f"{name}." for name in keys()["blocks"]]
    message = finding.message
    for block in blocks:
        message = message.replace(block, "--")

    def flag(key: str) -> str:
        return key if key.startswith("--") else f"--{key.rpartition('.')[2]}"

    fix = replace(finding.fix, set={flag(key): value for key, value in finding.fix.set.items()}) if finding.fix else None
    return replace(finding, message=message, path=flag(finding.path) if finding.path else "", fix=fix)


def _said(findings: list[Finding], finding: Finding) -> bool:
    return any(
        f.rule == finding.rule and f.where == finding.where and f.message == finding.message and f.path == finding.path
        for f in findings[-400:]
    )


def _count(rows: dict[str, dict[str, Any]], finding: Finding) -> None:
    if finding.where and finding.where.path in rows:
        rows[finding.where.path]["findings"] += 1


def _outcome(report: Report, paths: Sequence[str]) -> None:
    rows = report.data["files"]
    unreadable = [row for row in rows if row["dialect"] == "unreadable"]
    judged = sum(row["judged"] for row in rows)
    report.summary = f"{judged} of {len(rows)} files judged"
    if unreadable:
        report.exit = Exit.USAGE
    elif why := _nothing_judged(rows, paths):
        report.exit = Exit.USAGE
        report.text.append(f"nothing was judged: {why}")


def _nothing_judged(rows: Sequence[Mapping[str, Any]], paths: Sequence[str]) -> str:
    if not rows:
        return f"{', '.join(paths[:3])}{' ...' * (len(paths) > 3)}: no config of a training backend is there" if paths else ""
    if all(row["dialect"] in ("model", "unknown") for row in rows):
        return "none of these is a config of a training backend"
    if any(row["judged"] or (row["dialect"] in _IN_PART and holds(_IN_PART[row["dialect"]])) for row in rows):
        return ""
    without = all(row["dialect"] in ("model", "unknown", *NOT_JUDGED) for row in rows) and not {*_IN_PART} & {r["dialect"] for r in rows}
    return "there are no rules for these files" if without else "this copy holds no rules on these files"


def _unknown(report: Report, jobs: list[tuple[Job, list[Any]]]) -> None:
    configs = [(job, s) for job, subjects in jobs for s in subjects if isinstance(s, (AccelerateConfig, DeepSpeedConfig))]
    if any(job.context.world_size is None for job, _ in configs):
        report.skip("num_processes against the job", "how many ranks the job gets is in no file: give --world-size")
    if any(
        isinstance(s, AccelerateConfig) and s.kind == "fsdp" and not (c.model or c.model_class) for j, s in configs for c in (j.context,)
    ):
        report.skip("layer classes against the model", "the model is not in the file: give --model config.json")
    if any(job.context.device is None for job, _ in configs):
        report.skip("the devices of the machine", "the kind of device is not in the file: give --device cpu, cuda or xpu")
