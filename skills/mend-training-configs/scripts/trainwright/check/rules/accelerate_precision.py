# helpers/trainwright/check/rules/accelerate_precision.py without its comments
from __future__ import annotations

from collections.abc import Iterator

from trainwright.check.rules.accelerate_launch import hit, set_to
from trainwright.check.subject import AccelerateConfig
from trainwright.emit.accelerate_file import shown
from trainwright.report import Fix, Severity
from trainwright.rules import Hit, rule


@rule(
    "ACC030",
    Severity.ERROR,
    AccelerateConfig,
    fails_at="first step",
    checked="run",
    source="accelerate-1.15.0-accelerator",
    covers=(
        "FP8-NO-MP",
        "FP8-MSAMP-FSDP",
        "FP8-AO-RAM",
        "FP8-AO-FSDP1",
        "FP8-OVERRIDE-STR",
        "FP8-BACKEND-NAME",
        "FP8-FSDP-OLD",
        "FP8-BNB",
        "FP8-DIM16",
    ),
)
def fp8_that_does_not_run(config: AccelerateConfig) -> Iterator[Hit]:
    """An fp8 recipe that nothing reads, or that Accelerator() refuses."""
    block = config.document.get("fp8_config")
    if str(config.value("mixed_precision")).lower() != "fp8":
        if isinstance(block, dict) and block:
            message = f"fp8_config is ignored: mixed_precision is {config.value('mixed_precision')}"
            fix = Fix({"mixed_precision": "fp8"}, note="or delete fp8_config")
            yield Hit(message, config.document.at("fp8_config"), "fp8_config", fix, Severity.WARNING, "never")
        return
    if config.kind == "fsdp" and config.context.older("accelerate", "0.34"):
        yield hit(
            config, "mixed_precision", f"fp8 with FSDP needs Accelerate 0.34, and the job has {config.context.versions['accelerate']}"
        )
    if config.context.quantization.get("load_in_4bit") or config.context.quantization.get("load_in_8bit"):
        yield hit(config, "mixed_precision", "fp8 with 4- or 8-bit weights: one of them")
    yield from _backend(config)
    override = config.value("fp8_override_linear_precision")
    if isinstance(override, str):
        fix = set_to(config, "fp8_override_linear_precision", [word.strip().lower() == "true" for word in override.split(",")][:3])
        yield hit(config, "fp8_override_linear_precision", f"{shown(override)} is a text, taken letter by letter", fix=fix)
    hidden = config.context.model.hidden_size if config.context.model else 0
    if hidden % 16 and not config.true("fp8_pad_inner_dim"):
        yield hit(config, "fp8_pad_inner_dim", f"is off, and the model's width {hidden} is no multiple of 16", severity=Severity.WARNING)


def _backend(config: AccelerateConfig) -> Iterator[Hit]:
    value = config.value("fp8_backend")
    if value is None:
        return
    name = str(value).upper()
    if name not in ("TE", "AO", "MSAMP"):
        yield hit(config, "fp8_backend", f"{shown(value)} is not one of TE, AO, MSAMP", fix=set_to(config, "fp8_backend", "TE"))
    elif name == "MSAMP" and config.kind == "fsdp":
        yield hit(config, "fp8_backend", "MSAMP does not go with FSDP", fix=set_to(config, "fp8_backend", "TE"))
    elif name == "AO" and config.kind == "fsdp":
        if config.true("fsdp_cpu_ram_efficient_loading"):
            fix = set_to(config, "fsdp_cpu_ram_efficient_loading", False)
            yield hit(config, "fsdp_cpu_ram_efficient_loading", "is true (by default), and torchao under FSDP needs it false", fix=fix)
        gathers = config.written("fp8_enable_fsdp_float8_all_gather") and config.true("fp8_enable_fsdp_float8_all_gather")
        if config.file.version == 1 and gathers:
            yield hit(config, "fp8_enable_fsdp_float8_all_gather", "needs FSDP2", fix=set_to(config, "fsdp_version", 2))


@rule(
    "ACC031",
    Severity.WARNING,
    AccelerateConfig,
    fails_at="never",
    checked="run",
    source="accelerate-1.15.0-launch-env",
    covers=("DYN-DYNAMIC-FALSE", "DYN-MODE", "DYN-FULLGRAPH-DYNAMIC", "DYN-DS-VERSION"),
)
def compile_as_not_meant(config: AccelerateConfig) -> Iterator[Hit]:
    """torch.compile through the launcher: dynamic shapes are off unless asked for."""
    backend = config.value("dynamo_backend")
    if not isinstance(backend, str) or backend.upper() == "NO" or config.kind in ("tpu", "sagemaker"):
        return
    if not config.true("dynamo_use_dynamic"):
        quiet = Severity.INFO if config.written("dynamo_use_dynamic") else None
        message = "false: torch.compile compiles again for each new shape"
        yield hit(config, "dynamo_use_dynamic", message, severity=quiet, fix=set_to(config, "dynamo_use_dynamic", True))
    elif config.true("dynamo_use_fullgraph"):
        yield hit(config, "dynamo_use_fullgraph", "with dynamo_use_dynamic fails on most Transformers models")
    mode = config.value("dynamo_mode")
    if mode not in ("default", "reduce-overhead", "max-autotune"):
        yield hit(config, "dynamo_mode", f"{shown(mode)} is handed on to torch.compile as it stands", severity=Severity.INFO)
    if config.kind == "deepspeed" and config.context.older("deepspeed", "0.14.4"):
        yield hit(config, "dynamo_backend", f"is skipped with DeepSpeed {config.context.versions['deepspeed']}, before 0.14.4")


@rule(
    "ACC032",
    Severity.WARNING,
    AccelerateConfig,
    fails_at="never",
    checked="source",
    source="accelerate-1.15.0-state",
    covers=("XPU-CCL", "XPU-FSDP-GLOO", "CPU-GLOO-BF16"),
)
def device_against_setting(config: AccelerateConfig) -> Iterator[Hit]:
    """A setting that the job's kind of device does not have."""
    kind, precision, device = config.file.kind, str(config.value("mixed_precision")).lower(), config.context.device
    on_xpu = kind == "MULTI_XPU" or device == "xpu"
    if on_xpu and _of_bindings(config.context.xpu_backend) and config.context.since("accelerate", "1.13"):
        yield hit(config, "distributed_type", f"{kind} with the backend ccl: Accelerate knows xccl alone, and every rank trains by itself")
    state = config.value("fsdp_state_dict_type")
    if on_xpu and config.kind == "fsdp" and isinstance(state, str) and state.upper() == "FULL_STATE_DICT" != state:
        message = f"{state} in this case does not bring gloo in beside xccl: write it in upper case"
        yield hit(config, "fsdp_state_dict_type", message, severity=Severity.INFO)
    if precision == "fp16":
        yield from _half(config, kind, device)


def _of_bindings(backend: str | None) -> bool:
    """Whether a collective backend is that of Intel's separate bindings (ccl, oneccl_bindings_for_pytorch), not torch's own xccl."""
    name = (backend or "").lower()
    return "ccl" in name and "xccl" not in name and "nccl" not in name


def _half(config: AccelerateConfig, kind: str, device: str | None) -> Iterator[Hit]:
    fix = set_to(config, "mixed_precision", "bf16")
    if kind == "MULTI_CPU" or (device == "cpu" and kind in ("NO", "MULTI_CPU")):
        yield hit(config, "mixed_precision", "fp16 on CPU is not scaled and runs in fp32", fix=fix)


@rule(
    "ACC035",
    Severity.ERROR,
    AccelerateConfig,
    fails_at="first step",
    checked="source",
    source="accelerate-1.15.0-accelerator",
    covers=("TPU-FP16", "HPU-FP16", "HPU-OFFLOAD-LAZY"),
)
def setting_the_device_refuses(config: AccelerateConfig) -> Iterator[Hit]:
    """A precision or an offload that TPUs or Gaudi refuse."""
    kind, device = config.file.kind, config.context.device
    on_gaudi = kind == "MULTI_HPU" or device == "hpu"
    if str(config.value("mixed_precision")).lower() == "fp16" and (on_gaudi or kind == "XLA"):
        fix = set_to(config, "mixed_precision", "bf16")
        yield hit(config, "mixed_precision", f"fp16 is not for {'Gaudi' if on_gaudi else 'XLA'}", fix=fix)
    offload = str(config.value("offload_optimizer_device")).lower()
    if on_gaudi and config.kind == "deepspeed" and offload in ("cpu", "nvme"):
        yield hit(config, "offload_optimizer_device", f"{offload} on Gaudi stops unless PT_HPU_LAZY_MODE=0")


@rule(
    "ACC033",
    Severity.ERROR,
    AccelerateConfig,
    fails_at="first step",
    checked="source",
    source="accelerate-1.15.0-accelerator",
    covers=("MEG-CP-DEFAULT", "MEG-DIV", "MEG-RECOMPUTE", "MEG-SCHED"),
)
def megatron_plugin_pitfall(config: AccelerateConfig) -> Iterator[Hit]:
    """Megatron-LM through Accelerate: sizes that do not divide the ranks, and defaults that nobody expects."""
    if config.kind != "megatron":
        return
    tensor, pipeline = config.whole("megatron_lm_tp_degree") or 1, config.whole("megatron_lm_pp_degree") or 1
    given, recent = config.whole("megatron_lm_context_parallel_size"), config.context.since("accelerate", "1.13")
    context = given or (2 if recent else 1)
    if given is None and recent:
        fix = set_to(config, "megatron_lm_context_parallel_size", 1)
        yield hit(
            config, "megatron_lm_context_parallel_size", "is not given, and the default is 2: each context is split over two ranks", fix=fix
        )
    ranks = config.context.world_size or config.whole("num_processes")
    if ranks and ranks % (tensor * pipeline * context):
        message = f"{ranks} is no multiple of tensor {tensor} x pipeline {pipeline} x context {context}"
        yield hit(config, "num_processes", message)
    if config.value("megatron_lm_recompute_granularity") == "selective" and config.value("megatron_lm_recompute_method") is None and recent:
        message = "selective: the method uniform is filled in, and Megatron refuses the two together"
        yield hit(config, "megatron_lm_recompute_granularity", message)
    optimizer = (config.context.optimizer or "").rpartition(".")[2]
    if optimizer and not any(word in optimizer.lower() for word in ("adam", "sgd", "dummy")):
        yield hit(config, "distributed_type", f"MEGATRON_LM with {optimizer}: Megatron has an Adam and an SGD alone")


@rule(
    "ACC036",
    Severity.WARNING,
    AccelerateConfig,
    fails_at="never",
    checked="source",
    source="accelerate-1.15.0-accelerator",
    covers=("MEG-SP-TP1", "MEG-PP-MICRO", "MEG-XPU"),
)
def megatron_setting_without_use(config: AccelerateConfig) -> Iterator[Hit]:
    """Megatron-LM through Accelerate: settings that have no effect, or that waste most of the machine."""
    if config.kind != "megatron":
        return
    pipeline = config.whole("megatron_lm_pp_degree") or 1
    if config.true("megatron_lm_sequence_parallelism") and (config.whole("megatron_lm_tp_degree") or 1) == 1:
        yield hit(config, "megatron_lm_sequence_parallelism", "needs megatron_lm_tp_degree above 1")
    if pipeline > 1 and (config.whole("megatron_lm_num_micro_batches") or 1) < pipeline:
        fix = set_to(config, "megatron_lm_num_micro_batches", 4 * pipeline)
        yield hit(config, "megatron_lm_num_micro_batches", f"is below the {pipeline} stages: most of the pipeline idles", fix=fix)
    if config.context.device not in (None, "cuda"):
        yield hit(config, "distributed_type", f"MEGATRON_LM on {config.context.device}: Megatron needs CUDA")
