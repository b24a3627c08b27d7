# train/optimizer.py without its comments
from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Optimizer

from trainwright.job import Job


def make_optimizer(model: nn.Module, job: Job) -> AdamW:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups: list[dict[str, Any]] = [{"params": trained}]
    if job.decay == "matrices":
        groups = [{"params": [p for p in trained if p.dim() > 1]}, {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0}]
    return AdamW(
        [group for group in groups if group["params"]],
        lr=learning_rate(job, 1),
        betas=(job.beta1, job.beta2),
        eps=job.eps,
        weight_decay=job.weight_decay,
        fused=True,
    )


def learning_rate(job: Job, step: int) -> float:
    if step <= job.warmup_steps:
        return job.learning_rate * step / job.warmup_steps
    if job.schedule == "constant" or job.last_step == job.warmup_steps:
        return job.learning_rate
    passed = min((step - job.warmup_steps) / (job.last_step - job.warmup_steps), 1.0)
    share = (1 + math.cos(math.pi * passed)) / 2 if job.schedule == "cosine" else 1 - passed
    return job.learning_rate * (job.min_lr_ratio + (1 - job.min_lr_ratio) * share)


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def gradient_norm(parameters: Iterable[nn.Parameter]) -> float:
    gradients = [p.grad for p in parameters if p.grad is not None]
    total = _squares(g for g in gradients if not isinstance(g, DTensor))
    by_mesh: dict[tuple[DeviceMesh, tuple[int, ...]], list[Tensor]] = {}
    for gradient in gradients:
        if isinstance(gradient, DTensor):
            cut = tuple(axis for axis, placement in enumerate(gradient.placements) if placement.is_shard())
            by_mesh.setdefault((gradient.device_mesh, cut), []).append(gradient.to_local())
    for (mesh, axes), shards in by_mesh.items():
        part = _squares(shards).to(mesh.device_type)
        for axis in axes:
            dist.all_reduce(part, group=mesh.get_group(axis))
        total += part.cpu()
    return float(total.sqrt())


def _squares(gradients: Iterable[Tensor]) -> Tensor:
    return sum(map(_square, gradients), torch.zeros((), dtype=torch.float64))


def _square(gradient: Tensor) -> Tensor:
    rows = torch.linalg.vector_norm(gradient, dim=-1, dtype=torch.float32) if gradient.dim() > 1 else gradient
    norm: Tensor = torch.linalg.vector_norm(rows, dtype=torch.float64)
    return norm.square().cpu()


def clip(parameters: Iterable[nn.Parameter], norm: float, limit: float | None) -> None:
    if limit is None or norm <= limit:
        return
    held = [p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad for p in parameters if p.grad is not None]
    torch._foreach_mul_(held, limit / (norm + 1e-6))
