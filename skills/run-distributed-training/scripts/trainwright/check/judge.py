"""Judge files one by one: read, recognise, apply the rules; one that cannot be read does not keep the others from it."""

from __future__ import annotations

from typing import Any

from trainwright.check.subject import AccelerateConfig, Context, Unreadable, accelerate_config, dialect_of
from trainwright.document import DocumentError, load_mapping
from trainwright.errors import Exit
from trainwright.report import Finding, Report
from trainwright.rules import check_all, load_all

_NOT_JUDGED = {
    "sagemaker": "an Accelerate config for SageMaker: there are no rules for it yet",
    "deepspeed": "a DeepSpeed config: there are no rules for it yet",
    "model": "a model's config.json: give it with --model beside the config that trains it",
    "unknown": "its keys are not those of a config that check knows",
}


def judge(paths: list[str], context: Context) -> Report:
    """The findings of all files, each judged by itself; `data` says what each file is.

    The exit is USAGE where a file cannot be read, whatever else is found, and where no file is a backend's config. "-" is standard input.
    """
    load_all("check")
    report = Report("check", data={"files": [], "context": _context_json(context)})
    for path in dict.fromkeys(paths):
        dialect, findings = _judge_file(path, context, report)
        report.findings += findings
        report.data["files"].append({"path": path, "dialect": dialect, "judged": dialect == "accelerate", "findings": len(findings)})
    judged = sum(row["judged"] for row in report.data["files"])
    report.summary = f"{judged} of {len(report.data['files'])} files judged"
    if not judged and report.exit is None and all(row["dialect"] in ("model", "unknown") for row in report.data["files"]):
        report.exit = Exit.USAGE
        report.text.append("nothing was judged: none of these is a config of a training backend")
    return report


def _judge_file(path: str, context: Context, report: Report) -> tuple[str, list[Finding]]:
    try:
        document = load_mapping(path)
    except DocumentError as problem:
        report.exit = Exit.USAGE
        return "unreadable", check_all(Unreadable(problem))
    dialect = dialect_of(document)
    if dialect != "accelerate":
        report.skip(path, _NOT_JUDGED[dialect])
        return dialect, check_all(document)
    config = accelerate_config(document, context)
    _skip_unknown_context(config, report)
    return dialect, [*check_all(document), *check_all(config)]


def _skip_unknown_context(config: AccelerateConfig, report: Report) -> None:
    """Say once what would be judged if the facts beside the file were known."""
    if config.context.world_size is None:
        report.skip("num_processes against the job", "the number of ranks is not in the file: give --world-size")
    if config.file.uses_fsdp and config.context.model is None:
        report.skip("layer classes against the model", "the model is not in the file: give --model config.json")
    if config.context.device is None:
        report.skip("the devices of the machine", "the kind of device is not in the file: give --device cpu, cuda or xpu")


def _context_json(context: Context) -> dict[str, Any]:
    return {
        "world_size": context.world_size,
        "model": context.model.name if context.model else None,
        "device": context.device,
    }
