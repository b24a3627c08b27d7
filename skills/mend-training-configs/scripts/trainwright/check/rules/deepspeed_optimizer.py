# helpers/trainwright/check/rules/deepspeed_optimizer.py without its comments
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainwright.check.deepspeed_file import BATCH
from trainwright.check.facts import table
from trainwright.check.rules.deepspeed import hit
from trainwright.check.rules.deepspeed_zero import device_of
from trainwright.check.subject import DeepSpeedConfig
from trainwright.emit.accelerate_file import is_close, nearest, shown
from trainwright.report import Fix, Severity
from trainwright.rules import Hit, rule

_REMOVED = {"onebitadam": "AdamW", "onebitlamb": "Lamb", "zerooneadam": "AdamW"}
_NUMBERS = ("lr", "weight_decay", "eps", "momentum")


@rule(
    "DS018",
    Severity.ERROR,
    DeepSpeedConfig,
    fails_at="first step",
    checked="run",
    source="deepspeed-0.19.8-engine",
    covers=("DS-REMOVED-OPT", "DS-OPT-UNKNOWN", "DS-OPT-MAXGRAD", "DS-OPT-LAMB", "DS-OPT-MUON-Z3", "DS-LR-STR"),
)
def optimizer_the_engine_refuses(config: DeepSpeedConfig) -> Iterator[Hit]:
    """An optimizer that DeepSpeed does not have, or parameters that it does not take, stop deepspeed.initialize."""
    name, params = config.get("optimizer", "type"), config.get("optimizer", "params", default={})
    if isinstance(name, str):
        yield from _name(config, name)
    if not isinstance(params, dict):
        return
    limit = params.get("max_grad_norm")
    if (isinstance(limit, (int, float)) and limit > 0) or limit == "auto":
        fix = Fix({"gradient_clipping": limit, "optimizer.params.max_grad_norm": None})
        yield hit(
            config, ("optimizer", "params", "max_grad_norm"), "is no parameter of an optimizer here: gradient_clipping is meant", fix=fix
        )
    for key in _NUMBERS:
        if isinstance(params.get(key), str) and params[key] != "auto":
            number = _number(params[key])
            message = f"{shown(params[key])} is a text, and torch compares it with a number"
            mended = Fix({f"optimizer.params.{key}": number}, safe=True) if number is not None else None
            yield hit(config, ("optimizer", "params", key), message, fix=mended)


def _number(text: str) -> float | None:
    try:
        return float(text) if len(text) < 40 else None
    except ValueError:
        return None


def _name(config: DeepSpeedConfig, name: str) -> Iterator[Hit]:
    path, known = ("optimizer", "type"), table("deepspeed")
    if name.lower() in _REMOVED:
        if config.context.since("deepspeed", "0.19.7"):
            yield hit(config, path, f"{name} was removed in DeepSpeed 0.19.7", fix=Fix({"optimizer.type": _REMOVED[name.lower()]}))
    elif name.lower() not in known["optimizers"] and name not in known["torch_optimizers"]:
        names = ["Adam", "AdamW", "Adagrad", "Lamb", "Lion", "Muon", *known["torch_optimizers"]]
        plain = name.lower().replace("_torch", "").replace("_fused", "")
        near = nearest(plain.replace("8bit", ""), names, 0.5)
        fix = Fix({"optimizer.type": near}, safe=near.lower() == plain) if near else None
        yield hit(config, path, f"{name} is no optimizer of DeepSpeed or torch.optim", fix=fix)
    elif name.lower() == "lamb" and not (config.on("fp16", "enabled") and not config.get("fp16", "loss_scale", default=0)):
        if config.get("fp16", "enabled") != "auto":
            yield hit(config, path, "Lamb needs the dynamic loss scale of fp16", fix=Fix({"optimizer.type": "AdamW"}))
    elif name.lower() == "muon" and config.stage == 3 and config.get("zero_optimization", "reduce_scatter", default=True) is not False:
        fix = Fix({"zero_optimization.reduce_scatter": False})
        yield hit(config, path, "Muon under stage 3 needs reduce_scatter: false", fix=fix)


@rule(
    "DS019",
    Severity.WARNING,
    DeepSpeedConfig,
    fails_at="never",
    checked="source",
    source="deepspeed-0.19.8-engine",
    covers=("DS-OPT-ADAMISADAMW",),
)
def adam_that_is_adamw(config: DeepSpeedConfig) -> Iterator[Hit]:
    """Adam with a weight decay runs AdamW: DeepSpeed's default is adam_w_mode true."""
    params = config.get("optimizer", "params", default={})
    name = config.get("optimizer", "type")
    if isinstance(name, str) and name.lower() == "adam" and isinstance(params, dict):
        torch_adam = params.get("torch_adam") is True and "adam_w_mode" in params
        decay = params.get("weight_decay", 0)
        if "adam_w_mode" not in params and not torch_adam and decay not in (0, 0.0):
            fix = Fix({"optimizer.type": "AdamW"}, note="or params.adam_w_mode: false for Adam's own decay")
            yield hit(config, ("optimizer", "type"), "Adam runs as AdamW: adam_w_mode is true by default", fix=fix)


@rule(
    "DS020",
    Severity.ERROR,
    DeepSpeedConfig,
    fails_at="first step",
    checked="run",
    source="deepspeed-0.19.8-engine",
    covers=("DS-OFFLOAD-OPT", "DS-OPT-UNTESTED"),
)
def client_optimizer_deepspeed_refuses(config: DeepSpeedConfig) -> Iterator[Hit]:
    """An optimizer made in the code, which the config does not allow for."""
    name = config.context.optimizer
    if not name or config.fills_auto:
        return
    if device_of(config, "offload_optimizer") == "cpu" and config.stage and "CPU" not in name.upper().replace("DEEPSPEEDCPU", "CPU"):
        if config.get("zero_force_ds_cpu_optimizer", default=True) is not False:
            fix = Fix({"zero_force_ds_cpu_optimizer": False}, note="or let the config name the optimizer")
            message = f"to the cpu with the client's {name}: DeepSpeed wants its own DeepSpeedCPUAdam"
            yield hit(config, ("zero_optimization", "offload_optimizer"), message, fix=fix)
    elif config.stage and not config.on("zero_allow_untested_optimizer"):
        tested = any(word in name.lower() for word in ("adam", "lamb", "adagrad", "lion", "muon"))
        if not tested:
            message = f"is not on, and {name} is untested with ZeRO: the engine stops"
            yield hit(config, ("zero_allow_untested_optimizer",), message, fix=Fix({"zero_allow_untested_optimizer": True}))


@rule(
    "DS021",
    Severity.ERROR,
    DeepSpeedConfig,
    fails_at="first step",
    checked="run",
    source="deepspeed-0.19.8-lr-schedules",
    covers=("DS-SCHED-WARMUP0", "DS-SCHED-NOTOTAL", "DS-SCHED-NAME", "DS-SCHED-PARAM"),
)
def scheduler_the_engine_refuses(config: DeepSpeedConfig) -> Iterator[Hit]:
    """A scheduler that DeepSpeed does not have, or parameters that its constructor does not take, stop deepspeed.initialize."""
    name, params = config.get("scheduler", "type"), config.get("scheduler", "params", default={})
    known: dict[str, dict[str, Any]] = table("deepspeed")["schedulers"]
    if not isinstance(name, str):
        return
    if name not in known:
        if name not in table("deepspeed")["torch_schedulers"]:
            near = nearest(name, [*known, *table("deepspeed")["torch_schedulers"]], 0.5)
            message = f"{name} is no scheduler of DeepSpeed or torch"
            yield hit(config, ("scheduler", "type"), message, fix=Fix({"scheduler.type": near}) if near else None)
        return
    params = params if isinstance(params, dict) else {}
    for key in params:
        if key not in known[name] and key != "last_batch_iteration":
            renamed = {"warmup_steps": "warmup_num_steps", "total_steps": "total_num_steps"}.get(key)
            near, fix = renamed or nearest(key, known[name], 0.75), None
            if near and near in known[name] and near not in params:
                moved = {f"scheduler.params.{near}": params[key], f"scheduler.params.{key}": None}
                fix = Fix(moved, safe=bool(renamed) or is_close(str(key), near))
            yield hit(config, ("scheduler", "params", key), f"is no parameter of {name}", fix=fix)
    if "total_num_steps" in known[name] and "total_num_steps" not in params:
        fix = Fix({"scheduler.params.total_num_steps": "auto"}) if config.fills_auto else None
        yield hit(config, ("scheduler", "params", "total_num_steps"), f"is missing, and {name} needs it", fix=fix)
    warmup = params.get("warmup_num_steps")
    if type(warmup) is int and warmup <= 0 and config.context.since("deepspeed", "0.19.3"):
        fix = Fix({"scheduler.params.warmup_num_steps": 1})
        yield hit(config, ("scheduler", "params", "warmup_num_steps"), f"{warmup} is not positive: DeepSpeed stops from 0.19.4 on", fix=fix)


@rule(
    "DS022",
    Severity.WARNING,
    DeepSpeedConfig,
    fails_at="never",
    checked="run",
    source="deepspeed-0.19.8-lr-schedules",
    covers=("DS-SCHED-MAXLR", "DS-SCHED-TOTAL-SHORT", "DS-SCHED-WARMTYPE"),
)
def scheduler_of_another_rate(config: DeepSpeedConfig) -> Iterator[Hit]:
    """A scheduler runs another learning rate than the one that was meant, without a word."""
    name, params = config.get("scheduler", "type"), config.get("scheduler", "params", default={})
    if not isinstance(params, dict):
        return
    old = config.context.older("deepspeed", "0.17")
    if (name == "WarmupDecayLR" or (name == "WarmupLR" and old)) and "warmup_max_lr" not in params:
        rate = config.get("optimizer", "params", "lr")
        if rate not in (0.001, None) or not config.has("optimizer", "params", "lr"):
            fix = Fix({"scheduler.params.warmup_max_lr": rate if rate is not None else "auto" if config.fills_auto else 1e-3})
            message = f"is not given: the rate rises to 0.001, not to {'the one' if rate is None else shown(rate)} of the optimizer"
            yield hit(config, ("scheduler", "params", "warmup_max_lr"), message, fix=fix)
    total, warmup = params.get("total_num_steps"), params.get("warmup_num_steps", 1000)
    if name in ("WarmupDecayLR", "WarmupCosineLR") and type(total) is int and (total <= 0 or (type(warmup) is int and total < warmup)):
        yield hit(
            config, ("scheduler", "params", "total_num_steps"), f"{total} ends before the warm-up of {warmup} steps: the rate stays at 0"
        )
    kind = params.get("warmup_type")
    if kind is not None and kind not in ("log", "linear", "auto") and str(name).startswith("Warmup"):
        fix = Fix({"scheduler.params.warmup_type": "linear"})
        yield hit(config, ("scheduler", "params", "warmup_type"), f"{shown(kind)} is neither log nor linear: log runs", fix=fix)


@rule(
    "DS023",
    Severity.ERROR,
    DeepSpeedConfig,
    fails_at="first step",
    checked="run",
    source="deepspeed-0.19.8-config-utils",
    covers=("DS-AUTO-NESTED-RAW", "DS-AUTO-CLIP-RAW", "DS-AUTO-OPT-RAW", "DS-AUTO-SCHED-RAW"),
)
def auto_that_nobody_fills(config: DeepSpeedConfig) -> Iterator[Hit]:
    """ "auto" in a config that DeepSpeed reads by itself."""
    if config.reader != "deepspeed":
        yield from _left_by_accelerate(config)
        return
    severity = Severity.WARNING if "auto" in [config.get(key) for key in BATCH] else None
    if config.get("gradient_clipping") == "auto":
        fix = Fix({"gradient_clipping": 1.0})
        yield hit(config, ("gradient_clipping",), '"auto" is a text to DeepSpeed: the first step stops', fix=fix, severity=severity)
    for block in ("optimizer", "scheduler"):
        params = config.get(block, "params")
        for key in params if isinstance(params, dict) else ():
            if params[key] == "auto":
                yield hit(config, (block, "params", key), '"auto" is filled by Accelerate and Transformers alone', severity=severity)
    for path in _dropped(config.values):
        more = {"severity": Severity.WARNING, "fails_at": "never"}
        yield hit(config, path, '"auto" is dropped: the default runs (bf16 and fp16 off, stage 0)', **more)


def _left_by_accelerate(config: DeepSpeedConfig) -> Iterator[Hit]:
    """In a loop of one's own Accelerate fills a scheduler's and an optimizer's "auto" from a DummyScheduler and a DummyOptim alone."""
    optimizer = config.context.optimizer
    if config.context.trainer is not False or (optimizer or "").rpartition(".")[2].startswith("Dummy"):
        return
    for block, stand_in in (("optimizer", "DummyOptim"), ("scheduler", "DummyScheduler")):
        params = config.get(block, "params")
        for key in params if isinstance(params, dict) else ():
            if params[key] == "auto":
                message = f'"auto" is filled from a {stand_in} alone in a loop without the Trainer'
                yield hit(config, (block, "params", key), message, severity=None if optimizer else Severity.WARNING)


def _dropped(values: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for block in table("deepspeed")["blocks"]:
        value: Any = values
        for part in block.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if isinstance(value, dict):
            yield from ((*block.split("."), key) for key, item in value.items() if item == "auto")
