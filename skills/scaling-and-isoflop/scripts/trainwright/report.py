# report.py without its comments
from __future__ import annotations

import enum
import functools
import importlib.util
import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from trainwright.errors import Exit
from trainwright.version import VERSION

SCHEMA = "trainwright/report/1"
FAILS_AT = ("parse", "launcher", "plugin", "engine start", "first step", "end of run", "never")
_STEERING = re.compile("[\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_LONGEST = 4000
CHECKED = ("hardware", "run", "stub", "source", "report", "derived")


class Severity(enum.IntEnum):

    INFO = 1
    WARNING = 2
    ERROR = 3

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Location:

    path: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return ":".join(str(part) for part in (self.path, self.line, self.column) if part is not None)


@dataclass(frozen=True, slots=True)
class Fix:

    set: dict[str, Any]
    safe: bool = False
    note: str = ""

    def __str__(self) -> str:
        words = [f"delete {key}" if value is None else f"{key} {_short(value)}" for key, value in self.set.items()]
        return ", ".join(words) + (f" ({self.note})" if self.note else "")


@dataclass(frozen=True, slots=True)
class Finding:

    rule: str
    severity: Severity
    message: str
    where: Location | None = None
    path: str = ""
    fails_at: str = ""
    fix: Fix | None = None
    checked: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    also: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        row = {
            "rule": self.rule,
            "severity": self.severity.word,
            "fails_at": self.fails_at,
            "where": str(self.where) if self.where else "",
            "path": self.path,
            "message": self.message,
            "fix": {"safe": self.fix.safe, "set": self.fix.set, "note": self.fix.note} if self.fix else None,
            "checked": self.checked,
            "data": self.data,
            "count": len(self.also) + 1 if self.also else None,
            "also": list(self.also),
        }
        return {key: value for key, value in row.items() if value not in (None, "", [], {})}

    def to_text(self) -> str:
        place = f"{self.where}: " if self.where else ""
        stage = f" [{self.fails_at}]" if self.fails_at and self.fails_at != "never" else ""
        more = f" (and {len(self.also)} more: {', '.join(self.also[:3])})" if self.also else ""
        line = f"{place}{self.severity.word} {self.rule}: {self.message}{stage}{more}"
        hints = [f"fix: {self.fix}"] if self.fix else []
        hints += [f"why: explain {self.rule}"] if self.rule[-1:].isdigit() and _explains() else []
        lines = [line, f"  {'   '.join(hints)}"] if hints else [line]
        return "\n".join(_one_line(part) for part in lines)


@functools.cache
def _explains() -> bool:
    return importlib.util.find_spec("trainwright.explain") is not None


@dataclass(slots=True)
class Report:

    command: str
    data: Any = None
    findings: list[Finding] = field(default_factory=list)
    inferred: list[dict[str, Any]] = field(default_factory=list)
    not_checked: list[dict[str, str]] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    summary: str = ""
    exit: Exit | None = None
    page: str = ""
    notes: list[str] = field(default_factory=list)

    def infer(self, name: str, value: Any, source: str) -> None:
        self.inferred.append({"name": name, "value": value, "source": source})

    def skip(self, name: str, reason: str) -> None:
        entry = {"name": name, "reason": reason}
        if entry not in self.not_checked:
            self.not_checked.append(entry)

    def outcome(self, fail_on: Severity | None = Severity.ERROR) -> Exit:
        if self.exit is not None:
            return self.exit
        reached = fail_on is not None and any(finding.severity >= fail_on for finding in self.findings)
        return Exit.FINDINGS if reached else Exit.OK

    def counts(self) -> dict[str, int]:
        return {s.word: sum(finding.severity is s for finding in self.findings) for s in reversed(Severity)}

    def to_json(self, fail_on: Severity | None, limit: int = 0) -> str:
        shown = fold(self.findings)
        cut = shown[:limit] if limit else shown
        envelope = {
            "schema": SCHEMA,
            "command": self.command,
            "version": VERSION,
            "status": self.outcome(fail_on).name.lower(),
            "counts": self.counts(),
            "findings": [finding.to_json() for finding in cut],
            "inferred": self.inferred,
            "not_checked": self.not_checked,
            "data": self.data,
            "truncated": len(cut) < len(shown),
        }
        text = json.dumps(finite(envelope), separators=(",", ":"), ensure_ascii=False, default=str)
        return _STEERING.sub(lambda match: f"\\u{ord(match[0]):04x}", text) + "\n"

    def to_text(self, limit: int = 0, quiet: bool = False) -> str:
        shown = fold(self.findings)
        cut = shown[:limit] if limit else shown
        lines = [*map(_one_line, self.text), *(finding.to_text() for finding in cut)]
        if len(cut) < len(shown):
            lines.append(f"... {len(shown) - len(cut)} more findings (--limit 0 shows all)")
        if not quiet:
            lines += [_one_line(f"inferred: {i['name']} = {i['value']} ({i['source']})") for i in self.inferred]
            lines += [_one_line(f"not checked: {n['name']} ({n['reason']})") for n in self.not_checked]
            lines += [self._summary()] if self.findings or self.summary else []
        return "".join(f"{printable(line)}\n" for line in lines)

    def _summary(self) -> str:
        parts = [f"{n} {word}{'s' if n != 1 and word != 'info' else ''}" for word, n in self.counts().items() if n]
        return f"{self.command}: " + ", ".join([*([self.summary] if self.summary else []), *(parts or ["nothing found"])])


def fold(findings: Iterable[Finding]) -> list[Finding]:
    groups: dict[tuple[str, Severity, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.rule, finding.severity, finding.message), []).append(finding)
    folded = [_folded(group) for group in groups.values()]
    return sorted(folded, key=lambda finding: -finding.severity)


def _folded(group: list[Finding]) -> Finding:
    first = group[0]
    if len(group) == 1:
        return first
    also = tuple(str(other.where or other.path) for other in group[1:])
    return Finding(
        first.rule, first.severity, first.message, first.where, first.path, first.fails_at, first.fix, first.checked, first.data, also
    )


def _short(value: Any) -> str:
    text = json.dumps(finite(value), default=str, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:197]}..."


def _one_line(text: str) -> str:
    text = text.replace("\n", "\\n")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def printable(text: str) -> str:
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value
