# train/parallelize.py without its comments
from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from trainwright.errors import UserError
from trainwright.job import Job
from trainwright.model import ModelSpec
from trainwright.strategy import Strategy
from trainwright.train import zero
from trainwright.train.local_sgd import LocalSGD
from trainwright.train.models import build, materialize
from trainwright.train.optimizer import make_optimizer


def prepare(spec: ModelSpec, strategy: Strategy, job: Job, device: torch.device, config: dict[str, Any]) -> tuple[nn.Module, Optimizer]:
    model = distribute(spec, strategy, job, device)
    optimizer: Optimizer = make_optimizer(model, job)
    if strategy.kind == "zero":
        return zero.start(model, optimizer, strategy, job, spec.hidden_size, device, config)
    return model, optimizer


def applicable(strategy: Strategy, device: torch.device) -> tuple[Strategy, dict[str, str]]:
    refused: dict[str, str] = {}
    if strategy.cpu_offload and device.type == "cpu":
        refused["cpu_offload"] = "the shards of a CPU rank are in host memory already"
    elif strategy.cpu_offload and strategy.kind not in ("fsdp", "zero"):
        refused["cpu_offload"] = f"{strategy.kind} has no shards to offload"
    if strategy.precision == "fp16" and strategy.kind != "zero":
        refused["precision"] = "the reference trainer has no gradient scaler; it trains in fp32"
    changes: dict[str, Any] = {"cpu_offload": False, "precision": "fp32"}
    return dataclasses.replace(strategy, **{field: changes[field] for field in refused}), refused


def distribute(spec: ModelSpec, strategy: Strategy, job: Job, device: torch.device) -> nn.Module:
    model = build(spec, job.modality, job.regime)
    blocks = _blocks(model, spec)
    if job.compile != "none":
        for block in blocks:
            block.compile(backend=job.compile)
    wrapped = list(_wrapped(model, spec, strategy))
    if strategy.activation_checkpointing:
        wrapped = _checkpoint(model, wrapped, blocks, strategy.checkpoint_every)
    if strategy.kind == "fsdp":
        _shard([*wrapped, model], strategy, device, job.world_size)
    materialize(model, torch.device("cpu") if strategy.cpu_offload or strategy.zero_stage == 3 else device, job.seed)
    if strategy.kind == "ddp":
        return _replicate(model, job, device)
    return LocalSGD(model, job.local_sgd_steps) if strategy.kind == "local_sgd" else model


def _blocks(model: nn.Module, spec: ModelSpec) -> list[nn.Module]:
    return [module for module in model.modules() if type(module).__name__ in spec.block_classes]


def _wrapped(model: nn.Module, spec: ModelSpec, strategy: Strategy) -> Iterator[nn.Module]:
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


def _checkpoint(model: nn.Module, units: list[nn.Module], blocks: list[nn.Module], every: int) -> list[nn.Module]:
    names = {id(module): name for name, module in model.named_modules()}
    chosen = [module for module in model.modules() if module in set(units)] if units else blocks
    wrappers = {id(module): checkpoint_wrapper(module, preserve_rng_state=False) for module in chosen[every - 1 :: every]}
    for module in chosen:
        if id(module) in wrappers:
            model.set_submodule(names[id(module)], wrappers[id(module)])
    return [wrappers.get(id(module), module) for module in units]


def _shard(units: Sequence[nn.Module], strategy: Strategy, device: torch.device, world_size: int) -> None:
    mixed = torch.bfloat16 if strategy.precision == "bf16" else None
    policy = MixedPrecisionPolicy(param_dtype=mixed, reduce_dtype=mixed)
    offload = CPUOffloadPolicy() if strategy.cpu_offload else OffloadPolicy()
    mesh = _mesh(device, world_size, strategy.replicas)
    for unit in units:
        fully_shard(unit, mesh=mesh, reshard_after_forward=strategy.reshard_after_forward, mp_policy=policy, offload_policy=offload)


def _mesh(device: torch.device, world_size: int, replicas: int) -> DeviceMesh:
    if replicas == 1:
        return init_device_mesh(device.type, (world_size,), mesh_dim_names=("shard",))
    return init_device_mesh(device.type, (replicas, world_size // replicas), mesh_dim_names=("replicate", "shard"))


def _replicate(model: nn.Module, job: Job, device: torch.device) -> DistributedDataParallel:
    options: dict[str, Any] = {"static_graph": job.static_graph, "find_unused_parameters": job.find_unused_parameters}
    devices = [device] if device.type != "cpu" else None
    ddp = DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True, bucket_cap_mb=job.bucket_mb, **options)
    if job.comm_hook == "powersgd":
        rank, start = job.powersgd_rank, job.powersgd_start
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=start)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif job.comm_hook == "bf16" and dist.get_backend() == "gloo":
        raise UserError("comm_hook bf16 needs NCCL or XCCL, and this job's ranks speak gloo; take fp16 or none")
    elif job.comm_hook != "none":
        hooks = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}
        ddp.register_comm_hook(None, hooks[job.comm_hook])
    return ddp


def precision(strategy: Strategy, device: torch.device) -> AbstractContextManager[None]:
    if strategy.precision == "bf16" and strategy.kind not in ("fsdp", "zero"):
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()
