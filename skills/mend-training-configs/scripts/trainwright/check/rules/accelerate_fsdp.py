# helpers/trainwright/check/rules/accelerate_fsdp.py without its comments
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainwright.check.facts import table as facts
from trainwright.check.subject import AccelerateConfig
from trainwright.emit.accelerate_file import shown, table
from trainwright.report import Fix, Severity
from trainwright.rules import Hit, rule

_CLASSES = "fsdp_transformer_layer_cls_to_wrap"
_POLICY = "fsdp_auto_wrap_policy"
_DEAD_UNDER_V2 = {
    "fsdp_use_orig_params": ("true",),
    "fsdp_sync_module_states": ("true",),
    "fsdp_forward_prefetch": ("false",),
    "fsdp_backward_prefetch": ("none", "no_prefetch", "backward_pre"),
}
MODULE_CLASSES = {
    "llama": (
        "LlamaForCausalLM",
        "LlamaModel",
        "LlamaDecoderLayer",
        "LlamaAttention",
        "LlamaMLP",
        "LlamaRMSNorm",
        "LlamaRotaryEmbedding",
        "Embedding",
        "Linear",
        "ModuleList",
        "SiLUActivation",
        "SiLU",
    )
}


@rule(
    "ACC004",
    Severity.ERROR,
    AccelerateConfig,
    fails_at="never",
    checked="run",
    source="accelerate-1.15.0-fsdp-plugin",
    covers=("FSDP-RESHARD-V1", "FSDP-STRATEGY-V2", "FSDP-V2-DEAD-KEYS"),
)
def key_of_other_fsdp_version(config: AccelerateConfig) -> Iterator[Hit]:
    """A key of FSDP1 under fsdp_version 2, or of FSDP2 under version 1 (the default), is ignored without a word."""
    if config.file.uses_fsdp and config.file.version == 1:
        yield from _reshard_under_v1(config)
    elif config.file.uses_fsdp and config.file.version == 2:
        yield from _strategy_under_v2(config)
        yield from _dead_under_v2(config)


def _reshard_under_v1(config: AccelerateConfig) -> Iterator[Hit]:
    file = config.file
    setting = file.winners.get("fsdp_reshard_after_forward")
    runs = file.value("fsdp_sharding_strategy")
    if setting is None or runs is None:
        return
    truth = file.value("fsdp_reshard_after_forward")
    asked = str(setting.value).upper() if truth is None else ("FULL_SHARD" if truth else "SHARD_GRAD_OP")
    own = "fsdp_sharding_strategy" in file.winners
    message = (
        f"{setting.key} {shown(setting.value)} is ignored under fsdp_version 1: {'the strategy' if own else 'the default'} {runs} runs"
    )
    version = {".".join(map(str, file.place("fsdp_version"))): 2}
    strategy = {"fsdp_config.fsdp_sharding_strategy": asked, setting.key: None}
    if own or asked == runs or (truth is None and asked not in table()["sharding_strategies"]):
        fix = Fix({setting.key: None}, safe=True)
    else:
        fix = Fix(strategy if truth is None else version)
    yield Hit(message, config.document.at(*setting.path), setting.key, fix, _severity(asked == runs, own))


def _strategy_under_v2(config: AccelerateConfig) -> Iterator[Hit]:
    file = config.file
    setting = file.winners.get("fsdp_sharding_strategy")
    reshard = file.value("fsdp_reshard_after_forward")
    if setting is None or reshard is None:
        return
    asked = file.value("fsdp_sharding_strategy") or str(setting.value).upper()
    runs = "FULL_SHARD" if reshard else "SHARD_GRAD_OP"
    own = "fsdp_reshard_after_forward" in file.winners
    message = f"{setting.key} {shown(setting.value)} is ignored under fsdp_version 2: {runs} over all ranks runs"
    yield Hit(
        message, config.document.at(*setting.path), setting.key, _strategy_fix(setting.key, asked, own), _severity(asked == runs, own)
    )


def _strategy_fix(key: str, asked: str, own: bool) -> Fix:
    if asked == "NO_SHARD" and not own:
        return Fix({"distributed_type": "MULTI_GPU"}, note="NO_SHARD is plain DDP")
    if "HYBRID" in asked and not own:
        return Fix({key: None}, note="hybrid sharding is parallelism_config with a dp_replicate and a dp_shard size")
    if asked == "SHARD_GRAD_OP" and not own:
        return Fix({"fsdp_config.fsdp_reshard_after_forward": False, key: None})
    return Fix({key: None}, safe=True)


def _severity(same: bool, own: bool) -> Severity:
    """Information where what was asked is what runs; a warning where the key that counts is written too."""
    return Severity.INFO if same else Severity.WARNING if own else Severity.ERROR


def _dead_under_v2(config: AccelerateConfig) -> Iterator[Hit]:
    found = [s for s in config.file.settings if s.flag in _DEAD_UNDER_V2 and s == config.file.winners[s.flag]]
    if not found:
        return
    harmless = all(str(s.value).lower() in _DEAD_UNDER_V2[s.flag] for s in found)
    keys = ", ".join(s.path[-1] for s in found)
    message = f"{keys}: not read under fsdp_version 2"
    fix = Fix({s.key: None for s in found}, safe=True)
    yield Hit(message, config.document.at(*found[0].path), found[0].key, fix, Severity.INFO if harmless else Severity.WARNING)


@rule(
    "ACC006",
    Severity.ERROR,
    AccelerateConfig,
    fails_at="first step",
    checked="run",
    source="accelerate-1.15.0-fsdp-plugin",
    covers=("FSDP-CLS-LIST", "FSDP-CLS-SPACE", "FSDP-CLS-NOPOLICY", "FSDP-CLS-WRONG", "FSDP-CLS-EMPTY", "FSDP-CLS-ABSENT"),
)
def wrong_layer_class(config: AccelerateConfig) -> Iterator[Hit]:
    """The layer classes that FSDP shall wrap and the wrap policy do not fit each other or the model."""
    file = config.file
    policy = file.value(_POLICY) if file.uses_fsdp else None
    if policy is None:
        return
    if policy == "TRANSFORMER_BASED_WRAP":
        yield from _named_classes(config)
    else:
        yield from _unused_classes(config, policy)
        yield from _nothing_to_checkpoint(config, policy)


def _unused_classes(config: AccelerateConfig, policy: str) -> Iterator[Hit]:
    setting = config.file.winners.get(_CLASSES)
    if setting is None or not setting.value:
        return
    said = f"{_POLICY} is {policy}" if config.file.written(_POLICY) is not None else f"there is no {_POLICY}"
    unit = "the whole model is one unit" if policy == "NO_WRAP" else "units go by size"
    message = f"{setting.key} {shown(setting.value)} is ignored, as {said}: {unit}"
    fix = Fix({".".join(config.file.place(_POLICY)): "TRANSFORMER_BASED_WRAP"})
    yield Hit(message, config.document.at(*setting.path), setting.key, fix, fails_at="never")


def _nothing_to_checkpoint(config: AccelerateConfig, policy: str) -> Iterator[Hit]:
    file, flag = config.file, "fsdp_activation_checkpointing"
    if policy == "NO_WRAP" and file.version == 2 and file.value(flag):
        key = ".".join(file.place(flag))
        message = f"{key}: without {_POLICY} FSDP2 has no layer to checkpoint and stops with a TypeError"
        yield Hit(message, config.document.at(*file.place(flag)), key, Fix({".".join(file.place(_POLICY)): "TRANSFORMER_BASED_WRAP"}))


def _named_classes(config: AccelerateConfig) -> Iterator[Hit]:
    setting, names, model = config.file.winners.get(_CLASSES), config.file.wrap_classes, config.context.model
    if setting is None or names is None:
        fix = Fix({f"fsdp_config.{_CLASSES}": model.block_class}, safe=True) if model else None
        message = f"{_CLASSES} is not named: Accelerate takes the model's own _no_split_modules"
        yield Hit(message, config.document.at(*config.file.place(_POLICY)), f"fsdp_config.{_CLASSES}", fix, Severity.INFO, "never")
        return
    where = config.document.at(*setting.path)
    if why := _malformed(setting.value):
        yield Hit(f"{setting.key} {shown(setting.value)} {why}", where, setting.key, _class_fix(setting.key, setting.value))
    elif model and model.family in MODULE_CLASSES:
        for name in (n for n in names if n not in MODULE_CLASSES[model.family]):
            message = f"{setting.key}: {name} is the class of no module of {model.name}, a {model.family} model"
            yield Hit(message, where, setting.key, Fix({setting.key: model.block_class}))
    elif family := family_of(config.context.model_class or ""):
        for name in (n for n in names if of_another_family(n, family)):
            message = f"{setting.key}: {name} is a layer of another model than {config.context.model_class}"
            yield Hit(message, where, setting.key, Fix({setting.key: ",".join(facts("arguments")["layers"][family])}))
        for name, meant in ((n, misspelt(n, family)) for n in names):
            if meant:
                message = f"{setting.key}: {name} is no class of {config.context.model_class}; {meant} is"
                yield Hit(message, where, setting.key, Fix({setting.key: meant}))


def misspelt(name: str, family: str) -> str:
    """The layer of a family that a name nearly spells, "" where it is a layer of its own or nothing near."""
    layers: list[str] = facts("arguments")["layers"][family]
    return next((own for own in layers if own != name and own.lower() == name.lower()), "")


def family_of(model_class: str) -> str:
    """The family that a model class of Transformers is named after: "Bert" of BertForSequenceClassification; "" where unknown."""
    fitting = [family for family in facts("arguments")["layers"] if model_class.startswith(family)]
    return max(fitting, key=len, default="")


def of_another_family(name: str, family: str) -> bool:
    """Whether a class is a layer of a family of Transformers', and neither of this one nor named after it."""
    layers: dict[str, list[str]] = facts("arguments")["layers"]
    known = any(name in own for other, own in layers.items() if other != family)
    return known and name not in layers[family] and not name.startswith(family)


def _malformed(value: Any) -> str:
    """Why a value is no list of class names as Accelerate splits it, "" where it is one."""
    if isinstance(value, (list, dict)):
        return "is no text: Accelerate looks for a class of that whole name"
    names = str(value).split(",")
    if value == "":
        return "is empty: Accelerate looks for a class without a name"
    if any(name != name.strip() for name in names):
        return "has blanks, which become part of the class names"
    if not all(name.isidentifier() for name in names):
        return "holds what is no class name"
    return ""


def _class_fix(key: str, value: Any) -> Fix:
    names = [str(item).strip() for item in (value if isinstance(value, list) else str(value).split(","))]
    return Fix({key: ",".join(filter(None, names)) or None})
