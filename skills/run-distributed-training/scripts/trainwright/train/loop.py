"""The training loop: timed phases, AdamW, the gradient norm, one record a step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.tensor import DTensor
from torch.optim import AdamW

from trainwright.job import Job
from trainwright.model import ModelSpec
from trainwright.strategy import Strategy
from trainwright.train import world
from trainwright.train.data import Corpus, batch
from trainwright.train.memory import resident_bytes
from trainwright.train.parallelize import precision
from trainwright.train.records import Records
from trainwright.train.tracker import Tracker


class Clock:
    """What the worker does now (`phase`), and how long each phase of this step took (`seconds`)."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.phase = "setup"
        self.seconds: dict[str, float] = {}

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Time the block; after an exception `phase` still names where it happened."""
        self.phase = phase
        start = self.now()
        yield
        self.seconds[phase] = self.now() - start

    def now(self) -> float:
        world.synchronize(self.device)
        return time.perf_counter()


def make_optimizer(model: nn.Module, learning_rate: float) -> AdamW:
    """AdamW in its fused form: the same update, no temporaries of a parameter's size, on every device."""
    return AdamW(model.parameters(), lr=learning_rate, fused=True)


def gradient_norm(parameters: list[nn.Parameter]) -> float:
    """The 2-norm of the whole gradient, the same on every rank and under every strategy.

    Rows are reduced in fp32, then summed in float64: one fp32 sum over millions of squares is off by several 1e-5. The
    local parts of sharded gradients are summed over the ranks; replicated ones count once.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    sharded = [g for g in gradients if isinstance(g, DTensor)]
    total = sum(map(_square, (g for g in gradients if not isinstance(g, DTensor))), torch.zeros((), dtype=torch.float64))
    if sharded:  # offloaded shards lie on the CPU, the group speaks through the mesh's device
        part = sum((_square(g.to_local()) for g in sharded), torch.zeros((), dtype=torch.float64)).to(sharded[0].device_mesh.device_type)
        dist.all_reduce(part)
        total += part.cpu()
    return float(total.sqrt())


def _square(gradient: Tensor) -> Tensor:
    rows = torch.linalg.vector_norm(gradient, dim=-1, dtype=torch.float32) if gradient.dim() > 1 else gradient
    norm: Tensor = torch.linalg.vector_norm(rows, dtype=torch.float64)
    return norm.square().cpu()


@dataclass(frozen=True, slots=True)
class Training:
    """A live model and everything that its steps need."""

    model: nn.Module
    optimizer: AdamW
    spec: ModelSpec
    strategy: Strategy
    job: Job
    corpus: Corpus
    device: torch.device
    clock: Clock
    tracker: Tracker


def train(training: Training, records: Records) -> None:
    """Run the job's steps; each becomes a line in `records` and one on stdout."""
    for number in range(1, training.job.steps + 1):
        row = {"step": number, **run_step(training, number), "rss_bytes": resident_bytes()}
        records.step(row)
        shown = " ".join(f"{name}: {row[name]:.5g}" for name in ("loss", "grad_norm", "step_time_s"))
        print(f"step: {number} {shown}", flush=True)


def run_step(training: Training, number: int) -> dict[str, Any]:
    """One step, as the numbers of its record; loss and norm are those of the global batch."""
    job, clock, optimizer = training.job, training.clock, training.optimizer
    clock.seconds.clear()
    start = clock.now()
    with clock.during("data"):
        ids_bt, labels_bt = next_batch(training, number)
    with training.tracker.step(number, (ids_bt, labels_bt)):
        with clock.during("forward"), precision(training.strategy, training.device):
            loss = training.model(ids_bt, labels_bt)
        with clock.during("backward"):
            loss.backward()
        with clock.during("optimizer"):
            norm = gradient_norm(list(training.model.parameters()))
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        with clock.during("report"):
            mean = world.average(loss)
        del loss
    times = {f"{phase}_s": clock.seconds[phase] for phase in ("forward", "backward", "optimizer", "data")}
    measured = {"tokens": job.micro_batch * job.seq_len, "loss": mean, "grad_norm": norm, "memory_bytes": training.tracker.step_bytes}
    return {"step_time_s": clock.now() - start, **times, **measured}


def next_batch(training: Training, number: int) -> tuple[Tensor, Tensor]:
    """This rank's part of the global batch of step `number`: all ranks together read what one rank alone would."""
    job = training.job
    first = ((number - 1) * dist.get_world_size() + dist.get_rank()) * job.micro_batch
    ids_bt, labels_bt = batch(training.corpus, first, job.micro_batch, job.seq_len, training.spec.vocab_size)
    return ids_bt.to(training.device), labels_bt.to(training.device)
