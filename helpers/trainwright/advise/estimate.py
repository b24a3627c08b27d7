"""`trainwright estimate`: the memory ledger per rank of each strategy."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from trainwright.advise import inputs
from trainwright.advise.decide import Candidate, judge, strategies, weigh
from trainwright.cost.memory import NOT_COUNTED, Ledger
from trainwright.cost.saved import Item
from trainwright.errors import UserError
from trainwright.report import Report
from trainwright.units import format_bytes, format_count

EXAMPLES = """examples:
  trainwright estimate --model config.json --devices 8 --seq-len 4096
  trainwright estimate --model config.json --devices 8 --strategy fsdp_full_shard --memory 36GiB"""
LEGEND = (
    "T tokens of a micro batch, t of a sequence, h hidden, q query and k key width, f feed-forward, a heads, d head width, V vocabulary, "
)
LEGEND += "L blocks; B elements of a block, R of the root unit (embedding, norm, head), P of the model, W ranks"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    inputs.add_arguments(parser)
    parser.add_argument("--strategy", metavar="NAME", help="every item and formula of one: ddp, fsdp_shard_grad_op, fsdp_full_shard")


def run(options: argparse.Namespace) -> Report:
    report = Report("estimate")
    given = inputs.read(options, report)
    model, workload = given.asked.model, given.asked.workload
    rows = [weigh(model, s, workload, given.memory_bytes) for s in strategies(model, workload.world_size, options.precision)]
    if options.strategy:
        rows = _only(options.strategy, rows)
    report.findings = judge(given.asked)
    report.data = {**given.to_json(), "candidates": [row.to_json() for row in rows]}
    report.text = [f"{model.name}: {format_count(model.total_parameters)} parameters", *table(rows)]
    report.text += _items(rows[0].ledger) if options.strategy else []
    left_out(report)
    if given.memory_bytes is None:
        report.skip("whether it fits", "no memory was named: give --memory or --accelerator")
    return report


def left_out(report: Report) -> None:
    """Say once what no tensor shows, and what the formulas assume."""
    report.skip("memory beside tensors", ", ".join(name for name, _ in NOT_COUNTED))
    said = "activations are those that the reference Llama, run eagerly, keeps on CPU; fused kernels keep less, other code may keep more"
    report.skip("other model code", said)


def _only(name: str, rows: list[Candidate]) -> list[Candidate]:
    chosen = [row for row in rows if row.strategy.name == name]
    if not chosen:
        raise UserError(f"--strategy {name!r} is not one of {', '.join(row.strategy.name for row in rows)}")
    return chosen


def table(rows: Sequence[Candidate]) -> list[str]:
    """The candidates as aligned lines."""
    cells = [("strategy", "states", "activations", "peak", "peak at", "fits", "max micro batch")]
    for row in rows:
        fits = {None: "?", False: "no"}.get(row.fits, "yes" if row.safe else "barely")
        ceiling = "?" if row.max_micro_batch is None else str(row.max_micro_batch)
        found = row.ledger
        sizes = (found.states_bytes, found.activations_bytes, found.peak_bytes)
        states, activations, peak = map(format_bytes, sizes)
        cells.append((row.strategy.name, states, activations, peak, found.peak_phase, fits, ceiling))
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]


def _items(found: Ledger) -> list[str]:
    lines = [f"alive at the peak ({found.peak_phase}), on the fullest rank:", *map(_line, found.items)]
    lines += ["one block keeps for its backward:", *map(_line, found.block)]
    lines += ["the phases:", *(f"  {format_bytes(phase.bytes):>10}  {phase.name}" for phase in found.phases)]
    return [*lines, f"  ({LEGEND})"]


def _line(item: Item) -> str:
    return f"  {format_bytes(item.bytes):>10}  {item.name} = {item.formula}"
