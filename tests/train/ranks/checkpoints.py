"""Ranks that train, save and resume a small model: `python checkpoints.py WORLD JOB...`, JOB = kind:action:folder[:option].

Actions: `both` trains 6 steps with a checkpoint after the third, then builds all anew, resumes and compares bit for bit;
`resume` only takes up; `refuse` tries to save where `option` says that a write fails. Rank 0 prints one JSON line a job.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from trainwright.errors import UserError
from trainwright.train import checkpoint, stored

Losses = list[float]


class Net(nn.Module):
    """Tied head, a buffer, dropout, rows that no number of ranks divides, one frozen layer."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 33)
        self.layers = nn.ModuleList(nn.Linear(33, 33) for _ in range(3))
        self.layers[1].requires_grad_(False)
        self.head = nn.Linear(33, 50, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.ones(33))
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) * self.scale
        for layer in self.layers:
            x = self.dropout(torch.tanh(layer(x) * 1.0))
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1) * 1.0, ids.flatten())


def build(kind: str, dropout: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model: nn.Module = Net(dropout)
    world = dist.get_world_size()
    if kind == "ddp":
        model = DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=0.002)
    elif kind != "single":
        named = ("replicas", "shards") if kind == "hsdp" else ("shards",)
        mesh = init_device_mesh("cpu", (2, world // 2) if kind == "hsdp" else (world,), mesh_dim_names=named)
        for unit in (*model.layers, model):  # type: ignore[misc]
            fully_shard(unit, mesh=mesh, reshard_after_forward=kind != "grad_op")
    trained: list[nn.Parameter] = [p for p in model.parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [{"params": trained[:1], "weight_decay": 0.1}, {"params": trained[1:]}]
    return model, torch.optim.AdamW(groups, lr=0.01, fused=True)


def batch(step: int) -> Tensor:
    ids = torch.randint(50, (8, 7), generator=torch.Generator().manual_seed(step))
    share = 8 // dist.get_world_size()
    return ids[dist.get_rank() * share : (dist.get_rank() + 1) * share]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> Losses:
    losses = []
    for step in range(first, last + 1):
        loss = model(batch(step))
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = 0.01 / step
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    return losses


def state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Whole tensors by name: parameters, buffers, optimizer."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in checkpoint.names(model).items():
        rows = {"": parameter, **optimizer.state.get(parameter, {})}
        tensors |= {f"{name}.{key}": whole(value) for key, value in rows.items()}
    return tensors


def whole(value: Any) -> Tensor:
    tensor = value.full_tensor() if isinstance(value, DTensor) else value
    return torch.as_tensor(tensor).detach().clone()


def both(kind: str, folder: str, dropout: float) -> dict[str, Any]:
    model, optimizer = build(kind, dropout)
    torch.manual_seed(100 + dist.get_rank())
    train(model, optimizer, 1, 3)
    checkpoint.save(folder, 3, model, optimizer, {"kind": kind}, strategy=kind)
    losses = train(model, optimizer, 4, 6)
    straight = state(model, optimizer)
    if dist.get_rank() == 0:
        torch.save(straight, Path(folder, "straight.pt"))
    row, again, resumed_losses = take_up(kind, folder, dropout)
    different = [name for name in straight if not torch.equal(straight[name], again[name])]
    return row | {"names": straight.keys() == again.keys(), "different": different, "losses": agree(losses == resumed_losses)}


def take_up(kind: str, folder: str, dropout: float) -> tuple[dict[str, Any], dict[str, Tensor], Losses]:
    model, optimizer = build(kind, dropout)
    checkpoint.settle(model, lambda: model(batch(1)))
    found = checkpoint.resume(folder, model, optimizer, strategy=kind)
    rates = [group["lr"] for group in optimizer.param_groups]
    losses = train(model, optimizer, found.step + 1, 6)
    row = {"kind": kind, "step": found.step, "exact": found.exact, "why": found.why, "facts": found.facts, "rates": rates}
    return row | {"passed_over": len(found.passed_over)}, state(model, optimizer), losses


def elsewhere(kind: str, folder: str) -> dict[str, Any]:
    """Take up what another kind on another number of ranks saved; the largest difference to its straight run."""
    row, again, _ = take_up(kind, folder, 0.0)
    straight = torch.load(Path(folder, "straight.pt"), weights_only=True)
    gaps = {name: float((straight[name] - again[name]).abs().max()) for name in straight}
    return row | {"names": straight.keys() == again.keys(), "gap": max(gaps.values())}


def refuse(kind: str, folder: str, how: str) -> dict[str, Any]:
    """A second checkpoint cannot be written; every rank has to say so, and the first has to stand."""
    model, optimizer = build(kind, 0.0)
    train(model, optimizer, 1, 1)
    checkpoint.save(folder, 1, model, optimizer, {})
    train(model, optimizer, 2, 2)
    message = ""
    with broken(how if dist.get_rank() == dist.get_world_size() - 1 or how == "layout" else ""):
        try:
            checkpoint.save(folder, 2, model, optimizer, {})
        except UserError as problem:
            message = str(problem)
    train(model, optimizer, 3, 3)  # the group still works
    left = sorted(path.name for path in Path(folder, "checkpoints").iterdir())
    return {"said": [bool(m) for m in everyone(message)], "same": len(set(everyone(message))) == 1, "message": message, "left": left}


@contextmanager
def broken(how: str) -> Iterator[None]:
    """This rank cannot write: `limit` is the system's own refusal, the others the error of a full disk."""
    if how == "limit":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
    with pytest.MonkeyPatch.context() as patch:
        if how == "fsync":
            patch.setattr(os, "fsync", full)
        elif how == "layout":
            patch.setattr(stored, "write_text", full)
        yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def everyone(value: Any) -> list[Any]:
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def agree(value: bool) -> bool:
    return all(everyone(value))


def rank(number: int, store: str, world: int, jobs: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=world)
    for job in jobs:
        kind, action, folder, *option = job.split(":")
        Path(folder).mkdir(parents=True, exist_ok=True)
        if action == "both":
            row = both(kind, folder, float(option[0]))
        elif action == "refuse":
            row = refuse(kind, folder, option[0])
        else:
            row = elsewhere(kind, folder)
        if number == 0:
            print(json.dumps(row), flush=True)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        spawn(rank, args=(f"{place}/store", int(sys.argv[1]), sys.argv[2:]), nprocs=int(sys.argv[1]))  # type: ignore[no-untyped-call]
