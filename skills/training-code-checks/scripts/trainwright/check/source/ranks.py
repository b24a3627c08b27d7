# check/source/ranks.py without its comments
from __future__ import annotations

import ast
import re

from trainwright.check.source.module import Call, Module, Place, dotted

_RANK = re.compile(r"^_?(?:ddp_|dist_|my_|cur_|current_|global_|local_|world_|node_|process_|proc_)*(?:rank|process_index)$", re.IGNORECASE)
_RANK_CALL = re.compile(r"^(?:get_|_get_)?(?:global_|local_|world_|node_|dist_)*(?:rank|process_index)$", re.IGNORECASE)
_MAIN = re.compile(
    r"^_?(?:is_)?(?:local_|global_|world_|dist_|ddp_)?(?:main|master|chief|primary|first|last)(?:_process|_rank|_proc|_node)$"
    r"|^is_(?:local_)?(?:main|master|chief)$|^is_(?:global_|local_)?rank_?(?:zero|0)$|^is_(?:world|local)_process_zero$|^is_global_zero$"
)
COLLECTIVES = (
    "barrier",
    "monitored_barrier",
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_to_all",
    "all_to_all_single",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
    "new_group",
)
_OF_ACCELERATE = ("wait_for_everyone", "gather", "gather_for_metrics", "reduce", "pad_across_processes")
_OF_ENGINE = ("save_checkpoint", "load_checkpoint", "save_16bit_model", "save_fp16_model")


def rank_sign(module: Module, test: ast.expr, holds: bool = True, depth: int = 0) -> int:
    if depth > 6:
        return 0
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return rank_sign(module, test.operand, not holds, depth + 1)
    if isinstance(test, ast.BoolOp):
        signs = [rank_sign(module, part, holds, depth + 1) for part in test.values]
        sign = next((found for found in signs if found), 0)
        if isinstance(test.op, ast.And) is holds:
            return sign
        rest = [part for part, found in zip(test.values, signs, strict=True) if not found]
        return sign if all(_of_being_distributed(part, not holds) for part in rest) else 0
    sign = _of_comparison(module, test) if isinstance(test, ast.Compare) and len(test.ops) == 1 else _of_name(module, test, depth)
    return sign if holds else -sign


def _of_being_distributed(test: ast.expr, holds: bool) -> bool:
    while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, holds = test.operand, not holds
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        name = (dotted(test.left) or dotted(getattr(test.left, "func", None))).rpartition(".")[2]
        counts = name in ("world_size", "num_processes", "get_world_size", "n_gpu") or _is_rank(test.left)
        several = isinstance(test.ops[0], (ast.Gt, ast.NotEq))
        return counts and _whole(test.comparators[0]) in (1, -1) and several is holds
    name = dotted(test) or dotted(getattr(test, "func", None))
    return holds and re.search(r"initialized|available|distributed|ddp|multi_?gpu", name, re.IGNORECASE) is not None


def _whole(node: ast.expr) -> int | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        return -node.operand.value if type(node.operand.value) is int else None
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None


def _of_comparison(module: Module, test: ast.Compare) -> int:
    left, op, right = test.left, test.ops[0], test.comparators[0]
    if _whole(left) is not None and isinstance(op, (ast.Eq, ast.NotEq)):
        left, right = right, left
    if not _is_rank(left, module):
        return 0
    number = _whole(right)
    if number is not None and number >= 0:
        if isinstance(op, (ast.Eq, ast.NotEq)):
            return 1 if isinstance(op, ast.Eq) else -1
        return -1 if isinstance(op, ast.Gt) or (isinstance(op, ast.GtE) and number > 0) else 0
    if isinstance(op, (ast.In, ast.NotIn)) and isinstance(right, (ast.List, ast.Tuple, ast.Set)):
        numbers = [_whole(part) for part in right.elts]
        if 0 in numbers and None not in numbers:
            return 1 if isinstance(op, ast.In) else -1
    return 0


def _is_rank(node: ast.expr, module: Module | None = None, depth: int = 0) -> bool:
    if isinstance(node, ast.Call):
        name = dotted(node.func).rpartition(".")[2]
        if name in ("int", "get", "getenv") and node.args:
            return _is_rank(node.args[0], module, depth + 1) if depth < 4 else False
        return _RANK_CALL.match(name) is not None and not any(k.arg == "group" for k in node.keywords) and not node.args
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and _is_rank(node.slice)
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value in ("RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID")
    return _RANK.match(dotted(node).rpartition(".")[2]) is not None


def _of_name(module: Module, test: ast.expr, depth: int) -> int:
    if isinstance(test, ast.Call):
        return 1 if not test.args and _MAIN.match(dotted(test.func).rpartition(".")[2]) else 0
    name = dotted(test)
    last = name.rpartition(".")[2]
    if _MAIN.match(last):
        return 1
    if name and _RANK.match(last):
        return -1
    signs = {rank_sign(module, value, True, depth + 1) for value in module.bindings.get(name, []) if value is not None}
    return next(iter(signs)) if len(signs) == 1 and None not in module.bindings.get(name, [None]) else 0


def sign_of(module: Module, place: Place) -> tuple[int, ast.expr | None]:
    for guard in reversed(place.guards):
        sign = rank_sign(module, guard.test, guard.holds)
        if sign:
            return sign, guard.test
    return 0, None


def is_collective(call: Call) -> bool:
    if "group" in call.keywords or "process_group" in call.keywords:
        return False
    if call.name.startswith(("torch.distributed.", "deepspeed.comm.")) and "()" not in call.name:
        return call.last in COLLECTIVES
    if call.name.startswith("accelerate.") and (call.owner.endswith(("Accelerator()", "PartialState()", "AcceleratorState()"))):
        return call.last in _OF_ACCELERATE
    return call.of("accelerate", "wait_for_everyone", "gather_object", "broadcast_object_list") or is_of_engine(call)


def is_of_engine(call: Call) -> bool:
    return call.last in _OF_ENGINE and call.owner == "deepspeed.initialize()[0]"
