"""This process's place among the ranks: its number, its device, and the process group."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor
from torch import distributed as dist

from trainwright.errors import UserError

BACKENDS = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl"}


@dataclass(frozen=True, slots=True)
class Place:
    """Which rank this is, of how many; all alone without a launcher."""

    rank: int
    local_rank: int
    world_size: int


def read_place(world_size: int) -> Place:
    """The place that torchrun's variables name; raises UserError where they are wrong or not the job's `world_size`."""
    try:
        place = Place(*(int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"))))
    except ValueError:
        raise UserError("RANK, LOCAL_RANK and WORLD_SIZE have to be whole numbers, as torchrun sets them") from None
    if place.world_size != world_size:
        raise UserError(f"the job is for {world_size} ranks and {place.world_size} started: torchrun --nproc-per-node {world_size}")
    return place


def choose_device(wanted: str, place: Place) -> torch.device:
    """The rank's device of the kind the job names; raises UserError where this machine or this torch has none."""
    if wanted == "cpu":
        return torch.device("cpu")
    module = getattr(torch, wanted, None)
    if module is None or not module.is_available():
        raise UserError(f"the job wants device {wanted}, which torch {torch.__version__} does not see here; device cpu runs anywhere")
    # One visible device means that the launcher has narrowed the view of each rank: it is number 0 then.
    return torch.device(wanted, place.local_rank % module.device_count())


def connect(device: torch.device, place: Place, timeout_s: float) -> None:
    """Join the default process group.

    The device is set first: otherwise xccl binds every rank to device 0, and the first all-gather never ends. No
    device_id: it changes how sub-groups are made and hangs on some stacks (pytorch#153960).
    """
    if device.type != "cpu":
        getattr(torch, device.type).set_device(device)
    store = None if "MASTER_ADDR" in os.environ else dist.HashStore()  # type: ignore[attr-defined] # no stub knows it
    rank, ranks = (-1, -1) if store is None else (place.rank, place.world_size)
    dist.init_process_group(BACKENDS[device.type], timeout=timedelta(seconds=timeout_s), store=store, rank=rank, world_size=ranks)


def disconnect() -> None:
    """Leave together, so that no rank closes its end while another still reads."""
    dist.barrier()
    dist.destroy_process_group()


def average(value: Tensor) -> float:
    """The mean of a one-number tensor over all ranks."""
    total = value.detach().to(torch.float64, copy=True)
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def synchronize(device: torch.device) -> None:
    """Wait for the device, so that a clock read next has seen its work; a CPU is never behind."""
    if device.type != "cpu":
        getattr(torch, device.type).synchronize(device)
