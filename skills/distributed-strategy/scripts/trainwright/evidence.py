"""Measured results of others that advice quotes: never as laws, always with their scope (evidence.csv)."""

from __future__ import annotations

import csv
import dataclasses
from dataclasses import dataclass
from pathlib import Path

from trainwright.report import CHECKED

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
    """The rows that speak of a strategy by its name; all rows where none is named. `any` rows speak of machines and stacks."""
    return [row for row in load(TABLE) if strategy in ("", row.strategy)]


def load(table: Path) -> list[Evidence]:
    """The rows of a table. Raises ValueError, with its line, for a row that is cut short, has an empty cell or repeats an id."""
    with table.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != Evidence.__slots__:
            raise ValueError(f"{table.name}: the columns are {', '.join(Evidence.__slots__)}")
        rows: dict[str, Evidence] = {}
        for row in reader:
            place = f"{table.name}:{reader.line_num}"
            if None in row or not all(value and value.strip() for value in row.values()):
                raise ValueError(f"{place}: a cell is empty, missing or one too many")
            if row["checked"] not in CHECKED or row["id"] in rows:
                raise ValueError(f"{place}: {row['id']} is there twice, or checked is none of {', '.join(CHECKED)}")
            rows[row["id"]] = Evidence(**row)
    return list(rows.values())
