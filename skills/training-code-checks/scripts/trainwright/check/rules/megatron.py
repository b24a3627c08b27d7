# check/rules/megatron.py without its comments
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainwright.check.subject import Megatron
from trainwright.report import Fix, Severity
from trainwright.rules import Hit, rule

_TENSOR, _PIPELINE, _CONTEXT = "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"


def whole(config: Megatron, name: str) -> int | None:
    value = config.values.get(name)
    text = str(value)
    return int(text) if not isinstance(value, bool) and text.isdecimal() and len(text) < 16 else None


def on(config: Megatron, name: str) -> bool:
    value = config.values.get(name)
    return value is True or str(value).lower() == "true"


def size(config: Megatron, name: str) -> int:
    return whole(config, name) or 1


def hit(config: Megatron, name: str, message: str, **more: Any) -> Hit:
    dashed = name.replace("_", "-")
    spelled = name if config.document is None or config.document.has(name) or not config.document.has(dashed) else dashed
    flag = spelled if config.document else f"--{dashed}"
    return Hit(f"{flag} {message}", config.at(spelled), flag, **more)


@rule(
    "MEG001",
    Severity.ERROR,
    Megatron,
    fails_at="engine start",
    checked="source",
    source="megatron-lm-arguments",
    covers=("MEG-EP", "MEG-SEQ-CP", "MEG-DIV", "MEG-FP16-BF16", "MEG-RECOMPUTE"),
)
def megatron_arguments_refused(config: Megatron) -> Iterator[Hit]:
    """Arguments that Megatron-LM's own checks refuse together, some of them with a bare assertion.

    Tensor x pipeline x context sizes divide the ranks; a sequence has to divide by twice the context size, and by the tensor size under
    sequence parallelism; heads and layers divide by tensor and pipeline sizes; experts are needed for expert parallelism, and divide
    by its size; one of fp16 and bf16; selective recomputation takes no method. `--world-size` gives the ranks.

    Bad `megatron.yaml`:

        tensor_model_parallel_size: 2
        context_parallel_size: 4
        seq_length: 4100

    Good `megatron.yaml`:

        tensor_model_parallel_size: 2
        context_parallel_size: 4
        seq_length: 4096
    """
    yield from _ranks(config)
    yield from _sequence(config)
    yield from _network(config)
    yield from _experts(config)
    yield from _exclusive(config)


def _ranks(config: Megatron) -> Iterator[Hit]:
    axes = size(config, _TENSOR) * size(config, _PIPELINE) * size(config, _CONTEXT)
    world, micro, batch = config.context.world_size, whole(config, "micro_batch_size"), whole(config, "global_batch_size")
    if world is None:
        return
    if world % axes:
        yield hit(config, _TENSOR, f"x pipeline x context = {axes}, which does not divide {world} ranks")
    elif micro and batch and batch % (micro * (world // axes)):
        replicas = world // axes
        message = f"{batch} is no multiple of micro batch {micro} x {replicas} replicas = {micro * replicas}"
        yield hit(config, "global_batch_size", message, fix=Fix({"global_batch_size": -(-batch // (micro * replicas)) * micro * replicas}))


def _sequence(config: Megatron) -> Iterator[Hit]:
    length, context, tensor = whole(config, "seq_length"), size(config, _CONTEXT), size(config, _TENSOR)
    if length and context > 1 and length % (2 * context):
        yield hit(config, "seq_length", f"{length} is no multiple of 2 x context_parallel_size = {2 * context}")
    if length and on(config, "sequence_parallel") and tensor > 1 and length % tensor:
        yield hit(config, "seq_length", f"{length} is no multiple of tensor_model_parallel_size {tensor}, which sequence_parallel needs")
    most = whole(config, "max_position_embeddings")
    if length and most and length > most:
        yield hit(config, "seq_length", f"{length} is above max_position_embeddings {most}")


def _network(config: Megatron) -> Iterator[Hit]:
    heads, layers, hidden = whole(config, "num_attention_heads"), whole(config, "num_layers"), whole(config, "hidden_size")
    tensor, pipeline = size(config, _TENSOR), size(config, _PIPELINE)
    apart = ("decoder_first", "decoder_last", "pipeline_model_parallel_layout", "deepspeed", "pp_partition_method")
    uneven = any(name.startswith(apart) for name in config.values)
    if heads and heads % tensor:
        yield hit(config, _TENSOR, f"{tensor} does not divide num_attention_heads {heads}")
    groups = whole(config, "num_query_groups") if on(config, "group_query_attention") else None
    if groups and groups % tensor and tensor % groups:
        yield hit(config, _TENSOR, f"{tensor} and num_query_groups {groups}: neither divides the other")
    if layers and layers % pipeline and not uneven:
        yield hit(config, _PIPELINE, f"{pipeline} does not divide num_layers {layers}")
    if heads and hidden and hidden % heads and whole(config, "kv_channels") is None:
        yield hit(config, "hidden_size", f"{hidden} is no multiple of num_attention_heads {heads}")
    if whole(config, "num_layers_per_virtual_pipeline_stage") and pipeline < 2:
        yield hit(config, "num_layers_per_virtual_pipeline_stage", "needs a pipeline of 2 stages or more")


def _experts(config: Megatron) -> Iterator[Hit]:
    experts, spread = whole(config, "num_experts"), size(config, "expert_model_parallel_size")
    if spread > 1 and not experts:
        yield hit(config, "expert_model_parallel_size", f"{spread} needs num_experts")
    elif experts and experts % spread:
        yield hit(config, "expert_model_parallel_size", f"{spread} does not divide num_experts {experts}")


def _exclusive(config: Megatron) -> Iterator[Hit]:
    if on(config, "fp16") and on(config, "bf16"):
        yield hit(config, "fp16", "together with bf16: one of them", fix=Fix({"fp16": None}))
    granularity, method = config.values.get("recompute_granularity"), config.values.get("recompute_method")
    if granularity == "selective" and method:
        yield hit(config, "recompute_method", f"{method} is not for selective recomputation", fix=Fix({"recompute_method": None}))
    if granularity == "full" and not method:
        yield hit(config, "recompute_granularity", "full needs recompute_method", fix=Fix({"recompute_method": "uniform"}))
    for one, other in (
        ("train_iters", "train_samples"),
        ("lr_warmup_fraction", "lr_warmup_iters"),
        ("lr_warmup_fraction", "lr_warmup_samples"),
    ):
        if whole(config, other) and config.values.get(one) not in (None, False) and whole(config, one) != 0:
            yield hit(config, one, f"together with {other}: one of them")


@rule(
    "MEG002",
    Severity.WARNING,
    Megatron,
    fails_at="never",
    checked="source",
    source="megatron-lm-arguments",
    covers=("MEG-SP-TP1", "MEG-PP-MICRO"),
)
def megatron_argument_without_use(config: Megatron) -> Iterator[Hit]:
    """Arguments of Megatron-LM that have no effect, or that leave most of the machine idle.

    Sequence parallelism is switched off where the tensor size is 1. A pipeline needs several micro batches for each stage: with
    m of them and p stages (p - 1) / (m + p - 1) of the time is idle.

    Bad `megatron.yaml` with `--world-size 8`:

        tensor_model_parallel_size: 1
        pipeline_model_parallel_size: 8
        micro_batch_size: 1
        global_batch_size: 4

    Good `megatron.yaml` with `--world-size 8`:

        tensor_model_parallel_size: 1
        pipeline_model_parallel_size: 8
        micro_batch_size: 1
        global_batch_size: 64
    """
    tensor, stages = size(config, _TENSOR), size(config, _PIPELINE)
    if on(config, "sequence_parallel") and tensor == 1:
        yield hit(config, "sequence_parallel", f"needs {_TENSOR} above 1: it is switched off", fix=Fix({"sequence_parallel": None}))
    world, micro, batch = config.context.world_size, whole(config, "micro_batch_size"), whole(config, "global_batch_size")
    replicas = world // (tensor * stages * size(config, _CONTEXT)) if world else 0
    whole_steps = micro and batch and replicas and batch % (micro * replicas) == 0
    count = batch // (micro * replicas) if whole_steps and batch and micro else 0
    if stages > 1 and 0 < count < stages:
        idle = (stages - 1) / (count + stages - 1)
        message = f"gives {count} micro batches to {stages} stages: {idle:.0%} of the time is idle"
        yield hit(config, "global_batch_size", message, fix=Fix({"global_batch_size": 4 * stages * micro * replicas} if micro else {}))
