"""The inputs of `plan search` and `plan compare`: a model, a machine with its topology, a batch, and a fit where there is one."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from trainwright.cost.footprint import Footprint
from trainwright.cost.layers import network
from trainwright.cost.machine import Machine, machine
from trainwright.cost.step import StepModel
from trainwright.document import load_mapping
from trainwright.errors import UserError
from trainwright.hardware import DEVICE_RESERVE_BYTES
from trainwright.model import ModelSpec, load_model
from trainwright.plan.calibrate import SHIPPED, Fit
from trainwright.plan.space import Job, Space
from trainwright.report import Report
from trainwright.units import format_bytes, parse_bytes, parse_count, parse_rate

T = TypeVar("T")
KEPT_FREE = 0.02  # of the device: what the model does not see


@dataclass(frozen=True, slots=True)
class Inputs:
    """What was asked, ready to price plans; `capacity` in bytes of one device."""

    model: ModelSpec
    machine: Machine
    job: Job
    steps: StepModel
    footprint: Footprint
    capacity: float
    fit: Fit
    space: Space


def argument(parse: Callable[[str], T]) -> Callable[[str], T]:
    """A parser of argparse from one of units.py; what it raises becomes a usage error."""

    def read_one(text: str) -> T:
        try:
            return parse(text)
        except UserError as problem:
            raise argparse.ArgumentTypeError(str(problem)) from None

    return read_one


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of search and compare."""
    group = parser.add_argument_group("search, compare")
    count = argument(parse_count)
    group.add_argument("--model", metavar="CONFIG", help="a config.json, a preset (7b, 70b, ...), a YAML")
    group.add_argument("--accelerator", metavar="NAME", help="a100, h100, mi300x, max-1550-tile, ...")
    group.add_argument("--devices", type=count, metavar="N", help="devices of the job")
    group.add_argument("--per-node", type=count, metavar="N", help="devices that share the fast links")
    group.add_argument("--network", type=argument(parse_rate), metavar="RATE", help="of a device between nodes: 200Gbps, 25GB/s")
    group.add_argument("--memory", type=argument(parse_bytes), metavar="SIZE", help="of one device, such as 80GiB")
    group.add_argument("--global-batch", type=count, metavar="N", help="sequences of one step")
    group.add_argument("--seq-len", type=count, metavar="N", help="tokens of one sequence (default: at most 4096)")
    group.add_argument(
        "--precision", choices=("bf16", "fp16", "fp8", "fp32"), default="bf16", metavar="TYPE", help="bf16 (default), fp16, fp8, fp32"
    )
    group.add_argument("--slowest", type=float, default=1.0, metavar="FACTOR", help="the slowest device's time over the others'")
    group.add_argument(
        "--freeze", action="append", default=[], choices=("tower", "decoder"), metavar="PART", help="tower or decoder: not trained"
    )
    group.add_argument("--compiled", action="store_true", help="layers run under torch.compile")
    for name in ("tp", "pp", "cp", "ep"):
        group.add_argument(f"--max-{name}", type=count, metavar="N", help=argparse.SUPPRESS)
    group.add_argument("--micro-batches", type=_counts, metavar="N,N", help="micro batches to look at")
    group.add_argument("--steps", type=count, metavar="N", help="how many steps the run has")
    group.add_argument("--calibration", metavar="FIT", help="what `plan calibrate --save` wrote")


def _counts(text: str) -> tuple[int, ...]:
    return tuple(argument(parse_count)(part) for part in text.split(","))


def read(options: argparse.Namespace, report: Report) -> Inputs:
    """The inputs that the options name; what is inferred is noted in `report`. Raises UserError."""
    for name in ("model", "accelerator", "devices", "global_batch"):
        if getattr(options, name) is None:
            raise UserError(f"plan {options.action} needs --{name.replace('_', '-')}")
    model = load_model(options.model)
    found = machine(options.accelerator, options.devices, options.per_node, options.network, options.memory, options.slowest)
    if options.per_node is None:
        report.infer("devices of a node", found.node, f"{found.device.name} as it is usually built; --per-node says otherwise")
    seq_len = options.seq_len
    if seq_len is None:
        seq_len = min(model.max_positions, 4096)
        report.infer("sequence length", seq_len, "max_position_embeddings of the model, at most 4096")
    fit = read_fit(options.calibration) if options.calibration else SHIPPED
    net = network(model, tuple(options.freeze))
    job = Job(net, found.devices, found.node, seq_len, options.global_batch, options.precision, compiled=options.compiled)
    steps = StepModel(net, found, seq_len, options.global_batch, fit.constants(found.device.name))
    footprint = Footprint(steps, fit.memory_constants())
    return Inputs(model, found, job, steps, footprint, _capacity(found, report), fit, _space(options))


def _capacity(found: Machine, report: Report) -> float:
    memory = found.device.memory_bytes
    if memory is None:
        raise UserError(f"the memory of {found.device.name} is not given; add --memory 80GiB")
    if memory <= DEVICE_RESERVE_BYTES:
        raise UserError(f"--memory {format_bytes(memory)} is no more than a device's own needs of {format_bytes(DEVICE_RESERVE_BYTES)}")
    report.infer("capacity", format_bytes(memory * (1 - KEPT_FREE)), f"the device's memory less {KEPT_FREE:.0%}")
    return memory * (1 - KEPT_FREE)


def _space(options: argparse.Namespace) -> Space:
    return Space(options.max_tp, options.max_pp, options.max_cp, options.max_ep, options.micro_batches)


def read_fit(path: str) -> Fit:
    """A fit that `plan calibrate --save FILE` wrote; raises UserError for anything else."""
    value = load_mapping(path, "json").value
    try:
        factors = [{str(k): float(v) for k, v in value[name].items()} for name in ("time", "memory")]
        fit = Fit(factors[0], factors[1], int(value["time_rows"]), int(value["memory_rows"]))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(f"{path}: is no calibration; give what `plan calibrate --save FILE` wrote") from None
    for device in {name.partition(":")[2] for name in fit.time} | {""}:
        fit.constants(device)  # says which factor is none of ours
    fit.memory_constants()
    return fit


def fit_text(fit: Fit) -> str:
    return json.dumps({"schema": "trainwright/calibration/1", **fit.to_json()}, indent=2, sort_keys=True) + "\n"


def plan_text(path_or_text: str) -> dict[str, Any]:
    """The fields of one --plan: key=value pairs with commas, or a JSON file with them."""
    if "=" not in path_or_text or Path(path_or_text).exists():
        value: dict[str, Any] = load_mapping(path_or_text, "json").value
        return value
    pairs = [part.partition("=") for part in path_or_text.split(",")]
    return {key.strip(): _value(text.strip()) for key, _, text in pairs}


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text.isdecimal() and len(text) < 12:
        return int(text)
    try:
        return float(text) if text.replace(".", "", 1).isdigit() else text
    except ValueError:
        return text
