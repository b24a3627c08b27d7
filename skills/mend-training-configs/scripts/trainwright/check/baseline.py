# helpers/trainwright/check/baseline.py without its comments
from __future__ import annotations

import json
import os
from collections import Counter
from typing import Any

from trainwright.document import load_mapping
from trainwright.errors import Exit, UserError
from trainwright.output import write_text
from trainwright.report import Finding, Report
from trainwright.sarif import fingerprint

SCHEMA = "trainwright/baseline/1"


def _root(path: str) -> str:
    return os.path.dirname(os.path.realpath(path))


def write(path: str, report: Report) -> None:
    rows: dict[str, dict[str, Any]] = {}
    for finding in report.findings:
        mark = fingerprint(finding, _root(path))
        row = rows.setdefault(mark, {"rule": finding.rule, "file": _file(finding, path), "key": finding.path, "count": 0})
        row["count"] += 1
    lines = ",\n".join(f"  {json.dumps(mark)}: {json.dumps(row)}" for mark, row in sorted(rows.items(), key=_order))
    write_text(path, f'{{\n "schema": "{SCHEMA}",\n "findings": {{\n{lines}\n }}\n}}\n')
    report.exit = report.exit or Exit.OK
    report.text.append(f"wrote {len(report.findings)} findings to {path}; --baseline {path} puts them aside")


def _order(item: tuple[str, dict[str, Any]]) -> tuple[str, str, str, str]:
    mark, row = item
    return row["file"], row["key"], row["rule"], mark


def _file(finding: Finding, path: str) -> str:
    return os.path.relpath(os.path.realpath(finding.where.path), _root(path)).replace(os.sep, "/") if finding.where else ""


def apply(path: str, report: Report) -> None:
    left = _read(path)
    kept = []
    for finding in report.findings:
        mark = fingerprint(finding, _root(path))
        if left[mark] > 0:
            left[mark] -= 1
        else:
            kept.append(finding)
    known, gone = len(report.findings) - len(kept), sum(left.values())
    report.findings[:] = kept
    report.data["baseline"] = {"path": path, "known": known, "gone": gone}
    report.infer("baseline", path, f"{known} known findings put aside" + (f", {gone} of it gone: --write-baseline {path}" if gone else ""))


def _read(path: str) -> Counter[str]:
    value = load_mapping(path, "json").value
    rows = value.get("findings")
    if value.get("schema") != SCHEMA or not isinstance(rows, dict):
        raise UserError(f"--baseline {path}: is none; write one with --write-baseline {path}")
    counts = {mark: row.get("count", 1) if isinstance(row, dict) else 1 for mark, row in rows.items()}
    return Counter({mark: count for mark, count in counts.items() if type(count) is int and count > 0})
