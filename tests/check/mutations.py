"""Traps as changes of accepted configs: what is set (None deletes a key), what is set before on both sides, which configs it fits.

`also` names the rules that have to speak too, because the change really brings that about. `before` makes a config fit: a trap of
ZeRO stage 2 wants stage 2. A new trap is a new row.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

NULL = object()  # a null that is written
Config = dict[str, Any]


@dataclass(frozen=True)
class Mutation:
    trap: str
    kind: str  # "deepspeed" or "accelerate"
    change: Config
    before: Config = field(default_factory=dict)
    fits: Callable[[Config], bool] = lambda config: True
    also: tuple[str, ...] = ()
    text: Callable[[str], str] = lambda text: text  # a change of what is written, not of what it means


def put(config: Config, changes: Config) -> Config:
    """A copy of `config` with dotted keys set or deleted; a new top-level key stands at the end."""
    config = copy.deepcopy(config)
    for name, value in changes.items():
        *parents, last = name.split(".")
        here = config
        for part in parents:
            if not isinstance(here.get(part), dict):
                here[part] = {}
            here = here[part]
        if value is None:
            here.pop(last, None)
        else:
            here[last] = None if value is NULL else copy.deepcopy(value)
    return config


_Z = "zero_optimization"
_PINNED = {"device": "cpu", "pin_memory": True}


def _stage(stage: int) -> Config:
    """A block of that stage with nothing that is another trap's."""
    more = {"stage3_gather_16bit_weights_on_model_save": True} if stage == 3 else {}
    return {_Z: {"stage": stage, **more}, "optimizer": None, "scheduler": None, "aio": None}


def _optimizer(kind: str, **params: Any) -> Config:
    return {"optimizer": {"type": kind, "params": {"lr": 1e-4, **params}}}


def _scheduler(kind: str, **params: Any) -> Config:
    return {"scheduler": {"type": kind, "params": params}}


_ADAMW = {**_stage(2), **_optimizer("AdamW")}
_FP16 = {"fp16": {"enabled": True}, "bf16": None}
_BF16 = {"bf16": {"enabled": True}, "fp16": None}
_NUMBERS = {"train_batch_size": None, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": None}


def deepspeed() -> Iterator[Mutation]:
    def row(
        trap: str, change: Config, before: Config | None = None, *also: str, fits: Callable[[Config], bool] = lambda c: True
    ) -> Mutation:
        return Mutation(trap, "deepspeed", change, before or {}, fits, also)

    for name in ("amp", "elasticity", "sparse_gradients", "eigenvalue", "nebula", "progressive_layer_drop"):
        yield row("DS-REMOVED-TOP", {name: {"enabled": False}})
    yield row("DS-REMOVED-ZERO", {f"{_Z}.mics_shard_size": 4}, _stage(3))
    for block, key in (("", "overlap_com"), ("offload_optimizer.", "devise"), ("offload_param.", "pin_mem")):
        before = _stage(3) | {f"{_Z}.offload_optimizer": _PINNED, f"{_Z}.offload_param": _PINNED}
        yield row("DS-UNKNOWN-ZERO", {f"{_Z}.{block}{key}": True}, before)
    yield row("DS-UNKNOWN-ZERO", {"comms_logger": {"enable": True}})
    yield row("DS-TP-KEY", {"tensor_parallel": {"tp_size": 2}}, _stage(1))
    yield row("DS-COMPILE-KEY", {"compile": {"enabled": True}})
    yield row("DS-BF16-LOSSSCALE", {"bf16.loss_scale": 0}, _BF16)
    yield row("DS-BF16-LOSSSCALE", {"bf16.initial_scale_power": 16}, _BF16)
    yield row("DS-FP16-EXTRA", {"fp16.opt_level": "O2"}, _FP16)
    yield row("DS-FP16-FLOAT", {"fp16.min_loss_scale": 0.5}, _FP16)
    yield row("DS-FP16-LOSSSCALE-BAD", {"fp16.loss_scale": -1}, _FP16)
    yield row("DS-BOTH-16", {"fp16.enabled": True}, {**_BF16, "fp16": {"enabled": False}})
    yield row("DS-STAGE-RANGE", {f"{_Z}.stage": 4}, _stage(2))
    yield row("DS-STAGE-BOOL", {_Z: True}, _stage(1))
    yield row("DS-NUM-STR", {f"{_Z}.reduce_bucket_size": "5e8"})
    yield row("DS-BUCKET-ZERO", {f"{_Z}.reduce_bucket_size": 0})
    yield row("DS-WALL-STR", {"wall_clock_breakdown": "false"})
    yield row("DS-ALLREDUCE-SUM", {"gradient_allreduce_op": "sum"}, _stage(3))
    yield row("DS-COMMTYPE", {"communication_data_type": "fp64"})
    yield row("DS-CKPT-TAG", {"checkpoint.tag_validation": "strict"})
    yield row("DS-AUTOCAST-DTYPE", {"torch_autocast": {"enabled": True, "dtype": "bf32"}}, {"bf16": None, "fp16": None})
    yield row("DS-AUTOCAST-BOTH", {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}, _BF16)
    yield row("DS-RATIO-STAGE", {f"{_Z}.offload_optimizer.ratio": 0.5}, _stage(2) | {f"{_Z}.offload_optimizer": _PINNED})
    yield row("DS-DEPRECATED", {f"{_Z}.cpu_offload": False}, _stage(2))
    yield row("DS-DEPRECATED-PAIR", {f"{_Z}.cpu_offload": True}, _stage(2) | {f"{_Z}.offload_optimizer": _PINNED})
    for name in ("zero_optimisation", "gradient_acumulation_steps", "comms_config", "offload_optimizer"):
        yield row("DS-UNKNOWN-TOP", {name: {"stage": 2}})
    for name in ("activation_checkpointing.partitioned_activations", "flops_profiler.profile_steps", "aio.thread_count"):
        yield row("DS-UNKNOWN-SILENT-SUB", {name: 1})
    yield row("DS-EP-KEY", {"expert_parallel.ep_size": 2})
    yield row("DS-OFFP-STAGE", {f"{_Z}.offload_param": _PINNED}, _stage(2))
    yield row("DS-OFFO-STAGE0", {f"{_Z}.offload_optimizer": _PINNED}, _stage(0))
    yield row("DS-SUPEROFFLOAD-STAGE", {f"{_Z}.offload_optimizer.super_offload": True}, _stage(2) | {f"{_Z}.offload_optimizer": _PINNED})
    yield row("DS-STAGE3-KEYS", {f"{_Z}.stage3_max_live_parameters": 1000}, _stage(2))
    yield row("DS-ROUNDROBIN-STAGE", {f"{_Z}.round_robin_gradients": True}, _stage(3))
    nvme = {"device": "nvme", "pin_memory": True}
    aio = {"aio": {"queue_depth": 16}}
    yield row("DS-NVME-NOPATH", {f"{_Z}.offload_param": nvme}, _stage(3) | aio)
    yield row("DS-NVME-STAGE2", {f"{_Z}.offload_optimizer": {**nvme, "nvme_path": "/nvme"}}, _stage(2) | aio)
    yield row("DS-NVME-AIO", {f"{_Z}.offload_param": {**nvme, "nvme_path": "/nvme"}}, _stage(3))
    yield row("DS-PINMEM-DEFAULT", {f"{_Z}.offload_optimizer": {"device": "cpu"}}, _stage(2))
    yield row("DS-CLIP-DEFAULT", {"gradient_clipping": None}, {"gradient_clipping": 1.0})
    yield row("DS-OVERLAP-DEFAULT", {f"{_Z}.overlap_comm": None}, _stage(2) | {f"{_Z}.overlap_comm": True})
    yield row("DS-STEPSPRINT-DEFAULT", {"steps_per_print": None}, {"steps_per_print": 10})
    yield row("DS-BF16-OVERFLOW-DEFAULT", {"bf16.check_grad_overflow": None}, _BF16 | {"bf16.check_grad_overflow": True})
    yield row("ADS-Z3-NOSAVE", {f"{_Z}.stage3_gather_16bit_weights_on_model_save": None}, _stage(3))
    yield row("DS-PRESCALE", {"prescale_gradients": True}, _stage(2))
    yield row("DS-LEGACY1", {f"{_Z}.legacy_stage1": True}, _stage(1))
    yield row("DS-MASTER16", {"fp16.fp16_master_weights_and_grads": True}, _stage(0) | _FP16)
    yield row("DS-COMPUTE-NORM", {f"{_Z}.compute_grad_norm": False}, _stage(2) | {"gradient_clipping": 1.0})
    yield row("DS-ZENFLOW-OFFLOAD", {f"{_Z}.zenflow": {"topk_ratio": 0.1}}, _stage(2))
    yield row("DS-AUTOTP-Z3", {"tensor_parallel": {"autotp_size": 2}}, _stage(3))
    yield row("DS-DATATYPES-CLASH", {"data_types": {"param_dtype": "fp16"}}, _BF16)
    yield row("DS-ELASTICCKPT", {f"{_Z}.elastic_checkpoint": True}, _stage(3))
    yield row("DS-REMOVED-OPT", _optimizer("OneBitAdam"), _ADAMW)
    yield row("DS-OPT-UNKNOWN", _optimizer("adamw_torch"), _ADAMW)
    yield row("DS-OPT-MAXGRAD", {"optimizer.params.max_grad_norm": 1.0}, _ADAMW)
    yield row("DS-OPT-LAMB", _optimizer("Lamb"), {**_ADAMW, **_BF16})
    yield row("DS-OPT-MUON-Z3", _optimizer("Muon"), _stage(3) | _optimizer("AdamW"))
    yield row("DS-LR-STR", {"optimizer.params.lr": "1e-5"}, _ADAMW)
    yield row("DS-OPT-ADAMISADAMW", _optimizer("Adam", weight_decay=0.1), _ADAMW)
    yield row("DS-SCHED-NAME", _scheduler("CosineWarmup"), _ADAMW)
    yield row("DS-SCHED-WARMUP0", _scheduler("WarmupLR", warmup_num_steps=0), _ADAMW)
    yield row("DS-SCHED-NOTOTAL", _scheduler("WarmupDecayLR", warmup_max_lr=1e-4, warmup_num_steps=10), _ADAMW)
    yield row("DS-SCHED-PARAM", _scheduler("WarmupLR", warmup_steps=10), _ADAMW)
    yield row("DS-SCHED-MAXLR", _scheduler("WarmupDecayLR", total_num_steps=1000, warmup_num_steps=10), _ADAMW)
    yield row("DS-SCHED-TOTAL-SHORT", _scheduler("WarmupDecayLR", total_num_steps=5, warmup_num_steps=10, warmup_max_lr=1e-4), _ADAMW)
    yield row("DS-SCHED-WARMTYPE", _scheduler("WarmupLR", warmup_type="cosine"), _ADAMW)
    yield row("DS-BATCH-STR", {"gradient_accumulation_steps": "8"}, {**_NUMBERS, "gradient_accumulation_steps": 8})
    yield row("DS-BATCH-TRIANGLE", {"train_batch_size": 7}, {**_NUMBERS, "train_micro_batch_size_per_gpu": 2, "train_batch_size": 8})
    yield row("DS-BATCH-NONE", {"train_micro_batch_size_per_gpu": None}, _NUMBERS, fits=lambda c: "auto" not in str(c))
    yield row("ADS-BATCH-NONE", {"train_micro_batch_size_per_gpu": None}, {**_NUMBERS, "gradient_clipping": "auto", _Z: {"stage": 1}})
    yield row("ADS-NO-ZERO", {_Z: None}, {**_stage(0), "gradient_clipping": "auto", "train_micro_batch_size_per_gpu": "auto"})


def _typed(kind: str, **more: Any) -> Config:
    """A job of that kind with its blocks alone, in bf16."""
    blocks = (
        "fsdp_config",
        "deepspeed_config",
        "megatron_lm_config",
        "parallelism_config",
        "fp8_config",
        "dynamo_config",
        "dynamo_backend",
    )
    return {**dict.fromkeys(blocks), "distributed_type": kind, "mixed_precision": "bf16", "num_processes": 8, "use_cpu": None, **more}


_WRAP = {"fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer"}
_ONE = {"num_machines": 1, "machine_rank": 0, "main_process_ip": None, "main_process_port": None, "gpu_ids": None, "rdzv_backend": None}
_GPUS = _typed("MULTI_GPU") | _ONE
_F1 = _typed("FSDP", fsdp_config={"fsdp_version": 1, "fsdp_sharding_strategy": "FULL_SHARD", **_WRAP}) | _ONE
_F2 = _typed("FSDP", fsdp_config={"fsdp_version": 2, "fsdp_reshard_after_forward": True, **_WRAP}) | _ONE
_DS = _typed("DEEPSPEED", deepspeed_config={"zero_stage": 2, "gradient_clipping": 1.0}) | _ONE
_DS3 = put({}, _DS | {"deepspeed_config.zero_stage": 3, "deepspeed_config.zero3_save_16bit_model": True})
_MACHINES = {"num_machines": 2, "num_processes": 16, "main_process_ip": "10.0.0.1", "main_process_port": 29500}


def _sizes(**axes: Any) -> Config:
    return {"parallelism_config": {f"parallelism_config_{axis}": size for axis, size in axes.items()}}


def accelerate() -> Iterator[Mutation]:
    def row(
        trap: str, change: Config, before: Config | None = None, *also: str, fits: Callable[[Config], bool] = lambda c: True
    ) -> Mutation:
        return Mutation(trap, "accelerate", change, before or {}, fits, also)

    def fsdp(name: str, value: Any) -> Config:
        return {f"fsdp_config.{name}": value}

    def ds(name: str, value: Any) -> Config:
        return {f"deepspeed_config.{name}": value}

    for name in ("num_gpus", "gradient_accumulation_steps", "fsdp_version", "mixed_precison", "lr_scheduler"):
        yield row("ACC-UNKNOWN-TOP", {name: 4})
    yield row("ACC-TOP-IPEX", {"ipex_config": {"ipex": True}})
    yield row("ACC-TOP-TPCONFIG", {"tp_config": {"tp_size": 2}})
    for block, base in (("fsdp_config.fsdp_limit_all_gathers", _F1), ("deepspeed_config.stage", _DS)):
        yield row("ACC-UNKNOWN-NESTED", {block: 3}, base)
    yield row("ACC-NESTED-NOTDICT", {"fsdp_config": "fsdp.json"}, _typed("FSDP", fsdp_config={}) | _ONE)
    yield row("ACC-MPIRUN-CCL", {"mpirun_config.mpirun_ccl": 1})
    yield row("FSDP-OLDKEY-PREFETCH", fsdp("fsdp_backward_prefetch_policy", "BACKWARD_PRE"), _F1)
    yield row("FSDP-OLDKEY-CLS", fsdp("fsdp_transformer_cls_names_to_wrap", "LlamaDecoderLayer"), _F1)
    yield row("PAR-PREFIX", {"parallelism_config.dp_shard_size": 8}, _F2)
    yield row("MEG-PREFIX", {"megatron_lm_config.tp_degree": 2}, _megatron())
    yield row(
        "FP8-CONFIG-KEYS",
        {"fp8_config": {"backend": "TE", "amax_history_length": 16}},
        _GPUS | {"mixed_precision": "fp8", "fp8_config": {"backend": "TE"}},
    )
    yield row("ACC-KEY-IGNORED-TOP", {"enable_cpu_affinity": True})
    yield row("ACC-DOWNCAST-STR", {"downcast_bf16": "no"}, _GPUS | {"downcast_bf16": None})
    yield row("TPU-DOWNCAST", {"downcast_bf16": True}, _typed("XLA") | _ONE | {"downcast_bf16": None})
    for value in ("fsdp", "multi_gpu", "TPU"):
        yield row("ACC-DT-CASE", {"distributed_type": value}, _GPUS)
    yield row("ACC-DT-MISSING", {"distributed_type": None}, _GPUS)
    yield row("ACC-DT-NO-YAML", {"distributed_type": False}, _typed("NO") | _ONE)
    yield row("ACC-MP-NO-YAML", {"mixed_precision": False}, _GPUS)
    yield row("ACC-DYN-NO-YAML", {"dynamo_config": {"dynamo_backend": False}}, _GPUS)
    for value in ("fp32", "bfloat16", "float16"):
        yield row("ACC-MP-VALUE", {"mixed_precision": value}, _GPUS)
    yield row("ACC-CE-VALUE", {"compute_environment": "LOCAL"}, {"compute_environment": "LOCAL_MACHINE"})
    yield row("ACC-GPUIDS-TYPE", {"gpu_ids": [0, 1]}, _GPUS | {"num_processes": 2})
    yield row("ACC-GPUIDS-ONE", {"gpu_ids": "0"}, _GPUS | {"num_processes": 1})
    yield row("ACC-GPUIDS-COUNT", {"gpu_ids": "0,1"}, _GPUS)
    yield row("ACC-NP-NULL", {"num_processes": NULL}, _GPUS)
    yield row("ACC-NP-ZERO", {"num_processes": 0}, _GPUS)
    yield row("ACC-NP-STR", {"num_processes": "16"}, _GPUS | _MACHINES)
    yield row("ACC-NP-MISSING", {"num_processes": None}, _GPUS)
    yield row("ACC-NP-DIV", {"num_processes": 7}, _GPUS | _MACHINES)
    yield row("ACC-NM-NOIP", {"main_process_ip": NULL}, _GPUS | _MACHINES)
    yield row("ACC-NM-RDZV", {"rdzv_backend": "c10d"}, _GPUS | _MACHINES, "ACC008")
    for address in ("user@10.0.0.1", "http://node1", "10.0.0.1:29500"):
        yield row("ACC-IP-FORMAT", {"main_process_ip": address}, _GPUS | _MACHINES)
    yield row("ACC-TYPE-MISMATCH", {"deepspeed_config": {"zero_stage": 3}}, _GPUS)
    yield row("ACC-USECPU", {"use_cpu": True}, _GPUS | {"use_cpu": False})
    yield row(
        "ACC-MULTICPU-ONE", {"mpirun_config": None}, _typed("MULTI_CPU") | _ONE | {"mpirun_config": {"mpirun_hostfile": "/job/hosts"}}
    )
    yield row(
        "CPU-GLOO-BF16", {"mixed_precision": "fp16"}, _typed("MULTI_CPU") | _ONE | {"mpirun_config": {"mpirun_hostfile": "/job/hosts"}}
    )
    yield row("TPU-FP16", {"mixed_precision": "fp16"}, _typed("XLA") | _ONE | {"downcast_bf16": None})
    yield row("HPU-FP16", {"mixed_precision": "fp16"}, _typed("MULTI_HPU") | _ONE)
    yield from _sharded(row, fsdp)
    yield from _plugin(row, ds)
    yield from _parallel(row)


def _megatron(**more: Any) -> Config:
    block = {"megatron_lm_tp_degree": 1, "megatron_lm_context_parallel_size": 1, **{f"megatron_lm_{k}": v for k, v in more.items()}}
    return _typed("MEGATRON_LM", megatron_lm_config=block) | _ONE


def _sharded(row: Any, fsdp: Any) -> Iterator[Mutation]:
    yield row("FSDP-POLICY-VALUE", fsdp("fsdp_auto_wrap_policy", "TRANSFORMER"), _F2)
    yield row("FSDP-ENUM-KEYERROR", fsdp("fsdp_state_dict_type", "FULL"), _F2)
    yield row("FSDP-ENUM-KEYERROR", fsdp("fsdp_sharding_strategy", "FULL"), _F1)
    yield row("FSDP-OFFLOAD-VALUE", fsdp("fsdp_offload_params", "cpu"), _F2)
    yield row("FSDP-VERSION-RANGE", fsdp("fsdp_version", 3), _F2)
    yield row("FSDP-RESHARD-V2-STR", fsdp("fsdp_reshard_after_forward", "FULL_SHARD"), _F2)
    size = {"fsdp_config.fsdp_auto_wrap_policy": "SIZE_BASED_WRAP", "fsdp_config.fsdp_transformer_layer_cls_to_wrap": None}
    sized = put({}, _F2 | size | {"fsdp_config.fsdp_min_num_params": 2000})
    yield row("FSDP-MINPARAMS-SCI", fsdp("fsdp_min_num_params", "1e8"), {**_F2, **_kept(sized)})
    yield row("FSDP-MINPARAMS-ZERO", fsdp("fsdp_min_num_params", 0), {**_F2, **_kept(sized)})
    yield row("FSDP-RAM-SYNC", fsdp("fsdp_sync_module_states", False), _F1)
    yield row("FSDP-LOCALSD-V2", fsdp("fsdp_state_dict_type", "LOCAL_STATE_DICT"), _F2)
    yield row("FSDP-AC-OFFLOAD", fsdp("fsdp_activation_checkpointing_offload", True), _F2)
    yield row("FSDP-RESHARD-V1", fsdp("fsdp_reshard_after_forward", "SHARD_GRAD_OP"), _F1)
    yield row("FSDP-STRATEGY-V2", fsdp("fsdp_sharding_strategy", "SHARD_GRAD_OP"), _F2)
    for key, value in (("fsdp_use_orig_params", False), ("fsdp_backward_prefetch", "BACKWARD_POST"), ("fsdp_forward_prefetch", True)):
        yield row("FSDP-V2-DEAD-KEYS", fsdp(key, value), _F2)
    yield row("FSDP-CLS-LIST", fsdp("fsdp_transformer_layer_cls_to_wrap", ["LlamaDecoderLayer", "LlamaMLP"]), _F2)
    yield row("FSDP-CLS-SPACE", fsdp("fsdp_transformer_layer_cls_to_wrap", "LlamaDecoderLayer, LlamaMLP"), _F2)
    yield row("FSDP-CLS-EMPTY", fsdp("fsdp_transformer_layer_cls_to_wrap", ""), _F2)
    yield row("FSDP-CLS-NOPOLICY", fsdp("fsdp_auto_wrap_policy", None), _F2)
    yield row("FSDP-CLS-ABSENT", fsdp("fsdp_transformer_layer_cls_to_wrap", None), _F2)
    yield row("FSDP-VERSION-DEFAULT", fsdp("fsdp_version", None), _F1)
    yield row("FSDP-SHARDED-FINAL", fsdp("fsdp_state_dict_type", "SHARDED_STATE_DICT"), _F2)
    yield row("FSDP-1PROC", {"num_processes": 1}, _F2)
    yield row("FSDP-MP-NO", {"mixed_precision": "no"}, _F2)
    unwrapped = put({}, _F1 | {"fsdp_config.fsdp_auto_wrap_policy": "NO_WRAP", "fsdp_config.fsdp_transformer_layer_cls_to_wrap": None})
    yield row("FSDP-HYBRID-NOWRAP", fsdp("fsdp_sharding_strategy", "HYBRID_SHARD"), {**_F1, **_kept(unwrapped)})
    compiled = {"dynamo_config": {"dynamo_backend": "INDUCTOR", "dynamo_use_dynamic": True}}
    yield row("FSDP-COMPILE-ORIG", fsdp("fsdp_use_orig_params", False), _F1 | compiled)
    yield row("DYN-DYNAMIC-FALSE", {"dynamo_config.dynamo_use_dynamic": None}, _GPUS | compiled)
    yield row("DYN-MODE", {"dynamo_config.dynamo_mode": "fastest"}, _GPUS | compiled)
    yield row("DYN-FULLGRAPH-DYNAMIC", {"dynamo_config.dynamo_use_fullgraph": True}, _GPUS | compiled)
    eight = {"mixed_precision": "fp8"}
    yield row("FP8-NO-MP", {"mixed_precision": "bf16"}, _GPUS | eight | {"fp8_config": {"backend": "TE"}})
    yield row("FP8-MSAMP-FSDP", {"fp8_config": {"backend": "MSAMP"}}, _F2 | eight | {"fp8_config": {"backend": "TE"}})
    yield row("FP8-AO-RAM", {"fp8_config": {"backend": "AO"}}, _F2 | eight | {"fp8_config": {"backend": "TE"}})
    tensor = {"fp8_config": {"backend": "AO"}, "fsdp_config.fsdp_cpu_ram_efficient_loading": False}
    yield row("FP8-AO-FSDP1", {"fp8_config.enable_fsdp_float8_all_gather": True}, {**put(_F1, tensor), "mixed_precision": "fp8"})
    yield row(
        "FP8-OVERRIDE-STR", {"fp8_config.override_linear_precision": "false,false,true"}, _GPUS | eight | {"fp8_config": {"backend": "TE"}}
    )
    yield row("FP8-BACKEND-NAME", {"fp8_config.backend": "TRANSFORMER_ENGINE"}, _GPUS | eight | {"fp8_config": {"backend": "TE"}})


def _kept(config: Config) -> Config:
    """The blocks of a prepared config; a block of `put` stands as a whole."""
    return {key: value for key, value in config.items() if isinstance(value, dict)}


def _plugin(row: Any, ds: Any) -> Iterator[Mutation]:
    yield row("ADS-NVME-PATH", ds("offload_optimizer_device", "nvme"), {**_DS, **_kept(_DS3)})
    yield row("ADS-Z3INIT-STAGE", ds("zero3_init_flag", True), _DS)
    yield row("ADS-OFFP-STAGE", ds("offload_param_device", "cpu"), _DS)
    yield row("ADS-Z3SAVE-BOOL", ds("zero3_save_16bit_model", "yes"), {**_DS, **_kept(_DS3)})
    yield row("ADS-Z3-NOSAVE", ds("zero3_save_16bit_model", None), {**_DS, **_kept(_DS3)})
    yield row("ADS-CLIP-ZERO", ds("gradient_clipping", 0), _DS)
    yield row("ADS-CLIP-AUTO", ds("gradient_clipping", None), _DS)
    yield row("ADS-GAS-AUTO", ds("gradient_accumulation_steps", "auto"), _DS)
    yield row("ADS-LAUNCHER-PDSH", ds("deepspeed_multinode_launcher", None), {**_DS, **_MACHINES, **_standard()})
    yield row("ADS-LAUNCHER-NAME", ds("deepspeed_multinode_launcher", "standart"), {**_DS, **_MACHINES, **_standard()})
    yield row(
        "ADS-MISSING-FILE", {"deepspeed_config": {"deepspeed_config_file": "nowhere/to_be_found.json"}}, _DS | {"mixed_precision": None}
    )
    eight = _DS | {"mixed_precision": "fp8", "fp8_config": {"backend": "MSAMP", "opt_level": "O2"}}
    yield row("FP8-MSAMP-Z3", ds("zero_stage", 3) | ds("zero3_save_16bit_model", True), eight)
    yield row("FP8-MSAMP-CASE", {"fp8_config.backend": "msamp"}, eight)


def _standard() -> Config:
    return {"deepspeed_config": {"zero_stage": 2, "gradient_clipping": 1.0, "deepspeed_multinode_launcher": "standard"}}


def _parallel(row: Any) -> Iterator[Mutation]:
    good = _F2 | _sizes(dp_shard_size=8)
    yield row("PAR-PRODUCT", _sizes(dp_shard_size=4), good)
    yield row("PAR-NEG", _sizes(dp_shard_size=-1), good)
    yield row("PAR-CP-SP", _sizes(cp_size=2, sp_size=2, dp_shard_size=2), good)
    yield row("PAR-TP-DDP", _sizes(dp_replicate_size=4, tp_size=2), good)
    yield row("PAR-CP-COMM", _sizes(dp_shard_size=4, cp_size=2, cp_comm_strategy="ring"), good)
    yield row("PAR-CP-BACKEND", _sizes(dp_shard_size=4, cp_size=2, cp_backend="deepspeed"), good)
    yield row("PAR-FSDP1", {"fsdp_config.fsdp_version": 1, "fsdp_config.fsdp_reshard_after_forward": None}, good)
    yield row("PAR-NOSHARD", _sizes(tp_size=8), good)
    yield row("PAR-CP-NOFSDP", _sizes(cp_size=8), _GPUS)
    yield row("PAR-SP-FSDP", _sizes(dp_shard_size=4, sp_size=2), good)
    spread = _DS | _sizes(dp_replicate_size=4, sp_size=2)
    yield row("PAR-SP-ATTN", _sizes(dp_replicate_size=4, sp_size=2, sp_attn_implementation="eager"), spread)
    yield row("PAR-SP-SEQLEN", _sizes(dp_replicate_size=4, sp_size=2, sp_seq_length_is_variable=False), spread)
    yield row("DS-SP-STAGE0", {"deepspeed_config.zero_stage": 0}, spread)
    yield row("PAR-CP-DS", _sizes(dp_shard_size=4, cp_size=2), _DS)
    yield row("MEG-CP-DEFAULT", {"megatron_lm_config.megatron_lm_context_parallel_size": None}, _megatron())
    yield row("MEG-DIV", {"megatron_lm_config.megatron_lm_tp_degree": 3}, _megatron())
    yield row("MEG-RECOMPUTE", {"megatron_lm_config.megatron_lm_recompute_granularity": "selective"}, _megatron())
    yield row("MEG-SP-TP1", {"megatron_lm_config.megatron_lm_sequence_parallelism": True}, _megatron())
    yield row("MEG-PP-MICRO", {"megatron_lm_config.megatron_lm_pp_degree": 4}, _megatron())


def texts() -> Iterator[Mutation]:
    """Traps that a value cannot show."""
    twice = {"num_processes": 8}
    yield Mutation("ACC-DUPKEY", "accelerate", {}, twice, text=lambda text: f"{text}num_processes: 8\n")
    yield Mutation(
        "ACC-DUPKEY", "deepspeed", {}, {"steps_per_print": 5}, also=("DS009",), text=lambda text: text[:-1] + ', "steps_per_print": 5}'
    )
    yield Mutation("ADS-JSON-STRICT", "deepspeed", {}, text=lambda text: text[:-1] + ",}")
    yield Mutation("ADS-JSON-STRICT", "deepspeed", {}, text=lambda text: text[:-1] + " // done\n}")
    yield Mutation("ACC-EMPTY", "accelerate", {}, text=lambda text: "# nothing\n")


MUTATIONS = [*deepspeed(), *accelerate(), *texts()]
