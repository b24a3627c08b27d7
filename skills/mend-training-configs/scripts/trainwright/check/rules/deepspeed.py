# helpers/trainwright/check/rules/deepspeed.py without its comments
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainwright.check.deepspeed_file import FALSE, LENIENT, TRUE, Problem, blocks, is_comment, read_keys, top_keys, unread
from trainwright.check.facts import table
from trainwright.check.subject import DeepSpeedConfig
from trainwright.emit.accelerate_file import is_close, nearest, shown
from trainwright.report import Fix, Severity
from trainwright.rules import Hit, rule

_SINCE = {"nebula": "0.19.7", "compression_training": "0.19.7", "quantize_training": "0.19.7", "sparse_attention": "0.19.7"}
_SCALING = ("loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale", "auto_cast", "consecutive_hysteresis")
_RENAMED = {
    ("activation_checkpointing", "partitioned_activations"): "partition_activations",
    ("activation_checkpointing", "cpu_checkpoint"): "cpu_checkpointing",
    ("flops_profiler", "profile_steps"): "profile_step",
    ("aio", "thread_count"): "intra_op_parallelism",
    ("expert_parallel", "ep_size"): "autoep_size",
    ("tensor_parallel", "tp_size"): "autotp_size",
}


def hit(config: DeepSpeedConfig, path: tuple[Any, ...], message: str, **more: Any) -> Hit:
    """A finding at a key of the config, whose name opens the message."""
    key = ".".join(map(str, path))
    return Hit(f"{key} {message}", config.at(*path), key, **more)


def told(config: DeepSpeedConfig, problem: Problem, **more: Any) -> Hit:
    value = config.get(*problem.path)
    words = f"{shown(value)} {problem.why}" if not isinstance(value, dict) or not value else problem.why
    if problem.instead is not None:
        more.setdefault("fix", Fix({".".join(map(str, problem.path)): problem.instead}, safe=says(value, problem.instead)))
    return hit(config, problem.path, words, **more)


def says(value: Any, instead: Any) -> bool:
    """Whether a quoted value says the number or the truth that has to stand there."""
    if not isinstance(value, str):
        return False
    if isinstance(instead, bool):
        return value.strip().lower() in (TRUE if instead else FALSE)
    try:
        return isinstance(instead, (int, float)) and float(value) == instead
    except ValueError:
        return False


@rule(
    "DS001",
    Severity.ERROR,
    DeepSpeedConfig,
    fails_at="engine start",
    checked="run",
    source="deepspeed-0.19.8-config",
    covers=("DS-REMOVED-TOP", "DS-REMOVED-ZERO"),
)
def removed_block(config: DeepSpeedConfig) -> Iterator[Hit]:
    """A block or key of a feature that DeepSpeed has removed stops it, even switched off."""
    for problem in (p for p in config.problems if p.kind == "removed"):
        name = str(problem.path[-1])
        since = "0.19.7" if name.startswith("mics") else _SINCE.get(name, "0.19.8")
        fix = Fix({".".join(map(str, problem.path)): None}, safe=_is_off(config.get(*problem.path)))
        if config.context.since("deepspeed", since):
            yield hit(config, problem.path, f"was removed in DeepSpeed {since}, which refuses it even where it is switched off", fix=fix)
        else:
            yield hit(config, problem.path, f"is refused from DeepSpeed {since} on", fix=fix, severity=Severity.INFO, fails_at="never")


def _is_off(value: Any) -> bool:
    return value in (None, False) or (isinstance(value, dict) and value.get("enabled", True) is False)


@rule(
    "DS002",
    Severity.ERROR,
    DeepSpeedConfig,
    fails_at="engine start",
    checked="run",
    source="deepspeed-0.19.8-config-utils",
    covers=("DS-UNKNOWN-ZERO", "DS-TP-KEY", "DS-COMPILE-KEY"),
)
def unknown_key_in_strict_block(config: DeepSpeedConfig) -> Iterator[Hit]:
    """A key that a strict block does not have stops DeepSpeed."""
    for problem in config.problems:
        block = ".".join(map(str, problem.path[:-1]))
        if problem.kind == "unknown" and block not in ("bf16", "fp16", "bfloat16"):
            yield hit(config, problem.path, problem.why, fix=_nearest_fix(config, problem.path, block))


def _nearest_fix(config: DeepSpeedConfig, path: tuple[Any, ...], block: str) -> Fix:
    """The nearest key of the same block; else the block or the top where the key belongs; else delete it."""
    name, value = str(path[-1]), config.get(*path)
    delete = {".".join(map(str, path)): None}
    near = _RENAMED.get((block, name)) or nearest(name, blocks()[block], 0.8)
    if near and not config.has(*path[:-1], near):
        meant = (block, name) in _RENAMED or is_close(name, near)
        return Fix({".".join(map(str, (*path[:-1], near))): value, **delete}, safe=meant and value is not None)
    homes = [other for other, rows in blocks().items() if name in rows and other != block]
    if homes:
        return Fix(delete, note=f"it is a key of {' and of '.join(homes[:2])}")
    if name in top_keys():
        return Fix({name: value, **delete}, note="it belongs at the top level")
    return Fix(delete)


@rule(
    "DS003",
    Severity.ERROR,
    DeepSpeedConfig,
    fails_at="engine start",
    checked="run",
    source="deepspeed-0.19.8-precision-config",
    covers=("DS-BF16-LOSSSCALE", "DS-FP16-EXTRA"),
)
def foreign_key_in_precision_block(config: DeepSpeedConfig) -> Iterator[Hit]:
    """A key that bf16 or fp16 does not have, such as loss scaling under bf16, stops DeepSpeed 0.17 and later."""
    strict = config.context.since("deepspeed", "0.17")
    more: dict[str, Any] = {} if strict else {"severity": Severity.INFO, "fails_at": "never"}
    for problem in config.problems:
        block = str(problem.path[0])
        if problem.kind != "unknown" or block not in ("bf16", "fp16", "bfloat16"):
            continue
        name = str(problem.path[-1])
        why = f"is no key of {block}" + (": loss scaling is fp16's" if name in _SCALING and block != "fp16" else "")
        end = "DeepSpeed refuses it" if strict else "DeepSpeed ignores it, and refuses it from 0.17 on"
        yield hit(config, problem.path, f"{why}; {end}", fix=Fix({f"{block}.{name}": None}, safe=True), **more)


@rule(
    "DS004",
    Severity.ERROR,
    DeepSpeedConfig,
    fails_at="engine start",
    checked="run",
    source="deepspeed-0.19.8-config-utils",
    covers=("DS-STAGE-RANGE", "DS-NUM-STR", "DS-BUCKET-ZERO", "DS-FP16-FLOAT", "DS-FP16-LOSSSCALE-BAD", "DS-WALL-STR"),
)
def value_deepspeed_refuses(config: DeepSpeedConfig) -> Iterator[Hit]:
    """A value of a wrong type or out of its range stops DeepSpeed when it reads its config."""
    for problem in config.problems:
        if problem.kind in ("value", "fraction", "loss_scale", "clock"):
            block, earlier = str(problem.path[0]), any(p.path == problem.path for p in config.problems[: config.problems.index(problem)])
            if earlier or (block in ("fp16", "bf16") and not config.context.since("deepspeed", "0.17")):
                continue
            yield told(config, problem)
    if isinstance(config.get("zero_optimization", "stage"), bool):
        stage = int(config.get("zero_optimization", "stage"))
        message = f"{shown(bool(stage))} is no stage: DeepSpeed takes it for {stage}"
        yield hit(config, ("zero_optimization", "stage"), message, fails_at="never", fix=Fix({"zero_optimization.stage": stage}))


@rule(
    "DS005",
    Severity.ERROR,
    DeepSpeedConfig,
    fails_at="engine start",
    checked="run",
    source="deepspeed-0.19.8-config",
    covers=("DS-BOTH-16", "DS-RATIO-STAGE", "DS-ALLREDUCE-SUM", "DS-COMMTYPE", "DS-CKPT-TAG", "DS-AUTOCAST-DTYPE"),
)
def setting_deepspeed_refuses(config: DeepSpeedConfig) -> Iterator[Hit]:
    """A choice that DeepSpeed does not have, or two that exclude each other, stops it when it reads its config."""
    for problem in config.problems:
        if problem.kind in ("both16", "ratio", "allreduce", "dtype", "tag"):
            yield told(config, problem)
    for key in ("grad_accum_dtype", "param_dtype", "buffer_dtype"):
        value = config.get("data_types", key)
        if value is not None and str(value) not in table("deepspeed")["dtypes"]:
            words = f"{shown(value)} is not one of {', '.join(table('deepspeed')['dtypes'])}"
            yield hit(config, ("data_types", key), words, fails_at="first step")


@rule(
    "DS006",
    Severity.WARNING,
    DeepSpeedConfig,
    fails_at="never",
    checked="run",
    source="deepspeed-0.19.8-config-utils",
    covers=("DS-DEPRECATED", "DS-STAGE-BOOL"),
)
def deprecated_key(config: DeepSpeedConfig) -> Iterator[Hit]:
    """A key that DeepSpeed has renamed still counts, with a warning."""
    pairs = [p for p in config.problems if p.kind == "pair"]
    zero = config.get("zero_optimization")
    if isinstance(zero, bool):
        message = f"{shown(zero)} is the old form of a mapping: stage {int(zero)} runs"
        yield hit(config, ("zero_optimization",), message, fix=Fix({"zero_optimization": {"stage": int(zero)}}, safe=True))
        return
    for key, row in blocks()["zero_optimization"].items():
        new = row[3][1:] if len(row) > 3 and row[3].startswith("!") else ""
        path = ("zero_optimization", key)
        if new and config.has(*path) and config.get(*path) != "auto" and path not in [p.path for p in pairs]:
            shown_new = "stage3_gather_16bit_weights_on_model_save" if key.startswith("stage3_gather") else new
            yield hit(config, path, f"is deprecated: its successor is {shown_new}", fix=_successor(key, config.get(*path)))


@rule(
    "DS028",
    Severity.ERROR,
    DeepSpeedConfig,
    fails_at="engine start",
    checked="run",
    source="deepspeed-0.19.8-config-utils",
    covers=("DS-DEPRECATED-PAIR",),
)
def old_key_beside_its_successor(config: DeepSpeedConfig) -> Iterator[Hit]:
    """A renamed key beside its successor stops DeepSpeed."""
    for problem in (p for p in config.problems if p.kind == "pair"):
        yield hit(config, problem.path, problem.why, fix=Fix({".".join(map(str, problem.path)): None}))


def _successor(key: str, value: Any) -> Fix | None:
    old = f"zero_optimization.{key}"
    if key.startswith("stage3_gather"):
        return Fix({"zero_optimization.stage3_gather_16bit_weights_on_model_save": value, old: None}, safe=True)
    block = {"cpu_offload": "offload_optimizer", "cpu_offload_param": "offload_param"}.get(key)
    return Fix({f"zero_optimization.{block}": {"device": "cpu" if value else "none"}, old: None}, safe=True) if block else None


@rule(
    "DS008",
    Severity.WARNING,
    DeepSpeedConfig,
    fails_at="never",
    checked="run",
    source="deepspeed-0.19.8-config",
    covers=("DS-UNKNOWN-TOP", "DS-UNKNOWN-SILENT-SUB", "DS-EP-KEY"),
)
def key_deepspeed_never_reads(config: DeepSpeedConfig) -> Iterator[Hit]:
    """A key that DeepSpeed never looks up is dropped without a word: a misspelt block trains without what it asks for."""
    for path in unread(config.values):
        fix = _unread_fix(config, path)
        place = f" in {path[0]}" if len(path) > 1 else ""
        yield hit(config, path, f"is no key that DeepSpeed reads{place}; it is ignored without a word", fix=fix)


def _unread_fix(config: DeepSpeedConfig, path: tuple[Any, ...]) -> Fix:
    name, value, delete = str(path[-1]), config.get(*path), {".".join(map(str, path)): None}
    if len(path) > 1:
        near = _RENAMED.get((str(path[0]), name)) or nearest(name, read_keys(str(path[0])), 0.75)
        return Fix({f"{path[0]}.{near}": value, **delete}) if near and not config.has(path[0], near) else Fix(delete, safe=True)
    near = nearest(name, top_keys(), 0.8)
    if near and not config.has(near):
        return Fix({near: value, **delete})
    home = next((block for block, rows in blocks().items() if name in rows and block.startswith("zero_optimization")), "")
    home = home or next((block for block in LENIENT if name in read_keys(block)), "")
    if home and not config.has(*home.split("."), name):
        return Fix({f"{home}.{name}": value, **delete}, note=f"it is a key of {home}")
    return Fix(delete, safe=not is_comment(name))


@rule(
    "DS009",
    Severity.ERROR,
    DeepSpeedConfig,
    fails_at="plugin",
    checked="run",
    source="accelerate-1.15.0-deepspeed",
    covers=("ADS-JSON-STRICT",),
)
def json_only_deepspeed_reads(config: DeepSpeedConfig) -> Iterator[Hit]:
    """A DeepSpeed file with comments, trailing commas or bare words is no JSON: Accelerate and Transformers refuse it."""
    if config.refused is not None:
        if config.reader == "deepspeed":
            message = f"{config.refused.reason}: DeepSpeed's own reader takes it, Accelerate and Transformers do not"
            yield Hit(message, config.refused.where, severity=Severity.INFO, fails_at="never")
        else:
            yield Hit(f"{config.refused.reason}: DeepSpeed's own reader takes it, Accelerate and Transformers stop", config.refused.where)
    elif config.document.dialect == "json" and not config.prefix:
        for duplicate in config.document.duplicates():
            key = ".".join(map(str, duplicate.path))
            stops = config.reader == "deepspeed"
            message = f"{key} stands twice: DeepSpeed's own reader stops, Accelerate and Transformers take the last"
            yield Hit(message, duplicate.last, key, None, *((Severity.ERROR, "engine start") if stops else (Severity.WARNING, "never")))
