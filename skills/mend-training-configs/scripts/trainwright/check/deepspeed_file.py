# helpers/trainwright/check/deepspeed_file.py without its comments
from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trainwright.check.facts import table
from trainwright.document import KeyPath

TRUE = ("1", "true", "t", "yes", "y", "on")
FALSE = ("0", "false", "f", "no", "n", "off")
BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
LENIENT = ("activation_checkpointing", "flops_profiler", "aio", "autotuning", "checkpoint", "data_types", "expert_parallel", "pipeline")
ALSO_READ = ("sequence_parallel_size", "allgather_size", "msamp", "moe", "eval_batch_size", "zero_quantized_weights", "data_types")
COMMENT = ("_", "//", "#", "$")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Problem:

    kind: str
    path: KeyPath
    why: str
    instead: Any = None


def is_comment(key: Any) -> bool:
    return str(key).startswith(COMMENT) or str(key).lower() in ("comment", "comments")


def blocks() -> dict[str, dict[str, list[Any]]]:
    rows: dict[str, dict[str, list[Any]]] = table("deepspeed")["blocks"]
    return rows


def top_keys() -> set[str]:
    known = {key.split(".")[0] for key in table("deepspeed")["lookups"]}
    return known | {name.split(".")[0] for name in blocks()} | {*ALSO_READ}


def read_keys(block: str) -> set[str]:
    return {key.split(".")[1] for key in table("deepspeed")["lookups"] if key.startswith(f"{block}.")}


def default(block: str, key: str) -> Any:
    return blocks()[block][key][1]


def unread(config: dict[str, Any]) -> Iterator[KeyPath]:
    removed = table("deepspeed")["removed_top"]
    for key, value in config.items():
        if key in LENIENT and isinstance(value, dict):
            yield from ((key, inner) for inner in value if inner not in read_keys(key) and not is_comment(inner))
        elif key not in top_keys() and key not in removed and not is_comment(key):
            yield (key,)


def problems(config: dict[str, Any]) -> Iterator[Problem]:
    for key in table("deepspeed")["removed_top"]:
        if key in config:
            yield Problem("removed", (key,), "was removed from DeepSpeed, which refuses even a block that is switched off")
    zero = config.get("zero_optimization")
    for key in table("deepspeed")["removed_zero"]:
        if isinstance(zero, dict) and key in zero:
            yield Problem("removed", ("zero_optimization", key), "was removed from DeepSpeed")
    for name in blocks():
        if "." not in name and name in config and not (name == "zero_optimization" and isinstance(zero, bool)):
            yield from block_problems(name, config[name], (name,))
    timers = config.get("timers")
    if isinstance(timers, dict) and "throughput" in timers:
        yield from block_problems("timers.throughput", timers["throughput"], ("timers", "throughput"))
    yield from _both_precisions(config)
    yield from _top_values(config)


def block_problems(name: str, value: Any, path: KeyPath) -> Iterator[Problem]:
    if not isinstance(value, dict):
        yield Problem("value", path, f"is {_kind(value)}, not a mapping")
        return
    rows = blocks()[name]
    by_name = {row[4]: key for key, row in rows.items() if len(row) > 4}
    given = {key: item for key, item in value.items() if item != "auto"}
    for key, item in given.items():
        known = key if key in rows else by_name.get(key)
        if known is None or (known != key and known in given):
            if key not in table("deepspeed")[f"removed_{'zero' if name == 'zero_optimization' else 'top'}"]:
                yield Problem("unknown", (*path, key), f"is no key of {name}, whose unknown keys DeepSpeed refuses")
        else:
            yield from _value_problems(name, known, rows[known], item, (*path, key))
    yield from _deprecated_pairs(rows, given, path)
    if name in _MODEL_CHECKS:
        yield from _MODEL_CHECKS[name](given, path)


def _value_problems(name: str, key: str, row: list[Any], value: Any, path: KeyPath) -> Iterator[Problem]:
    kind, constraint = row[0], row[2] if len(row) > 2 else ""
    nested = f"{name}.{key}"
    if value is None:
        if not kind.startswith("?") and kind != "any":
            yield Problem("value", path, "is null, and DeepSpeed wants a value here")
        return
    kind = kind.lstrip("?")
    if kind == "{}":
        if nested == "zero_optimization.leaf_module" and isinstance(value, dict):
            value = {k: [v] if isinstance(v, str) and v != "auto" else v for k, v in value.items()}
        yield from block_problems(nested, value, path)
        return
    why, number = _wrong(kind, value)
    if name == "fp16" and key in ("loss_scale", "loss_scale_window", "min_loss_scale") and isinstance(value, bool):
        why = "is a boolean, not a number"
    if why:
        yield Problem("fraction" if "fraction" in why else "value", path, why, _instead(kind, value))
    elif constraint and number is not None and (bound := _out_of(constraint, number)):
        yield Problem("value", path, f"has to be {bound}")


def _wrong(kind: str, value: Any) -> tuple[str, float | None]:
    if kind == "bool":
        fits = isinstance(value, bool) or (isinstance(value, (int, float)) and value in (0, 1)) or _word(value) in (*TRUE, *FALSE)
        return ("" if fits else "is neither true nor false"), None
    if kind == "int":
        return _whole(value)
    if kind == "float":
        number = _number(value)
        return ("", number) if number is not None else ("is no number", None)
    if kind == "str or int":
        fits = isinstance(value, str) or not _whole(value)[0]
        return ("" if fits else f"is {_kind(value)}, neither a text nor a whole number"), None
    if kind == "str":
        return ("" if isinstance(value, str) else f"is {_kind(value)}, not a text"), None
    if kind == "path":
        return ("" if isinstance(value, str) else f"is {_kind(value)}, not a path"), None
    if kind[:1] in "=#":
        return _choice(kind[0], kind[1:].split("|"), value), None
    if kind.startswith(("list", "dict")):
        wanted: Any = list if kind.startswith("list") else dict
        fits = isinstance(value, wanted) and not (kind.endswith("/str") and not all(isinstance(item, str) for item in value))
        return ("" if fits else f"is {_kind(value)}, not a {'list' if wanted is list else 'mapping'}"), None
    return ("a torch dtype cannot be written in JSON" if kind == "dtype" else ""), None


def _choice(mark: str, choices: list[str], value: Any) -> str:
    word = str(value)
    if mark == "#":
        number = _number(value) if isinstance(value, (int, float)) else float(word) if word in choices else None
        word = str(int(number)) if number is not None and math.isfinite(number) and number == int(number) else word
    elif not isinstance(value, str):
        word = ""
    return "" if word in choices else f"is not one of {', '.join(choices)}"


def _whole(value: Any) -> tuple[str, float | None]:
    if isinstance(value, (bool, int)):
        return "", value
    if isinstance(value, float):
        if not math.isfinite(value):
            return "is no finite number", None
        return ("", value) if value == int(value) else ("is no whole number: it has a fraction", None)
    if isinstance(value, str):
        word = value.strip()
        body, _, tail = word.lstrip("+-").partition(".")
        if len(word) <= 40 and body.replace("_", "").isdecimal() and body.isascii() and not tail.strip("0"):
            return "", int(float(word.replace("_", "")))
        return "is a text that holds no whole number (digits alone)", None
    return f"is {_kind(value)}, not a whole number", None


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        try:
            return float(value) if len(value) <= 40 else None
        except ValueError:
            return None
    return float(value) if isinstance(value, (int, float)) and abs(value) < 1e300 else value if isinstance(value, float) else None


def _instead(kind: str, value: Any) -> Any:
    number = _number(value)
    if number is None or not math.isfinite(number) or kind not in ("int", "float"):
        return None
    return (int(number) if number == int(number) else max(1, round(number))) if kind == "int" else number


def _out_of(constraint: str, number: float) -> str:
    words = {"gt": "greater than", "ge": "at least", "lt": "less than", "le": "at most"}
    for part in constraint.split(","):
        name, _, bound = part.partition("=")
        limit = float(bound)
        if {"gt": number <= limit, "ge": number < limit, "lt": number >= limit, "le": number > limit}[name]:
            return f"{words[name]} {limit:g}"
    return ""


def _word(value: Any) -> str:
    return value.strip().lower() if isinstance(value, str) else ""


def _kind(value: Any) -> str:
    names = {bool: "true or false", int: "a number", float: "a number", str: "a text", list: "a list", dict: "a mapping"}
    return "null" if value is None else names.get(type(value), "of another kind")


def _deprecated_pairs(rows: dict[str, list[Any]], given: dict[str, Any], path: KeyPath) -> Iterator[Problem]:
    for key in given:
        row = rows.get(key, [])
        new = row[3][1:] if len(row) > 3 and row[3].startswith("!") else ""
        if new == "gather_16bit_weights_on_model_save":
            new = "stage3_gather_16bit_weights_on_model_save" if "gather_16bit_weights_on_model_save" not in given else new
        if new in given and " or " not in new:
            yield Problem("pair", (*path, key), f"is the old name of {new}, and DeepSpeed stops where both are given")


def truth(value: Any) -> bool:
    return _word(value) in TRUE if isinstance(value, str) else bool(value)


def stage_of(config: dict[str, Any]) -> int | None:
    zero = config.get("zero_optimization")
    if isinstance(zero, bool):
        return int(zero)
    value = zero.get("stage", 0) if isinstance(zero, dict) else 0
    if value == "auto":
        return 0
    if _choice("#", ["0", "1", "2", "3"], value) or not str(value).strip():
        return None
    return int(value) if isinstance(value, (int, float)) else int(str(value))


def _zero_checks(given: dict[str, Any], path: KeyPath) -> Iterator[Problem]:
    stage = stage_of({"zero_optimization": given})
    if not truth(given.get("compute_grad_norm", True)) and stage not in (1, 2):
        yield Problem("grad_norm", (*path, "compute_grad_norm"), "may be false under stages 1 and 2 only")
    offload = given.get("offload_optimizer")
    ratio = _number(offload.get("ratio", 1.0)) if isinstance(offload, dict) and offload.get("ratio") != "auto" else 1.0
    if ratio is not None and 0 <= ratio < 1 and stage != 3:
        yield Problem("ratio", (*path, "offload_optimizer", "ratio"), "below 1 offloads a part, which only stage 3 can", 1.0)


def _fp16_checks(given: dict[str, Any], path: KeyPath) -> Iterator[Problem]:
    scale = _number(given.get("loss_scale", 0))
    if scale is not None and (scale < 0 or not math.isfinite(scale)):
        yield Problem("loss_scale", (*path, "loss_scale"), "has to be 0 (dynamic) or a positive number", 0)
    if truth(given.get("enabled", False)) and scale == 0:
        for key in ("loss_scale_window", "min_loss_scale"):
            number = _number(given.get(key, 1))
            if number is not None and math.isfinite(number) and int(number) <= 0:
                yield Problem("loss_scale", (*path, key), "has to be above 0 with a dynamic loss scale", 1)


def _zenflow_checks(given: dict[str, Any], path: KeyPath) -> Iterator[Problem]:
    if given.get("select_strategy", "auto") not in ("auto", "step", "epoch"):
        yield Problem("value", (*path, "select_strategy"), "is not one of auto, step, epoch")
    for key in ("select_interval", "update_interval"):
        if isinstance(given.get(key), str) and not given[key].isdecimal():
            yield Problem("value", (*path, key), 'is neither "auto" nor a number')
    update = given.get("update_interval")
    if isinstance(update, int) and update < 1:
        yield Problem("value", (*path, "update_interval"), "has to be at least 1")


_MODEL_CHECKS = {"zero_optimization": _zero_checks, "fp16": _fp16_checks, "zero_optimization.zenflow": _zenflow_checks}


def _both_precisions(config: dict[str, Any]) -> Iterator[Problem]:
    if is_on(config, "fp16") and (is_on(config, "bf16") or ("bf16" not in config and is_on(config, "bfloat16"))):
        yield Problem("both16", ("fp16", "enabled"), "is on together with bf16.enabled, and DeepSpeed takes one of them", False)
    for block in ("fp16", "bf16"):
        values = config.get(block)
        key = f"{block}_master_weights_and_grads"
        if isinstance(values, dict) and values.get(key) not in (None, "auto") and truth(values[key]) and stage_of(config) == 0:
            yield Problem("master16", (block, key), "needs ZeRO stage 1, 2 or 3", False)
    bf16 = config.get("bf16")
    states = isinstance(bf16, dict) and bf16.get("bf16_optimizer_states") not in (None, "auto") and truth(bf16["bf16_optimizer_states"])
    if states and isinstance(bf16, dict) and not truth(bf16.get("bf16_master_weights_and_grads", False)):
        yield Problem("master16", ("bf16", "bf16_optimizer_states"), "needs bf16_master_weights_and_grads", False)


def is_on(config: dict[str, Any], block: str) -> bool:
    values = config.get(block)
    enabled = values.get("enabled", False) if isinstance(values, dict) else False
    return enabled != "auto" and not _wrong("bool", enabled)[0] and truth(enabled)


def _top_values(config: dict[str, Any]) -> Iterator[Problem]:
    for key in ("communication_data_type", "seq_parallel_communication_data_type"):
        value = config.get(key)
        if value is not None and (not isinstance(value, str) or value.lower() not in ("fp16", "bf16", "fp32")):
            yield Problem("dtype", (key,), "is not one of fp16, bf16, fp32")
    operation = config.get("gradient_allreduce_op", "mean")
    word = operation.lower() if isinstance(operation, str) else operation
    if word not in ("mean", "sum"):
        yield Problem("allreduce", ("gradient_allreduce_op",), "is neither mean nor sum", "mean")
    elif word == "sum" and (obstacle := _no_sum(config)):
        yield Problem("allreduce", ("gradient_allreduce_op",), f"sum is not supported with {obstacle}", "mean")
    yield from _autocast(config)
    clock = config.get("wall_clock_breakdown", False)
    if not isinstance(clock, (bool, int)):
        yield Problem("clock", ("wall_clock_breakdown",), f"is {_kind(clock)}, not true or false", _word(clock) in TRUE)
    yield from _checkpoint(config)
    keep = _inside(config, "data_types").get("keep_in_fp32_modules", "auto")
    if keep != "auto" and not (isinstance(keep, list) and all(isinstance(item, str) for item in keep)):
        yield Problem("dtype", ("data_types", "keep_in_fp32_modules"), 'is neither "auto" nor a list of names')


def _inside(config: dict[str, Any], block: str) -> dict[str, Any]:
    value = config.get(block)
    return value if isinstance(value, dict) else {}


def _no_sum(config: dict[str, Any]) -> str:
    if stage_of(config) == 3:
        return "ZeRO stage 3"
    zero, compiled = _inside(config, "zero_optimization"), _inside(config, "compile")
    return "ZenFlow" if isinstance(zero.get("zenflow"), dict) else "DeepCompile" if truth(compiled.get("deepcompile", False)) else ""


def _autocast(config: dict[str, Any]) -> Iterator[Problem]:
    autocast = _inside(config, "torch_autocast")
    dtype = autocast.get("dtype")
    if "dtype" in autocast and str(dtype) not in table("deepspeed")["dtypes"]:
        yield Problem("dtype", ("torch_autocast", "dtype"), f"is not one of {', '.join(table('deepspeed')['dtypes'])}")
    names = autocast.get("lower_precision_safe_modules", [])
    if not isinstance(names, (list, str)) or not all(isinstance(name, str) for name in names):
        yield Problem("value", ("torch_autocast", "lower_precision_safe_modules"), "is no list of module names")


def _checkpoint(config: dict[str, Any]) -> Iterator[Problem]:
    checkpoint = _inside(config, "checkpoint")
    tag = checkpoint.get("tag_validation", "WARN")
    if not isinstance(tag, str) or tag.upper() not in ("WARN", "IGNORE", "FAIL"):
        yield Problem("tag", ("checkpoint", "tag_validation"), "is not one of Warn, Ignore, Fail", "Warn")
    stage = _inside(checkpoint, "parallel_write").get("pipeline_stage", False)
    if stage not in (True, False):
        yield Problem("tag", ("checkpoint", "parallel_write", "pipeline_stage"), "is neither true nor false", False)


def batch_problem(config: dict[str, Any], world: int | None) -> Problem | None:
    sizes = {key: config.get(key) for key in BATCH}
    for key, value in sizes.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            number = _number(value)
            return Problem("batch_text", (key,), f"is {_kind(value)}, not a number", int(number) if number else None)
    total, micro, steps = sizes.values()
    if total is None and micro is None:
        return Problem("batch_none", (BATCH[1],), "and train_batch_size are both missing: one of them has to be given")
    for key, value in sizes.items():
        if value is not None and not 0 < value < 10**15:
            return Problem("batch", (key,), "has to be greater than 0, and a number that a batch can have")
    if total is None:
        return None
    return _triangle(total, micro, steps, world)


def _triangle(total: Any, micro: Any, steps: Any, world: int | None) -> Problem | None:
    known = (micro or 1) * (steps or 1)
    ranks = f"{world} rank{'s' if world != 1 else ''}" if world else "any number of ranks"
    if world is None:
        return None if total % known == 0 else Problem("batch", (BATCH[0],), _product(total, micro, steps, ranks), None)
    wrong = total != micro * steps * world if micro is not None and steps is not None else total % (known * world) != 0
    return Problem("batch", (BATCH[0],), _product(total, micro, steps, ranks), _nearest(total, known * world)) if wrong else None


def _product(total: Any, micro: Any, steps: Any, ranks: str) -> str:
    parts = [f"micro batch {micro}" if micro else "", f"accumulation {steps}" if steps else "", ranks]
    product = " x ".join(filter(None, parts))
    return f"{total} is not {product}" if micro and steps else f"{total} is no multiple of {product}"


def _nearest(total: Any, step: Any) -> int:
    return int(max(1, round(total / step)) * step)
