# isoflop/sources.py without its comments
from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainwright.errors import UserError
from trainwright.isoflop.columns import NUMBERS, WORDS, Mapping, resolve
from trainwright.isoflop.curves import Curve
from trainwright.isoflop.events import read_events
from trainwright.isoflop.table import need_plain
from trainwright.isoflop.trainer import last_loss, losses_of, object_of, results_of

SIDE_FILE = "isoflop.json"
_SIDE_BYTES = 1 << 20
_DEEPEST = 6
_HISTORY = re.compile(r"(?P<run>.+) - (?P<metric>[^-]+(?:-[^ ]+)*)")
_STEPS = ("step", "_step", "global_step", "trainer/global_step")


@dataclass(slots=True)
class Found:

    tables: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)


def look(paths: Iterable[str]) -> Found:
    found = Found()
    for path in paths:
        if os.path.isdir(path):
            _walk(path, found, 0)
        elif os.path.basename(path).startswith("events.out.tfevents"):
            found.events.append(path)
        elif os.path.exists(path):
            found.tables.append(path)
        else:
            raise UserError(f"{path}: there is no such file or folder")
    if not (found.tables or found.runs or found.events):
        raise UserError(f"{', '.join(paths)}: holds no run folder (perf/rank0.jsonl), event file (events.out.tfevents*), CSV or JSON lines")
    return found


def _walk(folder: str, found: Found, depth: int) -> None:
    if os.path.isfile(os.path.join(folder, "perf", "rank0.jsonl")) or "state" in side_facts(folder):
        found.runs.append(folder)
        return
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as problem:
        raise UserError(f"cannot list {folder}: {problem.strerror or problem}") from None
    for entry in entries:
        if entry.is_dir(follow_symlinks=False) and depth < _DEEPEST:
            _walk(entry.path, found, depth + 1)
        elif entry.name.startswith("events.out.tfevents") and os.path.isfile(entry.path):
            found.events.append(entry.path)
        elif entry.name.endswith((".csv", ".tsv")) and os.path.isfile(entry.path):
            found.tables.append(entry.path)


def side_facts(folder: str) -> dict[str, Any]:
    path = Path(folder, SIDE_FILE)
    try:
        if not path.is_file() or path.stat().st_size > _SIDE_BYTES:
            return {}
        value = object_of(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return {}
    known = {*NUMBERS, *WORDS}
    return {key: item for key, item in (value or {}).items() if key in known and not isinstance(item, (dict, list))}


def run_curve(folder: str) -> Curve:
    if not os.path.isdir(os.path.join(folder, "perf")):
        return _users_curve(folder)
    facts: dict[str, Any] = {}
    tokens: dict[int, float] = {}
    losses: dict[str, dict[int, float]] = {"step": {}, "eval": {}}
    started, status = "", ""
    for file in sorted(Path(folder, "perf").glob("rank*.jsonl")):
        main = file.name == "rank0.jsonl"
        for row in _lines(file):
            kind, step = row.get("kind"), row.get("step")
            if kind == "header" and main:
                facts |= _header(row)
                started = started or str(row.get("started") or "")
            elif kind == "end" and main:
                error = row.get("error")
                status = str(row.get("status") or "")
                status = "diverged" if isinstance(error, dict) and error.get("type") == "nonfinite" else status
            elif type(step) is int and kind in losses and 0 <= step < 2**53:
                if kind == "step":
                    tokens[step] = tokens.get(step, 0.0) + _number(row.get("tokens"))
                if main and "loss" in row:
                    losses[str(kind)][step] = _number(row["loss"])
                if main and row.get("eval_loss") is not None:
                    losses["eval"][step] = _number(row["eval_loss"])
    facts["state"] = {"completed": "finished"}.get(status, status or "killed")
    facts |= side_facts(folder)
    chosen = losses["eval"] or losses["step"]
    run_id = str(facts.pop("run_id", "") or os.path.basename(os.path.normpath(folder)))
    curve = Curve(run_id, os.path.join(folder, "perf", "rank0.jsonl"), facts, started=started)
    total, done = 0.0, sorted(tokens)
    so_far = {}
    for step in done:
        total += tokens[step]
        so_far[step] = total
    curve.points = {step: (so_far.get(step, math.nan), loss) for step, loss in chosen.items()}
    if done and done[-1] not in curve.points and chosen:
        last = max(chosen)
        curve.points[last] = (total if last >= done[-1] else so_far.get(last, math.nan), chosen[last])
    return curve


def _users_curve(folder: str) -> Curve:
    facts = side_facts(folder)
    curve = Curve(str(facts.pop("run_id", "") or os.path.basename(os.path.normpath(folder))), os.path.join(folder, SIDE_FILE), facts)
    for line in losses_of(results_of(os.path.join(folder, "metrics.jsonl"))):
        step = line.get("step")
        if type(step) is int and 0 <= step < 2**53:
            per_step = step * _number(facts.get("batch_tokens"))
            curve.points[step] = (_number(line["tokens"]) if "tokens" in line else per_step, last_loss([line])[0])
    if not curve.points:
        curve.points[0] = (_number(facts.get("tokens")), _number(facts.get("loss")))
    return curve


def _header(row: dict[str, Any]) -> dict[str, Any]:
    job = row.get("job") if isinstance(row.get("job"), dict) else {}
    assert isinstance(job, dict)
    named = {"planned_steps": job.get("steps"), "lr": job.get("learning_rate"), "seed": job.get("seed"), "params": row.get("parameters")}
    return {key: value for key, value in named.items() if type(value) in (int, float, str)}


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    try:
        with open(file, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if len(line) < 1 << 20 and (row := object_of(line)) is not None:
                    yield row
    except OSError:
        return


def _number(value: Any) -> float:
    if type(value) in (int, float):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    return math.nan


def event_curves(paths: Iterable[str], mapping: Mapping) -> tuple[list[Curve], list[tuple[str, str]]]:
    curves, notes = [], []
    for path in paths:
        need_plain(path)
        scalars = read_events(path)
        notes += [(path, note) for note in scalars.notes]
        fields = resolve(list(scalars.values), {k: v for k, v in mapping.columns.items() if v in scalars.values}, path)
        if "loss" not in fields:
            tags = ", ".join(sorted(scalars.values)[:10]) or "none"
            notes.append((path, f"has no scalar for loss (its tags: {tags}); name it: --columns loss=TAG"))
            continue
        folder = os.path.dirname(path) or "."
        curve = Curve(os.path.basename(os.path.abspath(folder)), path, side_facts(folder))
        curve.run_id = str(curve.facts.pop("run_id", "") or curve.run_id)
        curve.started = os.path.basename(path)
        tokens = scalars.values.get(fields.get("tokens", ""), {})
        curve.points = {step: (tokens.get(step, math.nan), loss) for step, loss in scalars.values[fields["loss"]].items()}
        for name, tag in fields.items():
            if name not in ("loss", "tokens", "steps") and name in NUMBERS:
                curve.facts.setdefault(name, list(scalars.values[tag].values())[-1])
        curves.append(curve)
    return curves, notes


def is_history(header: list[str]) -> bool:
    rest = [name for name in header if not name.endswith(("__MIN", "__MAX"))]
    return len(rest) > 1 and rest[0].lower() in _STEPS and all(_HISTORY.fullmatch(name) for name in rest[1:])


def history_curves(path: str, rows: Iterable[tuple[int, dict[str, Any]]], wanted: str | None) -> list[Curve]:
    curves: dict[str, Curve] = {}
    for _, row in rows:
        names = list(row)
        try:
            step = int(float(row[names[0]]))
        except (ValueError, OverflowError):
            continue
        for name in names[1:]:
            match = _HISTORY.fullmatch(name)
            if not match or name.endswith(("__MIN", "__MAX")) or row[name] in ("", None) or wanted not in (None, match["metric"]):
                continue
            try:
                loss = float(row[name])
            except ValueError:
                loss = math.nan
            curves.setdefault(match["run"], Curve(match["run"], path)).points[step] = (math.nan, loss)
    return list(curves.values())
