# check/source/module.py without its comments
from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from typing import Any

from trainwright.check.source.values import UNKNOWN, Symbol, value_of

Function = ast.FunctionDef | ast.AsyncFunctionDef
_LONGEST_CHAIN = 12
_MOST_NODES = 150_000
_MOST_ITEMS = 500


@dataclass(frozen=True, slots=True)
class Guard:

    test: ast.expr
    holds: bool


@dataclass(frozen=True, slots=True)
class Place:

    function: Function | ast.Lambda | None = None
    owner: str = ""
    guards: tuple[Guard, ...] = ()
    loops: tuple[ast.For | ast.AsyncFor | ast.While, ...] = ()
    handler: bool = False
    tried: bool = False

    @property
    def name(self) -> str:
        return getattr(self.function, "name", "")


@dataclass(frozen=True, slots=True)
class Call:

    node: ast.Call
    name: str
    place: Place
    order: int

    @property
    def last(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def owner(self) -> str:
        return self.name.rpartition(".")[0]

    @property
    def keywords(self) -> dict[str, ast.expr]:
        return {keyword.arg: keyword.value for keyword in self.node.keywords if keyword.arg}

    @property
    def spread(self) -> bool:
        return any(keyword.arg is None for keyword in self.node.keywords) or any(isinstance(a, ast.Starred) for a in self.node.args)

    def argument(self, name: str, position: int | None = None) -> ast.expr | None:
        if position is not None and position < len(self.node.args) and not self.spread:
            return self.node.args[position]
        return self.keywords.get(name)

    def of(self, package: str, *names: str) -> bool:
        return self.last in names and self.name.startswith(f"{package}.") and "()" not in self.name

    def on(self, package: str, owner: str, *names: str) -> bool:
        return self.last in names and self.name.startswith(f"{package}.") and self.owner.endswith(f".{owner}()")


@dataclass(slots=True)
class Module:

    tree: ast.Module
    names: dict[str, str] = field(default_factory=dict)
    imports: list[tuple[str, ast.stmt, Place]] = field(default_factory=list)
    bindings: dict[str, list[ast.expr | None]] = field(default_factory=lambda: defaultdict(list))
    parts: dict[str, list[tuple[ast.expr, int]]] = field(default_factory=lambda: defaultdict(list))
    calls: list[Call] = field(default_factory=list)
    functions: dict[str, Function] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    tests: list[tuple[ast.expr, Place]] = field(default_factory=list)
    subscripts: list[tuple[ast.Subscript, Place, int]] = field(default_factory=list)
    decorated: list[tuple[Function, str, Place]] = field(default_factory=list)
    returns: list[tuple[ast.stmt, Place, int]] = field(default_factory=list)
    read: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    written: set[str] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)
    kinds: dict[str, str] = field(default_factory=dict)
    stored: dict[int, ast.expr] = field(default_factory=dict)
    cut: bool = False
    by_last: dict[str, list[Call]] = field(default_factory=lambda: defaultdict(list))

    def called(self, package: str, *names: str) -> list[Call]:
        return [call for name in names for call in self.by_last.get(name, ()) if call.of(package, name)]

    def imports_any(self, *packages: str) -> bool:
        return any(name.split(".")[0] in packages or name in packages for name, _, _ in self.imports)

    def name_of(self, node: ast.AST | None, depth: int = 0) -> str:
        chain: list[str] = []
        for _ in range(_LONGEST_CHAIN):
            if isinstance(node, ast.Attribute):
                chain.append(node.attr)
                node = node.value
            elif isinstance(node, ast.Call):
                inner = self.name_of(node.func, depth + 1) if depth < _LONGEST_CHAIN else ""
                return ".".join([f"{inner}()", *reversed(chain)]) if inner else ""
            elif isinstance(node, ast.Name):
                return self._resolved([node.id, *reversed(chain)])
            else:
                return ""
        return ""

    def _resolved(self, chain: list[str]) -> str:
        for length in range(len(chain), 0, -1):
            head = ".".join(chain[:length])
            known = self.kinds.get(head) or (self.names.get(head) if length == 1 else None)
            if known:
                return ".".join([known, *chain[length:]])
        return ".".join(chain)

    def value(self, node: ast.expr | None) -> Any:
        return value_of(node, self._look_up)

    def _look_up(self, node: ast.expr, depth: int) -> Any:
        plain = dotted(node)
        if plain in self.bindings:
            values = self.bindings[plain]
            return value_of(values[0], self._look_up, depth) if len(values) == 1 and values[0] is not None else UNKNOWN
        root = plain.split(".")[0]
        return Symbol(self.name_of(node)) if root in self.names and root not in self.bindings else UNKNOWN


def dotted(node: ast.AST | None) -> str:
    chain: list[str] = []
    for _ in range(_LONGEST_CHAIN):
        if isinstance(node, ast.Attribute):
            chain.append(node.attr)
            node = node.value
        elif isinstance(node, ast.Name):
            return ".".join([node.id, *reversed(chain)])
        else:
            return ""
    return ""


def words_of(node: ast.AST) -> str:
    parts = islice(ast.walk(node), 200)
    return " ".join(str(getattr(p, "id", "") or getattr(p, "attr", "") or getattr(p, "value", ""))[:80] for p in parts).lower()


@lru_cache(maxsize=8)
def take_apart(tree: ast.Module) -> Module:
    module = Module(tree)
    walk = list(islice(_walk(tree), _MOST_NODES))
    module.cut = len(walk) == _MOST_NODES
    calls = []
    for order, (node, place) in enumerate(walk):
        if isinstance(node, ast.Call):
            calls.append((order, node, place))
        else:
            _note(module, node, place, order)
    _kinds(module)
    module.calls = [Call(node, module.name_of(node.func), place, order) for order, node, place in calls]
    for call in module.calls:
        module.by_last[call.last].append(call)
    return module


def _walk(tree: ast.Module) -> Iterator[tuple[ast.AST, Place]]:
    stack: list[tuple[ast.AST, Place]] = [(tree, Place())]
    while stack:
        node, place = stack.pop()
        yield node, place
        stack.extend(reversed(list(_children(node, place))))


def _children(node: ast.AST, place: Place) -> Iterator[tuple[ast.AST, Place]]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield from ((part, place) for part in (*node.decorator_list, node.args, *([node.returns] if node.returns else [])))
        yield from _block(node.body, Place(node, place.owner))
    elif isinstance(node, ast.Lambda):
        yield node.args, place
        yield node.body, Place(node, place.owner)
    elif isinstance(node, ast.ClassDef):
        yield from ((part, place) for part in (*node.decorator_list, *node.bases, *node.keywords))
        yield from _block(node.body, replace(place, owner=node.name))
    elif isinstance(node, (ast.If, ast.IfExp)):
        yield node.test, place
        for part, holds in ((node.body, True), (node.orelse, False)):
            inner = replace(place, guards=(*place.guards, Guard(node.test, holds)))
            yield from _block(part, inner) if isinstance(part, list) else [(part, inner)]
    elif isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
        inside = replace(place, loops=(*place.loops, node))
        yield from [(node.test, place)] if isinstance(node, ast.While) else [(node.iter, place), (node.target, place)]
        yield from _block(node.body, inside)
        yield from _block(node.orelse, place)
    elif isinstance(node, ast.Try):
        yield from _block(node.body, replace(place, tried=place.tried or bool(node.handlers)))
        for handler in node.handlers:
            yield from _block(handler.body, replace(place, handler=True))
        yield from _block([*node.orelse, *node.finalbody], place)
    elif isinstance(body := getattr(node, "body", None), list):
        inside_body = {id(part) for part in body}
        yield from ((part, place) for part in ast.iter_child_nodes(node) if id(part) not in inside_body)
        yield from _block(body, place)
    elif not (
        isinstance(node, (ast.List, ast.Tuple, ast.Set, ast.Dict))
        and len(getattr(node, "elts", ()) or getattr(node, "keys", ())) > _MOST_ITEMS
    ):
        yield from ((part, place) for part in ast.iter_child_nodes(node))


def _block(statements: list[Any], place: Place) -> Iterator[tuple[ast.AST, Place]]:
    for statement in statements:
        yield statement, place
        if isinstance(statement, ast.If) and not statement.orelse and statement.body and _leaves(statement.body[-1]):
            place = replace(place, guards=(*place.guards[-20:], Guard(statement.test, False)))


def _leaves(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return dotted(statement.value.func) in ("sys.exit", "exit", "quit", "os._exit")
    return isinstance(statement, (ast.Return, ast.Continue, ast.Break))


def _note(module: Module, node: ast.AST, place: Place, order: int) -> None:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        _import(module, node, place)
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        module.functions.setdefault(f"{place.owner}.{node.name}" if place.owner else node.name, node)
        module.decorated += [(node, dotted(d.func if isinstance(d, ast.Call) else d), place) for d in node.decorator_list]
    elif isinstance(node, ast.ClassDef):
        module.classes.setdefault(node.name, node)
    elif isinstance(node, ast.arg):
        module.bindings[node.arg].append(None)
    elif isinstance(node, ast.Attribute):
        if isinstance(node.ctx, ast.Load):
            module.read[node.attr] += 1
        else:
            module.written.add(node.attr)
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, str) and len(node.value) < 200:
            module.texts.add(node.value)
    elif isinstance(node, ast.Subscript):
        module.subscripts.append((node, place, order))
    elif isinstance(node, (ast.Return, ast.Continue, ast.Break)):
        module.returns.append((node, place, order))
    elif isinstance(node, (ast.If, ast.While)):
        module.tests.append((node.test, place))
    else:
        _bind(module, node)


def _import(module: Module, node: ast.Import | ast.ImportFrom, place: Place) -> None:
    if isinstance(node, ast.Import):
        for alias in node.names:
            module.imports.append((alias.name, node, place))
            module.names[alias.asname or alias.name.split(".")[0]] = alias.name if alias.asname else alias.name.split(".")[0]
        return
    base = "." * node.level + (node.module or "")
    for alias in node.names:
        full = f"{base}.{alias.name}" if base.strip(".") else f"{base}{alias.name}"
        module.imports.append((full, node, place))
        module.names[alias.asname or alias.name] = full


def _bind(module: Module, node: ast.AST) -> None:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            _target(module, target, node.value)
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
        if node.value is not None:
            _target(module, node.target, node.value)
    elif isinstance(node, ast.AugAssign):
        _target(module, node.target, None)
    elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
        _target(module, node.target, None)
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        _target(module, node.optional_vars, node.context_expr)


def _target(module: Module, target: ast.expr, value: ast.expr | None) -> None:
    if isinstance(target, (ast.Tuple, ast.List)):
        same = isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts)
        for index, part in enumerate(target.elts):
            if same and isinstance(value, (ast.Tuple, ast.List)):
                _target(module, part, value.elts[index])
            else:
                _target(module, part.value if isinstance(part, ast.Starred) else part, None)
                if isinstance(value, ast.Call) and (name := dotted(part)):
                    module.parts[name].append((value, index))
    elif name := dotted(target):
        module.bindings[name].append(value)
    elif isinstance(target, ast.Subscript) and value is not None:
        module.stored[id(target)] = value


def _kinds(module: Module) -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for name, values in module.bindings.items():
        for value in values:
            if isinstance(value, ast.Call) and (made := module.name_of(value.func)):
                found[name].add(f"{made}()")
    for name, parts in module.parts.items():
        found[name] |= {f"{made}()[{index}]" for call, index in parts if isinstance(call, ast.Call) and (made := module.name_of(call.func))}
    for name, kinds in found.items():
        if len(kinds) == 1 and "." in (only := next(iter(kinds))) and only.split(".")[0] not in (name.split(".")[0], "self"):
            module.kinds[name] = only
    if "accelerator" not in module.kinds and module.imports_any("accelerate"):
        module.kinds["accelerator"] = "accelerate.Accelerator()"
