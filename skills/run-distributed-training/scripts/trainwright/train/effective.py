# train/effective.py without its comments
from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from trainwright.errors import UserError
from trainwright.strategy import Strategy
from trainwright.train import zero
from trainwright.train.local_sgd import LocalSGD


@dataclass(frozen=True, slots=True)
class Effective:

    name: str
    wrapper: str
    world_size: int
    shard_ratio: float
    units: int
    replicas: int
    checkpointed: int
    period: int | None = None

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def effective(model: nn.Module) -> Effective:
    checkpointed = sum(isinstance(module, CheckpointWrapper) for module in model.modules())
    if zero.is_engine(model):
        stage, ranks, ratio = zero.stage(model), zero.ranks(model), zero.shard_ratio(model)
        return Effective(f"zero_{stage}", type(model).__name__, ranks, ratio, 0, 1 if stage == 3 else ranks, checkpointed)
    if isinstance(model, LocalSGD):
        ranks = model.group.size() if model.group else 1
        return Effective("local_sgd", "LocalSGD", ranks, _share(model), 0, ranks, checkpointed, model.period)
    if isinstance(model, DistributedDataParallel):
        ranks = model.process_group.size()
        return Effective("ddp", "DistributedDataParallel", ranks, _share(model), 0, ranks, checkpointed)
    if not isinstance(model, FSDPModule):
        return Effective("single", "none", 1, _share(model), 0, 1, checkpointed)
    return _sharded(model, checkpointed)


def _sharded(model: nn.Module, checkpointed: int) -> Effective:
    parameters = list(model.parameters())
    meshes = [p for p in parameters if isinstance(p, DTensor)]
    ranks = max((p.device_mesh.size() for p in meshes), default=1)
    replicas = max((_replicas(p) for p in meshes), default=1)
    units = [module for module in model.modules() if isinstance(module, FSDPModule)]
    name = f"{'hsdp' if replicas > 1 else 'fsdp'}_{_stage(units)}"
    return Effective(name, "FSDPModule", ranks, _share(model), len(units), replicas, checkpointed)


def _share(model: nn.Module) -> float:
    parameters = list(model.parameters())
    local = sum(p.to_local().numel() if isinstance(p, DTensor) else p.numel() for p in parameters)
    return local / sum(p.numel() for p in parameters)


def _replicas(parameter: DTensor) -> int:
    axes = [axis for axis, placement in enumerate(parameter.placements) if not placement.is_shard()]
    return math.prod(parameter.device_mesh.size(axis) for axis in axes)


def _stage(units: Sequence[FSDPModule]) -> str:
    groups = [unit._get_fsdp_state()._fsdp_param_group for unit in units]
    return "full_shard" if any(group and group.post_forward_mesh_info for group in groups) else "shard_grad_op"


def confirm(model: nn.Module, strategy: Strategy, world_size: int, rank: int) -> Effective:
    found = effective(model)
    pairs: dict[str, tuple[object, object]] = {
        "strategy": (found.name, strategy.name),
        "world size": (found.world_size, world_size),
        "share of the parameters on this rank": (round(found.shard_ratio, 9), round(_expected_share(model, strategy, world_size, rank), 9)),
        "activation checkpointing": (found.checkpointed > 0, strategy.activation_checkpointing),
    }
    if strategy.kind == "fsdp":
        pairs["replicas"] = (found.replicas, strategy.replicas)
    wrong = [f"{what} {live} instead of {asked}" for what, (live, asked) in pairs.items() if live != asked]
    if wrong:
        raise UserError(f"the model does not run as the config asks: {'; '.join(wrong)}")
    return found


def _expected_share(model: nn.Module, strategy: Strategy, world_size: int, rank: int) -> float:
    if strategy.kind == "fsdp":
        shards = max(world_size // strategy.replicas, 1)
        return _ratio([p.shape for p in model.parameters()], shards, rank % shards)
    return zero.expected_share(model, world_size) if strategy.zero_stage == 3 else 1.0


def _ratio(shapes: list[torch.Size], world_size: int, rank: int) -> float:
    chunks = [(shape, -(-shape[0] // world_size)) for shape in shapes]
    local = sum(max(min(chunk, shape[0] - rank * chunk), 0) * shape[1:].numel() for shape, chunk in chunks)
    return local / sum(shape.numel() for shape in shapes)
