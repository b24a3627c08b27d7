# check/subject.py without its comments
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainwright.check.deepspeed_file import Problem, problems, stage_of, truth
from trainwright.check.facts import before
from trainwright.document import Document, DocumentError, KeyPath
from trainwright.emit.accelerate_file import AccelerateFile
from trainwright.report import Location

if TYPE_CHECKING:
    import ast

    from trainwright.check.launcher import Launch
    from trainwright.model import ModelSpec

DEVICES = ("cpu", "cuda", "xpu", "hpu", "tpu", "npu", "mps")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Context:

    world_size: int | None = None
    model: ModelSpec | None = None
    device: str | None = None
    gpus_per_node: int | None = None
    hardware: str | None = None
    untied_head: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    model_class: str | None = None
    training_args: Mapping[str, Any] = field(default_factory=dict)
    quantization: Mapping[str, Any] = field(default_factory=dict)
    optimizer: str | None = None
    hf: bool | None = None
    trainer: str | bool | None = None
    cli: tuple[str, ...] = ()
    path: str | None = None
    device_map: str | None = None
    torch_dtype: str | None = None
    xpu_backend: str | None = None
    outer_autocast: bool | None = None
    resume_from_checkpoint: bool | None = None
    same_file_on_every_node: bool | None = None
    gradient_accumulation_steps: int | None = None
    call: str | None = None
    ddp_kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def bits(self) -> int:
        for given in (self.quantization, self.training_args):
            for key, bits in (("load_in_4bit", 4), ("load_in_8bit", 8)):
                if given.get(key) is True:
                    return bits
        told = self.training_args.get("quantization_bit")
        return told if told in (4, 8) and type(told) is int else 0

    @property
    def by_llama_factory(self) -> bool:
        return not self.quantization and "quantization_bit" in self.training_args

    def older(self, package: str, version: str) -> bool:
        return package in self.versions and before(self.versions[package], version)

    def since(self, package: str, version: str) -> bool:
        return not self.older(package, version)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Unreadable:

    problem: DocumentError


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Template:

    path: str
    dialect: str
    mark: str
    where: Location


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AccelerateConfig:

    file: AccelerateFile
    context: Context
    launch: Launch
    deepspeed: DeepSpeedConfig | None = None
    missing: str = ""
    no_json: str = ""

    @property
    def document(self) -> Document:
        return self.file.document

    @property
    def kind(self) -> str:
        return self.launch.kind

    def value(self, argument: str) -> Any:
        return self.launch.arguments.get(argument)

    def written(self, argument: str) -> bool:
        return argument in self.launch.typed or argument in self.file.winners

    def key(self, argument: str) -> str:
        return f"--{argument}" if argument in self.launch.typed else ".".join(map(str, self.file.place(argument)))

    def at(self, argument: str) -> Location:
        return self.launch.where if argument in self.launch.typed and self.launch.where else self.document.at(*self.file.place(argument))

    def whole(self, argument: str) -> int | None:
        value = self.value(argument)
        if isinstance(value, bool):
            return None
        text = str(value)
        return int(text) if text.lstrip("-").isdecimal() and len(text) < 12 else None

    def true(self, argument: str) -> bool:
        return str(self.value(argument)).lower() in ("y", "yes", "t", "true", "on", "1")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DeepSpeedConfig:

    document: Document
    values: dict[str, Any]
    context: Context
    reader: str = ""
    prefix: KeyPath = ()
    refused: DocumentError | None = None
    launch: Launch | None = None
    told: list[tuple[Problem, ...]] = field(default_factory=list, compare=False, repr=False)

    @property
    def problems(self) -> tuple[Problem, ...]:
        if not self.told:
            self.told.append(tuple(problems(self.values)))
        return self.told[0]

    @property
    def stage(self) -> int | None:
        return stage_of(self.values)

    def on(self, *path: str) -> bool:
        value = self.get(*path)
        return value not in (None, "auto") and not isinstance(value, (dict, list)) and truth(value)

    def at(self, *path: Any) -> Location:
        if self.refused is not None:
            return Location(self.document.path)
        return self.document.at(*self.prefix, *path)

    def get(self, *path: Any, default: Any = None) -> Any:
        value: Any = self.values
        for part in path:
            if not isinstance(value, dict) or part not in value:
                return default
            value = value[part]
        return value

    def has(self, *path: Any) -> bool:
        missing = object()
        return self.get(*path, default=missing) is not missing

    @property
    def fills_auto(self) -> bool:
        return self.reader in ("accelerate", "transformers")

    @property
    def world(self) -> int | None:
        if self.context.world_size is not None:
            return self.context.world_size
        value = self.launch.arguments.get("num_processes") if self.launch else None
        return value if type(value) is int and value > 0 else None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TrainingArguments:

    values: Mapping[str, Any]
    context: Context
    document: Document | None = None
    prefix: KeyPath = ()
    where: Location | None = None

    def at(self, *path: Any) -> Location | None:
        return self.document.at(*self.prefix, *path) if self.document else self.where


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FsdpBlock:

    document: Document
    values: Mapping[str, Any]
    names: Mapping[str, str]
    context: Context
    prefix: KeyPath = ()
    reader: str = "transformers"

    @property
    def version(self) -> int | None:
        given = self.values.get("version")
        if given is None:
            given = self.document.get("fsdp_version") if self.reader == "axolotl" else None
        given = given if given is not None else 1 if self.reader == "axolotl" or self.context.older("transformers", "5.10") else 2
        return int(given) if str(given) in ("1", "2") else None

    def key(self, name: str) -> str:
        return ".".join(map(str, (*self.prefix, self.names.get(name, name))))

    def at(self, name: str) -> Location:
        return self.document.at(*self.prefix, self.names.get(name, name))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Megatron:

    values: Mapping[str, Any]
    context: Context
    document: Document | None = None
    where: Location | None = None

    def at(self, *path: Any) -> Location | None:
        return self.document.at(*path) if self.document else self.where


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Quantization:

    document: Document
    context: Context


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Foreign:

    document: Document
    dialect: str
    context: Context


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Source:

    path: str
    text: str
    tree: ast.Module
    context: Context

    def at(self, node: ast.AST) -> Location:
        return Location(self.path, getattr(node, "lineno", None), getattr(node, "col_offset", -1) + 1 or None)


@dataclass(frozen=True, slots=True)
class Command:

    launcher: str
    words: tuple[str, ...]
    typed: Mapping[str, Any]
    script: str
    script_words: tuple[str, ...]
    where: Location | None
    problems: tuple[str, ...] = ()
    wrapper: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Job:

    context: Context
    commands: tuple[Command, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    accelerate: tuple[AccelerateConfig, ...] = ()
    deepspeed: tuple[DeepSpeedConfig, ...] = ()
    arguments: tuple[TrainingArguments, ...] = ()
    sources: tuple[Source, ...] = ()
    places: Mapping[str, Location] = field(default_factory=dict)
    nodes: int | None = None
    devices_of_node: int | None = None
