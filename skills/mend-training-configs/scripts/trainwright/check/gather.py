# helpers/trainwright/check/gather.py without its comments
from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from trainwright.check import dialects, files, flags
from trainwright.check.facts import table
from trainwright.check.launcher import merge
from trainwright.check.subject import (
    AccelerateConfig,
    Command,
    Context,
    DeepSpeedConfig,
    Foreign,
    FsdpBlock,
    Job,
    Megatron,
    Quantization,
    Source,
    Template,
    TrainingArguments,
    Unreadable,
)
from trainwright.document import Document
from trainwright.emit.accelerate_file import AccelerateFile, accelerate_file
from trainwright.errors import UserError
from trainwright.report import Location, Report

if TYPE_CHECKING:
    import ast

_DEPTH = 4
NOT_JUDGED = {
    "model": "a model's config.json: give it with --model beside the config that trains it",
    "unknown": "its keys are not those of a config that check knows",
    "gpt-neox": "a GPT-NeoX config, whose DeepSpeed keys stand among the model's",
    "nanotron": "a nanotron config: there are no rules for it",
    "axolotl": "an axolotl config: only its DeepSpeed and FSDP blocks are judged",
    "llama-factory": "a LLaMA-Factory config: only its DeepSpeed and FSDP blocks are judged",
    "verl": "a verl config: only its FSDP blocks are judged",
    "openrlhf": "an OpenRLHF config: only its DeepSpeed block is judged",
    "torchtitan": "a torchtitan config: there are no rules for it yet",
}


@dataclass(slots=True, eq=False, repr=False)
class Gathered:

    jobs: list[tuple[Job, list[Any]]] = field(default_factory=list)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)


class Gatherer:

    def __init__(
        self, context: Context, report: Report, forced: str = "", together: bool = False, texts: Mapping[str, str] | None = None
    ) -> None:
        self.context, self.report, self.forced, self.together = context, report, forced, together
        self.texts = texts or {}
        self.loaded: dict[str, files.Loaded] = {}
        self.used: dict[str, set[str]] = {}
        self.root = ""
        self.found = Gathered()

    def load(self, path: str, named: bool = True) -> files.Loaded:
        key = os.path.realpath(path) if path != "-" else path
        if key not in self.loaded:
            self.loaded[key] = files.load(path, self.forced if named else "", self.texts.get(key))
            self.loaded[key].named = named
        return self.loaded[key]

    def gather(self, words: Sequence[str], line: str = "") -> Gathered:
        roots = []
        for path, by_name in files.named_files(words):
            loaded = self.load(path)
            loaded.named = by_name
            if not by_name and loaded.dialect == "unreadable" and not dialects.speaks_of_backends(loaded.text):
                self.report.skip(path, "it cannot be read, and nothing in it says that it is a config of a backend")
                continue
            if by_name or loaded.dialect not in ("unknown", "model", "python"):
                roots.append(loaded)
                self._row(loaded)
        drafts = list(self._lines(line))
        drafts += [self._all(roots)] if self.together else [self._root(loaded) for loaded in roots]
        dropped: set[str] = set()
        for draft in filter(None, drafts):
            place = os.path.realpath(draft.root.path) if draft.root else ""
            if self.used.get(place, set()) - dropped - {place}:
                dropped.add(place)
            else:
                self.found.jobs.append(draft.finish())
        return self.found

    def _lines(self, line: str) -> Iterator[Draft | None]:
        if line:
            command = flags.command_of(flags.split(line), Location("--cli"))
            if command is None:
                raise UserError(
                    f"--cli {line[:80]!r} starts no launcher; write it as typed: --cli 'accelerate launch --config_file F train.py'"
                )
            draft = Draft(self, None, self.context)
            draft.command(command, "", "")
            yield draft

    def _row(self, loaded: files.Loaded) -> dict[str, Any]:
        judged = loaded.dialect in (
            "accelerate",
            "sagemaker",
            "deepspeed",
            "training-arguments",
            "script",
            "python",
            "fsdp-config",
            "megatron",
        )
        row = {"path": loaded.path, "dialect": loaded.dialect, "judged": judged, "findings": 0}
        return self.found.rows.setdefault(loaded.path, row)

    def _root(self, loaded: files.Loaded) -> Draft | None:
        draft, self.root = Draft(self, loaded, self.context), os.path.realpath(loaded.path)
        if loaded.dialect in NOT_JUDGED:
            self.report.skip(loaded.path, NOT_JUDGED[loaded.dialect])
        draft.add(loaded, 0)
        return draft

    def _all(self, roots: Sequence[files.Loaded]) -> Draft:
        draft = Draft(self, None, self.context)
        order = ("model", "quantization", "script", "training-arguments", "llama-factory", "axolotl")
        for loaded in sorted(roots, key=lambda each: order.index(each.dialect) if each.dialect in order else len(order)):
            if loaded.dialect == "model":
                draft.model_file(loaded.path)
            elif loaded.dialect in NOT_JUDGED:
                self.report.skip(loaded.path, NOT_JUDGED[loaded.dialect])
            draft.add(loaded, 0)
        return draft

    def follow(self, target: Any, referrer: str, folder: str) -> files.Loaded | None:
        place = files.find(target, referrer, folder) if isinstance(target, str) else None
        if place is None:
            return None
        path, exact = place
        if not exact:
            self.report.infer("file", path, f"{referrer} says {target}, which is not in the current folder")
        loaded = self.load(path, named=False)
        self.used.setdefault(os.path.realpath(path), set()).add(self.root)
        self._row(loaded)
        return loaded


class Draft:

    def __init__(self, gatherer: Gatherer, root: files.Loaded | None, context: Context) -> None:
        self.gatherer, self.root, self.context = gatherer, root, context
        self.subjects: list[Any] = []
        self.commands: list[Command] = []
        self.environment: dict[str, str] = {}
        self.places: dict[str, Location] = {}
        self.seen: set[str] = set()

    def finish(self) -> tuple[Job, list[Any]]:
        def of(kind: type) -> tuple[Any, ...]:
            return tuple(subject for subject in self.subjects if isinstance(subject, kind))

        job = Job(
            self.context,
            tuple(self.commands),
            self.environment,
            of(AccelerateConfig),
            of(DeepSpeedConfig),
            of(TrainingArguments),
            of(Source),
            self.places,
        )
        return job, self.subjects

    def know(self, name: str, value: Any, source: str) -> None:
        if value is not None and getattr(self.context, name) in (None, {}, (), ""):
            self.context = replace(self.context, **{name: value})
            self.gatherer.report.infer(name, value if isinstance(value, (str, int, bool)) else "read", source)

    def add(self, loaded: files.Loaded, depth: int, reader: str = "", folder: str = "") -> None:
        if loaded.path in self.seen or depth > _DEPTH:
            return
        self.seen.add(loaded.path)
        document = loaded.document
        if loaded.mark:
            self.subjects.append(Template(loaded.path, loaded.dialect, loaded.mark, loaded.mark_at))
        elif loaded.dialect == "unreadable" and loaded.problem:
            self.subjects.append(Unreadable(loaded.problem))
        elif loaded.script:
            self._script(loaded)
        elif loaded.tree:
            self._source(loaded, loaded.tree, depth, folder)
        elif loaded.dialect == "python":
            self.gatherer.report.skip(loaded.path, "this copy judges no Python sources")
        elif document is not None:
            if loaded.problem is None:
                self.subjects.append(document)
            self._document(loaded, document, depth, reader, folder)

    def _source(self, loaded: files.Loaded, tree: ast.Module, depth: int, folder: str) -> None:
        if importlib.util.find_spec("trainwright.check.source"):
            from trainwright.check.source import facts
            from trainwright.check.source.module import take_apart

            module = take_apart(tree)
            for name, value in facts.facts_of(module):
                self.know(name, value, loaded.path)
            self.subjects.append(Source(loaded.path, loaded.text, tree, self.context))
            for reference in facts.references_of(module):
                if isinstance(reference.target, str):
                    found = self.gatherer.follow(reference.target, loaded.path, folder)
                    if found is not None:
                        self.add(found, depth + 1, reference.reader, folder)
                else:
                    document = facts.document_of(reference, loaded.text, loaded.path)
                    self.subjects.append(DeepSpeedConfig(document, document.value, self.context, reference.reader))

    def _document(self, loaded: files.Loaded, document: Document, depth: int, reader: str, folder: str) -> None:
        if loaded.dialect in ("accelerate", "sagemaker"):
            command = flags.command_of_context(self.context)
            words = command.script_words if command else ()
            self.accelerate(document, flags.flags_of(self.context), None, folder, depth, words)
        elif loaded.dialect == "deepspeed":
            self.deepspeed(loaded, reader)
        elif loaded.dialect == "quantization":
            self.know("quantization", loaded.values, loaded.path)
            self.subjects.append(Quantization(document, self.context))
        elif loaded.dialect == "megatron":
            values = {str(key).replace("-", "_"): value for key, value in loaded.values.items()}
            self.subjects.append(Megatron(values, self.context, document))
        elif loaded.dialect not in ("model", "unknown"):
            self._foreign(document, loaded.dialect, depth, folder)


    def accelerate(
        self, document: Document, typed: Mapping[str, Any], where: Location | None, folder: str, depth: int, unread: tuple[str, ...] = ()
    ) -> None:
        file: AccelerateFile = accelerate_file(document)
        launch = merge(file, typed, where, unread)
        self._words_of_context()
        deepspeed, missing, no_json = None, "", ""
        target = launch.arguments.get("deepspeed_config_file")
        if launch.kind == "deepspeed" and isinstance(target, str) and target and target != "none":
            loaded = self.gatherer.follow(target, document.path, folder)
            if loaded is None:
                missing = target
            elif loaded.dialect == "deepspeed" and loaded.document is not None:
                deepspeed = self.deepspeed(loaded, "accelerate", launch)
            else:
                self.add(loaded, depth + 1, "accelerate", folder)
                no_json = "YAML" if loaded.document is not None and loaded.document.dialect == "yaml" and not loaded.mark else ""
        self.subjects.append(AccelerateConfig(file, self.context, launch, deepspeed, missing, no_json))

    def _words_of_context(self) -> None:
        command = flags.command_of_context(self.context)
        if command is not None and command not in self.commands:
            self.commands.append(command)

    def deepspeed(self, loaded: files.Loaded, reader: str, launch: Any = None) -> DeepSpeedConfig | None:
        document = loaded.document
        if document is None:
            return None
        self.seen.add(loaded.path)
        config = DeepSpeedConfig(document, loaded.values, self.context, reader or self._reader(loaded.values), (), loaded.problem, launch)
        if document not in self.subjects and loaded.problem is None:
            self.subjects.append(document)
        self.subjects.append(config)
        return config

    def _reader(self, values: Mapping[str, Any]) -> str:
        if self.context.hf is not None:
            return "transformers" if self.context.hf else "deepspeed"
        return "transformers" if self.context.training_args or _has_auto(values) else ""


    def _script(self, loaded: files.Loaded) -> None:
        script = loaded.script
        assert script
        self.environment.update(script.environment)
        self.places.update(script.places)
        self.know("gpus_per_node", script.gpus_per_node, loaded.path)
        self.know("hardware", script.gpu_type or None, loaded.path)
        folder = script.folder if script.folder and os.path.isdir(script.folder) else ""
        ranks = script.nodes * script.tasks_per_node if script.nodes and script.tasks_per_node else None
        for command in script.commands:
            if command.launcher == "python" and ranks and ranks > 1:
                self.know("world_size", ranks, f"{loaded.path}: nodes x tasks")
            self.command(command, loaded.path, folder)

    def command(self, command: Command, referrer: str, folder: str) -> None:
        self.commands.append(command)
        origin = referrer or "--cli"
        self.know("world_size", flags.ranks_of(command), origin)
        arguments = flags.script_arguments(command.script_words)
        self._script_arguments(command, arguments, origin, folder)
        source = self.gatherer.follow(command.script, origin, folder) if command.script.endswith(".py") else None
        if source is not None:
            self.add(source, 1)
        if command.launcher == "accelerate":
            self._accelerate_line(command, origin, folder)

    def _accelerate_line(self, command: Command, origin: str, folder: str) -> None:
        target = command.typed.get("config_file")
        if target is None:
            _text, _path = ("distributed_type: NO\n", "--cli")
            target = files.default_accelerate_file()
            if target is None:
                self.gatherer.report.skip("the launcher's defaults", f"{origin} names no config file, and there is no default one")
                return
        loaded = self.gatherer.follow(target, origin, folder)
        if loaded is None:
            self.gatherer.report.skip(str(target), f"{origin} names it, and it is not here")
        elif loaded.dialect in ("accelerate", "sagemaker") and loaded.document is not None:
            self.seen.add(loaded.path)
            self.subjects.append(loaded.document)
            self.accelerate(loaded.document, command.typed, command.where, folder, 1, command.script_words)
        else:
            self.add(loaded, 1, "", folder)

    def _script_arguments(self, command: Command, arguments: dict[str, Any], origin: str, folder: str) -> None:
        names = {*table("arguments")["arguments"]}
        if {"tensor_model_parallel_size", "pipeline_model_parallel_size"} & {*arguments}:
            self.subjects.append(Megatron(arguments, self.context, None, command.where))
        elif len(names & {*arguments}) >= 2 or ("deepspeed" in arguments and "output_dir" in arguments):
            self.know("training_args", arguments, f"flags of {command.script}")
            self.subjects.append(TrainingArguments(arguments, self.context, None, (), command.where))
        reader = "transformers" if names & {*arguments} - {"deepspeed"} else "deepspeed"
        for name in ("deepspeed", "deepspeed_config", "fsdp_config"):
            loaded = self.gatherer.follow(arguments.get(name), origin, folder)
            if loaded is not None and name == "fsdp_config":
                self._fsdp_block(loaded.document, (), loaded.values, "transformers")
            elif loaded is not None:
                self.add(loaded, 1, reader, folder)
        self._model_beside(arguments.get("model_name_or_path"), folder)

    def _model_beside(self, name: Any, folder: str) -> None:
        if not isinstance(name, str) or self.context.model is not None:
            return
        path = os.path.join(folder, name, "config.json")
        if len(name) < 1024 and "\0" not in name and os.path.isfile(path):
            self.model_file(path)

    def model_file(self, path: str) -> None:
        if importlib.util.find_spec("trainwright.model"):
            from trainwright.check.model_files import facts_of_model

            try:
                for name, value in facts_of_model(path).items():
                    self.know(name, value or None, path)
            except UserError as problem:
                self.gatherer.report.skip(path, str(problem))


    def _foreign(self, document: Document, dialect: str, depth: int, folder: str) -> None:
        values = document.value
        self._model_beside(values.get("model_name_or_path") or values.get("base_model"), folder)
        if dialect in ("training-arguments", "llama-factory"):
            self.know("training_args", values, document.path)
            self.subjects.append(TrainingArguments(values, self.context, document))
        elif dialect == "fsdp-config":
            self._fsdp_block(document, (), values, "transformers")
            return
        else:
            self.subjects.append(Foreign(document, dialect, self.context))
        for kind, path, value in dialects.foreign_blocks(document, dialect):
            if isinstance(value, str):
                loaded = self.gatherer.follow(value, document.path, folder)
                if loaded is not None:
                    self.add(loaded, depth + 1, "transformers", folder)
            elif isinstance(value, dict) and kind == "deepspeed":
                self.subjects.append(DeepSpeedConfig(document, value, self.context, "transformers", path))
            elif isinstance(value, dict):
                self._fsdp_block(document, path, value, dialect)

    def _fsdp_block(self, document: Document | None, path: tuple[Any, ...], values: Mapping[str, Any], dialect: str) -> None:
        if document is not None:
            reader = dialect if dialect in ("axolotl", "verl") else "transformers"
            names = {str(key).removeprefix("fsdp_"): str(key) for key in values}
            plain = {name: values[key] for key in values if (name := str(key).removeprefix("fsdp_")) in names}
            self.subjects.append(FsdpBlock(document, plain, names, self.context, path, reader))


def _has_auto(values: Mapping[str, Any], depth: int = 0) -> bool:
    return any(value == "auto" or (depth < 4 and isinstance(value, dict) and _has_auto(value, depth + 1)) for value in values.values())
