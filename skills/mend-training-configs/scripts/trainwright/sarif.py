# helpers/trainwright/sarif.py without its comments
from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trainwright.report import Finding, Location, Report, Severity, finite
from trainwright.rules import load_all
from trainwright.version import VERSION

SCHEMA = "/".join(("https:", "", "json.schemastore.org", "sarif-2.1.0.json"))
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_LINE = re.compile(r"\bline \d+\b")


def to_sarif(report: Report, exit_code: int) -> str:
    rules = _rules(report.findings)
    index = {rule["id"]: number for number, rule in enumerate(rules)}
    run = {
        "tool": {"driver": {"name": "trainwright", "version": VERSION, "semanticVersion": VERSION, "rules": rules}},
        "invocations": [_invocation(report, exit_code)],
        "columnKind": "unicodeCodePoints",
        "results": [_result(finding, index[finding.rule], mark) for finding, mark in _marked(report.findings)],
        "properties": {"command": report.command, "inferred": report.inferred},
    }
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(finite(log), indent=1, ensure_ascii=True, default=str) + "\n"


def fingerprint(finding: Finding, root: str = "") -> str:
    path = finding.where.path if finding.where else ""
    if root and path and not path.startswith("-"):
        path = Path(os.path.relpath(os.path.realpath(path), os.path.realpath(root))).as_posix()
    message = _LINE.sub("line", finding.message)
    return hashlib.sha256("\0".join((finding.rule, path, finding.path, message)).encode("utf-8", "replace")).hexdigest()[:32]


def _marked(findings: Iterable[Finding]) -> Iterable[tuple[Finding, str]]:
    seen: dict[str, int] = {}
    for finding in findings:
        mark = fingerprint(finding)
        seen[mark] = seen.get(mark, 0) + 1
        yield finding, f"{mark}:{seen[mark]}"


def _rules(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    known = load_all()
    rows = []
    for code in sorted({finding.rule for finding in findings}):
        rule = known.get(code)
        if rule is None:
            rows.append({"id": code, "shortDescription": {"text": code}, "help": {"text": code}})
            continue
        properties = {"fails_at": rule.fails_at, "checked": rule.checked, "source": rule.source, "covers": list(rule.covers)}
        rows.append(
            {
                "id": code,
                "name": "".join(word.capitalize() for word in rule.name.split("_")),
                "shortDescription": {"text": rule.title},
                "fullDescription": {"text": rule.page.split("\n\nBad ")[0]},
                "help": {"text": rule.page, "markdown": rule.page},
                "defaultConfiguration": {"level": _LEVELS[rule.severity]},
                "properties": properties,
            }
        )
    return rows


def _result(finding: Finding, index: int, mark: str) -> dict[str, Any]:
    properties: dict[str, Any] = {"fails_at": finding.fails_at, "checked": finding.checked}
    if finding.fix:
        properties["fix"] = {"safe": finding.fix.safe, "set": finding.fix.set, "note": finding.fix.note}
    message = f"{finding.message}{f' (fix: {finding.fix})' if finding.fix else ''}"
    row: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": _LEVELS[finding.severity],
        "message": {"text": message},
        "partialFingerprints": {"trainwright/v1": mark},
        "properties": {key: value for key, value in properties.items() if value},
    }
    if finding.where:
        row["locations"] = [_location(finding.where, finding.path)]
    return row


def _location(where: Location, key: str) -> dict[str, Any]:
    logical = [{"fullyQualifiedName": key or where.path, "kind": "member"}]
    if where.path.startswith("--"):
        return {"logicalLocations": [{"fullyQualifiedName": where.path}]}
    physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(where.path)}}
    if where.line:
        physical["region"] = {"startLine": where.line, **({"startColumn": where.column} if where.column else {})}
    return {"physicalLocation": physical, **({"logicalLocations": logical} if key else {})}


def _uri(path: str) -> str:
    from urllib.parse import quote

    if os.path.isabs(path):
        return Path(path).as_uri()
    name = quote(os.path.normpath(path).replace(os.sep, "/"), errors="replace")
    return "stdin" if path == "-" else name


def _invocation(report: Report, exit_code: int) -> dict[str, Any]:
    notes = [
        {"level": "note", "message": {"text": f"not checked: {row['name']} ({row['reason']})"}, "descriptor": {"id": "not-checked"}}
        for row in report.not_checked
    ]
    return {"executionSuccessful": exit_code in (0, 1), "exitCode": exit_code, "toolExecutionNotifications": notes}
