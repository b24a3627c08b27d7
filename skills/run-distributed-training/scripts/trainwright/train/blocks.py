# train/blocks.py without its comments
from __future__ import annotations

import re

from torch import Tensor, nn

from trainwright.parts import Block, Experts
from trainwright.train.attention import LatentAttention, SelfAttention
from trainwright.train.layers import MLP, MixtureOfExperts, make_norm, named


class Layer(nn.Module):

    def __init__(self, block: Block, causal: bool = True, prefix: str = "") -> None:
        super().__init__()
        self.parallel = block.parallel
        has_after = "attention_out" in block.norms
        self.input_layernorm = self._norm(block, "attention_in")
        self.self_attn = make_attention(block, causal, prefix)
        self.post_attention_layernorm = self._norm(block, "attention_out" if has_after else "mlp_in")
        self.pre_feedforward_layernorm = self._norm(block, "mlp_in") if has_after else None
        self.post_feedforward_layernorm = self._norm(block, "mlp_out")
        self.mlp = make_mlp(block, prefix)
        self.has_after = has_after

    def _norm(self, block: Block, place: str) -> nn.Module | None:
        return make_norm(block.norm, block.width) if place in block.norms else None

    def forward(self, x_bth: Tensor, cos_td: Tensor | None = None, sin_td: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        before, after = (
            (self.pre_feedforward_layernorm, self.post_attention_layernorm)
            if self.has_after
            else (
                self.post_attention_layernorm,
                None,
            )
        )
        if self.parallel:
            read_bth = through(self.input_layernorm, x_bth)
            other_bth = read_bth if before is None else before(x_bth)
            both: Tensor = x_bth + self.self_attn(read_bth, cos_td, sin_td, mask) + self.mlp(other_bth)
            return both
        x_bth = x_bth + through(after, self.self_attn(through(self.input_layernorm, x_bth), cos_td, sin_td, mask))
        out: Tensor = x_bth + through(self.post_feedforward_layernorm, self.mlp(through(before, x_bth)))
        return out


def through(norm: nn.Module | None, x: Tensor) -> Tensor:
    if norm is None:
        return x
    out: Tensor = norm(x)
    return out


def make_layer(block: Block, class_name: str, causal: bool = True) -> nn.Module:
    return named(Layer, class_name)(block, causal, re.sub("(Decoder|Encoder)?(Layer|Block)$", "", class_name))


def make_attention(block: Block, causal: bool, prefix: str) -> nn.Module:
    attention, name = block.attention, f"{prefix}Attention"
    if attention.latent:
        return named(LatentAttention, name)(attention, attention.latent, block.width)
    return named(SelfAttention, name)(attention, block.width, block.transposed, causal)


def make_mlp(block: Block, prefix: str) -> nn.Module:
    if isinstance(block.mlp, Experts):
        return named(MixtureOfExperts, f"{prefix}SparseMoeBlock")(block.mlp, block.width)
    return named(MLP, f"{prefix}MLP")(block.mlp, block.width, block.transposed)
