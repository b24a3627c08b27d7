# check/source/options.py without its comments
from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trainwright.check.source.module import Call, Module, Place, dotted
from trainwright.check.source.values import UNKNOWN

_PARSER = "argparse.ArgumentParser()"
_DEFINES = ("add_argument", "add_argument_group", "add_mutually_exclusive_group", "parse_args", "set_defaults", "print_help", "error")


@dataclass(frozen=True, slots=True)
class Option:

    names: tuple[str, ...]
    dest: str
    call: Call
    kind: str
    action: str
    choices: tuple[Any, ...]
    default: Any
    required: bool


@dataclass(frozen=True, slots=True)
class Options:

    options: tuple[Option, ...]
    whole: bool
    namespaces: frozenset[str]
    makers: frozenset[str]

    def holds(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Call):
            return dotted(node.func) in self.makers or dotted(node.func).endswith(".parse_args")
        return dotted(node.value if isinstance(node, ast.Starred) else node) in self.namespaces

    def of(self, word: str) -> Option | None:
        exact = [option for option in self.options if word in option.names]
        if exact:
            return exact[0]
        begun = [option for option in self.options if any(name.startswith(word) for name in option.names)] if word[:2] == "--" else []
        return begun[0] if len(begun) == 1 else None


def options_of(module: Module) -> Options | None:
    made = module.called("argparse", "ArgumentParser")
    if len(made) != 1 or module.called("transformers", "HfArgumentParser"):
        return None
    found, whole = [], not {"parents", "fromfile_prefix_chars", "allow_abbrev"} & {*made[0].keywords} and not made[0].spread
    for call in module.calls:
        if call.last == "add_argument" and "." in call.name:
            option = _option(module, call)
            rest = dotted(call.argument("nargs")).endswith("REMAINDER") or module.value(call.argument("nargs")) == "..."
            whole = whole and option is not None and not rest
            found += [option] if option else []
        elif call.last in ("add_subparsers", "parse_known_args", "parse_known_intermixed_args") and "." in call.name:
            whole = False
        elif _hands_on(module, call):
            whole = False
    if any("ArgumentParser" in dotted(base) for made_class in module.classes.values() for base in made_class.bases):
        whole = False
    makers = frozenset(name for name, function in module.functions.items() if _gives_arguments(module, function))
    return Options(tuple(found), whole, frozenset(_namespaces(module, makers)), makers)


def _hands_on(module: Module, call: Call) -> bool:
    given = [*call.node.args, *call.keywords.values()]
    parsers = any(isinstance(a, ast.Name) and (module.kinds.get(a.id) == _PARSER or a.id == "parser") for a in given)
    return parsers and call.name not in module.functions


def _option(module: Module, call: Call) -> Option | None:
    names = [module.value(argument) for argument in call.node.args]
    if call.spread or not names or not all(isinstance(name, str) for name in names):
        return None
    long = [name for name in names if name.startswith("--")] or names
    dest = module.value(call.argument("dest")) if call.argument("dest") else long[0].lstrip("-").replace("-", "_")
    if not isinstance(dest, str):
        return None
    choices = module.value(call.argument("choices"))
    action = module.value(call.argument("action")) if call.argument("action") else "store"
    given = call.argument("default")
    default = module.value(given) if given is not None else (False if action == "store_true" else True if action == "store_false" else None)
    return Option(
        tuple(names) if names[0].startswith("-") else (),
        dest,
        call,
        dotted(call.argument("type")),
        action if isinstance(action, str) else dotted(call.argument("action")),
        tuple(choices) if isinstance(choices, list) else (),
        default,
        module.value(call.argument("required")) is True,
    )


def _namespaces(module: Module, makers: frozenset[str]) -> set[str]:
    found = set()
    for name, values in module.bindings.items():
        for value in values:
            if isinstance(value, ast.Call):
                called = dotted(value.func)
                if called in makers or (called.endswith(".parse_args") and module.kinds.get(called[: -len(".parse_args")]) == _PARSER):
                    found.add(name)
    return found


def _gives_arguments(module: Module, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    for node, place, _ in module.returns:
        if place.function is function and isinstance(node, ast.Return) and node.value is not None:
            given = [node.value, *[v for v in module.bindings.get(dotted(node.value), []) if v is not None]]
            if any(isinstance(v, ast.Call) and dotted(v.func).endswith(".parse_args") for v in given):
                return True
    return False


@dataclass(frozen=True, slots=True)
class Variable:

    name: str
    node: ast.expr
    place: Place
    order: int
    needed: bool = False
    value: Any = UNKNOWN


def variables_read(module: Module) -> list[Variable]:
    found = [Variable(name, node, place, order, True) for name, node, place, order in _items(module, ast.Load)]
    for call in module.calls:
        if call.name in ("os.environ.get", "os.getenv", "os.environ.pop") and isinstance(name := module.value(call.argument("", 0)), str):
            found.append(Variable(name, call.node, call.place, call.order))
    return found


def variables_set(module: Module) -> list[Variable]:
    found = [Variable(*item, False, module.value(module.stored.get(id(item[1])))) for item in _items(module, ast.Store)]
    for call in module.calls:
        if call.name in ("os.environ.setdefault", "os.putenv") and isinstance(name := module.value(call.argument("", 0)), str):
            found.append(Variable(name, call.node, call.place, call.order, False, module.value(call.argument("", 1))))
    return found


def _items(module: Module, context: type[ast.expr_context]) -> Iterator[tuple[str, ast.expr, Place, int]]:
    for node, place, order in module.subscripts:
        if isinstance(node.ctx, context) and module.name_of(node.value) == "os.environ":
            name = module.value(node.slice)
            if isinstance(name, str):
                yield name, node, place, order
