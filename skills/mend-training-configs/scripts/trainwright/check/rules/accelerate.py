# helpers/trainwright/check/rules/accelerate.py without its comments
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainwright.check.facts import table as facts
from trainwright.check.subject import AccelerateConfig
from trainwright.emit.accelerate_file import Setting, is_close, is_count, nearest, shown, table
from trainwright.report import Fix, Severity
from trainwright.rules import Hit, rule

_ALIKE = 0.75
_BLOCKS = {"FSDP": "fsdp_config", "DEEPSPEED": "deepspeed_config", "MEGATRON_LM": "megatron_lm_config"}
_ONE_PROCESS = ("NO", "MULTI_CPU")


@rule(
    "ACC001",
    Severity.ERROR,
    AccelerateConfig,
    fails_at="parse",
    checked="run",
    source="accelerate-1.15.0-config-args",
    covers=("ACC-UNKNOWN-TOP", "ACC-TOP-IPEX", "ACC-TOP-TPCONFIG"),
)
def unknown_top_level_key(config: AccelerateConfig) -> Iterator[Hit]:
    """A top-level key that Accelerate does not know makes it refuse the whole file."""
    sagemaker = facts("accelerate")["sagemaker"] if config.document.get("compute_environment") == "AMAZON_SAGEMAKER" else ()
    for setting in (s for s in config.file.unknown() if s.key not in sagemaker):
        why, fix = _unknown_top(config, setting)
        yield Hit(f"{setting.key} {why}; Accelerate refuses the whole file", config.document.at(*setting.path), setting.key, fix)


def _unknown_top(config: AccelerateConfig, setting: Setting) -> tuple[str, Fix]:
    key, delete = setting.key, {setting.key: None}
    if last := table()["last_version"].get(key):
        instead = table()["renamed"].get(key)
        return f"was last known to Accelerate {last}", Fix(delete, note=f"{instead} is its successor" if instead else "")
    if place := _in_block(key):
        block, name = place.split(".")
        rows = config.document.get(block)
        free = (
            isinstance(rows, dict) and name not in rows and "deepspeed_config_file" not in rows and block == _BLOCKS.get(config.file.kind)
        )
        return f"belongs in {block}", Fix({place: setting.value, **delete}, safe=free and setting.value is not None)
    near = nearest(key, table()["cluster"], _ALIKE)
    if near and not config.document.has(near):
        return f"is no key of Accelerate's; {near} is", Fix({near: setting.value, **delete}, safe=is_close(key, near))
    return "is no key of Accelerate's", Fix(delete)


def _in_block(key: str) -> str:
    """Where a key that stands at the top level belongs: "fsdp_config.fsdp_version", or "" for nowhere."""
    for block, keys in table()["blocks"].items():
        _, prefix = table()["prefixes"].get(block, ("", ""))
        if found := next((name for name in (key, f"{prefix}{key}") if name in keys), None):
            return f"{block}.{found}"
    return ""


@rule(
    "ACC002",
    Severity.WARNING,
    AccelerateConfig,
    fails_at="never",
    checked="run",
    source="accelerate-1.15.0-launch",
    covers=(
        "ACC-UNKNOWN-NESTED",
        "ACC-NESTED-NOTDICT",
        "ACC-MPIRUN-CCL",
        "FSDP-OLDKEY-PREFETCH",
        "FSDP-OLDKEY-CLS",
        "PAR-PREFIX",
        "MEG-PREFIX",
        "FP8-CONFIG-KEYS",
    ),
)
def unread_key_in_block(config: AccelerateConfig) -> Iterator[Hit]:
    """A key inside a block that nothing in Accelerate reads, or a block that is no mapping."""
    version = table()["accelerate"]
    for setting in config.file.settings:
        where = config.document.at(*setting.path)
        if setting.key in table()["blocks"] and not isinstance(setting.value, (dict, type(None))):
            yield Hit(f"{setting.key} is no mapping: Accelerate ignores it without a word", where, setting.key)
        elif len(setting.path) > 1 and not setting.is_read and not str(setting.path[1]).startswith(("_", "#", "//")):
            message = f"{setting.key} is no key that Accelerate {version} reads; it is ignored without a word"
            yield Hit(message, where, setting.key, _unread_fix(config, setting))


def _unread_fix(config: AccelerateConfig, setting: Setting) -> Fix:
    block, key = setting.path
    delete = {setting.key: None}
    if key in table()["cluster"] and not config.document.has(key):
        return Fix({key: setting.value, **delete}, note="it belongs at the top level")
    renamed = table()["renamed"].get(setting.flag)
    prefix = {"parallelism_config": "parallelism_config_", "megatron_lm_config": "megatron_lm_"}.get(block, "")
    full = f"{prefix}{setting.flag}" if f"{prefix}{setting.flag}" in table()["blocks"][block] else None
    near = renamed or full or nearest(setting.flag, table()["blocks"][block], 0.85)
    if near and not config.document.has(block, near):
        return Fix({f"{block}.{near}": setting.value, **delete})
    return Fix(delete, safe=True)


@rule(
    "ACC003",
    Severity.ERROR,
    AccelerateConfig,
    fails_at="launcher",
    checked="run",
    source="accelerate-1.15.0-launch-env",
    covers=(
        "ACC-DT-MISSING",
        "ACC-DT-CASE",
        "ACC-DT-NO-YAML",
        "ACC-MP-NO-YAML",
        "ACC-MP-VALUE",
        "ACC-DYN-NO-YAML",
        "ACC-CE-VALUE",
        "ACC-GPUIDS-TYPE",
        "FSDP-POLICY-VALUE",
        "FSDP-ENUM-KEYERROR",
        "FSDP-OFFLOAD-VALUE",
        "FSDP-VERSION-RANGE",
        "FSDP-RESHARD-V2-STR",
        "FSDP-MINPARAMS-SCI",
        "FSDP-RAM-SYNC",
        "FSDP-LOCALSD-V2",
        "FSDP-AC-OFFLOAD",
    ),
)
def refused_value(config: AccelerateConfig) -> Iterator[Hit]:
    """A value at which Accelerate stops before the model is touched."""
    if config.kind == "sagemaker":
        return
    yield from _distributed_type(config)
    for setting, problem in (pair for pair in config.file.refused() if pair[0].flag not in config.launch.typed):
        fix = None if problem.instead is None else Fix({setting.key: problem.instead}, safe=_is_meant(setting, problem.instead))
        message = f"{setting.key} {shown(setting.value)} {problem.why}"
        yield Hit(message, config.document.at(*setting.path), setting.key, fix, fails_at=problem.fails_at)


def _is_meant(setting: Setting, instead: Any) -> bool:
    """Whether what is refused says the same as `instead` in other words, so that nobody has to be asked."""
    value = setting.value
    if setting.flag == "fsdp_sync_module_states":
        return True
    if (
        setting.flag in ("fsdp_state_dict_type", "fsdp_activation_checkpointing_offload")
        and value != instead
        and not isinstance(value, str)
    ):
        return False
    if isinstance(instead, str) and isinstance(value, str):
        named = {"mixed_precision": ("fp32", "float32", "none", "bfloat16", "float16", "half"), "distributed_type": ("TPU",)}
        return value in named.get(setting.flag, ()) or (is_close(value, instead) and value != "LOCAL_STATE_DICT")
    return setting.flag in ("mixed_precision", "dynamo_backend", "gpu_ids", "fsdp_min_num_params")


def _distributed_type(config: AccelerateConfig) -> Iterator[Hit]:
    where, key, value = config.document.at("distributed_type"), "distributed_type", config.document.get("distributed_type")
    if not config.document.has(key):
        fix = Fix({key: "FSDP"}) if config.document.get("fsdp_config") else None
        yield Hit("distributed_type is missing: it is the one key that Accelerate insists on", where, key, fix, fails_at="parse")
    elif not isinstance(value, str):
        ends = config.document.get("num_processes", default=-1) == -1
        asks = ", then asks for --num_processes" if ends else ""
        message = f"{key} {shown(value)} is no text (YAML reads a bare NO as false): Accelerate starts one plain process{asks}"
        stage, severity = ("launcher", Severity.ERROR) if ends else ("never", Severity.WARNING)
        yield Hit(message, where, key, Fix({key: "NO"}, safe=True), severity, stage)


@rule(
    "ACC005",
    Severity.WARNING,
    AccelerateConfig,
    fails_at="never",
    checked="run",
    source="accelerate-1.15.0-state",
    covers=("ACC-USECPU", "ACC-NOGPU-ALONE"),
)
def accelerator_job_on_cpu(config: AccelerateConfig) -> Iterator[Hit]:
    """A job for accelerators (FSDP, MULTI_GPU ...) that is told to run, or will find itself, on CPU."""
    kind, use_cpu = config.file.kind, config.document.get("use_cpu")
    if kind in (*_ONE_PROCESS, "XLA", ""):
        return
    if config.context.device == "cpu":
        stops = config.file.uses_fsdp and config.file.version == 1
        effect = "stops, as it finds no accelerator" if stops else "lets every rank train by itself, as a world of one"
        where = config.document.at("use_cpu" if use_cpu else "distributed_type")
        yield Hit(f"{kind} on CPU: `accelerate launch` {effect}; start it with `trainwright launch`", where, "distributed_type")
    elif use_cpu is True:
        message = f"use_cpu: true beside {kind} is ignored by `accelerate launch`"
        yield Hit(message, config.document.at("use_cpu"), "use_cpu", Fix({"use_cpu": None}, safe=True))


@rule(
    "ACC007",
    Severity.ERROR,
    AccelerateConfig,
    fails_at="launcher",
    checked="run",
    source="accelerate-1.15.0-launch",
    covers=("ACC-NP-NULL", "ACC-NP-ZERO", "ACC-NP-STR", "ACC-NP-MISSING"),
)
def wrong_num_processes(config: AccelerateConfig) -> Iterator[Hit]:
    """num_processes is no count of ranks, or not the count that the job has."""
    where, key = config.document.at("num_processes"), "num_processes"
    value, world_size = config.file.written(key), config.context.world_size
    fix = Fix({key: world_size}) if world_size else None
    if config.kind == "sagemaker":
        return
    if config.file.kind == "NO":
        if world_size and world_size > 1:
            yield Hit(f"distributed_type NO starts one process, and the job has {world_size} ranks", where, key, fails_at="never")
    elif key in config.launch.typed:
        return
    elif not config.document.has(key) or value == -1:
        message = "num_processes is missing: `accelerate launch` stops unless it is given --num_processes"
        yield Hit(message, where, key, fix, Severity.INFO)
    elif type(value) is str and is_count(value):
        yield from _text_count(config, value)
    elif type(value) is not int or value < 1:
        if config.file.kind not in (*_ONE_PROCESS, "XLA"):
            yield Hit(f"num_processes {shown(value)} is no number of ranks", where, key, fix)
    elif world_size and value != world_size:
        yield Hit(f"num_processes {value}, and the job has {world_size} ranks", where, key, fix, fails_at="never")


def _text_count(config: AccelerateConfig, value: str) -> Iterator[Hit]:
    where, key, fix = config.document.at("num_processes"), "num_processes", Fix({"num_processes": int(value)}, safe=True)
    machines = config.file.written("num_machines")
    if type(machines) is int and machines > 1:
        yield Hit(f"num_processes {shown(value)} is a text, which cannot be divided by num_machines {machines}", where, key, fix)
    else:
        message = f"num_processes {shown(value)} is a text; it works on one machine and stops the launcher on several"
        yield Hit(message, where, key, fix, Severity.WARNING, "never")
