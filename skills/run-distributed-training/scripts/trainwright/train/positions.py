# train/positions.py without its comments
from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from trainwright.errors import UserError
from trainwright.parts import Attention, Decoder
from trainwright.rotary import Rotary, Stretch

KINDS = ("", "linear", "dynamic", "llama3", "yarn", "longrope", "su")


@dataclass(frozen=True, slots=True)
class Tables:

    cos: Tensor | None = None
    sin: Tensor | None = None
    mask: Tensor | None = None


def kinds(decoder: Decoder) -> list[Attention]:
    return list(dict.fromkeys(run.block.attention for run in decoder.runs))


def tables(decoder: Decoder, tokens: int, like: Tensor) -> list[Tables]:
    turned: dict[tuple[Rotary, int], tuple[Tensor, Tensor]] = {}
    found = []
    for attention in kinds(decoder):
        cos = sin = None
        if attention.rotary:
            key = attention.rotary, attention.rotary_dim
            cos, sin = turned[key] = turned.get(key) or rotary_table(tokens, *key, like)
        found.append(Tables(cos, sin, mask(attention, decoder.family, tokens, like)))
    return found


def rotary_table(tokens: int, rotary: Rotary, dim: int, like: Tensor) -> tuple[Tensor, Tensor]:
    angles_tp = torch.outer(torch.arange(tokens, device=like.device, dtype=torch.float32), frequencies(rotary, dim, tokens, like.device))
    angles_td = torch.cat((angles_tp, angles_tp), dim=-1)
    factor = rotary.stretch.attention if rotary.stretch else 1.0
    if factor == 1.0:
        return angles_td.cos().to(like.dtype), angles_td.sin().to(like.dtype)
    return (angles_td.cos() * factor).to(like.dtype), (angles_td.sin() * factor).to(like.dtype)


def rotate(x_bntd: Tensor, cos_td: Tensor, sin_td: Tensor) -> Tensor:
    width = cos_td.shape[-1]
    if width < x_bntd.shape[-1]:
        return torch.cat((rotate(x_bntd[..., :width], cos_td, sin_td), x_bntd[..., width:]), dim=-1)
    first, second = x_bntd.chunk(2, dim=-1)
    return x_bntd * cos_td.to(x_bntd.dtype) + torch.cat((-second, first), dim=-1) * sin_td.to(x_bntd.dtype)


def frequencies(rotary: Rotary, dim: int, tokens: int, device: torch.device) -> Tensor:
    powers = torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim
    plain, stretch = rotary.theta**-powers, rotary.stretch
    if stretch is None or rotary.scaling == "dynamic":
        return plain
    if rotary.scaling == "linear":
        return plain / stretch.factor
    if rotary.scaling == "llama3":
        return _llama3(plain, stretch)
    if rotary.scaling == "yarn":
        return _yarn(plain, stretch, rotary.theta, dim)
    divisors = stretch.long if tokens > stretch.original else stretch.short
    return plain / torch.tensor(divisors, device=device, dtype=torch.float32)


def _llama3(plain_p: Tensor, s: Stretch) -> Tensor:
    share = (s.original * plain_p / (2 * math.pi) - s.low) / (s.high - s.low)
    share = share.clamp(0, 1)
    return (1 - share) * plain_p / s.factor + share * plain_p


def _yarn(plain_p: Tensor, s: Stretch, theta: float, dim: int) -> Tensor:
    low, high = (dim * math.log(s.original / (turns * 2 * math.pi)) / (2 * math.log(theta)) for turns in (s.fast, s.slow))
    if s.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    pairs = torch.arange(dim // 2, device=plain_p.device, dtype=torch.float32)
    ramp = ((pairs - low) / (high - low if high != low else 0.001)).clamp(0, 1)
    return plain_p / s.factor * ramp + plain_p * (1 - ramp)


def judge(rotary: Rotary, dim: int) -> None:
    if rotary.scaling not in KINDS:
        raise UserError(f"the reference trainer knows no rotary scaling {rotary.scaling!r}; it knows {', '.join(KINDS[1:])}")
    if rotary.scaling and rotary.stretch is None:
        raise UserError(f"the config names rotary scaling {rotary.scaling} and lacks its numbers, factor among them")
    stretch = rotary.stretch
    if stretch and rotary.scaling in ("longrope", "su") and not len(stretch.short) == len(stretch.long) == dim // 2:
        raise UserError(f"rotary scaling {rotary.scaling} needs short_factor and long_factor of {dim // 2} numbers each")


def mask(attention: Attention, family: str, tokens: int, like: Tensor) -> Tensor | None:
    window = attention.window if attention.window is not None and attention.window < tokens else None
    if window is None and not attention.alibi:
        return None
    place = torch.arange(tokens, device=like.device)
    distance_tt = place[:, None] - place
    seen_tt = (distance_tt >= 0) if window is None else (distance_tt >= 0) & (distance_tt < window)
    if not attention.alibi:
        return seen_tt
    slopes_n = torch.tensor(alibi_slopes(family, attention.num_heads, attention.head_dim), device=like.device)
    bias_ntt = -slopes_n[:, None, None] * distance_tt
    return bias_ntt.masked_fill(~seen_tt, -torch.inf).to(like.dtype)


def alibi_slopes(family: str, heads: int, head_dim: int) -> list[float]:
    power = 2 ** (math.ceil(math.log2(heads)) if family == "mpt" else math.floor(math.log2(heads)))
    slopes = [2 ** (-8 * i / power) for i in range(1, power + 1)]
    if family == "mpt":
        return slopes if power == heads else (slopes[1::2] + slopes[::2])[:heads]
    slopes += [2 ** (-8 * i / (2 * power)) for i in range(1, 2 * (heads - power) + 1, 2)]
    return [slope * head_dim**-0.5 for slope in slopes] if family == "falcon" else slopes
