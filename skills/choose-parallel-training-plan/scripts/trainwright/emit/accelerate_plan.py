# emit/accelerate_plan.py without its comments
from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from trainwright.document import parse
from trainwright.emit.planned import Planned, never, refuse, unread
from trainwright.model import ModelSpec
from trainwright.parallel import Plan, Precision

NAME = "Accelerate"
VERSION = "accelerate 1.15 with FSDP2 and ParallelismConfig"
_WORDS: dict[Precision, str] = {"bf16": "bf16", "fp16": "fp16", "fp32": "'no'"}
_SCRIPT = "# The training script sets:"
_PREFIX = "parallelism_config_"


def write(job: Planned) -> str:
    job = job.normal()
    _expressible(job)
    plan = job.plan
    sharded = plan.zero_stage == 3
    lines = [
        f"# {VERSION}: {plan.name}",
        f"{_SCRIPT} micro_batch={plan.micro_batch} gradient_accumulation_steps={job.microbatches} global_batch={job.global_batch} "
        f"seq_len={job.seq_len} layers={job.layers}",
        "compute_environment: LOCAL_MACHINE",
        f"distributed_type: {'FSDP' if sharded else 'MULTI_GPU' if plan.dp > 1 else QUOTED_NO}",
        f"num_processes: {plan.world_size}  # all ranks of the job, not those of one machine",
        f"mixed_precision: {_WORDS[plan.precision]}",
        *(_fsdp(job) if sharded else []),
        *(_axes(plan) if sharded else []),
        *(["dynamo_config:", "  dynamo_backend: INDUCTOR"] if plan.compiled else []),
    ]
    return "".join(f"{line}\n" for line in lines)


def adapt(plan: Plan, model: ModelSpec | None) -> Plan:
    return replace(plan, sequence_parallel=False, gradient_bytes=_reduced(plan), compiled=plan.loss == "compiled")


def _reduced(plan: Plan) -> int:
    return 2 if plan.zero_stage == 3 and plan.precision != "fp32" else 4


QUOTED_NO = "'NO'"


def _expressible(job: Planned) -> None:
    plan = job.plan
    reduced = _reduced(plan)
    problems = [
        (plan.pp > 1, "a pipeline"),
        (plan.ep > 1, "expert parallelism"),
        (plan.zero_stage in (1, 2), f"zero_stage {plan.zero_stage} without DeepSpeed"),
        (plan.zero_stage == 0 and plan.tp * plan.cp > 1, "tp or cp without sharded weights"),
        (plan.zero_stage == 3 and plan.dp_shard * plan.cp == 1, "zero_stage 3 with nothing to shard over"),
        (plan.dp_replicate > 1 and plan.dp_shard == 1 and plan.tp * plan.cp > 1, "copies beside tp or cp with dp_shard 1"),
        (plan.tp > 1 and plan.sequence_parallel, "sequence_parallel (a model's tp_plan decides)"),
        (plan.async_tp, "asynchronous tp"),
        (plan.context == "ulysses", "context parallelism by heads without DeepSpeed"),
        (plan.recompute not in ("none", "full"), f"recompute {plan.recompute}"),
        (plan.recompute == "full" and plan.zero_stage != 3, "recompute without FSDP (the script's own)"),
        ((plan.loss == "compiled") != plan.compiled or plan.loss == "chunked", f"a loss that is {plan.loss} in a model that is not so"),
        (plan.precision == "fp8", "fp8 (its recipe is not part of a plan)"),
        (plan.offload != "none", "offloaded optimizer states alone (FSDP2 offloads weights with them)"),
        (plan.gradient_bytes != reduced, _reduction(plan, reduced)),
        (not plan.flash_attention, "attention that is not fused"),
        (not plan.overlap_gradients, "gradients reduced after the backward"),
        *never(plan),
    ]
    refuse(NAME, problems)


def _reduction(plan: Plan, reduced: int) -> str:
    bits = f"gradients reduced in {8 * plan.gradient_bytes} bits"
    return f"{bits} ({8 * reduced} are, in {plan.precision}: gradient_bytes={reduced})"


def _fsdp(job: Planned) -> list[str]:
    plan = job.plan
    lines = ["fsdp_config:", "  fsdp_version: 2", f"  fsdp_reshard_after_forward: {str(plan.reshard_after_forward).lower()}"]
    lines.append("  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP")
    if job.model is not None:
        lines.append(f"  fsdp_transformer_layer_cls_to_wrap: '{','.join(job.model.block_classes)}'")
    lines.append(f"  fsdp_activation_checkpointing: {str(plan.recompute == 'full').lower()}")
    return [*lines, "  fsdp_state_dict_type: SHARDED_STATE_DICT"]


def _axes(plan: Plan) -> list[str]:
    sizes = {"dp_replicate_size": plan.dp_replicate, "dp_shard_size": plan.dp_shard, "tp_size": plan.tp, "cp_size": plan.cp}
    lines = ["parallelism_config:", *(f"  {_PREFIX}{name}: {size}" for name, size in sizes.items())]
    return [*lines, *([f"  {_PREFIX}cp_comm_strategy: alltoall"] if plan.cp > 1 else [])]


def read(text: str) -> Planned:
    value = parse(text, "accelerate.yaml", "yaml").value
    said = dict(re.findall(r"(\w+)=(\d+)", next((line for line in text.splitlines() if line.startswith(_SCRIPT)), "")))
    try:
        plan = _plan(value, int(said["micro_batch"]))
        return Planned(plan, int(said["global_batch"]), int(said["seq_len"]), int(said["layers"]))
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise unread(NAME, f"{type(problem).__name__}: {problem}") from None


def _plan(value: dict[str, Any], micro_batch: int) -> Plan:
    fsdp, axes = value.get("fsdp_config"), value.get("parallelism_config", {})
    precision: Precision = {"no": "fp32", False: "fp32"}.get(value["mixed_precision"], value["mixed_precision"])
    compiled = "dynamo_config" in value
    return Plan(
        dp_replicate=axes[f"{_PREFIX}dp_replicate_size"] if fsdp else value["num_processes"],
        dp_shard=axes.get(f"{_PREFIX}dp_shard_size", 1),
        tp=axes.get(f"{_PREFIX}tp_size", 1),
        cp=axes.get(f"{_PREFIX}cp_size", 1),
        micro_batch=micro_batch,
        recompute="full" if fsdp and fsdp["fsdp_activation_checkpointing"] else "none",
        zero_stage=3 if fsdp else 0,
        reshard_after_forward=fsdp["fsdp_reshard_after_forward"] if fsdp else True,
        loss="compiled" if compiled else "eager",
        precision=precision,
        gradient_bytes=2 if fsdp and precision != "fp32" else 4,
        compiled=compiled,
    )
