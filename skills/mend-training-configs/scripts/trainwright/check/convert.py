# helpers/trainwright/check/convert.py without its comments
from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from trainwright.check.deepspeed_file import blocks, is_comment, stage_of
from trainwright.check.edit import edit
from trainwright.check.facts import table
from trainwright.check.launcher import BESIDE_FILE, plugin_config, stops
from trainwright.check.subject import AccelerateConfig, DeepSpeedConfig
from trainwright.document import KeyPath
from trainwright.emit.accelerate_file import shown
from trainwright.errors import UserError

_Config = TypeVar("_Config", AccelerateConfig, DeepSpeedConfig)
TARGETS = ("fsdp2", "deepspeed", "accelerate")
_STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
_TRUE = ("true", "1", "yes", "y", "on", "t")


@dataclass(slots=True, eq=False, repr=False)
class Converted:

    text: str = ""
    lost: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def convert(target: str, subjects: list[Any], world_size: int | None = None) -> Converted:
    if target == "accelerate":
        given = _one([subject for subject in subjects if isinstance(subject, DeepSpeedConfig)], target, "a DeepSpeed config")
        made, path = to_accelerate(given, world_size), given.document.path
    else:
        config = _one([subject for subject in subjects if isinstance(subject, AccelerateConfig)], target, "an Accelerate config")
        made, path = to_fsdp2(config) if target == "fsdp2" else to_deepspeed(config), config.document.path
    if made.lost:
        raise UserError(f"--convert {target}: {path} is not converted, as this would be lost: {'; '.join(made.lost)}")
    return made


def _one(found: list[_Config], target: str, name: str) -> _Config:
    if len(found) != 1:
        raise UserError(f"--convert {target}: name one file, {name}; {len(found)} were found")
    return found[0]


def to_fsdp2(config: AccelerateConfig) -> Converted:
    file, made = config.file, Converted()
    if config.kind != "fsdp":
        raise UserError(f"--convert fsdp2: {config.document.path} starts {config.kind}, not FSDP")
    if file.version == 2:
        made.text = config.document.text
        made.notes.append("is FSDP2 already")
        return made
    if refused := [f"{setting.key} {problem.why}" for setting, problem in file.refused()]:
        raise UserError(f"--convert fsdp2: mend {config.document.path} first: {refused[0]}")
    changes: dict[KeyPath, Any] = {file.place("fsdp_version"): 2}
    _strategy(config, changes, made)
    _dropped(config, changes, made)
    if file.value("fsdp_state_dict_type") == "LOCAL_STATE_DICT":
        made.lost.append("fsdp_state_dict_type LOCAL_STATE_DICT: FSDP2 writes FULL_STATE_DICT or SHARDED_STATE_DICT")
    if not made.lost:
        text = edit(config.document.text, config.document.dialect, changes)
        if text is None:
            raise UserError(f"--convert fsdp2: {config.document.path} cannot be edited in place (anchors, or keys in lists)")
        made.text = text
    return made


def _strategy(config: AccelerateConfig, changes: dict[KeyPath, Any], made: Converted) -> None:
    file = config.file
    word = str(file.value("fsdp_sharding_strategy"))
    strategy = "HYBRID_SHARD_ZERO2" if word == "_HYBRID_SHARD_ZERO2" else word
    old = file.winners.get("fsdp_sharding_strategy")
    if strategy == "NO_SHARD":
        made.lost.append("fsdp_sharding_strategy NO_SHARD: FSDP2 always shards; that job is MULTI_GPU without fsdp_config")
        return
    if strategy.startswith("HYBRID"):
        _hybrid(config, strategy, changes, made)
    reshard = strategy in ("FULL_SHARD", "HYBRID_SHARD")
    place = file.place("fsdp_reshard_after_forward")
    if "fsdp_reshard_after_forward" in file.winners or old is not None or not reshard:
        changes[place] = reshard
    if old is not None:
        changes[old.path] = None
        made.notes.append(f"{old.key} {shown(old.value)} is now {'.'.join(map(str, place))} {shown(reshard)}")


def _hybrid(config: AccelerateConfig, strategy: str, changes: dict[KeyPath, Any], made: Converted) -> None:
    machines, ranks = config.launch.machines, config.whole("num_processes")
    if config.launch.arguments["use_parallelism_config"] or config.document.get("parallelism_config"):
        made.lost.append(f"fsdp_sharding_strategy {strategy}: there is a parallelism_config already, which says how ranks are shared")
    elif not ranks or machines < 2 or ranks % machines or ranks == machines:
        made.lost.append(
            f"fsdp_sharding_strategy {strategy}: FSDP2 wants its sizes (parallelism_config dp_replicate and dp_shard), and num_machines "
            f"{machines} with num_processes {shown(config.document.get('num_processes'))} does not tell them"
        )
    else:
        changes[("parallelism_config", "parallelism_config_dp_replicate_size")] = machines
        changes[("parallelism_config", "parallelism_config_dp_shard_size")] = ranks // machines
        made.notes.append(f"{strategy} is now a parallelism_config: {machines} copies, each sharded over {ranks // machines}")


_GONE = {
    "fsdp_use_orig_params": (_TRUE, "FSDP2 always keeps the original parameters"),
    "fsdp_backward_prefetch": (("backward_pre", "1"), "FSDP2 prefetches as BACKWARD_PRE does; the same numbers, another speed"),
    "fsdp_forward_prefetch": (("false", "0", "no"), "FSDP2 orders its own prefetch; the same numbers, another speed"),
}


def _dropped(config: AccelerateConfig, changes: dict[KeyPath, Any], made: Converted) -> None:
    file = config.file
    for flag, (same, why) in _GONE.items():
        setting = file.winners.get(flag)
        if setting is not None:
            changes[setting.path] = None
            if setting.value is not None and str(setting.value).lower() not in same:
                made.notes.append(f"{setting.key} {shown(setting.value)} is gone: {why}")
    sync = file.winners.get("fsdp_sync_module_states")
    if sync is None:
        return
    changes[sync.path] = None
    efficient = file.value("fsdp_cpu_ram_efficient_loading")
    if efficient is False and str(sync.value).lower() in _TRUE:
        made.lost.append(
            f"{sync.key} true: FSDP2 broadcasts from rank 0 only with fsdp_cpu_ram_efficient_loading, which is false: set it, or delete "
            f"{sync.key} where every rank builds the same weights"
        )


def to_deepspeed(config: AccelerateConfig) -> Converted:
    made, launch = Converted(), config.launch
    if config.kind != "deepspeed":
        raise UserError(f"--convert deepspeed: {config.document.path} starts {config.kind}: it has no DeepSpeed settings")
    if launch.arguments.get("deepspeed_config_file") not in (None, "none"):
        raise UserError(f"--convert deepspeed: {config.document.path} names its DeepSpeed config already")
    if refused := [f"{stop.argument} {stop.why}" for stop in stops(launch)] + [f"{s.key} {p.why}" for s, p in config.file.refused()]:
        raise UserError(f"--convert deepspeed: mend {config.document.path} first: {refused[0]}")
    values = plugin_config(launch)
    if str(launch.arguments["mixed_precision"]).lower() == "fp8":
        made.lost.append("mixed_precision fp8: a DeepSpeed config has no word for it")
    _offload(config, values, made)
    clip = launch.arguments["gradient_clipping"]
    if clip is not None and "gradient_clipping" not in values:
        values["gradient_clipping"] = 0.0
        made.notes.append("gradient_clipping 0 is kept: in the Accelerate file it is dropped, and DeepSpeed clips at its default of 1.0")
    for block in ("fp16", "bf16"):
        if not values[block]["enabled"]:
            del values[block]
        elif block == "fp16":
            values[block]["auto_cast"] = True
    stay = [s.key for s in config.file.settings if s.path[0] == "deepspeed_config" and s.is_read and s.flag not in BESIDE_FILE]
    go = [s.key for s in config.file.settings if s.is_read and s.flag in BESIDE_FILE]
    made.notes.append(f"in the Accelerate file: deepspeed_config.deepspeed_config_file names it; delete {', '.join(go) or 'nothing'}")
    if stay:
        made.notes.append(f"stays in the Accelerate file, as a DeepSpeed config has no key for it: {', '.join(stay)}")
    made.text = json.dumps(values, indent=2) + "\n"
    return made


def _offload(config: AccelerateConfig, values: dict[str, Any], made: Converted) -> None:
    zero = values["zero_optimization"]
    for name in ("offload_optimizer", "offload_param"):
        block, path = zero[name], config.value(f"{name}_nvme_path")
        if block["device"] == "nvme":
            if path in (None, "none"):
                made.lost.append(f"{name}_device nvme: the file names no {name}_nvme_path, and the launcher would pass the word none")
            block["nvme_path"] = path
            made.notes.append(f"{name}_nvme_path {shown(path)} now counts: the launcher never passes it on")
        else:
            del block["nvme_path"]


_PLUGIN = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping", "zero_optimization")
_GATHER = "stage3_gather_16bit_weights_on_model_save"


def to_accelerate(config: DeepSpeedConfig, world_size: int | None) -> Converted:
    made, values = Converted(), config.values
    if config.problems:
        problem = config.problems[0]
        raise UserError(f"--convert accelerate: mend {config.document.path} first: {'.'.join(map(str, problem.path))} {problem.why}")
    inner: dict[str, Any] = {"zero_stage": stage_of(values)}
    zero = values.get("zero_optimization")
    if not isinstance(zero, dict):
        made.lost.append("zero_optimization is missing: Accelerate stops without it, and an Accelerate file always sets it")
        zero = {}
    _zero(zero, inner, made)
    _batch(values, inner, made)
    precision = _precision(values, made)
    made.lost += [f"{key}" for key in _unknown(values)]
    if made.lost:
        made.lost[-1] += "; an Accelerate file can name this one instead: deepspeed_config.deepspeed_config_file"
    outer: dict[str, Any] = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "DEEPSPEED", "mixed_precision": precision}
    outer |= {"num_processes": world_size} if world_size else {}
    if not world_size:
        made.notes.append("num_processes is not known: give --world-size, or --num_processes to accelerate launch")
    made.text = _yaml(outer, inner)
    return made


def _zero(zero: Mapping[str, Any], inner: dict[str, Any], made: Converted) -> None:
    for name in ("offload_optimizer", "offload_param"):
        block = zero.get(name)
        if not isinstance(block, dict) or block.get("device") in (None, "none"):
            inner[f"{name}_device"] = "none"
            continue
        inner[f"{name}_device"] = block["device"]
        if block["device"] == "nvme":
            made.lost.append(f"zero_optimization.{name}.nvme_path: the launcher never passes it on")
        rows = blocks()[f"zero_optimization.{name}"]
        extra = [key for key, value in block.items() if key not in ("device", "nvme_path") and value != rows.get(key, [None, None])[1]]
        made.lost += [f"zero_optimization.{name}.{key}" for key in extra]
    if inner["zero_stage"] == 3 or zero.get(_GATHER):
        inner["zero3_save_16bit_model"] = bool(zero.get(_GATHER) is True or str(zero.get(_GATHER)).lower() in _TRUE)
    rows = blocks()["zero_optimization"]
    known = ("stage", "offload_optimizer", "offload_param", _GATHER)
    made.lost += [
        f"zero_optimization.{key}" for key, value in zero.items() if key not in known and value != rows.get(key, [None, object()])[1]
    ]


def _batch(values: Mapping[str, Any], inner: dict[str, Any], made: Converted) -> None:
    for key in _PLUGIN[:2]:
        if values.get(key, "auto") != "auto":
            made.lost.append(f"{key} {shown(values[key])}: the script's own batch counts")
    steps, clip = values.get("gradient_accumulation_steps", 1), values.get("gradient_clipping", 1.0)
    if steps != "auto":
        inner["gradient_accumulation_steps"] = steps
    if clip == 0:
        made.lost.append("gradient_clipping 0: Accelerate drops it, and DeepSpeed clips at 1.0")
    inner["gradient_clipping"] = "auto" if clip == "auto" else float(clip) if isinstance(clip, (int, float)) else clip


def _precision(values: Mapping[str, Any], made: Converted) -> str:
    words = []
    for block in ("fp16", "bf16"):
        given = values.get(block)
        if not isinstance(given, dict):
            continue
        rows = blocks()[block]
        extra = [key for key, value in given.items() if key != "enabled" and value not in ("auto", rows.get(key, [None, None])[1])]
        enabled = given.get("enabled", False)
        if enabled == "auto":
            made.lost.append(f"{block}.enabled auto: an Accelerate file has to say the precision")
        elif str(enabled).lower() in _TRUE:
            words.append(block)
            made.lost += [f"{block}.{key}" for key in extra if key != "auto_cast"]
            if block == "fp16" and given.get("auto_cast") is not True:
                made.notes.append("fp16.auto_cast is on from now: Accelerate's plugin casts inputs that are floating point")
    return words[0] if words else "no"


def _unknown(values: Mapping[str, Any]) -> list[str]:
    lookups = table("deepspeed")["lookups"]
    found = []
    for key, value in values.items():
        if key in (*_PLUGIN, "fp16", "bf16") or is_comment(key) or key not in {name.split(".")[0] for name in (*lookups, *blocks())}:
            continue
        if isinstance(value, dict) and (not value or str(value.get("enabled", "")).lower() in ("false", "0")):
            continue
        if value is None or value != lookups.get(key):
            found.append(str(key))
    return [key for key in found if values[key] is not None]


def _yaml(outer: Mapping[str, Any], inner: Mapping[str, Any]) -> str:
    import yaml

    def dumped(rows: Mapping[str, Any]) -> str:
        return str(yaml.safe_dump(dict(rows), sort_keys=False, default_flow_style=False))

    block = "".join(f"  {line}\n" for line in dumped(inner).splitlines())
    return f"{dumped(outer)}deepspeed_config:\n{block}"
