# train/tracker.py without its comments
from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from trainwright.train import zero

CATEGORIES = {
    "Parameter": "parameters",
    "Sharded Param": "parameters",
    "Unsharded Param": "unsharded_parameters",
    "All Gather": "all_gather",
    "Buffer": "buffers",
    "Gradient": "gradients",
    "Sharded Grad": "gradients",
    "Unsharded Grad": "unsharded_gradients",
    "Reduce Scatter": "reduce_scatter",
    "Activation": "activations",
    "Temp": "temporaries",
    "Optstate": "optimizer_states",
    "OptState": "optimizer_states",
    "Inputs": "inputs",
    "Other": "inputs",
}

Snapshot = dict[str, int]


class Tracker:

    def __init__(self, device: torch.device, steps: int) -> None:
        self.device, self.steps = device, steps
        self.peak_bytes: int | None = None
        self.categories: Snapshot | None = None
        self.step_bytes: int | None = None
        self._torch: Any = MemTracker() if device.type == "cpu" and steps else None
        self._buckets = 0
        self._before_step: Snapshot = {}

    @contextmanager
    def construction(self) -> Iterator[None]:
        try:
            with self._torch or nullcontext():
                yield
        finally:
            self._keep(self._peak())

    def follow(self, model: nn.Module, optimizer: Optimizer) -> str:
        if self._torch is None:
            return ""
        if zero.is_engine(model):
            self._torch = None
            return "torch's trackers do not see the flat buffers that DeepSpeed keeps its tensors in"
        if isinstance(model, FSDPModule):
            self._torch = FSDPMemTracker(model, optimizer)
            return ""
        self._torch.track_external(model, optimizer)
        optimizer.register_step_pre_hook(lambda *_: self._name_gradients(model))
        if isinstance(model, DistributedDataParallel):
            model.module.register_forward_pre_hook(self._see_buckets)
        return ""

    @contextmanager
    def step(self, number: int, inputs: Sequence[Tensor]) -> Iterator[None]:
        self.step_bytes = None
        if self.device.type != "cpu":
            getattr(torch, self.device.type).reset_peak_memory_stats(self.device)
        if self._torch is None or number > self.steps:
            yield
            self._keep(self._peak() if self.device.type != "cpu" else {})
            return
        self._torch.reset_mod_stats()
        self._before_step, self._buckets = {}, 0
        try:
            with self._torch:
                self._hand_over(inputs)
                yield
        finally:
            self._keep(max(self._before_step, self._peak(), key=_total))

    def next_round(self) -> None:
        if self._torch is not None:
            self._torch.reset_mod_stats()

    def _hand_over(self, inputs: Sequence[Tensor]) -> None:
        if isinstance(self._torch, FSDPMemTracker):
            self._torch.track_inputs(tuple(inputs))
        else:
            self._torch.track_external(*inputs)

    def _peak(self) -> Snapshot:
        if self.device.type != "cpu":
            return {"": getattr(torch, self.device.type).max_memory_allocated(self.device)}
        return self._snapshot("peak") if self._torch is not None else {}

    def _snapshot(self, which: str) -> Snapshot:
        counted = self._torch.get_tracker_snapshot(which).get(self.device, {})
        named: Snapshot = {}
        for kind, size in counted.items():
            if kind != "Total":
                named[CATEGORIES[kind.value]] = named.get(CATEGORIES[kind.value], 0) + size
        return named

    def _see_buckets(self, *_: object) -> None:
        self._buckets = self._snapshot("current").get("activations", 0)

    def _name_gradients(self, model: nn.Module) -> None:
        passed = self._snapshot("peak")
        if self._buckets:
            passed["activations"] -= self._buckets
            passed["gradients"] += self._buckets
        self._before_step = passed
        self._torch.track_external(model)

    def _keep(self, peak: Snapshot) -> None:
        if not peak:
            return
        self.step_bytes = _total(peak)
        if self.step_bytes > (self.peak_bytes or 0):
            self.peak_bytes = self.step_bytes
            self.categories = {name: size for name, size in peak.items() if size} if "" not in peak else None


def _total(snapshot: Snapshot) -> int:
    return sum(snapshot.values())
