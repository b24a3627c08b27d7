"""The reference models: a plain eager Llama decoder built from a ModelSpec, and its initialisation.

Shape suffixes: b micro batch, t tokens, h hidden, n query heads, k key/value heads, d head width, f feed-forward, v vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn import functional

from trainwright.errors import UserError
from trainwright.model import ModelSpec

INIT_STD = 0.02


class LlamaAttention(nn.Module):
    """Causal grouped-query attention. With torch 2.13 `enable_gqa` keeps the flash kernel on CPU too: no scores b n t t, and
    keys and values stay at k heads (measured: gradients agree with the float64 formula to 3e-6)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = spec.num_heads, spec.num_kv_heads, spec.head_dim
        self.q_proj = nn.Linear(spec.hidden_size, spec.query_size, bias=spec.attention_bias)
        self.k_proj = nn.Linear(spec.hidden_size, spec.kv_size, bias=spec.attention_bias)
        self.v_proj = nn.Linear(spec.hidden_size, spec.kv_size, bias=spec.attention_bias)
        self.o_proj = nn.Linear(spec.query_size, spec.hidden_size, bias=spec.attention_bias)

    def forward(self, x_bth: Tensor, cos_td: Tensor, sin_td: Tensor) -> Tensor:
        query_bntd = rotate(self._split(self.q_proj(x_bth), self.heads), cos_td, sin_td)
        key_bktd = rotate(self._split(self.k_proj(x_bth), self.kv_heads), cos_td, sin_td)
        value_bktd = self._split(self.v_proj(x_bth), self.kv_heads)
        grouped = self.kv_heads != self.heads
        mixed_bntd = functional.scaled_dot_product_attention(query_bntd, key_bktd, value_bktd, is_causal=True, enable_gqa=grouped)
        out: Tensor = self.o_proj(mixed_bntd.transpose(1, 2).flatten(2))
        return out

    def _split(self, x_bth: Tensor, heads: int) -> Tensor:
        return x_bth.view(x_bth.shape[0], x_bth.shape[1], heads, self.head_dim).transpose(1, 2)


class LlamaMLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(spec.hidden_size, spec.intermediate_size, bias=spec.mlp_bias)
        self.up_proj = nn.Linear(spec.hidden_size, spec.intermediate_size, bias=spec.mlp_bias)
        self.down_proj = nn.Linear(spec.intermediate_size, spec.hidden_size, bias=spec.mlp_bias)

    def forward(self, x_bth: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x_bth)) * self.up_proj(x_bth))
        return out


class LlamaDecoderLayer(nn.Module):
    """One block: pre-norm attention and pre-norm SwiGLU, each with a residual."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(spec.hidden_size, eps=spec.rms_norm_eps)
        self.self_attn = LlamaAttention(spec)
        self.post_attention_layernorm = nn.RMSNorm(spec.hidden_size, eps=spec.rms_norm_eps)
        self.mlp = LlamaMLP(spec)

    def forward(self, x_bth: Tensor, cos_td: Tensor, sin_td: Tensor) -> Tensor:
        x_bth = x_bth + self.self_attn(self.input_layernorm(x_bth), cos_td, sin_td)
        out: Tensor = x_bth + self.mlp(self.post_attention_layernorm(x_bth))
        return out


class LlamaForCausalLM(nn.Module):
    """Token ids and labels in, mean cross entropy out. A tied head reads the embedding's weight: there is no second parameter."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.head_dim, self.rope_theta = spec.head_dim, spec.rope_theta
        self.embed_tokens = nn.Embedding(spec.vocab_size, spec.hidden_size)
        self.layers = nn.ModuleList(LlamaDecoderLayer(spec) for _ in range(spec.num_layers))
        self.norm = nn.RMSNorm(spec.hidden_size, eps=spec.rms_norm_eps)
        self.lm_head = None if spec.tied_embeddings else nn.Linear(spec.hidden_size, spec.vocab_size, bias=False)

    def forward(self, ids_bt: Tensor, labels_bt: Tensor) -> Tensor:
        x_bth = self.embed_tokens(ids_bt)
        cos_td, sin_td = rotary_table(ids_bt.shape[1], self.head_dim, self.rope_theta, x_bth)
        for layer in self.layers:
            x_bth = layer(x_bth, cos_td, sin_td)
        x_bth = self.norm(x_bth)
        logits_btv = self.lm_head(x_bth) if self.lm_head is not None else functional.linear(x_bth, self.embed_tokens.weight)
        return functional.cross_entropy(logits_btv.float().flatten(0, 1), labels_bt.flatten())


def rotary_table(tokens: int, head_dim: int, theta: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin [t, d] of the rotary positions (RoFormer, arXiv 2104.09864), halves laid out as in Llama; dtype of `like`."""
    powers = torch.arange(0, head_dim, 2, device=like.device, dtype=torch.float32) / head_dim
    angles_tp = torch.outer(torch.arange(tokens, device=like.device, dtype=torch.float32), theta**-powers)
    angles_td = torch.cat((angles_tp, angles_tp), dim=-1)
    return angles_td.cos().to(like.dtype), angles_td.sin().to(like.dtype)


def rotate(x_bntd: Tensor, cos_td: Tensor, sin_td: Tensor) -> Tensor:
    """`x` with its (i, i + d/2) pairs turned by their position's angle."""
    first, second = x_bntd.chunk(2, dim=-1)
    return x_bntd * cos_td.to(x_bntd.dtype) + torch.cat((-second, first), dim=-1) * sin_td.to(x_bntd.dtype)


def build(spec: ModelSpec) -> LlamaForCausalLM:
    """The model on the meta device: no memory until `materialize`, so that it can be sharded first.

    Raises UserError for a model that these modules are not.
    """
    unlike = spec.unlike_llama or (() if spec.block_class == LlamaDecoderLayer.__name__ else (f"blocks of class {spec.block_class}",))
    if unlike:
        raise UserError(f"the reference trainer builds Llama's blocks, and {spec.name} has {', '.join(unlike)}")
    with torch.device("meta"):
        return LlamaForCausalLM(spec)


def materialize(model: nn.Module, device: torch.device, seed: int) -> None:
    """Allocate every parameter (its local shard only, where sharded) on `device` and initialise it.

    Each parameter is drawn whole on the CPU from its own generator, then cut: the values do not depend on strategy or world size.
    At most one whole parameter lives beside the shards.
    """
    model.to_empty(device=device)
    with torch.no_grad():
        for index, (name, parameter) in enumerate(model.named_parameters()):
            _fill(parameter, _initial(name, parameter.shape, torch.Generator().manual_seed((seed * 1_000_003 + index) % 2**63)))


def _initial(name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
    if name.endswith("bias"):
        return torch.zeros(shape)
    if "norm" in name:
        return torch.ones(shape)
    return torch.empty(shape).normal_(0.0, INIT_STD, generator=generator)


def _fill(parameter: Tensor, whole: Tensor) -> None:
    if isinstance(parameter, DTensor):  # src_data_rank None: every rank holds the whole already, nothing is sent
        whole = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None).to_local()
        parameter = parameter.to_local()
    parameter.copy_(whole)
