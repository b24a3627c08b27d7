# families/assemble.py without its comments
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from trainwright.fields import LARGEST, Fields, shown
from trainwright.parts import Attention, Block, Decoder, Embedding, Head, Norm, Run, fold
from trainwright.rotary import Rotary, Stretch

MOST_LAYERS = 10_000


def attention(f: Fields, width: int, **rest: Any) -> Attention:
    heads = f.size("num_attention_heads")
    kv_heads = f.size_or("num_key_value_heads", heads)
    dim = f.size_or("head_dim", max(width // heads, 1))
    if f.derived("head_dim"):
        f.multiple("hidden_size", width, "num_attention_heads", heads, "hidden_size", ", and there is no head_dim")
    f.multiple("num_attention_heads", heads, "num_key_value_heads", kv_heads)
    return Attention(heads, kv_heads, dim, dim, **rest)


def rotary(f: Fields, layer_type: str = "", theta: str = "rope_theta", fraction: str = "partial_rotary_factor") -> Rotary:
    said = "rope_scaling" if f.has("rope_scaling") and layer_type != "sliding_attention" else "rope_parameters"
    found: Any = f.mapping(said)
    inside: tuple[str, ...] = ()
    if layer_type and said == "rope_parameters":
        found, inside = found.get(layer_type) or {}, (layer_type,)
    if not isinstance(found, dict):
        f.wrong(said, f"{f.named(said)}.{layer_type} is {shown(found)}, not a mapping")
        found = {}
    base = f.positive(said, found["rope_theta"], *inside, "rope_theta") if found.get("rope_theta") is not None else f.number(theta)
    turned = found.get("partial_rotary_factor")
    part = f.positive(said, turned, *inside, "partial_rotary_factor") if turned is not None else f.share(fraction)
    if part > 1:
        f.wrong(fraction, f"{f.named(fraction)} is {part:g}, more than the whole head")
        part = 1.0
    kind = found.get("rope_type", found.get("type", "default"))
    if kind in (None, "default", "mrope"):
        return Rotary(base, part)
    return Rotary(base, part, kind if isinstance(kind, str) else shown(kind), stretched(f, kind, found))


def stretched(f: Fields, kind: Any, found: dict[str, Any]) -> Stretch | None:
    positions = f.size_or("max_position_embeddings", 2048)
    own = f.document.get(*f.path, "original_max_position_embeddings")
    original = own or found.get("original_max_position_embeddings") or positions
    if not _number(original) or int(original) < 2:
        return None
    factor: Any = found.get("factor")
    original = int(original)
    if factor is None and kind in ("yarn", "longrope"):
        factor = positions / original
    short, long = found.get("short_factor", ()), found.get("long_factor", ())
    said = [found.get(name) or default for name, default in STRETCH.items()]
    attention: Any = found.get("attention_factor")
    if not all(map(_number, (factor, *said, 1 if attention is None else attention, *_list(short), *_list(long)))):
        return None
    low, high, fast, slow = map(float, said)
    if kind == "llama3" and not {"low_freq_factor", "high_freq_factor"} <= set(found):
        return None
    attention = float(attention) if attention is not None else _attention_factor(kind, float(factor), original, found)
    pairs = tuple(map(float, _list(short))), tuple(map(float, _list(long)))
    return Stretch(float(factor), original, attention, low, high, fast, slow, found.get("truncate") is not False, *pairs)


STRETCH = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0}


def mscale(factor: float, weight: float = 1.0) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _attention_factor(kind: Any, factor: float, original: int, found: dict[str, Any]) -> float:
    if kind == "longrope":
        return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    if kind != "yarn":
        return 1.0
    one: Any = found.get("mscale")
    all_dims: Any = found.get("mscale_all_dim")
    if _number(one) and _number(all_dims):
        return mscale(factor, one) / mscale(factor, all_dims)
    return mscale(factor)


def _number(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value <= LARGEST


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) and len(value) <= 4096 else []


def uniform(f: Fields, block: Block, layers: str = "num_hidden_layers", *names: str) -> tuple[Run, ...]:
    return (Run(f.size(layers, *names), block),)


def each(f: Fields, make: Callable[[int], Block]) -> tuple[Run, ...]:
    layers = f.size("num_hidden_layers")
    if layers > MOST_LAYERS:
        f.wrong("num_hidden_layers", f"{f.named('num_hidden_layers')} is {layers}; of layers that differ at most {MOST_LAYERS:,} are read")
        layers = 1
    return fold(make(layer) for layer in range(layers))


def sliding(f: Fields, by_number: Callable[[int], bool]) -> Callable[[int], bool]:
    kinds = f.words("layer_types")
    if kinds is None:
        return by_number
    layers = f.size("num_hidden_layers")
    if len(kinds) != layers:
        f.clash("layer_types", f"{f.named('layer_types')} has {len(kinds)} entries for {layers} layers")
    if other := [kind for kind in kinds if kind not in ("sliding_attention", "full_attention")]:
        f.wrong("layer_types", f"{f.named('layer_types')} has {shown(other[0])}, neither sliding_attention nor full_attention")
    return lambda layer: layer < len(kinds) and kinds[layer] == "sliding_attention"


def alternating(f: Fields, full: Block, narrow: Block, by_number: Callable[[int], bool]) -> tuple[Run, ...]:
    is_narrow = sliding(f, by_number)
    return each(f, lambda layer: narrow if is_narrow(layer) else full)


def attending(block: Block, **changes: Any) -> Block:
    return replace(block, attention=replace(block.attention, **changes))


def rms(f: Fields) -> Norm:
    return Norm("rms", f.number("rms_norm_eps"))


def layer_norm(f: Fields, name: str = "layer_norm_epsilon", bias: bool = True) -> Norm:
    return Norm("layer", f.number(name), bias=bias)


def decoder(f: Fields, block_class: str, runs: tuple[Run, ...], final: Norm | None = None, **rest: Any) -> Decoder:
    block = runs[0].block
    for attention in dict.fromkeys(run.block.attention for run in runs):
        if turned := attention.rotary_dim % 2 and attention.rotary_dim:
            said = f"head_dim {turned} is" if turned == attention.head_dim else f"{turned} of a head's {attention.head_dim} are"
            f.clash("head_dim", f"{said} odd, and rotary positions turn pairs")
    embedding = rest.get("embedding") or Embedding(f.size("vocab_size"), block.width)
    head = rest.get("head") or Head(f.flag("tie_word_embeddings"))
    positions = rest.get("max_positions") or f.size_or("max_position_embeddings", 2048)
    return Decoder(f.family, block_class, embedding, runs, final or block.norm, head, positions)
