"""The update: AdamW, its learning rate at each step, the norm of the whole gradient, and clipping by it."""

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
    """AdamW over what trains, in its fused form: the same update, no temporaries of a parameter's size, on every device."""
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
    """The learning rate of `step` (from 1): a function of the job and the step alone, so there is no state to save.

    Warm-up rises in equal parts to the full rate at `warmup_steps`; then it falls to `min_lr_ratio` of it, which the run's
    own last step has: along half a cosine, or along a line.
    """
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
    """The 2-norm of the whole gradient, the same on every rank and under every strategy.

    Rows are reduced in fp32, then summed in float64: one fp32 sum over millions of squares is off by several 1e-5. The
    squares of a sharded gradient are summed over the ranks that hold its shards, and over no others: replicas count once.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    total = _squares(g for g in gradients if not isinstance(g, DTensor))
    by_mesh: dict[tuple[DeviceMesh, tuple[int, ...]], list[Tensor]] = {}
    for gradient in gradients:
        if isinstance(gradient, DTensor):
            cut = tuple(axis for axis, placement in enumerate(gradient.placements) if placement.is_shard())
            by_mesh.setdefault((gradient.device_mesh, cut), []).append(gradient.to_local())
    for (mesh, axes), shards in by_mesh.items():
        part = _squares(shards).to(mesh.device_type)  # offloaded shards lie on the CPU, the group speaks through the mesh's device
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
    """Scale every gradient by limit / norm where the norm of the whole gradient is above the limit; local shards in place.

    The same rule as torch's clip_grad_norm_ and DeepSpeed's: 1e-6 keeps a norm of nothing from dividing.
    """
    if limit is None or norm <= limit:
        return
    held = [p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad for p in parameters if p.grad is not None]
    torch._foreach_mul_(held, limit / (norm + 1e-6))
