"""How long a rank stands in collectives: communication that computing does not hide.

Measured on CPU (gloo), where a collective holds the thread that waits for it:
- each wait for a torch.distributed call made from Python: gathers and scatters of FSDP and ZeRO, norms, sums, averages;
- under DDP, whose reducer waits in C++, the end of a backward from the moment autograd has no gradient left to compute.

Not seen: DDP's waits in a forward, for its buffers and, in a run's second step, for the new order of its buckets.

Not measured, null in the records: on CUDA and XPU a wait is queued on the device, and the host goes on. A rank that waits
least is the one that the others wait for.
"""

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
    """Seconds in collectives since `clear`; None where they cannot be seen. Waits inside one another count once."""

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
        """Time every `Work.wait` of this process from now on; nothing happens where waits cannot be seen."""
        if self.measured and self._wait is None:
            self._wait = original = Work.wait
            Work.wait = lambda work, *arguments, **options: self._timed(original, work, *arguments, **options)  # type: ignore[method-assign]

    def remove(self) -> None:
        if self._wait is not None:
            Work.wait, self._wait = self._wait, None  # type: ignore[method-assign]

    @contextmanager
    def backward(self, model: nn.Module, loss: Tensor) -> Iterator[None]:
        """Around `loss.backward()`: under DDP the part of it in which nothing is computed any more counts as waiting."""
        if self._wait is None or not isinstance(model, DistributedDataParallel):
            yield
            return
        computed: list[float] = []
        engine = torch.autograd.Variable._execution_engine
        # Callbacks run in the order they came, and DDP's, which waits, comes later than the loss's own gradient.
        handle = loss.register_hook(lambda gradient: engine.queue_callback(lambda: computed.append(time.perf_counter())))  # type: ignore[no-untyped-call]
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
