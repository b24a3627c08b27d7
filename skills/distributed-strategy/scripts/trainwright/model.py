"""ModelSpec: the shape of a model, read from a Hugging Face config.json, and its parameter counts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from trainwright.document import Document, DocumentError, load_mapping
from trainwright.report import Location

FAMILIES = ("llama",)
Shape = tuple[int, ...]
LARGEST = 10**9  # no dimension of a real model comes near; a larger one is a mistake, not a model


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only transformer of the Llama family; all counts are of weights, not bytes."""

    name: str
    family: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    tied_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    rms_norm_eps: float
    rope_theta: float
    block_class: str

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def embedding_parameters(self) -> int:
        return self.vocab_size * self.hidden_size

    @property
    def head_parameters(self) -> int:
        """Weights of the output head that are its own (0 when tied to the embedding)."""
        return 0 if self.tied_embeddings else self.embedding_parameters

    @property
    def layer_shapes(self) -> tuple[Shape, ...]:
        """The tensors of one block in the order of Llama's modules: norm, q, k, v, o, norm, gate, up, down; biases after weights."""
        h, q, kv, f = self.hidden_size, self.query_size, self.kv_size, self.intermediate_size
        attention = _linears(((q, h), (kv, h), (kv, h), (h, q)), self.attention_bias)
        return ((h,), *attention, (h,), *_linears(((f, h), (f, h), (h, f)), self.mlp_bias))

    @property
    def root_shapes(self) -> tuple[Shape, ...]:
        """The tensors outside the blocks: embedding, final norm, and the head where it is not tied."""
        table = (self.vocab_size, self.hidden_size)
        return (table, (self.hidden_size,)) if self.tied_embeddings else (table, (self.hidden_size,), table)

    @property
    def layer_parameters(self) -> int:
        """Weights of one block: q, k, v, o, gate, up, down, their biases, and two RMSNorms."""
        return sum(map(elements, self.layer_shapes))

    @property
    def total_parameters(self) -> int:
        return self.num_layers * self.layer_parameters + sum(map(elements, self.root_shapes))


def elements(shape: Shape) -> int:
    """How many numbers a tensor of this shape holds."""
    return math.prod(shape)


def _linears(weights: tuple[Shape, ...], bias: bool) -> tuple[Shape, ...]:
    return tuple(shape for weight in weights for shape in ((weight, (weight[0],)) if bias else (weight,)))


def load_model(path: str) -> ModelSpec:
    """The ModelSpec of a Hugging Face config.json.

    Raises DocumentError naming every field that is missing, impossible, or contradicts another.
    """
    document = load_mapping(path, "json" if path == "-" else None)
    family = document.get("model_type")
    if family not in FAMILIES:
        said = f"model_type {family!r}" if document.has("model_type") else "no model_type"
        raise DocumentError(f"{said}; the families read today are {', '.join(FAMILIES)}", document.at("model_type"))
    return _llama(document)


class _Fields:
    """Reads fields of one config and remembers each that is wrong."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems: list[tuple[str, Location]] = []

    def wrong(self, name: str, message: str) -> None:
        self.problems.append((message, self.document.at(name)))

    def size(self, name: str, default: int | None = None) -> int:
        """A positive whole number; where it is missing or wrong the problem is noted and 1 stands in."""
        value = self.document.get(name)
        if value is None and default is not None:
            return default
        if value is None:
            self.wrong(name, f"{name} is missing")
        elif type(value) is not int or not 0 < value <= LARGEST:
            self.wrong(name, f"{name} is {_shown(value)}, not a whole number from 1 to {LARGEST:,}")
        else:
            return value
        return 1

    def flag(self, name: str) -> bool:
        """True or false; null and a missing field are false, as Transformers has it."""
        value = self.document.get(name)
        if value is not None and type(value) is not bool:
            self.wrong(name, f"{name} is {_shown(value)}, not true or false")
        return value is True

    def number(self, *path: str, default: float) -> float:
        value = self.document.get(*path)
        if value is None:
            return default
        if type(value) not in (int, float) or not 0 < value <= LARGEST:
            self.wrong(path[0], f"{'.'.join(path)} is {_shown(value)}, not a positive number up to {LARGEST:,}")
            return default
        return float(value)

    def finish(self) -> None:
        if self.problems:
            messages = "; ".join(message for message, _ in self.problems)
            raise DocumentError(f"this model cannot be built: {messages}", self.problems[0][1])


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _name(document: Document) -> str:
    names = (document.get(key) for key in ("_name_or_path", "name"))
    return next((name[:80] for name in names if isinstance(name, str) and name), "llama")


def _llama(document: Document) -> ModelSpec:
    fields = _Fields(document)
    hidden = fields.size("hidden_size")
    heads = fields.size("num_attention_heads")
    kv_heads = fields.size("num_key_value_heads", default=heads)
    head_dim = fields.size("head_dim", default=max(hidden // heads, 1))
    theta = fields.number("rope_theta", default=10000.0)
    if document.get("hidden_act", default="silu") != "silu":
        fields.wrong("hidden_act", f"hidden_act is {_shown(document.get('hidden_act'))}, and Llama's gated MLP is built with silu only")
    spec = ModelSpec(
        name=_name(document),
        family="llama",
        num_layers=fields.size("num_hidden_layers"),
        hidden_size=hidden,
        intermediate_size=fields.size("intermediate_size"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=fields.size("vocab_size"),
        max_positions=fields.size("max_position_embeddings", default=2048),
        tied_embeddings=fields.flag("tie_word_embeddings"),
        attention_bias=fields.flag("attention_bias"),
        mlp_bias=fields.flag("mlp_bias"),
        rms_norm_eps=fields.number("rms_norm_eps", default=1e-6),
        rope_theta=fields.number("rope_parameters", "rope_theta", default=theta),  # transformers 5 writes it here
        block_class="LlamaDecoderLayer",
    )
    _consistent(fields, spec)
    fields.finish()
    return spec


def _consistent(fields: _Fields, spec: ModelSpec) -> None:
    if fields.problems:
        return
    if fields.document.get("head_dim") is None and spec.hidden_size % spec.num_heads:
        fields.wrong(
            "hidden_size",
            f"hidden_size {spec.hidden_size} is not a multiple of num_attention_heads {spec.num_heads}, and there is no head_dim",
        )
    if spec.num_heads % spec.num_kv_heads:
        fields.wrong(
            "num_key_value_heads", f"num_attention_heads {spec.num_heads} is not a multiple of num_key_value_heads {spec.num_kv_heads}"
        )
    if spec.head_dim % 2:
        fields.wrong("head_dim", f"head_dim {spec.head_dim} is odd, and rotary positions turn pairs")
