# plan/measured.py without its comments
from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from trainwright.cost.step import StepModel
from trainwright.document import load_mapping
from trainwright.errors import UserError
from trainwright.parallel import Plan

MOST = 1000
FIELDS = {"layers", "seconds", "micro_batch", "tp", "head", "recompute"}


@dataclass(frozen=True, slots=True)
class Latency:

    layers: int
    seconds: float
    plan: Plan
    head: bool


def read_latencies(path: str) -> list[Latency]:
    rows = load_mapping(path).value.get("stages")
    if not isinstance(rows, list) or not 0 < len(rows) <= MOST:
        raise UserError(f"{path}: give a list of 1 to {MOST} measured stages under `stages`")
    return [_latency(path, number, row) for number, row in enumerate(rows, start=1)]


def _latency(path: str, number: int, row: Any) -> Latency:
    where = f"{path}: stage {number}"
    if not isinstance(row, dict) or set(row) - FIELDS or not {"layers", "seconds"} <= set(row):
        raise UserError(f"{where} needs layers and seconds, and may have {', '.join(sorted(FIELDS - {'layers', 'seconds'}))}")
    layers, seconds = row["layers"], row["seconds"]
    if type(layers) is not int or not 0 < layers <= 10_000:
        raise UserError(f"{where}: layers {layers!r} is no whole number from 1 to 10,000")
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < math.inf:
        raise UserError(f"{where}: seconds {seconds!r} is not above 0")
    plan = Plan(tp=row.get("tp", 1), micro_batch=row.get("micro_batch", 1), recompute=row.get("recompute", "none"))
    return Latency(layers, float(seconds), plan, bool(row.get("head", False)))


def factors(latencies: list[Latency], model: StepModel) -> dict[tuple[int, int], float]:
    found: dict[tuple[int, int], list[float]] = defaultdict(list)
    for one in latencies:
        ours = one.layers * model.layer_pass(model.network.order[-1], one.plan).both + (model.head(one.plan).both if one.head else 0.0)
        found[one.plan.micro_batch, one.plan.tp].append(math.log(one.seconds / ours))
    return {key: math.exp(math.fsum(logs) / len(logs)) for key, logs in found.items()}
