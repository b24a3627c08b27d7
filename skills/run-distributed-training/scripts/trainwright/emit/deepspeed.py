# emit/deepspeed.py without its comments
from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainwright.document import Document
from trainwright.emit.accelerate_file import nearest, shown
from trainwright.emit.reading import KeyUse, Reading
from trainwright.errors import UserError
from trainwright.job import Job
from trainwright.strategy import Precision, Strategy

BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
OURS = (*BATCH, "gradient_clipping", "optimizer")
PASSED = (
    *("zero_optimization", "bf16", "fp16", "torch_autocast", "data_types", "scheduler", "communication_data_type"),
    *("prescale_gradients", "gradient_predivide_factor", "disable_allgather", "checkpoint", "aio", "comms_logger"),
    *("wall_clock_breakdown", "memory_breakdown", "steps_per_print", "dump_state", "timers", "log_level"),
    *("disable_python_gc", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "seq_parallel_communication_data_type"),
)
_OWN_RECORDS = "the reference trainer keeps its own records"
_OWN_MODEL = "the reference trainer's own models do not use it"
LEFT_OUT = {
    **dict.fromkeys(("tensorboard", "wandb", "csv_monitor", "comet", "flops_profiler"), _OWN_RECORDS),
    **dict.fromkeys(("pipeline", "data_efficiency", "dataloader_drop_last", "vocabulary_size", "datastates_ckpt"), _OWN_MODEL),
    "activation_checkpointing": "only a model that calls deepspeed.checkpointing reads it; the job's activation_checkpoint_every decides",
    "autotuning": "DeepSpeed's launcher reads it, and the job's launcher is torchrun",
    "compile": "the job's compile decides",
    "weight_quantization": _OWN_MODEL,
    "use_data_before_expert_parallelism": _OWN_MODEL,
}
REFUSED: dict[str, tuple[str, tuple[Any, ...]]] = {
    "tensor_parallel": ("autotp_size", (0, 1)),
    "hybrid_engine": ("enabled", (False,)),
    "expert_parallel": ("enabled", (False,)),
    "sequence_parallel_size": ("", (1,)),
    "gradient_allreduce_op": ("", ("mean",)),
    "managed_gradient_accumulation": ("", (True,)),
}
REMOVED = (
    *("amp", "elasticity", "sparse_attention", "compression_training", "nebula", "quantize_training", "sparse_gradients"),
    *("eigenvalue", "graph_harvesting", "curriculum_learning", "progressive_layer_drop"),
)
TOP = (*OURS, *PASSED, *LEFT_OUT, *REFUSED, *REMOVED)
_MARKS = {*BATCH, "zero_optimization", "gradient_clipping", "bf16", "fp16", "optimizer"}
CLIPPING = 1.0
OPTIMIZER_DEFAULTS = {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}
_OPTIMIZER_FIELDS = {"lr": "learning_rate", "weight_decay": "weight_decay", "eps": "eps"}


def is_deepspeed(document: Document) -> bool:
    value = document.value
    return isinstance(value, dict) and bool(_MARKS & value.keys()) and not {"distributed_type", "compute_environment"} & value.keys()


def read(document: Document) -> Reading:
    config = document.value
    _refuse(document, config)
    strategy = Strategy("zero", precision=_precision(document, config), cpu_offload=_offloads(config), zero_stage=_stage(document, config))
    uses = [(applied, KeyUse(key, value, meaning)) for key, value, applied, meaning in _uses(config, strategy)]
    return Reading(
        strategy,
        None,
        tuple(use for applied, use in uses if applied),
        tuple(use for applied, use in uses if not applied),
        dict(_job_fields(document, config)),
    )


def _error(document: Document, path: tuple[str, ...], reason: str) -> UserError:
    return UserError(f"{document.at(*path)}: {'.'.join(path)}: {reason}")


def _refuse(document: Document, config: dict[str, Any]) -> None:
    for key in REMOVED:
        if key in config:
            raise _error(document, (key,), "DeepSpeed 0.19.8 refuses the key, whatever its value; delete it")
    for key, harmless in REFUSED.items():
        inner, allowed = harmless
        value = _block(config, key).get(inner) if inner else config.get(key)
        path = (key, inner) if inner else (key,)
        if value is not None and value not in allowed:
            raise _error(document, path, f"{shown(value)} is not supported by the reference trainer: it does plain data parallelism")
    for key in ("zero_optimization", "bf16", "fp16", "torch_autocast", "optimizer", "scheduler"):
        if config.get(key) is not None and not isinstance(config[key], dict):
            raise _error(document, (key,), f"{shown(config[key])} is no block of keys")
    for block in ("offload_optimizer", "offload_param"):
        if _block(_block(config, "zero_optimization"), block).get("device") == "nvme":
            raise _error(
                document, ("zero_optimization", block, "device"), "nvme is not supported by the reference trainer: cpu and none are"
            )
    _refuse_optimizer(document, _block(config, "optimizer"))


def _refuse_optimizer(document: Document, optimizer: dict[str, Any]) -> None:
    if not optimizer:
        return
    name, params = optimizer.get("type"), _block(optimizer, "params")
    if str(name).lower() not in ("adam", "adamw"):
        raise _error(document, ("optimizer", "type"), f"{shown(name)} is not supported by the reference trainer: AdamW is")
    if str(name).lower() == "adam" and params.get("adam_w_mode") is False and params.get("weight_decay"):
        raise _error(document, ("optimizer", "params", "adam_w_mode"), "the reference trainer decays weights as AdamW does; write true")
    if "max_grad_norm" in params:
        raise _error(
            document, ("optimizer", "params", "max_grad_norm"), "DeepSpeed refuses it here; write gradient_clipping at the top level"
        )


def _stage(document: Document, config: dict[str, Any]) -> int:
    stage = _block(config, "zero_optimization").get("stage", 0)
    if type(stage) is not int or stage not in (1, 2, 3):
        where = ("zero_optimization", "stage") if _block(config, "zero_optimization") else ("zero_optimization",)
        raise _error(document, where, f"ZeRO stage {shown(stage)} shards nothing; write stage 1, 2 or 3 (plain DDP: an Accelerate file)")
    return stage


def _precision(document: Document, config: dict[str, Any]) -> Precision:
    names: tuple[Precision, ...] = ("bf16", "fp16")
    asked = [name for name in names if _block(config, name).get("enabled") is True]
    if len(asked) > 1:
        raise _error(document, ("fp16", "enabled"), "bf16 and fp16 are both enabled; DeepSpeed takes one of them")
    autocast = _block(config, "torch_autocast")
    if autocast.get("enabled") is True and not asked:
        return "fp16" if str(autocast.get("dtype", "")).endswith(("fp16", "float16")) and "bfloat" not in str(autocast["dtype"]) else "bf16"
    return asked[0] if asked else "fp32"


def _offloads(config: dict[str, Any]) -> bool:
    zero = _block(config, "zero_optimization")
    return any(_block(zero, name).get("device") == "cpu" for name in ("offload_optimizer", "offload_param"))


def _block(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = config.get(key)
    return value if isinstance(value, dict) else {}


def _job_fields(document: Document, config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    names = {"train_batch_size": "global_batch", "train_micro_batch_size_per_gpu": "micro_batch"}
    names["gradient_accumulation_steps"] = "accumulation"
    for key, field in names.items():
        value = config.get(key)
        if value in (None, "auto"):
            continue
        if type(value) is not int or value < 1:
            raise _error(document, (key,), f"{shown(value)} is no number of samples")
        yield field, value
    clipping = config.get("gradient_clipping", CLIPPING)
    if clipping != "auto":
        if type(clipping) not in (int, float) or not 0 <= clipping < 1e18:
            raise _error(document, ("gradient_clipping",), f"{shown(clipping)} is no norm; a number, and 0 for none")
        yield "clip_norm", float(clipping) or None
    yield from _optimizer_fields(document, _block(config, "optimizer"))
    if "type" in _block(config, "scheduler"):
        yield "schedule", "constant"
        yield "warmup_steps", 0


def _optimizer_fields(document: Document, optimizer: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    if not optimizer:
        return
    params: dict[str, Any] = OPTIMIZER_DEFAULTS | {k: v for k, v in _block(optimizer, "params").items() if v is not None}
    for key, field in _OPTIMIZER_FIELDS.items():
        if params[key] == "auto":
            continue
        if type(params[key]) not in (int, float):
            raise _error(document, ("optimizer", "params", key), f"{shown(params[key])} is no number")
        yield field, float(params[key])
    betas = params["betas"]
    if betas == "auto":
        return
    if not (isinstance(betas, list) and len(betas) == 2 and all(type(beta) in (int, float) for beta in betas)):
        raise _error(document, ("optimizer", "params", "betas"), f"{shown(betas)} is no pair of numbers")
    yield "beta1", float(betas[0])
    yield "beta2", float(betas[1])


def _uses(config: dict[str, Any], strategy: Strategy) -> Iterator[tuple[str, Any, bool, str]]:
    for key, value in config.items():
        if key in LEFT_OUT:
            yield key, value, False, LEFT_OUT[key]
        elif key in REFUSED:
            yield key, value, False, "nothing is asked: it is off"
        elif key not in TOP:
            like = nearest(key, TOP)
            yield str(key), value, False, "DeepSpeed does not read it" + (f"; {like} is what it reads" if like else "")
        elif key in ("zero_optimization", "optimizer") and isinstance(value, dict):
            inner = value if key == "zero_optimization" else {"type": value.get("type"), **_block(value, "params")}
            yield from (_use_inner(key, name, item, strategy) for name, item in inner.items())
        elif value == "auto":
            yield key, value, True, "filled in from the job"
        else:
            yield key, value, True, _top_meaning(key, strategy)


def _top_meaning(key: str, strategy: Strategy) -> str:
    said = {
        "bf16": f"compute in {strategy.precision}",
        "fp16": f"compute in {strategy.precision}",
        "gradient_clipping": "the job's clip_norm",
    }
    said |= dict(zip(BATCH, ("the job's global_batch", "the job's micro_batch", "the job's accumulation"), strict=True))
    return said.get(key, "handed to deepspeed.initialize")


def _use_inner(block: str, key: str, value: Any, strategy: Strategy) -> tuple[str, Any, bool, str]:
    if block == "optimizer":
        known = {"type": "torch's AdamW, fused", "lr": "the job's learning_rate", "betas": "the job's beta1 and beta2"}
        known |= {"eps": "the job's eps", "weight_decay": "the job's weight_decay"}
        where = f"optimizer.{key}" if key == "type" else f"optimizer.params.{key}"
        return where, value, key in known, known.get(key, "the reference trainer's optimizer is torch's AdamW, which has no such setting")
    meaning = f"ZeRO stage {strategy.zero_stage}" if key == "stage" else "handed to deepspeed.initialize"
    return f"zero_optimization.{key}", value, True, meaning


def engine_config(config: Mapping[str, Any], job: Job, hidden_size: int, offload: bool) -> dict[str, Any]:
    passed = {key: value for key, value in config.items() if key in PASSED}
    zero = {key: _filled(key, value, job, hidden_size) for key, value in passed["zero_optimization"].items()}
    if not offload:
        zero = {key: value for key, value in zero.items() if key not in ("offload_optimizer", "offload_param")}
    if isinstance(passed.get("scheduler"), dict):
        params = _block(passed["scheduler"], "params")
        passed["scheduler"] = passed["scheduler"] | {"params": {k: _filled(k, v, job, hidden_size) for k, v in params.items()}}
    return {
        **{key: value for key, value in passed.items() if value != "auto"},
        "zero_optimization": zero,
        "train_micro_batch_size_per_gpu": job.micro_batch,
        "gradient_accumulation_steps": job.accumulation,
        "gradient_clipping": job.clip_norm or 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }


def _filled(key: str, value: Any, job: Job, hidden_size: int) -> Any:
    if value != "auto":
        return value
    filled = {
        "reduce_bucket_size": hidden_size**2,
        "stage3_prefetch_bucket_size": int(0.9 * hidden_size**2),
        "stage3_param_persistence_threshold": 10 * hidden_size,
        "warmup_min_lr": 0.0,
        "warmup_max_lr": job.learning_rate,
        "warmup_num_steps": max(job.warmup_steps, 1),
        "total_num_steps": job.last_step,
    }
    return filled.get(key, value)
