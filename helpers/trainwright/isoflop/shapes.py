"""What the fields of a calibration and of a plan have to be. People edit these files, so every field is looked at before it is used."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from trainwright.isoflop.ladder import FAMILIES, REGIMES
from trainwright.parts import LADDER

MODALITIES = ("text", *FAMILIES)
VARIANTS = ("", *LADDER)
SCHEDULES = ("constant", "cosine", "linear")  # as trainwright.job has them
_MOST = 1e200  # a number beyond it makes products that are none


def _name(value: Any) -> bool:
    """A folder is called so."""
    fine = isinstance(value, str) and 0 < len(value) <= 200 and not value.startswith(".")
    return fine and all(letter.isalnum() or letter in "-+._" for letter in value)


def _number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and abs(value) < _MOST


def _positive(value: Any) -> bool:
    return _number(value) and value > 0


def _count(value: Any) -> bool:
    return type(value) is int and 1 <= value < 2**60


def _whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**60


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _mapping(value: Any) -> bool:
    return isinstance(value, dict)


def _steps(value: Any) -> bool:
    return isinstance(value, list) and all(map(_count, value))


def _counts(value: Any) -> bool:
    """Numbers of weights by rule; one that is not known is null."""
    return isinstance(value, dict) and all(held is None or (_number(held) and held >= 0) for held in value.values())


def _measured(value: Any) -> bool:
    return isinstance(value, dict) and _or_null(_positive)(value.get("tokens_per_sec"))


def _or_null(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)


def _among(words: tuple[str, ...]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in words


Fields = Mapping[str, tuple[Callable[[Any], bool], str]]
_COUNT, _POSITIVE, _NULLABLE = "a whole number from 1", "a number above zero", "a number above zero or null"
MEMBER: Fields = {
    "name": (_name, "a name of letters, digits, - + . and _"),
    "config": (_mapping, "a mapping"),
    "params": (_counts, "a mapping of numbers"),
    "flops_per_token": (_positive, _POSITIVE),
    "seq_len": (_count, _COUNT),
    "width": (_positive, _POSITIVE),
}
MEMBER_MAY: Fields = {
    "modality": (_among(MODALITIES), f"one of {', '.join(MODALITIES)}"),
    "regime": (_among(REGIMES), f"one of {', '.join(REGIMES)}"),
    "variant": (_among(VARIANTS), f"one of {', '.join(filter(None, VARIANTS))} or empty"),
    "measured": (_or_null(_measured), "null or a mapping with tokens_per_sec above zero"),
    "measured_reason": (_text, "a text"),
    "flops_rule": (_text, "a text"),
}
RUN: Fields = {
    "id": (_name, "a name of letters, digits, - + . and _"),
    "member": (_text, "a text"),
    **dict.fromkeys(("steps", "batch", "seq_len", "tokens"), (_count, _COUNT)),
    **dict.fromkeys(("seed", "warmup_steps"), (_whole, "a whole number from 0")),
    **dict.fromkeys(("budget", "params", "lr", "flops_per_token", "flops"), (_positive, _POSITIVE)),
}
RUN_MAY: Fields = {
    "schedule": (_among(SCHEDULES), f"one of {', '.join(SCHEDULES)}"),
    "checkpoints": (_steps, "a list of steps"),
    "batch_tokens": (_count, _COUNT),
    "off_budget": (_number, "a number"),
    **dict.fromkeys(("seconds_here", "device_hours", "hours"), (_or_null(_positive), _NULLABLE)),
    **dict.fromkeys(("seconds_reason", "hours_reason"), (_text, "a text")),
}
HARDWARE: Fields = {
    "name": (_text, "a text"),
    "mfu": (_positive, _POSITIVE),
    "devices": (_count, _COUNT),
}
LEFT_OUT: Fields = {"budget": (_positive, _POSITIVE), "member": (_text, "a text"), "reason": (_text, "a text")}


def wrong(value: Any, must: Fields, may: Fields | None = None) -> str:
    """What is wrong with a mapping, or "": a field that has to be there, or one that is there and is not what it has to be."""
    if not isinstance(value, dict):
        return "is no mapping"
    for key, (check, says) in must.items():
        if not check(value.get(key)):
            return f"{key} is not {says}" if key in value else f"lacks {key}"
    for key, (check, says) in (may or {}).items():
        if key in value and not check(value[key]):
            return f"{key} is not {says}"
    return ""
