"""DeepSpeed's ZeRO: its engine made from the JSON, and what the live engine says of itself.

deepspeed is imported only where a job asks for it.
"""

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
    """The engine around `model`, and DeepSpeed's optimizer around `optimizer`; needs the process group.

    Raises UserError where DeepSpeed refuses the config, MissingPackageError where it is not installed.
    """
    deepspeed = _deepspeed(device)
    complete = engine_config(config, job, hidden_size, strategy.cpu_offload)
    try:
        engine, zero, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=complete, dist_init_required=False)
    except (ValueError, TypeError, AssertionError, KeyError) as problem:  # pydantic's ValidationError is a ValueError
        said = " ".join(str(problem).split())[:300] or type(problem).__name__
        raise UserError(f"DeepSpeed does not start with {job.backend_config}: {said}") from problem
    return engine, zero


def _deepspeed(device: torch.device) -> Any:
    """The package, told which device the job names before it looks for one itself.

    On CPU its shared-memory collective is left alone: it would be compiled for a minute at first use, and gloo does the same.
    """
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
    """Whether a model is DeepSpeed's engine, without importing it for those that are not."""
    return type(model).__module__.startswith("deepspeed.")


def stage(engine: Any) -> int:
    """The stage as the optimizer that was built shows it: DeepSpeedZeroOptimizer cuts gradients or not, ..._Stage3 parameters."""
    name = type(engine.optimizer).__name__
    if name == "DeepSpeedZeroOptimizer_Stage3":
        return 3
    if name == "DeepSpeedZeroOptimizer":
        return 2 if engine.optimizer.partition_gradients else 1
    return 0


def ranks(engine: Any) -> int:
    """The number of ranks that share the states."""
    return int(torch.distributed.get_world_size(engine.optimizer.dp_process_group))


def shard_ratio(engine: Any) -> float:
    """This rank's share of the parameters, by the tensors that stage 3 leaves; 1 where nothing of them is cut."""
    parameters = list(engine.module.parameters())
    if stage(engine) != 3:
        return 1.0
    return float(sum(p.ds_tensor.ds_numel for p in parameters) / sum(p.ds_numel for p in parameters))


def expected_share(engine: Any, world_size: int) -> float:
    """Stage 3 flattens each tensor and cuts it into equal parts, the last one padded."""
    parameters = list(engine.module.parameters())
    return float(sum(-(-p.ds_numel // world_size) for p in parameters) / sum(p.ds_numel for p in parameters))


def backward(engine: Any, loss: Tensor, last: bool) -> None:
    """One round's backward; the weights of the rounds are in the loss already, so DeepSpeed divides nothing."""
    engine.set_gradient_accumulation_boundary(last)
    engine.backward(loss, scale_wrt_gas=False)
    if not last:
        engine.step()  # counts the round; there is no update before the boundary


def update(engine: Any) -> float:
    """Clip by the engine's own norm, step, free the gradients; the norm before clipping."""
    engine.step()
    norm = engine.get_global_grad_norm()
    return float("nan") if norm is None else float(norm)


def has_scheduler(engine: Any) -> bool:
    """Whether the JSON brought a scheduler, which then sets the learning rate."""
    return engine.lr_scheduler is not None
