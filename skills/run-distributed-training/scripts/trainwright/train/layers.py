# train/layers.py without its comments
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainwright.parts import Experts, Mlp, Norm, Router

M = TypeVar("M", bound=nn.Module)
tanh_gelu = functools.partial(functional.gelu, approximate="tanh")
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_python": functional.gelu,
    "gelu_new": tanh_gelu,
    "gelu_fast": tanh_gelu,
    "gelu_pytorch_tanh": tanh_gelu,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": functional.relu,
    "relu2": lambda x: functional.relu(x).square(),
    "tanh": torch.tanh,
}


MADE: dict[tuple[type[nn.Module], str], Any] = {}


def named(kind: type[M], name: str) -> type[M]:
    if (kind, name) not in MADE:
        MADE[kind, name] = type(name, (kind,), {"__doc__": kind.__doc__, "__module__": kind.__module__})
    found: type[M] = MADE[kind, name]
    return found


class ShiftedRMSNorm(nn.Module):

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.weight.shape, 1 + self.weight, self.eps)


NORMS = (nn.RMSNorm, nn.LayerNorm)


def make_norm(norm: Norm, width: int) -> nn.Module:
    if norm.kind == "layer":
        return nn.LayerNorm(width, eps=norm.eps, elementwise_affine=norm.weight, bias=norm.bias)
    if norm.shifted:
        return ShiftedRMSNorm(width, norm.eps)
    return nn.RMSNorm(width, eps=norm.eps, elementwise_affine=norm.weight)


class TransposedLinear(nn.Module):

    def __init__(self, size: int, out: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, out))
        self.bias = nn.Parameter(torch.empty(out)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight.t(), self.bias)


def make_linear(size: int, out: int, bias: bool, transposed: bool = False) -> nn.Module:
    return TransposedLinear(size, out, bias) if transposed else nn.Linear(size, out, bias=bias)


class MLP(nn.Module):

    def __init__(self, mlp: Mlp, width: int, transposed: bool = False) -> None:
        super().__init__()
        self.act, self.fused = ACTIVATIONS[mlp.activation], mlp.gated and mlp.fused
        self.gate_proj = make_linear(width, mlp.size, mlp.bias, transposed) if mlp.gated and not mlp.fused else None
        self.up_proj = make_linear(width, 2 * mlp.size if self.fused else mlp.size, mlp.bias, transposed)
        self.down_proj = make_linear(mlp.size, width, mlp.bias, transposed)

    def forward(self, x_bth: Tensor) -> Tensor:
        if self.gate_proj is not None:
            inner_btf = self.act(self.gate_proj(x_bth)) * self.up_proj(x_bth)
        elif self.fused:
            gate_btf, up_btf = self.up_proj(x_bth).chunk(2, dim=-1)
            inner_btf = self.act(gate_btf) * up_btf
        else:
            inner_btf = self.act(self.up_proj(x_bth))
        out: Tensor = self.down_proj(inner_btf)
        return out


class MixtureOfExperts(nn.Module):

    def __init__(self, experts: Experts, width: int) -> None:
        super().__init__()
        self.router, self.num, self.per_token, self.act = experts.router, experts.num, experts.per_token, ACTIVATIONS[experts.activation]
        self.gate = nn.Linear(width, experts.num, bias=False)
        self.gate_up_proj = nn.Parameter(torch.empty(experts.num, 2 * experts.size, width))
        self.down_proj = nn.Parameter(torch.empty(experts.num, width, experts.size))
        self.shared = MLP(experts.shared, width) if experts.shared else None
        self.shared_gate = nn.Linear(width, 1, bias=False) if experts.shared_gate else None

    def forward(self, x_bth: Tensor) -> Tensor:
        x_rh = x_bth.flatten(0, -2)
        weights_rc, chosen_rc = choose(self.router, self.gate(x_rh).float(), self.per_token)
        out_rh = self._routed(x_rh, weights_rc.to(x_rh.dtype), chosen_rc)
        if self.shared is not None:
            shared_rh = self.shared(x_rh)
            out_rh = out_rh + (shared_rh if self.shared_gate is None else torch.sigmoid(self.shared_gate(x_rh)) * shared_rh)
        return out_rh.view_as(x_bth)

    def _routed(self, x_rh: Tensor, weights_rc: Tensor, chosen_rc: Tensor) -> Tensor:
        choices = chosen_rc.flatten()
        order = choices.argsort(stable=True)
        sizes = torch.bincount(choices, minlength=self.num).tolist()
        copies_h = x_rh[:, None].expand(-1, self.per_token, -1).reshape(-1, x_rh.shape[-1])
        parts = torch.split(copies_h[order], sizes)
        passed = [
            functional.linear(self._act(functional.linear(part, up)), down)
            for part, up, down in zip(parts, self.gate_up_proj.unbind(), self.down_proj.unbind(), strict=True)
        ]
        returned_rch = torch.cat(passed)[order.argsort()].view(*chosen_rc.shape, x_rh.shape[-1])
        return (returned_rch * weights_rc[..., None]).sum(dim=1)

    def _act(self, both: Tensor) -> Tensor:
        gate, up = both.chunk(2, dim=-1)
        return self.act(gate) * up


def choose(router: Router, logits_re: Tensor, per_token: int) -> tuple[Tensor, Tensor]:
    scores_re = logits_re.softmax(dim=-1) if router.score == "softmax" else logits_re.sigmoid()
    open_re = scores_re
    if router.groups > 1:
        grouped = scores_re.view(len(scores_re), router.groups, -1)
        best = 1 if router.score == "softmax" else min(2, grouped.shape[-1])
        kept = grouped.topk(best, dim=-1).values.sum(dim=-1).topk(router.kept_groups, dim=-1).indices
        closed = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter(1, kept, False)
        open_re = grouped.masked_fill(closed[..., None], -1.0).view_as(scores_re)
    chosen_rc = open_re.topk(per_token, dim=-1).indices
    weights_rc = scores_re.gather(1, chosen_rc)
    if router.normalised:
        weights_rc = weights_rc / (weights_rc.sum(dim=-1, keepdim=True) + (1e-20 if router.score == "sigmoid" else 0.0))
    return weights_rc * router.scaling, chosen_rc
