"""The model of a job: its config.json, and what the index of its weights says of them. Weights themselves are never read."""

from __future__ import annotations

import json
import os
from typing import Any

from trainwright.model import ModelSpec, load_model

_INDEX = "model.safetensors.index.json"
_LARGEST_INDEX = 16 * 2**20
_HEADS = ("lm_head.weight", "output.weight", "embed_out.weight")
_TABLES = ("embed_tokens.weight", "wte.weight", "tok_embeddings.weight", "word_embeddings.weight", "embed_in.weight")


def facts_of_model(path: str) -> dict[str, Any]:
    """Fields of a Context that a model's config.json and its index tell; raises UserError where it is no model's."""
    model = load_model(path)
    return {"model": model, "untied_head": untied_head(model, path)}


def untied_head(model: ModelSpec, path: str) -> str:
    """The name of an output head that stands in the checkpoint beside `path` though the config ties it to the embedding; else ""."""
    index = os.path.join(os.path.dirname(path), _INDEX)
    if not model.tied_embeddings or not os.path.isfile(index) or os.path.getsize(index) > _LARGEST_INDEX:
        return ""
    try:
        with open(index, encoding="utf-8") as file:
            names = json.load(file).get("weight_map", {})
    except (OSError, ValueError, AttributeError, RecursionError):
        return ""
    if not isinstance(names, dict) or not any(str(name).endswith(_TABLES) for name in names):
        return ""
    return next((str(name) for name in names if str(name).endswith(_HEADS)), "")
