# helpers/trainwright/check/rules/accelerate_parallel.py without its comments
from __future__ import annotations

from collections.abc import Iterator

from trainwright.check.launcher import product, stops
from trainwright.check.rules.accelerate_deepspeed import stage_of
from trainwright.check.rules.accelerate_launch import hit, set_to, stopped
from trainwright.check.subject import AccelerateConfig
from trainwright.report import Severity
from trainwright.rules import Hit, rule

_STOPS = ("product", "negative", "size", "cp_and_sp", "tp_and_ddp", "comm", "backend", "attention")


def axes(config: AccelerateConfig) -> dict[str, int]:
    """The sizes by axis where a parallelism_config is used and the plugin takes each of them, be their product right or not; else none."""
    sizes = config.launch.sizes if config.kind in ("fsdp", "deepspeed", "multi_gpu", "megatron") else None
    return sizes if sizes and not any(stop.kind in _STOPS[1:] for stop in stops(config.launch)) else {}


@rule(
    "ACC023",
    Severity.ERROR,
    AccelerateConfig,
    fails_at="plugin",
    checked="run",
    source="accelerate-1.15.0-parallelism",
    covers=("PAR-PRODUCT", "PAR-NEG", "PAR-CP-SP", "PAR-TP-DDP", "PAR-CP-COMM", "PAR-CP-BACKEND", "PAR-SP-ATTN"),
)
def axes_the_plugin_refuses(config: AccelerateConfig) -> Iterator[Hit]:
    """Sizes or choices of parallelism_config at which ParallelismConfig stops."""
    yield from stopped(config, *_STOPS)


@rule(
    "ACC024",
    Severity.ERROR,
    AccelerateConfig,
    fails_at="first step",
    checked="run",
    source="accelerate-1.15.0-parallelism",
    covers=("PAR-FSDP1", "PAR-NOSHARD", "PAR-CP-NOFSDP", "PAR-CP-1.12", "PAR-SP-DSVER", "PAR-SP-HEADS", "DS-SP-STAGE0"),
)
def axes_the_job_cannot_run(config: AccelerateConfig) -> Iterator[Hit]:
    """A parallelism_config that the launcher accepts and Accelerator() refuses: it does not go with this kind of job."""
    sizes = axes(config)
    if not sizes:
        return
    total = product(sizes)
    if config.kind == "fsdp" and config.file.version == 1 and total > 1:
        yield hit(config, "parallelism_config_dp_shard_size", "needs FSDP2, and fsdp_version is 1", fix=set_to(config, "fsdp_version", 2))
    elif config.kind == "fsdp" and 1 < total == config.whole("num_processes") and sizes["dp_shard"] == 1 and sizes["cp"] == 1:
        message = "and cp_size are both 1: FSDP has no axis to shard over"
        yield hit(config, "parallelism_config_dp_shard_size", message, fix=set_to(config, "parallelism_config_dp_shard_size", 2))
    elif config.kind == "multi_gpu" and sizes["cp"] > 1:
        fix = set_to(config, "distributed_type", "FSDP", note="with fsdp_version 2")
        yield hit(config, "parallelism_config_cp_size", "above 1 needs FSDP2", fix=fix)
    if sizes["cp"] > 1 and config.context.versions.get("accelerate", "").startswith("1.12"):
        yield hit(config, "parallelism_config_cp_size", "above 1 is broken in Accelerate 1.12: take 1.11, or 1.13 and later")
    yield from _ulysses(config, sizes["sp"])


def _ulysses(config: AccelerateConfig, size: int) -> Iterator[Hit]:
    if size <= 1 or config.kind != "deepspeed":
        return
    name, context = "parallelism_config_sp_size", config.context
    if context.older("deepspeed", "0.18.2"):
        yield hit(config, name, f"above 1 needs DeepSpeed 0.18.2, and the job has {context.versions['deepspeed']}")
    if stage_of(config) == 0:
        yield hit(config, "zero_stage", f"0 with sp_size {size}: the engine stops", fix=set_to(config, "zero_stage", 1))
    heads = {block.attention.num_heads for block in context.model.blocks if block.attention} if context.model else set()
    for count in sorted(count for count in heads if count % size):
        yield hit(config, name, f"{size} does not divide the model's {count} attention heads")


@rule(
    "ACC025",
    Severity.WARNING,
    AccelerateConfig,
    fails_at="never",
    checked="run",
    source="accelerate-1.15.0-accelerator",
    covers=("PAR-CP-DS", "PAR-SP-FSDP", "PAR-SP-SEQLEN"),
)
def axis_that_does_nothing(config: AccelerateConfig) -> Iterator[Hit]:
    """An axis that is accepted and never set up: context parallelism under DeepSpeed, Ulysses under anything else."""
    sizes = axes(config)
    if not sizes:
        return
    if sizes["cp"] > 1 and config.kind == "deepspeed":
        yield hit(config, "parallelism_config_cp_size", "above 1 under DEEPSPEED shards nothing: sp_size is DeepSpeed's")
    if sizes["sp"] > 1 and config.kind != "deepspeed":
        yield hit(config, "parallelism_config_sp_size", "above 1 is set up under DEEPSPEED alone: no sequence is split")
    variable = str(config.value("parallelism_config_sp_seq_length_is_variable")).lower() == "true"
    if sizes["sp"] > 1 and not variable and config.value("parallelism_config_sp_seq_length") is None:
        yield hit(config, "parallelism_config_sp_seq_length", "is missing, and the length is said to be fixed")
