# check/command.py without its comments
from __future__ import annotations

import argparse
import importlib.util
import os
from dataclasses import replace
from typing import Any

from trainwright.check.context import PACKAGES, installed_versions, read_context
from trainwright.check.files import default_accelerate_file
from trainwright.check.judge import judge
from trainwright.check.subject import DEVICES, Context
from trainwright.errors import Exit, UserError
from trainwright.report import Report

FORMATS = ("text", "json", "sarif") if importlib.util.find_spec("trainwright.sarif") else ("text", "json")
EXAMPLES = """examples:
  trainwright check accelerate.yaml --world-size 4 --device cuda
  trainwright check job.sbatch      the files that it names are judged with it
  trainwright check --cli "accelerate launch --config_file a.yaml train.py --bf16"
  trainwright check a.yaml --show-effective"""
DIALECTS = (
    "accelerate",
    "deepspeed",
    "training-arguments",
    "fsdp-config",
    "megatron",
    "axolotl",
    "llama-factory",
    "gpt-neox",
    "torchtitan",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "trainwright check [PATH ...] [options]"
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="configs, job scripts, sources, folders, patterns; - is stdin; none: the file that accelerate launch takes",
    )
    parser.add_argument("--cli", metavar="LINE", default="", help="a launch line as typed, in quotes")
    show = parser.add_argument("--show-effective", action="store_true", help="what each key becomes, and who reads it")
    _only_with("trainwright.check.effective", [show])
    parser.add_argument("--together", action="store_true", help="judge all files as one job")
    parser.add_argument("--dialect", choices=DIALECTS, default="", metavar="KIND", help="take files for one of " + ", ".join(DIALECTS))
    parser.add_argument("--ignore-unknown", action="store_true", help="pass over files of no backend")
    _add_actions(parser)
    facts = parser.add_argument_group("facts that no file holds")
    facts.add_argument("--context", metavar="FILE", help="facts as YAML or JSON (see check-context.md)")
    facts.add_argument("--world-size", type=_ranks, metavar="N", help="ranks of the job, on all machines")
    facts.add_argument("--gpus-per-node", type=_ranks, metavar="N", help="devices of one machine")
    model = [
        facts.add_argument("--model", metavar="CONFIG", help="the model's Hugging Face config.json"),
        facts.add_argument("--hardware", metavar="NAME", help="what one device is: a100-80gb, h100-sxm ..."),
    ]
    _only_with("trainwright.model", model)
    facts.add_argument("--device", choices=DEVICES, help="what the job's machines compute on")
    for package in PACKAGES:
        facts.add_argument(f"--{package}", metavar="V", help="the job's release of it")
    facts.add_argument("--python", metavar="PATH", help="the job's interpreter, whose releases count")


def _add_actions(parser: argparse.ArgumentParser) -> None:
    acts = parser.add_argument_group("mend, convert, adopt")
    way = acts.add_mutually_exclusive_group()
    kinds = ("fsdp2", "deepspeed", "accelerate")
    options = [
        way.add_argument("--diff", action="store_true", help="show what --fix would change"),
        way.add_argument("--fix", action="store_true", help="apply the safe fixes to the files named"),
        way.add_argument("--convert", choices=kinds, metavar="KIND", help=f"the same job as {', '.join(kinds[:2])} or {kinds[2]}"),
        way.add_argument("--schema", nargs="?", const="", metavar="NAME", help="a JSON Schema, NAME or NAME@RELEASE; none: the list"),
        acts.add_argument("--emit", metavar="FILE", help="write what --convert or --schema makes to FILE"),
        acts.add_argument("--check-imports", action="store_true", help="which packages the configs need"),
        acts.add_argument("--baseline", metavar="FILE", help="put aside the findings that FILE knows"),
        acts.add_argument("--write-baseline", metavar="F", help="write the findings to FILE for that"),
    ]
    _only_with("trainwright.check.actions", options)


def _only_with(module: str, options: list[argparse.Action]) -> None:
    for option in options if not importlib.util.find_spec(module) else ():
        option.help = argparse.SUPPRESS


def run(options: argparse.Namespace) -> Report:
    report = Report("check")
    if options.emit and not (options.convert or options.schema):
        raise UserError("--emit needs --convert KIND or --schema NAME, whose text it writes")
    _keep_inputs(options)
    if options.schema is not None:
        _actions().print_schema(options, report, _versions(options))
        return report
    context = _context(options, report)
    paths = _paths(options, report)
    if options.convert:
        _actions().convert_file(options, paths, context, report)
        return report
    judge(paths, context, options.cli, options.dialect, report, options.together)
    if options.diff or options.fix:
        report = _actions().mend(options, paths, context, report)
    if options.ignore_unknown and report.exit is Exit.USAGE and all(row["dialect"] != "unreadable" for row in report.data["files"]):
        report.exit, report.text = None, []
    if options.check_imports:
        _actions().list_imports(options, paths, context, report)
    if options.show_effective:
        _effective().show(report, paths, context, options.cli, options.dialect, options.together)
    if options.baseline or options.write_baseline:
        _actions().adopt(options, report)
    return report


def _keep_inputs(options: argparse.Namespace) -> None:
    inputs = {os.path.realpath(path) for path in options.paths if path != "-"}
    for name in ("output", "emit", "write_baseline"):
        target = getattr(options, name)
        if target and target != "-" and os.path.realpath(target) in inputs:
            raise UserError(f"--{name.replace('_', '-')} {target}: this file is to be judged, and would be lost; name another")


def _effective() -> Any:
    if importlib.util.find_spec("trainwright.check.effective"):
        from trainwright.check import effective

        return effective
    raise UserError("--show-effective: this copy does not show it; the skill distributed-training-backends does, and the whole package")


def _actions() -> Any:
    if importlib.util.find_spec("trainwright.check.actions"):
        from trainwright.check import actions

        return actions
    raise UserError("this copy judges files and does nothing else with them; the skill mend-training-configs does, and the whole package")


def _paths(options: argparse.Namespace, report: Report) -> list[str]:
    if options.paths or options.cli:
        return list(options.paths)
    path = default_accelerate_file()
    if path is None:
        raise UserError("name a file: there is no default config file of Accelerate's here that `accelerate launch` would take")
    report.infer("file", path, "what `accelerate launch` takes where no --config_file is given")
    return [path]


def _context(options: argparse.Namespace, report: Report) -> Context:
    versions = _versions(options)
    if options.python:
        versions = {**installed_versions(os.path.expanduser(options.python)), **versions}
    told = _model(options.model) | {"world_size": options.world_size, "device": options.device, "gpus_per_node": options.gpus_per_node}
    context = Context(**told, hardware=options.hardware, versions=versions)
    context = read_context(options.context, context, report) if options.context else context
    if context.hardware and context.device is None and (device := _device_of(context.hardware)):
        report.infer("device", device, f"the hardware {context.hardware}")
        context = replace(context, device=device)
    return context


def _device_of(hardware: str) -> str | None:
    if importlib.util.find_spec("trainwright.hardware"):
        from trainwright.hardware import accelerator

        try:
            device = accelerator(hardware).device
        except UserError:
            return None
        return device if device in DEVICES else None
    return None


def _model(path: str | None) -> dict[str, Any]:
    if not path:
        return {}
    if importlib.util.find_spec("trainwright.model"):
        from trainwright.check.model_files import facts_of_model

        return facts_of_model(path)
    raise UserError("--model: this copy does not read models; give facts of it by --context (model_class), or use the whole package")


def _versions(options: argparse.Namespace) -> dict[str, str]:
    return {name: getattr(options, name) for name in PACKAGES if getattr(options, name)}


def _ranks(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 12 and 0 < int(text) <= 10**7):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number, 1 or more")
    return int(text)
