# isoflop/projected_flops.py without its comments
from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from trainwright.errors import UserError
from trainwright.model import ModelSpec

PARTS = {"projector_only": ("projector",), "encoder_projector": ("encoder", "projector"), "e2e": ("encoder", "projector", "backbone")}
POSITIONS = {"text_image": 16, "text_ts": 16, "text_graph": 12}
_PATCH = {"text_image": 3 * 4 * 4, "text_ts": 8}
_LAYERS, _NODE_FEATURES = 2, 2


@dataclass(frozen=True, slots=True)
class Passes:

    inputs: bool
    weights: bool

    def times(self, operations: float, learned: bool = True) -> float:
        if not learned:
            return operations * (3 if self.inputs else 1)
        return operations * (1 + self.inputs + self.weights)


def flops_per_sample(spec: ModelSpec, modality: str, regime: str, seq_len: int) -> float:
    if modality not in POSITIONS or regime not in PARTS or spec.projector is None:
        raise UserError(f"no closed form for family {modality[:40]!r} under regime {regime[:40]!r}")
    trained = PARTS[regime]
    encoder = Passes("encoder" in trained, "encoder" in trained)
    return (
        _encoder(modality, spec.projector.input_size, encoder)
        + _projector(spec, modality, trained)
        + _backbone(spec, modality, trained, seq_len)
    )


def _encoder(modality: str, w: int, passes: Passes) -> float:
    p = POSITIONS[modality]
    first = Passes(False, passes.weights)
    if modality == "text_graph":
        total = first.times(2 * p * _NODE_FEATURES * w)
        edges = 2 * p * p * w * (2 if passes.inputs else 1)
        return total + _LAYERS * (edges + passes.times(2 * p * (3 * w * 2 * w + 2 * w * w)))
    total = first.times(2 * p * _PATCH[modality] * w)
    return total + _LAYERS * (passes.times(2 * p * 12 * w * w) + passes.times(4 * p * p * w, learned=False))


def _projector(spec: ModelSpec, modality: str, trained: tuple[str, ...]) -> float:
    between = spec.projector
    assert between is not None
    sizes = (between.input_size * between.joined, *(between.hidden_size,) * between.depth, between.output_size)
    rows = POSITIONS[modality] // between.joined
    reached = [Passes("encoder" in trained, True), *(Passes(True, True) for _ in sizes[2:])]
    return sum(passes.times(2 * rows * a * b) for passes, (a, b) in zip(reached, pairwise(sizes), strict=True))


def _backbone(spec: ModelSpec, modality: str, trained: tuple[str, ...], seq_len: int) -> float:
    assert spec.projector is not None
    prefix = POSITIONS[modality] // spec.projector.joined
    passes, t = Passes(True, "backbone" in trained), prefix + seq_len
    scores = sum(run.count * 2 * a.num_heads * (a.head_dim + a.value_dim) * t * t for run in spec.runs for a in (run.block.attention,))
    head = 2 * seq_len * spec.vocab_size * spec.hidden_size
    return passes.times(2 * t * spec.block_matmul_parameters) + passes.times(scores, learned=False) + passes.times(head)
