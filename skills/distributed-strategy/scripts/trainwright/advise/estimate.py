"""`trainwright estimate`: the memory ledger per rank of each strategy."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from trainwright.advise import inputs
from trainwright.advise.decide import Candidate, strategies
from trainwright.cost.memory import Ledger, Workload, ledger, max_micro_batch
from trainwright.errors import UserError
from trainwright.model import ModelSpec
from trainwright.report import Report
from trainwright.units import format_bytes, format_count

EXAMPLES = """examples:
  trainwright estimate --model config.json --devices 8 --seq-len 4096
  trainwright estimate --model config.json --devices 8 --strategy fsdp_full_shard --memory 36GiB"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    inputs.add_arguments(parser)
    parser.add_argument("--strategy", metavar="NAME", help="every item and formula of one strategy (ddp, fsdp_shard_grad_op, fsdp_full_shard)")


def run(options: argparse.Namespace) -> Report:
    report = Report("estimate")
    model, workload, memory = inputs.read(options, report)
    rows = [_candidate(model, ledger(model, s, workload), workload, memory) for s in strategies(model, workload.world_size, options.precision)]
    if options.strategy:
        rows = _only(options.strategy, rows)
    if memory is None:
        report.skip("whether it fits", "no memory was named: give --memory or --accelerator")
    report.data = {
        "model": {"name": model.name, "parameters": model.total_parameters},
        "workload": workload.to_json(),
        "memory_bytes": memory,
        "candidates": [row.to_json() for row in rows],
    }
    report.text = [f"{model.name}: {format_count(model.total_parameters)} parameters", *table(rows), *(_items(rows[0].ledger) if options.strategy else [])]
    return report


def _candidate(model: ModelSpec, found: Ledger, workload: Workload, memory: int | None) -> Candidate:
    if memory is None:
        return Candidate(found.strategy, found, None, None, None)
    ceiling = max_micro_batch(model, found.strategy, workload, memory)
    return Candidate(found.strategy, found, found.peak_bytes <= memory, memory - found.peak_bytes, ceiling)


def _only(name: str, rows: list[Candidate]) -> list[Candidate]:
    chosen = [row for row in rows if row.strategy.name == name]
    if not chosen:
        raise UserError(f"--strategy {name!r} is not one of {', '.join(row.strategy.name for row in rows)}")
    return chosen


def table(rows: Sequence[Candidate]) -> list[str]:
    """The candidates as aligned lines."""
    cells = [("strategy", "states", "peak", "peak at", "fits", "max micro batch")]
    for row in rows:
        fits = "?" if row.fits is None else "yes" if row.fits else "no"
        ceiling = "?" if row.max_micro_batch is None else str(row.max_micro_batch)
        found = row.ledger
        cells.append((row.strategy.name, format_bytes(found.states_bytes), format_bytes(found.peak_bytes), found.peak_phase, fits, ceiling))
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]


def _items(found: Ledger) -> list[str]:
    lines = [f"alive at the peak ({found.peak_phase}), on the fullest rank:"]
    return lines + [f"  {format_bytes(item.bytes):>10}  {item.name} = {item.formula}" for item in found.items]
