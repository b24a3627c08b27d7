# helpers/trainwright/check/facts.py without its comments
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
    return loaded


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
