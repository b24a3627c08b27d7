"""What one layer of a model asks of the devices: its matrices, its attention, its streams and its weights, from the parts of a ModelSpec.

Legend: h width of the stream, f of an MLP, a query heads, g key/value heads, d width of a head, t parts of a matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from trainwright.errors import UserError
from trainwright.model import ModelSpec
from trainwright.parts import Attention, Block, Experts, Mlp, Tower, count

Cut = Literal["out", "in", "none"]
LARGEST_LAYERS = 10_000


@dataclass(frozen=True, slots=True)
class Matrix:
    """[out, in] times every token; `cut` is the axis that tensor parallelism divides; `groups` of out cannot be cut finer."""

    out: int
    into: int
    cut: Cut
    groups: int = 0
    expert: bool = False

    def local(self, parts: int) -> tuple[int, int]:
        """Its size on one device of `parts`: no finer than one group (key/value heads are copied where there are fewer)."""
        if self.cut == "none":
            return self.out, self.into
        parts = min(parts, self.groups) if self.groups else parts
        return (-(-self.out // parts), self.into) if self.cut == "out" else (self.out, -(-self.into // parts))


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer. Weights are counts; `tokens` is None where every token of the sequence passes, else tokens of one sequence.

    weights_cut are divided by tp, weights_kv at most by the key/value heads, weights_whole are on each device, weights_expert are divided
    by ep. backward: whether gradients pass at all; not through a frozen layer with nothing trained before it.
    """

    width: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    window: int | None
    matrices: tuple[Matrix, ...]
    inner: int
    gated: bool
    experts: int
    per_token: int
    weights_cut: int
    weights_kv: int
    weights_whole: int
    weights_expert: int
    trainable: bool = True
    backward: bool = True
    causal: bool = True
    tokens: int | None = None

    @property
    def parameters(self) -> int:
        return self.weights_cut + self.weights_kv + self.weights_whole + self.weights_expert

    def local_parameters(self, tp: int, ep: int) -> int:
        """Weights on one device before any sharding of states."""
        return self.local_dense(tp) + self.local_experts(ep)

    def local_experts(self, ep: int) -> int:
        """Weights of the experts that one device holds, each whole."""
        return -(-self.weights_expert // ep)

    def local_dense(self, tp: int) -> int:
        """Weights outside the experts on one device."""
        kv = -(-self.weights_kv // min(tp, self.kv_heads))
        return -(-self.weights_cut // tp) + kv + self.weights_whole

    @property
    def scores_width(self) -> float:
        """Operations per token and seen token are 2 x this: a (d + e)."""
        return self.heads * (self.head_dim + self.value_dim)


@dataclass(frozen=True, slots=True)
class Ends:
    """What stands before and after the layers: the table on the first stage, the head on the last."""

    vocab: int
    width: int
    tied: bool
    table: int
    head: int
    trainable: bool = True

    def first(self, tp: int) -> int:
        """Weights of the first stage, the vocabulary padded and cut by tp as Megatron has it."""
        return -(-self.table // tp)

    def last(self, tp: int, alone: bool) -> int:
        """Weights of the last stage; a tied head is a copy of the table where it stands on another stage."""
        return 0 if self.tied and not alone else -(-self.head // tp)


@dataclass(frozen=True, slots=True)
class Network:
    """A model as the cost model sees it: its kinds of layers, the kind of each layer in order, and its ends."""

    name: str
    kinds: tuple[Layer, ...]
    order: tuple[int, ...]
    ends: Ends

    @property
    def num_layers(self) -> int:
        return len(self.order)

    @property
    def layers(self) -> tuple[Layer, ...]:
        return tuple(self.kinds[kind] for kind in self.order)

    def counts(self, start: int, end: int) -> tuple[int, ...]:
        """How many of the layers from `start` to before `end` are of each kind."""
        if len(self.kinds) == 1:
            return (end - start,)
        part = self.order[start:end]
        return tuple(part.count(kind) for kind in range(len(self.kinds)))

    @property
    def parameters(self) -> int:
        own_head = 0 if self.ends.tied else self.ends.head
        return sum(layer.parameters for layer in self.layers) + self.ends.table + own_head

    @property
    def trainable_parameters(self) -> int:
        own = (self.ends.table + (0 if self.ends.tied else self.ends.head)) * self.ends.trainable
        return own + sum(layer.parameters for layer in self.layers if layer.trainable)


def network(model: ModelSpec, frozen: tuple[str, ...] = ()) -> Network:
    """The network of a ModelSpec; `frozen` names parts that are not trained: tower, decoder. Raises UserError."""
    if (many := sum(run.count for part in (model, model.tower) if part for run in part.runs)) > LARGEST_LAYERS:
        raise UserError(f"{model.name} has {many:,} layers; at most {LARGEST_LAYERS:,} are placed")
    if "decoder" in frozen and not model.projector and ("tower" in frozen or not model.tower):
        raise UserError(f"{model.name}: nothing is left to train with {' and '.join(sorted(set(frozen)))} frozen")
    decoder = tuple(layer for run in model.runs for layer in (_layer(run.block, "decoder" not in frozen),) * run.count)
    tower = tuple(_tower(model.tower, "tower" not in frozen)) if model.tower else ()
    h, v = model.hidden_size, model.vocab_size
    between = model.projector_parameters
    table = count(model.decoder.embedding.shapes) + between
    layers = (*tower, *decoder)
    kinds = tuple(dict.fromkeys(layers))
    at = {layer: number for number, layer in enumerate(kinds)}
    ends = Ends(v, h, model.tied_embeddings, table, v * h, "decoder" not in frozen)
    return Network(model.name, kinds, tuple(at[layer] for layer in layers), ends)


def _tower(tower: Tower, trainable: bool) -> Iterator[Layer]:
    tokens = max(tower.positions, 1)
    for run in tower.runs:
        yield from (_layer(run.block, trainable, tokens),) * run.count


def _layer(block: Block, trainable: bool, tokens: int | None = None) -> Layer:
    h, attention, mlp = block.width, block.attention, block.mlp
    matrices = (*_attention(h, attention), *_mlp(h, mlp))
    experts = mlp if isinstance(mlp, Experts) else None
    expert_weights = experts.num * 3 * experts.size * h if experts else 0
    own_kv = attention.latent is None and attention.num_kv_heads != attention.num_heads
    kv = sum(m.out * m.into for m in matrices if own_kv and m.groups == attention.num_kv_heads)
    cut = sum(m.out * m.into for m in matrices if m.cut != "none" and not m.expert) - kv
    shared = experts.shared.size if experts and experts.shared else 0
    return Layer(
        width=h,
        heads=attention.num_heads,
        kv_heads=attention.num_kv_heads,
        head_dim=attention.head_dim,
        value_dim=attention.value_dim,
        window=attention.window,
        matrices=matrices,
        inner=experts.per_token * experts.size + shared if experts else mlp.size if isinstance(mlp, Mlp) else 0,
        gated=True if experts else isinstance(mlp, Mlp) and mlp.gated,
        experts=experts.num if experts else 0,
        per_token=experts.per_token if experts else 0,
        weights_cut=cut,
        weights_kv=kv,
        weights_whole=block.parameters - cut - kv - expert_weights,
        weights_expert=expert_weights,
        trainable=trainable,
        backward=trainable or tokens is None,
        causal=tokens is None,
        tokens=tokens,
    )


def _attention(h: int, a: Attention) -> Iterator[Matrix]:
    if latent := a.latent:
        yield Matrix(latent.kv_rank + latent.rope_dim, h, "none")
        yield Matrix(a.num_heads * (a.head_dim - latent.rope_dim + a.value_dim), latent.kv_rank, "out", a.num_heads)
        if latent.query_rank:
            yield Matrix(latent.query_rank, h, "none")
        yield Matrix(a.query_size, latent.query_rank or h, "out", a.num_heads)
    elif a.num_kv_heads == a.num_heads:
        yield Matrix(a.query_size + a.key_size + a.value_size, h, "out", a.num_heads)
    else:
        yield Matrix(a.query_size, h, "out", a.num_heads)
        yield Matrix(a.key_size + a.value_size, h, "out", a.num_kv_heads)
    yield Matrix(h, a.out_size, "in", a.num_heads)


def _mlp(h: int, mlp: Mlp | Experts) -> Iterator[Matrix]:
    if isinstance(mlp, Experts):
        yield Matrix(mlp.num, h, "none")
        yield Matrix(2 * mlp.size, h, "out", expert=True)
        yield Matrix(h, mlp.size, "in", expert=True)
        if mlp.shared:
            yield from _mlp(h, mlp.shared)
        return
    yield Matrix(mlp.size * (2 if mlp.gated else 1), h, "out")
    yield Matrix(h, mlp.size, "in")
