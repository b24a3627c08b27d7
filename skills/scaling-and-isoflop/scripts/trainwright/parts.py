# parts.py without its comments
from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Literal

from trainwright.rotary import Rotary

Shape = tuple[int, ...]
Place = Literal["attention_in", "attention_out", "mlp_in", "mlp_out"]
UNSHOWN = "which no part shows"
PRE: tuple[Place, ...] = ("attention_in", "mlp_in")
POST: tuple[Place, ...] = ("attention_out", "mlp_out")
SANDWICH: tuple[Place, ...] = ("attention_in", "attention_out", "mlp_in", "mlp_out")


def elements(shape: Shape) -> int:
    return math.prod(shape)


def count(shapes: Iterable[Shape]) -> int:
    return sum(map(elements, shapes))


def linears(weights: Iterable[Shape], bias: bool) -> tuple[Shape, ...]:
    return tuple(shape for weight in weights for shape in ((weight, (weight[0],)) if bias else (weight,)))


@dataclass(frozen=True, slots=True)
class Norm:

    kind: Literal["rms", "layer"] = "rms"
    eps: float = 1e-6
    weight: bool = True
    bias: bool = False
    shifted: bool = False

    def shapes(self, width: int) -> tuple[Shape, ...]:
        return ((width,),) * (self.weight + self.bias)


@dataclass(frozen=True, slots=True)
class Latent:

    kv_rank: int
    rope_dim: int
    query_rank: int | None = None
    norm: Norm = Norm()


@dataclass(frozen=True, slots=True)
class Attention:

    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    qkv_bias: bool = False
    out_bias: bool = False
    fused: bool = False
    latent: Latent | None = None
    qk_norm: Norm | None = None
    qk_norm_per_head: bool = True
    rotary: Rotary | None = None
    alibi: bool = False
    window: int | None = None
    scale: float | None = None
    softcap: float | None = None
    clip: float | None = None

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def key_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def value_size(self) -> int:
        return self.num_kv_heads * self.value_dim

    @property
    def out_size(self) -> int:
        return self.num_heads * self.value_dim

    @property
    def rotary_dim(self) -> int:
        if self.rotary is None:
            return 0
        return self.latent.rope_dim if self.latent else int(self.head_dim * self.rotary.fraction)

    def shapes(self, h: int) -> tuple[Shape, ...]:
        into = self._latents(h, self.latent) if self.latent else linears(self._projections(h), self.qkv_bias)
        return (*into, *linears(((h, self.out_size),), self.out_bias), *self._norms())

    def _projections(self, h: int) -> tuple[Shape, ...]:
        sizes = (self.query_size, self.key_size, self.value_size)
        return ((sum(sizes), h),) if self.fused else tuple((size, h) for size in sizes)

    def _latents(self, h: int, latent: Latent) -> tuple[Shape, ...]:
        query: tuple[Shape, ...] = ((self.query_size, h),)
        if rank := latent.query_rank:
            query = (*linears(((rank, h),), self.qkv_bias), *latent.norm.shapes(rank), (self.query_size, rank))
        compressed = linears(((latent.kv_rank + latent.rope_dim, h),), self.qkv_bias)
        expanded = self.num_heads * (self.head_dim - latent.rope_dim + self.value_dim)
        return (*query, *compressed, *latent.norm.shapes(latent.kv_rank), (expanded, latent.kv_rank))

    def _norms(self) -> tuple[Shape, ...]:
        if self.qk_norm is None:
            return ()
        widths = (self.head_dim, self.head_dim) if self.qk_norm_per_head else (self.query_size, self.key_size)
        return tuple(shape for width in widths for shape in self.qk_norm.shapes(width))


@dataclass(frozen=True, slots=True)
class Mlp:

    size: int
    gated: bool = True
    bias: bool = False
    activation: str = "silu"
    fused: bool = False

    def shapes(self, h: int) -> tuple[Shape, ...]:
        ups: tuple[Shape, ...] = ((self.size, h),) * (2 if self.gated else 1)
        if self.gated and self.fused:
            ups = ((2 * self.size, h),)
        return linears((*ups, (h, self.size)), self.bias)


@dataclass(frozen=True, slots=True)
class Router:

    score: Literal["softmax", "sigmoid"] = "softmax"
    normalised: bool = True
    scaling: float = 1.0
    groups: int = 1
    kept_groups: int = 1


@dataclass(frozen=True, slots=True)
class Experts:

    num: int
    per_token: int
    size: int
    activation: str = "silu"
    router: Router = Router()
    shared: Mlp | None = None
    shared_gate: bool = False

    def shapes(self, h: int) -> tuple[Shape, ...]:
        shared = self.shared.shapes(h) if self.shared else ()
        gate: tuple[Shape, ...] = ((1, h),) if self.shared_gate else ()
        return ((self.num, h), (self.num, 2 * self.size, h), (self.num, h, self.size), *shared, *gate)

    def idle(self, h: int) -> int:
        return (self.num - self.per_token) * 3 * self.size * h


@dataclass(frozen=True, slots=True)
class Block:

    width: int
    attention: Attention
    mlp: Mlp | Experts
    norm: Norm
    norms: tuple[Place, ...] = PRE
    parallel: bool = False
    transposed: bool = False

    @property
    def shapes(self) -> tuple[Shape, ...]:
        inside = (self.attention.shapes(self.width), self.mlp.shapes(self.width))
        found = tuple(shape for part, tensors in zip(("attention", "mlp"), inside, strict=True) for shape in (*self._norms(part), *tensors))
        return tuple(shape[::-1] if len(shape) == 2 else shape for shape in found) if self.transposed else found

    def _norms(self, part: str) -> tuple[Shape, ...]:
        return self.norm.shapes(self.width) * sum(place.startswith(part) for place in self.norms)

    @property
    def parameters(self) -> int:
        return count(self.shapes)

    @property
    def idle_parameters(self) -> int:
        return self.mlp.idle(self.width) if isinstance(self.mlp, Experts) else 0

    @property
    def active_parameters(self) -> int:
        return self.parameters - self.idle_parameters

    @property
    def matmul_parameters(self) -> int:
        return count(shape for shape in self.shapes if len(shape) > 1) - self.idle_parameters


@dataclass(frozen=True, slots=True)
class Run:

    count: int
    block: Block


def fold(blocks: Iterable[Block]) -> tuple[Run, ...]:
    return tuple(Run(sum(1 for _ in same), block) for block, same in groupby(blocks))


@dataclass(frozen=True, slots=True)
class Embedding:

    vocab_size: int
    width: int
    positions: int = 0
    norm: Norm | None = None
    scale: float = 1.0

    @property
    def tables(self) -> tuple[Shape, ...]:
        return ((self.vocab_size, self.width), *(((self.positions, self.width),) if self.positions else ()))

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return (*self.tables, *(self.norm.shapes(self.width) if self.norm else ()))


@dataclass(frozen=True, slots=True)
class Head:

    tied: bool = False
    bias: bool = False
    softcap: float | None = None
    scale: float | None = None

    def shapes(self, embedding: Embedding) -> tuple[Shape, ...]:
        weight = () if self.tied else ((embedding.vocab_size, embedding.width),)
        return (*weight, *(((embedding.vocab_size,),) if self.bias else ()))


@dataclass(frozen=True, slots=True)
class Decoder:

    family: str
    block_class: str
    embedding: Embedding
    runs: tuple[Run, ...]
    final_norm: Norm
    head: Head
    max_positions: int

    @property
    def root_shapes(self) -> tuple[Shape, ...]:
        embedding = self.embedding
        return (*embedding.shapes, *self.final_norm.shapes(embedding.width), *self.head.shapes(embedding))


@dataclass(frozen=True, slots=True)
class Patches:

    side: int
    channels: int = 3
    frames: int | None = None
    bias: bool = False

    def shapes(self, h: int) -> tuple[Shape, ...]:
        frames = () if self.frames is None else (self.frames,)
        return linears(((h, self.channels, *frames, self.side, self.side),), self.bias)


@dataclass(frozen=True, slots=True)
class Tower:

    family: str
    block_class: str
    width: int
    patches: Patches
    runs: tuple[Run, ...]
    positions: int = 0
    class_token: bool = False
    before: Norm | None = None
    after: Norm | None = None
    pooler: Block | None = None

    @property
    def root_shapes(self) -> tuple[Shape, ...]:
        h = self.width
        token: tuple[Shape, ...] = ((h,),) if self.class_token else ()
        positions: tuple[Shape, ...] = ((self.positions, h),) if self.positions else ()
        norms = tuple(shape for norm in (self.before, self.after) if norm for shape in norm.shapes(h))
        pooler = ((1, 1, h), *self.pooler.shapes) if self.pooler else ()
        return (*token, *self.patches.shapes(h), *positions, *norms, *pooler)

    @property
    def parameters(self) -> int:
        return count(self.root_shapes) + sum(run.count * run.block.parameters for run in self.runs)


@dataclass(frozen=True, slots=True)
class Projector:

    input_size: int
    hidden_size: int
    output_size: int
    depth: int = 1
    joined: int = 1
    bias: bool = True
    norm: Norm | None = None
    activation: str = "gelu"
    transposed: bool = False

    @property
    def shapes(self) -> tuple[Shape, ...]:
        sizes = (self.input_size * self.joined, *(self.hidden_size,) * self.depth, self.output_size)
        weights = tuple((b, a) for a, b in pairwise(sizes))
        matrices = tuple(shape[::-1] for shape in linears(weights, self.bias)) if self.transposed else linears(weights, self.bias)
        return (*(self.norm.shapes(self.input_size) if self.norm else ()), *matrices)

    @property
    def parameters(self) -> int:
        return count(self.shapes)


LADDER = {"BASE": (1, 1), "W2X": (2, 1), "W4X": (4, 1), "D2X": (1, 2), "D4X": (1, 4)}
"""The projector ladder: hidden width as a multiple of the decoder's, and hidden layers as a multiple of one."""


def projector(variant: str, input_size: int, output_size: int) -> Projector:
    width, depth = LADDER[variant]
    return Projector(input_size, width * output_size, output_size, depth)
