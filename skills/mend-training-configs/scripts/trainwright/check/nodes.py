# helpers/trainwright/check/nodes.py without its comments
from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_WORD = re.compile(r"[^\s,{}\[\]:]+")
_BLANK = re.compile(r"\s*")


@dataclass(slots=True)
class Node:

    kind: str
    start: int
    end: int
    flow: bool = True
    entries: list[Entry] = field(default_factory=list)
    items: list[Node] = field(default_factory=list)

    def entry(self, key: Any) -> Entry | None:
        return next((entry for entry in reversed(self.entries) if entry.key == key and type(entry.key) is type(key)), None)


@dataclass(slots=True)
class Entry:

    key: Any
    start: int
    end: int
    value: Node


def nodes(text: str, dialect: str) -> Node:
    return _from_yaml(text) if dialect == "yaml" else _json(text, _skip(text, 0))


def find(root: Node, path: tuple[Any, ...]) -> Node | None:
    node: Node | None = root
    for part in path:
        if node is None:
            return None
        if node.kind == "list" and isinstance(part, int):
            node = node.items[part] if part < len(node.items) else None
        else:
            entry = node.entry(part)
            node = entry.value if entry else None
    return node


def _skip(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    return match.end() if match else at


def _json(text: str, at: int) -> Node:
    if text[at] in "{[":
        is_map, node = text[at] == "{", Node("map" if text[at] == "{" else "list", at, at)
        at = _skip(text, at + 1)
        while text[at] not in "}]":
            start = at
            if is_map:
                at = _STRING.match(text, at).end()
                key, end = json.loads(text[start:at]), at
                at = _skip(text, _skip(text, at) + 1)
            value = _json(text, at)
            at = _skip(text, value.end)
            if is_map:
                node.entries.append(Entry(key, start, end, value))
            else:
                node.items.append(value)
            at = _skip(text, at + 1) if text[at] == "," else at
        node.end = at + 1
        return node
    match = (_STRING if text[at] == '"' else _WORD).match(text, at)
    assert match
    return Node("scalar", at, match.end())


def _from_yaml(text: str) -> Node:
    import yaml

    return _yaml(yaml.compose(text, Loader=yaml.SafeLoader), {})


def _yaml(node: Any, seen: dict[int, Node]) -> Node:
    import yaml

    from trainwright.document import yaml_key

    if id(node) in seen:
        return seen[id(node)]
    start, end = node.start_mark.index, node.end_mark.index
    if isinstance(node, yaml.ScalarNode):
        found = seen[id(node)] = Node("scalar", start, end)
        return found
    found = seen[id(node)] = Node("map" if isinstance(node, yaml.MappingNode) else "list", start, end, bool(node.flow_style))
    if found.kind == "map":
        for key, value in node.value:
            found.entries.append(Entry(yaml_key(key), key.start_mark.index, key.end_mark.index, _yaml(value, seen)))
    else:
        found.items = [_yaml(item, seen) for item in node.value]
    if not found.flow:
        last = found.entries[-1].value if found.entries else found.items[-1]
        found.end = last.end
    return found
