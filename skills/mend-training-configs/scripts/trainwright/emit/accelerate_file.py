# helpers/trainwright/emit/accelerate_file.py without its comments
from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from trainwright.document import Document, KeyPath
from trainwright.errors import UserError
from trainwright.report import finite

_TRUE = ("y", "yes", "t", "true", "on", "1")
_FALSE = ("n", "no", "f", "false", "off", "0")
_PRECISION_NAMES = {"fp32": "no", "float32": "no", "none": "no", "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float8": "fp8"}
_V1_BOOLEANS = ("fsdp_use_orig_params", "fsdp_sync_module_states", "fsdp_forward_prefetch")
_BOOLEANS = (
    *_V1_BOOLEANS,
    "fsdp_offload_params",
    "fsdp_reshard_after_forward",
    "fsdp_activation_checkpointing",
    "fsdp_activation_checkpointing_offload",
    "fsdp_cpu_ram_efficient_loading",
)


@cache
def table() -> dict[str, Any]:
    text = (Path(__file__).parent / "accelerate_keys.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


@cache
def flags() -> frozenset[str]:
    return frozenset(table()["other_flags"]).union(*table()["blocks"].values())


class Refused(Exception):

    def __init__(self, why: str, fails_at: str, instead: Any = None) -> None:
        super().__init__(why)
        self.why = why
        self.fails_at = fails_at
        self.instead = instead


@dataclass(frozen=True, slots=True)
class Setting:

    path: KeyPath
    flag: str
    value: Any

    @property
    def key(self) -> str:
        return ".".join(map(str, self.path))

    @property
    def is_read(self) -> bool:
        return self.flag in flags() if len(self.path) > 1 else self.path[0] in (*table()["cluster"], *table()["legacy"])


@dataclass(frozen=True, slots=True)
class AccelerateFile:

    document: Document
    settings: tuple[Setting, ...]
    winners: dict[str, Setting]

    @property
    def kind(self) -> str:
        try:
            return distributed_type(self.document.get("distributed_type"))
        except Refused:
            return ""

    @property
    def uses_fsdp(self) -> bool:
        return self.kind == "FSDP"

    def written(self, flag: str) -> Any:
        setting = self.winners.get(flag)
        return setting.value if setting else table()["fsdp_defaults"].get(flag)

    def value(self, flag: str) -> Any:
        try:
            return _PARSERS[flag](self.written(flag))
        except Refused:
            return None

    @property
    def version(self) -> int:
        return self.value("fsdp_version") or 0

    @property
    def precision(self) -> str:
        return self.value("mixed_precision") or ""

    @property
    def wrap_classes(self) -> tuple[str, ...] | None:
        written = self.written("fsdp_transformer_layer_cls_to_wrap")
        return None if written is None else tuple(str(written).split(","))

    def place(self, flag: str) -> KeyPath:
        if setting := self.winners.get(flag):
            return setting.path
        return (*(block for block, keys in table()["blocks"].items() if flag in keys), flag)

    def unknown(self) -> Iterator[Setting]:
        return (s for s in self.settings if len(s.path) == 1 and not s.is_read)

    def refused(self) -> Iterator[tuple[Setting, Refused]]:
        for setting in self.settings:
            if len(setting.path) > 1 and not isinstance(setting.path[1], str):
                yield setting, Refused(f"is a key that is no text but {shown(setting.path[1])}", "launcher")
        for flag in self._read_flags():
            try:
                _PARSERS[flag](self.written(flag))
            except Refused as problem:
                yield Setting(self.place(flag), flag, self.written(flag)), problem
        if self.uses_fsdp:
            yield from self._contradictions()

    def _read_flags(self) -> list[str]:
        wanted = ["compute_environment", "distributed_type", "gpu_ids"]
        wanted += [] if self.kind == "XLA" else ["mixed_precision"]
        wanted += [] if self.kind in ("XLA", "DEEPSPEED") else ["dynamo_backend"]
        if not self.uses_fsdp:
            return wanted
        wanted += ["fsdp_version", "fsdp_auto_wrap_policy", "fsdp_offload_params", "fsdp_state_dict_type", "fsdp_backward_prefetch"]
        wanted += ["fsdp_activation_checkpointing", "fsdp_activation_checkpointing_offload", "fsdp_cpu_ram_efficient_loading"]
        wanted += {0: (), 1: ("fsdp_sharding_strategy", *_V1_BOOLEANS), 2: ("fsdp_reshard_after_forward",)}[self.version]
        return wanted + (["fsdp_min_num_params"] if self.value("fsdp_auto_wrap_policy") == "SIZE_BASED_WRAP" else [])

    def _contradictions(self) -> Iterator[tuple[Setting, Refused]]:
        def stop(flag: str, why: str, fails_at: str, instead: Any) -> tuple[Setting, Refused]:
            return Setting(self.place(flag), flag, self.written(flag)), Refused(why, fails_at, instead)

        if self.written("fsdp_cpu_ram_efficient_loading") and not self.written("fsdp_sync_module_states"):
            why = "with fsdp_cpu_ram_efficient_loading (true by default) the launcher wants it true, under FSDP2 too"
            yield stop("fsdp_sync_module_states", why, "launcher", True)
        if self.version == 2 and self.value("fsdp_state_dict_type") == "LOCAL_STATE_DICT":
            yield stop("fsdp_state_dict_type", "FSDP2 does not support it", "plugin", "SHARDED_STATE_DICT")
        if self.value("fsdp_activation_checkpointing_offload"):
            if self.value("fsdp_activation_checkpointing") is False:
                yield stop("fsdp_activation_checkpointing_offload", "needs fsdp_activation_checkpointing: true", "plugin", False)
            elif self.version == 1:
                yield stop("fsdp_activation_checkpointing_offload", "needs fsdp_version: 2", "plugin", False)


def accelerate_file(document: Document) -> AccelerateFile:
    if not isinstance(document.value, dict):
        raise UserError(f"{document.path}: an Accelerate config is a mapping of keys to values, not a {type(document.value).__name__}")
    settings = tuple(_settings(document.value))
    blocks = list(table()["cluster"])
    order = sorted(settings, key=lambda s: blocks.index(s.path[0]) + 1 if len(s.path) > 1 else 0)
    winners = {setting.flag: setting for setting in order}
    if document.get("fp16") and not document.has("mixed_precision"):
        winners.setdefault("mixed_precision", Setting(("fp16",), "mixed_precision", "fp16"))
    return AccelerateFile(document, settings, winners)


def _settings(value: dict[Any, Any]) -> Iterator[Setting]:
    for key, item in value.items():
        if key in table()["blocks"] and isinstance(item, dict) and item:
            yield from (Setting((key, inner), _flag(key, inner), v) for inner, v in item.items())
        else:
            yield Setting((key,), str(key), item)


def _flag(block: str, key: Any) -> str:
    start, prefix = table()["prefixes"].get(block, ("", ""))
    return str(key) if str(key).startswith(start) else f"{prefix}{key}"


LONGEST_WORD = 100


def is_count(text: str) -> bool:
    return text.isdecimal() and len(text) <= 18


def nearest(word: Any, choices: Iterable[str], cutoff: float = 0.6) -> str | None:
    if len(str(word)) > LONGEST_WORD:
        return None
    import difflib

    by_upper = {choice.upper(): choice for choice in choices}
    found = difflib.get_close_matches(str(word).upper(), by_upper, n=1, cutoff=cutoff)
    return by_upper[found[0]] if found else None


def is_close(word: str, other: str) -> bool:
    import difflib

    one, two = word.lower(), other.lower()
    return two.startswith(one) or difflib.SequenceMatcher(None, one, two).ratio() >= 0.88


def distributed_type(value: Any) -> str:
    if not isinstance(value, str):
        return "NO"
    types = table()["distributed_types"]
    if value not in types:
        raise Refused(f"is not one of {', '.join(types)} (upper case)", "parse", "XLA" if value == "TPU" else nearest(value, types))
    return value


def _compute_environment(value: Any) -> str:
    if value not in (None, "LOCAL_MACHINE", "AMAZON_SAGEMAKER"):
        raise Refused("is not LOCAL_MACHINE, so the file is read as one for SageMaker", "parse", "LOCAL_MACHINE")
    return str(value)


def _mixed_precision(value: Any) -> str:
    choices = table()["precisions"]
    if value is None:
        return "no"
    if not isinstance(value, str):
        raise Refused(f"is no text{_bare_no(value)}, and Accelerate calls .lower() on it", "launcher", "no" if value is False else None)
    if value.lower() not in choices:
        instead = _PRECISION_NAMES.get(value.lower()) or nearest(value, choices)
        raise Refused(f"is not one of {', '.join(choices)}", "launcher", instead)
    return value.lower()


def _dynamo_backend(value: Any) -> str:
    choices = table()["dynamo_backends"]
    if value is None:
        return "NO"
    if not isinstance(value, str):
        raise Refused(f"is no text{_bare_no(value)}, and Accelerate calls .upper() on it", "launcher", "NO" if value is False else None)
    if value.upper() not in choices:
        raise Refused(f"is not one of {', '.join(choices)}", "launcher", nearest(value, choices))
    return value.upper()


def _gpu_ids(value: Any) -> Any:
    if value is not None and not isinstance(value, str):
        ids = value if isinstance(value, list) else [value]
        raise Refused("is no text, and Accelerate splits it at its commas", "launcher", ",".join(map(str, ids)))
    return value


def _truth(value: Any) -> bool:
    word = str(value).lower()
    if word not in (*_TRUE, *_FALSE):
        raise Refused("is neither true nor false", "plugin")
    return word in _TRUE


def _whole(value: Any) -> int:
    try:
        return int(str(value))
    except ValueError:
        raise Refused("is no whole number: Accelerate takes digits alone", "plugin", _digits(value)) from None


def _digits(value: Any) -> int | None:
    try:
        number = float(str(value))
        return int(number) if number == int(number) else None
    except (ValueError, OverflowError):
        return None


def _version(value: Any) -> int:
    if (number := _whole(value)) not in (1, 2):
        raise Refused("is neither 1 nor 2", "plugin")
    return number


def _one_of(name: str, numbered: int) -> Callable[[Any], str]:

    def convert(value: Any) -> str:
        choices: list[str] = table()[name]
        word = str(value).upper()
        if word in choices:
            return word
        if is_count(word) and 1 <= int(word) <= numbered:
            return choices[int(word) - 1]
        raise Refused(f"is not one of {', '.join(choices)}", "plugin", nearest(value, choices))

    return convert


def _wrap_policy(value: Any) -> str:
    choices = table()["wrap_policies"]
    if value is None:
        return "NO_WRAP"
    if str(value).upper() not in choices:
        instead = next((choice for choice in choices if choice.startswith(str(value).upper())), None) or nearest(value, choices)
        raise Refused(f"is not one of {', '.join(choices)}", "plugin", instead)
    return str(value).upper()


def _unless_null(convert: Callable[[Any], str], default: str) -> Callable[[Any], str]:
    return lambda value: default if value is None else convert(value)


def _bare_no(value: Any) -> str:
    return " (YAML reads a bare no as false)" if value is False else ""


def shown(value: Any) -> str:
    text = json.dumps(finite(value), default=str, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "compute_environment": _compute_environment,
    "distributed_type": distributed_type,
    "gpu_ids": _gpu_ids,
    "mixed_precision": _mixed_precision,
    "dynamo_backend": _dynamo_backend,
    "fsdp_version": _version,
    "fsdp_auto_wrap_policy": _wrap_policy,
    "fsdp_min_num_params": _whole,
    "fsdp_sharding_strategy": _one_of("sharding_strategies", 5),
    "fsdp_state_dict_type": _unless_null(_one_of("state_dict_types", 3), ""),
    "fsdp_backward_prefetch": _unless_null(_one_of("backward_prefetch", 2), "NO_PREFETCH"),
    **dict.fromkeys(_BOOLEANS, _truth),
}
