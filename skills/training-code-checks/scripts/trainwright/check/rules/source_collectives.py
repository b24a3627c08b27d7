# check/rules/source_collectives.py without its comments
from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import islice

from trainwright.check.source.module import Call, Function, Guard, dotted, words_of
from trainwright.check.source.program import Program, wrapped
from trainwright.check.source.ranks import COLLECTIVES, is_collective, is_of_engine, rank_sign, sign_of
from trainwright.report import Severity
from trainwright.rules import Hit, rule

_HARMLESS = ("initialized", "available", "world_size", "num_processes", "distributed")


@rule("SRC001", Severity.ERROR, Program, fails_at="first step", checked="run", source="torch-2.13.0-distributed")
def collective_on_some_ranks(program: Program) -> Iterator[Hit]:
    """A barrier, a reduction or a gather that only some ranks reach: the others never join, and the job hangs.

    Every rank of the group has to make the call. Under `if rank == 0`, behind `if rank != 0: return`, in a function marked
    `on_main_process`, or in a function called from such a place, one rank waits for the rest until the timeout (30 minutes with
    gloo, 10 with NCCL, for ever with XCCL). Calls that stand in both branches, or once under a condition and once under its
    opposite, meet each other and are not told. Where only some ranks wait for an asynchronous collective, the others compute with what
    is not yet reduced.

    Bad `train.py`:

        import torch.distributed as dist

        def save(model, rank):
            if rank == 0:
                write(model)
                dist.barrier()

    Good `train.py`:

        import torch.distributed as dist

        def save(model, rank):
            if rank == 0:
                write(model)
            dist.barrier()
    """
    told: set[int] = set()
    if program.context.world_size == 1:
        return
    for call in program.calls:
        if is_collective(call) and not is_of_engine(call):
            yield from _alone(program, call, f"{call.last}()", told)
        elif call.last == "wait" and call.owner.endswith("()") and call.owner[:-2].rpartition(".")[2] in COLLECTIVES:
            yield from _not_awaited(program, call)
    for name, call in _local_collectives(program):
        yield from _alone(program, call, f"{name}(), which calls {_inner(program, name)}(),", told)
    for function, mark, place in program.module.decorated:
        if mark.rpartition(".")[2] in ("on_main_process", "on_local_main_process", "on_last_process", "rank_zero_only"):
            for call in _of_function(program, function):
                if is_collective(call) and call.node.lineno not in told and not place.guards:
                    yield Hit(
                        f"{call.last}() in a function that runs on one rank alone (@{mark}): the others never join", program.at(call.node)
                    )


def _alone(program: Program, call: Call, shown: str, told: set[int]) -> Iterator[Hit]:
    sign, test = sign_of(program.module, call.place)
    if not sign or test is None or call.place.handler or call.node.lineno in told or _answered(program, call, sign):
        return
    told.add(call.node.lineno)
    where = "behind" if test.lineno and _left(program, call, test) else "under"
    condition = _shown(test)
    yield Hit(
        f"{shown} {where} `{condition}`: the other ranks never join it, and the job hangs",
        program.at(call.node),
        data={"condition": condition},
    )


def _not_awaited(program: Program, call: Call) -> Iterator[Hit]:
    sign, test = sign_of(program.module, call.place)
    if sign and test is not None and call.name.startswith("torch.distributed.") and not _answered(program, call, sign):
        message = f"wait() under `{_shown(test)}`: the other ranks go on before {call.owner.rpartition('.')[2]} is done"
        yield Hit(message, program.at(call.node), fails_at="never")


def _left(program: Program, call: Call, test: ast.expr) -> bool:
    return any(
        guard.test is test and not guard.holds and (test.end_lineno or 0) < call.node.lineno for guard in call.place.guards
    ) and not any(
        isinstance(node, ast.If) and node.test is test and node.orelse for node in ast.walk(call.place.function or program.module.tree)
    )


def _answered(program: Program, call: Call, sign: int) -> bool:
    mine = {(id(guard.test), guard.holds) for guard in call.place.guards if rank_sign(program.module, guard.test, guard.holds)}
    for other in program.calls:
        beside = other is not call and other.place.function is call.place.function and _kin(other) == _kin(call)
        if beside and sign_of(program.module, other.place)[0] == -sign:
            return True
        if beside and any((id(guard.test), not guard.holds) in mine for guard in other.place.guards):
            return True
    return False


def _kin(call: Call) -> str:
    return "barrier" if call.last in ("barrier", "monitored_barrier", "wait_for_everyone") else call.last


def _shown(test: ast.expr) -> str:
    small = sum(1 for _ in islice(ast.walk(test), 61)) <= 60
    text = ast.unparse(test) if small else "a long condition"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _inner(program: Program, name: str) -> str:
    function = program.module.functions[name]
    return next((call.last for call in _of_function(program, function) if is_collective(call)), "a collective")


def _of_function(program: Program, function: Function) -> list[Call]:
    return [call for call in program.calls if call.place.function is function]


def _local_collectives(program: Program) -> Iterator[tuple[str, Call]]:
    names = {
        name
        for name, function in program.module.functions.items()
        if any(is_collective(call) and _always(program, call) for call in _of_function(program, function))
    }
    for call in program.calls:
        plain = dotted(call.node.func)
        if plain in names and "." not in plain:
            yield plain, call
        elif plain.startswith("self.") and f"{call.place.owner}.{plain[5:]}" in names:
            yield f"{call.place.owner}.{plain[5:]}", call


def _always(program: Program, call: Call) -> bool:
    if call.place.handler or call.place.loops:
        return False
    return all(_harmless(guard) for guard in call.place.guards) and not any(
        rank_sign(program.module, g.test, g.holds) for g in call.place.guards
    )


def _harmless(guard: Guard) -> bool:
    words = words_of(guard.test)
    return any(word in words for word in _HARMLESS)


@rule("SRC002", Severity.ERROR, Program, fails_at="end of run", checked="source", source="accelerate-1.15.0-accelerator")
def gathered_save_on_one_rank(program: Program) -> Iterator[Hit]:
    """A checkpoint is taken on one rank, while taking it needs the shards of all: the job hangs at the first save.

    Under FSDP `state_dict()` gathers, under ZeRO-3 `get_state_dict()` does, and a DeepSpeed engine's `save_checkpoint()` is for all ranks
    at every stage. Take the state on all ranks and let rank 0 write it. Told where the source or the config file shows that the
    model is sharded; the same lines are right for DDP.

    Bad `train.py`:

        import deepspeed

        engine, _, _, _ = deepspeed.initialize(model=model, config="ds.json")
        if engine.global_rank == 0:
            engine.save_checkpoint("out")

    Good `train.py`:

        import deepspeed

        engine, _, _, _ = deepspeed.initialize(model=model, config="ds.json")
        engine.save_checkpoint("out")
    """
    if program.context.world_size == 1:
        return
    for call in program.calls:
        sign, test = sign_of(program.module, call.place)
        why = _gathers(program, call) if sign and test is not None else ""
        if why and test is not None and not call.place.handler and not _answered(program, call, sign):
            yield Hit(f"{call.last}() under `{_shown(test)}`: {why}, and the job hangs", program.at(call.node))


def _gathers(program: Program, call: Call) -> str:
    sharding = program.sharding
    if is_of_engine(call):
        return "every rank of a DeepSpeed engine has to call it"
    sharded = sharding in ("fsdp1", "fsdp2") or (sharding == "deepspeed" and _stage(program) == 3)
    if call.on("accelerate", "Accelerator", "get_state_dict") and sharded:
        return "it gathers the shards of all ranks"
    if call.on("accelerate", "Accelerator", "save_state") and sharding in ("fsdp1", "fsdp2", "deepspeed"):
        return "every rank saves its shard there"
    if call.last == "save_model" and call.owner.endswith("Trainer()") and sharded:
        return "it gathers the shards of all ranks"
    if call.of("torch", "get_model_state_dict", "get_state_dict", "get_optimizer_state_dict") and "checkpoint" in call.name:
        return "it gathers the shards of all ranks" if sharding.startswith("fsdp") else ""
    if call.last in ("full_optim_state_dict", "summon_full_params", "optim_state_dict") and "FullyShardedDataParallel" in call.name:
        return "it gathers the shards of all ranks"
    if call.last == "state_dict" and _is_sharded_model(program, call):
        return "it gathers the shards of all ranks"
    return ""


def _stage(program: Program) -> int | None:
    for config in program.job.deepspeed:
        return config.stage
    value = program.config.whole("zero_stage") if program.config else None
    for call in program.module.called("accelerate", "DeepSpeedPlugin"):
        given = program.given(call, "zero_stage")
        value = given if isinstance(given, int) else value
    return value


def _is_sharded_model(program: Program, call: Call) -> bool:
    owner = dotted(call.node.func).rpartition(".")[0]
    values = [v for v in program.module.bindings.get(owner, []) if isinstance(v, ast.Call)]
    if not owner:
        return False
    wraps = {id(w.node) for w in wrapped(program)}
    if any(id(value) in wraps for value in values):
        return not _offloads_locally(program)
    shards = [w for w in program.module.called("torch", "fully_shard") if w.node.args and dotted(w.node.args[0]) == owner]
    return any(w.place.function is call.place.function and w.order < call.order for w in shards)


def _offloads_locally(program: Program) -> bool:
    return any("LOCAL_STATE_DICT" in text for text in (*program.module.read, *program.module.texts))
