"""What holds of a plan whatever its speed, and what speaks against trusting its predicted speed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from trainwright.cost.footprint import GIB
from trainwright.cost.step import StepTime
from trainwright.parallel import Plan
from trainwright.plan.inputs import Inputs
from trainwright.plan.rows import Row
from trainwright.plan.search import TIGHT

LONG_SEQUENCE = 32_768  # tokens from which packed documents change what attention costs
FAR, SHIPPED_LARGEST = 4, 3072  # how far beyond its rows a fit may go; the largest run that the shipped constants have seen
ALIGNED_HEAD, ALIGNED_VOCAB = 64, 128


def invariants(given: Inputs, plan: Plan, split: tuple[int, ...]) -> list[dict[str, object]]:
    """Each with whether it holds: a plan that breaks one trains something else, or does not start."""
    job = given.job
    at_once = plan.dp * plan.micro_batch
    found: list[dict[str, object]] = [
        {"name": "world size is the product of the axes", "holds": plan.world_size == job.devices},
        {"name": "the global batch is that of the job", "holds": job.global_batch % at_once == 0},
        {"name": "each layer is on exactly one stage, in order", "holds": sum(split) == job.network.num_layers},
        {"name": "tensor parallelism divides the heads", "holds": all(kind.heads % plan.tp == 0 for kind in job.network.kinds)},
        {"name": "ranks of a tensor-parallel group share a node", "holds": job.node % plan.tp == 0},
    ]
    return found + [{"name": text, "holds": None} for hit, text in _of_the_stack(given, plan) if hit]


def _of_the_stack(given: Inputs, plan: Plan) -> list[tuple[bool, str]]:
    """What the training script has to see to, for the same training as on one device; nothing here can know whether it does."""
    ranks = plan.dp * plan.cp
    return [
        (
            ranks > 1 or plan.microbatches(given.job.global_batch) > 1,
            "the loss is divided by the tokens of the whole batch",
        ),
        (ranks > 1, "ranks read different sequences, each once"),
        (plan.tp > 1, "dropout draws apart only where tp cuts activations"),
        (given.job.network.ends.tied and plan.pp > 1, "the tied table's gradients are summed over both end stages"),
        (plan.world_size > plan.dp_replicate, "the gradient norm is over all shards, stages and tp parts"),
        (plan.world_size > 1, f"gradients are reduced in {8 * plan.gradient_bytes} bits"),
    ]


def tight(needed: float, at_most: float, capacity: float) -> list[str]:
    """Said of a plan that fits by less than the memory model's own error."""
    if not (TIGHT * capacity < needed <= capacity < at_most):
        return []
    error = at_most / needed - 1
    return [f"memory: {needed / GIB:.1f} of {capacity / GIB:.1f} GiB, and the model may be {error:.0%} too low: it may run out of memory"]


def of_the_decision(given: Inputs, decided: dict[str, Any]) -> list[str]:
    """What speaks against moving to the predicted best at all."""
    steps, even = decided["steps"], decided["break_even_steps"]
    noise = "another day's traffic alone may move a step by more: one job took 125 and 225 s on the same plan"
    hits = [
        (decided["kind"] == "tie", "the predicted gain is inside the model's own error"),
        (decided["kind"] == "short", f"the run of {steps} steps is shorter than the {even} after which the gain has paid"),
        (given.machine.devices > given.machine.node and given.contention == 1, f"the network is taken as free of other jobs; {noise}"),
    ]
    return [text for hit, text in hits if hit]


def missing(given: Inputs, steps: int | None) -> list[dict[str, str]]:
    """What was not told, and what stands in its place."""
    of_time = given.fit.time_of(given.machine.device.name)
    told = {
        "measured stage latencies": ("stages" in given.measured, "the model's layer times (--latencies gives measured ones)"),
        "measured workspace": ("workspace" in given.measured, "the model's (--workspace)"),
        "runs of this stack": (of_time.tag == "calibrated", of_time.doubt or "the shipped constants (plan calibrate RUNS.csv --save FIT)"),
        "run length": (steps is not None, "a run long enough to pay for any probe (--steps, --tokens)"),
        "link contention": (given.contention > 1 or given.machine.devices <= given.machine.node, "a network of our own (--contention)"),
    }
    return [{"what": what, "instead": f"not given; instead: {instead}"} for what, (known, instead) in told.items() if not known]


def of_rows(rows: Sequence[Row]) -> list[str]:
    """What makes the runs of one table no equals: metrics, formulas, compilers, models that grow with the machine."""
    used = [row for row in rows if row.plan is not None]
    kinds = {row.cells.get("tflops_kind", "")[:3].upper() for row in used} & {"HFU", "MFU"}
    metrics = {word for row in used if row.memory_gib for word in ("allocated", "reserved") if word in row.cells.get("notes", "").lower()}
    compiled = {row.plan.compiled for row in used if row.plan}
    capped = {row.cells["hardware"] for row in used if "500w" in row.cells["hardware"].lower()}
    hits = [
        (len(kinds) == 2, "HFU and MFU stand side by side: recompute makes the former look better"),
        (len(metrics) == 2, "allocated and reserved memory stand side by side"),
        (len(compiled) == 2, "compiled and other runs stand side by side"),
        (bool(capped), f"power-capped devices among them: {', '.join(sorted(capped))}"),
        *((True, f"{name}: models grow with the devices (weak scaling): no ratio of them is a speed-up") for name in _weak(used)),
    ]
    return [text for hit, text in hits if hit]


def _weak(rows: Sequence[Row]) -> list[str]:
    """Sources in which a larger job always has a larger model: three or more sizes of both."""
    found = []
    for source in dict.fromkeys(row.source for row in rows):
        sizes: dict[int, set[int]] = {}
        for row in rows:
            if row.source == source and row.machine and row.network:
                sizes.setdefault(row.machine.devices, set()).add(row.network.parameters)
        ordered = [sizes[devices] for devices in sorted(sizes)]
        if len(ordered) >= 3 and all(max(low) < min(high) for low, high in pairwise(ordered)):
            found.append(source)
    return found


def counter_signals(given: Inputs, plan: Plan, step: StepTime) -> list[str]:
    """Reasons to measure before trusting the choice, as short sentences."""
    return [text for hit, text in (*_of_the_job(given), *_of_the_plan(given, plan, step)) if hit]


def _of_the_job(given: Inputs) -> list[tuple[bool, str]]:
    job, network = given.job, given.job.network
    heads = {kind.head_dim for kind in network.kinds}
    bases = (given.fit.time_of(given.machine.device.name), given.fit.memory_of(given.machine.device.name))
    uncounted = [basis.kind for basis in bases if basis.tag == "assumed"]
    return [
        (len(network.kinds) == 1 and job.devices <= job.node, "equal layers in one node: plain data parallelism is rarely beaten by much"),
        (job.seq_len >= LONG_SEQUENCE, f"sequences of {job.seq_len} tokens: packed documents make attention depend on the data"),
        (any(dim % 8 for dim in heads), "a head's width is no multiple of 8: attention leaves the tensor cores"),
        (any(dim % ALIGNED_HEAD for dim in heads), f"a head's width is no multiple of {ALIGNED_HEAD}"),
        (network.ends.vocab % ALIGNED_VOCAB != 0, f"the vocabulary is no multiple of {ALIGNED_VOCAB}: pad it"),
        (given.machine.slowest > 1, "one device is slower than the others: every plan waits for it"),
        (any(kind.experts for kind in network.kinds), "experts: tokens are taken as spread evenly, which routers do not promise"),
        (bool(uncounted), f"{' and '.join(uncounted)} not calibrated on this machine"),
        *((bool(basis.doubt), basis.doubt) for basis in bases),
        (
            given.job.devices > FAR * (given.fit.largest or SHIPPED_LARGEST),
            f"{given.job.devices} devices: more than {FAR} times any run behind",
        ),
        (given.machine.device.name == "h100-500w", "a power-capped device: its clock depends on what runs"),
    ]


def _of_the_plan(given: Inputs, plan: Plan, step: StepTime) -> list[tuple[bool, str]]:
    m, p = step.microbatches, plan.pp
    return [
        (p > 1 and m < 2 * p, f"{m} microbatches on {p} stages: the pipeline waits for {step.bubble:.0%} of the step"),
        (
            plan.zero_stage == 3 and p == 1 and m > 1 and plan.reshard_after_forward,
            f"weights are gathered anew for each of {m} microbatches",
        ),
        (plan.cp > 1, "context parallelism: no measured run with it on more than one kind of device is behind the model"),
        (plan.schedule == "zero-bubble", "zero-bubble schedules: no measured run is behind the model"),
    ]
