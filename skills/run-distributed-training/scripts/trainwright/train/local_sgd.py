# train/local_sgd.py without its comments
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist


class LocalSGD(nn.Module):

    def __init__(self, module: nn.Module, period: int) -> None:
        super().__init__()
        self.module, self.period = module, period
        self.group = dist.group.WORLD
        self.apart = 0

    def forward(self, *args: Any) -> Any:
        return self.module(*args)

    def stepped(self, last: bool) -> bool:
        self.apart += 1
        if self.apart < self.period and not last:
            return False
        self.average()
        return True

    @torch.no_grad()
    def average(self) -> None:
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for tensor in (*self.module.parameters(), *self.module.buffers()):
            if tensor.is_floating_point() and (tensor.requires_grad or not isinstance(tensor, nn.Parameter)):
                by_dtype.setdefault(tensor.dtype, []).append(tensor.data)
        for tensors in by_dtype.values():
            flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
            dist.all_reduce(flat, group=self.group)
            flat /= dist.get_world_size(self.group)
            parts = torch.split(flat, [tensor.numel() for tensor in tensors])
            torch._foreach_copy_(tensors, [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)])
        self.apart = 0
