# helpers/trainwright/check/fix.py without its comments
from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainwright.check.edit import edit
from trainwright.document import DocumentError, KeyPath, dialect_of, parse, read_text
from trainwright.output import write_text
from trainwright.report import Finding, Report

_ROUNDS = 8
_MOST = 300_000

Judge = Callable[[Mapping[str, str]], Report]


@dataclass(slots=True, eq=False, repr=False)
class Fixed:

    path: str
    before: str
    after: str
    findings: list[Finding] = field(default_factory=list)
    spent: int = 0

    def diff(self) -> str:
        import difflib

        before, after = self.before.splitlines(keepends=True), self.after.splitlines(keepends=True)
        rows = difflib.unified_diff(before, after, f"a/{self.path}", f"b/{self.path}")
        return "".join(row if row.endswith("\n") else f"{row}\n\\ No newline at end of file\n" for row in rows)


def fixed(judge: Judge, files: Collection[str]) -> list[Fixed]:
    found: dict[str, Fixed] = {}
    for _ in range(_ROUNDS):
        texts = {key: each.after for key, each in found.items()}
        if not _round(judge(texts).findings, found, files):
            break
    return [each for each in found.values() if each.after != each.before]


def _round(findings: Iterable[Finding], found: dict[str, Fixed], files: Collection[str]) -> bool:
    touched: set[tuple[str, str]] = set()
    for finding in findings:
        fix, where = finding.fix, finding.where
        typed = fix is not None and any(name.startswith("--") for name in fix.set)
        if fix is None or typed or not fix.safe or where is None or (key := os.path.realpath(where.path)) not in files:
            continue
        keys = {(key, name) for name in fix.set}
        if keys & touched or not (each := found.get(key) or _read(where.path)):
            continue
        found[key] = each
        each.spent += len(each.after)
        if each.spent > _MOST:
            continue
        dialect = "json" if where.path.endswith(".hjson") else dialect_of(where.path)
        after = _applied(each.after, dialect, fix.set)
        if after is not None and after != each.after:
            each.after = after
            each.findings.append(finding)
            touched |= keys
    return bool(touched)


def _read(path: str) -> Fixed | None:
    try:
        text = read_text(path)
    except DocumentError:
        return None
    return Fixed(path, text, text)


def _applied(text: str, dialect: str, changes: Mapping[str, Any]) -> str | None:
    try:
        value = parse(text, "-", dialect).value
    except DocumentError:
        return None
    return edit(text, dialect, {key_path(value, name): item for name, item in changes.items()})


def key_path(value: Any, name: str) -> KeyPath:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        head: Any = ".".join(parts[:length])
        if isinstance(value, list) and length == 1 and head.isdecimal():
            head = int(head[:9])
        if (isinstance(value, dict) and head in value) or isinstance(head, int):
            rest = ".".join(parts[length:])
            inner = value[head] if isinstance(value, dict) else value[head] if head < len(value) else None
            return (head, *key_path(inner, rest)) if rest else (head,)
    return tuple(parts)


def show(report: Report, changes: Iterable[Fixed], write: bool) -> None:
    rows: list[dict[str, Any]] = []
    for each in changes:
        diff = each.diff()
        obstacle = _obstacle(each.path) if write else ""
        if write and not obstacle:
            write_text(each.path, each.after, keep_mode=True)
        if each.spent > _MOST:
            report.skip(f"more fixes of {each.path}", "there are more than are applied at once; call it again")
        if obstacle:
            report.skip(each.path, f"{obstacle}: it was not changed")
        report.text += diff.splitlines()
        mended = [{"rule": f.rule, "path": f.path, "set": f.fix.set if f.fix else {}} for f in each.findings]
        rows.append({"path": each.path, "written": write and not obstacle, "mended": mended, "diff": diff})
    report.data["fixes"] = rows
    done = [row for row in rows if row["written"] or not write]
    counts = _count(sum(len(row["mended"]) for row in done), "finding"), _count(len(done), "file")
    said = f"{'mended' if write else '--fix would mend'} {counts[0]} in {counts[1]}"
    report.text.append(said if rows else "no finding has a safe fix")


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' if number != 1 else ''}"


def _obstacle(path: str) -> str:
    if os.path.islink(path):
        return "is a link"
    try:
        mode = os.stat(path).st_mode
    except OSError as problem:
        return f"cannot be read: {problem.strerror}"
    if not mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH) or not os.access(path, os.W_OK):
        return "is read-only"
    return ""
