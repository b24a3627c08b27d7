# presets.py without its comments
from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from trainwright.document import Document, DocumentError, load_mapping
from trainwright.fields import shown

PRESETS = Path(__file__).parent / "models"


def presets() -> tuple[str, ...]:
    return tuple(sorted(file.parent.name for file in PRESETS.glob("*/config.json")))


def preset_path(name: str) -> str:
    return name if os.path.exists(name) or name not in presets() else str(PRESETS / name / "config.json")


def with_preset(document: Document) -> Document:
    if not document.has("preset"):
        return document
    name = document.get("preset")
    if name not in presets():
        raise DocumentError(f"preset {shown(name)} is not one of {', '.join(presets())}", document.at("preset"))
    base = with_preset(load_mapping(str(PRESETS / name / "config.json")))
    family = document.get("model_type", default=base.get("model_type"))
    if family != base.get("model_type"):
        message = f"model_type {shown(family)} is not that of the preset {name}, {base.get('model_type')}"
        raise DocumentError(message, document.at("model_type"))
    return replace(document, value={**base.value, "name": f"{name}, changed", **document.value})
