"""Two ranks under torchrun: every kind of model under DDP and FSDP2 against one process with the whole batch; prints one JSON line."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from trainwright.model import load_model
from trainwright.train.data import Batch, Settings, open_data
from trainwright.train.models import build, materialize
from trainwright.train.projected import with_variant
from trainwright.train.tiny import tiny

CPU = torch.device("cpu")


def texts(name: str) -> tuple[Any, Batch]:
    spec = load_model(name)
    ids = torch.randint(0, spec.vocab_size, (4, 12), generator=torch.Generator().manual_seed(1))
    return lambda: build(spec), Batch(ids, ids.roll(-1, 1), (), ids.numel())


def signals(modality: str, regime: str) -> tuple[Any, Batch]:
    spec = with_variant(tiny(load_model("tiny")), "D2X")
    return lambda: build(spec, modality, regime), open_data(Settings(modality=modality), load_model("tiny"), 40).batch(0, 4)


def part(batch: Batch) -> Batch:
    """This rank's two samples."""
    rows = slice(2 * dist.get_rank(), 2 * dist.get_rank() + 2)
    return Batch(batch.ids[rows], batch.labels[rows], tuple(signal[rows] for signal in batch.signals))


def gradients(model: nn.Module) -> dict[str, Tensor]:
    found = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, f"{name} has no gradient"
            gradient = parameter.grad
            found[name.removeprefix("module.")] = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
    return found


def sharded(model: nn.Module, kind: str, **options: Any) -> nn.Module:
    mesh = init_device_mesh("cpu", (2,))
    for module in reversed(list(model.modules())):
        if module is model or type(module).__name__.endswith(("Layer", "Block")):
            fully_shard(module, mesh=mesh, reshard_after_forward=kind == "full", **options)
    return model


def placed(make: Any, kind: str) -> nn.Module:
    model: nn.Module = make()
    if kind in ("full", "grad"):
        model = sharded(model, kind)
    if kind == "bf16":
        model = sharded(model, "full", mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    materialize(model, CPU, 0)
    return DistributedDataParallel(model) if kind == "ddp" else model


def furthest(make: Any, batch: Batch, kind: str) -> float:
    """The largest relative distance of a gradient from that of one process with the whole batch, twice in a row.

    Some are zero but for rounding (a key's bias moves all scores of a query alike), so a thousandth of the whole norm is added.
    """
    alone = placed(make, "one")
    (alone(batch, "sum") / batch.tokens).backward()
    expected, model, mine = gradients(alone), placed(make, kind), part(batch)
    worst, least = 0.0, 1e-3 * float(torch.stack([g.norm() for g in expected.values()]).norm())
    for _ in range(2):
        (model(mine, "sum") * dist.get_world_size() / batch.tokens).backward()
        found = gradients(model)
        assert found.keys() == expected.keys()
        worst = max(worst, *(float((found[name] - g).norm() / (g.norm() + least)) for name, g in expected.items()))
        model.zero_grad()
    return worst


def main() -> None:
    dist.init_process_group("gloo")
    kinds = sys.argv[1].split(",")
    cases = {Path(name).stem: texts(name) for name in sys.argv[2:] if "+" not in name}
    cases |= {name: signals(*name.split("+")) for name in sys.argv[2:] if "+" in name}
    result = {f"{name} {kind}": furthest(*case, kind) for name, case in cases.items() for kind in kinds}
    if dist.get_rank() == 0:
        print(json.dumps(result), flush=True)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # taking the group down beside DDP can hang


if __name__ == "__main__":
    main()
