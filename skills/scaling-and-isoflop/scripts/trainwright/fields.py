# fields.py without its comments
from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainwright.document import Document, DocumentError
from trainwright.report import Location

LARGEST = 10**9
MISSING = object()
ACTIVATIONS = ("gelu", "gelu_fast", "gelu_new", "gelu_python", "gelu_pytorch_tanh", "quick_gelu", "relu", "relu2", "silu", "swish", "tanh")


@dataclass(frozen=True, slots=True)
class Assumed:

    field: str
    value: Any


@functools.cache
def defaults() -> dict[str, Any]:
    table: dict[str, Any] = json.loads((Path(__file__).parent / "families" / "defaults.json").read_text(encoding="utf-8"))
    return table


@dataclass(slots=True)
class Fields:

    document: Document
    family: str
    path: tuple[str, ...] = ()
    problems: list[tuple[str, Location]] = field(default_factory=list)
    clashes: list[tuple[str, Location]] = field(default_factory=list)
    assumed: list[Assumed] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    read: set[str] = field(default_factory=set)

    def section(self, name: str, family: str) -> Fields:
        value = self._value((name,))
        if not isinstance(value, dict):
            self.wrong(name, f"{self.named(name)} is {'missing' if value in (None, MISSING) else shown(value) + ', not a mapping'}")
        said = self.document.get(*self.path, name, "model_type", default=family)
        if not isinstance(said, str):
            self.problems.append(
                (f"{self.named(name)}.model_type is {shown(said)}, not a name", self.document.at(*self.path, name, "model_type"))
            )
        return replace(self, family=said if isinstance(said, str) else family, path=(*self.path, name))

    def has(self, name: str) -> bool:
        return self._value((name,)) not in (None, MISSING)

    def named(self, name: str) -> str:
        return ".".join((*self.path, name))

    def wrong(self, name: str, message: str) -> None:
        self.problems.append((message, self.document.at(*self.path, name)))

    def clash(self, name: str, message: str) -> None:
        self.clashes.append((message, self.document.at(*self.path, name)))

    def multiple(self, name: str, whole: int, other: str, part: int, at: str = "", more: str = "") -> None:
        if whole % part:
            self.clash(at or other, f"{self.named(name)} {whole} is not a multiple of {self.named(other)} {part}{more}")

    def derived(self, name: str) -> bool:
        return not self.has(name) and self._default(name) is None

    def note(self, text: str) -> None:
        self.notes.append(text)

    def size(self, *names: str) -> int:
        value = self._value(names)
        if value in (None, MISSING) and self.path and (default := self._default(names[0])) is not None:
            return int(self._assume(names[0], default))
        if value in (None, MISSING):
            self.wrong(names[0], f"{self.named(names[0])} is missing")
            return 1
        return self._whole(names[0], value)

    def size_or(self, name: str, derived: int, *names: str, least: int = 1) -> int:
        value = self._value((name, *names))
        if value is MISSING:
            default = self._default(name)
            return int(self._assume(name, derived if default is None else default))
        return derived if value is None else self._whole(name, value, least)

    def optional_size(self, name: str, least: int = 1) -> int | None:
        value = self._value((name,))
        if value is MISSING:
            default = self._assume(name, self._default(name))
            return None if default is None else int(default)
        return None if value is None else self._whole(name, value, least)

    def flag(self, name: str) -> bool:
        value = self._value((name,))
        if value is MISSING:
            return bool(self._assume(name, bool(self._default(name))))
        if value is not None and type(value) is not bool:
            self.wrong(name, f"{self.named(name)} is {shown(value)}, not true or false")
        return value is True

    def number(self, name: str) -> float:
        value = self._value((name,))
        if value in (None, MISSING):
            return float(self._assume(name, self._default(name)))
        return self._positive(name, value)

    def share(self, name: str) -> float:
        return self.number(name) if self.has(name) or self._default(name) is not None else 1.0

    def optional_number(self, name: str) -> float | None:
        value = self._value((name,))
        if value is MISSING:
            default = self._assume(name, self._default(name))
            return None if default is None else float(default)
        return None if value is None else self._positive(name, value)

    def word(self, name: str, choices: Sequence[str]) -> str:
        value = self._value((name,))
        if value in (None, MISSING):
            return str(self._assume(name, self._default(name)))
        if value not in choices:
            self.wrong(name, f"{self.named(name)} is {shown(value)}, not one of {', '.join(choices)}")
            return choices[0]
        return str(value)

    def activation(self, name: str) -> str:
        found = self.word(name, ACTIVATIONS)
        return "silu" if found == "swish" else found

    def words(self, name: str) -> list[Any] | None:
        value = self._value((name,))
        if value in (None, MISSING):
            return None
        if not isinstance(value, list):
            self.wrong(name, f"{self.named(name)} is {shown(value)}, not a list")
            return None
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        value = self._value((name,))
        if value in (None, MISSING):
            return {}
        if not isinstance(value, dict):
            self.wrong(name, f"{self.named(name)} is {shown(value)}, not a mapping")
            return {}
        return value

    def positive(self, name: str, value: Any, *inside: str) -> float:
        return self._positive(name, value, ".".join((self.named(name), *inside)))

    def finish(self) -> None:
        if wrong := self.problems or self.clashes:
            messages = "; ".join(dict.fromkeys(message for message, _ in wrong))
            raise DocumentError(f"this model cannot be built: {messages}", wrong[0][1])

    def judge_names(self, also: Sequence[str] = ()) -> None:
        known = self.read | set(also)
        for name in (name for name in self.document.value if name not in known):
            close = difflib.get_close_matches(str(name), sorted(known), 1, 0.75)
            if close and self.document.at(close[0]).line is None:
                self.wrong(str(name), f"{shown(name)} is no field of a {self.family} model; did you mean {close[0]}?")
            else:
                self.note(f"{shown(name)} is not read: it is no field that changes the shape of a {self.family} model")

    def _value(self, names: tuple[str, ...]) -> Any:
        if not self.path:
            self.read.update(names)
        return next((value for name in names if (value := self.document.get(*self.path, name, default=MISSING)) is not MISSING), MISSING)

    def _default(self, name: str) -> Any:
        return defaults().get(self.family, {}).get(name)

    def _assume(self, name: str, value: Any) -> Any:
        found = Assumed(self.named(name), value)
        if found not in self.assumed:
            self.assumed.append(found)
        return value

    def _whole(self, name: str, value: Any, least: int = 1) -> int:
        if type(value) is int and least <= value <= LARGEST:
            return value
        self.wrong(name, f"{self.named(name)} is {shown(value)}, not a whole number from {least} to {LARGEST:,}")
        return max(least, 1)

    def _positive(self, name: str, value: Any, said: str = "") -> float:
        if type(value) in (int, float) and 0 < value <= LARGEST:
            return float(value)
        self.wrong(name, f"{said or self.named(name)} is {shown(value)}, not a positive number up to {LARGEST:,}")
        return 1.0


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
