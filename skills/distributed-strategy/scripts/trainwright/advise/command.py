"""`trainwright advise`: which strategy, why, how sure, and its config file."""

from __future__ import annotations

import argparse

from trainwright.advise import inputs
from trainwright.advise.decide import Advice, decide
from trainwright.advise.estimate import left_out, table
from trainwright.emit import accelerate
from trainwright.errors import UserError
from trainwright.output import write_text
from trainwright.report import Report
from trainwright.strategy import Strategy

EXAMPLES = """examples:
  trainwright advise --model config.json --devices 8 --accelerator a100-80gb
  trainwright advise --model config.json --devices 4 --memory 300MiB --seq-len 128 --emit fsdp.yaml"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    inputs.add_arguments(parser)
    parser.add_argument("--emit", metavar="FILE", help="write the Accelerate config of the choice to FILE")
    parser.add_argument("--strategy", metavar="NAME", help="write this one's config instead: ddp, fsdp_shard_grad_op, fsdp_full_shard")


def run(options: argparse.Namespace) -> Report:
    report = Report("advise")
    if options.memory is None and options.accelerator is None:
        raise UserError("advise needs the memory of a rank: give --memory 36GiB or --accelerator NAME")
    if options.strategy and not options.emit:
        raise UserError("--strategy names the config that --emit FILE writes; estimate --strategy shows a ledger")
    given = inputs.read(options, report)
    assert given.memory_bytes is not None
    advice = decide(given.asked.model, given.asked.workload, given.memory_bytes, options.precision)
    report.findings = advice.findings
    report.text = [*table(advice.candidates), "", *advice.text]
    report.data = {**given.to_json(), **advice.to_json(), "emitted": None}
    left_out(report)
    report.skip("speed", "no time is predicted; measure the choice against its alternative")
    if options.emit:
        _emit(options.emit, options.strategy, advice, report)
    return report


def _emit(path: str, name: str | None, advice: Advice, report: Report) -> None:
    strategy = _named(name, advice) if name else advice.choice
    if strategy is None:
        raise UserError(f"nothing fits, so {path} is not written; --strategy NAME writes one all the same")
    ranks = advice.workload.world_size
    write_text(path, accelerate.write(strategy, ranks, advice.workload.device))
    report.data["emitted"] = {"path": path, "strategy": strategy.name, "backend": "accelerate"}
    report.text.append(f"wrote {path} ({strategy.name}); next: trainwright check {path} --world-size {ranks}")


def _named(name: str, advice: Advice) -> Strategy:
    names = {candidate.strategy.name: candidate.strategy for candidate in advice.candidates}
    if name not in names:
        raise UserError(f"--strategy {name!r} is not one of {', '.join(names)}")
    return names[name]
