# train/zero_state.py without its comments
from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trainwright.train import zero
from trainwright.train.together import this_rank, world_size

STEP = "step"


def tensors(engine: Any, named: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    kept: dict[str, Tensor] = {}
    keys, steps = _keys(engine), _steps(engine)
    for index, (name, parameter) in enumerate(named.items()):
        rows = {f"model.{name}": _weight(engine, parameter)}
        if parameter.requires_grad:
            rows |= {f"optimizer.{name}.{key}": _fragments().safe_get_full_optimizer_state(parameter, key) for key in keys}
            rows |= {f"optimizer.{name}.{STEP}": steps} if steps is not None else {}
        if index % world_size() == this_rank():
            kept |= {key: value.detach().to("cpu", copy=True) for key, value in rows.items()}
    return kept


def holds(model: nn.Module) -> bool:
    return zero.is_engine(model) and zero.stage(model) > 0


def empty(engine: Any, named: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    return {f"model.{name}": torch.zeros(_shape(engine, parameter)) for name, parameter in named.items()}


def restore(engine: Any, named: Mapping[str, nn.Parameter], loaded: Mapping[str, Tensor]) -> None:
    set_weights(engine, named, loaded)
    trained = [name for name, parameter in named.items() if parameter.requires_grad]
    keys = sorted({name.rpartition(".")[2] for name in loaded if name.startswith("optimizer.")} - {STEP})
    if not keys:
        return
    _make_states(engine, keys, next((value for name, value in loaded.items() if name.endswith(f".{STEP}")), None))
    for name in trained:
        for key in keys:
            if (value := loaded.get(f"optimizer.{name}.{key}")) is not None:
                _set_state(engine, named[name], value, key)


def _make_states(engine: Any, keys: list[str], steps: Tensor | None) -> None:
    base, three = engine.optimizer.optimizer, zero.stage(engine) == 3
    for flat in engine.optimizer.fp32_partitioned_groups_flat if three else engine.optimizer.single_partition_of_fp32_groups:
        state = base.state[flat]
        state.update({key: torch.zeros_like(flat) for key in keys if key not in state})
        if steps is not None:
            counts = type(base).__module__.startswith("deepspeed.")
            state[STEP] = int(steps) if counts else steps.detach().clone().to(flat.device)
    if not three:
        engine.optimizer._lazy_init_hp_params_optimizer_state()


def set_weights(engine: Any, named: Mapping[str, nn.Parameter], loaded: Mapping[str, Tensor]) -> None:
    for name, parameter in named.items():
        if (weight := loaded.get(f"model.{name}")) is not None:
            _set_weight(engine, parameter, weight)


def numbers(engine: Any) -> dict[str, Any]:
    scaler = getattr(engine.optimizer, "loss_scaler", None)
    rows: dict[str, Any] = {name: getattr(engine, name) for name in ("global_steps", "global_samples", "micro_steps", "skipped_steps")}
    rows["loss_scaler"] = {name: value for name, value in vars(scaler).items() if type(value) in (int, float, bool)} if scaler else {}
    rows["scheduler"] = engine.lr_scheduler.state_dict() if engine.lr_scheduler is not None else None
    return rows


def set_numbers(engine: Any, rows: Mapping[str, Any]) -> None:
    for name in ("global_steps", "global_samples", "micro_steps", "skipped_steps"):
        if type(rows.get(name)) is int:
            setattr(engine, name, rows[name])
    scaler, saved = getattr(engine.optimizer, "loss_scaler", None), rows.get("loss_scaler")
    for name, value in (saved or {}).items() if isinstance(saved, Mapping) else ():
        if scaler is not None and type(vars(scaler).get(name)) is type(value):
            setattr(scaler, name, value)
    if engine.lr_scheduler is not None and isinstance(rows.get("scheduler"), dict):
        engine.lr_scheduler.load_state_dict(rows["scheduler"])


def _fragments() -> Any:
    return importlib.import_module("deepspeed.utils.tensor_fragment")


def _keys(engine: Any) -> list[str]:
    states = list(engine.optimizer.optimizer.state.values())
    return [key for key, value in states[0].items() if isinstance(value, Tensor) and value.numel() > 1] if states else []


def _steps(engine: Any) -> Tensor | None:
    counts = [state[STEP] for state in engine.optimizer.optimizer.state.values() if STEP in state]
    return torch.as_tensor(counts[0], dtype=torch.float32).detach().clone() if counts else None


def _shape(engine: Any, parameter: nn.Parameter) -> torch.Size:
    return torch.Size(parameter.ds_shape) if zero.stage(engine) == 3 else parameter.shape


def _weight(engine: Any, parameter: nn.Parameter) -> Tensor:
    if parameter.requires_grad:
        whole: Tensor = _fragments().safe_get_full_fp32_param(parameter)
        return whole.reshape(_shape(engine, parameter))
    with _gathered(engine, parameter, None):
        return parameter.detach().clone()


def _set_weight(engine: Any, parameter: nn.Parameter, value: Tensor) -> None:
    with torch.no_grad(), _gathered(engine, parameter, 0):
        parameter.copy_(value)
    if not parameter.requires_grad:
        return
    if zero.stage(engine) == 3:
        _fragments().safe_set_local_fp32_param(parameter, _part(parameter, value))
    else:
        _fragments().safe_set_full_fp32_param(parameter, value)


def _set_state(engine: Any, parameter: nn.Parameter, value: Tensor, key: str) -> None:
    if zero.stage(engine) == 3:
        _fragments().safe_set_local_optimizer_state(parameter, _part(parameter, value), key)
    else:
        _fragments().safe_set_full_optimizer_state(parameter, value, key)


def _part(parameter: Any, value: Tensor) -> Tensor:
    size = parameter.ds_tensor.ds_numel
    flat = torch.nn.functional.pad(value.reshape(-1), (0, size * world_size() - value.numel()))
    return flat.narrow(0, size * this_rank(), size)


def _gathered(engine: Any, parameter: nn.Parameter, modifier: int | None) -> Any:
    deepspeed = importlib.import_module("deepspeed")
    return deepspeed.zero.GatheredParameters([parameter], modifier_rank=modifier, enabled=zero.stage(engine) == 3)
