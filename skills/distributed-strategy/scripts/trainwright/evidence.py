"""Measured results of others that advice quotes: never as laws, always with their scope (evidence.csv)."""

from __future__ import annotations

import csv
import dataclasses
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).with_name("evidence.csv")


@dataclass(frozen=True, slots=True)
class Evidence:
    """One measured figure: what was measured, on what, with which stack, when, by whom, and how far it carries."""

    id: str
    strategy: str
    quote: str
    figure: str
    value: str
    unit: str
    workload: str
    hardware: str
    stack: str
    date: str
    source: str
    scope: str
    checked: str

    def to_json(self) -> dict[str, str]:
        return dataclasses.asdict(self)


def evidence(strategy: str = "") -> list[Evidence]:
    """The rows that speak of a strategy by its name; all rows where none is named."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = [Evidence(**row) for row in csv.DictReader(file)]
    return [row for row in rows if strategy in ("", row.strategy)]
