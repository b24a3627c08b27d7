# train/projected.py without its comments
from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn

from trainwright.errors import UserError
from trainwright.model import ModelSpec
from trainwright.parts import LADDER, Projector, projector
from trainwright.train.data import Batch
from trainwright.train.decoder import CausalLM, Reduction, cross_entropy
from trainwright.train.encoders import HEADS, make_encoder
from trainwright.train.layers import ACTIVATIONS, TransposedLinear, make_linear, make_norm
from trainwright.train.signals import MODALITIES

REGIMES = {"projector_only": ("projector",), "encoder_projector": ("encoder", "projector"), "e2e": ("encoder", "projector", "backbone")}
WIDTH = 64


class ProjectorMLP(nn.Module):

    def __init__(self, spec: Projector) -> None:
        super().__init__()
        sizes = (spec.input_size * spec.joined, *(spec.hidden_size,) * spec.depth, spec.output_size)
        self.joined, self.act = spec.joined, ACTIVATIONS[spec.activation]
        self.norm = make_norm(spec.norm, spec.input_size) if spec.norm else None
        pairs = pairwise(sizes)
        self.linears = nn.ModuleList(make_linear(a, b, spec.bias, spec.transposed) for a, b in pairs)

    def forward(self, x_bpw: Tensor) -> Tensor:
        if self.norm is not None:
            x_bpw = self.norm(x_bpw)
        batch, positions, width = x_bpw.shape
        x_bpw = x_bpw.reshape(batch, positions // self.joined, width * self.joined)
        for number, linear in enumerate(self.linears):
            x_bpw = linear(x_bpw if number == 0 else self.act(x_bpw))
        return x_bpw


class ProjectedLM(nn.Module):

    def __init__(self, spec: ModelSpec, between: Projector, modality: str, regime: str) -> None:
        super().__init__()
        self.encoder = make_encoder(modality, between.input_size)
        self.projector = ProjectorMLP(between)
        self.backbone = CausalLM(spec.decoder)
        self.encodes_freely = "encoder" not in REGIMES[regime]
        for name in ("encoder", "projector", "backbone"):
            self.get_submodule(name).requires_grad_(name in REGIMES[regime])

    def forward(self, batch: Batch, reduction: Reduction = "mean") -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.encodes_freely):
            encoded_bpw = self.encoder(*batch.signals)
        prefix_bph = self.projector(encoded_bpw)
        tokens_bth = self.backbone.embed(batch.ids)
        x_bth = torch.cat((prefix_bph.to(tokens_bth.dtype), tokens_bth), dim=1)
        return cross_entropy(self.backbone.logits(x_bth, skipped=prefix_bph.shape[1]), batch.labels, reduction)


def with_variant(spec: ModelSpec, variant: str = "", width: int = WIDTH) -> ModelSpec:
    if not variant:
        return spec if spec.projector else spec.with_projector(projector("BASE", width, spec.hidden_size))
    if variant not in LADDER:
        raise UserError(f"projector variant {variant[:40]!r} is not one of {', '.join(LADDER)}")
    return spec.with_projector(projector(variant, spec.projector.input_size if spec.projector else width, spec.hidden_size))


def make_projected(spec: ModelSpec, modality: str, regime: str) -> ProjectedLM:
    if modality not in MODALITIES:
        raise UserError(f"family {modality[:40]!r} is not one of text, {', '.join(MODALITIES)}")
    if regime not in REGIMES:
        raise UserError(f"regime {regime[:40]!r} is not one of {', '.join(REGIMES)}")
    between = spec.projector
    if between is None:
        raise UserError(f"{spec.name} has no projector for {modality}; take a preset projector-... or a variant ({', '.join(LADDER)})")
    if between.input_size % HEADS:
        raise UserError(f"the projector's input_size {between.input_size} is no multiple of the encoder's {HEADS} heads")
    return ProjectedLM(spec, between, modality, regime)


def parts_of(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    for name, parameter in model.named_parameters():
        part = next((part for part in name.split(".") if part in ("encoder", "projector", "backbone")), "backbone")
        yield part, parameter


def initial_scale(module: nn.Module) -> float | None:
    weight = getattr(module, "weight", None)
    if isinstance(module, TransposedLinear):
        return float(module.weight.shape[0] ** -0.5)
    return None if weight is None or weight.dim() < 2 else float(weight[0].numel() ** -0.5)
