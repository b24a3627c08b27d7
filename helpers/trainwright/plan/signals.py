"""What holds of a plan whatever its speed, and what speaks against trusting its predicted speed."""

from __future__ import annotations

from trainwright.cost.step import StepTime
from trainwright.parallel import Plan
from trainwright.plan.inputs import Inputs

LONG_SEQUENCE = 32_768  # tokens from which packed documents change what attention costs
ALIGNED_HEAD, ALIGNED_VOCAB = 64, 128


def invariants(given: Inputs, plan: Plan, split: tuple[int, ...]) -> list[dict[str, object]]:
    """Each with whether it holds: a plan that breaks one trains something else, or does not start."""
    job = given.job
    at_once = plan.dp * plan.micro_batch
    return [
        {"name": "world size is the product of the axes", "holds": plan.world_size == job.devices},
        {"name": "the global batch is that of the job", "holds": job.global_batch % at_once == 0},
        {"name": "each layer is on exactly one stage, in order", "holds": sum(split) == job.network.num_layers},
        {"name": "tensor parallelism divides the heads", "holds": all(kind.heads % plan.tp == 0 for kind in job.network.kinds)},
        {"name": "ranks of a tensor-parallel group share a node", "holds": job.node % plan.tp == 0},
    ]


def counter_signals(given: Inputs, plan: Plan, step: StepTime) -> list[str]:
    """Reasons to measure before trusting the choice, as short sentences."""
    return [text for hit, text in (*_of_the_job(given), *_of_the_plan(given, plan, step)) if hit]


def _of_the_job(given: Inputs) -> list[tuple[bool, str]]:
    job, network = given.job, given.job.network
    heads = {kind.head_dim for kind in network.kinds}
    uncounted = [name for name, fit in (("step time", given.fit.time_rows), ("memory", given.fit.memory_rows)) if not fit]
    return [
        (len(network.kinds) == 1 and job.devices <= job.node, "equal layers in one node: plain data parallelism is rarely beaten by much"),
        (job.seq_len >= LONG_SEQUENCE, f"sequences of {job.seq_len} tokens: packed documents make attention depend on the data"),
        (any(dim % 8 for dim in heads), "a head's width is no multiple of 8: attention leaves the tensor cores"),
        (any(dim % ALIGNED_HEAD for dim in heads), f"a head's width is no multiple of {ALIGNED_HEAD}"),
        (network.ends.vocab % ALIGNED_VOCAB != 0, f"the vocabulary is no multiple of {ALIGNED_VOCAB}: pad it"),
        (given.machine.slowest > 1, "one device is slower than the others: every plan waits for it"),
        (any(kind.experts for kind in network.kinds), "experts: tokens are taken as spread evenly, which routers do not promise"),
        (bool(uncounted), f"{' and '.join(uncounted)} not calibrated on this machine"),
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
