# check/rules/accelerate_sharding.py without its comments
from __future__ import annotations

from collections.abc import Iterator

from trainwright.check.rules.accelerate_launch import hit, set_to
from trainwright.check.subject import AccelerateConfig
from trainwright.report import Severity
from trainwright.rules import Hit, rule

_KEY = "fsdp_sharding_strategy"


def on(config: AccelerateConfig) -> bool:
    return config.kind == "fsdp" and config.file.version in (1, 2)


@rule(
    "ACC026",
    Severity.ERROR,
    AccelerateConfig,
    fails_at="first step",
    checked="run",
    source="accelerate-1.15.0-fsdp-plugin",
    covers=("FSDP-HYBRID-NOWRAP", "FSDP-COMPILE-ORIG", "FSDP-COMPILE-OFFLOAD", "FSDP2-RAM-OFFLOAD"),
)
def fsdp_the_first_step_refuses(config: AccelerateConfig) -> Iterator[Hit]:
    """FSDP settings that the plugin takes and torch refuses once there is a model.

    FSDP1 hybrid sharding without a wrap policy ("Manual wrapping with ShardingStrategy.HYBRID_SHARD requires explicit
    specification"); torch.compile with `fsdp_use_orig_params: false`; FSDP2 with efficient loading and offload before Accelerate
    1.13, which leaves the shards on the wrong device.

    Bad `accelerate.yaml`:

        distributed_type: FSDP
        num_processes: 4
        mixed_precision: bf16
        fsdp_config:
          fsdp_version: 1
          fsdp_sharding_strategy: HYBRID_SHARD

    Good `accelerate.yaml`:

        distributed_type: FSDP
        num_processes: 4
        mixed_precision: bf16
        fsdp_config:
          fsdp_version: 1
          fsdp_sharding_strategy: HYBRID_SHARD
          fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
          fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
    """
    if not on(config):
        return
    if config.file.version == 1:
        yield from _version_1(config)
    elif (
        config.true("fsdp_cpu_ram_efficient_loading") and config.true("fsdp_offload_params") and config.context.older("accelerate", "1.13")
    ):
        message = "with cpu_ram_efficient_loading leaves the shards on the GPU before Accelerate 1.13: the first forward stops"
        yield hit(config, "fsdp_offload_params", message, fix=set_to(config, "fsdp_cpu_ram_efficient_loading", False))


def _version_1(config: AccelerateConfig) -> Iterator[Hit]:
    strategy, policy = config.file.value(_KEY), config.file.value("fsdp_auto_wrap_policy")
    unwrapped = policy == "NO_WRAP" or (policy == "SIZE_BASED_WRAP" and config.whole("fsdp_min_num_params") == 0)
    if strategy and "HYBRID" in strategy and unwrapped:
        fix = set_to(config, "fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP")
        yield hit(config, _KEY, f"{strategy} needs a wrap policy", fix=fix)
    if compiles(config) and not config.true("fsdp_use_orig_params"):
        fix = set_to(config, "fsdp_use_orig_params", True)
        yield hit(config, "fsdp_use_orig_params", "has to be true where torch.compile is used", fix=fix)
    torch = config.context.versions.get("torch", "")
    if compiles(config) and config.true("fsdp_offload_params") and torch.startswith(("2.4", "2.5", "2.6")):
        message = "with torch.compile fails in the validation loop under torch 2.4 to 2.6; FSDP2 does not"
        yield hit(config, "fsdp_offload_params", message, severity=Severity.WARNING)


def compiles(config: AccelerateConfig) -> bool:
    backend = config.value("dynamo_backend")
    return isinstance(backend, str) and backend.upper() != "NO"


@rule(
    "ACC027",
    Severity.WARNING,
    AccelerateConfig,
    fails_at="never",
    checked="run",
    source="accelerate-1.15.0-fsdp-plugin",
    covers=("FSDP-MINPARAMS-ZERO", "FSDP-1PROC", "FSDP-MP-NO", "FSDP-VERSION-DEFAULT"),
)
def fsdp_that_gains_little(config: AccelerateConfig) -> Iterator[Hit]:
    """FSDP settings that run and do not do what FSDP is for.

    `fsdp_min_num_params: 0` drops the size policy: one unit, the whole model gathered at once. Told as information: one process
    shards nothing; `mixed_precision: 'no'` gathers in fp32, and flash attention refuses it; without `fsdp_version` Accelerate takes 1 and
    Transformers' own fsdp_config 2.

    Bad `accelerate.yaml`:

        distributed_type: FSDP
        num_processes: 4
        mixed_precision: bf16
        fsdp_config:
          fsdp_version: 2
          fsdp_auto_wrap_policy: SIZE_BASED_WRAP
          fsdp_min_num_params: 0

    Good `accelerate.yaml`:

        distributed_type: FSDP
        num_processes: 4
        mixed_precision: bf16
        fsdp_config:
          fsdp_version: 2
          fsdp_auto_wrap_policy: SIZE_BASED_WRAP
          fsdp_min_num_params: 1000000
    """
    if not on(config):
        return
    if config.file.value("fsdp_auto_wrap_policy") == "SIZE_BASED_WRAP" and config.whole("fsdp_min_num_params") == 0:
        yield hit(
            config,
            "fsdp_min_num_params",
            "0 drops the policy: the whole model is one unit",
            fix=set_to(config, "fsdp_min_num_params", 10**6),
        )
    if config.whole("num_processes") == 1:
        yield hit(config, "num_processes", "1: nothing is sharded", severity=Severity.INFO)
    if config.file.precision == "no" and config.value("mixed_precision") == "no" and config.context.device != "cpu":
        message = "no: parameters are gathered in fp32, twice the traffic of bf16"
        yield hit(config, "mixed_precision", message, severity=Severity.INFO, fix=set_to(config, "mixed_precision", "bf16"))
    if not config.written("fsdp_version"):
        fix = set_to(config, "fsdp_version", 1, safe=True)
        yield hit(config, "fsdp_version", "is not given: Accelerate takes 1", severity=Severity.INFO, fix=fix)


@rule(
    "ACC028",
    Severity.ERROR,
    AccelerateConfig,
    fails_at="end of run",
    checked="source",
    source="transformers-5.23.0-trainer",
    covers=("FSDP-SHARDED-FINAL", "FSDP-SAVEONLY-SHARDED", "FSDP-SAVEONLY-BEST", "FSDP-AC-BOTH", "FSDP-BOTH-DS", "FSDP-8BITOPT"),
)
def fsdp_against_trainer(config: AccelerateConfig) -> Iterator[Hit]:
    """FSDP settings that the Trainer's arguments contradict.

    `save_only_model` stops with SHARDED_STATE_DICT and with `load_best_model_at_end`; checkpointing is asked for once, by FSDP
    or by `gradient_checkpointing`; `--deepspeed` beside FSDP stops; bitsandbytes' 8-bit optimizers fail under FSDP2 and under offload.
    SHARDED_STATE_DICT leaves no whole model at the end (information; a warning where a run is resumed by Transformers before 4.34).

    Bad `accelerate.yaml` with `--context job.json`:

        distributed_type: FSDP
        num_processes: 4
        mixed_precision: bf16
        fsdp_config:
          fsdp_version: 2
          fsdp_auto_wrap_policy: NO_WRAP
          fsdp_state_dict_type: SHARDED_STATE_DICT
    Bad `job.json`:

        {"training_args": {"save_only_model": true}}

    Good `accelerate.yaml` with `--context job.json`:

        distributed_type: FSDP
        num_processes: 4
        mixed_precision: bf16
        fsdp_config:
          fsdp_version: 2
          fsdp_auto_wrap_policy: NO_WRAP
          fsdp_state_dict_type: FULL_STATE_DICT
    Good `job.json`:

        {"training_args": {"save_only_model": true}}
    """
    if not on(config):
        return
    given, context = config.context.training_args, config.context
    kept = config.file.value("fsdp_state_dict_type") or ("FULL_STATE_DICT" if config.file.version == 1 else "SHARDED_STATE_DICT")
    if kept == "SHARDED_STATE_DICT" and given.get("save_only_model"):
        fix = set_to(config, "fsdp_state_dict_type", "FULL_STATE_DICT")
        yield hit(
            config, "fsdp_state_dict_type", "SHARDED_STATE_DICT with save_only_model: the Trainer stops", fix=fix, fails_at="engine start"
        )
    elif kept == "SHARDED_STATE_DICT" and config.written("fsdp_state_dict_type"):
        old = bool(context.resume_from_checkpoint) and context.older("transformers", "4.34")
        message = "SHARDED_STATE_DICT: no whole model is saved at the end, and `accelerate merge-weights` has to join the shards"
        fix = set_to(config, "fsdp_state_dict_type", "FULL_STATE_DICT")
        yield hit(config, "fsdp_state_dict_type", message, severity=Severity.WARNING if old else Severity.INFO, fix=fix)
    if given.get("save_only_model") and given.get("load_best_model_at_end"):
        yield hit(
            config, "fsdp_state_dict_type", "with save_only_model and load_best_model_at_end: the Trainer stops", fails_at="engine start"
        )
    if config.true("fsdp_activation_checkpointing") and given.get("gradient_checkpointing"):
        fix = set_to(config, "fsdp_activation_checkpointing", False, note="or gradient_checkpointing in the arguments")
        yield hit(
            config, "fsdp_activation_checkpointing", "with gradient_checkpointing: the Trainer stops", fix=fix, fails_at="engine start"
        )
    elif given.get("gradient_checkpointing") and _gathers_again(config):
        message = "is off, and gradient_checkpointing gathers each layer once more in the backward: FSDP's own checkpointing does not"
        fix = set_to(config, "fsdp_activation_checkpointing", True, note="and gradient_checkpointing off in the arguments")
        yield hit(config, "fsdp_activation_checkpointing", message, severity=Severity.WARNING, fails_at="never", fix=fix)
    if given.get("deepspeed"):
        yield hit(
            config, "distributed_type", "FSDP with --deepspeed in the arguments: the Trainer takes one of them", fails_at="engine start"
        )
    optimizer = str(given.get("optim") or context.optimizer or "").lower()
    if of_bitsandbytes(optimizer) and (config.file.version == 2 or config.true("fsdp_offload_params")):
        why = "FSDP2" if config.file.version == 2 else "FSDP with offload"
        message = f"the optimizer {optimizer} does not work under {why}: its states cannot be sharded"
        yield Hit(message, config.at("fsdp_version"), config.key("fsdp_version"), fails_at="first step")


def _gathers_again(config: AccelerateConfig) -> bool:
    if config.file.version == 1:
        return config.file.value(_KEY) in ("FULL_SHARD", "HYBRID_SHARD")
    return config.true("fsdp_reshard_after_forward")


def of_bitsandbytes(optimizer: str) -> bool:
    return "8bit" in optimizer and not any(word in optimizer for word in ("torch_8bit", "torchao", "4bit"))


@rule(
    "ACC029",
    Severity.ERROR,
    AccelerateConfig,
    fails_at="first step",
    checked="report",
    source="accelerate-1.15.0-fsdp-plugin",
    covers=("BNB-FSDP1-STORAGE", "BNB-FSDP1-DTYPE", "BNB-FSDP2-STORAGE", "BNB-8BIT-FSDP", "BNB-Z3", "BNB-BOTH"),
)
def quantized_weights_sharded(config: AccelerateConfig) -> Iterator[Hit]:
    """bitsandbytes weights under FSDP or ZeRO-3, stored in a way that cannot be sharded.

    FSDP1 flattens tensors of one floating dtype: 4-bit weights need `bnb_4bit_quant_storage` equal to the dtype of all other weights
    and adapters, 8-bit weights do not go at all. FSDP2 leaves uint8 storage unsharded. ZeRO-3 takes neither, nor a device_map.
    `quantization` in `--context` holds the keys of the quantization config.

    Bad `accelerate.yaml` with `--context job.json`:

        distributed_type: FSDP
        num_processes: 4
        mixed_precision: bf16
        fsdp_config:
          fsdp_version: 1
          fsdp_auto_wrap_policy: NO_WRAP
    Bad `job.json`:

        {"quantization": {"load_in_4bit": true}}

    Good `accelerate.yaml` with `--context job.json`:

        distributed_type: FSDP
        num_processes: 4
        mixed_precision: bf16
        fsdp_config:
          fsdp_version: 1
          fsdp_auto_wrap_policy: NO_WRAP
    Good `job.json`:

        {"quantization": {"load_in_4bit": true, "bnb_4bit_quant_storage": "bfloat16", "torch_dtype": "bfloat16"}}
    """
    given = config.context.quantization
    four, eight = config.context.bits == 4, config.context.bits == 8
    if given.get("load_in_4bit") is True and given.get("load_in_8bit") is True:
        yield hit(config, "distributed_type", "with load_in_4bit and load_in_8bit: one of them", fails_at="engine start")
    elif (four or eight) and config.kind == "fsdp":
        yield from _under_fsdp(config, four)
    elif (four or eight) and config.kind == "deepspeed":
        from trainwright.check.rules.accelerate_deepspeed import stage_of

        if stage_of(config) == 3:
            bits = 4 if four else 8
            yield hit(config, "zero_stage", f"3 with {bits}-bit weights: zero.Init does not take them, nor a device_map")


def _under_fsdp(config: AccelerateConfig, four: bool) -> Iterator[Hit]:
    given = config.context.quantization
    if not four:
        yield hit(config, "distributed_type", "FSDP with 8-bit weights: int8 tensors cannot be flattened with others")
        return
    if config.context.by_llama_factory:
        return
    storage = str(given.get("bnb_4bit_quant_storage") or "uint8").replace("torch.", "")
    if storage in ("uint8", "int8"):
        if config.file.version == 1:
            yield hit(config, "distributed_type", f"FSDP1 with 4-bit weights stored as {storage}: integer tensors cannot be flattened")
        else:
            message = f"FSDP2 with 4-bit weights stored as {storage}: they are left unsharded"
            yield hit(config, "distributed_type", message, severity=Severity.WARNING, fails_at="never")
        return
    others = [given.get("torch_dtype"), given.get("adapter_dtype"), config.context.torch_dtype]
    other = next((word for value in others if value and (word := str(value).replace("torch.", "")) != storage), None)
    if other and config.file.version == 1:
        yield hit(
            config, "distributed_type", f"FSDP1 with weights stored as {storage} and others in {other}: one dtype has to be flattened"
        )
