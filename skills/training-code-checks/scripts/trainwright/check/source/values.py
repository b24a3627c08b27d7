# check/source/values.py without its comments
from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_DEPTH = 20
_LONGEST = 4096


class Unknown:

    def __repr__(self) -> str:
        return "unknown"

    def __bool__(self) -> bool:
        return False


UNKNOWN = Unknown()


@dataclass(frozen=True, slots=True)
class Symbol:

    name: str

    @property
    def last(self) -> str:
        return self.name.rpartition(".")[2]

    def __str__(self) -> str:
        return self.name


def _power(a: Any, b: Any) -> Any:
    return a**b if abs(a) < 1000 and abs(b) < 20 else UNKNOWN


_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}


def value_of(node: ast.expr | None, look_up: Callable[[ast.expr, int], Any], depth: int = 0) -> Any:
    if node is None or depth > _DEPTH:
        return UNKNOWN
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.Name, ast.Attribute)):
        return look_up(node, depth + 1)
    if isinstance(node, ast.UnaryOp):
        return _unary(node, value_of(node.operand, look_up, depth + 1))
    if isinstance(node, ast.BinOp):
        return _binary(node, value_of(node.left, look_up, depth + 1), value_of(node.right, look_up, depth + 1))
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        items = [value_of(item, look_up, depth + 1) for item in node.elts[:1000]]
        return UNKNOWN if any(item is UNKNOWN for item in items) else items
    if isinstance(node, ast.Dict):
        return _mapping(list(zip(node.keys, node.values, strict=True)), look_up, depth)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict" and not node.args:
        return _mapping([(ast.Constant(k.arg) if k.arg else None, k.value) for k in node.keywords], look_up, depth)
    return UNKNOWN


def _mapping(pairs: list[tuple[ast.expr | None, ast.expr]], look_up: Callable[[ast.expr, int], Any], depth: int) -> Any:
    found = {}
    for key_node, item in pairs:
        key = value_of(key_node, look_up, depth + 1)
        if not isinstance(key, (str, int, float)):
            return UNKNOWN
        found[key] = value_of(item, look_up, depth + 1)
    return found


def _unary(node: ast.UnaryOp, value: Any) -> Any:
    if isinstance(node.op, ast.Not):
        return UNKNOWN if value is UNKNOWN or isinstance(value, Symbol) else not value
    if isinstance(value, (int, float)) and isinstance(node.op, (ast.USub, ast.UAdd)):
        return -value if isinstance(node.op, ast.USub) else value
    return UNKNOWN


def _binary(node: ast.BinOp, left: Any, right: Any) -> Any:
    numbers = all(isinstance(side, (int, float)) for side in (left, right))
    texts = all(isinstance(side, str) and len(side) < _LONGEST for side in (left, right)) and isinstance(node.op, ast.Add)
    run = _ARITHMETIC.get(type(node.op))
    if run is None or not (numbers or texts):
        return UNKNOWN
    if numbers and max(abs(left), abs(right)) > 1e300:
        return UNKNOWN
    try:
        return run(left, right)
    except (ArithmeticError, ValueError):
        return UNKNOWN


def known(value: Any) -> bool:
    if isinstance(value, dict):
        return all(known(item) for item in value.values())
    return value is not UNKNOWN
