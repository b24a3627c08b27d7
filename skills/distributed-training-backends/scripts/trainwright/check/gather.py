# check/gather.py without its comments
from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainwright.check import dialects, files, flags
from trainwright.check.draft import Draft
from trainwright.check.subject import Context, Job
from trainwright.errors import UserError
from trainwright.report import Location, Report

_RULES = {
    "accelerate": "rules.accelerate",
    "sagemaker": "rules.accelerate",
    "deepspeed": "rules.deepspeed",
    "training-arguments": "rules.arguments",
    "script": "rules.job",
    "python": "source",
    "fsdp-config": "rules.fsdp",
    "megatron": "rules.megatron",
    "quantization": "rules.quantization",
}


def holds(module: str) -> bool:
    return importlib.util.find_spec(f"trainwright.check.{module}") is not None


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
            if by_name or loaded.dialect not in ("unknown", "model"):
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
        judged = loaded.dialect in _RULES and holds(_RULES[loaded.dialect])
        row = {"path": loaded.path, "dialect": loaded.dialect, "judged": judged, "findings": 0}
        return self.found.rows.setdefault(loaded.path, row)

    def _root(self, loaded: files.Loaded) -> Draft | None:
        draft, self.root = Draft(self, loaded, self.context), os.path.realpath(loaded.path)
        if loaded.dialect in dialects.NOT_JUDGED:
            self.report.skip(loaded.path, dialects.NOT_JUDGED[loaded.dialect])
        draft.add(loaded, 0)
        return draft

    def _all(self, roots: Sequence[files.Loaded]) -> Draft:
        draft = Draft(self, None, self.context)
        order = ("model", "quantization", "script", "training-arguments", "llama-factory", "axolotl")
        for loaded in sorted(roots, key=lambda each: order.index(each.dialect) if each.dialect in order else len(order)):
            if loaded.dialect == "model":
                draft.model_file(loaded.path)
            elif loaded.dialect in dialects.NOT_JUDGED:
                self.report.skip(loaded.path, dialects.NOT_JUDGED[loaded.dialect])
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
