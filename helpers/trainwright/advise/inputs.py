"""The inputs that estimate and advise share: a model, ranks, their memory, and what each rank trains on."""

from __future__ import annotations

import argparse

from trainwright.cost.memory import Workload
from trainwright.errors import UserError
from trainwright.hardware import accelerator
from trainwright.model import ModelSpec, load_model
from trainwright.report import Report
from trainwright.units import format_bytes, parse_bytes, parse_count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, metavar="CONFIG", help="the model's Hugging Face config.json (Llama family)")
    parser.add_argument("--devices", required=True, type=_count, metavar="N", help="ranks of the job, on all machines together")
    memory = parser.add_mutually_exclusive_group()
    memory.add_argument("--memory", type=_bytes, metavar="SIZE", help="what the tensors of one rank may take, such as 36GiB")
    memory.add_argument("--accelerator", metavar="NAME", help="the device of each rank, such as a100-80gb: its memory less a stated reserve")
    parser.add_argument("--micro-batch", type=_count, default=1, metavar="N", help="sequences of one rank in one pass (default 1)")
    parser.add_argument("--seq-len", type=_count, metavar="N", help="tokens of one sequence (default: the model's longest, at most 4096)")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16", help="bf16 is mixed: states stay fp32 (default bf16)")


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
        return parse_bytes(text)
    except UserError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


def read(options: argparse.Namespace, report: Report) -> tuple[ModelSpec, Workload, int | None]:
    """Model, workload and the bytes a rank's tensors may take (None where no memory was named); raises UserError."""
    model = load_model(options.model)
    seq_len = options.seq_len
    if seq_len is None:
        seq_len = min(model.max_positions, 4096)
        report.infer("sequence length", seq_len, "max_position_embeddings of the model, at most 4096")
    workload = Workload(options.micro_batch, seq_len, options.devices, device="accelerator")
    return model, workload, _memory(options, report)


def _memory(options: argparse.Namespace, report: Report) -> int | None:
    if options.accelerator is None:
        return int(options.memory) if options.memory is not None else None
    found = accelerator(options.accelerator)
    if found.memory_bytes is None:
        raise UserError(f"the memory of {found.name} is not known ({found.memory_reason}); give --memory")
    usable = found.memory_bytes - found.reserve_bytes
    report.infer("memory for tensors", format_bytes(usable), f"{found.name}: {format_bytes(found.memory_bytes)} less {format_bytes(found.reserve_bytes)} for {found.reserve_for}")
    return usable
