# helpers/trainwright/check/actions.py without its comments
from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping

from trainwright.check.judge import judge
from trainwright.check.subject import Context
from trainwright.errors import Exit, UserError
from trainwright.report import Report


def mend(options: argparse.Namespace, paths: list[str], context: Context, report: Report) -> Report:
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
    stayed = any(not row["written"] for row in before.data["fixes"])
    after.exit = Exit.USAGE if stayed else after.exit
    return after


def convert_file(options: argparse.Namespace, paths: list[str], context: Context, report: Report) -> None:
    from trainwright.check.convert import convert
    from trainwright.check.gather import Gatherer

    gathered = Gatherer(context, report, options.dialect, options.together).gather(paths, options.cli)
    unreadable = [row["path"] for row in gathered.rows.values() if row["dialect"] == "unreadable"]
    if unreadable:
        raise UserError(f"--convert: {unreadable[0]} cannot be read; `check {unreadable[0]}` says why")
    made = convert(options.convert, [subject for _, subjects in gathered.jobs for subject in subjects], context.world_size)
    report.data = {"convert": {"to": options.convert, "text": made.text, "notes": made.notes}}
    _made(options, report, made.text, made.notes)


def print_schema(options: argparse.Namespace, report: Report, versions: dict[str, str]) -> None:
    import json

    from trainwright.check.schemas import names, schema

    if not options.schema:
        report.data = {"schemas": names()}
        report.text = [f"{row['name']}  {row['package']} {row['version']}" + _changes(row["changes"]) for row in names()]
        return
    made = schema(options.schema, versions)
    report.data = {"schema": made}
    _made(options, report, json.dumps(made, indent=1, ensure_ascii=False) + "\n", [])


def _changes(releases: list[str]) -> str:
    return f"; older ones (NAME@RELEASE) differ at {', '.join(releases)}" if releases else ""


def _made(options: argparse.Namespace, report: Report, text: str, notes: list[str]) -> None:
    if not options.emit:
        report.text = text.splitlines()
        report.inferred, report.not_checked, report.notes = [], [], notes
        return
    from trainwright.output import write_text

    write_text(options.emit, text)
    report.text = [f"wrote {options.emit}", *notes]


def list_imports(options: argparse.Namespace, paths: list[str], context: Context, report: Report) -> None:
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


def adopt(options: argparse.Namespace, report: Report) -> None:
    from trainwright.check import baseline

    if options.baseline:
        baseline.apply(options.baseline, report)
    if options.write_baseline:
        baseline.write(options.write_baseline, report)
