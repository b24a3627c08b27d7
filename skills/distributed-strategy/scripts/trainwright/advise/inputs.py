"""The inputs that estimate and advise share: a model, ranks, their memory, and what each rank trains on."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from trainwright.advise.decide import Asked
from trainwright.cost.memory import Workload
from trainwright.errors import UserError
from trainwright.hardware import Accelerator, accelerator
from trainwright.model import load_model
from trainwright.report import Report
from trainwright.units import format_bytes, parse_bytes, parse_count

LONGEST_DEFAULT = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", required=True, metavar="CONFIG", help="a Hugging Face config.json, a preset (1b, 7b, 70b, ...) or a YAML"
    )
    parser.add_argument("--devices", required=True, type=_count, metavar="N", help="ranks of the job, on all machines together")
    memory = parser.add_mutually_exclusive_group()
    memory.add_argument("--memory", "--device-memory", type=_bytes, metavar="SIZE", help="what a rank's tensors may take, such as 36GiB")
    memory.add_argument("--accelerator", metavar="NAME", help="the device of each rank (a100-80gb, cpu, ...): its memory less a reserve")
    parser.add_argument("--micro-batch", type=_count, default=1, metavar="N", help="sequences of one rank in one pass (default 1)")
    parser.add_argument("--seq-len", type=_count, metavar="N", help="tokens of one sequence (default: the model's longest, at most 4096)")
    parser.add_argument("--global-batch", type=_count, metavar="N", help="sequences of one step on all ranks; the rest is accumulated")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16", help="bf16 is mixed: states stay fp32 (default bf16)")
    parser.add_argument("--optimizer", choices=("adamw",), default="adamw", help="what keeps states per parameter (default adamw)")
    parser.add_argument("--device", choices=("cpu", "cuda", "xpu"), help="kind of device (default: the accelerator's, else cuda)")


def _count(text: str) -> int:
    try:
        value = parse_count(text)
    except UserError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not 1 or more")
    return value


def _bytes(text: str) -> int:
    try:
        value = parse_bytes(text)
    except UserError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} holds nothing")
    return value


@dataclass(frozen=True, slots=True)
class Inputs:
    """What was asked, the accelerator where one was named, and the bytes that a rank's tensors may take (None: not named)."""

    asked: Asked
    accelerator: Accelerator | None
    memory_bytes: int | None

    def to_json(self) -> dict[str, Any]:
        """The part of a report's data that repeats the inputs."""
        model = self.asked.model
        return {
            "model": {"name": model.name, "parameters": model.total_parameters},
            "workload": self.asked.workload.to_json(),
            "accelerator": self.accelerator.to_json() if self.accelerator else None,
            "memory_bytes": self.memory_bytes,
        }


def read(options: argparse.Namespace, report: Report) -> Inputs:
    """The inputs that the options name, with what is inferred noted in `report`; raises UserError."""
    model = load_model(options.model)
    if model.assumed:
        fields = ", ".join(f"{one.field} {one.value}" for one in model.assumed)
        report.infer("fields the model leaves out", fields, "defaults of Transformers")
    for note in model.notes:
        report.infer("the model", model.name, note)
    found = accelerator(options.accelerator) if options.accelerator is not None else None
    seq_len = options.seq_len
    if seq_len is None:
        seq_len = min(model.max_positions, LONGEST_DEFAULT)
        report.infer("sequence length", seq_len, f"max_position_embeddings of the model, at most {LONGEST_DEFAULT}")
    device = options.device or (found.device if found else "cuda")
    workload = Workload(options.micro_batch, seq_len, options.devices, options.optimizer, _accumulation(options, report), device)
    memory = _share(found, options.devices, report) if found else options.memory
    return Inputs(Asked(model, workload), found, memory)


def _accumulation(options: argparse.Namespace, report: Report) -> int:
    """Passes of every rank in one step."""
    if options.global_batch is None:
        return 1
    at_once = options.micro_batch * options.devices
    passes, rest = divmod(options.global_batch, at_once)
    if rest:
        raise UserError(f"--global-batch {options.global_batch} is no multiple of micro batch x ranks = {at_once}")
    report.infer("gradient accumulation", passes, f"--global-batch / ({options.micro_batch} x {options.devices})")
    return int(passes)


def _share(found: Accelerator, ranks: int, report: Report) -> int:
    """What the tensors of one rank may take; the memory of a machine is shared by its ranks."""
    if found.memory_bytes is None:
        raise UserError(f"the memory of {found.name} is not known ({found.memory.reason}); give --memory")
    whole = found.memory_bytes // ranks if found.per == "machine" else found.memory_bytes
    usable = whole - found.reserve_bytes
    shared = f", one of {ranks} parts of {format_bytes(found.memory_bytes)}," if found.per == "machine" else ""
    said = f"{found.name}: {format_bytes(whole)}{shared} less {format_bytes(found.reserve_bytes)} for {found.reserve_for}"
    if usable < 1:
        raise UserError(f"no memory is left for tensors on {said}; use fewer ranks, or give --memory")
    report.infer("memory for tensors", format_bytes(usable), said)
    return usable
