# helpers/trainwright/check/rules/deepspeed_zero.py without its comments
from __future__ import annotations

from collections.abc import Iterator

from trainwright.check.deepspeed_file import truth
from trainwright.check.rules.deepspeed import hit
from trainwright.check.subject import DeepSpeedConfig
from trainwright.emit.accelerate_file import shown
from trainwright.report import Fix, Severity
from trainwright.rules import Hit, rule

_ZERO = "zero_optimization"
_STAGE3 = (
    "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold",
    "stage3_model_persistence_threshold",
    "stage3_max_live_parameters",
    "stage3_max_reuse_distance",
    "stage3_gather_16bit_weights_on_model_save",
    "stage3_module_granularity_threshold",
    "zero_quantized_weights",
    "zero_hpz_partition_size",
)


def device_of(config: DeepSpeedConfig, block: str) -> str:
    """Where a block offloads to: "cpu" or "nvme", "none" where it does not."""
    value = config.get(_ZERO, block)
    device = str(value.get("device", "none")) if isinstance(value, dict) else "none"
    old = {"offload_optimizer": "cpu_offload", "offload_param": "cpu_offload_param"}[block]
    return "cpu" if device == "none" and config.on(_ZERO, old) else device


@rule(
    "DS010",
    Severity.WARNING,
    DeepSpeedConfig,
    fails_at="never",
    checked="run",
    source="deepspeed-0.19.8-zero",
    covers=("DS-OFFP-STAGE", "DS-OFFO-STAGE0", "DS-SUPEROFFLOAD-STAGE", "DS-STAGE3-KEYS", "DS-ROUNDROBIN-STAGE"),
)
def key_of_another_stage(config: DeepSpeedConfig) -> Iterator[Hit]:
    """A key that counts under another ZeRO stage than the one that runs is accepted and does nothing."""
    stage = config.stage
    if stage is None or config.get(_ZERO, "stage") == "auto":
        return
    param, optimizer = device_of(config, "offload_param"), device_of(config, "offload_optimizer")
    if param in ("cpu", "nvme") and stage != 3:
        fix = Fix({"zero_optimization.stage": 3}, note="or delete offload_param")
        yield hit(
            config, (_ZERO, "offload_param"), f"{param} is ignored under stage {stage}: parameters are offloaded by stage 3 alone", fix=fix
        )
    if optimizer in ("cpu", "nvme") and stage == 0:
        fix = Fix({"zero_optimization.stage": 1})
        yield hit(config, (_ZERO, "offload_optimizer"), f"{optimizer} is ignored under stage 0", fix=fix)
    if config.on(_ZERO, "offload_optimizer", "super_offload") and stage != 3:
        yield hit(config, (_ZERO, "offload_optimizer", "super_offload"), f"is ignored under stage {stage}: it is stage 3's")
    yield from _harmless(config, stage)


def _harmless(config: DeepSpeedConfig, stage: int) -> Iterator[Hit]:
    zero = config.get(_ZERO)
    if not isinstance(zero, dict):
        return
    idle = [key for key in _STAGE3 if stage < 3 and zero.get(key) not in (None, False, "auto")]
    idle += ["sub_group_size"] if stage < 3 and "sub_group_size" in zero else []
    idle += ["round_robin_gradients"] if stage == 3 and truth(zero.get("round_robin_gradients", False)) else []
    if idle:
        more = {"severity": Severity.INFO, "data": {"keys": idle}}
        yield hit(config, (_ZERO, idle[0]), f"has no effect under stage {stage}{_and_more(idle)}", **more)


def _and_more(keys: list[str]) -> str:
    return f" (nor {', '.join(keys[1:])})" if len(keys) > 1 else ""


@rule(
    "DS011",
    Severity.ERROR,
    DeepSpeedConfig,
    fails_at="first step",
    checked="run",
    source="deepspeed-0.19.8-zero",
    covers=("DS-NVME-NOPATH", "DS-NVME-STAGE2", "DS-NVME-AIO"),
)
def nvme_offload_incomplete(config: DeepSpeedConfig) -> Iterator[Hit]:
    """Offload to NVMe without a path stops at zero.Init; below stage 3 there is no NVMe swapper."""
    blocks = [block for block in ("offload_param", "offload_optimizer") if device_of(config, block) == "nvme"]
    for block in blocks:
        if config.stage == 3 and config.get(_ZERO, block, "nvme_path") in (None, "", "none"):
            yield hit(config, (_ZERO, block, "nvme_path"), "is missing, and the device is nvme: zero.Init stops")
        elif block == "offload_optimizer" and config.stage in (1, 2):
            message = f"nvme under stage {config.stage}: only stage 3 swaps to NVMe"
            yield hit(config, (_ZERO, block, "device"), message, severity=Severity.WARNING, fix=Fix({f"{_ZERO}.{block}.device": "cpu"}))
    if blocks and not config.has("aio"):
        message = "without an aio block: DeepSpeed's defaults use little of a drive's bandwidth (and libaio has to be installed)"
        yield hit(config, (_ZERO, blocks[0], "device"), message, severity=Severity.WARNING, fails_at="never")


@rule(
    "DS012",
    Severity.ERROR,
    DeepSpeedConfig,
    fails_at="engine start",
    checked="run",
    source="deepspeed-0.19.8-config",
    covers=("DS-GDS",),
)
def gds_without_cuda(config: DeepSpeedConfig) -> Iterator[Hit]:
    """aio.use_gds asks for GPUDirect Storage, which DeepSpeed has for CUDA alone."""
    value = config.get("aio", "use_gds")
    if value and value != "auto" and config.context.device != "cuda":
        where = f"on {config.context.device}" if config.context.device else "where no CUDA device is visible"
        yield hit(config, ("aio", "use_gds"), f"stops DeepSpeed {where}", fix=Fix({"aio.use_gds": False}))


@rule(
    "DS013",
    Severity.WARNING,
    DeepSpeedConfig,
    fails_at="never",
    checked="run",
    source="deepspeed-releases",
    covers=(
        "DS-CLIP-DEFAULT",
        "DS-PINMEM-DEFAULT",
        "DS-BF16-OVERFLOW-DEFAULT",
        "DS-OVERLAP-DEFAULT",
        "DS-STEPSPRINT-DEFAULT",
    ),
)
def default_that_changed(config: DeepSpeedConfig) -> Iterator[Hit]:
    """A key is left out whose default a DeepSpeed release has changed: an upgrade trains or loads otherwise than before."""
    if not config.has("gradient_clipping") and config.context.since("deepspeed", "0.19.3"):
        quiet = {"severity": Severity.INFO} if config.reader == "transformers" else {}
        message = "is not given: gradients are clipped at 1.0 from DeepSpeed 0.19.4 on, and were not before"
        yield hit(config, ("gradient_clipping",), message, fix=Fix({"gradient_clipping": 1.0}, note="0 leaves it off"), **quiet)
    for block in ("offload_optimizer", "offload_param"):
        if device_of(config, block) == "cpu" and isinstance(config.get(_ZERO, block), dict) and not config.has(_ZERO, block, "pin_memory"):
            message = "is not given: host memory is pinned from DeepSpeed 0.19.6 on, and was not before"
            fix = Fix({f"{_ZERO}.{block}.pin_memory": True})
            yield hit(config, (_ZERO, block, "pin_memory"), message, fix=fix)
    quiet_ones = _quiet_defaults(config)
    if quiet_ones:
        keys = ", ".join(quiet_ones)
        yield Hit(
            f"{keys}: not given, and the default has changed between releases or follows the stage",
            config.at(_ZERO),
            quiet_ones[0],
            severity=Severity.INFO,
            data={"keys": quiet_ones},
        )


def _quiet_defaults(config: DeepSpeedConfig) -> list[str]:
    keys = ["bf16.check_grad_overflow"] if config.on("bf16", "enabled") and not config.has("bf16", "check_grad_overflow") else []
    keys += ["zero_optimization.overlap_comm"] if config.stage and not config.has(_ZERO, "overlap_comm") else []
    return keys + (["steps_per_print"] if config.reader != "accelerate" and not config.has("steps_per_print") else [])


@rule(
    "DS014",
    Severity.WARNING,
    DeepSpeedConfig,
    fails_at="end of run",
    checked="source",
    source="deepspeed-0.19.8-engine",
    covers=("ADS-Z3-NOSAVE",),
)
def stage3_saves_no_weights(config: DeepSpeedConfig) -> Iterator[Hit]:
    """Under stage 3 without stage3_gather_16bit_weights_on_model_save no usable weights are saved."""
    names = ("stage3_gather_16bit_weights_on_model_save", "gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save")
    if config.stage == 3 and not any(config.get(_ZERO, name) == "auto" or config.on(_ZERO, name) for name in names):
        message = "is not on: under stage 3 no whole model is saved"
        yield hit(config, (_ZERO, names[0]), message, fix=Fix({f"{_ZERO}.{names[0]}": True}))


@rule(
    "DS015",
    Severity.ERROR,
    DeepSpeedConfig,
    fails_at="first step",
    checked="run",
    source="deepspeed-0.19.8-zero",
    covers=(
        "DS-PRESCALE",
        "DS-LEGACY1",
        "DS-MASTER16",
        "DS-COMPUTE-NORM",
        "DS-ZENFLOW-OFFLOAD",
        "DS-AUTOTP-Z3",
        "DS-DATATYPES-CLASH",
    ),
)
def combination_the_engine_refuses(config: DeepSpeedConfig) -> Iterator[Hit]:
    """Settings that DeepSpeedConfig reads and the engine then refuses, once it has the model."""
    stage = config.stage
    yield from _prescaled(config, stage)
    if config.on(_ZERO, "legacy_stage1"):
        yield hit(config, (_ZERO, "legacy_stage1"), "is not supported since DeepSpeed 0.5.9", fix=Fix({f"{_ZERO}.legacy_stage1": None}))
    for problem in (p for p in config.problems if p.kind == "master16"):
        yield hit(config, problem.path, problem.why, fails_at="engine start")
    if config.on("fp16", "fp16_master_weights_and_grads") and stage in (1, 2, 3) and device_of(config, "offload_optimizer") == "none":
        yield hit(config, ("fp16", "fp16_master_weights_and_grads"), "needs offload_optimizer to the cpu")
    yield from _norm(config, stage)
    if isinstance(config.get(_ZERO, "zenflow"), dict) and device_of(config, "offload_optimizer") != "cpu":
        yield hit(
            config, (_ZERO, "zenflow"), "needs offload_optimizer to the cpu", fix=Fix({f"{_ZERO}.offload_optimizer": {"device": "cpu"}})
        )
    yield from _tensor_parallel(config, stage)
    yield from _data_types(config)


def _prescaled(config: DeepSpeedConfig, stage: int | None) -> Iterator[Hit]:
    scatter = config.get(_ZERO, "reduce_scatter", default=True)
    if stage not in (1, 2) or not (scatter == "auto" or truth(scatter)):
        return
    fix = Fix({f"{_ZERO}.reduce_scatter": False})
    if config.on("prescale_gradients"):
        yield hit(config, ("prescale_gradients",), f"with reduce_scatter (on by default) stops the engine under stage {stage}", fix=fix)
    factor = config.get("gradient_predivide_factor", default=1.0)
    if isinstance(factor, (int, float)) and factor != 1.0:
        yield hit(config, ("gradient_predivide_factor",), f"{factor} with reduce_scatter stops the engine under stage {stage}", fix=fix)


def _norm(config: DeepSpeedConfig, stage: int | None) -> Iterator[Hit]:
    for problem in (p for p in config.problems if p.kind == "grad_norm"):
        yield hit(config, problem.path, problem.why, fails_at="engine start")
    given = config.get(_ZERO, "compute_grad_norm")
    clipping = config.get("gradient_clipping", default=1.0)
    if given not in (None, "auto") and not truth(given) and stage in (1, 2) and isinstance(clipping, (int, float)) and clipping > 0:
        yield hit(
            config,
            (_ZERO, "compute_grad_norm"),
            f"false needs gradient_clipping 0, and it is {clipping}",
            fix=Fix({"gradient_clipping": 0}),
        )


def _tensor_parallel(config: DeepSpeedConfig, stage: int | None) -> Iterator[Hit]:
    size = config.get("tensor_parallel", "autotp_size")
    if type(size) is not int or size <= 1:
        return
    if stage == 3:
        yield hit(config, ("tensor_parallel", "autotp_size"), f"{size} under stage 3: AutoTP goes with stages 0 to 2")
    elif config.context.world_size and config.context.world_size % size:
        yield hit(config, ("tensor_parallel", "autotp_size"), f"{size} does not divide {config.context.world_size} ranks")


def _data_types(config: DeepSpeedConfig) -> Iterator[Hit]:
    value, names = (
        config.get("data_types", "param_dtype"),
        {"bf16": ("bf16", "bfloat16", "torch.bfloat16"), "fp16": ("fp16", "float16", "half", "torch.float16")},
    )
    for block, words in names.items():
        if isinstance(value, str) and config.on(block, "enabled") and value not in words:
            yield hit(
                config,
                ("data_types", "param_dtype"),
                f"{shown(value)} contradicts {block}.enabled",
                fix=Fix({"data_types.param_dtype": None}),
            )


@rule(
    "DS016",
    Severity.WARNING,
    DeepSpeedConfig,
    fails_at="never",
    checked="run",
    source="deepspeed-0.19.8-zero",
    covers=("DS-ELASTICCKPT", "DS-AUTOCAST-BOTH"),
)
def setting_deepspeed_advises_against(config: DeepSpeedConfig) -> Iterator[Hit]:
    """Settings that run, and that DeepSpeed documents as unsupported or exclusive."""
    if config.stage == 3 and config.on(_ZERO, "elastic_checkpoint"):
        yield hit(config, (_ZERO, "elastic_checkpoint"), "is no longer supported under stage 3; universal checkpoints are")
    for block in ("bf16", "fp16"):
        if config.on("torch_autocast", "enabled") and config.on(block, "enabled"):
            fix = Fix({f"{block}.enabled": False})
            yield hit(config, ("torch_autocast", "enabled"), f"together with {block}.enabled: the two are documented as exclusive", fix=fix)


@rule(
    "DS017",
    Severity.ERROR,
    DeepSpeedConfig,
    fails_at="first step",
    checked="report",
    source="deepspeed-0.19.8-engine",
    covers=("DS-HPZ", "DS-AUTOCAST-NEST"),
)
def beyond_the_job_given(config: DeepSpeedConfig) -> Iterator[Hit]:
    """A setting that does not fit the release, the machines or the training loop that the context names."""
    context = config.context
    keys = [k for k in ("zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_gradients") if config.has(_ZERO, k)]
    if keys and context.older("deepspeed", "0.10"):
        message = f"is unknown to DeepSpeed {context.versions['deepspeed']}: ZeRO++ came with 0.10{_and_more(keys)}"
        yield hit(config, (_ZERO, keys[0]), message, fix=Fix({f"{_ZERO}.{key}": None for key in keys}), fails_at="engine start")
        return
    size = config.get(_ZERO, "zero_hpz_partition_size")
    if type(size) is int and size > 1 and context.gpus_per_node and size != context.gpus_per_node and config.stage == 3:
        message = f"{size} is meant to be the {context.gpus_per_node} devices of one machine"
        fix = Fix({f"{_ZERO}.zero_hpz_partition_size": context.gpus_per_node})
        yield hit(config, (_ZERO, "zero_hpz_partition_size"), message, severity=Severity.WARNING, fails_at="never", fix=fix)
    if context.outer_autocast and not config.on("torch_autocast", "enabled") and context.since("deepspeed", "0.17.2"):
        yield hit(config, ("torch_autocast",), "is missing, and the loop runs under torch.autocast: the engine stops")
