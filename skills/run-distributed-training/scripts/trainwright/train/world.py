# train/world.py without its comments
from __future__ import annotations

import importlib
import importlib.util
import json
import os
import platform
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist

from trainwright.errors import UserError

BACKENDS = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl"}
CHECKED = {"cpu": "run", "cuda": "source", "xpu": "stub"}
BINDINGS = "oneccl_bindings_for_pytorch"
MASKS = {
    "cuda": ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    "xpu": ("ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR"),
}


@dataclass(frozen=True, slots=True)
class Place:

    rank: int
    local_rank: int
    world_size: int
    local_size: int = 1


def read_place(world_size: int) -> Place:
    names = (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1")))
    try:
        place = Place(*(int(os.environ.get(name, default)) for name, default in names))
    except ValueError:
        raise UserError("RANK, LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE have to be whole numbers, as torchrun sets them") from None
    if place.world_size != world_size:
        raise UserError(f"the job is for {world_size} ranks and {place.world_size} started: torchrun --nproc-per-node {world_size}")
    return place


def choose_device(wanted: str, place: Place) -> torch.device:
    if wanted == "cpu":
        return torch.device("cpu")
    module = getattr(torch, wanted, None)
    if module is None or not module.is_available():
        raise UserError(f"the job wants device {wanted}, which torch {torch.__version__} does not see here; device cpu runs anywhere")
    seen = int(module.device_count())
    if place.local_rank < seen:
        return torch.device(wanted, place.local_rank)
    if seen == 1 and any(os.environ.get(name) for name in MASKS[wanted]):
        return torch.device(wanted, 0)
    raise UserError(
        f"rank {place.rank} is number {place.local_rank} on this host, where torch sees {seen} {wanted} device(s); start no more ranks"
    )


def find_backend(kind: str) -> str:
    if kind == "cpu":
        return "gloo"
    if kind == "cuda":
        if dist.is_nccl_available():
            return "nccl"
        raise UserError(f"torch {torch.__version__} is built without NCCL, which ranks on cuda talk through")
    if dist.is_xccl_available():
        return "xccl"
    return _bindings()


def _bindings() -> str:
    if importlib.util.find_spec(BINDINGS) is None:
        raise UserError(f"torch {torch.__version__} is built without xccl, and {BINDINGS} is not installed; ranks on xpu need one of them")
    try:
        importlib.import_module(BINDINGS)
    except (ImportError, OSError, AttributeError) as problem:
        raise UserError(f"{BINDINGS} does not load: {' '.join(str(problem).split())[:200]}") from None
    return "ccl"


def connect(device: torch.device, place: Place, timeout_s: float) -> str:
    if device.type != "cpu":
        getattr(torch, device.type).set_device(device)
    backend = find_backend(device.type)
    store = None if "MASTER_ADDR" in os.environ else dist.HashStore()
    rank, ranks = (-1, -1) if store is None else (place.rank, place.world_size)
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s), store=store, rank=rank, world_size=ranks)
    if device.type != "cpu" and place.local_size > 1:
        _distinct(device, place, dist.distributed_c10d._get_default_store())
    return backend


def _distinct(device: torch.device, place: Place, store: Any) -> None:
    mask = [os.environ.get(name, "") for name in MASKS[device.type]]
    mine = json.dumps([platform.node(), mask, device.index])
    store.set(f"trainwright/device/{place.rank}", mine)
    first = place.rank - place.local_rank
    for other in range(first, min(first + place.local_size, place.world_size)):
        if other != place.rank and store.get(f"trainwright/device/{other}").decode() == mine:
            names = " and ".join(MASKS[device.type])
            raise UserError(f"ranks {place.rank} and {other} have the same device, {device}; give each rank its own, or none in {names}")


def disconnect(device: torch.device = torch.device("cpu")) -> None:
    dist.all_reduce(torch.zeros(1, device=device))
    synchronize(device)


def any_rank(flag: int, device: torch.device) -> int:
    value = torch.tensor(flag, dtype=torch.int64, device=device)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return int(value)


def synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        getattr(torch, device.type).synchronize(device)
