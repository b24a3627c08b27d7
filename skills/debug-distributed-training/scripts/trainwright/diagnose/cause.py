"""The form in which a rule of this package states a diagnosis: class, culprit, how sure, on what evidence, what would confirm it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from trainwright.diagnose.lines import Line
from trainwright.report import Location, Severity
from trainwright.rules import Hit

Confidence = Literal["high", "medium", "low"]


@dataclass(frozen=True, slots=True)
class Cause:
    """One diagnosis. `rank` is the culprit, None where no single rank is; `name` is a class of the diagnosis catalogue."""

    name: str
    message: str
    confidence: Confidence
    evidence: tuple[Line, ...] = ()
    rank: int | None = None
    confirm: str = ""
    severity: Severity | None = None

    def hit(self) -> Hit:
        """The Hit that carries it; `diagnose` takes the diagnosis out of the finding's data again."""
        where = Location(self.evidence[0].file, self.evidence[0].number) if self.evidence else None
        return Hit(self.message, where, severity=self.severity, data={"diagnosis": self.to_json()})

    def to_json(self) -> dict[str, Any]:
        return {
            "class": self.name,
            "culprit": None if self.rank is None else {"kind": "rank", "value": str(self.rank)},
            "confidence": self.confidence,
            "evidence": [line.to_json() for line in self.evidence[:6]],
            "confirm": self.confirm,
        }


def gathered(lines: Iterable[tuple[Line, ...]]) -> tuple[Line, ...]:
    """The evidence of several events, the first line of each first."""
    rows = list(lines)
    firsts = [row[0] for row in rows if row]
    return tuple(firsts + [line for row in rows for line in row[1:]])
