"""`trainwright check PATH...`: are these config files right, before a job is started with them."""

from __future__ import annotations

import argparse
import os
from typing import Any

from trainwright.check.context import PACKAGES, installed_versions, read_context
from trainwright.check.files import default_accelerate_file
from trainwright.check.judge import judge
from trainwright.check.subject import DEVICES, Context
from trainwright.errors import UserError
from trainwright.report import Report

EXAMPLES = """examples:
  trainwright check accelerate.yaml --world-size 4 --model config.json --device cuda
  trainwright check job.sbatch      the files that it names are judged with it
  trainwright check --cli "accelerate launch --config_file a.yaml train.py --bf16"
  trainwright check a.yaml --show-effective          what each key becomes, and who reads it"""
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
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="config files, job scripts, Python sources, folders or patterns; - reads standard input; none: the file that "
        "`accelerate launch` would take by default",
    )
    parser.add_argument("--cli", metavar="LINE", default="", help='a launch line as typed: "accelerate launch --config_file F train.py"')
    parser.add_argument("--show-effective", action="store_true", help="what each key becomes, through which variable, and who reads it")
    parser.add_argument("--together", action="store_true", help="judge all files as one job, also where none refers to another")
    parser.add_argument(
        "--dialect", choices=DIALECTS, default="", metavar="KIND", help="take every file for one of: " + ", ".join(DIALECTS)
    )
    facts = parser.add_argument_group("facts that no file holds")
    facts.add_argument("--context", metavar="FILE", help="a YAML or JSON file of facts (references/check-context.md lists its keys)")
    facts.add_argument("--world-size", type=_ranks, metavar="N", help="ranks of the job, on all machines together")
    facts.add_argument("--gpus-per-node", type=_ranks, metavar="N", help="devices of one machine")
    facts.add_argument("--model", metavar="CONFIG", help="the model's Hugging Face config.json")
    facts.add_argument("--device", choices=DEVICES, help="what the job's machines compute on")
    for package in PACKAGES:
        more = " (else the one that the tables describe)" if package == PACKAGES[0] else ""
        facts.add_argument(f"--{package}", metavar="V", help=f"the job's release of {package}{more}")
    facts.add_argument("--python", metavar="PATH", help="the job's interpreter: its installed releases are used")


def run(options: argparse.Namespace) -> Report:
    report = Report("check")
    context = _context(options, report)
    paths = list(options.paths)
    if not paths and not options.cli:
        path = default_accelerate_file()
        if path is None:
            raise UserError("name a file: there is no default config file of Accelerate's here that `accelerate launch` would take")
        paths = [path]
        report.infer("file", path, "what `accelerate launch` takes where no --config_file is given")
    judge(paths, context, options.cli, options.dialect, report, options.together)
    if options.show_effective:
        from trainwright.check.effective import show

        show(report, paths, context, options.cli, options.dialect, options.together)
    return report


def _context(options: argparse.Namespace, report: Report) -> Context:
    versions = {name: getattr(options, name) for name in PACKAGES if getattr(options, name)}
    if options.python:
        versions = {**installed_versions(os.path.expanduser(options.python)), **versions}
    model: Any = None
    if options.model:
        from trainwright.model import load_model

        model = load_model(options.model)
    context = Context(options.world_size, model, options.device, options.gpus_per_node, versions)
    return read_context(options.context, context, report) if options.context else context


def _ranks(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 12 and 0 < int(text) <= 10**7):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number, 1 or more")
    return int(text)
