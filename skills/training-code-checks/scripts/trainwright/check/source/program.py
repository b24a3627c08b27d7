# check/source/program.py without its comments
from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from trainwright.check.flags import script_arguments
from trainwright.check.source.module import Call, Module, dotted, take_apart
from trainwright.check.source.options import Options, options_of
from trainwright.check.source.values import UNKNOWN, Symbol
from trainwright.check.subject import AccelerateConfig, Command, Context, Job, Source
from trainwright.report import Location, Report


@dataclass(frozen=True, slots=True)
class Program:

    source: Source
    job: Job
    module: Module
    options: Options | None = None
    stand_in: Location | None = None
    report: Report | None = field(default=None, compare=False, repr=False)

    @property
    def context(self) -> Context:
        return self.job.context

    @property
    def calls(self) -> list[Call]:
        return self.module.calls

    @property
    def config(self) -> AccelerateConfig | None:
        return self.job.accelerate[0] if len(self.job.accelerate) == 1 else None

    @property
    def device(self) -> str | None:
        if self.context.device:
            return self.context.device
        kind = str(self.config.file.kind) if self.config else ""
        return {"MULTI_XPU": "xpu", "MULTI_HPU": "hpu", "MULTI_CPU": "cpu", "XLA": "tpu"}.get(kind)

    def at(self, node: ast.AST) -> Location:
        return self.stand_in or self.source.at(node)

    def value(self, node: ast.expr | None) -> Any:
        space, _, name = dotted(node).rpartition(".")
        if self.options is not None and space in self.options.namespaces:
            return self._typed(name)
        return self.module.value(node)

    def _typed(self, dest: str) -> Any:
        option = next((o for o in self.options.options if o.dest == dest), None) if self.options else None
        commands = list(self.commands())
        if option is None or len(commands) != 1 or any("$" in word for word in commands[0].script_words):
            return UNKNOWN
        typed = script_arguments(commands[0].script_words)
        for name in option.names:
            if (key := name.lstrip("-").replace("-", "_")) in typed and name.startswith("--"):
                return typed[key]
        return option.default

    def given(self, call: Call, name: str, position: int | None = None) -> Any:
        node = call.argument(name, position)
        if node is None:
            return UNKNOWN if call.spread else None
        value = self.value(node)
        if value is UNKNOWN:
            self.skip(node, f"{name} of {call.last}() is not literal")
        return value

    def skip(self, node: ast.AST, reason: str) -> None:
        if self.report is not None:
            self.report.skip(f"{self.source.path}:{getattr(node, 'lineno', 1)}", reason)

    def commands(self) -> Iterator[Command]:
        ending = self.source.path.replace("\\", "/").rpartition("/")[2]
        for command in self.job.commands:
            if command.script.replace("\\", "/").rpartition("/")[2] == ending:
                yield command

    def methods(self, *names: str) -> list[Call]:
        return [call for call in self.calls if call.on("accelerate", "Accelerator", *names)]

    @property
    def sharding(self) -> str:
        return _of_source(self) or _of_file(self.config)


def _of_source(program: Program) -> str:
    module = program.module
    if module.called("deepspeed", "initialize"):
        return "deepspeed"
    if module.called("torch", "fully_shard"):
        return "fsdp2"
    if wrapped(program):
        return "fsdp1"
    for call in module.called("accelerate", "FullyShardedDataParallelPlugin"):
        version = program.given(call, "fsdp_version")
        if isinstance(version, int):
            return f"fsdp{version}"
    if module.called("accelerate", "FullyShardedDataParallelPlugin"):
        if program.config is not None and program.config.kind == "fsdp":
            return _of_file(program.config)
        return "fsdp1" if program.config is not None or any(c.launcher != "accelerate" for c in program.commands()) else ""
    if module.called("accelerate", "DeepSpeedPlugin"):
        return "deepspeed"
    arguments = program.context.training_args
    if arguments.get("deepspeed"):
        return "deepspeed"
    return "ddp" if module.called("torch", "DistributedDataParallel") else ""


def wrapped(program: Program) -> list[Call]:
    return program.module.called("torch", "FullyShardedDataParallel")


def _of_file(config: AccelerateConfig | None) -> str:
    if config is None:
        return ""
    if config.kind == "fsdp":
        return "fsdp2" if str(config.value("fsdp_version")) == "2" else "fsdp1"
    return {"deepspeed": "deepspeed", "multi_gpu": "ddp", "megatron": "megatron", "tpu": "tpu", "simple": _simple(config)}.get(
        config.kind, ""
    )


def _simple(config: AccelerateConfig) -> str:
    return "ddp" if str(config.file.kind) == "MULTI_CPU" else "none"


def programs(job: Job, report: Report) -> list[Program]:
    found = []
    for source in job.sources:
        module = take_apart(source.tree)
        if module.cut:
            report.skip(source.path, "it is too large for a program, and was read in part")
        found.append(Program(source, job, module, options_of(module), report=report))
    if not found:
        stand_in = _stand_in(job)
        found += [stand_in] if stand_in else []
    return found


def _stand_in(job: Job) -> Program | None:
    where = next((config.document.at() for config in job.accelerate), None) or next((d.at() for d in job.deepspeed), None)
    if where is None:
        return None
    tree = ast.parse("from accelerate import Accelerator, DistributedDataParallelKwargs, LocalSGD")
    if job.context.ddp_kwargs:
        keywords = [ast.keyword(str(key), _literal(value)) for key, value in job.context.ddp_kwargs.items()]
        tree.body.append(ast.Expr(ast.Call(ast.Name("DistributedDataParallelKwargs", ast.Load()), [], keywords)))
    if job.context.call:
        tree.body += _called(job.context.call)
    ast.fix_missing_locations(tree)
    return Program(Source(where.path, "", tree, job.context), job, take_apart(tree), None, where)


def _literal(value: Any) -> ast.expr:
    if isinstance(value, dict):
        return ast.Dict([ast.Constant(k) for k in value], [_literal(v) for v in value.values()])
    return ast.List([_literal(v) for v in value], ast.Load()) if isinstance(value, list) else ast.Constant(value)


def _called(text: str) -> list[ast.stmt]:
    name = re.match(r"[\w.]+", text.strip()[:200])
    try:
        tree = ast.parse(text.strip()[:500] if text.strip().endswith(")") else f"{name[0] if name else ''}()")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    for statement in tree.body:
        call = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.func.id[:1].isupper():
            call.func = ast.Attribute(ast.Name("accelerator", ast.Load()), call.func.id, ast.Load())
    return tree.body


def text_of(value: Any) -> str:
    return value.last if isinstance(value, Symbol) else str(value)
