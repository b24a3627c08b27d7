# helpers/trainwright/check/schemas.py without its comments
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainwright.check.deepspeed_file import LENIENT, blocks, read_keys, top_keys
from trainwright.check.facts import before, release, table
from trainwright.emit.accelerate_file import shown
from trainwright.emit.accelerate_file import table as keys
from trainwright.errors import UserError

Json = dict[str, Any]
_DIALECT = "/".join(("https:", "", "json-schema.org", "draft", "2020-12", "schema"))
_CLASSES = {
    "zero_optimization": "DeepSpeedZeroConfig",
    "zero_optimization.offload_param": "DeepSpeedZeroOffloadParamConfig",
    "zero_optimization.offload_optimizer": "DeepSpeedZeroOffloadOptimizerConfig",
    "hybrid_engine": "HybridEngineConfig",
    "compile": "CompileConfig",
    "tensor_parallel": "TPTrainingConfig",
    "bf16": "DeepSpeedBF16Config",
    "fp16": "DeepSpeedFP16Config",
}
_STRICT_PRECISION = "0.17"


def names() -> list[Json]:
    return [
        {"name": name, "package": package, "version": table(file)["version"], "changes": _changes(file)} for name, package, file in _ROWS
    ]


def _changes(file: str) -> list[str]:
    found = {word for row in table(file).get("history", {}).values() for word in row if word}
    return sorted(found, key=release)


def schema(name: str, versions: dict[str, str] | None = None) -> Json:
    word, _, version = name.partition("@")
    row = next((row for row in _ROWS if row[0] == word), None)
    if row is None or (version and release(version) == (-1,)):
        raise UserError(f"--schema {name[:60]!r}: is none of {', '.join(row[0] for row in _ROWS)} (a release may follow: deepspeed@0.16)")
    package, newest = row[1], str(table(row[2])["version"])
    wanted = version or (versions or {}).get(package, newest)
    made = _MAKERS[word](wanted)
    return {"$schema": _DIALECT, "$id": f"urn:trainwright:schema:{word}:{wanted}", "title": f"{_TITLES[word]}, {package} {wanted}", **made}


def _has(history: Json, key: str, version: str) -> bool:
    since, until = history.get(key, ["", ""])
    return not (since and before(version, since)) and not (until and before(until, version))


def _any_case(words: list[str]) -> str:

    def letters(word: str) -> str:
        return "".join(f"[{c.upper()}{c.lower()}]" if c.isalpha() else c if c.isalnum() or c in "_-" else f"\\{c}" for c in word)

    return f"^({'|'.join(map(letters, words))})$"


def _choice(words: list[str], *more: Json) -> Json:
    return {"anyOf": [{"enum": words}, {"type": "string", "pattern": _any_case(words)}, *more]}


_NULL: Json = {"type": "null"}
_TRUTH_WORDS = ["true", "false", "yes", "no", "on", "off", "y", "n", "t", "f", "1", "0"]
_ACCELERATE_DEFS: Json = {
    "truth": {"anyOf": [{"type": "boolean"}, {"enum": [0, 1]}, {"type": "string", "pattern": _any_case(_TRUTH_WORDS)}]},
    "whole": {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": r"^\s*[-+]?\d+(_\d+)*\s*$"}]},
    "number": {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^\s*[-+]?[\d.]+([eE][-+]?\d+)?\s*$"}]},
    "auto": {"type": "string", "pattern": _any_case(["auto"])},
}


def _accelerate(version: str) -> Json:
    history = table("accelerate")["history"]
    properties = {key: _top(key, version) for key in keys()["cluster"] if _has(history, key, version)}
    properties |= {key: {"deprecated": True, "description": "As Accelerate 0.11 wrote it."} for key in keys()["legacy"]}
    for key in ("ipex_config", "tp_config"):
        if key not in properties and key in history and _has(history, key, version):
            properties[key] = {"type": ["object", "null"], "deprecated": True, "description": f"Known up to Accelerate {history[key][1]}."}
    cluster = {"type": "object", "required": ["distributed_type"], "additionalProperties": False, "properties": properties}
    sagemaker = [key for key in table("accelerate")["sagemaker"] if _has(history, f"sagemaker.{key}", version)]
    return {
        "type": "object",
        "if": {"required": ["compute_environment"], "properties": {"compute_environment": {"const": "AMAZON_SAGEMAKER"}}},
        "then": {"$ref": "#/$defs/sagemaker"},
        "else": {"$ref": "#/$defs/cluster"},
        "$defs": {
            "cluster": cluster,
            "sagemaker": {"type": "object", "additionalProperties": False, "properties": {key: {} for key in sagemaker}},
            **_ACCELERATE_DEFS,
        },
    }


def _top(key: str, version: str) -> Json:
    if key in keys()["blocks"]:
        return _block(key, version)
    special: dict[str, Json] = {
        "compute_environment": {"enum": ["LOCAL_MACHINE", "AMAZON_SAGEMAKER", None]},
        "distributed_type": {
            "anyOf": [{"enum": keys()["distributed_types"]}, {"const": False, "deprecated": True, "description": "A bare NO: quote it."}]
        },
        "mixed_precision": _choice(keys()["precisions"], _NULL),
        "gpu_ids": {"type": ["string", "null"]},
        "num_processes": {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"const": -1, "description": "Not said: the command line has to."},
                {"type": "string", "pattern": r"^\d+$", "deprecated": True},
            ]
        },
        "num_machines": {"type": "integer", "minimum": 1},
    }
    lost = key in keys()["lose_to_flag"]
    more: Json = {"deprecated": True} if lost else {}
    note = f"Ignored: the default of --{key} stands over the file." if lost else _of_flag(key)
    return {**special.get(key, {}), **({"description": note} if note else {}), **more}


def _block(block: str, version: str) -> Json:
    history, (start, prefix) = table("accelerate")["history"], keys()["prefixes"].get(block, ("", ""))
    properties = {}
    for key in (key for key in keys()["blocks"][block] if _has(history, key, version)):
        properties[key] = {**_value(key), "description": _of_flag(key)}
        if prefix and not key.removeprefix(prefix).startswith(start):
            properties[key.removeprefix(prefix)] = properties[key]
    why = "Keys that Accelerate does not read are ignored without a word."
    return {"type": ["object", "string", "null"], "additionalProperties": True, "properties": properties, "description": why}


def _value(key: str) -> Json:
    names: dict[str, Json] = {
        "fsdp_version": {"enum": [1, 2, "1", "2"]},
        "fsdp_auto_wrap_policy": _choice(keys()["wrap_policies"], _NULL),
        "fsdp_sharding_strategy": _choice(keys()["sharding_strategies"], {"enum": [1, 2, 3, 4, 5, "1", "2", "3", "4", "5"]}),
        "fsdp_state_dict_type": _choice(keys()["state_dict_types"], _NULL, {"enum": [1, 2, 3]}),
        "fsdp_backward_prefetch": _choice(keys()["backward_prefetch"], _NULL, {"enum": [1, 2]}),
        "fsdp_reshard_after_forward": {"anyOf": [{"$ref": "#/$defs/truth"}, _choice(keys()["sharding_strategies"])]},
        "fsdp_min_num_params": {"$ref": "#/$defs/whole"},
        "fsdp_transformer_layer_cls_to_wrap": {"type": ["string", "null"]},
        "dynamo_backend": _choice(keys()["dynamo_backends"]),
        "zero_stage": {"enum": [0, 1, 2, 3, "0", "1", "2", "3", None]},
        "gradient_accumulation_steps": {"anyOf": [{"$ref": "#/$defs/whole"}, {"$ref": "#/$defs/auto"}, _NULL]},
        "gradient_clipping": {"anyOf": [{"$ref": "#/$defs/number"}, {"$ref": "#/$defs/auto"}, _NULL]},
        "zero3_init_flag": {"anyOf": [{"$ref": "#/$defs/truth"}, _NULL]},
        "offload_optimizer_device": {"enum": ["none", "cpu", "nvme", None]},
        "offload_param_device": {"enum": ["none", "cpu", "nvme", None]},
        "fp8_backend": _choice(["TE", "AO", "MSAMP"]),
        "fp8_override_linear_precision": {"type": ["array", "string", "null"], "minItems": 3, "minLength": 3},
        "parallelism_config_cp_backend": {"enum": ["torch"]},
        "parallelism_config_sp_backend": {"enum": ["deepspeed"]},
        "parallelism_config_cp_comm_strategy": {"enum": ["allgather", "alltoall"]},
    }
    if key in names:
        return names[key]
    if key.startswith("parallelism_config_") and key.endswith("_size"):
        return {"type": "integer", "minimum": 1}
    return {"$ref": "#/$defs/truth"} if key.startswith("fsdp_") and key != "fsdp_ignored_modules" else {}


def _of_flag(key: str) -> str:
    row = table("accelerate")["flags"].get(key)
    words = [f"Default {shown(row[1])}." if row and row[1] is not None else ""]
    for rows in table("accelerate")["environment"].values():
        for variable, argument, *_ in rows:
            reader = table("accelerate")["readers"].get(variable)
            if argument == key and reader:
                words.append(f"Reaches {reader[0]} as {variable}.")
                return " ".join(filter(None, words))
    return " ".join(filter(None, words))


_AUTO: Json = {"$ref": "#/$defs/auto"}
_WHOLE_TEXT = r"^\s*[-+]?\d+(_\d+)*(\.0*)?\s*$"
_DEEPSPEED_DEFS: Json = {
    "auto": {"const": "auto", "description": "Filled by Accelerate and Transformers; DeepSpeed itself drops it, and the default runs."},
    "bool": {"anyOf": [{"type": "boolean"}, {"enum": [0, 1]}, {"type": "string", "pattern": _any_case(_TRUTH_WORDS)}]},
    "int": {"anyOf": [{"type": ["integer", "boolean"]}, {"type": "string", "pattern": _WHOLE_TEXT}]},
    "float": {"anyOf": [{"type": ["number", "boolean"]}, {"type": "string", "pattern": r"^\s*[-+]?[\d.]+([eE][-+]?\d+)?\s*$"}]},
}


def _deepspeed(version: str) -> Json:
    removed = {key: _removed(key, version) for key in table("deepspeed")["removed_top"]}
    properties: Json = {key: _simple(key) for key in sorted(top_keys()) if not key.startswith("$")}
    properties |= {name: _strict(name, version) for name in blocks() if "." not in name}
    properties |= {name: _lenient(name) for name in LENIENT}
    properties["zero_optimization"]["anyOf"].append({"type": "boolean", "deprecated": True, "description": "true is stage 1."})
    properties["timers"] = {"type": ["object", "null"], "properties": {"throughput": _strict("timers.throughput", version)}}
    properties |= {key: {**_TOP_VALUES[key], **_default(table("deepspeed")["lookups"].get(key))} for key in _TOP_VALUES}
    properties["optimizer"], properties["scheduler"] = _optimizer(version), _scheduler()
    why = "Keys that DeepSpeed does not read are ignored without a word."
    return {
        "type": "object",
        "description": why,
        "additionalProperties": True,
        "properties": properties | removed,
        "anyOf": [{"required": ["train_batch_size"]}, {"required": ["train_micro_batch_size_per_gpu"]}],
        "$defs": _DEEPSPEED_DEFS,
    }


def _removed(key: str, version: str) -> Json:
    since = "0.19.7" if key in ("nebula", "compression_training", "quantize_training", "sparse_attention") else "0.19.8"
    if before(version, since):
        return {"deprecated": True, "description": f"DeepSpeed refuses it from {since} on."}
    return {"not": {}, "description": f"Removed in DeepSpeed {since}, which refuses it even switched off."}


_BATCH: Json = {"anyOf": [{"type": "integer", "minimum": 1}, _AUTO]}
_DTYPES = ["fp16", "bf16", "fp32"]
_TOP_VALUES: dict[str, Json] = {
    "train_batch_size": _BATCH,
    "train_micro_batch_size_per_gpu": _BATCH,
    "gradient_accumulation_steps": _BATCH,
    "gradient_clipping": {"anyOf": [{"type": "number"}, _AUTO]},
    "communication_data_type": _choice(_DTYPES, _NULL),
    "seq_parallel_communication_data_type": _choice(_DTYPES, _NULL),
    "gradient_allreduce_op": _choice(["mean", "sum"]),
    "wall_clock_breakdown": {"type": ["boolean", "integer"]},
}


def _simple(key: str) -> Json:
    return {**_default(table("deepspeed")["lookups"].get(key))}


def _default(value: Any) -> Json:
    return {"default": value} if value is not None and value != {} else {}


def _strict(name: str, version: str) -> Json:
    history, cls = table("deepspeed")["history"], _CLASSES.get(name, "")
    open_ = name in ("bf16", "fp16") and before(version, _STRICT_PRECISION)
    properties: Json = {}
    for key, row in blocks()[name].items():
        if cls and not open_ and not _has(history, f"{cls}.{key}", version):
            continue
        properties[key] = _field(name, key, row, version)
        if len(row) > 4:
            properties[row[4]] = {**properties[key], "description": f"The field's own name; {key} is the usual one."}
    for key in (row.split(".")[1] for row in history if cls and row.startswith(f"{cls}.")):
        if key not in properties and history[f"{cls}.{key}"][1] and _has(history, f"{cls}.{key}", version):
            properties[key] = {"deprecated": True, "description": f"Known up to DeepSpeed {history[f'{cls}.{key}'][1]}."}
    rule = {"type": "object", "additionalProperties": open_, "properties": properties}
    return {"anyOf": [rule]} if name == "zero_optimization" else rule


def _field(name: str, key: str, row: list[Any], version: str) -> Json:
    kind, default, constraint, new = (*row, "", "", "")[:4] if len(row) < 4 else row[:4]
    notes, more = [], dict(_default(default))
    if str(new).startswith("!"):
        more["deprecated"] = True
        notes.append(f"Deprecated: {new[1:]} is its successor." if new[1:] else "Deprecated.")
    optional = str(kind).startswith("?")
    plain = str(kind).lstrip("?")
    value = _strict(f"{name}.{key}", version) if plain == "{}" else _typed(plain, constraint)
    choices = [*value.pop("anyOf"), _AUTO] if "anyOf" in value and not value.keys() - {"anyOf"} else [value, _AUTO]
    if constraint:
        notes.append(f"Has to be {constraint}.")
    return {"anyOf": [*choices, *([_NULL] if optional else [])], **({"description": " ".join(notes)} if notes else {}), **more}


def _typed(kind: str, constraint: str) -> Json:
    words = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum"}
    bounds = {words[part.partition("=")[0]]: float(part.partition("=")[2]) for part in constraint.split(",") if part}
    if kind in ("bool", "int", "float"):
        return {"$ref": f"#/$defs/{kind}", **bounds}
    if kind[:1] == "=":
        return {"enum": kind[1:].split("|")}
    if kind[:1] == "#":
        return {"enum": [value for word in kind[1:].split("|") for value in (int(word), word)]}
    if kind == "str or int":
        return {"type": ["string", "integer"]}
    types = {"str": "string", "path": "string", "list": "array", "dict": "object"}
    return {"type": types[kind.split("/")[0]]} if kind.split("/")[0] in types else {}


def _lenient(name: str) -> Json:
    lookups = table("deepspeed")["lookups"]
    properties = {key: {**_default(lookups.get(f"{name}.{key}"))} for key in sorted(read_keys(name)) if not key.startswith("_")}
    why = "Keys that DeepSpeed does not read are ignored without a word."
    return {"type": ["object", "null"], "additionalProperties": True, "properties": properties, "description": why}


def _optimizer(version: str) -> Json:
    known = table("deepspeed")
    older = ["onebitadam", "onebitlamb", "zerooneadam"] if before(version, "0.19.7") else []
    note = "DeepSpeed's in any case, torch.optim's as written."
    kind = {**_choice([*known["optimizers"], *older], {"enum": known["torch_optimizers"]}), "description": note}
    return {"type": ["object", "null"], "properties": {"type": kind, "params": {"type": "object"}}}


def _scheduler() -> Json:
    known = table("deepspeed")
    cases = [
        {
            "if": {"required": ["type"], "properties": {"type": {"const": name}}},
            "then": {
                "properties": {
                    "params": {
                        "additionalProperties": False,
                        "properties": {key: _default(value) for key, value in {**rows, "last_batch_iteration": -1}.items()},
                    }
                }
            },
        }
        for name, rows in known["schedulers"].items()
    ]
    kind = {"enum": [*known["schedulers"], *known["torch_schedulers"]]}
    return {"type": ["object", "null"], "properties": {"type": kind, "params": {"type": "object"}}, "allOf": cases}


def _arguments(_version: str) -> Json:
    rows = table("arguments")["arguments"]
    properties = {key: _default(value) for key, value in rows.items()}
    return {"type": "object", "additionalProperties": True, "properties": properties}


_TITLES = {"accelerate": "Accelerate config file", "deepspeed": "DeepSpeed config", "training-arguments": "TrainingArguments"}
_ROWS = (
    ("accelerate", "accelerate", "accelerate"),
    ("deepspeed", "deepspeed", "deepspeed"),
    ("training-arguments", "transformers", "arguments"),
)
_MAKERS: dict[str, Callable[[str], Json]] = {"accelerate": _accelerate, "deepspeed": _deepspeed, "training-arguments": _arguments}
