# helpers/trainwright/check/rules/accelerate_deepspeed.py without its comments
from __future__ import annotations

from collections.abc import Iterator

from trainwright.check.deepspeed_file import is_on
from trainwright.check.launcher import BESIDE_FILE
from trainwright.check.rules.accelerate_launch import hit, set_to
from trainwright.check.subject import AccelerateConfig
from trainwright.emit.accelerate_file import shown
from trainwright.report import Fix, Severity
from trainwright.rules import Hit, rule


def names_file(config: AccelerateConfig) -> bool:
    return config.kind == "deepspeed" and config.value("deepspeed_config_file") not in (None, "none")


def stage_of(config: AccelerateConfig) -> int | None:
    """The ZeRO stage that runs: the DeepSpeed file's, else zero_stage, else 2; None where it is not known."""
    if config.kind != "deepspeed":
        return None
    if names_file(config):
        return config.deepspeed.stage if config.deepspeed else None
    return 2 if config.value("zero_stage") is None else config.whole("zero_stage")


@rule(
    "ACC016",
    Severity.ERROR,
    AccelerateConfig,
    fails_at="plugin",
    checked="run",
    source="accelerate-1.15.0-deepspeed",
    covers=("ADS-FILE-CONFLICT",),
)
def key_beside_deepspeed_file(config: AccelerateConfig) -> Iterator[Hit]:
    """A key that may not stand beside deepspeed_config_file, even with an equal value or "no"."""
    if not names_file(config):
        return
    beside = [name for name in BESIDE_FILE if name in [field.lower() for field in config.launch.fields]]
    if config.launch.precision_from_file:
        beside.append("mixed_precision")
    for name in beside:
        yield hit(config, name, "may not stand beside deepspeed_config_file: every rank stops", fix=Fix({config.key(name): None}))


@rule(
    "ACC017",
    Severity.WARNING,
    AccelerateConfig,
    fails_at="never",
    checked="run",
    source="accelerate-1.15.0-deepspeed",
    covers=("ADS-FILE-PREC",),
)
def precision_left_to_auto(config: AccelerateConfig) -> Iterator[Hit]:
    """The DeepSpeed file leaves bf16 and fp16 to "auto", and no --mixed_precision fills them: the job trains in fp32."""
    deepspeed = config.deepspeed
    if deepspeed is None or config.value("mixed_precision") != "no" or config.launch.precision_from_file:
        return
    given = config.context.training_args
    autos = [block for block in ("bf16", "fp16") if deepspeed.get(block, "enabled") == "auto"]
    if autos and not any(is_on(deepspeed.values, block) for block in ("bf16", "fp16")) and not (given.get("bf16") or given.get("fp16")):
        message = (
            f'{" and ".join(f"{block}.enabled" for block in autos)} "auto" becomes false without --mixed_precision: the job trains in fp32'
        )
        where, fix = deepspeed.at(autos[0], "enabled"), Fix({f"{autos[0]}.enabled": True}, note="or --mixed_precision on the command line")
        yield Hit(message, where, f"{autos[0]}.enabled", fix)


@rule(
    "ACC018",
    Severity.WARNING,
    AccelerateConfig,
    fails_at="never",
    checked="run",
    source="accelerate-1.15.0-deepspeed",
    covers=("ADS-NVME-PATH", "ADS-Z3INIT-STAGE", "ADS-OFFP-STAGE", "ADS-Z3SAVE-BOOL", "ADS-CLIP-ZERO", "ADS-CLIP-AUTO"),
)
def deepspeed_key_without_effect(config: AccelerateConfig) -> Iterator[Hit]:
    """A key of deepspeed_config that is read, and becomes something else than it says."""
    if config.kind != "deepspeed":
        return
    stage = stage_of(config)
    if config.true("zero3_init_flag") and config.value("zero3_init_flag") is not None and stage is not None and stage < 3:
        fix = set_to(config, "zero3_init_flag", False, safe=True)
        yield hit(config, "zero3_init_flag", f"is set to false under stage {stage}: it is stage 3's", fix=fix)
    if names_file(config):
        return
    yield from _offload(config, stage)
    save = config.value("zero3_save_16bit_model")
    if save is not None and str(save).lower() in ("yes", "on", "1", "y", "t") and stage == 3:
        fix = set_to(config, "zero3_save_16bit_model", True)
        yield hit(config, "zero3_save_16bit_model", f"{shown(save)} is not the word true: it is off", fix=fix)
    yield from _clipping(config)


def _offload(config: AccelerateConfig, stage: int | None) -> Iterator[Hit]:
    for name in ("offload_optimizer", "offload_param"):
        if str(config.value(f"{name}_device")).lower() == "nvme":
            message = 'nvme: its path is never exported, and DeepSpeed swaps to a folder named "none"; name a DeepSpeed file instead'
            yield hit(config, f"{name}_device", message)
    device = str(config.value("offload_param_device")).lower()
    if device in ("cpu", "nvme") and stage is not None and stage < 3:
        fix = set_to(config, "offload_param_device", "none", safe=True, note="or zero_stage 3")
        yield hit(
            config, "offload_param_device", f"{device} is ignored under stage {stage}: parameters are offloaded by stage 3 alone", fix=fix
        )


def _clipping(config: AccelerateConfig) -> Iterator[Hit]:
    clip = config.value("gradient_clipping")
    if isinstance(clip, (int, float)) and not isinstance(clip, bool) and clip == 0:
        if config.context.since("deepspeed", "0.19.4"):
            message = "0 counts as absent: DeepSpeed from 0.19.4 on clips at its default 1.0; only a DeepSpeed file can switch it off"
            yield hit(config, "gradient_clipping", message)
    elif clip is None or str(clip) == "auto":
        message = "is not given: Accelerate's own loop clips at 1.0"
        yield hit(config, "gradient_clipping", message, severity=Severity.INFO, fix=set_to(config, "gradient_clipping", 1.0))


@rule(
    "ACC019",
    Severity.WARNING,
    AccelerateConfig,
    fails_at="end of run",
    checked="source",
    source="accelerate-1.15.0-deepspeed",
    covers=("ADS-Z3-NOSAVE",),
)
def stage3_without_16bit_save(config: AccelerateConfig) -> Iterator[Hit]:
    """zero_stage 3 without zero3_save_16bit_model: no usable weights are saved at the end."""
    if config.kind == "deepspeed" and not names_file(config) and stage_of(config) == 3:
        save = config.value("zero3_save_16bit_model")
        if save is None or str(save).lower() in ("false", "no", "off", "0"):
            fix = set_to(config, "zero3_save_16bit_model", True)
            yield hit(config, "zero3_save_16bit_model", "is not on: under stage 3 no whole model is saved", fix=fix)


@rule(
    "ACC020",
    Severity.ERROR,
    AccelerateConfig,
    fails_at="first step",
    checked="run",
    source="accelerate-1.15.0-accelerator",
    covers=("ADS-GAS-AUTO", "ADS-GAS-OVERRIDE"),
)
def accumulation_of_two_minds(config: AccelerateConfig) -> Iterator[Hit]:
    """deepspeed_config.gradient_accumulation_steps is "auto", or another number than the code asks for."""
    if config.kind != "deepspeed" or names_file(config):
        return
    steps, asked = config.value("gradient_accumulation_steps"), config.context.gradient_accumulation_steps
    if steps is not None and not str(steps).isdecimal():
        fix = set_to(config, "gradient_accumulation_steps", None)
        yield hit(config, "gradient_accumulation_steps", f"{shown(steps)} is no number: Accelerator() stops", fix=fix)
    elif asked is not None and config.whole("gradient_accumulation_steps") not in (None, asked):
        message = f"{steps} stands over the {asked} of Accelerator(gradient_accumulation_steps={asked})"
        yield hit(config, "gradient_accumulation_steps", message, severity=Severity.WARNING, fails_at="never")
