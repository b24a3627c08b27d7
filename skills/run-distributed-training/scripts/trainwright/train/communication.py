# train/communication.py without its comments
from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.distributed_c10d import Work
from torch.nn.parallel import DistributedDataParallel


class Waits:

    def __init__(self, device: torch.device) -> None:
        self.measured = device.type == "cpu"
        self.count = 0
        self._seconds = 0.0
        self._inside = False
        self._wait: Callable[..., Any] | None = None

    @property
    def seconds(self) -> float | None:
        return self._seconds if self.measured else None

    def clear(self) -> None:
        self.count, self._seconds = 0, 0.0

    def install(self) -> None:
        if self.measured and self._wait is None:
            self._wait = original = Work.wait
            Work.wait = lambda work, *arguments, **options: self._timed(original, work, *arguments, **options)

    def remove(self) -> None:
        if self._wait is not None:
            Work.wait, self._wait = self._wait, None

    @contextmanager
    def backward(self, model: nn.Module, loss: Tensor) -> Iterator[None]:
        if self._wait is None or not isinstance(model, DistributedDataParallel):
            yield
            return
        computed: list[float] = []
        engine = torch.autograd.Variable._execution_engine
        handle = loss.register_hook(lambda gradient: engine.queue_callback(lambda: computed.append(time.perf_counter())))
        try:
            yield
        finally:
            handle.remove()
        if computed and model.require_backward_grad_sync:
            self.count += 1
            self._seconds += time.perf_counter() - computed[-1]

    def _timed(self, wait: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if self._inside:
            return wait(*arguments, **options)
        self._inside = True
        start = time.perf_counter()
        try:
            return wait(*arguments, **options)
        finally:
            self.count += 1
            self._seconds += time.perf_counter() - start
            self._inside = False
