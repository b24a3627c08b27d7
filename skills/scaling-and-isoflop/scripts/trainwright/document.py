# document.py without its comments
from __future__ import annotations

import codecs
import importlib.util
import json
import os
import re
import stat
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainwright.errors import Exit, MissingPackageError, UserError
from trainwright.report import Location

MAX_BYTES = 8 * 1024 * 1024
MAX_TEXT = {"json": 2 * 1024 * 1024, "yaml": 512 * 1024, "toml": 128 * 1024}
MAX_DOTS = 1000
MAX_DEPTH = 64
MAX_NODES = 50_000
MAX_DIGITS = 40
MAX_KEY_DIGITS = 18
MAX_INTEGER = 10**1000

KeyPath = tuple[Any, ...]
Place = tuple[KeyPath, int, int, bool]


class DocumentError(UserError):

    exit = Exit.USAGE
    rule = "DOC001"

    def __init__(self, message: str, where: Location) -> None:
        message = message if len(message) <= 1000 else f"{message[:1000]}..."
        super().__init__(f"{where}: {message}")
        self.where = where
        self.reason = message


@dataclass(frozen=True, slots=True)
class Duplicate:

    path: KeyPath
    first: Location
    last: Location


@dataclass(slots=True)
class Document:

    path: str
    text: str
    dialect: str
    value: Any
    _places: dict[KeyPath, tuple[int, int]] | None = field(default=None, repr=False)
    _duplicates: list[Duplicate] = field(default_factory=list, repr=False)

    def get(self, *path: Any, default: Any = None) -> Any:
        value = self.value
        for part in path:
            if isinstance(value, dict) and part in value:
                value = value[part]
            elif isinstance(value, list) and isinstance(part, int) and 0 <= part < len(value):
                value = value[part]
            else:
                return default
        return value

    def has(self, *path: Any) -> bool:
        return self.get(*path, default=_MISSING) is not _MISSING

    def at(self, *path: Any) -> Location:
        places = self._scan()
        for length in range(len(path), 0, -1):
            if place := places.get(path[:length]):
                return Location(self.path, *place)
        return Location(self.path, 1, 1) if not path else Location(self.path)

    def duplicates(self) -> list[Duplicate]:
        self._scan()
        return self._duplicates

    def _scan(self) -> dict[KeyPath, tuple[int, int]]:
        if self._places is None:
            self._places = {}
            for path, line, column, again in _SCANNERS[self.dialect](self.text):
                if again:
                    first = Location(self.path, *self._places[path])
                    self._duplicates.append(Duplicate(path, first, Location(self.path, line, column)))
                self._places[path] = (line, column)
        return self._places


@dataclass(slots=True)
class Spoken(Document):

    line: Location = field(default_factory=lambda: Location(""))

    def at(self, *path: Any) -> Location:
        return self.line if self.dialect == "line" or str(path[:1]).startswith("('--") else Document.at(self, *path)


def spoken(document: Document, line: Location) -> Spoken:
    return Spoken(document.path, document.text, document.dialect, document.value, document._places, document._duplicates, line)


_MISSING = object()
_CONTAINERS = (dict, list, tuple, set)
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def dialect_of(path: str) -> str:
    return {".json": "json", ".toml": "toml"}.get(Path(path).suffix.lower(), "yaml")


def load(path: str, dialect: str | None = None) -> Document:
    dialect = dialect or ("yaml" if path == "-" else dialect_of(path))
    return parse(read_text(path, MAX_TEXT[dialect]), path, dialect)


def parse(text: str, path: str, dialect: str, most: int = MAX_NODES) -> Document:
    if not text.strip():
        raise DocumentError("the file is empty; give it a mapping of keys to values", Location(path))
    try:
        value = _PARSERS[dialect](text, path)
    except RecursionError:
        raise _too_deep(path) from None
    _check_shape(value, path, most)
    return Document(path, text, dialect, value)


def load_mapping(path: str, dialect: str | None = None) -> Document:
    document = load(path, dialect)
    if not isinstance(document.value, dict):
        kind = "empty" if document.value is None else f"a {type(document.value).__name__}"
        raise DocumentError(f"the top level is {kind}, not a mapping of keys to values", Location(path, 1, 1))
    return document


def read_text(path: str, max_bytes: int = MAX_BYTES) -> str:
    where = Location(path)
    try:
        raw = _read_stdin(max_bytes) if path == "-" else _read_regular(path, max_bytes)
    except (OSError, ValueError) as problem:
        raise DocumentError(f"cannot be read: {getattr(problem, 'strerror', None) or problem}", where) from None
    if len(raw) > max_bytes:
        raise DocumentError(f"is larger than {max_bytes // 1024:,} KiB; this is no configuration file", where)
    if raw[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        raise DocumentError("is UTF-16, and its consumers read UTF-8; save it as UTF-8", where)
    if b"\0" in raw:
        raise DocumentError("is binary (it holds NUL bytes), not text", where)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as problem:
        line = raw.count(b"\n", 0, problem.start) + 1
        raise DocumentError(f"is not UTF-8 (byte 0x{raw[problem.start]:02x}); save it as UTF-8", Location(path, line)) from None


def _read_stdin(max_bytes: int) -> bytes:
    if sys.stdin is None:
        raise ValueError("standard input is closed")
    with suppress(OSError, ValueError):
        os.set_blocking(sys.stdin.fileno(), True)
    return sys.stdin.buffer.read(max_bytes + 1)


def _read_regular(path: str, max_bytes: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise ValueError("it is a folder; name a file in it" if stat.S_ISDIR(mode) else "it is not a regular file")
    with open(descriptor, "rb") as file:
        return file.read(max_bytes + 1) or b""


def _too_deep(path: str) -> DocumentError:
    return DocumentError(f"is nested more than {MAX_DEPTH} levels deep; no consumer's format is", Location(path))


def _check_shape(value: Any, path: str, most: int) -> None:
    level, depth, count = [value], 0, 0
    while level:
        containers = [item for item in level if isinstance(item, _CONTAINERS)]
        count += sum(len(item) * (2 if isinstance(item, dict) else 1) for item in containers)
        if depth > MAX_DEPTH:
            raise _too_deep(path)
        if count > most:
            raise DocumentError(f"holds more than {most:,} values", Location(path))
        level = [child for item in containers for child in (*(item.values() if isinstance(item, dict) else ()), *item)]
        if any(type(child) is int and abs(child) >= MAX_INTEGER for child in level):
            raise DocumentError("holds an integer of more than 1,000 digits; no consumer's format does", Location(path))
        depth += 1


_JSON_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]|[^\s"{}\[\],:]+', re.DOTALL)


def _parse_json(text: str, path: str) -> Any:
    if text.startswith("\ufeff"):
        raise DocumentError("starts with a byte order mark, which json.load refuses; save it without", Location(path, 1, 1))
    try:
        return json.loads(text)
    except json.JSONDecodeError as problem:
        raise DocumentError(f"is not JSON: {problem.msg}", Location(path, problem.lineno, problem.colno)) from None
    except ValueError as problem:
        raise DocumentError(f"is not JSON that can be read: {str(problem).split(';')[0]}", Location(path)) from None


def _scan_json(text: str) -> Iterator[Place]:
    path: list[Any] = []
    seen: list[set[str]] = []
    key: str | None = None
    line, line_start, end = 1, 0, 0
    for token in _JSON_TOKEN.finditer(text):
        if newlines := text.count("\n", end, token.start()):
            line += newlines
            line_start = text.rfind("\n", end, token.start()) + 1
        end = token.start()
        column = end - line_start + 1
        word = token[0]
        in_list = bool(path) and isinstance(path[-1], int)
        if in_list and word not in "]},:":
            yield tuple(path), line, column, False
        if word in "{[":
            path.append(0 if word == "[" else None)
            seen.append(set())
            key = None
        elif word in "}]":
            path.pop()
            seen.pop()
        elif word == ",":
            key = None
            path[-1] = path[-1] + 1 if in_list else None
        elif word != ":" and path and not in_list and key is None:
            key = path[-1] = json.loads(word)
            yield tuple(path), line, column, key in seen[-1]
            seen[-1].add(key)


def _yaml(path: str) -> Any:
    if importlib.util.find_spec("yaml") is None:
        raise MissingPackageError("PyYAML", f"reading {path} (YAML)", "pyyaml")
    import yaml

    return yaml


def _parse_yaml(text: str, path: str) -> Any:
    yaml = _yaml(path)
    try:
        return _bounded_loader(path)(text).get_single_data()
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        where = Location(path, mark.line + 1, mark.column + 1) if mark else Location(path)
        words = " ".join(filter(None, (problem.context, problem.problem)))
        raise DocumentError(f"is not YAML that safe_load takes: {words}", where) from None
    except yaml.YAMLError as problem:
        raise DocumentError(f"is not YAML that safe_load takes: {str(problem).splitlines()[0]}", Location(path)) from None
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as problem:
        words = f"{type(problem).__name__}: {str(problem).split(';')[0]}"
        raise DocumentError(f"is not YAML that safe_load takes: {words}", Location(path)) from None


def _bounded_loader(path: str) -> Any:
    yaml = _yaml(path)

    base: Any = yaml.SafeLoader

    class Loader(base):
        def __init__(self, text: str) -> None:
            super().__init__(text)
            self.depth = self.total = 0
            self.sizes: dict[int, int] = {}

        def compose_node(self, parent: Any, index: Any) -> Any:
            event = self.peek_event()
            where = Location(path, event.start_mark.line + 1, event.start_mark.column + 1)
            before, self.depth = self.total, self.depth + 1
            if self.depth > MAX_DEPTH:
                raise _too_deep(path)
            node = super().compose_node(parent, index)
            self.depth -= 1
            if not isinstance(event, yaml.AliasEvent):
                self.total += 1
                self.sizes[id(node)] = self.total - before
            elif id(node) not in self.sizes:
                raise DocumentError(f"the alias *{event.anchor} stands inside its own anchor", where)
            else:
                self.total += self.sizes[id(node)]
            if self.total > MAX_NODES:
                raise DocumentError(f"holds more than {MAX_NODES:,} values once its aliases are expanded", where)
            is_key = isinstance(parent, yaml.MappingNode) and index is None
            longest = MAX_KEY_DIGITS if is_key else MAX_DIGITS
            if isinstance(node, yaml.ScalarNode) and len(node.value) > longest and node.tag in _NUMBERS:
                raise DocumentError(f"holds a number of {len(node.value):,} digits; no consumer's format does", where)
            return node

    return Loader


def _scan_yaml(text: str) -> Iterator[Place]:
    import yaml

    queue: deque[tuple[KeyPath, Any]] = deque([((), yaml.compose(text, Loader=yaml.SafeLoader))])
    while queue:
        path, node = queue.popleft()
        seen: set[Any] = set()
        if isinstance(node, yaml.MappingNode):
            for key_node, value_node in node.value:
                key = yaml_key(key_node)
                merge = key_node.tag == "tag:yaml.org,2002:merge"
                yield (*path, key), *_yaml_place(key_node), key in seen and not merge
                seen.add(key)
                queue.append(((*path, key), value_node))
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                yield (*path, index), *_yaml_place(item), False
                queue.append(((*path, index), item))


def _yaml_place(node: Any) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1


def yaml_key(node: Any) -> Any:
    import yaml

    if node.tag in {f"tag:yaml.org,2002:{name}" for name in ("str", "merge", "value")}:
        return node.value
    return yaml.constructor.SafeConstructor().construct_object(node, deep=True)


def _parse_toml(text: str, path: str) -> Any:
    name = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    if importlib.util.find_spec(name) is None:
        raise MissingPackageError("tomli", f"reading {path} (TOML) with Python 3.10", "tomli")
    toml = importlib.import_module(name)
    if any(line.count(".") > MAX_DOTS for line in text.split("\n")):
        raise DocumentError(f"has a line of more than {MAX_DOTS:,} dots; no consumer's format has", Location(path))
    try:
        return toml.loads(text)
    except toml.TOMLDecodeError as problem:
        found = re.search(r"\(at line (\d+), column (\d+)\)", str(problem))
        where = Location(path, int(found[1]), int(found[2])) if found else Location(path)
        raise DocumentError(f"is not TOML: {str(problem).split(' (at ')[0]}", where) from None
    except ValueError as problem:
        raise DocumentError(f"is not TOML that can be read: {str(problem).split(';')[0]}", Location(path)) from None


_TOML_PART = r"""(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')"""
_TOML_NAME = rf"({_TOML_PART}(?:\s*\.\s*{_TOML_PART})*)"
_TOML_TABLE = re.compile(rf"\s*\[(\[?)\s*{_TOML_NAME}\s*\]")
_TOML_KEY = re.compile(rf"\s*{_TOML_NAME}\s*=")


def _scan_toml(text: str) -> Iterator[Place]:
    table: KeyPath = ()
    entries: dict[KeyPath, int] = {}
    quote = ""
    for number, line in enumerate(text.split("\n"), start=1):
        column = len(line) - len(line.lstrip()) + 1
        if not quote and (match := _TOML_TABLE.match(line)):
            table = _toml_table(match[2], bool(match[1]), entries)
            yield table, number, column, False
        elif not quote and (match := _TOML_KEY.match(line)):
            yield (*table, *_toml_parts(match[1])), number, column, False
        for delimiter in re.findall(r"\"{3}|'{3}", line):
            quote = delimiter if not quote else "" if quote == delimiter else quote


def _toml_table(name: str, is_entry: bool, entries: dict[KeyPath, int]) -> KeyPath:
    path: KeyPath = ()
    *parents, last = _toml_parts(name)
    for part in parents:
        path = (*path, part)
        path = (*path, entries[path]) if path in entries else path
    path = (*path, last)
    if is_entry:
        entries[path] = entries.get(path, -1) + 1
        path = (*path, entries[path])
    return path


def _toml_parts(name: str) -> KeyPath:
    return tuple(part.strip("\"'") for part in re.findall(_TOML_PART, name))


_PARSERS = {"json": _parse_json, "yaml": _parse_yaml, "toml": _parse_toml}
_SCANNERS = {"json": _scan_json, "yaml": _scan_yaml, "toml": _scan_toml}
