# isoflop/trainer.py without its comments
from __future__ import annotations

import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from trainwright.document import load_mapping
from trainwright.errors import UserError

PLACEHOLDERS = ("run_dir", "model", "tokens", "steps", "batch", "seq_len", "lr", "warmup", "seed", "budget", "params", "flops", "run_id",
                "modality", "regime", "variant")
DEFAULT_RESULTS = "{run_dir}/metrics.jsonl"
LOSSES = ("eval_loss", "val_loss", "loss")
_NAME = re.compile(r"\{([a-z_]+)\}")
_LINE_BYTES = 1 << 20
_WARM = 3


@dataclass(frozen=True, slots=True)
class Trainer:

    argv: tuple[str, ...]
    results: str = DEFAULT_RESULTS

    def to_json(self) -> dict[str, Any]:
        return {"argv": list(self.argv), "results": self.results}


def read_trainer(path: str) -> Trainer:
    return of_mapping(load_mapping(path).value, path)


def of_mapping(value: dict[str, Any], where: str) -> Trainer:
    argv, results = value.get("argv"), value.get("results", DEFAULT_RESULTS)
    if isinstance(argv, str):
        raise UserError(f"{where}: argv is a list of words, not one text: no shell reads it")
    if not isinstance(argv, list) or not argv or not all(isinstance(word, str) for word in argv):
        raise UserError(f"{where}: argv has to be a list of texts, the first of them a program")
    if not isinstance(results, str):
        raise UserError(f"{where}: results has to be a path")
    if unknown := sorted({name for text in (*argv, results) for name in _NAME.findall(text)} - set(PLACEHOLDERS)):
        raise UserError(f"{where}: {{{unknown[0]}}} is no placeholder; they are {', '.join(PLACEHOLDERS)}")
    return Trainer(tuple(argv), results)


def filled(text: str, values: dict[str, Any]) -> str:

    def value(match: re.Match[str]) -> str:
        found = values.get(match[1])
        if found is None:
            raise UserError(f"the trainer asks for {{{match[1]}}}, which this run does not have")
        return str(int(found)) if isinstance(found, float) and found.is_integer() and abs(found) < 2**63 else str(found)

    return _NAME.sub(value, text)


def results_of(path: str) -> list[dict[str, Any]]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line for line in file if len(line) < _LINE_BYTES]
    except OSError:
        return []
    return [row for line in lines if (row := object_of(line)) is not None]


def object_of(text: str) -> dict[str, Any] | None:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def losses_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for name in LOSSES:
        if found := [row for row in rows if type(row.get(name)) in (int, float)]:
            return found
    return []


def last_loss(rows: list[dict[str, Any]]) -> tuple[float, dict[str, Any]]:
    for row in reversed(losses_of(rows)):
        return next(_float(row[name]) for name in LOSSES if type(row.get(name)) in (int, float)), row
    return math.nan, {}


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def throughput(rows: list[dict[str, Any]]) -> float | None:
    said = [float(row["tokens_per_sec"]) for row in rows if type(row.get("tokens_per_sec")) in (int, float)]
    return median(said[_WARM:] or said) if said else None


def results_path(trainer: Trainer, values: dict[str, Any]) -> str:
    return os.path.join(str(Path(str(values["run_dir"]))), filled(trainer.results, values))
