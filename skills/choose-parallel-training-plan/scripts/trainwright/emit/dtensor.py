# emit/dtensor.py without its comments
from __future__ import annotations

from typing import Any

from trainwright.emit.dtensor_code import CODE
from trainwright.emit.literals import constants
from trainwright.emit.planned import Planned, never, refuse, unread
from trainwright.model import ModelSpec
from trainwright.parallel import Plan
from trainwright.parts import Mlp

NAME = "DTensor"
VERSION = "torch 2.6 to 2.13: DeviceMesh, DTensor, FSDP2, torch.distributed.pipelining"
_IMPORTS = """
from functools import partial

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
"""


def write(job: Planned) -> str:
    job = job.normal()
    _expressible(job)
    values = "\n".join(f"{name} = {value!r}" for name, value in _constants(job).items())
    head = f'"""{VERSION}.\n\n{job.plan.name}: {job.plan.world_size} ranks."""\n'
    return f"{head}{_IMPORTS}\n{values}\n\n{CODE}"


def _constants(job: Planned) -> dict[str, Any]:
    plan = job.plan
    return {
        "PP": plan.pp,
        "DP_REPLICATE": plan.dp_replicate,
        "DP_SHARD": plan.dp_shard,
        "CP": plan.cp,
        "TP": plan.tp,
        "SEQUENCE_PARALLEL": plan.sequence_parallel,
        "FULLY_SHARDED": plan.zero_stage == 3,
        "RESHARD_AFTER_FORWARD": plan.reshard_after_forward,
        "SCHEDULE": plan.schedule,
        "LAYERS": job.layers,
        "LAYER_SPLIT": plan.layer_split,
        "GLOBAL_BATCH": job.global_batch,
        "MICRO_BATCH": plan.micro_batch,
        "MICROBATCHES": job.microbatches,
        "SEQ_LEN": job.seq_len,
        "RECOMPUTE": plan.recompute,
        "ACTIVATION_BUDGET": plan.activation_budget,
        "PRECISION": plan.precision,
        "GRADIENT_BYTES": plan.gradient_bytes,
        "COMPILED": plan.compiled,
        "COMPILED_LOSS": plan.loss == "compiled",
    }


def _expressible(job: Planned) -> None:
    plan = job.plan
    alone = plan.tp == plan.cp == plan.pp == 1
    problems = [
        (plan.ep > 1, "expert parallelism (a model's own code)"),
        (plan.zero_stage in (1, 2), f"zero_stage {plan.zero_stage}"),
        (plan.zero_stage == 0 and plan.dp > 1 and not alone, "copies that are not sharded beside another axis"),
        (plan.zero_stage == 0 and plan.cp > 1, "context parallelism without sharded weights"),
        (plan.zero_stage == 3 and plan.dp_shard * plan.cp == 1, "zero_stage 3 with nothing to shard over"),
        (plan.zero_stage == 3 and plan.dp_replicate > 1 and plan.cp > 1, "copies beside context parallelism"),
        (plan.tp > 1 and plan.cp > 1, "tp beside cp (attention of both has to be written for the model)"),
        (plan.schedule == "zero-bubble", "the schedule zero-bubble of one chunk a stage"),
        (plan.recompute == "selective", "recompute of attention scores alone"),
        (plan.recompute == "budget" and not plan.compiled, "a budget of activations without compiled layers"),
        (plan.loss == "chunked", "a loss in chunks"),
        (plan.offload != "none", "offloaded optimizer states alone"),
        (plan.precision in ("fp8", "fp16"), plan.precision),
        (plan.zero_stage == 0 and plan.precision != "fp32" and plan.gradient_bytes == 2, "gradients reduced in 16 bits without sharding"),
        (plan.precision == "fp32" and plan.gradient_bytes == 2, "gradients of 16 bits in fp32"),
        (not plan.flash_attention, "attention that is not fused"),
        (plan.async_tp, "asynchronous tp"),
        (plan.context == "ulysses", "context parallelism by heads (ulysses)"),
        (not plan.overlap_gradients, "gradients reduced after the backward"),
        (plan.tp > 1 and job.model is not None and not _like_llama(job.model), "tp of a model without the module names of Llama"),
        *never(plan),
    ]
    refuse(NAME, problems)


def _like_llama(model: ModelSpec) -> bool:
    return all(isinstance(b.mlp, Mlp) and b.mlp.gated and b.attention.latent is None and b.norm.kind == "rms" for b in model.blocks)


def read(text: str) -> Planned:
    try:
        value = constants(text)
        plan = Plan(
            dp_replicate=value["DP_REPLICATE"],
            dp_shard=value["DP_SHARD"],
            tp=value["TP"],
            sequence_parallel=value["SEQUENCE_PARALLEL"],
            pp=value["PP"],
            cp=value["CP"],
            virtual_stages=len(value["LAYER_SPLIT"]) // value["PP"] if value["LAYER_SPLIT"] else 1,
            micro_batch=value["MICRO_BATCH"],
            schedule=value["SCHEDULE"],
            recompute=value["RECOMPUTE"],
            activation_budget=value["ACTIVATION_BUDGET"],
            zero_stage=3 if value["FULLY_SHARDED"] else 0,
            reshard_after_forward=value["RESHARD_AFTER_FORWARD"],
            loss="compiled" if value["COMPILED_LOSS"] else "eager",
            layer_split=value["LAYER_SPLIT"],
            precision=value["PRECISION"],
            gradient_bytes=value["GRADIENT_BYTES"],
            compiled=value["COMPILED"],
        )
        return Planned(plan, value["GLOBAL_BATCH"], value["SEQ_LEN"], value["LAYERS"])
    except (KeyError, TypeError, ValueError, SyntaxError, RecursionError) as problem:
        raise unread(NAME, f"{type(problem).__name__}: {problem}") from None
