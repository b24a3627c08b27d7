# helpers/trainwright/check/launcher.py without its comments
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainwright.check.facts import table
from trainwright.emit.accelerate_file import AccelerateFile
from trainwright.emit.accelerate_file import table as keys
from trainwright.report import Location

_PARADIGMS = ("multi_gpu", "tpu", "tpu_use_cluster", "use_deepspeed", "use_fsdp", "use_megatron_lm")
_OF_TYPE = {"DEEPSPEED": "use_deepspeed", "FSDP": "use_fsdp", "XLA": "tpu", "MEGATRON_LM": "use_megatron_lm"}
_APART = ("compute_environment", "mixed_precision", "distributed_type")
_TRUTH = ("y", "yes", "t", "true", "on", "1", "n", "no", "f", "false", "off", "0")
BESIDE_FILE = (
    "gradient_accumulation_steps",
    "gradient_clipping",
    "zero_stage",
    "offload_optimizer_device",
    "offload_param_device",
    "offload_param_nvme_path",
    "offload_optimizer_nvme_path",
    "zero3_save_16bit_model",
    "mixed_precision",
)
AXES = ("dp_replicate", "dp_shard", "tp", "cp", "sp")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Stop:

    kind: str
    argument: str
    why: str
    fails_at: str
    instead: Any = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Launch:

    arguments: dict[str, Any]
    typed: Mapping[str, Any]
    file: AccelerateFile
    where: Location | None = None
    precision_from_file: bool = False
    fields: tuple[str, ...] = field(default=())
    unread: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        arguments = self.arguments
        if not arguments["cpu"]:
            for name, flag in (("deepspeed", "use_deepspeed"), ("fsdp", "use_fsdp"), ("megatron", "use_megatron_lm")):
                if arguments[flag]:
                    return name
            if arguments["multi_gpu"]:
                return "multi_gpu"
            if arguments["tpu"]:
                return "tpu"
        return "sagemaker" if self.file.document.get("compute_environment") == "AMAZON_SAGEMAKER" else "simple"

    @property
    def machines(self) -> int:
        value = self.arguments["num_machines"]
        return value if type(value) is int else 1

    @property
    def sizes(self) -> dict[str, int] | None:
        if not self.arguments["use_parallelism_config"]:
            return None
        values = {axis: self.arguments[f"parallelism_config_{axis}_size"] for axis in AXES}
        numbers = {axis: int(str(value)) for axis, value in values.items() if str(value).lstrip("-").isdecimal()}
        return numbers if len(numbers) == len(values) else None


def default_of(argument: str) -> Any:
    row = table("accelerate")["flags"].get(argument)
    return row[1] if row else None


def merge(
    file: AccelerateFile, typed: Mapping[str, Any] | None = None, where: Location | None = None, unread: tuple[str, ...] = ()
) -> Launch:
    typed = typed or {}
    arguments = {name: row[1] for name, row in table("accelerate")["flags"].items()}
    arguments["use_cpu"] = None
    arguments.update(typed)
    document = file.document.value
    if not any(arguments[flag] for flag in _PARADIGMS):
        kind = file.kind
        for name, flag in _OF_TYPE.items():
            arguments[flag] = kind == name
        arguments["multi_gpu"] = kind.startswith("MULTI_") and kind != "MULTI_CPU"
        arguments["tpu_use_cluster"] = document.get("tpu_use_cluster", False) if arguments["tpu"] else False
        arguments["use_parallelism_config"] = (document.get("parallelism_config") or {}) != {}
    if arguments["gpu_ids"] is None:
        arguments["gpu_ids"] = "all" if document.get("gpu_ids") is None else document["gpu_ids"]
    _copy(file, arguments, typed)
    arguments["debug"] = arguments["debug"] or document.get("debug", False)
    from_file = not arguments["mixed_precision"] and file.written("mixed_precision") is not None
    arguments["mixed_precision"] = arguments["mixed_precision"] or (file.written("mixed_precision") if from_file else "no")
    if arguments["dynamo_backend"] is None:
        arguments["dynamo_backend"] = "no"
    block = document.get("deepspeed_config")
    fields = tuple(map(str, block)) if isinstance(block, dict) else ()
    return Launch(arguments, typed, file, where, from_file, fields, unread)


_CLUSTER_DEFAULTS = {
    "num_processes": -1,
    "machine_rank": 0,
    "num_machines": 1,
    "rdzv_backend": "static",
    "same_network": False,
    "main_training_function": "main",
    "enable_cpu_affinity": False,
    "downcast_bf16": False,
    "tpu_use_cluster": False,
    "tpu_use_sudo": False,
    "use_cpu": False,
    "debug": False,
}


def _copy(file: AccelerateFile, arguments: dict[str, Any], typed: Mapping[str, Any]) -> None:
    document = file.document.value
    if document.get("compute_environment", "LOCAL_MACHINE") not in ("LOCAL_MACHINE", None):
        return
    for name in keys()["cluster"]:
        value = document.get(name, _CLUSTER_DEFAULTS.get(name))
        if name == "num_processes" and name not in document and document.get("distributed_type") == "NO":
            value = 1
        if name in keys()["blocks"] and isinstance(value, dict):
            for setting in (s for s in file.settings if len(s.path) > 1 and s.path[0] == name):
                if setting.flag not in typed:
                    arguments[setting.flag] = setting.value
        elif name not in _APART and not isinstance(value, dict) and not (name in keys()["blocks"] and value is None):
            arguments[name] = value if arguments.get(name) is None else arguments[name]
    if "dynamo_backend" in document and "dynamo_backend" not in typed and document["dynamo_backend"] != "NO":
        arguments["dynamo_backend"] = document["dynamo_backend"]


def environment(launch: Launch) -> dict[str, tuple[str, str]]:
    arguments, kind = launch.arguments, launch.kind
    found: dict[str, tuple[str, str]] = {}
    if arguments["debug"]:
        found["ACCELERATE_DEBUG_MODE"] = ("true", "debug")
    if kind == "tpu":
        return found
    precision = str(arguments["mixed_precision"]).lower()
    found["ACCELERATE_MIXED_PRECISION"] = (precision, "mixed_precision")
    if precision == "fp8":
        found |= _fp8(arguments)
    if kind != "deepspeed":
        found["ACCELERATE_DYNAMO_BACKEND"] = (str(arguments["dynamo_backend"]).upper(), "dynamo_backend")
        found |= _group("base", arguments)
    if kind == "simple":
        found |= _simple(launch)
    elif kind == "deepspeed":
        names = ",".join([*launch.fields, *(["mixed_precision"] if launch.precision_from_file else [])]).lower()
        found |= {"ACCELERATE_CONFIG_DS_FIELDS": (names, "deepspeed_config"), "ACCELERATE_USE_DEEPSPEED": ("true", "use_deepspeed")}
        found |= _group("deepspeed", arguments)
    else:
        found |= _sharded(arguments)
    if arguments["enable_cpu_affinity"]:
        found["ACCELERATE_CPU_AFFINITY"] = ("1", "enable_cpu_affinity")
    if arguments["use_parallelism_config"] and kind != "simple":
        found |= _parallelism(arguments)
    return found


def _group(name: str, arguments: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    rows = table("accelerate")["environment"][name]
    found = {}
    for variable, argument, lower, skips_none in rows:
        value = arguments.get(argument)
        if variable.startswith("CUDA_VISIBLE"):
            if value not in (None, "all"):
                found[variable] = (str(value), argument)
        elif value is not None or not skips_none:
            found[variable] = (str(value).lower() if lower else str(value), argument)
    return found


def _sharded(arguments: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    if arguments["use_fsdp"]:
        found["ACCELERATE_USE_FSDP"] = ("true", "use_fsdp")
        found |= _group("fsdp", arguments)
        if arguments.get("fsdp_ignored_modules") is not None:
            found["FSDP_IGNORED_MODULES"] = (str(arguments["fsdp_ignored_modules"]), "fsdp_ignored_modules")
    if arguments["use_megatron_lm"]:
        found["ACCELERATE_USE_MEGATRON_LM"] = ("true", "use_megatron_lm")
        found |= _group("megatron", arguments)
    return found


def _fp8(arguments: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    found = {}
    for argument, value in arguments.items():
        if not str(argument).startswith("fp8_") or value is None:
            continue
        if argument == "fp8_override_linear_precision":
            parts = value if isinstance(value, (list, tuple, str)) else []
            for name, part in zip(("FPROP", "DGRAD", "WGRAD"), parts, strict=False):
                found[f"ACCELERATE_FP8_OVERRIDE_{name}"] = (str(part), argument)
        else:
            found[f"ACCELERATE_{argument.upper()}"] = (str(value), argument)
    return found


def _simple(launch: Launch) -> dict[str, tuple[str, str]]:
    arguments = launch.arguments
    found = {"ACCELERATE_USE_CPU": (str(arguments["cpu"] or arguments["use_cpu"]), "use_cpu")}
    count = arguments["num_processes"]
    if (type(count) is int and count > 1) or launch.machines > 1:
        address, port = arguments["main_process_ip"], arguments["main_process_port"]
        found["MASTER_ADDR"] = ("127.0.0.1" if address is None else str(address), "main_process_ip")
        found["MASTER_PORT"] = ("29500" if port is None else str(port), "main_process_port")
    return found


def _parallelism(arguments: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    found = {"ACCELERATE_USE_PARALLELISM_CONFIG": ("true", "parallelism_config"), **_group("parallelism", arguments)}
    for axis, names in (("cp", ("CP_COMM_STRATEGY",)), ("sp", ("SP_SEQ_LENGTH", "SP_SEQ_LENGTH_IS_VARIABLE", "SP_ATTN_IMPLEMENTATION"))):
        size = arguments[f"parallelism_config_{axis}_size"]
        if not isinstance(size, (int, float)) or size <= 1:
            for name in names:
                found.pop(f"PARALLELISM_CONFIG_{name}", None)
    return found


def torchrun(launch: Launch) -> dict[str, str]:
    arguments, machines = launch.arguments, launch.machines
    by_deepspeed = launch.kind == "deepspeed" and machines > 1 and arguments["deepspeed_multinode_launcher"] != "standard"
    if by_deepspeed or launch.kind in ("simple", "tpu", "sagemaker"):
        return {}
    port = arguments["main_process_port"] if arguments["main_process_port"] is not None else 29500
    count = arguments["num_processes"]
    if machines <= 1:
        return {"nproc_per_node": str(count), "master_port": str(port)}
    found = {"nproc_per_node": str(count // machines if type(count) is int else count), "nnodes": str(machines)}
    found |= {"node_rank": str(arguments["machine_rank"]), "rdzv_backend": str(arguments["rdzv_backend"])}
    if arguments["same_network"]:
        return found | {"master_addr": str(arguments["main_process_ip"]), "master_port": str(port)}
    return found | {"rdzv_endpoint": f"{arguments['main_process_ip']}:{port}"}


def stops(launch: Launch) -> Iterator[Stop]:
    arguments, kind = launch.arguments, launch.kind
    if kind == "sagemaker":
        return
    yield from _typed(launch)
    yield from _counts(launch)
    if kind != "tpu" and isinstance(arguments["mixed_precision"], str) and arguments["mixed_precision"].lower() == "fp8":
        yield from _fp8_stops(arguments)
    if kind in ("fsdp", "megatron", "multi_gpu", "simple"):
        yield from _converted(launch, ("base",))
    if kind == "megatron":
        yield from _converted(launch, ("megatron",))
    if kind == "deepspeed":
        yield from _deepspeed_stops(arguments)
    if arguments["use_parallelism_config"] and kind not in ("simple", "tpu"):
        yield from _parallelism_stops(launch)


def _typed(launch: Launch) -> Iterator[Stop]:
    typed = launch.typed
    asked = [flag for flag in ("multi_gpu", "cpu", "tpu", "use_deepspeed", "use_fsdp") if typed.get(flag)]
    if len(asked) > 1:
        yield Stop("paradigm", asked[1], f"together with --{asked[0]}: the launcher takes one of them", "launcher")
    count = typed.get("num_processes")
    if typed.get("multi_gpu") and count is not None and count < 2:
        yield Stop("paradigm", "multi_gpu", "needs at least 2 processes", "launcher")
    if typed.get("use_parallelism_config") and not typed.get("use_fsdp"):
        yield Stop("paradigm", "use_parallelism_config", "needs --use_fsdp and --fsdp_version 2 on the command line", "launcher")


def _counts(launch: Launch) -> Iterator[Stop]:
    arguments, kind = launch.arguments, launch.kind
    ids, count, machines = arguments["gpu_ids"], arguments["num_processes"], arguments["num_machines"]
    if not isinstance(machines, (int, float)):
        yield Stop("count", "num_machines", "is no number", "launcher", 1)
        return
    if isinstance(ids, str) and ids != "all" and len(ids.split(",")) < 2 and arguments["multi_gpu"] and machines <= 1:
        yield Stop("gpu_ids", "gpu_ids", "names one device for a MULTI_GPU job, which the launcher refuses", "launcher", "all")
    is_simple = kind == "simple"
    if kind == "tpu" and not arguments["use_cpu"]:
        return
    use_cpu = arguments["cpu"] or arguments["use_cpu"]
    if is_simple and str(use_cpu).lower() not in _TRUTH:
        yield Stop("conversion", "use_cpu", "is neither true nor false", "launcher", False)
    if is_simple and machines > 1:
        for argument in ("main_process_ip", "main_process_port"):
            if arguments[argument] is None:
                yield Stop("address", argument, "is missing, and several machines need it", "launcher")
    if isinstance(count, (bool, int, float, type(None))):
        return
    if (is_simple and machines <= 1) or (not is_simple and machines > 1) or arguments["use_cpu"]:
        yield Stop("count", "num_processes", "is no number, and the launcher calculates with it", "launcher")


def _converted(launch: Launch, groups: tuple[str, ...]) -> Iterator[Stop]:
    readers = table("accelerate")["readers"]
    for group in groups:
        for variable, (value, argument) in _group(group, launch.arguments).items():
            reader = readers.get(variable, [])
            if len(reader) > 2 and (why := _no(reader[2], value)):
                yield Stop("conversion", argument, why, "plugin")


def _no(conversion: str, text: str) -> str:
    if conversion == "str_to_bool":
        return "" if text.lower() in _TRUTH else "is neither true nor false"
    try:
        {"int": int, "float": float}[conversion](text)
    except ValueError:
        return "is no whole number" if conversion == "int" else "is no number"
    return ""


def _fp8_stops(arguments: Mapping[str, Any]) -> Iterator[Stop]:
    name = "fp8_override_linear_precision"
    value = arguments.get(name)
    if value is not None and (not isinstance(value, (list, tuple, str)) or len(value) < 3):
        yield Stop("fp8", name, "is no list of three values", "launcher", [False, False, False])


def _deepspeed_stops(arguments: Mapping[str, Any]) -> Iterator[Stop]:
    stage, clip, init = arguments["zero_stage"], arguments["gradient_clipping"], arguments["zero3_init_flag"]
    if stage is not None and _no("int", str(stage)):
        yield Stop("conversion", "zero_stage", "is no whole number", "plugin")
    if clip is not None and str(clip).lower() != "auto" and _no("float", str(clip).lower()):
        yield Stop("conversion", "gradient_clipping", 'is neither a number nor "auto"', "plugin")
    if init is not None and str(init).lower() not in _TRUTH:
        yield Stop("conversion", "zero3_init_flag", "is neither true nor false", "plugin")
    if str(arguments["mixed_precision"]).lower() == "fp8" and arguments.get("fp8_backend") == "MSAMP":
        if str(stage if stage is not None else 2).strip() == "3":
            yield Stop("msamp", "zero_stage", "is 3, and MS-AMP supports ZeRO 0, 1 and 2", "plugin", 2)
        if arguments.get("fp8_opt_level") not in ("O1", "O2"):
            yield Stop("msamp", "fp8_opt_level", "is neither O1 nor O2", "plugin", "O2")


def _parallelism_stops(launch: Launch) -> Iterator[Stop]:
    arguments = launch.arguments
    for axis in AXES:
        name = f"parallelism_config_{axis}_size"
        value = arguments[name]
        if axis in ("cp", "sp") and not isinstance(value, (int, float)):
            yield Stop("size", name, "is no number, and the launcher compares it with 1", "launcher")
        elif _no("int", str(value)):
            yield Stop("size", name, "is no whole number", "plugin")
        elif int(str(value)) < 1:
            yield Stop("negative", name, "is below 1: Accelerate does not work a size out by itself", "plugin")
    sizes = launch.sizes
    if sizes is None or min(sizes.values()) < 1:
        return
    yield from _parallelism_choices(arguments, sizes)
    if sizes["cp"] > 1 and sizes["sp"] > 1:
        yield Stop("cp_and_sp", "parallelism_config_cp_size", "above 1 together with sp_size: Accelerate takes one of them", "plugin", 1)
    if (sizes["tp"] > 1 or sizes["cp"] > 1) and sizes["dp_replicate"] > 1 and sizes["dp_shard"] == 1:
        why = "above 1 with dp_shard_size 1: tensor and context parallelism do not go with pure data parallelism"
        yield Stop("tp_and_ddp", "parallelism_config_dp_replicate_size", why, "plugin")
    total, ranks = product(sizes), arguments["num_processes"]
    if sizes["sp"] <= 1 and 1 < total != ranks and isinstance(ranks, (int, str)) and str(ranks).isdecimal():
        yield Stop("product", "num_processes", f"is {ranks}, and the sizes of parallelism_config multiply to {total}", "plugin", total)


def _parallelism_choices(arguments: Mapping[str, Any], sizes: Mapping[str, int]) -> Iterator[Stop]:
    for axis, backend in (("cp", "torch"), ("sp", "deepspeed")):
        name = f"parallelism_config_{axis}_backend"
        if str(arguments[name]) != backend:
            yield Stop("backend", name, f"is not {backend}, the only one", "plugin", backend)
    if sizes["cp"] > 1 and str(arguments["parallelism_config_cp_comm_strategy"]) not in ("allgather", "alltoall"):
        yield Stop("comm", "parallelism_config_cp_comm_strategy", "is neither allgather nor alltoall", "plugin", "allgather")
    if sizes["sp"] <= 1:
        return
    attention, name = str(arguments["parallelism_config_sp_attn_implementation"]), "parallelism_config_sp_attn_implementation"
    if attention not in ("flash_attention_2", "flash_attention_3", "sdpa") and not ("/" in attention and "flash-attn" in attention):
        yield Stop("attention", name, "is not one of sdpa, flash_attention_2, flash_attention_3", "plugin", "sdpa")
    variable = str(arguments["parallelism_config_sp_seq_length_is_variable"]).lower() == "true"
    length = str(arguments["parallelism_config_sp_seq_length"])
    if not variable and length != "None" and _no("int", length):
        yield Stop("size", "parallelism_config_sp_seq_length", "is no whole number", "plugin")


def product(sizes: Mapping[str, int]) -> int:
    total = 1
    for size in sizes.values():
        total *= size
    return total


def plugin_config(launch: Launch) -> dict[str, Any]:
    arguments = launch.arguments
    clip, steps, stage = arguments["gradient_clipping"], arguments["gradient_accumulation_steps"], arguments["zero_stage"]
    zero: dict[str, Any] = {"stage": 2 if stage is None else int(str(stage)) if not _no("int", str(stage)) else stage}
    for name in ("offload_optimizer", "offload_param"):
        device = "none" if arguments[f"{name}_device"] is None else str(arguments[f"{name}_device"]).lower()
        zero[name] = {"device": device, "nvme_path": "none" if device == "nvme" else None}
    zero["stage3_gather_16bit_weights_on_model_save"] = str(arguments["zero3_save_16bit_model"]).lower() == "true"
    config: dict[str, Any] = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "zero_optimization": zero}
    config["gradient_accumulation_steps"] = "auto" if steps is None else int(str(steps)) if str(steps).isdecimal() else str(steps)
    if clip is None or str(clip).lower() == "auto":
        config["gradient_clipping"] = "auto"
    elif not _no("float", str(clip)) and float(str(clip)):
        config["gradient_clipping"] = float(str(clip))
    precision = str(arguments["mixed_precision"]).lower()
    config |= {"fp16": {"enabled": precision == "fp16"}, "bf16": {"enabled": precision in ("bf16", "fp8")}}
    return config
