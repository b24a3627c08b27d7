# helpers/trainwright/check/hjson.py without its comments
from __future__ import annotations

import json
import re
from typing import Any

from trainwright.document import MAX_DEPTH

_BLANK = re.compile(r"(?:\s|#[^\n]*|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_KEY = re.compile(r'"((?:[^"\\\n]|\\.)*)"|([^\s:,{}\[\]"]+)')
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_BARE = re.compile(r"[^\n]*")
_LITERAL = re.compile(r"(true|false|null|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)\s*(?=[,\]}#\n]|//|/\*|$)")


class HjsonError(ValueError):
    """A text that hjson does not take either."""


def loads(text: str) -> tuple[Any, list[str]]:
    reader = _Reader(text.lstrip("\ufeff"))
    value = reader.value(0)
    reader.blank()
    if reader.at < len(reader.text):
        raise HjsonError("more after the end")
    return value, reader.bare


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.at, self.bare = text, 0, list[str]()

    def blank(self) -> str:
        match = _BLANK.match(self.text, self.at)
        assert match
        self.at = match.end()
        return self.text[self.at : self.at + 1]

    def value(self, depth: int) -> Any:
        first = self.blank()
        if depth > MAX_DEPTH:
            raise HjsonError("too deep")
        if first == "{":
            return self._mapping(depth)
        if first == "[":
            return self._list(depth)
        if first == '"' and (match := _STRING.match(self.text, self.at)):
            self.at = match.end()
            return json.loads(match[0], strict=False)
        if match := _LITERAL.match(self.text, self.at):
            self.at = match.end()
            return json.loads(match[1])
        return self._bare(first)

    def _bare(self, first: str) -> str:
        match = _BARE.match(self.text, self.at)
        if not match or not first or first in ",}]:[":
            raise HjsonError(f"a value is missing before {first!r}")
        self.at = match.end()
        word = match[0].strip()
        self.bare.append(word)
        return word

    def _comma(self) -> None:
        if self.blank() == ",":
            self.at += 1

    def _mapping(self, depth: int) -> dict[str, Any]:
        self.at += 1
        found: dict[str, Any] = {}
        while self.blank() != "}":
            match = _KEY.match(self.text, self.at)
            if not match:
                raise HjsonError("a key is missing")
            self.at = match.end()
            if self.blank() != ":":
                raise HjsonError("a colon is missing")
            self.at += 1
            found[match[1] if match[1] is not None else match[2]] = self.value(depth + 1)
            self._comma()
        self.at += 1
        return found

    def _list(self, depth: int) -> list[Any]:
        self.at += 1
        found = []
        while self.blank() != "]":
            if self.at >= len(self.text):
                raise HjsonError("a list is not closed")
            found.append(self.value(depth + 1))
            self._comma()
        self.at += 1
        return found
