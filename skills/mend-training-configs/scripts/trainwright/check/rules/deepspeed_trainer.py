# helpers/trainwright/check/rules/deepspeed_trainer.py without its comments
from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from trainwright.check.deepspeed_file import is_on
from trainwright.check.facts import SCHEDULER, table
from trainwright.check.rules.deepspeed import hit
from trainwright.check.subject import DeepSpeedConfig
from trainwright.emit.accelerate_file import shown
from trainwright.report import Fix, Severity
from trainwright.rules import Hit, rule

_PAIRS = (
    (("train_micro_batch_size_per_gpu",), "per_device_train_batch_size"),
    (("gradient_accumulation_steps",), "gradient_accumulation_steps"),
    (("gradient_clipping",), "max_grad_norm"),
    (("optimizer", "params", "lr"), "learning_rate"),
    (("optimizer", "params", "eps"), "adam_epsilon"),
    (("optimizer", "params", "weight_decay"), "weight_decay"),
    (("scheduler", "params", "warmup_max_lr"), "learning_rate"),
)
_BUCKETS = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")


@rule(
    "DS024",
    Severity.ERROR,
    DeepSpeedConfig,
    fails_at="engine start",
    checked="source",
    source="transformers-5.23.0-deepspeed",
    covers=("ADS-TRAINER-MISMATCH", "ADS-MP-CLASH"),
)
def number_the_trainer_contradicts(config: DeepSpeedConfig) -> Iterator[Hit]:
    """A number of the DeepSpeed config differs from the Trainer's argument for the same thing, or from the precision asked for."""
    given = config.context.training_args
    clash = _precision(config, given)
    if clash:
        yield clash
    if not given or config.reader == "deepspeed":
        return
    for path, name in _PAIRS:
        value = config.get(*path)
        if name in given and value not in (None, "auto") and value != given[name]:
            message = f"{shown(value)}, and {name} is {shown(given[name])}: the Trainer stops"
            yield hit(config, path, message, fix=Fix({".".join(path): "auto"}))
    yield from _betas(config, given)
    yield from _schedule(config, given)
    yield from _total(config, given)
    for block, names in (("fp16", ("fp16", "fp16_full_eval")), ("bf16", ("bf16", "bf16_full_eval"))):
        value = config.get(block, "enabled")
        known = [given[name] for name in names if name in given]
        if known and isinstance(value, bool) and value != any(known) and not (clash and clash.path.startswith(block)):
            message = f"{shown(value)}, and {names[0]} is {shown(any(known))}: the Trainer stops"
            yield hit(config, (block, "enabled"), message, fix=Fix({f"{block}.enabled": "auto"}))


def _betas(config: DeepSpeedConfig, given: Mapping[str, Any]) -> Iterator[Hit]:
    value, wanted = config.get("optimizer", "params", "betas"), [given.get("adam_beta1"), given.get("adam_beta2")]
    if isinstance(value, list) and None not in wanted and value != wanted:
        message = f"{shown(value)}, and adam_beta1 and adam_beta2 are {shown(wanted)}: the Trainer stops"
        yield hit(config, ("optimizer", "params", "betas"), message, fix=Fix({"optimizer.params.betas": "auto"}))


def _schedule(config: DeepSpeedConfig, given: Mapping[str, Any]) -> Iterator[Hit]:
    """Steps that the Trainer works out: known only where the arguments say them in steps."""
    for key, name in (("warmup_num_steps", "warmup_steps"), ("total_num_steps", "max_steps")):
        value, wanted = config.get("scheduler", "params", key), given.get(name)
        known = type(wanted) is int and (wanted > 0 or (key == "warmup_num_steps" and wanted == 0 and not given.get("warmup_ratio")))
        if type(value) is int and known and value != wanted:
            message = f"{value}, and {name} is {wanted}: the Trainer stops"
            yield hit(config, ("scheduler", "params", key), message, fix=Fix({f"scheduler.params.{key}": "auto"}))


def _total(config: DeepSpeedConfig, given: Mapping[str, Any]) -> Iterator[Hit]:
    total, world = config.get("train_batch_size"), config.world
    micro, steps = given.get("per_device_train_batch_size"), given.get("gradient_accumulation_steps", 1)
    if type(total) is int and type(micro) is int and type(steps) is int and world and total != micro * steps * world:
        message = f"{total}, and the arguments make {micro} x {steps} x {world} ranks = {micro * steps * world}: the Trainer stops"
        yield hit(config, ("train_batch_size",), message, fix=Fix({"train_batch_size": "auto"}))


def _precision(config: DeepSpeedConfig, given: Mapping[str, Any]) -> Hit | None:
    launch = config.launch
    typed = str(launch.arguments["mixed_precision"]).lower() if launch and not launch.precision_from_file else "no"
    for wanted, other in (("bf16", "fp16"), ("fp16", "bf16"), ("fp8", "fp16")):
        asked = typed == wanted or bool(given.get(wanted))
        if asked and is_on(config.values, other) and not is_on(config.values, wanted):
            by = f"--mixed_precision {wanted}" if typed == wanted else f"{wanted} in the arguments"
            return hit(
                config, (other, "enabled"), f"is on, and {by}: Accelerate stops", fix=Fix({f"{other}.enabled": "auto"}), fails_at="plugin"
            )
    return None


@rule(
    "DS025",
    Severity.ERROR,
    DeepSpeedConfig,
    fails_at="plugin",
    checked="run",
    source="accelerate-1.15.0-deepspeed",
    covers=("ADS-NO-ZERO",),
)
def zero_block_missing(config: DeepSpeedConfig) -> Iterator[Hit]:
    """A DeepSpeed file without zero_optimization, read by Accelerate or Transformers."""
    if config.fills_auto and not config.has("zero_optimization"):
        fix = Fix({"zero_optimization": {"stage": 0}})
        yield hit(config, ("zero_optimization",), "is missing: Accelerate's plugin stops without it", fix=fix)


@rule(
    "DS026",
    Severity.ERROR,
    DeepSpeedConfig,
    fails_at="first step",
    checked="source",
    source="accelerate-1.15.0-accelerator",
    covers=("ADS-OPT-BOTH", "ADS-SCHED-BOTH"),
)
def made_in_file_and_in_code(config: DeepSpeedConfig) -> Iterator[Hit]:
    """An optimizer or a scheduler that the file names and the code makes too, or an optimizer that neither makes."""
    name, context = config.context.optimizer, config.context
    if config.fills_auto and config.has("scheduler") and (made := SCHEDULER.search(context.call or "")):
        yield hit(config, ("scheduler",), f"in the file, and {made[0]} in the code: prepare() stops", fix=Fix({"scheduler": None}))
    by_accelerate = config.fills_auto and context.trainer is False
    if by_accelerate and name and config.has("optimizer") and not name.rpartition(".")[2].startswith("Dummy"):
        yield hit(config, ("optimizer",), f"in the file, and {name} in the code: prepare() stops", fix=Fix({"optimizer": None}))
    elif by_accelerate and name and not config.has("optimizer") and name.rpartition(".")[2] == "DummyOptim":
        yield hit(config, ("optimizer",), "is missing, and the code makes a DummyOptim: prepare() stops")


@rule(
    "DS027",
    Severity.ERROR,
    DeepSpeedConfig,
    fails_at="first step",
    checked="report",
    source="transformers-5.23.0-trainer",
    covers=("TRN-AUTOBS-Z3", "BNB-DEVICEMAP", "BNB-Z3"),
)
def zero3_against_loading(config: DeepSpeedConfig) -> Iterator[Hit]:
    """Stage 3 with what loads or sizes a model in another way: auto_find_batch_size, a device_map, 4- or 8-bit weights."""
    if config.stage == 3 and config.context.training_args.get("auto_find_batch_size"):
        yield hit(config, ("zero_optimization", "stage"), "3 with auto_find_batch_size: the Trainer stops", fails_at="engine start")
    bits = config.context.bits
    if bits and config.stage == 3:
        yield hit(config, ("zero_optimization", "stage"), f"3 with {bits}-bit weights: zero.Init does not take them")
    elif config.context.device_map in ("auto", "balanced", "mapping"):
        yield hit(config, ("zero_optimization",), f"with device_map {config.context.device_map}: no distributed run takes it")


@rule(
    "DS029",
    Severity.ERROR,
    DeepSpeedConfig,
    fails_at="first step",
    checked="source",
    source="accelerate-1.15.0-accelerator",
    covers=("ADS-AUTO-HIDDEN",),
)
def auto_without_hidden_size(config: DeepSpeedConfig) -> Iterator[Hit]:
    """A bucket size is "auto", and the model's config has no hidden_size to work it out from."""
    asked = [key for key in _BUCKETS if config.get("zero_optimization", key) == "auto"]
    if not asked or not config.fills_auto:
        return
    name = config.context.model_class or ""
    absent: dict[str, str] = table("arguments")["no_hidden_size"]
    family = max((family for family in absent if re.fullmatch(rf"{family}(Model|For\w+|With\w+)?", name)), key=len, default="")
    if family and (absent[family] == "none" or config.context.trainer is False):
        message = f'"auto", and the config of {name} has no hidden_size to fill it from'
        yield hit(config, ("zero_optimization", asked[0]), message, fix=Fix({f"zero_optimization.{asked[0]}": 5 * 10**8}))
