# helpers/trainwright/check/files.py without its comments
from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainwright.check.dialects import dialect_of, template_mark
from trainwright.check.script import Script, is_script, read_script
from trainwright.document import MAX_NODES, MAX_TEXT, Document, DocumentError, parse, read_text
from trainwright.document import dialect_of as parser_of
from trainwright.errors import UserError
from trainwright.report import Location

if TYPE_CHECKING:
    import ast

MAX_FILES = 2000
_CONFIGS = (".yaml", ".yml", ".json", ".toml", ".sh", ".sbatch", ".slurm", ".pbs", ".py", ".hjson")
_SKIPPED = ("node_modules", "__pycache__", "venv", "site-packages", "build", "dist")
_ABOVE = 6
_JUDGED_AS_WHOLE = ("accelerate", "deepspeed", "sagemaker", "training-arguments", "fsdp-config", "unknown")


@dataclass(slots=True, eq=False, repr=False)
class Loaded:

    path: str
    dialect: str
    document: Document | None = None
    script: Script | None = None
    tree: ast.Module | None = None
    text: str = ""
    problem: DocumentError | None = None
    mark: str = ""
    named: bool = True
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def mark_at(self) -> Location:
        before = self.text[: max(self.text.find(self.mark), 0)]
        return Location(self.path, before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)


def named_files(words: Sequence[str]) -> Iterator[tuple[str, bool]]:
    seen = set()
    for path, by_name in _expand(words):
        if path not in seen:
            seen.add(path)
            if len(seen) > MAX_FILES:
                raise UserError(f"more than {MAX_FILES:,} files: name a smaller folder")
            yield path, by_name


def _expand(words: Sequence[str]) -> Iterator[tuple[str, bool]]:
    for word in words:
        if word != "-" and os.path.isdir(word):
            yield from ((path, False) for path in _walk(word))
        elif any(mark in word for mark in "*?[") and not os.path.lexists(word):
            import glob

            found = sorted(path for path in glob.iglob(word, recursive=True) if os.path.isfile(path))
            yield from ((path, False) for path in found)
            if not found:
                yield word, True
        else:
            yield word, True


def _walk(folder: str) -> Iterator[str]:
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _SKIPPED)
        for name in sorted(files):
            if name.endswith(_CONFIGS) and not os.path.islink(os.path.join(root, name)):
                yield os.path.join(root, name)


def load(path: str, forced: str = "", text: str | None = None) -> Loaded:
    try:
        if path.endswith(".py"):
            return _source(path)
        if text is None:
            text = read_text(path, MAX_TEXT["json" if path.endswith(".json") else "yaml" if not path.endswith(".toml") else "toml"])
    except DocumentError as problem:
        return Loaded(path, "unreadable", problem=problem)
    if is_script(path, text):
        return Loaded(path, "script", script=read_script(path, text), text=text)
    loaded = _document(path, text)
    if forced and loaded.document is not None:
        loaded.dialect = forced
    return loaded


def _document(path: str, text: str, forced: str = "") -> Loaded:
    kind = forced or _kind(path, text)
    try:
        document = parse(text, path, kind)
        if not isinstance(document.value, dict):
            shown = "empty" if document.value is None else f"a {type(document.value).__name__}"
            raise DocumentError(f"the top level is {shown}, not a mapping of keys to values", Location(path, 1, 1))
    except DocumentError as problem:
        as_yaml = _document(path, text, "yaml") if path == "-" and kind == "json" else None
        return as_yaml if as_yaml and as_yaml.document else _refused(path, text, kind, problem)
    dialect = dialect_of(document)
    loaded = Loaded(path, dialect, document, text=text, values=document.value)
    if dialect in _JUDGED_AS_WHOLE and ("{{" in text or "{%" in text or "$" in text or "<" in text) and (mark := template_mark(text, kind)):
        loaded.dialect, loaded.mark = "template", mark[0]
    return loaded


def _kind(path: str, text: str) -> str:
    if path == "-":
        return "json" if text.lstrip()[:1] == "{" else "yaml"
    return "json" if path.endswith(".hjson") else parser_of(path)


def _refused(path: str, text: str, kind: str, problem: DocumentError) -> Loaded:
    if mark := template_mark(text, kind, refused=True):
        return Loaded(path, "template", text=text, mark=mark[0], problem=problem)
    if kind == "json":
        from trainwright.check import hjson

        try:
            value, _ = hjson.loads(text)
        except (RecursionError, ValueError):
            return Loaded(path, "unreadable", text=text, problem=problem)
        stand_in = Document(path, "{}", "json", value)
        if isinstance(value, dict) and len(str(value)) < MAX_NODES * 10 and dialect_of(stand_in) == "deepspeed":
            return Loaded(path, "deepspeed", stand_in, text=text, problem=problem, values=value)
    return Loaded(path, "unreadable", text=text, problem=problem)


def _source(path: str) -> Loaded:
    if importlib.util.find_spec("trainwright.check.source"):
        from trainwright.check.source.parse import read_source

        text, tree = read_source(path)
        return Loaded(path, "python", tree=tree, text=text)
    return Loaded(path, "python", text=read_text(path, MAX_TEXT["yaml"]))


def find(target: str, referrer: str, folder: str = "") -> tuple[str, bool] | None:
    if not target or len(target) > 1024 or "\0" in target or "\n" in target:
        return None
    if os.path.isfile(os.path.join(folder, target) if folder else target):
        return (os.path.join(folder, target) if folder else target), True
    if os.path.isabs(target) or referrer == "-":
        return None
    base = os.path.dirname(os.path.abspath(referrer))
    for _ in range(_ABOVE):
        for candidate in (os.path.join(base, target), os.path.join(base, os.path.basename(target))):
            if os.path.isfile(candidate):
                return os.path.relpath(candidate), False
        if base == os.path.dirname(base):
            break
        base = os.path.dirname(base)
    return None


def default_accelerate_file() -> str | None:
    cache = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "huggingface")
    names = (os.path.join(os.path.expanduser(cache), "accelerate", f"default_config.{ending}") for ending in ("yaml", "json"))
    return next((name for name in names if os.path.isfile(name)), None)
