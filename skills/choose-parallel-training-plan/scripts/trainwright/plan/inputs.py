# plan/inputs.py without its comments
from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from trainwright import hardware
from trainwright.cost.footprint import Footprint
from trainwright.cost.layers import network
from trainwright.cost.machine import Machine, machine, network_share
from trainwright.cost.step import StepModel
from trainwright.document import load_mapping, parse
from trainwright.errors import UserError
from trainwright.hardware import DEVICE_RESERVE_BYTES
from trainwright.model import ModelSpec, load_model
from trainwright.plan.calibrate import SHIPPED, Fit
from trainwright.plan.measured import factors, read_latencies
from trainwright.plan.space import LONGEST_PIPELINE, Job, Space
from trainwright.report import Report
from trainwright.units import format_bytes, parse_bytes, parse_count, parse_rate

T = TypeVar("T")
KEPT_FREE = 0.02


@dataclass(frozen=True, slots=True)
class Inputs:

    model: ModelSpec
    machine: Machine
    job: Job
    steps: StepModel
    footprint: Footprint
    capacity: float
    fit: Fit
    space: Space
    contention: float = 1.0
    measured: tuple[str, ...] = ()


def argument(parse: Callable[[str], T]) -> Callable[[str], T]:

    def read_one(text: str) -> T:
        try:
            return parse(text)
        except UserError as problem:
            raise argparse.ArgumentTypeError(str(problem)) from None

    return read_one


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("search, compare, emit")
    count = argument(_positive)
    group.add_argument("--model", metavar="CONFIG", help="a config.json, a preset (7b, 70b, ...), a YAML")
    group.add_argument("--accelerator", metavar="NAME", help="a100, h100, mi300x, max-1550-tile, ...")
    group.add_argument("--node", metavar="NAME", help="a kind of node or a site: aurora, dgx-h100")
    group.add_argument("--hardware", metavar="PROFILE", help="this machine's, from `doctor --hardware` and measured")
    group.add_argument("--devices", type=count, metavar="N", help="devices of the job")
    group.add_argument("--per-node", type=count, metavar="N", help="devices that share the fast links")
    group.add_argument("--network", type=argument(parse_rate), metavar="RATE", help="of a device between nodes: 200Gbps, 25GB/s")
    group.add_argument("--memory", type=argument(parse_bytes), metavar="SIZE", help="of one device, such as 80GiB")
    group.add_argument("--global-batch", type=count, metavar="N", help="sequences of one step")
    group.add_argument("--seq-len", type=count, metavar="N", help="tokens of one sequence (default: at most 4096)")
    group.add_argument(
        "--precision", choices=("bf16", "fp16", "fp8", "fp32"), default="bf16", metavar="TYPE", help="bf16 (default), fp16, fp8, fp32"
    )
    group.add_argument("--slowest", type=float, default=1.0, metavar="FACTOR", help=argparse.SUPPRESS)
    group.add_argument(
        "--freeze", action="append", default=[], choices=("tower", "decoder"), metavar="PART", help="tower or decoder: not trained"
    )
    group.add_argument("--compiled", action="store_true", help="layers run under torch.compile")
    for name in ("tp", "pp", "cp", "ep"):
        group.add_argument(f"--max-{name}", type=count, metavar="N", help=argparse.SUPPRESS)
    group.add_argument("--micro-batches", type=_counts, metavar="N,N", help="micro batches to look at")
    group.add_argument("--steps", type=count, metavar="N", help="how many steps the run has")
    group.add_argument("--tokens", type=count, metavar="N", help=argparse.SUPPRESS)
    group.add_argument("--objective", choices=("time", "memory"), default="time", metavar="WORD", help="time (default), or memory")
    group.add_argument("--contention", type=float, default=1.0, metavar="FACTOR", help="other jobs leave 1/FACTOR of the network")
    group.add_argument("--latencies", metavar="FILE", help="measured stages")
    group.add_argument("--workspace", type=argument(parse_bytes), metavar="SIZE", help="measured workspace of a rank")
    group.add_argument("--calibration", metavar="FIT", help="what `plan calibrate --save` wrote")


def _positive(text: str) -> int:
    value = parse_count(text)
    if value < 1:
        raise UserError(f"{text!r}: give 1 or more")
    return value


def _counts(text: str) -> tuple[int, ...]:
    return tuple(argument(_positive)(part) for part in text.split(","))


def read(options: argparse.Namespace, report: Report) -> Inputs:
    for name in ("model", "devices", "global_batch"):
        if getattr(options, name) is None:
            raise UserError(f"plan {options.action} needs --{name.replace('_', '-')}")
    model = load_model(options.model)
    fit = read_fit(options.calibration) if options.calibration else SHIPPED
    found = _machine(options, fit, report)
    seq_len = options.seq_len
    if seq_len is None:
        seq_len = min(model.max_positions, 4096)
        report.infer("sequence length", seq_len, "max_position_embeddings of the model, at most 4096")
    net = network(model, tuple(options.freeze))
    job = Job(net, found.devices, found.node, seq_len, options.global_batch, options.precision, compiled=options.compiled)
    steps = StepModel(net, found, seq_len, options.global_batch, fit.constants(found.device.name))
    footprint = Footprint(steps, fit.memory_constants())
    told = _measurements(options, steps, footprint)
    return Inputs(model, found, job, steps, footprint, _capacity(found, report), fit, _space(options), options.contention, told)


def _measurements(options: argparse.Namespace, steps: StepModel, footprint: Footprint) -> tuple[str, ...]:
    if options.latencies:
        steps.measured = factors(read_latencies(options.latencies), steps)
        steps.forget()
    footprint.measured_workspace = options.workspace
    return ("stages",) * bool(options.latencies) + ("workspace",) * (options.workspace is not None)


def _machine(options: argparse.Namespace, fit: Fit, report: Report) -> Machine:
    if not 1 <= options.contention < math.inf:
        raise UserError(f"--contention {options.contention:g}: other jobs leave 1/FACTOR of the network; give 1 or more")
    profile = hardware.load(options.hardware) if options.hardware else fit.hardware()
    node = hardware.node(options.node, profile) if options.node else None
    name = options.accelerator or (node.devices[0].accelerator if node else next(iter(profile.accelerators), None) if profile else None)
    if name is None:
        raise UserError(f"plan {options.action} needs --accelerator, --node or --hardware")
    per_node = options.per_node or (node.num_devices if node else None)
    inter = options.network
    if inter is None and node is not None and options.devices > (per_node or 1) and (inter := network_share(node)) is not None:
        report.infer("network of a device", f"{inter / 1e9:.3g} GB/s", f"all ports of a node of {node.name} over its devices")
    memory = options.memory
    if memory is None and (entry := _entry(name)) is not None and entry.memory_bytes is not None:
        memory = entry.memory_bytes
        report.infer("memory of a device", format_bytes(memory), f"{entry.name} in hardware.yaml ({entry.memory.source})")
    rate = None if inter is None else inter / options.contention
    found = machine(name, options.devices, per_node, rate, memory, options.slowest, profile)
    if found.device.matmul_flops.value is None or found.device.hbm.value is None:
        raise UserError(
            f"no rate of products or of memory is known of {found.device.name}: measure them, and name them by --hardware PROFILE"
        )
    if options.per_node is None and node is None:
        report.infer("devices of a node", found.node, f"{found.device.name} as it is usually built; --per-node says otherwise")
    return found


def _entry(name: str) -> hardware.Accelerator | None:
    return hardware.bundled().accelerators.get(name.strip().lower())


def _capacity(found: Machine, report: Report) -> float:
    memory = found.device.memory_bytes
    if memory is None:
        raise UserError(f"the memory of {found.device.name} is not given; add --memory 80GiB")
    if memory <= DEVICE_RESERVE_BYTES:
        raise UserError(f"--memory {format_bytes(memory)} is no more than a device's own needs of {format_bytes(DEVICE_RESERVE_BYTES)}")
    report.infer("capacity", format_bytes(memory * (1 - KEPT_FREE)), f"the device's memory less {KEPT_FREE:.0%}")
    return memory * (1 - KEPT_FREE)


def _space(options: argparse.Namespace) -> Space:
    return Space(options.max_tp, options.max_pp or LONGEST_PIPELINE, options.max_cp, options.max_ep, options.micro_batches)


def read_fit(path: str) -> Fit:
    value = load_mapping(path, "json").value
    try:
        factors = [{str(k): float(v) for k, v in value[name].items()} for name in ("time", "memory")]
        profile = value.get("profile")
        weighed = tuple(str(name) for name in value.get("weighed", ()))
        rows = int(value["time_rows"]), int(value["memory_rows"])
        fit = Fit(factors[0], factors[1], *rows, int(value.get("largest", 0)), profile, weighed)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(f"{path}: is no calibration; give what `plan calibrate --save FILE` wrote") from None
    for device in {name.partition(":")[2] for name in fit.time} | {""}:
        fit.constants(device)
    fit.memory_constants()
    fit.hardware()
    return fit


def fit_text(fit: Fit) -> str:
    return json.dumps({"schema": "trainwright/calibration/1", **fit.to_json()}, indent=2, sort_keys=True) + "\n"


def plan_text(path_or_text: str) -> dict[str, Any]:
    if path_or_text.lstrip().startswith("{"):
        value = parse(path_or_text, "--plan", "json").value
        return _plan_in(value if isinstance(value, dict) else {})
    if "=" not in path_or_text or Path(path_or_text).exists():
        return _plan_in(load_mapping(path_or_text, "json").value)
    pairs = [part.partition("=") for part in path_or_text.split(",")]
    keys = [key.strip() for key, _, _ in pairs]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise UserError(f"--plan {path_or_text[:80]!r}: {twice!r} stands there twice")
    return {key: _value(text.strip()) for key, (_, _, text) in zip(keys, pairs, strict=True)}


def _plan_in(value: dict[str, Any]) -> dict[str, Any]:
    data = value.get("data")
    if isinstance(data, dict) and isinstance(data.get("decision"), dict):
        value = data.get(str(data["decision"].get("take"))) or {}
    found = value.get("plan", value)
    return found if isinstance(found, dict) else {}


def _value(text: str) -> Any:
    if "/" in text and all(part.isdecimal() and len(part) < 7 for part in text.split("/")):
        return [int(part) for part in text.split("/")]
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text.isdecimal() and len(text) < 12:
        return int(text)
    try:
        return float(text) if text.replace(".", "", 1).isdigit() else text
    except ValueError:
        return text
