# check/rules/source_options.py without its comments
from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator

from trainwright.check.source.module import dotted
from trainwright.check.source.options import Option, Options, Variable, variables_read, variables_set
from trainwright.check.source.program import Program
from trainwright.check.source.values import UNKNOWN
from trainwright.check.subject import Command
from trainwright.report import Fix, Severity
from trainwright.rules import Hit, rule

_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")
_NUMBER = {"int": r"[+-]?\d(_?\d)*", "float": r"[+-]?(\d[\d_]*\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|inf|infinity|nan)"}


@rule("SRC012", Severity.ERROR, Program, fails_at="engine start", checked="run", source="python-argparse")
def launch_line_the_parser_refuses(program: Program) -> Iterator[Hit]:
    """A launch line gives the source a flag or a value that its parser refuses, or leaves out one that it needs.

    argparse ends each rank with exit 2 ("unrecognized arguments", "invalid int value", "invalid choice", "the following arguments are
    required"); `--learning-rate` and `--learning_rate` are two names to it. The deepspeed launcher adds `--local_rank` by itself, so a
    parser without it refuses each start.

    Bad `job.sh`:

        torchrun --nproc_per_node 2 train.py --learning-rate 1e-4
    Bad `train.py`:

        import argparse

        parser = argparse.ArgumentParser()
        parser.add_argument("--learning_rate", type=float)
        args = parser.parse_args()
        print(args.learning_rate)

    Good `job.sh`:

        torchrun --nproc_per_node 2 train.py --learning_rate 1e-4
    Good `train.py`:

        import argparse

        parser = argparse.ArgumentParser()
        parser.add_argument("--learning_rate", type=float)
        args = parser.parse_args()
        print(args.learning_rate)
    """
    if program.options is None or not program.options.whole:
        return
    for command in program.commands():
        yield from _words(program.options, command)
        yield from _added(program, program.options, command)


def _words(options: Options, command: Command) -> Iterator[Hit]:
    words, given = command.script_words, set()
    for index, word in enumerate(words):
        if word == "--" or "$" in word.partition("=")[0]:
            break
        name, has_value, value = word.partition("=")
        if not re.fullmatch(r"--?[A-Za-z][\w-]*", name) or (name[:2] != "--" and len(name) > 2):
            continue
        option = options.of(name)
        if option is None:
            yield _unknown_flag(options, command, name)
            continue
        given.add(option.dest)
        value = value if has_value else words[index + 1] if index + 1 < len(words) else ""
        if option.action == "store" and not value.startswith("-") and "$" not in value and option.call.argument("nargs") is None:
            yield from _value(option, command, name, value)
    if not any("$" in word for word in words):
        missing = [o.names[-1] for o in options.options if o.required and o.names and o.dest not in given]
        if missing:
            yield Hit(f"{', '.join(missing)}: required by {command.script}, and not given", command.where, missing[0])


def _unknown_flag(options: Options, command: Command, name: str) -> Hit:
    names = [known for option in options.options for known in option.names]
    near = difflib.get_close_matches(name.replace("_", "-"), [n.replace("_", "-") for n in names], 1, 0.8)
    meant = next((n for n in names if near and n.replace("_", "-") == near[0]), "")
    hint = f"; it has {meant}" if meant else ""
    fix = Fix({name: meant}) if meant else None
    return Hit(f"{name}: {command.script} has no such flag, and stops{hint}", command.where, name, fix)


def _value(option: Option, command: Command, name: str, value: str) -> Iterator[Hit]:
    if option.kind in _NUMBER and not re.fullmatch(_NUMBER[option.kind], value):
        yield Hit(
            f"{name} {value!r}: {command.script} takes {'a whole number' if option.kind == 'int' else 'a number'} there, and stops",
            command.where,
            name,
        )
    elif option.choices and option.kind in ("", "str") and all(isinstance(c, str) for c in option.choices) and value not in option.choices:
        yield Hit(f"{name} {value!r} is none of {', '.join(map(str, option.choices))}: {command.script} stops", command.where, name)
    elif option.kind == "bool" and value.lower() in ("false", "no", "0", "off", "none"):
        message = f"{name} {value} is True: bool() takes any word for true"
        yield Hit(message, command.where, name, severity=Severity.WARNING, fails_at="never")


def _added(program: Program, options: Options, command: Command) -> Iterator[Hit]:
    if command.launcher == "deepspeed" and "no_local_rank" not in command.typed and options.of("--local_rank") is None:
        message = "the deepspeed launcher adds --local_rank, which this parser does not know: every rank stops"
        node = options.options[0].call.node if options.options else program.module.tree
        yield Hit(message, program.at(node), "--local_rank")


@rule("SRC013", Severity.WARNING, Program, fails_at="never", checked="run", source="python-argparse")
def option_without_effect(program: Program) -> Iterator[Hit]:
    """An option of the source's parser that nothing reads, that cannot be switched off, or one that is read and not there.

    An option that no line of the job reads changes nothing, however it is set. `type=bool` with a default of True stays True for any
    word. `args.name` that no add_argument() defines is an AttributeError where the line is reached (an error). Where the parser or its
    result is handed to another module, whole or as a mapping, it is not told; nor are `--local_rank` and its like, which launchers add.

    Bad `train.py`:

        import argparse

        parser = argparse.ArgumentParser()
        parser.add_argument("--steps", type=int, default=100)
        parser.add_argument("--warmup", type=int, default=10)
        args = parser.parse_args()
        print(args.steps)

    Good `train.py`:

        import argparse

        parser = argparse.ArgumentParser()
        parser.add_argument("--steps", type=int, default=100)
        parser.add_argument("--warmup", type=int, default=10)
        args = parser.parse_args()
        print(args.steps, args.warmup)
    """
    options = program.options
    if options is None or not options.namespaces:
        return
    stuck = [o for o in options.options if o.kind == "bool" and o.default is True and o.action == "store"]
    if stuck:
        names = ", ".join(o.dest for o in stuck[:6]) + (" ..." if len(stuck) > 6 else "")
        message = f"{names}: type=bool takes any word for true, and the default is True: it cannot be switched off"
        yield Hit(message, program.at(stuck[0].call.node), stuck[0].dest, data={"options": [o.dest for o in stuck]})
    if _goes_out(program, options):
        return
    for option in options.options:
        if option.names and not _is_read(program, option):
            yield Hit(f"{option.names[-1]} is defined and never read", program.at(option.call.node), option.dest)
    if options.whole:
        yield from _undefined(program, options)


_LOOKS = ("print", "info", "debug", "pformat", "pprint", "str", "repr", "hasattr", "getattr", "isinstance", "format")
_SPREADS = ("vars", "setattr", "asdict", "dict", "deepcopy", "Namespace")


def _goes_out(program: Program, options: Options) -> bool:
    module = program.module
    for call in program.calls:
        given = [*call.node.args, *[k.value for k in call.node.keywords]]
        if not any(options.holds(part) for part in given):
            continue
        if call.last in _SPREADS or (call.last == "getattr" and not isinstance(module.value(call.argument("", 1)), str)):
            return True
        target = dotted(call.node.func)
        own = target in module.functions or target.startswith("self.") or call.last in module.classes
        if call.last not in _LOOKS and not own:
            return True
    return "__dict__" in module.read or any("." in n and dotted(v) in options.namespaces for n, vs in module.bindings.items() for v in vs)


def _is_read(program: Program, option: Option) -> bool:
    if option.dest in ("local_rank", "local-rank", "rank", "deepspeed", "help", "version") or option.action in ("version", "help"):
        return True
    if option.dest == "" or program.module.read.get(option.dest) or option.dest in program.module.texts:
        return True
    helped = program.module.value(option.call.argument("help"))
    if isinstance(helped, str) and re.search(r"deprecat|ignored|unused|compat|not used", helped, re.IGNORECASE):
        return True
    others = [source.text for source in program.job.sources if source is not program.source]
    return any(re.search(rf"\b{re.escape(option.dest)}\b", text) for text in others)


def _undefined(program: Program, options: Options) -> Iterator[Hit]:
    known = {option.dest for option in options.options} | program.module.written
    own = {"copy", "items", "keys", "values", "get"} | program.module.texts
    told: set[str] = set()
    for node in _reads(program, options):
        if node.attr not in known | own | told and not node.attr.startswith("_"):
            told.add(node.attr)
            near = difflib.get_close_matches(node.attr, sorted(known), 1, 0.8)
            message = f"{dotted(node)}: no add_argument() defines it{f'; there is {near[0]}' if near else ''}: AttributeError"
            yield Hit(message, program.at(node), node.attr, severity=Severity.ERROR, fails_at="first step")


def _reads(program: Program, options: Options) -> Iterator[ast.Attribute]:
    sure = {n for n in options.namespaces if "." not in n and sum(v is not None for v in program.module.bindings[n]) == 1}
    for function in [None, *program.module.functions.values()]:
        arguments = {a.arg for a in (*function.args.args, *function.args.kwonlyargs)} if function else set()
        for node in ast.walk(function) if function else _top(program.module.tree):
            held = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and isinstance(node.value, ast.Name)
            if held and isinstance(node, ast.Attribute) and dotted(node.value) in sure - arguments:
                yield node


def _top(tree: ast.Module) -> Iterator[ast.AST]:
    for statement in tree.body:
        if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from ast.walk(statement)


@rule("SRC014", Severity.WARNING, Program, fails_at="never", checked="run", source="torch-2.13.0-elastic")
def variable_of_another_name(program: Program) -> Iterator[Hit]:
    """An environment variable that is set and not read, or read and not set.

    The job script exports a name that differs by a slip from the one the source reads. Or the source needs RANK, LOCAL_RANK or
    MASTER_ADDR, which only torchrun, accelerate and deepspeed set, and the line starts it with python, srun or mpirun (an error:
    KeyError). Or the source sets a variable after the import or the object that reads it: HF_HOME after transformers,
    OMP_NUM_THREADS after torch, ACCELERATE_* after Accelerator().

    Bad `job.sh`:

        export LEARNING_RATES=0.001
        torchrun --nproc_per_node 2 train.py
    Bad `train.py`:

        import os

        print(os.environ.get("LEARNING_RATE", "0.1"))

    Good `job.sh`:

        export LEARNING_RATE=0.001
        torchrun --nproc_per_node 2 train.py
    Good `train.py`:

        import os

        print(os.environ.get("LEARNING_RATE", "0.1"))
    """
    read = variables_read(program.module)
    own = variables_set(program.module)
    names = {variable.name for variable in read}
    for name, where in program.job.places.items():
        near = [n for n in difflib.get_close_matches(name, sorted(names), 1, 0.9) if n not in program.job.environment and n != name]
        if near and name not in names and any(program.commands()) and not any(s.text.count(f'"{name}"') for s in program.job.sources):
            yield Hit(f"{name} is set, and {program.source.path} reads {near[0]}", where, name, Fix({name: near[0]}))
    yield from _without_launcher(program, read, {variable.name for variable in own})
    for variable in own:
        yield from _too_late(program, variable)


def _without_launcher(program: Program, read: list[Variable], own: set[str]) -> Iterator[Hit]:
    launchers = {command.launcher for command in program.commands()}
    if not launchers or launchers - {"python", "srun", "mpirun", "mpiexec"}:
        return
    guarded = {part.value for test, _ in program.module.tests for part in ast.walk(test) if isinstance(part, ast.Constant)}
    for variable in read:
        if (
            variable.needed
            and variable.name in _RANKS
            and variable.name not in {*program.job.environment, *own, *guarded}
            and not variable.place.tried
            and not variable.place.guards
        ):
            message = f'os.environ["{variable.name}"], and the line starts this without torchrun, accelerate or deepspeed: KeyError'
            yield Hit(message, program.at(variable.node), variable.name, severity=Severity.ERROR, fails_at="engine start")
            return


_AT_IMPORT = {
    "HF_HOME": ("transformers", "datasets", "huggingface_hub", "accelerate", "diffusers"),
    "HF_HUB_CACHE": ("huggingface_hub", "transformers", "datasets"),
    "HF_HUB_OFFLINE": ("huggingface_hub", "transformers", "datasets"),
    "HF_DATASETS_CACHE": ("datasets",),
    "TRANSFORMERS_CACHE": ("transformers",),
    "OMP_NUM_THREADS": ("torch", "numpy"),
    "MKL_NUM_THREADS": ("torch", "numpy"),
}


def _too_late(program: Program, variable: Variable) -> Iterator[Hit]:
    readers = _AT_IMPORT.get(variable.name)
    if readers and variable.place.function is None:
        for name, node, place in program.module.imports:
            if place.function is None and name.split(".")[0] in readers and node.lineno < getattr(variable.node, "lineno", 0):
                message = (
                    f"{variable.name} is read when {name.split('.')[0]} is imported, in line {node.lineno}: set behind it, it has no effect"
                )
                yield Hit(message, program.at(variable.node), variable.name)
                return
    if variable.name.startswith(("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_")) and variable.value is not UNKNOWN:
        made = [
            c
            for c in program.module.called("accelerate", "Accelerator")
            if c.place.function is variable.place.function and c.order < variable.order
        ]
        if made:
            message = (
                f"{variable.name} is set behind Accelerator(), line {made[0].node.lineno}, which reads it when it is made: it has no effect"
            )
            yield Hit(message, program.at(variable.node), variable.name)
