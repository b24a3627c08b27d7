"""`trainwright check PATH...`: are these config files right, before a job is started with them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from typing import Any

from trainwright.check.context import PACKAGES, installed_versions, read_context
from trainwright.check.files import default_accelerate_file
from trainwright.check.judge import judge
from trainwright.check.subject import DEVICES, Context
from trainwright.errors import Exit, UserError
from trainwright.report import Report

FORMATS = ("text", "json", "sarif")
EXAMPLES = """examples:
  trainwright check accelerate.yaml --world-size 4 --model config.json --device cuda
  trainwright check job.sbatch      the files that it names are judged with it
  trainwright check --cli "accelerate launch --config_file a.yaml train.py --bf16"
  trainwright check a.yaml --convert fsdp2 --emit b.yaml"""
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
    parser.add_argument("--show-effective", action="store_true", help="what each key becomes, and who reads it")
    parser.add_argument("--together", action="store_true", help="judge all files as one job")
    parser.add_argument("--dialect", choices=DIALECTS, default="", metavar="KIND", help="take files for one of " + ", ".join(DIALECTS))
    parser.add_argument("--ignore-unknown", action="store_true", help="pass over files of no backend")
    _add_actions(parser)
    facts = parser.add_argument_group("facts that no file holds")
    facts.add_argument("--context", metavar="FILE", help="facts as YAML or JSON (see check-context.md)")
    facts.add_argument("--world-size", type=_ranks, metavar="N", help="ranks of the job, on all machines")
    facts.add_argument("--gpus-per-node", type=_ranks, metavar="N", help="devices of one machine")
    facts.add_argument("--model", metavar="CONFIG", help="the model's Hugging Face config.json")
    facts.add_argument("--device", choices=DEVICES, help="what the job's machines compute on")
    for package in PACKAGES:
        facts.add_argument(f"--{package}", metavar="V", help="the job's release of it")
    facts.add_argument("--python", metavar="PATH", help="the job's interpreter, whose releases count")


def _add_actions(parser: argparse.ArgumentParser) -> None:
    acts = parser.add_argument_group("mend, convert, adopt")
    way = acts.add_mutually_exclusive_group()
    way.add_argument("--diff", action="store_true", help="show what --fix would change")
    way.add_argument("--fix", action="store_true", help="apply the safe fixes to the files named")
    way.add_argument(
        "--convert", choices=("fsdp2", "deepspeed", "accelerate"), metavar="KIND", help="the same job as fsdp2, deepspeed or accelerate"
    )
    way.add_argument("--schema", nargs="?", const="", metavar="NAME", help="a JSON Schema, NAME or NAME@RELEASE; none: the list")
    acts.add_argument("--emit", metavar="FILE", help="write what --convert or --schema makes to FILE")
    acts.add_argument("--check-imports", action="store_true", help="which packages the configs need")
    acts.add_argument("--baseline", metavar="FILE", help="put aside the findings that FILE knows")
    acts.add_argument("--write-baseline", metavar="F", help="write the findings to FILE for that")


def run(options: argparse.Namespace) -> Report:
    report = Report("check")
    if options.emit and not (options.convert or options.schema):
        raise UserError("--emit needs --convert KIND or --schema NAME, whose text it writes")
    if options.schema is not None:
        return _schema(options, report)
    context = _context(options, report)
    paths = _paths(options, report)
    if options.convert:
        return _convert(options, paths, context, report)
    judge(paths, context, options.cli, options.dialect, report, options.together)
    if options.diff or options.fix:
        report = _fix(options, paths, context, report)
    if options.ignore_unknown and report.exit is Exit.USAGE and all(row["dialect"] != "unreadable" for row in report.data["files"]):
        report.exit, report.text = None, []
    if options.check_imports:
        _imports(options, paths, context, report)
    if options.show_effective:
        from trainwright.check.effective import show

        show(report, paths, context, options.cli, options.dialect, options.together)
    return _adopt(options, report)


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
    context = Context(options.world_size, _model(options.model), options.device, options.gpus_per_node, versions)
    return read_context(options.context, context, report) if options.context else context


def _model(path: str | None) -> Any:
    if not path:
        return None
    from trainwright import probe

    if probe.importable("trainwright.model"):  # not held by a skill that judges files alone
        from trainwright.model import load_model

        return load_model(path)
    raise UserError("--model: this copy does not read models; give facts of it by --context (model_class), or use the whole package")


def _versions(options: argparse.Namespace) -> dict[str, str]:
    return {name: getattr(options, name) for name in PACKAGES if getattr(options, name)}


# --- what is done with the findings, or instead of them --------------------------------------------------------------


def _fix(options: argparse.Namespace, paths: list[str], context: Context, report: Report) -> Report:
    """With --fix the report is of the files as they are then; with --diff of the files as they are."""
    from trainwright.check import fix
    from trainwright.check.files import named_files

    def judged(texts: Mapping[str, str]) -> Report:
        return judge(paths, context, options.cli, options.dialect, Report("check"), options.together, texts)

    files = {os.path.realpath(path) for path, _ in named_files(paths) if path != "-"}
    changes = fix.fixed(judged, files)
    if not options.fix:
        fix.show(report, changes, write=False)
        return report
    before = Report("check")
    before.data = {}
    fix.show(before, changes, write=True)
    after = judged({})
    after.data["fixes"], after.text = before.data["fixes"], before.text + after.text
    after.inferred, after.not_checked = report.inferred, report.not_checked + before.not_checked
    after.exit = Exit.USAGE if before.not_checked else after.exit
    return after


def _convert(options: argparse.Namespace, paths: list[str], context: Context, report: Report) -> Report:
    from trainwright.check.convert import convert
    from trainwright.check.gather import Gatherer

    gathered = Gatherer(context, report, options.dialect, options.together).gather(paths, options.cli)
    unreadable = [row["path"] for row in gathered.rows.values() if row["dialect"] == "unreadable"]
    if unreadable:
        raise UserError(f"--convert: {unreadable[0]} cannot be read; `check {unreadable[0]}` says why")
    made = convert(options.convert, [subject for _, subjects in gathered.jobs for subject in subjects], context.world_size)
    report.data = {"convert": {"to": options.convert, "text": made.text, "notes": made.notes}}
    return _made(options, report, made.text, made.notes)


def _schema(options: argparse.Namespace, report: Report) -> Report:
    import json

    from trainwright.check.schemas import names, schema

    if not options.schema:
        report.data = {"schemas": names()}
        report.text = [f"{row['name']}  {row['package']} {row['version']}" + _changes(row["changes"]) for row in names()]
        return report
    made = schema(options.schema, _versions(options))
    report.data = {"schema": made}
    return _made(options, report, json.dumps(made, indent=1, ensure_ascii=False) + "\n", [])


def _changes(releases: list[str]) -> str:
    return f"; older ones (NAME@RELEASE) differ at {', '.join(releases)}" if releases else ""


def _made(options: argparse.Namespace, report: Report, text: str, notes: list[str]) -> Report:
    """A text that was made: alone on standard output, so that it can be redirected, or in a file with what there is to know of it."""
    if not options.emit:
        report.text = text.splitlines()
        report.inferred, report.not_checked, report.notes = [], [], notes
        return report
    from trainwright.output import write_text

    write_text(options.emit, text)
    report.text = [f"wrote {options.emit}", *notes]
    return report


def _imports(options: argparse.Namespace, paths: list[str], context: Context, report: Report) -> None:
    from trainwright.check import imports
    from trainwright.check.context import versions_in
    from trainwright.check.gather import Gatherer

    gathered = Gatherer(context, Report("check"), options.dialect, options.together).gather(paths, options.cli)
    found = dict(reversed([need for job, subjects in gathered.jobs for need in imports.needs(job, subjects)]))
    python = os.path.expanduser(options.python) if options.python else sys.executable
    rows = imports.rows(sorted(found.items()), versions_in(python, found) if found else {}, python)
    report.data["imports"] = rows
    for row in rows:
        state = f"{row['installed']} is there" if row["installed"] else f"missing in {python}; {row['install']}"
        report.text.append(f"needs {row['package']} ({row['needed_by']}): {state}")


def _adopt(options: argparse.Namespace, report: Report) -> Report:
    if options.baseline or options.write_baseline:
        from trainwright.check import baseline

        if options.baseline:
            baseline.apply(options.baseline, report)
        if options.write_baseline:
            baseline.write(options.write_baseline, report)
    return report


def _ranks(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 12 and 0 < int(text) <= 10**7):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number, 1 or more")
    return int(text)
