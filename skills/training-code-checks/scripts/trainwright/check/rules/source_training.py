# check/rules/source_training.py without its comments
from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from trainwright.check.source.module import Call, dotted
from trainwright.check.source.program import Program, text_of, wrapped
from trainwright.check.source.values import UNKNOWN
from trainwright.report import Severity
from trainwright.rules import Hit, rule

_EVAL = re.compile(r"val|eval|test|infer|pred|dev", re.IGNORECASE)
_STEPPED = ("backward", "step", "zero_grad")


@rule("SRC003", Severity.ERROR, Program, fails_at="never", checked="run", source="torch-2.13.0-fsdp")
def local_clipping_under_fsdp1(program: Program) -> Iterator[Hit]:
    """Gradients of an FSDP1 model are clipped by torch's function, which sees the shard of one rank and takes it for the whole.

    Each rank then divides by the norm of its own shard: the norm is too small, differs between ranks, and the model trains otherwise
    than under DDP. `model.clip_grad_norm_(max_norm)` of the wrapper, or `accelerator.clip_grad_norm_`, reduces the norm first.
    FSDP2 holds DTensors, for which torch's function is right.

    Bad `train.py`:

        import torch
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        model = FSDP(build())
        for batch in loader:
            model(batch).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    Good `train.py`:

        import torch
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        model = FSDP(build())
        for batch in loader:
            model(batch).backward()
            model.clip_grad_norm_(1.0)
    """
    if program.sharding != "fsdp1" or _is_not_sharded(program):
        return
    calls = [
        c
        for c in program.calls
        if c.name in ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad.clip_grad_norm_", "torch.nn.utils.clip_grad_norm")
    ]
    by_wrapper = [c for c in program.calls if c.last == "clip_grad_norm_" and c not in calls]
    if by_wrapper or "clip_grad_norm_" in program.module.texts:
        return
    for call in calls:
        if not _of_other(program, call):
            fix = "accelerator.clip_grad_norm_" if program.module.called("accelerate", "Accelerator") else "model.clip_grad_norm_"
            yield Hit(f"{call.last}() of torch clips each rank's shard by its own norm under FSDP1: use {fix}(...)", program.at(call.node))


def _is_not_sharded(program: Program) -> bool:
    return any(text_of(program.value(c.argument("sharding_strategy"))) == "NO_SHARD" for c in wrapped(program))


def _of_other(program: Program, call: Call) -> bool:
    given = call.argument("parameters", 0)
    owner = dotted(given.func).rpartition(".")[0] if isinstance(given, ast.Call) else ""
    wraps = {id(w.node) for w in wrapped(program)}
    sharded = {name for name, values in program.module.bindings.items() if any(id(v) in wraps for v in values)}
    return bool(owner and sharded) and owner not in sharded and owner.rpartition(".")[2] not in {s.rpartition(".")[2] for s in sharded}


@rule("SRC004", Severity.WARNING, Program, fails_at="never", checked="report", source="torch-xpu-ops-3744")
def cache_emptied_each_step(program: Program) -> Iterator[Hit]:
    """The allocator's cache is emptied in every training step: each step waits for the device and allocates anew.

    `empty_cache()` frees nothing that the step needs, it synchronises, and what it gives back is asked for again in the next step. On
    XPU with XCCL each call leaks besides (0.37 GiB an iteration has been reported), although the text of the out-of-memory error
    advises it. Behind a condition (every N steps, after evaluation, after an error) it is not told.

    Bad `train.py`:

        import torch

        for batch in loader:
            loss = model(batch)
            loss.backward()
            optimizer.step()
            torch.cuda.empty_cache()

    Good `train.py`:

        import torch

        for epoch in range(3):
            for batch in loader:
                loss = model(batch)
                loss.backward()
                optimizer.step()
            torch.cuda.empty_cache()
    """
    names = ("torch.cuda.empty_cache", "torch.cuda.memory.empty_cache", "torch.xpu.empty_cache", "torch.xpu.memory.empty_cache")
    for call in program.calls:
        if call.name not in names or not call.place.loops or call.place.handler:
            continue
        loop = call.place.loops[-1]
        steps = [c for c in program.calls if c.place.loops[-1:] == (loop,) and c.last == "backward"]
        if any(set(step.place.guards) >= set(call.place.guards) or call.place.guards == step.place.guards for step in steps):
            leak = ", and leaks with XCCL" if "xpu" in call.name else ""
            yield Hit(f"{call.name}() in every training step: each step waits and allocates anew{leak}", program.at(call.node))


@rule("SRC005", Severity.WARNING, Program, fails_at="never", checked="run", source="torch-2.13.0-data")
def epoch_never_set(program: Program) -> Iterator[Hit]:
    """A DistributedSampler shuffles, and nobody tells it the epoch: every epoch has the same order, on every rank.

    The sampler's seed is its own plus the epoch that `set_epoch()` was called with, 0 without. Call `sampler.set_epoch(epoch)` on top
    of each epoch. Accelerate's prepared loaders, Lightning and the Trainer do it themselves, and then it is not told.

    Bad `train.py`:

        from torch.utils.data import DataLoader, DistributedSampler

        sampler = DistributedSampler(dataset)
        loader = DataLoader(dataset, sampler=sampler)
        for epoch in range(10):
            for batch in loader:
                train(batch).backward()

    Good `train.py`:

        from torch.utils.data import DataLoader, DistributedSampler

        sampler = DistributedSampler(dataset)
        loader = DataLoader(dataset, sampler=sampler)
        for epoch in range(10):
            sampler.set_epoch(epoch)
            for batch in loader:
                train(batch).backward()
    """
    module = program.module
    if module.imports_any("lightning", "pytorch_lightning", "ignite", "mmengine", "mmcv", "composer") or not _has_epochs(program):
        return
    sources = [s.text for s in program.job.sources]
    if (
        any("set_epoch" in text for text in sources)
        or module.called("accelerate", "Accelerator")
        or module.called("transformers", "Trainer")
    ):
        return
    for call in module.called("torch", "DistributedSampler"):
        shuffle = program.value(call.argument("shuffle", 3)) if call.argument("shuffle", 3) is not None else True
        if shuffle in (True, 1) and shuffle is not UNKNOWN and not call.spread and not _EVAL.search(_around(program, call)):
            yield Hit(
                "DistributedSampler shuffles, and nothing calls its set_epoch(): every epoch has the same order", program.at(call.node)
            )


def _has_epochs(program: Program) -> bool:
    loops = {id(c.place.loops[-2]): c.place.loops[-2] for c in program.calls if c.last == "backward" and len(c.place.loops) >= 2}
    for loop in loops.values():
        if isinstance(loop, ast.For) and program.module.value(_bound(loop)) != 1:
            return True
    named = {name for loop in ast.walk(program.module.tree) if isinstance(loop, ast.For) for name in [dotted(loop.target)]}
    return any("epoch" in name for name in named) and any(c.last == "backward" and c.place.loops for c in program.calls)


def _bound(loop: ast.For) -> ast.expr | None:
    called = loop.iter
    return called.args[-1] if isinstance(called, ast.Call) and dotted(called.func) in ("range", "trange") and called.args else None


def _around(program: Program, call: Call) -> str:
    names = [name for name, values in program.module.bindings.items() if any(v is call.node for v in values)]
    return " ".join([*names, *(dotted(argument) for argument in call.node.args[:1]), call.place.name])


@rule("SRC006", Severity.WARNING, Program, fails_at="first step", checked="run", source="torch-2.13.0-ddp")
def parameters_ddp_does_not_expect(program: Program) -> Iterator[Hit]:
    """DDP and parameters without a gradient: a static graph that changes, the search asked for twice, or a layer that is never used.

    `static_graph=True` finds unused parameters in the first step and takes them for unused ever after: `find_unused_parameters` beside
    it is a warning and no more, and a layer that is skipped at random, or frozen and thawed on the way, ends the run ("Your training
    graph has changed in this iteration"). Without either, a layer that forward() never uses ends it in the second step ("Expected to
    have finished reduction in the prior iteration").

    Bad `train.py`:

        from torch.nn.parallel import DistributedDataParallel as DDP

        model = DDP(build(), device_ids=[rank], static_graph=True, find_unused_parameters=True)

    Good `train.py`:

        from torch.nn.parallel import DistributedDataParallel as DDP

        model = DDP(build(), device_ids=[rank], static_graph=True)
    """
    calls = program.module.called("torch", "DistributedDataParallel") + program.module.called("accelerate", "DistributedDataParallelKwargs")
    for call in calls:
        static, search = (program.given(call, name) for name in ("static_graph", "find_unused_parameters"))
        if static is True and search is True:
            yield Hit(
                "static_graph and find_unused_parameters: the static graph finds them itself, in the first step alone",
                program.at(call.node),
                "static_graph",
            )
        if static is True:
            yield from _changes(program, call)
        elif static in (None, False) and search in (None, False) and static is not UNKNOWN and search is not UNKNOWN:
            yield from _unused(program, call)


def _changes(program: Program, call: Call) -> Iterator[Hit]:
    for test, place in program.module.tests:
        if place.name == "forward" and place.owner and _by_chance(program, test):
            message = f"layers under this condition are used by chance; static_graph (line {call.node.lineno}) takes the first step for all"
            yield Hit(message, program.at(test), "static_graph", severity=Severity.ERROR)


def _by_chance(program: Program, test: ast.expr) -> bool:
    draws = (
        "random.random",
        "random.uniform",
        "random.randint",
        "numpy.random.rand",
        "numpy.random.uniform",
        "torch.rand",
        "torch.rand().item",
    )
    return any(isinstance(part, ast.Call) and program.module.name_of(part.func) in draws for part in ast.walk(test))


def _unused(program: Program, call: Call) -> Iterator[Hit]:
    made = call.argument("module", 0)
    values = [made, *[v for v in program.module.bindings.get(dotted(made), []) if v is not None]] if made is not None else []
    names = {dotted(part.func) for v in values for part in ast.walk(v) if isinstance(part, ast.Call)}
    for name in sorted(names & {*program.module.classes}):
        for attribute, node in _layers(program, program.module.classes[name]):
            if not _is_read(program, attribute):
                message = f"{name}.{attribute} is made and never used: its parameters get no gradient, and DDP stops in the second step"
                yield Hit(message, program.at(node), attribute, severity=Severity.ERROR)


def _layers(program: Program, made: ast.ClassDef) -> Iterator[tuple[str, ast.AST]]:
    plain = (
        "Linear",
        "Conv1d",
        "Conv2d",
        "Conv3d",
        "Embedding",
        "LayerNorm",
        "BatchNorm2d",
        "Bilinear",
        "LSTM",
        "GRU",
        "MultiheadAttention",
    )
    walks = ("children", "modules", "named_children", "named_modules", "_modules", "getattr", "__getattr__")
    words = {getattr(part, "attr", getattr(part, "id", "")) for part in ast.walk(made)}
    if words & {*walks} or not any(dotted(base).endswith("Module") for base in made.bases):
        return
    for part in ast.walk(made):
        if isinstance(part, ast.Assign) and isinstance(part.value, ast.Call) and dotted(part.targets[0]).startswith("self."):
            attribute = dotted(part.targets[0])[5:]
            if program.module.name_of(part.value.func) in {f"torch.nn.{kind}" for kind in plain} and "." not in attribute:
                yield attribute, part


def _is_read(program: Program, attribute: str) -> bool:
    if program.module.read.get(attribute) or attribute in program.module.texts:
        return True
    others = [s.text for s in program.job.sources if s is not program.source]
    return any(re.search(rf"\b{re.escape(attribute)}\b", text) for text in others)
