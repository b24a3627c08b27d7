# helpers/trainwright/check/imports.py without its comments
from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainwright.check.deepspeed_file import is_on
from trainwright.check.subject import AccelerateConfig, DeepSpeedConfig, Job, Megatron, Quantization, TrainingArguments

_FP8 = {"TE": "transformer-engine", "AO": "torchao", "MSAMP": "ms-amp"}
_MONITORS = {"tensorboard": "tensorboard", "wandb": "wandb", "comet": "comet_ml"}
_OPTIMIZERS = {
    "bnb": "bitsandbytes",
    "8bit": "bitsandbytes",
    "galore": "galore-torch",
    "lomo": "lomo-optim",
    "apollo": "apollo-torch",
    "schedule_free": "schedulefree",
    "torchao": "torchao",
    "4bit": "torchao",
    "grokadamw": "grokadamw",
}
_REPORTERS = {"wandb": "wandb", "tensorboard": "tensorboard", "mlflow": "mlflow", "comet_ml": "comet_ml", "neptune": "neptune"}
Need = tuple[str, str]


def needs(job: Job, subjects: list[Any]) -> list[Need]:
    found: dict[str, str] = {}
    for package, why in _needs(job, subjects):
        found.setdefault(package, why)
    return list(found.items())


def _needs(job: Job, subjects: list[Any]) -> Iterator[Need]:
    for command in job.commands:
        if command.launcher in ("accelerate", "deepspeed"):
            yield command.launcher, f"{command.where}: {command.launcher}"
    for subject in subjects:
        if isinstance(subject, AccelerateConfig):
            yield from _accelerate(subject)
        elif isinstance(subject, DeepSpeedConfig):
            yield "deepspeed", f"{subject.document.path}: a DeepSpeed config"
            yield from _deepspeed(subject)
        elif isinstance(subject, TrainingArguments):
            yield from _arguments(subject)
        elif isinstance(subject, Quantization):
            yield "bitsandbytes", f"{subject.document.path}: a quantization config"
        elif isinstance(subject, Megatron) and subject.document:
            yield "megatron-core", f"{subject.document.path}: arguments of Megatron-LM"
    if any(str(key).startswith("load_in_") and value is True for key, value in job.context.quantization.items()):
        yield "bitsandbytes", "quantization: load_in_4bit or load_in_8bit"


def _accelerate(config: AccelerateConfig) -> Iterator[Need]:
    path = config.document.path
    yield "accelerate", f"{path}: an Accelerate config"
    kinds = {"deepspeed": "deepspeed", "megatron": "megatron-core", "tpu": "torch_xla", "sagemaker": "sagemaker"}
    if config.kind in kinds:
        yield kinds[config.kind], f"{path}: distributed_type {config.document.get('distributed_type')}"
    if str(config.value("mixed_precision")).lower() == "fp8":
        backend = str(config.value("fp8_backend") or "TE").upper()
        if backend in _FP8:
            yield _FP8[backend], f"{path}: mixed_precision fp8, backend {backend}"
    attention = str(config.value("parallelism_config_sp_attn_implementation"))
    sizes = config.launch.sizes or {}
    if sizes.get("sp", 1) > 1:
        yield "deepspeed", f"{path}: parallelism_config_sp_size"
        if attention.startswith("flash_attention"):
            yield "flash-attn", f"{path}: parallelism_config_sp_attn_implementation {attention}"


def _deepspeed(config: DeepSpeedConfig) -> Iterator[Need]:
    path = config.document.path
    for block, package in _MONITORS.items():
        if is_on(config.values, block):
            yield package, f"{path}: {block}.enabled"
    if config.get("zero_optimization", "offload_optimizer", "device") in ("cpu", "nvme"):
        yield "ninja", f"{path}: offload_optimizer builds DeepSpeed's CPU Adam when the job starts"


def _arguments(config: TrainingArguments) -> Iterator[Need]:
    path, values = config.document.path if config.document else str(config.where), config.values
    yield "transformers", f"{path}: TrainingArguments"
    yield "accelerate", f"{path}: TrainingArguments"
    if values.get("deepspeed"):
        yield "deepspeed", f"{path}: deepspeed"
    optimizer = str(values.get("optim", "")).lower()
    for mark, package in _OPTIMIZERS.items():
        if mark in optimizer:
            yield package, f"{path}: optim {optimizer}"
    reporters = values.get("report_to") or []
    for name in [reporters] if isinstance(reporters, str) else reporters if isinstance(reporters, list) else []:
        if name in _REPORTERS:
            yield _REPORTERS[name], f"{path}: report_to {name}"
    if values.get("use_liger_kernel") is True:
        yield "liger-kernel", f"{path}: use_liger_kernel"


def rows(found: list[Need], installed: Mapping[str, str], python: str) -> list[dict[str, Any]]:
    return [
        {
            "package": package,
            "needed_by": why,
            "installed": installed.get(package),
            **({} if installed.get(package) else {"install": f"{python} -m pip install {package}"}),
        }
        for package, why in found
    ]
