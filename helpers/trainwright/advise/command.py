"""`trainwright advise`: which strategy, why, how sure, and its config file."""

from __future__ import annotations

import argparse

from trainwright.advise import inputs
from trainwright.advise.decide import Advice, decide
from trainwright.advise.estimate import table
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
    parser.add_argument("--strategy", metavar="NAME", help="write this strategy's config instead (ddp, fsdp_shard_grad_op, fsdp_full_shard)")
    parser.add_argument("--device", choices=("cpu", "cuda", "xpu"), default="cuda", help="what the config is written for (default cuda)")


def run(options: argparse.Namespace) -> Report:
    report = Report("advise")
    if options.memory is None and options.accelerator is None:
        raise UserError("advise needs the memory of a rank: give --memory 36GiB or --accelerator NAME")
    model, workload, memory = inputs.read(options, report)
    assert memory is not None
    advice = decide(model, workload, memory, options.precision)
    report.findings = advice.findings
    report.text = [*table(advice.candidates), "", *advice.text]
    report.data = {"model": {"name": model.name, "parameters": model.total_parameters}, "workload": workload.to_json(), **advice.to_json()}
    if options.emit:
        _emit(options, advice, report)
    return report


def _emit(options: argparse.Namespace, advice: Advice, report: Report) -> None:
    strategy = _named(options.strategy, advice) if options.strategy else advice.choice
    if strategy is None:
        raise UserError(f"nothing fits, so {options.emit} is not written; --strategy NAME writes one all the same")
    write_text(options.emit, accelerate.write(strategy, advice.workload.world_size, options.device))
    report.data["emitted"] = {"path": options.emit, "strategy": strategy.name, "backend": "accelerate"}
    report.text.append(f"wrote {options.emit} ({strategy.name}); next: trainwright check {options.emit} --world-size {advice.workload.world_size}")


def _named(name: str, advice: Advice) -> Strategy:
    names = {candidate.strategy.name: candidate.strategy for candidate in advice.candidates}
    if name not in names:
        raise UserError(f"--strategy {name!r} is not one of {', '.join(names)}")
    return names[name]
