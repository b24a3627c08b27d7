# check/facts.py without its comments
from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

SCHEDULER = re.compile(r"\b(?!Dummy|Megatron)(?:[A-Z]\w*(?:LR|Scheduler|Restarts|LROnPlateau)|get_\w*schedule\w*)\b")


@cache
def table(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((Path(__file__).parent / "tables" / f"{name}.json").read_text(encoding="utf-8"))
    if name == "arguments":
        _unfold(loaded)
    elif name == "accelerate":
        for rows in loaded["environment"].values():
            rows[:] = [[row[0] or row[1].upper(), *row[1:]] for row in rows]
    return loaded


def _unfold(loaded: dict[str, Any]) -> None:
    for ending, families in loaded.pop("one_layer").items():
        loaded["layers"] |= {family: [family + ending] for family in families.split()}
    loaded["no_hidden_size"] = {family: kind for kind, families in loaded["no_hidden_size"].items() for family in families.split()}


def release(text: str) -> tuple[int, ...]:
    parts: list[int] = []
    for word in text.strip().lstrip("v").split(".")[:4]:
        digits = ""
        for letter in word:
            if not (letter.isascii() and letter.isdigit()):
                break
            digits += letter
        if not digits or len(digits) > 9:
            return (*parts, -1)
        parts.append(int(digits))
        if digits != word:
            return (*parts, -1)
    return tuple(parts)


def before(version: str, other: str) -> bool:
    mine, theirs = release(version), release(other)
    length = max(len(mine), len(theirs))
    return (*mine, *[0] * (length - len(mine))) < (*theirs, *[0] * (length - len(theirs)))
