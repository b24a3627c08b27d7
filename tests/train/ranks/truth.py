"""A world of ranks that trains one model under several strategies in turn, in one process group; rank 0 writes what came out.

`python truth.py OUT RANK WORLD CASE...`; a case is JSON: {"name", "strategy": {...}, "job": {...}, "config": {...}, "fault"}.
OUT/NAME.pt gets the losses, gradient norms, and every parameter whole, in fp32; faults are made here, not in the product.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from trainwright.job import Job
from trainwright.model import ModelSpec, load_model
from trainwright.strategy import Strategy
from trainwright.train import data, loop, optimizer, parallelize, projected, zero
from trainwright.train.effective import confirm, effective
from trainwright.train.local_sgd import LocalSGD
from trainwright.train.loop import Clock, Training, run_step
from trainwright.train.run import settings
from trainwright.train.tracker import Tracker

CPU = torch.device("cpu")


def whole(model: Any) -> dict[str, torch.Tensor]:
    """Every parameter in full, as fp32; a collective."""
    if zero.is_engine(model):
        safe_get_full_fp32_param = importlib.import_module("deepspeed.utils").safe_get_full_fp32_param
        return {
            name: safe_get_full_fp32_param(p).detach().clone().view(getattr(p, "ds_shape", p.shape))
            for name, p in model.module.named_parameters()
        }
    inner = model.module if isinstance(model, (DistributedDataParallel, LocalSGD)) else model
    full = ((name, p.full_tensor() if isinstance(p, DTensor) else p) for name, p in inner.named_parameters())
    return {name.replace("_checkpoint_wrapped_module.", "").replace("_orig_mod.", ""): p.detach().float().clone() for name, p in full}


# --- faults, made here and not in the product -----------------------------------------------------------------------


def local_norm(parameters: Iterable[nn.Parameter]) -> float:
    """The norm of this rank's shards alone."""
    return float(
        optimizer._squares(p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad for p in parameters if p.grad is not None).sqrt()
    )


def clipped_backward(model: nn.Module, loss: torch.Tensor, last: bool) -> None:
    """Each round's gradient is clipped on each rank, not the sum of all."""
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)


def unshared(training: Training, last: bool, rounds: int) -> Any:
    """No round shares its gradients."""
    model: Any = training.model
    return model.no_sync()


class Even:
    """Data that takes every step for a full one of 8 samples."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def batch(self, first: int, count: int) -> Any:
        return self.inner.batch(first, count)

    def targets(self, first: int, count: int) -> int:
        return int(self.inner.targets(first, 8))

    def eval_batches(self, size: int = 32) -> Any:
        return self.inner.eval_batches(size)


FAULTS: dict[str, tuple[str, Any]] = {
    "norm of one rank": ("gradient_norm", local_norm),
    "clipped before the sum": ("_backward", clipped_backward),
    "no all-reduce": ("_sharing", unshared),
}


def train_by_hand(spec: ModelSpec, case: dict[str, Any]) -> dict[str, Any]:
    """Local SGD without any of its code: each rank's samples on a model of its own, and the mean of the models."""
    ranks, period = case["ranks"], case["period"]
    job = Job(**{"model": "/m", "backend_config": "/c", "world_size": 1, **case["job"]})
    source = data.open_data(settings(job), spec, job.seq_len)
    models = [parallelize.prepare(spec, Strategy("single"), job, CPU, {}) for _ in range(ranks)]
    streams = [Stream(source, rank, ranks, job.micro_batch) for rank in range(ranks)]
    copies = [
        Training(m, o, Strategy("single"), job, s, CPU, Clock(CPU), Tracker(CPU, 0)) for (m, o), s in zip(models, streams, strict=True)
    ]
    losses = []
    for number in range(1, job.steps + 1):
        losses.append(sum(run_step(copy, number)[0]["loss"] for copy in copies) / ranks)
        if number % period == 0 or number == job.steps:
            with torch.no_grad():
                for same in zip(*(model.parameters() for model, _ in models), strict=True):
                    mean = torch.stack(list(same)).double().mean(0).float()
                    for parameter in same:
                        parameter.copy_(mean)
    return {"loss": losses, "parameters": whole(models[0][0])}


class Stream:
    """One rank's samples of the global order, as a rank alone would number them."""

    def __init__(self, inner: Any, rank: int, ranks: int, micro: int) -> None:
        self.inner, self.rank, self.ranks, self.micro = inner, rank, ranks, micro

    def batch(self, first: int, count: int) -> Any:
        return self.inner.batch((first // self.micro * self.ranks + self.rank) * self.micro, count)

    def targets(self, first: int, count: int) -> int:
        return int(self.inner.targets(first, count))

    def eval_batches(self, size: int = 32) -> Any:
        return self.inner.eval_batches(size)


# --- one case after another -----------------------------------------------------------------------------------------


def train_case(spec: ModelSpec, case: dict[str, Any], world: int) -> dict[str, Any]:
    strategy = Strategy(**{**case["strategy"], "wrap_classes": tuple(case["strategy"].get("wrap_classes", ()))})
    job = Job(**{"model": "/m", "backend_config": "/c", "world_size": world, **case["job"]})
    strategy = job.placed(strategy)
    if job.modality != "text":
        spec = projected.with_variant(spec, job.variant)
    parallelize.possible(spec, strategy, job)
    model, adam = parallelize.prepare(spec, strategy, job, CPU, case.get("config", {}))
    confirm(model, strategy, world, dist.get_rank())
    start = whole(model)
    source: Any = data.open_data(settings(job), spec, job.seq_len)
    source = Even(source) if case.get("fault") == "short step weighed as full" else source
    training = Training(model, adam, strategy, job, source, CPU, Clock(CPU), Tracker(CPU, 0))
    rows = [run_step(training, number)[0] for number in range(1, training.last_step + 1)]
    found = {
        "loss": [row["loss"] for row in rows],
        "norm": [row["grad_norm"] for row in rows],
        "rate": [row["learning_rate"] for row in rows],
    }
    end = whole(model)
    return {**found, "start": start, "parameters": end, "live": effective(model).to_json(), "apart": apart(end)}


def apart(parameters: dict[str, torch.Tensor]) -> float:
    """The largest difference of any parameter between the ranks."""
    flat = torch.cat([p.flatten() for p in parameters.values()])
    low, high = flat.clone(), flat.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    return float((high - low).max())


def run_case(out: Path, case: dict[str, Any], world: int) -> dict[str, Any]:
    spec = load_model(str(out / f"{case.get('model', 'llama')}.json"))
    if "period" in case:
        return train_by_hand(spec, case)
    place, fault = FAULTS.get(case.get("fault", ""), ("gradient_norm", optimizer.gradient_norm))
    with mock.patch.object(loop, place, fault):
        return train_case(spec, case, world)


def main() -> None:
    out, rank, world = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    limit = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{out}/store{world}", rank=rank, world_size=world, timeout=limit)
    cases = json.loads((out / f"cases{world}.json").read_text())
    for case in cases:
        try:
            found = run_case(out, case, world)
        except Exception as problem:  # the test shows it; every rank fails alike or the group's timeout ends it
            found = {"error": f"{type(problem).__name__}: {problem}"}
            if os.environ.get("TRUTH_TRACE"):
                import traceback

                traceback.print_exc()
        if rank == 0:
            torch.save(found, out / f"{case['name']}.pt")
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
