# train/attention.py without its comments
from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainwright.parts import Attention, Latent
from trainwright.train.layers import make_linear, make_norm
from trainwright.train.positions import rotate


class SelfAttention(nn.Module):

    def __init__(self, attention: Attention, width: int, transposed: bool = False, causal: bool = True) -> None:
        super().__init__()
        self.attention, self.causal = attention, causal
        sizes = (attention.query_size, attention.key_size, attention.value_size)
        self.qkv_proj = make_linear(width, sum(sizes), attention.qkv_bias, transposed) if attention.fused else None
        if not attention.fused:
            self.q_proj, self.k_proj, self.v_proj = (make_linear(width, size, attention.qkv_bias, transposed) for size in sizes)
        self.o_proj = make_linear(attention.out_size, width, attention.out_bias, transposed)
        norm, per_head = attention.qk_norm, attention.qk_norm_per_head
        self.q_norm = make_norm(norm, attention.head_dim if per_head else attention.query_size) if norm else None
        self.k_norm = make_norm(norm, attention.head_dim if per_head else attention.key_size) if norm else None

    def forward(self, x_bth: Tensor, cos_td: Tensor | None = None, sin_td: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        a = self.attention
        query_bth, key_bth, value_bth = self._project(x_bth)
        query_bntd = self._heads(query_bth, a.num_heads, a.head_dim, self.q_norm, cos_td, sin_td)
        key_bktd = self._heads(key_bth, a.num_kv_heads, a.head_dim, self.k_norm, cos_td, sin_td)
        value_bktd = split(value_bth, a.num_kv_heads, a.value_dim)
        mixed_bntd = mix(a, query_bntd, key_bktd, value_bktd, mask, self.causal)
        out: Tensor = self.o_proj(mixed_bntd.transpose(1, 2).flatten(2))
        return out

    def _project(self, x_bth: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a = self.attention
        if self.qkv_proj is None:
            found = self.q_proj(x_bth), self.k_proj(x_bth), self.v_proj(x_bth)
        else:
            found = self.qkv_proj(x_bth).split((a.query_size, a.key_size, a.value_size), dim=-1)
        if a.clip is None:
            return found
        query, key, value = (x.clamp(-a.clip, a.clip) for x in found)
        return query, key, value

    def _heads(self, x_bth: Tensor, heads: int, dim: int, norm: nn.Module | None, cos: Tensor | None, sin: Tensor | None) -> Tensor:
        whole = norm is not None and not self.attention.qk_norm_per_head
        x_bntd = split(norm(x_bth) if whole and norm is not None else x_bth, heads, dim)
        if norm is not None and not whole:
            x_bntd = norm(x_bntd)
        return x_bntd if cos is None or sin is None else rotate(x_bntd, cos, sin)


class LatentAttention(nn.Module):

    def __init__(self, attention: Attention, latent: Latent, width: int) -> None:
        super().__init__()
        a = self.attention = attention
        self.latent = latent
        rank = latent.query_rank
        self.q_a_proj = nn.Linear(width, rank, bias=a.qkv_bias) if rank else None
        self.q_a_norm = make_norm(latent.norm, rank) if rank else None
        self.q_proj = nn.Linear(rank or width, a.query_size, bias=False)
        self.kv_a_proj = nn.Linear(width, latent.kv_rank + latent.rope_dim, bias=a.qkv_bias)
        self.kv_a_norm = make_norm(latent.norm, latent.kv_rank)
        self.kv_b_proj = nn.Linear(latent.kv_rank, a.num_heads * (a.head_dim - latent.rope_dim + a.value_dim), bias=False)
        self.o_proj = nn.Linear(a.out_size, width, bias=a.out_bias)

    def forward(self, x_bth: Tensor, cos_td: Tensor, sin_td: Tensor, mask: Tensor | None = None) -> Tensor:
        a, turned = self.attention, self.latent.rope_dim
        plain = a.head_dim - turned
        query_in = x_bth if self.q_a_proj is None or self.q_a_norm is None else self.q_a_norm(self.q_a_proj(x_bth))
        query_bntd = split(self.q_proj(query_in), a.num_heads, a.head_dim)
        latent_btl, shared_btd = torch.split(self.kv_a_proj(x_bth), [self.latent.kv_rank, turned], dim=-1)
        both_bntd = split(self.kv_b_proj(self.kv_a_norm(latent_btl)), a.num_heads, plain + a.value_dim)
        key_plain, value_bntd = torch.split(both_bntd, [plain, a.value_dim], dim=-1)
        key_turned = rotate(shared_btd[:, None], cos_td, sin_td).expand(-1, a.num_heads, -1, -1)
        query_bntd = torch.cat((query_bntd[..., :plain], rotate(query_bntd[..., plain:], cos_td, sin_td)), dim=-1)
        mixed_bntd = mix(a, query_bntd, torch.cat((key_plain, key_turned), dim=-1), value_bntd, mask, True)
        out: Tensor = self.o_proj(mixed_bntd.transpose(1, 2).flatten(2))
        return out


def split(x_bth: Tensor, heads: int, dim: int) -> Tensor:
    return x_bth.view(x_bth.shape[0], x_bth.shape[1], heads, dim).transpose(1, 2)


def mix(a: Attention, query_bntd: Tensor, key_bktd: Tensor, value_bktd: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    if a.softcap is not None:
        return capped(a, query_bntd, key_bktd, value_bktd, mask)
    grouped = a.num_kv_heads != a.num_heads
    if mask is not None and mask.is_floating_point():
        mask = mask.to(query_bntd.dtype)
    return functional.scaled_dot_product_attention(
        query_bntd, key_bktd, value_bktd, attn_mask=mask, is_causal=causal and mask is None, scale=a.scale, enable_gqa=grouped
    )


def capped(a: Attention, query_bntd: Tensor, key_bktd: Tensor, value_bktd: Tensor, mask: Tensor | None) -> Tensor:
    repeats, cap = a.num_heads // a.num_kv_heads, a.softcap or 1.0
    key_bntd, value_bntd = (x.repeat_interleave(repeats, dim=1) if repeats > 1 else x for x in (key_bktd, value_bktd))
    scores = query_bntd @ key_bntd.transpose(-1, -2) * (a.scale or a.head_dim**-0.5)
    scores = torch.tanh(scores / cap) * cap
    tokens = scores.shape[-1]
    seen = mask if mask is not None else torch.ones(tokens, tokens, dtype=torch.bool, device=scores.device).tril()
    return scores.masked_fill(~seen, -torch.inf).softmax(dim=-1, dtype=torch.float32).to(value_bntd.dtype) @ value_bntd
