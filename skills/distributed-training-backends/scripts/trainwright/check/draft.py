# check/draft.py without its comments
from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trainwright.check import dialects, files, flags, overrides
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
from trainwright.document import Document, spoken
from trainwright.emit.accelerate_file import AccelerateFile, accelerate_file
from trainwright.errors import UserError
from trainwright.report import Location

if TYPE_CHECKING:
    import ast

    from trainwright.check.gather import Gatherer

_DEVICES = (("PT_HPU_", "hpu"), ("HABANA_", "hpu"), ("ZE_AFFINITY_MASK", "xpu"), ("ZE_FLAT_DEVICE_HIERARCHY", "xpu"))
_LARGEST = 2**20
_CONFIGS = (".yaml", ".yml", ".json", ".toml")
_OF_TOOLS = ("training-arguments", "axolotl", "llama-factory", "verl", "openrlhf", "torchtitan", "nanotron", "gpt-neox", "megatron")
_READS_TRAINER = re.compile(r"TrainingArguments|HfArgumentParser|TrlParser|[A-Z]\w*Config\b.{0,40}trl|trl.{0,80}Config")
_LITERAL = re.compile(r"[\w./@+,:=-]+")
_DEPTH = 4


class Draft:

    def __init__(self, gatherer: Gatherer, root: files.Loaded | None, context: Context) -> None:
        self.gatherer, self.root, self.context = gatherer, root, context
        self.subjects: list[Any] = []
        self.commands: list[Command] = []
        self.environment: dict[str, str] = {}
        self.places: dict[str, Location] = {}
        self.seen: set[str] = set()
        self.nodes: int | None = None
        self.more_devices = False

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
            self.nodes,
            None if self.more_devices else self.context.gpus_per_node,
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
        by_line = typed or document.dialect == "line"
        file: AccelerateFile = accelerate_file(spoken(document, where or Location("--context")) if by_line else document, typed)
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
            self.know("world_size", flags.ranks_of(command), "--context")

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
        self.nodes, self.more_devices = script.nodes, script.more_devices
        self.know("gpus_per_node", script.gpus_per_node, loaded.path)
        self.know("hardware", script.gpu_type or None, loaded.path)
        self.know(
            "device", next((kind for name in script.environment for start, kind in _DEVICES if name.startswith(start)), None), loaded.path
        )
        folder = script.folder if script.folder and os.path.isdir(script.folder) else ""
        ranks = script.nodes * script.tasks_per_node if script.nodes and script.tasks_per_node else None
        if not script.commands:
            self.gatherer.report.skip(
                loaded.path, "it holds no launch line that check knows: accelerate, torchrun, deepspeed, python FILE.py"
            )
        for command in script.commands:
            if all(each.launcher == "python" for each in script.commands) and ranks and ranks > 1:
                self.know("world_size", ranks, f"{loaded.path}: nodes x tasks")
            self.command(command, loaded.path, folder)

    def command(self, command: Command, referrer: str, folder: str) -> None:
        self.commands.append(command)
        origin = referrer or "--cli"
        self.know("world_size", flags.ranks_of(command), origin)
        arguments = flags.script_arguments(command.script_words)
        source = self.gatherer.follow(command.script, origin, folder) if command.script.endswith(".py") else None
        self.know("device", "hpu" if arguments.get("use_habana") is True else None, origin)
        self._script_arguments(command, arguments, origin, folder, not _has_own_flags(source))
        if source is not None:
            self.add(source, 1)
        self._configs_of_words(command, origin, folder)
        self._config_in_line(command, arguments, origin)
        if command.launcher == "accelerate":
            self._accelerate_line(command, origin, folder)

    def _accelerate_line(self, command: Command, origin: str, folder: str) -> None:
        target = command.typed.get("config_file")
        if target is None:
            target = files.default_accelerate_file()
            if target is None:
                self.gatherer.report.skip("a default config file", f"{origin} names none, and there is none here: its flags are judged")
                self.accelerate(_of_line(command, origin), command.typed, command.where, folder, 1, command.script_words)
                return
        loaded = self.gatherer.follow(target, origin, folder)
        if loaded is None and origin == "--cli" and _LITERAL.fullmatch(str(target)):
            refused = replace(command, problems=(*command.problems, f"--config_file {target} is not there"))
            self.commands[self.commands.index(command)] = refused
        elif loaded is None:
            self.gatherer.report.skip(str(target), f"{origin} names it, and it is not here")
        elif loaded.dialect in ("accelerate", "sagemaker") and loaded.document is not None:
            self.seen.add(loaded.path)
            self.subjects.append(loaded.document)
            self.accelerate(loaded.document, command.typed, command.where, folder, 1, command.script_words)
        else:
            self.add(loaded, 1, "", folder)

    def _config_in_line(self, command: Command, arguments: dict[str, Any], origin: str) -> None:
        if any(word.lstrip("+").startswith("actor_rollout_ref.") for word in command.script_words):
            values = overrides.overrides_of(command.script_words)
            self.know("world_size", overrides.ranks_of_verl(values), origin)
            self.gatherer.report.skip(f"{origin}: overrides of verl", "only what they say of FSDP is judged")
            self._foreign(overrides.document_of(values, origin, command.where), "verl", 1, "")
        elif overrides.is_openrlhf(command):
            values = overrides.deepspeed_of_openrlhf(arguments)
            self.gatherer.report.skip(f"{origin}: flags of OpenRLHF", "only the DeepSpeed config that it makes of them is judged")
            document = overrides.document_of(values, origin, command.where)
            self.subjects.append(DeepSpeedConfig(document, values, self.context, "deepspeed"))

    def _configs_of_words(self, command: Command, origin: str, folder: str) -> None:
        for word in command.script_words[:200]:
            place = files.find(word.rpartition("=")[2], origin, folder) if word.endswith(_CONFIGS) else None
            if place and os.path.getsize(place[0]) < _LARGEST and self.gatherer.load(place[0], False).dialect in _OF_TOOLS:
                loaded = self.gatherer.follow(place[0], origin, "")
                if loaded is not None and loaded.path not in self.seen:
                    if loaded.dialect in dialects.NOT_JUDGED:
                        self.gatherer.report.skip(loaded.path, dialects.NOT_JUDGED[loaded.dialect])
                    self.add(loaded, 1, "", folder)

    def _script_arguments(self, command: Command, arguments: dict[str, Any], origin: str, folder: str, of_trainer: bool) -> None:
        names = {*table("arguments")["arguments"]} if of_trainer and not overrides.is_openrlhf(command) else set()
        if {"tensor_model_parallel_size", "pipeline_model_parallel_size"} & {*arguments}:
            self.subjects.append(Megatron(arguments, self.context, None, command.where))
        elif names and self._of_trainer(arguments, names):
            self.know("training_args", arguments, f"flags of {command.script}")
            self.subjects.append(TrainingArguments(arguments, self.context, None, (), command.where))
        reader = "transformers" if names & {*arguments} - {"deepspeed"} else "deepspeed"
        for name in ("deepspeed", "deepspeed_config", "fsdp_config"):
            loaded = self.gatherer.follow(arguments.get(name), origin, folder)
            if loaded is not None and name == "fsdp_config":
                self._fsdp_block(loaded.document, (), loaded.values, "transformers")
            elif loaded is not None:
                self.add(loaded, 1, reader if name == "deepspeed" else "deepspeed", folder)
        self._model_beside(arguments.get("model_name_or_path"), folder)

    @staticmethod
    def _of_trainer(arguments: dict[str, Any], names: set[str]) -> bool:
        if "deepspeed_config" in arguments:
            return False
        return len(names & {*arguments}) >= 2 or ("deepspeed" in arguments and "output_dir" in arguments)

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


def _has_own_flags(source: files.Loaded | None) -> bool:
    return source is not None and "ArgumentParser(" in source.text and not _READS_TRAINER.search(source.text)


def _of_line(command: Command, origin: str) -> Document:
    typed = command.typed
    paradigms = (("use_deepspeed", "DEEPSPEED"), ("use_fsdp", "FSDP"), ("use_megatron_lm", "MEGATRON_LM"), ("tpu", "XLA"), ("cpu", "NO"))
    kind = next((kind for flag, kind in paradigms if typed.get(flag)), "NO" if typed.get("num_processes") == 1 else "MULTI_GPU")
    return Document(origin, "", "line", {"compute_environment": "LOCAL_MACHINE", "distributed_type": kind}, {})


def _has_auto(values: Mapping[str, Any], depth: int = 0) -> bool:
    return any(value == "auto" or (depth < 4 and isinstance(value, dict) and _has_auto(value, depth + 1)) for value in values.values())
