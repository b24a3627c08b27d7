"""The members of a ladder: configs of one family in several sizes, or one backbone behind several projectors."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright.document import load_mapping
from trainwright.errors import UserError
from trainwright.model import ModelSpec, load_model
from trainwright.output import make_folder, write_text
from trainwright.parts import LADDER, projector
from trainwright.presets import preset_path, with_preset

WIDTH = ("hidden_size", "n_embd", "d_model", "dim")
HEADS = ("num_attention_heads", "n_head", "n_heads")
KV_HEADS = ("num_key_value_heads",)
INNER = ("intermediate_size", "n_inner", "ffn_dim")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers")
FAMILIES = ("text_image", "text_ts", "text_graph")
REGIMES = ("projector_only", "encoder_projector", "e2e")
ENCODER_WIDTH = 64  # of the reference trainer's encoders, where the config's projector names no other
_WIDEST = 2**17


@dataclass(frozen=True, slots=True)
class Member:
    """One model of a ladder: the content of its config.json, and what stands before its text."""

    name: str
    config: dict[str, Any]
    modality: str = "text"
    regime: str = "e2e"
    variant: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "config": self.config, "modality": self.modality, "regime": self.regime, "variant": self.variant}

    def place(self, folder: str) -> str:
        """Where the config.json of this member lies in a study's folder."""
        return os.path.join(folder, "models", self.name, "config.json")

    def write(self, folder: str) -> str:
        """The path of its config.json under `folder`, written where it is not there yet."""
        path = self.place(folder)
        text = json.dumps(self.config, indent=1, sort_keys=True) + "\n"
        if not os.path.exists(path) or Path(path).read_text(encoding="utf-8") != text:
            make_folder(os.path.dirname(path))
            write_text(path, text)
        return path

    def spec(self, folder: str) -> ModelSpec:
        """The model, with the projector of its variant; raises UserError."""
        found = load_model(self.write(folder))
        if self.modality == "text" or not (self.variant or not found.projector):
            return found
        size = found.projector.input_size if found.projector else ENCODER_WIDTH
        return found.with_projector(projector(self.variant or "BASE", size, found.hidden_size))


def read_config(model: str) -> dict[str, Any]:
    """The fields of a config.json, a folder with one, a YAML or a preset, as one mapping; raises UserError."""
    load_model(model)  # its own words on what is wrong
    place = Path(preset_path(model))
    place = place / "config.json" if place.is_dir() else place
    if place.suffix not in (".json", ".yaml", ".yml"):
        raise UserError(f"{model}: a ladder starts from a config.json, a YAML or a preset")
    value = dict(with_preset(load_mapping(str(place))).value)
    value.pop("preset", None)
    return value


def members(models: Sequence[str], widths: Sequence[str], sizes: Sequence[int], folder: str) -> list[Member]:
    """The text ladder: each of `models` as it is, or the one model in several widths (WIDTH or WIDTHxLAYERS) or sizes (total weights).

    Raises UserError where sizes are asked of several models, or a width does not suit the family.
    """
    if not widths and not sizes:
        return _distinct([Member(_name(model), read_config(model)) for model in models])
    if len(models) != 1:
        raise UserError("--widths and --sizes resize one model; name one --model")
    base = read_config(models[0])
    found = [_of_width(base, text) for text in widths]
    found += [_of_size(base, size, folder) for size in sizes]
    for member in found:
        try:
            member.spec(folder)
        except UserError as problem:
            raise UserError(f"{member.name}: {problem}") from None
    return _distinct(found)


def projector_members(backbone: str, variants: Sequence[str], family: str, regime: str) -> list[Member]:
    """The projector ladder over one backbone; raises UserError for a variant or a regime that is none."""
    if family not in FAMILIES or regime not in REGIMES:
        raise UserError(f"--family is one of {', '.join(FAMILIES)}, --regime one of {', '.join(REGIMES)}")
    if wrong := [name for name in variants if name not in LADDER]:
        raise UserError(f"--projector-variant {wrong[0][:40]!r} is not one of {', '.join(LADDER)}")
    config = read_config(backbone)
    return [Member(f"{_name(backbone)}-{variant}", config, family, regime, variant) for variant in dict.fromkeys(variants)]


def resized(config: dict[str, Any], width: int, layers: int | None = None) -> dict[str, Any]:
    """The same family at another width: heads keep theirs, the MLP keeps its ratio, key/value heads theirs as nearly as they divide."""
    key = _key(config, WIDTH)
    if key is None:
        raise UserError(f"this config names its width by none of {', '.join(WIDTH)}; give the members as files: --model a.json b.json")
    old = int(config[key])
    new = {**config, key: width}
    if (heads := _key(config, HEADS)) is not None:
        dim = int(config.get("head_dim") or old // int(config[heads]))
        count = max(1, round(width / dim))
        while "head_dim" not in config and width % count:
            count -= 1
        new[heads] = count
        if (kv := _key(config, KV_HEADS)) is not None:
            wanted = int(config[kv]) * count / int(config[heads])
            new[kv] = max(k for k in range(1, count + 1) if count % k == 0 and k <= max(wanted, 1))
    if (inner := _key(config, INNER)) is not None:
        new[inner] = round(int(config[inner]) * width / old)
    if layers is not None:
        if (depth := _key(config, LAYERS)) is None:
            raise UserError(f"this config names its layers by none of {', '.join(LAYERS)}")
        new[depth] = layers
    return new


def _of_width(base: dict[str, Any], text: str) -> Member:
    width, cross, layers = text.partition("x")
    if not width.isdecimal() or (cross and not layers.isdecimal()) or not 0 < int(width) <= _WIDEST:
        raise UserError(f"--widths {text[:40]!r} is neither WIDTH nor WIDTHxLAYERS")
    return Member(f"d{text}", resized(base, int(width), int(layers) if layers else None))


def _of_size(base: dict[str, Any], size: int, folder: str) -> Member:
    """The width in whole groups of heads whose total is nearest `size`."""
    step = _step(base)

    def total(count: int) -> int:
        return Member("trial", resized(base, count * step)).spec(folder).total_parameters

    low, high = 1, 2
    while total(high) < size and high * step < _WIDEST:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if total(middle) < size else (low, middle)
    count = min((low, high), key=lambda k: abs(total(k) - size))
    return Member(f"d{count * step}", resized(base, count * step))


def _step(config: dict[str, Any]) -> int:
    heads, width = _key(config, HEADS), _key(config, WIDTH)
    if width is None:
        raise UserError(f"this config names its width by none of {', '.join(WIDTH)}; give the members as files")
    if heads is None:
        return 4
    kv = _key(config, KV_HEADS)
    group = int(config[heads]) // int(config[kv]) if kv else 1  # so that query heads keep their number of key/value heads
    return int(config.get("head_dim") or int(config[width]) // int(config[heads])) * max(group, 1)


def _key(config: dict[str, Any], names: Sequence[str]) -> str | None:
    return next((name for name in names if type(config.get(name)) is int), None)


def _name(model: str) -> str:
    path = Path(model)
    stem = path.parent.name if path.name == "config.json" and path.parent.name else path.stem
    return "".join(letter if letter.isalnum() or letter in "-." else "-" for letter in stem)[:60] or "model"


def _distinct(found: list[Member]) -> list[Member]:
    names = [member.name for member in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"two members of the ladder are called {twice}; each size once, and files of different names")
    return found
