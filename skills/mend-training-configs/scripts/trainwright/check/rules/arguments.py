# helpers/trainwright/check/rules/arguments.py without its comments
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainwright.check.facts import table
from trainwright.check.subject import TrainingArguments
from trainwright.emit.accelerate_file import nearest, shown
from trainwright.report import Fix, Severity
from trainwright.rules import Hit, rule

_OPTIONS = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2", "offload", "auto_wrap")
_FSDP1_ALONE = ("no_shard", "hybrid_shard", "hybrid_shard_zero2")
_GONE = {"adamw_hf": "5.0"}


def hit(config: TrainingArguments, name: str, message: str, **more: Any) -> Hit:
    """A finding at an argument, as the file or the command line spells it."""
    key = name if config.document else f"--{name}"
    return Hit(f"{key} {message}", config.at(name), key, **more)


def on(config: TrainingArguments, name: str) -> bool:
    return str(config.values.get(name)).lower() in ("true", "1", "yes")


def number(config: TrainingArguments, name: str) -> float | None:
    value = config.values.get(name)
    return value if type(value) in (int, float) else None


@rule(
    "TRN001",
    Severity.ERROR,
    TrainingArguments,
    fails_at="engine start",
    checked="run",
    source="transformers-5.23.0-trainer",
    covers=("FSDP-BOTH-DS", "FSDP-SAVEONLY-BEST"),
)
def arguments_refused_together(config: TrainingArguments) -> Iterator[Hit]:
    """Arguments of the Trainer that TrainingArguments, or the Trainer when it starts, refuses together."""
    for one, other in (("fp16", "bf16"), ("fp16_full_eval", "bf16_full_eval")):
        if on(config, one) and on(config, other):
            yield hit(config, one, f"together with {other}: one of them", fix=Fix({one: False}))
    given = config.values
    sharded = given.get("fsdp") not in (None, "", False, [])
    if sharded and given.get("deepspeed") not in (None, "", False):
        yield hit(config, "fsdp", "together with deepspeed: one of them", fix=Fix({"fsdp": None}))
    if on(config, "save_only_model") and on(config, "load_best_model_at_end") and (sharded or given.get("deepspeed")):
        wrapper = "FSDP" if sharded else "DeepSpeed"
        yield hit(config, "save_only_model", f"with load_best_model_at_end does not go with {wrapper}", fix=Fix({"save_only_model": False}))
    yield from _best_model(config)
    if number(config, "dataloader_prefetch_factor") is not None and (number(config, "dataloader_num_workers") or 0) == 0:
        yield hit(config, "dataloader_prefetch_factor", "needs dataloader_num_workers above 0")
    warmup, scheduler = number(config, "warmup_steps"), config.values.get("lr_scheduler_type")
    if warmup is not None and warmup < 0:
        yield hit(config, "warmup_steps", f"{warmup} is below 0", fix=Fix({"warmup_steps": 0}))
    if scheduler in ("reduce_lr_on_plateau", "greedy") and _evaluates_by(config) == "no":
        yield hit(config, "lr_scheduler_type", f"{scheduler} needs an eval_strategy", fix=Fix({"eval_strategy": "epoch"}))


def _evaluates_by(config: TrainingArguments) -> str:
    asked = config.values.get("eval_strategy", config.values.get("evaluation_strategy"))
    return "no" if asked in (None, False) else str(asked).lower()


def _best_model(config: TrainingArguments) -> Iterator[Hit]:
    save = str(config.values.get("save_strategy", "steps")).lower()
    if not on(config, "load_best_model_at_end") or save == "best":
        return
    evaluate = _evaluates_by(config)
    if save != evaluate:
        message = f"saves by {save} and evaluates by {evaluate}: load_best_model_at_end needs one strategy"
        yield hit(config, "load_best_model_at_end", message, fix=Fix({"eval_strategy": save}))
        return
    every = number(config, "save_steps") or 500
    between = number(config, "eval_steps") or number(config, "logging_steps") or 500
    mixed = (every < 1) != (between < 1)
    if save == "steps" and (mixed or (every >= 1 and every % between)):
        yield hit(config, "save_steps", f"{every} is no multiple of eval_steps {between}, which load_best_model_at_end needs")


@rule(
    "TRN002",
    Severity.ERROR,
    TrainingArguments,
    fails_at="engine start",
    checked="run",
    source="transformers-5.23.0-trainer",
)
def argument_value_refused(config: TrainingArguments) -> Iterator[Hit]:
    """An argument of the Trainer whose value is none of its choices."""
    for name, choices in table("arguments")["choices"].items():
        value = config.values.get(name)
        if value is None or "$" in str(value) or value in choices:
            continue
        gone = _GONE.get(value) if isinstance(value, str) else None
        if gone and config.context.older("transformers", gone):
            continue
        near = nearest(value, choices, 0.6) if isinstance(value, str) else None
        unsure = gone is not None or (name in ("optim", "lr_scheduler_type") and near is None)
        severity = Severity.WARNING if unsure else None
        why = "is false: put no in quotes" if value is False else f"is none of {', '.join(choices[:6])}" + (" ..." if choices[6:] else "")
        fix = Fix({name: "no" if value is False else near}) if near or value is False else None
        yield hit(config, name, f"{shown(value)} {why}", fix=fix, severity=severity)
    yield from _options(config)


def _options(config: TrainingArguments) -> Iterator[Hit]:
    value = config.values.get("fsdp")
    words = value.split() if isinstance(value, str) else value if isinstance(value, list) else []
    block = config.values.get("fsdp_config")
    version = next((block[key] for key in ("version", "fsdp_version") if isinstance(block, dict) and key in block), None)
    for word in words:
        if str(word) not in _OPTIONS and str(word).lower() not in ("true", "false"):
            near = nearest(word, _OPTIONS, 0.5)
            yield hit(config, "fsdp", f"{shown(word)} is none of {', '.join(_OPTIONS)}", fix=Fix({"fsdp": near}) if near else None)
        elif word in _FSDP1_ALONE and str(version or 2) == "2" and config.context.since("transformers", "5.10") and isinstance(block, dict):
            yield hit(config, "fsdp", f"{word} is FSDP1's alone: give fsdp_config a version of 1", severity=Severity.WARNING)


@rule(
    "TRN003",
    Severity.WARNING,
    TrainingArguments,
    fails_at="never",
    checked="source",
    source="transformers-5.23.0-trainer",
    covers=("FSDP-AC-BOTH",),
)
def argument_that_costs(config: TrainingArguments) -> Iterator[Hit]:
    """Arguments of the Trainer that run and cost more than they should."""
    block = config.values.get("fsdp_config")
    own = isinstance(block, dict) and any(
        str(block.get(k)).lower() == "true" for k in ("activation_checkpointing", "fsdp_activation_checkpointing")
    )
    if "full_shard" in str(config.values.get("fsdp")) and on(config, "gradient_checkpointing") and not own:
        message = "under FSDP gathers each layer once more: use activation_checkpointing of fsdp_config"
        yield hit(config, "gradient_checkpointing", message, fix=Fix({"gradient_checkpointing": False}))
    kept = config.values.get("gradient_checkpointing_kwargs")
    again = not isinstance(kept, dict) or kept.get("use_reentrant") is True
    if on(config, "ddp_find_unused_parameters") and on(config, "gradient_checkpointing") and again:
        message = "with gradient_checkpointing that re-enters: each parameter is marked ready twice"
        yield hit(config, "ddp_find_unused_parameters", message, fix=Fix({"ddp_find_unused_parameters": False}))
