"""A world of ranks that trains one model under several strategies in turn, in one process group; rank 0 writes what came out.

`python truth.py OUT RANK WORLD CASE...`; a case is JSON: {"name", "strategy": {...}, "job": {...}, "config": {...}, "fault"}.
OUT/NAME.pt gets the losses, gradient norms, and every parameter whole, in fp32; faults are made here, not in the product.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from trainwright.job import Job
from trainwright.model import ModelSpec, load_model
from trainwright.strategy import Strategy
from trainwright.train import data, loop, optimizer, parallelize, zero
from trainwright.train.effective import confirm, effective
from trainwright.train.local_sgd import LocalSGD
from trainwright.train.loop import Clock, Training, run_step
from trainwright.train.run import settings
from trainwright.train.tracker import Tracker

CPU = torch.device("cpu")


def whole(model: nn.Module) -> dict[str, torch.Tensor]:
    """Every parameter in full, as fp32; a collective."""
    if zero.is_engine(model):
        from deepspeed.utils import safe_get_full_fp32_param

        return {
            name: safe_get_full_fp32_param(p).detach().clone().view(getattr(p, "ds_shape", p.shape))
            for name, p in model.module.named_parameters()
        }
    inner = model.module if isinstance(model, (DistributedDataParallel, LocalSGD)) else model
    full = ((name, p.full_tensor() if isinstance(p, DTensor) else p) for name, p in inner.named_parameters())
    return {name.replace("_checkpoint_wrapped_module.", "").replace("_orig_mod.", ""): p.detach().float().clone() for name, p in full}


def inject(fault: str) -> Any:
    """Break the trainer in one way; returns what puts it right again."""
    if fault == "local norm":  # the norm of this rank's shards alone decides the clipping
        kept = loop.gradient_norm
        loop.gradient_norm = lambda parameters: float(
            optimizer._squares(
                p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad for p in parameters if p.grad is not None
            ).sqrt()
        )
        return lambda: setattr(loop, "gradient_norm", kept)
    if fault == "rounds clipped apart":  # each micro batch's gradient is clipped, not their sum
        before = loop._backward

        def clipped(model: nn.Module, loss: torch.Tensor, last: bool) -> None:
            before(model, loss, last)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)

        loop._backward = clipped
        return lambda: setattr(loop, "_backward", before)
    if fault == "no all-reduce":  # every round keeps its gradients to itself
        sharing = loop._sharing
        loop._sharing = lambda training, last, rounds: training.model.no_sync()
        return lambda: setattr(loop, "_sharing", sharing)
    if fault == "short step weighed as full":
        rounds = loop._rounds

        class Even:
            def __init__(self, inner: Any) -> None:
                self.inner = inner

            def batch(self, first: int, count: int) -> Any:
                return self.inner.batch(first, count)

            def targets(self, first: int, count: int) -> int:
                return self.inner.targets(first, 8)

        def wrong(training: Training, *rest: Any) -> Any:
            import dataclasses

            return rounds(dataclasses.replace(training, data=Even(training.data)), *rest)

        loop._rounds = wrong
        return lambda: setattr(loop, "_rounds", rounds)
    assert not fault, fault
    return lambda: None


def train_case(spec: ModelSpec, case: dict[str, Any], world: int) -> dict[str, Any]:
    strategy = Strategy(**{**case["strategy"], "wrap_classes": tuple(case["strategy"].get("wrap_classes", ()))})
    job = Job(**{"model": "/m", "backend_config": "/c", "world_size": world, **case["job"]})
    strategy = job.placed(strategy)
    parallelize.possible(spec, strategy, job)
    right = inject(case.get("fault", ""))
    try:
        model, adam = parallelize.prepare(spec, strategy, job, CPU, case.get("config", {}))
        confirm(model, strategy, world, dist.get_rank())
        live = effective(model).to_json()
        source = data.open_data(settings(job), spec, job.seq_len)
        training = Training(model, adam, strategy, job, source, CPU, Clock(CPU), Tracker(CPU, 0))
        rows = [run_step(training, number)[0] for number in range(1, training.last_step + 1)]
        found = {"loss": [row["loss"] for row in rows], "norm": [row["grad_norm"] for row in rows]}
        return {**found, "rate": [row["learning_rate"] for row in rows], "parameters": whole(model), "live": live}
    finally:
        right()


def main() -> None:
    out, rank, world = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    dist.init_process_group("gloo", init_method=f"file://{out}/store{world}", rank=rank, world_size=world)
    cases = json.loads((out / f"cases{world}.json").read_text())
    for case in cases:
        try:
            found = train_case(load_model(str(out / f"{case.get('model', 'model')}.json")), case, world)
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
