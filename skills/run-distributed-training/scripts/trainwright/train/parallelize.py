"""A Strategy applied to a model, and what the live model then says of itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from trainwright.errors import UserError
from trainwright.model import ModelSpec
from trainwright.strategy import Strategy
from trainwright.train.models import build, materialize


@dataclass(frozen=True, slots=True)
class Effective:
    """How a live model is placed: read from its parameters and modules, never from the request."""

    name: str
    wrapper: str
    world_size: int
    shard_ratio: float
    units: int

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def applicable(strategy: Strategy, device: torch.device) -> tuple[Strategy, dict[str, str]]:
    """The part of `strategy` that can be done here, and for each field that cannot: why."""
    refused: dict[str, str] = {}
    if strategy.cpu_offload and device.type == "cpu":
        refused["cpu_offload"] = "the shards of a CPU rank are in host memory already"
    elif strategy.cpu_offload and strategy.kind != "fsdp":
        refused["cpu_offload"] = f"{strategy.kind} has no shards to offload"
    if strategy.precision == "fp16":
        refused["precision"] = "the reference trainer has no gradient scaler; it trains in fp32"
    changes: dict[str, Any] = {"cpu_offload": False, "precision": "fp32"}
    return dataclasses.replace(strategy, **{field: changes[field] for field in refused}), refused


def distribute(spec: ModelSpec, strategy: Strategy, device: torch.device, world_size: int, seed: int) -> nn.Module:
    """The model, its weights drawn from `seed`, placed as `strategy` says; needs the process group.

    Raises UserError for a strategy that this model or world cannot take.
    """
    if strategy.kind == "single" and world_size > 1:
        raise UserError(f"strategy single on {world_size} ranks would train {world_size} unconnected models; use ddp or fsdp, or 1 rank")
    model = build(spec)
    wrapped = list(_wrapped(model, spec, strategy))
    if strategy.activation_checkpointing:
        wrapped = _checkpoint(model, wrapped or [module for module in model.modules() if type(module).__name__ == spec.block_class])
    if strategy.kind == "fsdp":
        _shard([*wrapped, model], strategy, device, world_size)
    materialize(model, torch.device("cpu") if strategy.cpu_offload else device, seed)
    if strategy.kind == "ddp":
        return DistributedDataParallel(model, device_ids=[device] if device.type != "cpu" else None, gradient_as_bucket_view=True)
    return model


def _wrapped(model: nn.Module, spec: ModelSpec, strategy: Strategy) -> Iterator[nn.Module]:
    """The modules that become units of their own, inner ones first."""
    if strategy.kind != "fsdp":
        return
    names = {type(module).__name__ for module in model.modules() if not isinstance(module, nn.ModuleList)}
    for name in strategy.wrap_classes:
        if name not in names:
            raise UserError(f"no module of this model is a {name}, which is to be wrapped; its classes are {', '.join(sorted(names))}")
    if spec.tied_embeddings and "Embedding" in strategy.wrap_classes:
        raise UserError("Embedding cannot be a unit of its own here: the head is tied to it; wrap the blocks only")
    for module in reversed(list(model.modules())):
        if module is not model and type(module).__name__ in strategy.wrap_classes:
            yield module


def _checkpoint(model: nn.Module, modules: list[nn.Module]) -> list[nn.Module]:
    """`modules`, each in a wrapper that recomputes its forward in the backward (nothing here draws random numbers)."""
    names = {id(module): name for name, module in model.named_modules()}
    wrappers = [checkpoint_wrapper(module, preserve_rng_state=False) for module in modules]
    for module, wrapper in zip(modules, wrappers, strict=True):
        model.set_submodule(names[id(module)], wrapper)
    return wrappers


def _shard(units: list[nn.Module], strategy: Strategy, device: torch.device, world_size: int) -> None:
    """`fully_shard` each unit as Accelerate does: the root too takes reshard_after_forward, and bf16 gradients are reduced in bf16."""
    mesh = init_device_mesh(device.type, (world_size,))
    mixed = torch.bfloat16 if strategy.precision == "bf16" else None
    policy = MixedPrecisionPolicy(param_dtype=mixed, reduce_dtype=mixed)
    offload = CPUOffloadPolicy() if strategy.cpu_offload else OffloadPolicy()
    for unit in units:
        fully_shard(unit, mesh=mesh, reshard_after_forward=strategy.reshard_after_forward, mp_policy=policy, offload_policy=offload)


def precision(strategy: Strategy, device: torch.device) -> AbstractContextManager[None]:
    """The context of a forward pass: autocast where no policy of fully_shard casts already."""
    if strategy.precision == "bf16" and strategy.kind != "fsdp":
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()


def effective(model: nn.Module) -> Effective:
    """What the live model is: wrapper, world size, local / global parameters, and the modules that shard on their own."""
    parameters = list(model.parameters())
    local = sum(p.to_local().numel() if isinstance(p, DTensor) else p.numel() for p in parameters)
    ratio = local / sum(p.numel() for p in parameters)
    if isinstance(model, DistributedDataParallel):
        return Effective("ddp", "DistributedDataParallel", model.process_group.size(), ratio, 0)
    if not isinstance(model, FSDPModule):
        return Effective("single", "none", 1, ratio, 0)
    worlds = {p.device_mesh.size() for p in parameters if isinstance(p, DTensor)}
    units = [module for module in model.modules() if isinstance(module, FSDPModule)]
    return Effective(f"fsdp_{_stage(units)}", "FSDPModule", max(worlds, default=1), ratio, len(units))


def _stage(units: Sequence[FSDPModule]) -> str:
    """full_shard when a unit frees its gathered parameters after the forward, else shard_grad_op.

    torch keeps this in the parameter group only: `post_forward_mesh_info` is None where nothing is freed.
    """
    groups = [unit._get_fsdp_state()._fsdp_param_group for unit in units]
    return "full_shard" if any(group and group.post_forward_mesh_info for group in groups) else "shard_grad_op"


def confirm(model: nn.Module, strategy: Strategy, world_size: int, rank: int) -> Effective:
    """What the live model is; raises UserError where that is not what the strategy asks for."""
    found = effective(model)
    ratio = _ratio([p.shape for p in model.parameters()], world_size, rank) if strategy.kind == "fsdp" else 1.0
    pairs = {
        "strategy": (found.name, strategy.name),
        "world size": (found.world_size, world_size),
        "share of the parameters on this rank": (round(found.shard_ratio, 9), round(ratio, 9)),
    }
    wrong = [f"{what} {live} instead of {asked}" for what, (live, asked) in pairs.items() if live != asked]
    if wrong:
        raise UserError(f"the model does not run as the config asks: {'; '.join(wrong)}")
    return found


def _ratio(shapes: list[torch.Size], world_size: int, rank: int) -> float:
    """Share of the elements that fully_shard gives to `rank`: rows in chunks of ceil(rows / ranks), the last ranks may get none."""
    chunks = [(shape, -(-shape[0] // world_size)) for shape in shapes]
    local = sum(max(min(chunk, shape[0] - rank * chunk), 0) * shape[1:].numel() for shape, chunk in chunks)
    return local / sum(shape.numel() for shape in shapes)
