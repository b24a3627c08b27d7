# isoflop/gather.py without its comments
from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from trainwright.errors import UserError
from trainwright.isoflop.columns import NUMBERS, SCHEMA, WORDS, Mapping
from trainwright.isoflop.curves import Curve, joined, windowed
from trainwright.isoflop.rows import Study
from trainwright.isoflop.sources import event_curves, history_curves, is_history, look, run_curve
from trainwright.isoflop.table import Builder, Table, need_plain, read_file, stem, unread_said

_IDENTITY = {name: name for name in (*NUMBERS, *WORDS)}


def gather(paths: Sequence[str], mapping: Mapping, window: int | None, every: bool = False) -> Table:
    found = look(paths)
    builder = Builder(mapping)
    notes: list[tuple[str, str]] = []
    curves = [run_curve(folder) for folder in found.runs]
    from_events, told = event_curves(found.events, mapping)
    notes += told
    runs, told = joined([*curves, *from_events])
    notes += told
    histories: list[Curve] = []
    for path in found.tables:
        need_plain(path)
        header = _header(path)
        if header is not None and is_history(header):
            histories += history_curves(path, _rows(path), mapping.columns.get("loss"))
        else:
            read_file(builder, path)
    points = 0
    table = builder.done()
    if window is not None and len(table):
        table, points = windowed(table, window)
        _name_by_file(table)
        notes.append(("tables", f"{points} earlier rows of runs went into the windows of {window} or stood before them"))
    table = _with_curves(table, runs, mapping, 0 if every else window or 1)
    notes += _join(table, histories, window or 1)
    if not len(table):
        told_why = "; ".join(f"{name} {why}" for name, why in notes[:3])
        raise UserError(f"{', '.join(paths)}: no runs found{f' ({told_why})' if told_why else unread_said(table)}")
    table.notes = notes
    return table


def _name_by_file(table: Table) -> None:
    if "run_id" in table.words or len(table.files) < 2:
        return
    names = [stem(path) for path in table.files]
    table.vocabulary = list(dict.fromkeys([*table.vocabulary, *names]))
    codes = np.array([table.vocabulary.index(name) for name in names], np.int32)
    table.words["run_id"] = codes[table.file]


def _header(path: str) -> list[str] | None:
    try:
        with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
            return next(csv.reader(file), None)
    except (OSError, csv.Error):
        return None


def _rows(path: str) -> Any:
    with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
        reader = csv.DictReader(file)
        for row in reader:
            yield reader.line_num, {key: value for key, value in row.items() if key is not None}


def _with_curves(table: Table, runs: Sequence[Curve], mapping: Mapping, window: int) -> Table:
    if not runs:
        return table
    builder = Builder(mapping)
    for curve in runs:
        builder.source(curve.source)
        last = max(curve.points, default=0)
        for place, row in [(last, curve.row(window))] if window else zip(sorted(curve.points), curve.rows(), strict=True):
            if builder.wanted(row):
                builder.add(place, row, {name: name for name in row if name in _IDENTITY})
    return concatenated(table, builder.done())


def concatenated(one: Table, other: Table) -> Table:
    if not len(one):
        other.unread += one.unread
        return other
    joined_table = Table(files=[*one.files, *other.files], not_selected=one.not_selected + other.not_selected)
    joined_table.vocabulary = list(dict.fromkeys([*one.vocabulary, *other.vocabulary]))
    code = {word: k for k, word in enumerate(joined_table.vocabulary)}
    renumber = np.array([code[word] for word in other.vocabulary], np.int32)
    for name in {*one.numbers, *other.numbers}:
        joined_table.numbers[name] = np.concatenate([one.number(name), other.number(name)])
    for name in {*one.words, *other.words}:
        joined_table.words[name] = np.concatenate([one.code(name), renumber[other.code(name)]])
    joined_table.problems = [*one.problems, *((row + len(one), name, text) for row, name, text in other.problems)]
    joined_table.file = np.concatenate([one.file, other.file + len(one.files)]).astype(np.int32)
    joined_table.lines = np.concatenate([one.lines, other.lines])
    joined_table.fields = one.fields | other.fields
    joined_table.unread = [*one.unread, *other.unread]
    return joined_table


def _join(table: Table, histories: Sequence[Curve], window: int) -> list[tuple[str, str]]:
    notes = []
    if histories and "loss" not in table.numbers:
        table.numbers["loss"] = np.full(len(table), np.nan)
    names = {table.vocabulary[code]: row for row, code in enumerate(table.code("run_id")) if code}
    for curve in histories:
        row = names.get(curve.run_id)
        if row is None:
            notes.append((curve.source, f"run {curve.run_id!r} has a history and no row of settings; give the table of runs as well"))
            continue
        values = curve.row(window)
        loss = values.get("loss", "nan")
        if isinstance(loss, str):
            table.problems.append((row, "loss", loss))
        table.numbers["loss"][row] = float(loss)
    return notes


def as_csv(study: Study) -> str:
    table = study.table
    own = {"flops": study.flops, "tokens": study.tokens, "loss": study.loss, "params": study.params}
    present = [name for name in SCHEMA if name in SCHEMA[:6] or name in own or name in table.numbers or name in table.words]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(present)
    columns = [_column(table, name, own.get(name)) for name in present]
    writer.writerows(zip(*columns, strict=True))
    return text.getvalue()


def _column(table: Table, name: str, own: Any) -> list[str]:
    if name in WORDS:
        return [table.vocabulary[code] for code in table.code(name)]
    values = own if own is not None else table.number(name)
    return [
        "" if np.isnan(value) else repr(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
        for value in values.tolist()
    ]
