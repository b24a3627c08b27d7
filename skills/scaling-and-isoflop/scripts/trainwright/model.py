# model.py without its comments
from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from trainwright.document import Document, DocumentError, load_mapping
from trainwright.errors import UserError
from trainwright.families.vision import FAMILIES, read
from trainwright.fields import Assumed, Fields, shown
from trainwright.likeness import unlike_llama
from trainwright.parts import Block, Decoder, Experts, Mlp, Projector, Run, Shape, Tower, count, elements
from trainwright.presets import preset_path, presets, with_preset
from trainwright.tensors import Tensors, is_tensor_file, read_tensors

__all__ = ["FAMILIES", "ModelSpec", "Shape", "elements", "load_model"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ModelSpec:

    name: str
    family: str
    decoder: Decoder
    tower: Tower | None = None
    projector: Projector | None = None
    assumed: tuple[Assumed, ...] = ()
    notes: tuple[str, ...] = ()


    @property
    def runs(self) -> tuple[Run, ...]:
        return self.decoder.runs

    @property
    def blocks(self) -> tuple[Block, ...]:
        return tuple(run.block for run in self.runs for _ in range(run.count))

    @property
    def block_class(self) -> str:
        return self.decoder.block_class

    @property
    def block_classes(self) -> tuple[str, ...]:
        return (self.block_class, self.tower.block_class) if self.tower else (self.block_class,)

    @property
    def num_layers(self) -> int:
        return sum(run.count for run in self.runs)

    @property
    def hidden_size(self) -> int:
        return self.decoder.embedding.width

    @property
    def vocab_size(self) -> int:
        return self.decoder.embedding.vocab_size

    @property
    def max_positions(self) -> int:
        return self.decoder.max_positions

    @property
    def tied_embeddings(self) -> bool:
        return self.decoder.head.tied

    @property
    def root_shapes(self) -> tuple[Shape, ...]:
        tower = self.tower.root_shapes if self.tower else ()
        between = self.projector.shapes if self.projector else ()
        return (*tower, *between, *self.decoder.root_shapes)


    @property
    def embedding_parameters(self) -> int:
        return self.vocab_size * self.hidden_size

    @property
    def lookup_parameters(self) -> int:
        return count(self.decoder.embedding.tables)

    @property
    def head_parameters(self) -> int:
        return count(self.decoder.head.shapes(self.decoder.embedding))

    @property
    def tower_parameters(self) -> int:
        return self.tower.parameters if self.tower else 0

    @property
    def projector_parameters(self) -> int:
        return self.projector.parameters if self.projector else 0

    @property
    def decoder_parameters(self) -> int:
        return count(self.decoder.root_shapes) + self._sum(lambda block: block.parameters)

    @property
    def total_parameters(self) -> int:
        return self.decoder_parameters + self.tower_parameters + self.projector_parameters

    @property
    def active_parameters(self) -> int:
        return self.total_parameters - self._sum(lambda block: block.idle_parameters)

    @property
    def block_matmul_parameters(self) -> int:
        return self._sum(lambda block: block.matmul_parameters)

    @property
    def matmul_parameters(self) -> int:
        return self.block_matmul_parameters + self.vocab_size * self.hidden_size

    def _sum(self, of: Callable[[Block], int]) -> int:
        return sum(run.count * of(run.block) for run in self.runs)

    def to_json(self) -> dict[str, Any]:
        layers = [{"count": r.count, "parameters": r.block.parameters, "active": r.block.active_parameters} for r in self.runs]
        parameters = {
            "total": self.total_parameters,
            "active": self.active_parameters,
            "embedding": self.embedding_parameters,
            "head": self.head_parameters,
            "tower": self.tower_parameters,
            "projector": self.projector_parameters,
            "layers": layers,
        }
        return {"name": self.name, "family": self.family, "layers": self.num_layers, "parameters": parameters}


    def _common(self, name: str, of: Callable[[Block], T]) -> T:
        found = {of(run.block) for run in self.runs}
        if len(found) > 1:
            raise UserError(f"{self.name}: the layers differ in {name}; each block has its own")
        return found.pop()

    @property
    def layer_shapes(self) -> tuple[Shape, ...]:
        return self._common("their tensors", lambda block: block.shapes)

    @property
    def layer_parameters(self) -> int:
        return count(self.layer_shapes)

    @property
    def num_heads(self) -> int:
        return self._common("heads", lambda block: block.attention.num_heads)

    @property
    def num_kv_heads(self) -> int:
        return self._common("key/value heads", lambda block: block.attention.num_kv_heads)

    @property
    def head_dim(self) -> int:
        return self._common("the width of a head", lambda block: block.attention.head_dim)

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def intermediate_size(self) -> int:
        return self._mlp().size

    @property
    def mlp_bias(self) -> bool:
        return self._mlp().bias

    @property
    def attention_bias(self) -> bool:
        found = self._common("bias", lambda block: (block.attention.qkv_bias, block.attention.out_bias))
        if found[0] != found[1]:
            raise UserError(f"{self.name}: q, k and v {'have' if found[0] else 'have no'} bias, and the output projection differs")
        return found[0]

    @property
    def rms_norm_eps(self) -> float:
        return self._common("norm", lambda block: block.norm.eps)

    @property
    def rope_theta(self) -> float:
        rotary = self._common("rotary positions", lambda block: block.attention.rotary)
        if rotary is None:
            raise UserError(f"{self.name}: has no rotary positions")
        return rotary.theta

    def _mlp(self) -> Mlp:
        found = self._common("MLP", lambda block: block.mlp)
        if isinstance(found, Experts):
            raise UserError(f"{self.name}: has {found.num} experts in place of an MLP")
        return found

    @property
    def unlike_llama(self) -> tuple[str, ...]:
        return unlike_llama(self.decoder, self.tower is not None, self.projector is not None)


    def with_projector(self, found: Projector) -> ModelSpec:
        if found.output_size != self.hidden_size:
            raise UserError(f"{self.name}: the projector's output {found.output_size} is not the hidden_size {self.hidden_size}")
        return replace(self, projector=found)

    def resized(self, **sizes: Any) -> ModelSpec:
        if len(self.runs) > 1 or self.tower or self.projector:
            raise UserError(f"{self.name}: only a decoder of equal blocks can be resized")
        run, given = self.runs[0], _Given(sizes)
        width = given("hidden_size", self.hidden_size)
        block = _resized_block(replace(run.block, width=width), self._mlp(), given)
        embedding = replace(self.decoder.embedding, width=width, vocab_size=given("vocab_size", self.vocab_size))
        decoder = replace(
            self.decoder,
            runs=(Run(given("num_layers", run.count), block),),
            embedding=embedding,
            head=replace(self.decoder.head, tied=given("tied_embeddings", self.tied_embeddings)),
            max_positions=given("max_positions", self.max_positions),
        )
        resized = replace(self, name=given("name", self.name), decoder=decoder)
        given.finish()
        return resized


class _Given:

    def __init__(self, sizes: dict[str, Any]) -> None:
        self.left = dict(sizes)

    def __call__(self, name: str, current: T) -> T:
        value: T = self.left.pop(name, current)
        return value

    def finish(self) -> None:
        if self.left:
            raise TypeError(f"no size of a model: {', '.join(self.left)}")


def _resized_block(block: Block, mlp: Mlp, given: _Given) -> Block:
    old = block.attention
    bias = given("attention_bias", None)
    dim = given("head_dim", old.head_dim)
    attention = replace(
        old,
        num_heads=given("num_heads", old.num_heads),
        num_kv_heads=given("num_kv_heads", old.num_kv_heads),
        head_dim=dim,
        value_dim=dim if old.value_dim == old.head_dim else old.value_dim,
        qkv_bias=old.qkv_bias if bias is None else bias,
        out_bias=old.out_bias if bias is None else bias,
    )
    inner = replace(mlp, size=given("intermediate_size", mlp.size), bias=given("mlp_bias", mlp.bias))
    return replace(block, attention=attention, mlp=inner)


def load_model(path: str) -> ModelSpec:
    place = preset_path(path)
    if is_tensor_file(place):
        return _beside_tensors(place)
    if os.path.isfile(os.path.join(place, "config.json")):
        place = str(Path(place) / "config.json")
    return _of_document(with_preset(_load(place)))


def _load(path: str) -> Document:
    try:
        return load_mapping(path, "json" if path == "-" else None)
    except DocumentError as problem:
        if re.fullmatch(r"[\w-]{1,100}", path) and not os.path.exists(path):
            raise DocumentError(f"{problem.reason}; presets are {', '.join(presets())}", problem.where) from None
        raise


def _of_document(document: Document) -> ModelSpec:
    family = document.get("model_type")
    if family not in (*FAMILIES, "plain"):
        said = f"model_type {shown(family)}" if document.has("model_type") else "no model_type"
        raise DocumentError(f"{said}; the families read today are {', '.join(FAMILIES)}", document.at("model_type"))
    f = Fields(document, family)
    decoder, tower, between = read(f)
    if document.dialect != "json" or document.has("preset"):
        f.judge_names(("model_type", "name", "preset", "projector", "architectures", "transformers_version"))
    f.finish()
    return ModelSpec(_name(document, family), family, decoder, tower, between, tuple(f.assumed), tuple(f.notes))


def _name(document: Document, family: str) -> str:
    names = (document.get(key) for key in ("_name_or_path", "name"))
    return next((" ".join(name.split())[:80] for name in names if isinstance(name, str) and name.strip()), family)


def _beside_tensors(path: str) -> ModelSpec:
    tensors, config = read_tensors(path), Path(path).parent / "config.json"
    if not os.path.exists(config):
        raise UserError(f"{path}: {tensors.told}; heads and layers are in config.json, which is not beside it")
    spec = load_model(str(config))
    return replace(spec, notes=(*spec.notes, *_compared(spec, tensors)))


def _compared(spec: ModelSpec, tensors: Tensors) -> list[str]:
    if tensors.parameters is None:
        return [f"{tensors.told}{_share(tensors.bytes, spec.total_parameters)}"]
    if tensors.parameters == spec.total_parameters:
        return [f"{tensors.told}, as many as the config's"]
    more = tensors.parameters - spec.total_parameters
    return [f"{tensors.told}, {abs(more):,} {'more' if more > 0 else 'fewer'} than the config's {spec.total_parameters:,}"]


def _share(size: int | None, parameters: int) -> str:
    if size is None:
        return ""
    share = size / parameters
    odd = "" if 0.4 < share < 8.5 else ": they belong to another model"
    return f", {share:.3g} bytes for each of the config's {parameters:,} parameters{odd}"
