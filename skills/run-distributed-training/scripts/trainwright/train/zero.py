# train/zero.py without its comments
from __future__ import annotations

import importlib
import logging
import os
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainwright.emit.deepspeed import engine_config
from trainwright.errors import MissingPackageError, UserError
from trainwright.job import Job
from trainwright.strategy import Strategy


def start(
    model: nn.Module, optimizer: Optimizer, strategy: Strategy, job: Job, hidden_size: int, device: torch.device, config: dict[str, Any]
) -> tuple[nn.Module, Optimizer]:
    deepspeed = _deepspeed(device)
    complete = engine_config(config, job, hidden_size, strategy.cpu_offload)
    try:
        engine, zero, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=complete, dist_init_required=False)
    except (ValueError, TypeError, AssertionError, KeyError, AttributeError, NotImplementedError) as problem:
        raise UserError(f"DeepSpeed does not start with {job.backend_config}: {_said(problem)}") from problem
    return engine, zero


def _said(problem: Exception) -> str:
    if type(problem).__name__ == "ValidationError" and isinstance(problem, ValueError) and hasattr(problem, "errors"):
        rows = [(".".join(map(str, row["loc"])), row["msg"], row["input"]) for row in problem.errors()]
        return "; ".join(f"{where}: {says}, and is {value!r:.60}" for where, says, value in rows)[:300]
    return " ".join(str(problem).split())[:300] or type(problem).__name__


def _deepspeed(device: torch.device) -> Any:
    os.environ["DS_ACCELERATOR"] = device.type
    os.environ.setdefault("LOCAL_RANK", "0")
    try:
        deepspeed = importlib.import_module("deepspeed")
    except ImportError as problem:
        raise MissingPackageError("deepspeed", "a job with a DeepSpeed JSON") from problem
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    if device.type == "cpu":
        importlib.import_module("deepspeed.ops").__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


def is_engine(model: nn.Module) -> bool:
    return type(model).__module__.startswith("deepspeed.")


def stage(engine: Any) -> int:
    name = type(engine.optimizer).__name__
    if name == "DeepSpeedZeroOptimizer_Stage3":
        return 3
    if name == "DeepSpeedZeroOptimizer":
        return 2 if engine.optimizer.partition_gradients else 1
    return 0


def ranks(engine: Any) -> int:
    return int(torch.distributed.get_world_size(engine.optimizer.dp_process_group))


def shard_ratio(engine: Any) -> float:
    parameters = list(engine.module.parameters())
    if stage(engine) != 3:
        return 1.0
    return float(sum(p.ds_tensor.ds_numel for p in parameters) / sum(p.ds_numel for p in parameters))


def expected_share(engine: Any, world_size: int) -> float:
    parameters = list(engine.module.parameters())
    return float(sum(-(-p.ds_numel // world_size) for p in parameters) / sum(p.ds_numel for p in parameters))


def backward(engine: Any, loss: Tensor, last: bool) -> None:
    engine.set_gradient_accumulation_boundary(last)
    engine.backward(loss, scale_wrt_gas=False)
    if not last:
        engine.step()


def update(engine: Any) -> float:
    engine.step()
    norm = engine.get_global_grad_norm()
    return float("nan") if norm is None else float(norm)


def has_scheduler(engine: Any) -> bool:
    return engine.lr_scheduler is not None
