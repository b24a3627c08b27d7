"""The training loop: rounds of forward and backward, one update, one record a step."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.algorithms.join import Join
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from trainwright.heartbeat import Heartbeat
from trainwright.job import Job
from trainwright.strategy import Strategy
from trainwright.train import world, zero
from trainwright.train.communication import Waits
from trainwright.train.data import Batch
from trainwright.train.local_sgd import LocalSGD
from trainwright.train.memory import resident_bytes
from trainwright.train.optimizer import clip, gradient_norm, learning_rate, set_learning_rate
from trainwright.train.parallelize import precision
from trainwright.train.records import Records
from trainwright.train.samples import Done, Share, last_step, share
from trainwright.train.saving import Saver
from trainwright.train.tracker import Tracker


class Samples(Protocol):
    """Where the batches come from: one global order of samples, whatever the number of ranks."""

    def batch(self, first: int, count: int) -> Batch: ...
    def targets(self, first: int, count: int) -> int: ...
    def eval_batches(self, size: int = 32) -> Iterator[Batch]: ...


class NonFinite(Exception):
    """The loss or the gradient is no number any more; the message names rank and step. The weights were not updated with it."""


class Clock:
    """What the worker does now (`phase`), and how long each phase of this step took so far (`seconds`)."""

    def __init__(self, device: torch.device, heartbeat: Heartbeat | None = None) -> None:
        self.device = device
        self.heartbeat = heartbeat
        self.waits = Waits(device)
        self.phase = "setup"
        self.seconds: dict[str, float] = {}
        self._beat()

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Time the block; after an exception `phase` still names where it happened."""
        self.phase = phase
        self._beat()
        start = self.now()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + self.now() - start

    def begin(self, step: int) -> None:
        """A new step: its phases have taken no time yet."""
        self.seconds.clear()
        self.waits.clear()
        if self.heartbeat:
            self.heartbeat.step = step

    def _beat(self) -> None:
        if self.heartbeat:
            self.heartbeat.beat(self.phase)

    def now(self) -> float:
        world.synchronize(self.device)
        return time.perf_counter()


@dataclass(frozen=True, slots=True)
class Training:
    """A live model and everything that its steps need."""

    model: nn.Module
    optimizer: Optimizer
    strategy: Strategy
    job: Job
    data: Samples
    device: torch.device
    clock: Clock
    tracker: Tracker
    done: Done = field(default_factory=Done)

    @property
    def last_step(self) -> int:
        return last_step(self.job, self.done)


def train(training: Training, records: Records, saver: Saver | None = None) -> None:
    """Run the job's steps after those that are done; each becomes a line in `records` and one on stdout.

    Raises NonFinite after the record of a step whose loss or gradient is no number, Stopped after the step that a signal
    ended, UserError where a checkpoint cannot be written.
    """
    job = training.job
    for number in range(training.done.step + 1, training.last_step + 1):
        row, culprits = run_step(training, number)
        row = {"step": number, "first": number == training.done.step + 1, **row, "rss_bytes": resident_bytes()}
        if _evaluates(job, number, training.last_step):
            row["eval_loss"] = evaluate(training)
        records.step(row)
        shown = " ".join(f"{name}: {row[name]:.5g}" for name in ("loss", "grad_norm", "step_time_s"))
        print(f"step: {number} {shown}", flush=True)
        _stop_where_not_finite(training, row, culprits)
        if saver is None:
            continue
        with training.clock.during("checkpoint"):
            kept = saver.finished(number, training.last_step)
        if kept:
            records.checkpoint(kept)


def run_step(training: Training, number: int) -> tuple[dict[str, Any], list[int]]:
    """One step, as the numbers of its record (loss and norm are those of the global batch), and the ranks whose loss is no number."""
    clock, part = training.clock, share(training.job, number, dist.get_rank(), training.done)
    clock.begin(number)
    rate = _rate(training, number)
    start = clock.now()
    with clock.during("data"):
        batches = [training.data.batch(piece.first, piece.count) for piece in part.rounds if piece.count]
    with training.tracker.step(number, [tensor for batch in batches for tensor in _tensors(batch)]):
        loss, norm, culprits = (_joined_step if _joins(training, part) else _step)(training, number, part, batches)
    tokens = sum(batch.tokens for batch in batches)
    times = {f"{phase}_s": clock.seconds.get(phase, 0.0) for phase in ("forward", "backward", "optimizer", "data")}
    measured = {"tokens": tokens, "loss": loss, "grad_norm": norm, "memory_bytes": training.tracker.step_bytes}
    row = {"step_time_s": clock.now() - start, **times, **measured, "learning_rate": rate, "communication_s": clock.waits.seconds}
    return row | ({"averaging_s": clock.seconds["averaging"]} if "averaging" in clock.seconds else {}), culprits


def _tensors(batch: Batch) -> list[Tensor]:
    return [batch.ids, batch.labels, *batch.signals]


# --- one step -------------------------------------------------------------------------------------------------------


def _step(training: Training, number: int, part: Share, batches: list[Batch]) -> tuple[float, float, list[int]]:
    """All rounds and the update; no update where the loss is no number."""
    local = _rounds(training, part, batches)
    loss = _sum(local.clone())
    if not math.isfinite(loss):
        return loss, math.nan, _culprits(local)
    alone = isinstance(training.model, LocalSGD)
    norm = _update(training, number, bool(batches) or not alone)
    if alone:
        norm = _sum(torch.tensor(norm, dtype=torch.float64, device=training.device)) / dist.get_world_size()
    return loss, norm, []


def _joins(training: Training, part: Share) -> bool:
    """Whether DDP's Join stands in for the ranks without samples: they answer its collectives and train nothing.

    Join answers with zeros, so gradients that such a rank has from earlier rounds would be lost: then, and under every other
    strategy, it takes part with a sample that weighs nothing.
    """
    return isinstance(training.model, DistributedDataParallel) and part.idle_ranks > 0 and len(part.rounds) == 1


def _joined_step(training: Training, number: int, part: Share, batches: list[Batch]) -> tuple[float, float, list[int]]:
    """As `_step`; ranks that have no samples are sent the finished model as they leave. No other collective runs inside."""
    local, norm = torch.zeros((), dtype=torch.float64, device=training.device), 0.0
    with Join([training.model]):  # type: ignore[list-item] # DDP is Joinable
        if batches:
            local = _rounds(training, part, batches)
            norm = _update(training, number, True)
    first = torch.tensor(norm if dist.get_rank() == 0 else 0.0, dtype=torch.float64, device=training.device)
    loss = _sum(local.clone())
    return loss, _sum(first), [] if math.isfinite(loss) else _culprits(local)


def _rounds(training: Training, part: Share, batches: list[Batch]) -> Tensor:
    """Forward and backward of every round; this rank's part of the mean loss of the step.

    A round's loss is a mean over its own labels. Ranks average gradients, so it is weighed by ranks x its labels / the
    step's labels; under Local SGD, which averages none, by its labels / this rank's.
    """
    alone = isinstance(training.model, LocalSGD)
    whole = training.data.targets(part.first, part.count)
    scale = 1 / max(sum(batch.tokens for batch in batches), 1) if alone else dist.get_world_size() / whole
    weights = [batch.tokens for batch in batches]
    if not alone and len(batches) < len(part.rounds):
        batches, weights = [*batches, training.data.batch(0, 1)], [*weights, 0]
    total = torch.zeros((), dtype=torch.float64, device=training.device)
    for index, (batch, labels) in enumerate(zip(batches, weights, strict=True)):
        last = index == len(batches) - 1
        if index:
            training.tracker.next_round()
        with _sharing(training, last, len(batches)):
            with training.clock.during("forward"), precision(training.strategy, training.device):
                loss = training.model(batch.to(training.device))
            weighed = loss * (labels * scale)
            with training.clock.during("backward"), training.clock.waits.backward(training.model, weighed):
                _backward(training.model, weighed, last)
        total += loss.detach() * (labels / whole)
        del loss, weighed
    return total


def _sharing(training: Training, last: bool, rounds: int) -> AbstractContextManager[None]:
    """What a round shares of its gradients: DDP nothing before the last, FSDP its shards (over replicas in the last round only),
    with `whole_gradients` nothing before the last either.

    A static graph is the exception: torch 2.13 fails where its first backward is not shared (an internal assertion), so
    there every round is; the sum of means is the same.
    """
    model = training.model
    if isinstance(model, DistributedDataParallel) and not last and not training.job.static_graph:
        return model.no_sync()
    if rounds > 1 and isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last or not training.job.whole_gradients)
        model.set_requires_all_reduce(last)
    return nullcontext()


def _backward(model: nn.Module, loss: Tensor, last: bool) -> None:
    if zero.is_engine(model):
        zero.backward(model, loss, last)
    else:
        loss.backward()  # type: ignore[no-untyped-call] # nor does torch say what it returns


def _update(training: Training, number: int, has_gradients: bool) -> float:
    """Norm, clipping, the optimizer's step at the step's learning rate, and Local SGD's average; the norm before clipping."""
    model = training.model
    with training.clock.during("optimizer"):
        set_learning_rate(training.optimizer, _rate(training, number))
        norm = zero.update(model) if zero.is_engine(model) else _own_update(training) if has_gradients else 0.0
    if isinstance(model, LocalSGD):
        with training.clock.during("averaging"):
            model.stepped(last=number == training.last_step)
    return norm


def _rate(training: Training, number: int) -> float:
    """The learning rate of a step: the job's schedule, or where a DeepSpeed JSON brought one of its own what that has set."""
    if zero.is_engine(training.model) and zero.has_scheduler(training.model):
        return float(training.optimizer.param_groups[0]["lr"])
    return learning_rate(training.job, number)


def _own_update(training: Training) -> float:
    parameters = list(training.model.parameters())
    norm = gradient_norm(parameters)
    if math.isfinite(norm):
        clip(parameters, norm, training.job.clip_norm)
        training.optimizer.step()
    training.optimizer.zero_grad(set_to_none=not _in_buckets(training))
    return norm


def _in_buckets(training: Training) -> bool:
    """Whether gradients have to stay where they are, in DDP's buckets: a round that shares nothing would else make new ones
    beside them, which takes the parameters' size once more. Not with unused parameters, for whom no gradient means no update."""
    job = training.job
    return isinstance(training.model, DistributedDataParallel) and job.accumulation > 1 and not job.find_unused_parameters


def _sum(value: Tensor) -> float:
    """The sum of a one-number tensor over all ranks."""
    dist.all_reduce(value)
    return float(value)


def _culprits(local: Tensor) -> list[int]:
    """The ranks whose part of the loss is no number."""
    flags = torch.zeros(dist.get_world_size(), dtype=torch.int64, device=local.device)
    flags[dist.get_rank()] = int(not math.isfinite(float(local)))
    dist.all_reduce(flags)
    return [rank for rank, bad in enumerate(flags.tolist()) if bad]


def _stop_where_not_finite(training: Training, row: dict[str, Any], culprits: list[int]) -> None:
    """Raises NonFinite, on every rank together."""
    step, before = row["step"], f"the job stops with the weights of step {row['step'] - 1}"
    if not math.isfinite(row["loss"]):
        every = len(culprits) == dist.get_world_size()
        where = "on every rank" if every else f"on rank {', '.join(map(str, culprits))}"
        raise NonFinite(f"the loss is {row['loss']} in step {step}, {where}; {before}")
    if training.strategy.precision != "fp16" and not math.isfinite(row["grad_norm"]):  # fp16: DeepSpeed leaves such a step out
        raise NonFinite(f"the gradient norm is {row['grad_norm']} in step {step} though the loss is {row['loss']:.5g}; {before}")


# --- evaluation -----------------------------------------------------------------------------------------------------


def _evaluates(job: Job, number: int, last: int) -> bool:
    return number in job.eval_steps or bool(job.eval_every and (number % job.eval_every == 0 or number == last))


@torch.no_grad()
def evaluate(training: Training) -> float:
    """The mean loss over the evaluation batches, dealt out to the ranks in turn.

    Under FSDP and ZeRO 3 a forward is a collective: every rank runs as many, the surplus ones without weight.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    sums = torch.zeros(2, dtype=torch.float64, device=training.device)
    batches = list(training.data.eval_batches(training.job.micro_batch))
    training.model.train(False)
    for start in range(0, len(batches), ranks):
        mine = start + rank < len(batches)
        batch = batches[start + rank if mine else start]
        with precision(training.strategy, training.device):
            loss = training.model(batch.to(training.device))
        sums += torch.stack((loss.double() * batch.tokens, torch.full_like(sums[0], batch.tokens))) * mine
    training.model.train(True)
    dist.all_reduce(sums)
    return float(sums[0] / sums[1])
