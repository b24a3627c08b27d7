"""A plan as a DeepSpeed JSON, and such a file read back. Keys: deepspeed 0.19.8 (runtime/config.py, runtime/zero/config.py).

train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x world / (tp x sequence parallel).
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from trainwright.document import parse
from trainwright.emit.planned import Planned, never, refuse, unread
from trainwright.model import ModelSpec
from trainwright.parallel import Plan

NAME = "DeepSpeed"
VERSION = "deepspeed 0.19"
_NOTE = "x_plan"  # DeepSpeed passes over keys that it does not know: what only the script and the launcher decide is said under this one


def write(job: Planned) -> str:
    """The JSON text; raises NotExpressibleError."""
    job = job.normal()
    _expressible(job)
    plan = job.plan
    value: dict[str, Any] = {
        _NOTE: {"written_for": VERSION, "world_size": plan.world_size, "seq_len": job.seq_len, "layers": job.layers},
        "train_batch_size": job.global_batch,
        "train_micro_batch_size_per_gpu": plan.micro_batch,
        "gradient_accumulation_steps": job.microbatches,
        "zero_optimization": _zero(plan),
        "bf16": {"enabled": plan.precision == "bf16"},
        "fp16": {"enabled": plan.precision == "fp16"},
    }
    if plan.zero_stage == 1:
        value["data_types"] = {"grad_accum_dtype": _accumulated(plan)}
    if plan.tp > 1:
        value["tensor_parallel"] = {"autotp_size": plan.tp}
    if plan.cp > 1:
        value["sequence_parallel_size"] = plan.cp
    if plan.recompute == "full":  # read by deepspeed.checkpointing, which the script calls
        value["activation_checkpointing"] = {"partition_activations": False, "number_checkpoints": job.layers}
    return json.dumps(value, indent=2) + "\n"


def _zero(plan: Plan) -> dict[str, Any]:
    found: dict[str, Any] = {"stage": plan.zero_stage}
    if plan.zero_stage:
        found |= {"overlap_comm": plan.overlap_gradients, "contiguous_gradients": True, "reduce_scatter": True}
    if plan.offload == "optimizer":
        found["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if plan.zero_stage == 3 and plan.dp_replicate > 1:
        found["mics_shard_size"] = plan.dp_shard
    return found


def _accumulated(plan: Plan) -> str:
    if plan.gradient_bytes == 4:
        return "fp32"
    return "bf16" if plan.precision == "bf16" else "fp16"


def _reduced(plan: Plan) -> int | None:
    """Bytes in which gradients are reduced where no key decides it; None: one does."""
    if plan.precision == "fp32":
        return 4
    return None if plan.zero_stage == 1 and plan.precision == "bf16" and plan.offload == "none" else 2


def adapt(plan: Plan, model: ModelSpec | None) -> Plan:
    """Gradients in the only type that there is, no sequence cut by AutoTP, and contexts cut by heads."""
    return replace(plan, sequence_parallel=False, gradient_bytes=_reduced(plan) or plan.gradient_bytes, context="ulysses")


def _expressible(job: Planned) -> None:
    plan = job.plan
    reduced = _reduced(plan)
    problems = [
        (plan.pp > 1, "a pipeline (PipelineModule builds it in the script)"),
        (plan.ep > 1, "expert parallelism (the script's layers decide)"),
        (plan.zero_stage in (1, 2) and plan.dp_replicate > 1, f"copies beside zero_stage {plan.zero_stage}"),
        (plan.zero_stage == 3 and plan.tp > 1, "tp (AutoTP) with zero_stage 3"),
        (plan.zero_stage == 3 and not plan.reshard_after_forward, "weights kept between forward and backward"),
        (plan.tp > 1 and plan.sequence_parallel, "sequence_parallel (AutoTP knows none)"),
        (plan.tp > 1 and plan.cp > 1, "tp beside cp"),
        (plan.async_tp, "asynchronous tp"),
        (plan.cp > 1 and plan.context == "ring", "context parallelism by ring"),
        (plan.recompute not in ("none", "full"), f"recompute {plan.recompute}"),
        (plan.loss != "eager", f"a {plan.loss} loss (the script's own)"),
        (plan.compiled, "compiled layers (engine.compile() in the script)"),
        (plan.precision == "fp8", "fp8"),
        (plan.offload != "none" and plan.zero_stage == 0, "offloaded optimizer states without ZeRO"),
        (
            reduced is not None and plan.gradient_bytes != reduced,
            f"gradients of {8 * plan.gradient_bytes} bits at this stage and precision: gradient_bytes={reduced}",
        ),
        (not plan.flash_attention, "attention that is not fused"),
        (plan.zero_stage == 0 and not plan.overlap_gradients, "gradients reduced after the backward without ZeRO"),
        *never(plan),
    ]
    refuse(NAME, problems)


def read(text: str) -> Planned:
    """The job that `write` wrote; raises UserError for other text."""
    value = parse(text, "deepspeed.json", "json").value
    try:
        note = value[_NOTE]
        return Planned(_plan(value, int(note["world_size"])), value["train_batch_size"], note["seq_len"], note["layers"])
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as problem:
        raise unread(NAME, f"{type(problem).__name__}: {problem}") from None


def _plan(value: dict[str, Any], world: int) -> Plan:
    zero, tp, cp = (
        value["zero_optimization"],
        value.get("tensor_parallel", {}).get("autotp_size", 1),
        value.get("sequence_parallel_size", 1),
    )
    stage, dp = zero["stage"], world // (tp * cp)
    shard = zero.get("mics_shard_size", dp) if stage else 1
    precision = "bf16" if value["bf16"]["enabled"] else "fp16" if value["fp16"]["enabled"] else "fp32"
    wide = precision == "fp32" or value.get("data_types", {}).get("grad_accum_dtype") == "fp32"
    return Plan(
        dp_replicate=dp // shard,
        dp_shard=shard,
        tp=tp,
        cp=cp,
        micro_batch=value["train_micro_batch_size_per_gpu"],
        recompute="full" if "activation_checkpointing" in value else "none",
        zero_stage=stage,
        offload="optimizer" if "offload_optimizer" in zero else "none",
        precision=precision,  # type: ignore[arg-type]
        gradient_bytes=4 if wide else 2,
        overlap_gradients=zero.get("overlap_comm", True),
        context="ulysses" if cp > 1 else "ring",
    )
