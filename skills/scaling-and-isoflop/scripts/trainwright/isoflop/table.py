# isoflop/table.py without its comments
from __future__ import annotations

import csv
import json
import math
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainwright.errors import UserError
from trainwright.isoflop.columns import INCIDENTAL, NUMBERS, WORDS, Mapping, listed, resolve
from trainwright.isoflop.newton import Array

LONGEST_LINE = 1_000_000


@dataclass(slots=True, eq=False)
class Table:

    numbers: dict[str, Array] = field(default_factory=dict)
    words: dict[str, NDArray[np.int32]] = field(default_factory=dict)
    vocabulary: list[str] = field(default_factory=lambda: [""])
    problems: list[tuple[int, str, str]] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    file: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    lines: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    fields: dict[str, str] = field(default_factory=dict)
    not_selected: int = 0
    notes: list[tuple[str, str]] = field(default_factory=list)
    unread: list[dict[str, Any]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.lines)

    def number(self, name: str) -> Array:
        return self.numbers.get(name, np.full(len(self), np.nan))

    def word(self, name: str, row: int) -> str:
        codes = self.words.get(name)
        return self.vocabulary[codes[row]] if codes is not None else ""

    def code(self, name: str) -> NDArray[np.int32]:
        return self.words.get(name, np.zeros(len(self), np.int32))

    def place(self, row: int) -> str:
        return f"{self.files[self.file[row]]}:{self.lines[row]}"

    def take(self, rows: NDArray[np.intp]) -> Table:
        position = {row: new for new, row in enumerate(rows.tolist())} if self.problems else {}
        return Table(
            {name: values[rows] for name, values in self.numbers.items()},
            {name: values[rows] for name, values in self.words.items()},
            self.vocabulary,
            [(position[row], name, text) for row, name, text in self.problems if row in position],
            self.files,
            self.file[rows],
            self.lines[rows],
            self.fields,
            self.not_selected,
            self.notes,
            self.unread,
        )


class Builder:

    def __init__(self, mapping: Mapping) -> None:
        self.mapping = mapping
        self.numbers = {name: array("d") for name in NUMBERS}
        self.words = {name: array("i") for name in WORDS}
        self.codes: dict[str, int] = {"": 0}
        self.lines = array("q")
        self.file = array("i")
        self.table = Table()

    def source(self, name: str) -> None:
        self.table.files.append(name)

    def wanted(self, row: dict[str, Any]) -> bool:
        return all(_text(row.get(column)) == value for column, value in self.mapping.where.items())

    def add(self, line: int, row: dict[str, Any], fields: dict[str, str]) -> None:
        constants = self.mapping.constants
        for name, values in self.numbers.items():
            cell = constants.get(name, row.get(fields[name]) if name in fields else None)
            values.append(self._number(name, cell))
        for name, codes in self.words.items():
            cell = constants.get(name, row.get(fields[name]) if name in fields else None)
            text = _labels(row, fields) if name == "labels" else _text(cell)
            codes.append(self.codes.setdefault(text, len(self.codes)))
        self.lines.append(line)
        self.file.append(len(self.table.files) - 1)

    def _number(self, name: str, cell: Any) -> float:
        if cell is None or cell == "":
            return math.nan
        if type(cell) in (int, float):
            try:
                return float(cell)
            except OverflowError:
                return math.inf
        text = str(cell).strip()
        try:
            value = float(text) if len(text) <= 64 and "_" not in text else None
        except ValueError:
            value = None
        if value is None or not math.isfinite(value):
            self.table.problems.append((len(self.lines), name, text[:60]))
            return math.nan
        return value

    def done(self) -> Table:
        table = self.table
        table.numbers = {name: np.array(values) for name, values in self.numbers.items()}
        with_problem = {name for _, name, _ in table.problems}
        table.numbers = {name: values for name, values in table.numbers.items() if not np.isnan(values).all() or name in with_problem}
        table.words = {name: np.array(codes, np.int32) for name, codes in self.words.items() if any(codes)}
        table.vocabulary = list(self.codes)
        table.file, table.lines = np.array(self.file, np.int32), np.array(self.lines, np.int64)
        return table


def _labels(row: dict[str, Any], fields: dict[str, str]) -> str:
    taken = fields.values()
    words = [
        cell[:80]
        for column, cell in row.items()
        if isinstance(cell, str) and cell[:1].isalpha() and column not in taken and column.lower() not in INCIDENTAL
    ]
    return "|".join(words)


def _text(cell: Any) -> str:
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < 2**53:
        return str(int(cell))
    return "" if cell is None else str(cell).strip()[:200]


def read_file(builder: Builder, path: str) -> None:
    builder.source(path)
    try:
        with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
            first = _first(path, file)
            file.seek(0)
            rows = _json_lines(builder, path, file) if first.lstrip().startswith("{") else _separated(builder, path, file, first)
            _add_all(builder, path, rows)
    except OSError as problem:
        raise UserError(f"cannot read {path}: {problem.strerror or problem}") from None


def need_plain(path: str) -> None:
    if os.path.isdir(path):
        raise UserError(f"{path}: is a folder; `isoflop collect {path}` makes a table of the runs in it")
    if os.path.exists(path) and not os.path.isfile(path):
        raise UserError(f"{path}: is no plain file; write the table into one")


def _first(path: str, lines: Iterable[str]) -> str:
    first = next((line for line in lines if line.strip()), "")
    if not first:
        raise UserError(f"{path}: is empty; a table with a header line, or one JSON object a line, is needed")
    if "\0" in first[:4096]:
        raise UserError(f"{path}: is binary, no CSV or JSON lines")
    return first


def _separated(builder: Builder, path: str, file: Iterable[str], first: str) -> Iterator[tuple[int, dict[str, Any]]]:
    csv.field_size_limit(LONGEST_LINE)
    reader = csv.reader(file, delimiter=max(",\t;", key=first.count))
    header: list[str] = []
    try:
        for cells in reader:
            if not header:
                header = [cell.strip() for cell in cells]
                _check_header(builder, header, path)
            elif len(cells) == len(header):
                yield reader.line_num, dict(zip(header, cells, strict=True))
            elif cells:
                place = f"{path}:{reader.line_num}"
                builder.table.unread.append({"row": place, "reason": f"{len(cells)} cells under a header of {len(header)}"})
    except csv.Error as problem:
        raise UserError(f"{path}:{reader.line_num}: is no CSV: {problem}") from None


def _check_header(builder: Builder, header: Sequence[str], path: str) -> None:
    resolve(header, builder.mapping.columns, path)
    for column in builder.mapping.where:
        if column not in header:
            raise UserError(f"{path}: there is no column {column!r} for --where; the columns are {listed(header)}")
        if header.count(column) > 1:
            raise UserError(f"{path}: the column {column!r} of --where stands {header.count(column)} times")


def _json_lines(builder: Builder, path: str, file: Iterable[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line) if len(line) <= LONGEST_LINE else None
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            builder.table.unread.append({"row": f"{path}:{number}", "reason": "is no JSON object"})
            continue
        yield number, {str(key): value for key, value in row.items() if not isinstance(value, (dict, list))}


def _add_all(builder: Builder, path: str, rows: Iterable[tuple[int, dict[str, Any]]]) -> None:
    fields: dict[str, str] | None = None
    keys: tuple[str, ...] = ()
    for number, row in rows:
        if fields is None or (path.endswith("l") and tuple(row) != keys):
            keys = tuple(row)
            fields = resolve(keys, builder.mapping.columns, path)
            builder.table.fields.update(fields)
        if builder.wanted(row):
            builder.add(number, row, fields)
        else:
            builder.table.not_selected += 1


def read_tables(paths: Sequence[str], mapping: Mapping) -> Table:
    builder = Builder(mapping)
    for path in paths:
        need_plain(path)
        read_file(builder, path)
    table = builder.done()
    if not len(table):
        chosen = f"; --where left out all {table.not_selected}" if table.not_selected else unread_said(table)
        raise UserError(f"{', '.join(map(str, paths))}: no rows under the header{chosen}")
    return table


def unread_said(table: Table) -> str:
    said = "; ".join(f"{row['row']}: {row['reason']}" for row in table.unread[:2])
    return f" that can be read ({said})" if said else ""


def stem(path: str) -> str:
    return Path(path).stem
