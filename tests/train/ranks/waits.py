"""Two ranks, one of them late: how long each waits in collectives, as a JSON line a rank and strategy."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from trainwright.train.communication import Waits

LATE_S = 0.6


def build(kind: str) -> nn.Module:
    model: nn.Module = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3)))
    if kind == "ddp":
        return DistributedDataParallel(model)
    for layer in (*model.children(), model):
        fully_shard(layer)
    return model


def step(model: nn.Module, waits: Waits, late: bool) -> None:
    if late:
        time.sleep(LATE_S)
    loss = (model(torch.randn(8, 64)) * 1.0).square().mean()
    with waits.backward(model, loss):
        loss.backward()


def rank(number: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=2)
    waits = Waits(torch.device("cpu"))
    waits.install()
    for kind in ("ddp", "fsdp"):
        model = build(kind)
        for _ in range(2):  # in the second DDP orders its buckets anew, once, and waits for that in the forward
            step(model, waits, late=False)
        dist.barrier()
        waits.clear()
        step(model, waits, late=number == 1)
        row = {"kind": kind, "rank": number, "seconds": waits.seconds}
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()
        dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        spawn(rank, args=(f"{place}/store",), nprocs=2)  # type: ignore[no-untyped-call]
