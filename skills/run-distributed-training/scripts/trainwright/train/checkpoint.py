# train/checkpoint.py without its comments
from __future__ import annotations

import errno
import math
import random
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors
from torch.distributed.checkpoint.state_dict_saver import save as save_tensors
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from trainwright.errors import UserError
from trainwright.train import stored, zero_state
from trainwright.train.stored import Stored
from trainwright.train.together import Failed, one_error, quiet, system_error, this_rank, together, world_size
from trainwright.units import format_bytes

PREFIXES = ("module.", "_orig_mod.", "_checkpoint_wrapped_module.")
LIVE = ("params", "foreach", "fused", "capturable", "differentiable", "maximize")
STATES = {"step", "exp_avg", "exp_avg_sq"}
DECODER = "backbone."
_MOST_NUMBERS = 2**20


@dataclass(frozen=True, slots=True)
class Resumed:

    path: str
    step: int
    facts: Mapping[str, Any]
    exact: bool
    why: str = ""
    passed_over: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        lists = {"passed_over": list(self.passed_over), "changed": list(self.changed)}
        return {"path": self.path, "step": self.step, "exact": self.exact, "why": self.why, **lists}


@dataclass(frozen=True, slots=True)
class Begun:

    path: str
    step: int
    loaded: int
    kept: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {"path": self.path, "step": self.step, "loaded": self.loaded, "kept": list(self.kept[:20]), "kept_count": len(self.kept)}


def save(
    run_dir: str,
    step: int,
    model: nn.Module,
    optimizer: Optimizer,
    facts: Mapping[str, Any],
    *,
    strategy: str = "",
    keep: int = 2,
    per_rank: bool = False,
) -> Path:
    path = stored.folder_of(run_dir, step)
    tensors = _tensors(model, optimizer, per_rank) | _random()
    state: dict[str, Any] = {"facts": dict(facts), "strategy": strategy, "per_rank": per_rank, "optimizer": _options(model, optimizer)}
    state |= {"engine": zero_state.numbers(model)} if zero_state.holds(model) else {}
    try:
        together("make the folder", lambda: _make(path, tensors) if this_rank() == 0 else None)
        with quiet(), one_error("write the tensors"):
            metadata = save_tensors(dict(tensors), storage_writer=Writer(path), no_dist=not dist.is_initialized())
        together(
            "complete it", lambda: _finish(path, step, state | {"tensors": stored.layout(metadata)}, keep) if this_rank() == 0 else None
        )
    except Failed as problem:
        raise UserError(_sorrow(path, step, problem)) from None
    return path


def resume(place: str, model: nn.Module, optimizer: Optimizer, *, strategy: str = "") -> Resumed:
    try:
        found, passed, state, about = together("read it", lambda: _open(place))
        per_rank = bool(state.get("per_rank"))
        if per_rank and found.world_size != world_size():
            raise UserError(f"{found.path} holds {found.world_size} models that differ (Local SGD); resume on {found.world_size} ranks")
        tensors = together("compare it with the model", lambda: _wanted(model, optimizer, about, state, found))
        with quiet(), one_error("load the tensors"):
            load_tensors(tensors, storage_reader=stored.Reader(found, state["tensors"]), no_dist=not dist.is_initialized())
        together("take it up", lambda: _apply(model, optimizer, tensors, state, per_rank))
    except Failed as problem:
        raise UserError(f"cannot resume from {place}: {problem}") from None
    why = _inexact(found, str(state.get("strategy", "")), strategy)
    return Resumed(str(found.path), found.step, state.get("facts", {}), not why, why, tuple(reason for _, reason in passed))


def begin(place: str, model: nn.Module) -> Begun:
    try:
        found, _, state, about = together("read it", lambda: _open(place))
        live = _weights(model, "")
        places = together("compare it with the model", lambda: _places(live, about, found, "rank0." if state["per_rank"] else ""))
        with quiet(), one_error("load the tensors"):
            wanted = {there: live[here] for there, here in places.items()}
            load_tensors(wanted, storage_reader=stored.Reader(found, state["tensors"]), no_dist=not dist.is_initialized())
    except Failed as problem:
        raise UserError(f"cannot start with the weights of {place}: {problem}") from None
    if zero_state.holds(model):
        zero_state.set_weights(model, names(model), {here: wanted[there] for there, here in places.items()})
    kept = tuple(name.removeprefix("model.") for name in live if name not in places.values())
    return Begun(str(found.path), found.step, len(places), kept)


def _places(live: Mapping[str, Tensor], about: About, found: Stored, own: str) -> dict[str, str]:
    theirs = {name: name.removeprefix(own) for name in about if name.startswith(f"{own}model.")}
    inner = {there: here.replace("model.", f"model.{DECODER}", 1) for there, here in theirs.items()}
    places = theirs if any(here in live for here in theirs.values()) else inner
    _same({there: live[here] for there, here in places.items() if here in live}, {name: about[name] for name in places}, found)
    return places


def settle(model: nn.Module, loss: Callable[[], Tensor]) -> None:
    if isinstance(model, DistributedDataParallel):
        loss().backward()
        for parameter in model.parameters():
            parameter.grad = None


def names(model: nn.Module) -> dict[str, nn.Parameter]:
    return {_plain(name): parameter for name, parameter in model.named_parameters()}


def _plain(name: str) -> str:
    for prefix in PREFIXES:
        name = name.replace(f".{prefix}", ".").removeprefix(prefix)
    return name


def _buffers(model: nn.Module) -> dict[str, Tensor]:
    kept = model.state_dict().keys()
    return {_plain(name): buffer for name, buffer in model.named_buffers() if name in kept}


def _weights(model: nn.Module, own: str) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {f"{own}model.{name}": p.detach() for name, p in names(model).items()}
    if zero_state.holds(model):
        tensors = zero_state.empty(model, names(model))
    return tensors | {f"{own}model.{name}": buffer for name, buffer in _buffers(model).items()}


def _prefix(per_rank: bool) -> str:
    return f"rank{this_rank()}." if per_rank else ""


def _tensors(model: nn.Module, optimizer: Optimizer, per_rank: bool) -> dict[str, Tensor]:
    own = _prefix(per_rank)
    if zero_state.holds(model):
        return zero_state.tensors(model, names(model)) | {f"model.{name}": buffer for name, buffer in _buffers(model).items()}
    tensors = _weights(model, own)
    for name, parameter in names(model).items():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{own}optimizer.{name}.{key}"] = value if isinstance(value, Tensor) else torch.tensor(value)
    return tensors


def _options(model: nn.Module, optimizer: Optimizer) -> list[dict[str, Any]]:
    known = {parameter: name for name, parameter in names(model).items()}
    if zero_state.holds(model):
        first = {name: _number(value) for name, value in optimizer.param_groups[0].items() if name not in LIVE}
        return [first | {"params": [name for name, parameter in names(model).items() if parameter.requires_grad]}]
    return [
        {name: _number(value) for name, value in group.items() if name not in LIVE} | {"params": [known[p] for p in group["params"]]}
        for group in optimizer.param_groups
    ]


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value


def _random() -> dict[str, Tensor]:
    version, numbers, gauss = random.getstate()
    states = {"cpu": torch.get_rng_state(), "python": torch.tensor([version, *numbers], dtype=torch.int64)}
    if gauss is not None:
        states["python_gauss"] = torch.tensor(gauss, dtype=torch.float64)
    for kind in ("cuda", "xpu"):
        module = getattr(torch, kind)
        if module.is_available() and module.is_initialized():
            states[kind] = module.get_rng_state()
    return {f"random.rank{this_rank()}.{kind}": state for kind, state in states.items()}


def _make(path: Path, tensors: Mapping[str, Tensor]) -> None:
    stored.remove(path)
    path.mkdir(parents=True)
    need, free = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()), shutil.disk_usage(path).free
    if need > free:
        raise OSError(errno.ENOSPC, f"No space left on device: it needs {format_bytes(need)}, {format_bytes(free)} are free")


class Writer(FileSystemWriter):

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        try:
            return super().write_data(plan, planner)
        except Exception as problem:
            cause = system_error(problem)
            if cause is None:
                raise
            raise OSError(cause.errno, cause.strerror) from None


def _finish(path: Path, step: int, state: Mapping[str, Any], keep: int) -> None:
    stored.complete(path, step, world_size(), state)
    if keep < 1:
        return
    with suppress(OSError):
        stored.prune(path.parent, keep)


def _sorrow(path: Path, step: int, problem: Failed) -> str:
    if this_rank() == 0:
        with suppress(OSError):
            stored.remove(path)
    before = stored.look(path.parent).complete
    stands = f"the checkpoint of step {before[-1].step} stands" if before else "there is none before it"
    hint = "free some space and resume" if problem.full else "mend it and resume"
    return f"cannot save the checkpoint of step {step} in {path}: {problem}; {stands}; {hint}"


About = dict[str, tuple[torch.Size, torch.dtype]]


def _open(place: str) -> tuple[Stored, tuple[tuple[Path, str], ...], dict[str, Any], About]:
    found, passed = stored.find(place)
    state = stored.state_of(found)
    return found, passed, state, stored.shapes(found, state["tensors"])


def _wanted(model: nn.Module, optimizer: Optimizer, about: About, state: Mapping[str, Any], found: Stored) -> dict[str, Tensor]:
    own = _prefix(bool(state["per_rank"]))
    tensors = _weights(model, own)
    _same(tensors, {name: row for name, row in about.items() if name.startswith(f"{own}model.")}, found)
    trained = [name for group in _options(model, optimizer) for name in group["params"]]
    if sorted(trained) != sorted(name for group in state["optimizer"] for name in group["params"]):
        raise UserError(f"{found.path} trained other parameters than this run does")
    for name in trained:
        prefix = f"{own}optimizer.{name}."
        if (keys := _keys(about, prefix)) and {*keys} != STATES:
            raise UserError(
                f"{found.path} holds of {name} the states {', '.join(sorted(keys))[:100]}; AdamW has {', '.join(sorted(STATES))}"
            )
        for key in keys:
            shape, dtype = about[prefix + key]
            like = tensors[f"{own}model.{name}"]
            if not dtype.is_floating_point or shape not in (like.shape, ()):
                raise UserError(
                    f"{found.path}: {prefix}{key} is {dtype} of {tuple(shape)}, which AdamW does not have for {tuple(like.shape)}"
                )
            tensors[prefix + key] = torch.zeros_like(like, dtype=dtype) if shape == like.shape else torch.zeros(shape, dtype=dtype)
    if found.world_size == world_size():
        mine = f"random.rank{this_rank()}."
        tensors |= {name: _small(*row) for name, row in about.items() if name.startswith(mine)}
    return tensors


def _small(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    if shape.numel() > _MOST_NUMBERS:
        raise UserError(f"a state of {shape.numel()} numbers is none that an optimizer of this model has")
    return torch.zeros(shape, dtype=dtype)


def _same(live: Mapping[str, Tensor], about: About, found: Stored) -> None:
    for name in [*live, *about]:
        ours = live[name].shape if name in live else None
        theirs = about[name][0] if name in about else None
        if ours != theirs:
            shown = [str(tuple(shape)) if shape is not None else "missing" for shape in (theirs, ours)]
            raise UserError(f"{found.path} is of another model: {name} is {shown[0]} there and {shown[1]} here")


def _keys(about: About, prefix: str) -> list[str]:
    return [name.removeprefix(prefix) for name in about if name.startswith(prefix) and "." not in name.removeprefix(prefix)]


def _apply(model: nn.Module, optimizer: Optimizer, tensors: Mapping[str, Tensor], state: dict[str, Any], per_rank: bool) -> None:
    if zero_state.holds(model):
        zero_state.restore(model, names(model), tensors)
        zero_state.set_numbers(model, state.get("engine") or {})
        _set_random(tensors)
        return
    own = _prefix(per_rank)
    options = {name: group for group in state["optimizer"] for name in group["params"]}
    native = optimizer.state_dict()
    states: dict[int, dict[str, Tensor]] = {}
    known = {parameter: name for name, parameter in names(model).items()}
    for group, saved in zip(optimizer.param_groups, native["param_groups"], strict=True):
        own_names = [known[p] for p in group["params"]]
        theirs = options[own_names[0]] if own_names else {}
        saved.update({name: _like(saved[name], theirs[name]) for name in saved if name not in LIVE and name in theirs})
        for number, name in zip(saved["params"], own_names, strict=True):
            prefix = f"{own}optimizer.{name}."
            states[number] = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
    native["state"] = {number: row for number, row in states.items() if row}
    optimizer.load_state_dict(native)
    _set_random(tensors)


def _like(now: Any, then: Any) -> Any:
    if isinstance(now, tuple):
        if not isinstance(then, list) or len(then) != len(now):
            raise ValueError(f"{str(then)[:60]} is no list of {len(now)}, as the optimizer's option is")
        return tuple(_like(mine, theirs) for mine, theirs in zip(now, then, strict=True))
    if isinstance(now, (int, float, Tensor)):
        if type(then) not in (int, float, bool) or not math.isfinite(then):
            raise ValueError(f"{str(then)[:60]} is no number, as the optimizer's option is")
        return (
            torch.tensor(then, dtype=now.dtype, device=now.device)
            if isinstance(now, Tensor)
            else bool(then)
            if isinstance(now, bool)
            else then
        )
    return then


def _set_random(tensors: Mapping[str, Tensor]) -> None:
    own = f"random.rank{this_rank()}."
    states = {name.removeprefix(own): value for name, value in tensors.items() if name.startswith(own)}
    if "cpu" in states:
        torch.set_rng_state(states["cpu"])
    if "python" in states:
        version, *numbers = states["python"].tolist()
        gauss = float(states["python_gauss"]) if "python_gauss" in states else None
        random.setstate((version, tuple(numbers), gauss))
    for kind in ("cuda", "xpu"):
        if kind in states:
            getattr(torch, kind).set_rng_state(states[kind])


def _inexact(found: Stored, then: str, now: str) -> str:
    if found.world_size != world_size():
        return f"saved on {found.world_size} ranks and resumed on {world_size()}: sums are in another order"
    return f"saved under {then} and resumed under {now}: sums are in another order" if then != now else ""
