# helpers/trainwright/check/rules/accelerate_trainer.py without its comments
from __future__ import annotations

import re
from collections.abc import Iterator

from trainwright.check.launcher import plugin_config
from trainwright.check.rules.accelerate_deepspeed import names_file
from trainwright.check.rules.accelerate_launch import hit, set_to
from trainwright.check.subject import AccelerateConfig
from trainwright.emit.accelerate_file import shown
from trainwright.report import Severity
from trainwright.rules import Hit, rule

_PAIRS = (("gradient_accumulation_steps", "gradient_accumulation_steps"), ("gradient_clipping", "max_grad_norm"))
_BELOW_8_9 = re.compile(r"(?i)(?:^|[^a-z0-9])(v100|p100|t4|a100|a10g?|a30|a40|a5000|a6000|rtx-?[23]0\d0|quadro|gaudi1?)(?:$|[^0-9])")


@rule(
    "ACC038",
    Severity.ERROR,
    AccelerateConfig,
    fails_at="engine start",
    checked="source",
    source="transformers-5.23.0-deepspeed",
    covers=("ADS-TRAINER-MISMATCH",),
)
def number_the_trainer_has_otherwise(config: AccelerateConfig) -> Iterator[Hit]:
    """A number in deepspeed_config differs from the Trainer's argument for the same thing."""
    given = config.context.training_args
    if config.kind != "deepspeed" or names_file(config) or not given or config.context.trainer is False:
        return
    made = plugin_config(config.launch)
    for argument, name in _PAIRS:
        value = made.get(argument)
        if name in given and config.written(argument) and type(value) in (int, float) and value != given[name]:
            message = f"{shown(config.value(argument))}, and {name} is {shown(given[name])}: the Trainer stops"
            yield hit(config, argument, message, fix=set_to(config, argument, given[name]))


@rule(
    "ACC039",
    Severity.INFO,
    AccelerateConfig,
    fails_at="never",
    checked="run",
    source="accelerate-1.15.0-fsdp-plugin",
    covers=("FSDP-TO-FSDP2-HYBRID",),
)
def conversion_would_lose_the_strategy(config: AccelerateConfig) -> Iterator[Hit]:
    """accelerate to-fsdp2 would make plain full sharding of this file's strategy, without a word."""
    if config.kind != "fsdp" or config.file.version != 1:
        return
    strategy = config.file.value("fsdp_sharding_strategy")
    if not isinstance(strategy, str) or not strategy.startswith(("HYBRID", "NO_SHARD")):
        return
    asked = "to-fsdp2" in (config.context.call or "") or "to-fsdp2" in config.context.cli
    lost = "its replication" if strategy.startswith("HYBRID") else "that nothing is sharded"
    message = f"{strategy}: `accelerate to-fsdp2` loses {lost}"
    yield hit(config, "fsdp_sharding_strategy", message, severity=Severity.WARNING if asked else None)


@rule(
    "ACC040",
    Severity.WARNING,
    AccelerateConfig,
    fails_at="never",
    checked="source",
    source="accelerate-1.15.0-state",
    covers=("FP8-HW",),
)
def hardware_without_fp8(config: AccelerateConfig) -> Iterator[Hit]:
    """mixed_precision fp8 on a device that has none: Accelerate warns and trains in fp16, or bf16 on the first Gaudi."""
    name = config.context.hardware or ""
    if str(config.value("mixed_precision")).lower() == "fp8" and config.kind != "tpu" and (match := _BELOW_8_9.search(name)):
        becomes = "bf16" if match[1].lower().startswith("gaudi") else "fp16"
        message = f"fp8 on {name}, which has no FP8: {becomes} is used"
        yield hit(config, "mixed_precision", message, fix=set_to(config, "mixed_precision", "bf16"))


@rule(
    "ACC041",
    Severity.ERROR,
    AccelerateConfig,
    fails_at="first step",
    checked="source",
    source="accelerate-1.15.0-accelerator",
    covers=("FSDP2-TIED",),
)
def tied_model_with_two_weights(config: AccelerateConfig) -> Iterator[Hit]:
    """FSDP2 and a model that is said to tie its embeddings, while its checkpoint holds the head apart."""
    if config.kind == "fsdp" and config.file.version == 2 and config.context.untied_head:
        message = f"2, and {config.context.untied_head} stands apart in a checkpoint whose config ties it: Accelerate stops"
        yield hit(config, "fsdp_version", message)
