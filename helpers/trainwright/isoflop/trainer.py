"""The protocol by which any trainer can be calibrated and can run a plan: a command to start, and a file of JSON lines to read.

A YAML or JSON file:

    argv: [python3, train.py, --out, "{run_dir}", --config, "{model}", --steps, "{steps}", --lr, "{lr}", --seed, "{seed}"]
    results: "{run_dir}/metrics.jsonl"        # this, where it is left out

`argv` is a list and no shell reads it; each {name} of PLACEHOLDERS is replaced. The trainer appends one JSON object a line: `step`, `loss`
and where it has them `tokens` (so far), `eval_loss`, `tokens_per_sec`, `memory_bytes`, `params`, `flops_per_token`, `flops`, `state`.
The last line with an `eval_loss` is the run's result, or where none has one the last with a `loss`; exit code 0 is a finished run.
"""

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
                "modality", "regime", "variant")  # fmt: skip
DEFAULT_RESULTS = "{run_dir}/metrics.jsonl"
LOSSES = ("eval_loss", "val_loss", "loss")
_NAME = re.compile(r"\{([a-z_]+)\}")
_LINE_BYTES = 1 << 20
_WARM = 3  # lines that are no throughput


@dataclass(frozen=True, slots=True)
class Trainer:
    """A command template, and where its results lie."""

    argv: tuple[str, ...]
    results: str = DEFAULT_RESULTS

    def to_json(self) -> dict[str, Any]:
        return {"argv": list(self.argv), "results": self.results}


def read_trainer(path: str) -> Trainer:
    """The trainer of a YAML or JSON file; raises UserError for one that is none."""
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
    """`text` with each placeholder's value in full precision; raises UserError for one that has no value here."""

    def value(match: re.Match[str]) -> str:
        found = values.get(match[1])
        if found is None:
            raise UserError(f"the trainer asks for {{{match[1]}}}, which this run does not have")
        return str(int(found)) if isinstance(found, float) and found.is_integer() and abs(found) < 2**63 else str(found)

    return _NAME.sub(value, text)


def results_of(path: str) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines; broken lines are left out; [] where there is no file."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line for line in file if len(line) < _LINE_BYTES]
    except OSError:
        return []
    return [row for line in lines if (row := object_of(line)) is not None]


def object_of(text: str) -> dict[str, Any] | None:
    """The JSON object that `text` is, None where it is none."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def losses_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines that tell the run's loss: those with a loss on held-out data where any has one, else those with a training loss."""
    for name in LOSSES:
        if found := [row for row in rows if type(row.get(name)) in (int, float)]:
            return found
    return []


def last_loss(rows: list[dict[str, Any]]) -> tuple[float, dict[str, Any]]:
    """The final loss and its line; NaN and {} where no line has one."""
    for row in reversed(losses_of(rows)):
        return next(_float(row[name]) for name in LOSSES if type(row.get(name)) in (int, float)), row
    return math.nan, {}


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return math.inf


def throughput(rows: list[dict[str, Any]]) -> float | None:
    """Tokens per second: the median of what the lines say after the first few, None where none says it."""
    said = [float(row["tokens_per_sec"]) for row in rows if type(row.get("tokens_per_sec")) in (int, float)]
    return median(said[_WARM:] or said) if said else None


def results_path(trainer: Trainer, values: dict[str, Any]) -> str:
    return os.path.join(str(Path(str(values["run_dir"]))), filled(trainer.results, values))
