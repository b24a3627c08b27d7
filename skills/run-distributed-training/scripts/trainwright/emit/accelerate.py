# emit/accelerate.py without its comments
from __future__ import annotations

from typing import Any

from trainwright.document import Document
from trainwright.emit import mesh
from trainwright.emit.accelerate_file import AccelerateFile, Setting, accelerate_file, is_count, shown, table
from trainwright.emit.reading import KeyUse, Reading
from trainwright.errors import UserError
from trainwright.model import ModelSpec
from trainwright.strategy import Kind, Precision, Strategy
from trainwright.version import VERSION

_PRECISIONS: dict[str, Precision] = {"no": "fp32", "bf16": "bf16", "fp16": "fp16"}
_KINDS: dict[str, Kind] = {"NO": "single", "MULTI_CPU": "ddp", "MULTI_GPU": "ddp", "MULTI_XPU": "ddp", "FSDP": "fsdp"}
_DDP_TYPES = {"cpu": "MULTI_CPU", "cuda": "MULTI_GPU", "xpu": "MULTI_XPU"}
_LAUNCHER = "launcher's own: the job's launcher decides"
_NOT_YET = "not supported by the reference trainer yet"


def write(strategy: Strategy, world_size: int, device: str) -> str:
    if device not in _DDP_TYPES:
        raise UserError(f"an Accelerate file cannot be written for the device {device!r}; the devices are {', '.join(_DDP_TYPES)}")
    _expressible(strategy, world_size)
    kind = {"single": "'NO'", "ddp": _DDP_TYPES[device], "fsdp": "FSDP"}[strategy.kind]
    precision = {"fp32": "'no'  # quoted: YAML reads a bare no as false"}.get(strategy.precision, strategy.precision)
    lines = [
        f"# Written by trainwright {VERSION}: {strategy.name} on {world_size} {device} rank{'s' if world_size != 1 else ''}.",
        *_launch_note(strategy, device),
        "compute_environment: LOCAL_MACHINE",
        f"distributed_type: {kind}",
        f"num_processes: {world_size}  # all ranks of the job, not those of one machine",
        f"mixed_precision: {precision}",
        *_device_lines(strategy, device),
        *(_fsdp_lines(strategy) if strategy.kind == "fsdp" else []),
        *mesh.lines(strategy.replicas, world_size),
    ]
    return "".join(f"{line}\n" for line in lines)


def _expressible(strategy: Strategy, world_size: int) -> None:
    problems = [f"the class name {name!r}" for name in strategy.wrap_classes if not name.isidentifier()]
    if strategy.kind not in ("single", "ddp", "fsdp"):
        problems.append(
            {"zero": "DeepSpeed's ZeRO (its own JSON does)", "local_sgd": "Local SGD (the job's local_sgd_steps does)"}[strategy.kind]
        )
    if strategy.activation_checkpointing and strategy.checkpoint_every != 1:
        problems.append(f"checkpointing of every {strategy.checkpoint_every}th block (the job's activation_checkpoint_every does)")
    if strategy.replicas != 1 and (world_size % strategy.replicas or world_size <= strategy.replicas):
        problems.append(f"{strategy.replicas} replicas in shards on {world_size} ranks")
    if world_size < 1 or (strategy.kind == "single" and world_size != 1):
        problems.append(f"{strategy.kind} on {world_size} ranks")
    if strategy.kind != "fsdp":
        fsdp_only = {
            "activation checkpointing": strategy.activation_checkpointing,
            "CPU offload": strategy.cpu_offload,
            "wrap classes": bool(strategy.wrap_classes),
            "replicas": strategy.replicas != 1,
            "reshard_after_forward false": not strategy.reshard_after_forward,
        }
        problems += [f"{name} without FSDP" for name, asked in fsdp_only.items() if asked]
    elif strategy.activation_checkpointing and not strategy.wrap_classes:
        problems.append("activation checkpointing without a class to wrap (Accelerate checkpoints what it wraps)")
    if problems:
        raise UserError(f"an Accelerate file cannot express {'; '.join(problems)}; choose a strategy without it")


def _launch_note(strategy: Strategy, device: str) -> list[str]:
    if device != "cpu" or strategy.kind == "single":
        return ["# Start it with `trainwright launch` or `accelerate launch --config_file`."]
    return ["# Start it with `trainwright launch`: on CPU `accelerate launch` runs something else, without a word."]


def _device_lines(strategy: Strategy, device: str) -> list[str]:
    return ["use_cpu: true"] if device == "cpu" and strategy.kind != "fsdp" else []


def _fsdp_lines(strategy: Strategy) -> list[str]:
    when = "freed after the forward pass and gathered again" if strategy.reshard_after_forward else "kept until the backward pass"
    wrap = ["  fsdp_auto_wrap_policy: NO_WRAP  # the whole model is one unit"]
    if strategy.wrap_classes:
        wrap = [
            "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP",
            f"  fsdp_transformer_layer_cls_to_wrap: '{','.join(strategy.wrap_classes)}'  # each of these is one unit",
        ]
    return [
        "fsdp_config:",
        "  fsdp_version: 2",
        f"  fsdp_reshard_after_forward: {_yaml(strategy.reshard_after_forward)}  # gathered parameters are {when}",
        *wrap,
        f"  fsdp_activation_checkpointing: {_yaml(strategy.activation_checkpointing)}",
        f"  fsdp_offload_params: {_yaml(strategy.cpu_offload)}",
        "  fsdp_state_dict_type: SHARDED_STATE_DICT",
    ]


def _yaml(value: bool) -> str:
    return "true" if value else "false"


def read(document: Document, model: ModelSpec | None = None) -> Reading:
    file = accelerate_file(document)
    _refuse(file)
    strategy = _strategy(file, model)
    uses = []
    for setting in file.settings:
        applied, meaning = _use(file, setting, strategy)
        uses.append((applied, KeyUse(setting.key, setting.value, meaning)))
    return Reading(
        strategy,
        _num_processes(file),
        tuple(use for applied, use in uses if applied),
        tuple(use for applied, use in uses if not applied),
    )


def _refuse(file: AccelerateFile) -> None:
    for setting in file.unknown():
        raise _error(file, setting, "Accelerate refuses the whole file for a top-level key that it does not know")
    if not file.document.has("distributed_type"):
        raise UserError(f"{file.document.path}: Accelerate needs a distributed_type; add one of {', '.join(_KINDS)}")
    for setting, problem in file.refused():
        instead = "" if problem.instead is None else f"; write {_quoted(problem.instead)}"
        raise _error(file, setting, f"{shown(setting.value)} {problem.why}{instead}")
    for setting in file.settings:
        if reason := _unsupported(file, setting):
            raise _error(file, setting, reason)
    for setting, reason in mesh.problems(file, _num_processes(file)):
        raise _error(file, setting, reason)


def _quoted(word: Any) -> str:
    return f"'{word}'" if str(word).lower() in ("no", "off", "yes", "on", "y", "n") else str(word)


def _unsupported(file: AccelerateFile, setting: Setting) -> str:
    value = setting.value
    if setting.key == "compute_environment" and value == "AMAZON_SAGEMAKER":
        return f"{shown(value)} {_NOT_YET}: LOCAL_MACHINE is"
    if setting.key == "distributed_type" and file.kind not in _KINDS:
        return f"{shown(value)} {_NOT_YET}: {', '.join(_KINDS)} are"
    if setting.flag == "mixed_precision" and file.precision not in _PRECISIONS:
        return f"{shown(value)} {_NOT_YET}: {', '.join(_PRECISIONS)} are"
    return _unsupported_fsdp(file, setting) if file.uses_fsdp else ""


def _unsupported_fsdp(file: AccelerateFile, setting: Setting) -> str:
    value = setting.value
    asked = setting.flag in ("fsdp_activation_checkpointing", "fsdp_offload_params") and file.value(setting.flag)
    if asked and file.version == 1 and file.value("fsdp_sharding_strategy") == "NO_SHARD":
        return f"with NO_SHARD {_NOT_YET}: NO_SHARD runs as plain DDP"
    if asked and setting.flag == "fsdp_activation_checkpointing" and file.value("fsdp_auto_wrap_policy") == "NO_WRAP":
        return "with NO_WRAP there is no layer to checkpoint: Accelerate checkpoints what it wraps; set fsdp_auto_wrap_policy"
    if setting.flag == "fsdp_auto_wrap_policy" and file.value(setting.flag) == "SIZE_BASED_WRAP":
        return f"{shown(value)} {_NOT_YET}: TRANSFORMER_BASED_WRAP and NO_WRAP are"
    hybrid = setting.flag == "fsdp_sharding_strategy" and file.version == 1 and "HYBRID" in file.value(setting.flag)
    if hybrid and file.value("fsdp_auto_wrap_policy") == "NO_WRAP":
        return f"{shown(value)} is refused by FSDP1 without an fsdp_auto_wrap_policy; write TRANSFORMER_BASED_WRAP"
    return ""


def _error(file: AccelerateFile, setting: Setting, reason: str) -> UserError:
    return UserError(f"{file.document.at(*setting.path)}: {setting.key}: {reason}")


def _strategy(file: AccelerateFile, model: ModelSpec | None) -> Strategy:
    kind, precision = _KINDS[file.kind], _PRECISIONS[file.precision]
    if kind != "fsdp":
        return Strategy(kind, precision=precision)
    sharding = file.value("fsdp_sharding_strategy")
    checkpointing = file.value("fsdp_activation_checkpointing")
    offload = file.value("fsdp_offload_params")
    if file.version == 1 and sharding == "NO_SHARD":
        return Strategy("ddp", precision=precision)
    reshard = sharding in ("FULL_SHARD", "HYBRID_SHARD") if file.version == 1 else file.value("fsdp_reshard_after_forward")
    return Strategy("fsdp", reshard, _wrap_classes(file, model), precision, checkpointing, offload, mesh.replicas(file))


def _wrap_classes(file: AccelerateFile, model: ModelSpec | None) -> tuple[str, ...]:
    if file.value("fsdp_auto_wrap_policy") != "TRANSFORMER_BASED_WRAP":
        return ()
    setting = Setting(file.place("fsdp_transformer_layer_cls_to_wrap"), "", None)
    classes = model.block_classes if file.wrap_classes is None and model else file.wrap_classes
    if classes is None:
        raise _error(file, setting, "is missing, and only the model knows its layer class; name it")
    wrong = [name for name in classes if not name.isidentifier()]
    if wrong:
        raise _error(file, setting, f"{shown(wrong[0])} is no class name; separate names by commas alone, in one text")
    return classes


def _num_processes(file: AccelerateFile) -> int | None:
    value = file.written("num_processes")
    if file.kind == "NO":
        return 1
    number = int(value) if type(value) is str and is_count(value) else value
    return number if type(number) is int and number > 0 else None


_V1_ONLY = "FSDP1 only: Accelerate does not read it under fsdp_version 2"
_NO_CHECKPOINT = "the reference trainer saves its checkpoints in shards, always"
_NO_LOADING = "the reference trainer makes its weights in place and loads none"
_FSDP2_DOES = "the reference trainer uses FSDP2, which does this by itself"
_FSDP_REASONS = {
    "fsdp_state_dict_type": _NO_CHECKPOINT,
    "fsdp_cpu_ram_efficient_loading": _NO_LOADING,
    "fsdp_sync_module_states": _NO_LOADING,
    "fsdp_use_orig_params": _FSDP2_DOES,
    "fsdp_forward_prefetch": _FSDP2_DOES,
    "fsdp_backward_prefetch": _FSDP2_DOES,
    "fsdp_min_num_params": "fsdp_auto_wrap_policy is not SIZE_BASED_WRAP",
    "fsdp_activation_checkpointing_offload": _NOT_YET,
    "fsdp_ignored_modules": _NOT_YET,
}
_DEAD_UNDER_V2 = (
    "fsdp_sharding_strategy",
    "fsdp_use_orig_params",
    "fsdp_sync_module_states",
    "fsdp_forward_prefetch",
    "fsdp_backward_prefetch",
)


def _use(file: AccelerateFile, setting: Setting, strategy: Strategy) -> tuple[bool, str]:
    if not setting.is_read:
        return False, f"not read by Accelerate {table()['accelerate']}: it has no such key"
    if setting.flag in file.winners and file.winners[setting.flag].path != setting.path:
        return False, f"overridden by {file.winners[setting.flag].key}"
    block = setting.path[0]
    if block == "fsdp_config":
        return _use_fsdp(file, setting, strategy)
    if block == mesh.BLOCK and len(setting.path) > 1:
        return mesh.use(file, setting)
    if block in table()["blocks"] and setting.value not in (None, {}):
        return False, _block_reason(file, setting)
    return _use_top(file, setting, strategy)


def _use_top(file: AccelerateFile, setting: Setting, strategy: Strategy) -> tuple[bool, str]:
    if setting.key == "distributed_type":
        wrapper = {"single": "one process, no wrapper", "ddp": "DistributedDataParallel", "fsdp": "FSDP2 (fully_shard)"}
        return True, wrapper[strategy.kind]
    if setting.key in ("mixed_precision", "fp16"):
        named = file.winners.get("mixed_precision", setting).path == setting.path
        return named, f"compute in {strategy.precision}" if named else "false: nothing is asked"
    if setting.key == "use_cpu":
        return False, "the job's device decides"
    if setting.key == "num_machines" and strategy.replicas > 1 and not mesh.asked(file):
        return True, f"{strategy.replicas} copies of the model, one a machine"
    if setting.key == "dynamo_backend":
        return False, "the job's compile decides"
    if setting.value is None or setting.value == {}:
        return False, "empty: nothing is asked"
    return False, _LAUNCHER


def _block_reason(file: AccelerateFile, setting: Setting) -> str:
    block = setting.path[0]
    if not isinstance(setting.value, dict) and len(setting.path) == 1:
        return "no mapping: Accelerate ignores it"
    if block == "mpirun_config":
        return _LAUNCHER
    if block == "fp8_config":
        return f"mixed_precision is {file.precision}, not fp8"
    return (
        "the job's compile decides" if block == "dynamo_config" else f"distributed_type is {file.kind}: Accelerate does not read this block"
    )


def _use_fsdp(file: AccelerateFile, setting: Setting, strategy: Strategy) -> tuple[bool, str]:
    flag = setting.flag
    if len(setting.path) == 1:
        return False, "empty: nothing is asked" if setting.value in (None, {}) else "no mapping: Accelerate ignores it"
    if not file.uses_fsdp:
        return False, f"distributed_type is {file.kind}: Accelerate does not read this block"
    if file.version == 2 and flag in _DEAD_UNDER_V2:
        return False, _V1_ONLY
    if flag in _FSDP_REASONS:
        return False, _FSDP_REASONS[flag]
    return _FSDP_USES[flag](file, strategy)


def _use_version(file: AccelerateFile, strategy: Strategy) -> tuple[bool, str]:
    if strategy.kind == "ddp":
        return False, "NO_SHARD shards nothing: the reference trainer runs it as DistributedDataParallel"
    if file.version == 1:
        return False, "the reference trainer runs the same sharding with FSDP2 (fully_shard)"
    return True, "FSDP2 (fully_shard)"


def _use_reshard(file: AccelerateFile, strategy: Strategy) -> tuple[bool, str]:
    if file.version == 1:
        return False, "FSDP2 only: under fsdp_version 1 Accelerate takes fsdp_sharding_strategy (default FULL_SHARD)"
    return True, f"reshard_after_forward={strategy.reshard_after_forward}"


def _use_sharding(file: AccelerateFile, strategy: Strategy) -> tuple[bool, str]:
    if strategy.kind == "ddp":
        return True, "DistributedDataParallel"
    copies = f", one copy in shards on each of {strategy.replicas} machines" if strategy.replicas > 1 else ""
    return True, f"reshard_after_forward={strategy.reshard_after_forward}{copies}"


def _use_policy(file: AccelerateFile, strategy: Strategy) -> tuple[bool, str]:
    if strategy.kind == "ddp":
        return False, "NO_SHARD shards nothing, so there are no units"
    return True, f"one unit for each {', '.join(strategy.wrap_classes)}" if strategy.wrap_classes else "the whole model is one unit"


def _use_classes(file: AccelerateFile, strategy: Strategy) -> tuple[bool, str]:
    if strategy.kind == "ddp":
        return _use_policy(file, strategy)
    if not strategy.wrap_classes:
        return False, "fsdp_auto_wrap_policy is not TRANSFORMER_BASED_WRAP, so Accelerate wraps no class"
    return True, f"fully_shard on each {', '.join(strategy.wrap_classes)}"


def _use_checkpointing(file: AccelerateFile, strategy: Strategy) -> tuple[bool, str]:
    return True, "activations are computed again in the backward pass" if strategy.activation_checkpointing else "activations are kept"


def _use_offload(file: AccelerateFile, strategy: Strategy) -> tuple[bool, str]:
    return True, "shards live in host memory" if strategy.cpu_offload else "shards stay on the device"


_FSDP_USES = {
    "fsdp_version": _use_version,
    "fsdp_reshard_after_forward": _use_reshard,
    "fsdp_sharding_strategy": _use_sharding,
    "fsdp_auto_wrap_policy": _use_policy,
    "fsdp_transformer_layer_cls_to_wrap": _use_classes,
    "fsdp_activation_checkpointing": _use_checkpointing,
    "fsdp_offload_params": _use_offload,
}
