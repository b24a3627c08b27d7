"""Rules on DeepSpeed configs against who reads them: Transformers' Trainer, or Accelerate's own loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainwright.check.deepspeed_file import is_on
from trainwright.check.rules.deepspeed import hit
from trainwright.check.subject import DeepSpeedConfig
from trainwright.emit.accelerate_file import shown
from trainwright.report import Fix, Severity
from trainwright.rules import Hit, rule

# DeepSpeed's key and the argument of Transformers that it has to equal, as HfTrainerDeepSpeedConfig compares them.
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
    """A number of the DeepSpeed config differs from the Trainer's argument for the same thing, or from the precision asked for.

    Transformers compares fourteen of them and stops: "Please correct the following DeepSpeed config values that mismatch
    TrainingArguments values". "auto" takes the argument's value. `--mixed_precision bf16` (or `--bf16`, which TRL sets by itself) beside
    `fp16.enabled: true` stops Accelerate. Arguments that are not given are not compared.

    Bad `ds.json` with `--context job.json`:

        {"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 1.0, "zero_optimization": {"stage": 2}}
    Bad `job.json`:

        {"training_args": {"per_device_train_batch_size": 2}}

    Good `ds.json` with `--context job.json`:

        {"train_micro_batch_size_per_gpu": "auto", "gradient_clipping": 1.0, "zero_optimization": {"stage": 2}}
    Good `job.json`:

        {"training_args": {"per_device_train_batch_size": 2}}
    """
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
    yield from _total(config, given)
    for block, names in (("fp16", ("fp16", "fp16_full_eval")), ("bf16", ("bf16", "bf16_full_eval"))):
        value = config.get(block, "enabled")
        known = [given[name] for name in names if name in given]
        if known and isinstance(value, bool) and value != any(known) and not (clash and clash.path.startswith(block)):
            message = f"{shown(value)}, and {names[0]} is {shown(any(known))}: the Trainer stops"
            yield hit(config, (block, "enabled"), message, fix=Fix({f"{block}.enabled": "auto"}))


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
    """A DeepSpeed file without zero_optimization, read by Accelerate or Transformers.

    The plugin stops: "Please specify the ZeRO optimization config in the DeepSpeed config". DeepSpeed itself runs such a file.

    Bad `ds.json`:

        {"train_micro_batch_size_per_gpu": "auto", "gradient_clipping": 1.0, "bf16": {"enabled": true}}

    Good `ds.json`:

        {"train_micro_batch_size_per_gpu": "auto", "gradient_clipping": 1.0, "bf16": {"enabled": true}, "zero_optimization": {"stage": 0}}
    """
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
    covers=("ADS-OPT-BOTH",),
)
def made_in_file_and_in_code(config: DeepSpeedConfig) -> Iterator[Hit]:
    """An optimizer that the file names and the code makes too, or that neither makes.

    Accelerate stops at prepare(): "You cannot specify an optimizer in the config file and in the code at the same time" (a
    DummyOptim stands in for the file's). `optimizer` in `--context` names the code's.

    Bad `ds.json` with `--context job.json`:

        {"train_micro_batch_size_per_gpu": "auto", "gradient_clipping": 1.0, "zero_optimization": {"stage": 2},
         "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}
    Bad `job.json`:

        {"optimizer": "torch.optim.AdamW", "trainer": false}

    Good `ds.json` with `--context job.json`:

        {"train_micro_batch_size_per_gpu": "auto", "gradient_clipping": 1.0, "zero_optimization": {"stage": 2},
         "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}
    Good `job.json`:

        {"optimizer": "accelerate.utils.DummyOptim", "trainer": false}
    """
    name, context = config.context.optimizer, config.context
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
    covers=("TRN-AUTOBS-Z3", "BNB-DEVICEMAP"),
)
def zero3_against_loading(config: DeepSpeedConfig) -> Iterator[Hit]:
    """Stage 3 with what loads or sizes a model in another way: auto_find_batch_size, a device_map, 4- or 8-bit weights.

    zero.Init shards weights while the model is made; a `device_map` or quantized loading places them itself, and stops. The Trainer
    refuses `auto_find_batch_size` with stage 3. A `device_map` of "auto" stops every distributed run.

    Bad `ds.json` with `--context job.json`:

        {"train_micro_batch_size_per_gpu": "auto", "gradient_clipping": 1.0,
         "zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": true}}
    Bad `job.json`:

        {"training_args": {"auto_find_batch_size": true}}

    Good `ds.json` with `--context job.json`:

        {"train_micro_batch_size_per_gpu": "auto", "gradient_clipping": 1.0, "zero_optimization": {"stage": 2}}
    Good `job.json`:

        {"training_args": {"auto_find_batch_size": true}}
    """
    if config.stage == 3 and config.context.training_args.get("auto_find_batch_size"):
        yield hit(config, ("zero_optimization", "stage"), "3 with auto_find_batch_size: the Trainer stops", fails_at="engine start")
    quantization, bits = config.context.quantization, 0
    if config.stage == 3:
        bits = 4 if quantization.get("load_in_4bit") else 8 if quantization.get("load_in_8bit") else 0
    if bits:
        yield hit(config, ("zero_optimization", "stage"), f"3 with {bits}-bit weights: zero.Init does not take them")
    elif config.context.device_map in ("auto", "balanced", "mapping"):
        yield hit(config, ("zero_optimization",), f"with device_map {config.context.device_map}: no distributed run takes it")
