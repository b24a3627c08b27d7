"""Change keys of a YAML or JSON text in place: comments, order, quotes and layout of all the rest stay as they are.

Every edit is proved: the new text is parsed again, and has to hold exactly what was asked. Where it does not (anchors, unusual
layouts), nothing is changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from trainwright.check.nodes import Entry, Node, find, nodes
from trainwright.document import DocumentError, KeyPath, parse

_REST = re.compile(r"[ \t]*(#[^\n]*)?\r?(\n|\Z)")
Changes = Mapping[KeyPath, Any]


def edit(text: str, dialect: str, changes: Changes) -> str | None:
    """`text` with each key of `changes` set to its value (None deletes it); None where that cannot be done in place."""
    if dialect not in ("yaml", "json") or text.startswith("\ufeff"):
        return None
    try:
        before = parse(text, "-", dialect).value
        new = _edited(text, dialect, changes, before)
        if new is None or not _same(parse(new, "-", dialect).value, _wanted(before, changes)):
            return None
    except (DocumentError, AssertionError, IndexError):
        return None
    return new


def _wanted(value: Any, changes: Changes) -> Any:
    value = _apart(value)
    for path, new in changes.items():
        here = value
        for part in path[:-1]:
            if isinstance(here, dict) and not isinstance(here.get(part), (dict, list)):
                if new is None:
                    break
                here[part] = {}
            here = _entry(here, part)
        else:
            if isinstance(here, list):
                _entry(here, path[-1])
            if new is None and isinstance(here, dict):
                here.pop(path[-1], None)
            elif new is not None:
                here[path[-1]] = new
    return value


def _entry(here: Any, part: str | int) -> Any:
    """One step of a path; raises IndexError for a name within a list."""
    if isinstance(here, list) and not isinstance(part, int):
        raise IndexError(part)
    return here[part]


def _apart(value: Any) -> Any:
    """A copy in which no part is shared: what two aliases name is one value only until one of them changes."""
    if isinstance(value, dict):
        return {key: _apart(item) for key, item in value.items()}
    return [_apart(item) for item in value] if isinstance(value, list) else value


def _same(one: Any, other: Any) -> bool:
    """Equal, and of the same types: 1, 1.0 and True are not the same in a config."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def _edited(text: str, dialect: str, changes: Changes, value: Any) -> str | None:
    left = dict(changes)
    renamed = _rename(text, dialect, left, value)
    new: str | None = renamed
    for path, item in left.items():
        if new is None:
            return None
        new = _delete(new, dialect, path) if item is None else _set(new, dialect, path, item)
    return new


def _rename(text: str, dialect: str, left: dict[KeyPath, Any], value: Any) -> str:
    """A key that goes and one of the same value that comes, in one mapping: only the name changes."""
    root = nodes(text, dialect)
    for old in [path for path, item in left.items() if item is None]:
        parent = find(root, old[:-1])
        entry = parent.entry(old[-1]) if parent else None
        held = _held(value, old)
        for new, item in list(left.items()):
            fits = new[:-1] == old[:-1] and new != old and item is not None and _same(item, held)
            if fits and entry and parent and parent.entry(new[-1]) is None:
                del left[old], left[new]
                quote = text[entry.start] if text[entry.start] in "\"'" else ""
                name = f"{quote}{new[-1]}{quote}" if quote else _rendered(new[-1], dialect, True)
                return _rename(text[: entry.start] + name + text[entry.end :], dialect, left, value)
    return text


def _held(value: Any, path: KeyPath) -> Any:
    for part in path:
        if not isinstance(value, dict) or part not in value:
            return None
        value = value[part]
    return value


# --- one key --------------------------------------------------------------------------------------------------------


def _delete(text: str, dialect: str, path: KeyPath) -> str | None:
    root = nodes(text, dialect)
    parent = find(root, path[:-1])
    entry = parent.entry(path[-1]) if parent else None
    if parent is None or entry is None:
        return text
    if len(parent.entries) == 1:
        return _set(text, dialect, path[:-1], {}) if path[:-1] else None
    return _cut_flow(text, parent, entry) if parent.flow else _cut_lines(text, entry)


def _cut_flow(text: str, parent: Node, entry: Entry) -> str:
    index = next(i for i, other in enumerate(parent.entries) if other is entry)
    if index + 1 < len(parent.entries):
        return text[: entry.start] + text[parent.entries[index + 1].start :]
    return text[: parent.entries[index - 1].value.end] + text[entry.value.end :]


def _cut_lines(text: str, entry: Entry) -> str | None:
    start = text.rfind("\n", 0, entry.start) + 1
    rest = _REST.match(text, max(entry.value.end, entry.end + 1))
    if text[start : entry.start].strip() or rest is None:
        return None  # "- key: value", or more on the line
    return text[:start] + text[rest.end() :]


def _set(text: str, dialect: str, path: KeyPath, value: Any) -> str | None:
    root = nodes(text, dialect)
    node = find(root, path)
    if node is not None:
        return _replace(text, dialect, root, path, node, value)
    for depth in range(len(path) - 1, -1, -1):
        parent = find(root, path[:depth])
        if parent is not None:
            for part in reversed(path[depth + 1 :]):
                value = {part: value}
            return _add(text, dialect, root, path[:depth], parent, path[depth], value)
    return None


def _replace(text: str, dialect: str, root: Node, path: KeyPath, node: Node, value: Any) -> str | None:
    flow = dialect == "json" or _inside_flow(root, path)
    quoted = isinstance(value, str) and text[node.start : node.start + 1] == '"'
    word = json.dumps(value, ensure_ascii=False) if quoted else _rendered(value, dialect, flow)
    start = node.start
    if not node.flow or start == node.end:  # a block below its key, or nothing behind the colon
        parent = find(root, path[:-1])
        entry = parent.entry(path[-1]) if parent else None
        if entry is None:
            return None
        start, word = text.index(":", entry.end) + 1, f" {word}"
    return text[:start] + word + text[max(node.end, start) :]


def _inside_flow(root: Node, path: KeyPath) -> bool:
    return any((node := find(root, path[:depth])) is not None and node.flow for depth in range(len(path)))


def _add(text: str, dialect: str, root: Node, path: KeyPath, parent: Node, key: Any, value: Any) -> str | None:
    if parent.kind == "scalar" or not parent.entries:
        return _fill(text, dialect, root, path, parent, {key: value})
    last = parent.entries[-1]
    if parent.flow:
        entry = f"{_rendered(key, dialect, True)}: {_rendered(value, dialect, True)}"
        start = text.rfind("\n", 0, last.start) + 1
        own_line = "\n" in text[parent.start : last.start] and not text[start : last.start].strip()
        break_ = f"\n{text[start : last.start]}" if own_line else " "
        return f"{text[: last.value.end]},{break_}{entry}{text[last.value.end :]}"
    column = parent.entries[0].start - (text.rfind("\n", 0, parent.entries[0].start) + 1)
    rest = _REST.match(text, max(last.value.end, last.end + 1))
    if rest is None:
        return None
    lines = _block(key, value, column, _newline(text))
    opening = "" if rest[2] else _newline(text)
    return text[: rest.end()] + opening + lines + text[rest.end() :]


def _fill(text: str, dialect: str, root: Node, path: KeyPath, parent: Node, value: dict[Any, Any]) -> str | None:
    """Give an empty mapping (`{}`, or nothing behind the colon) its first key."""
    if dialect == "json" or _inside_flow(root, path) or not path:
        return _replace(text, dialect, root, path, parent, value) if path else None
    above = find(root, path[:-1])
    entry = above.entry(path[-1]) if above else None
    if entry is None:
        return None
    column = entry.start - (text.rfind("\n", 0, entry.start) + 1)
    colon = text.index(":", entry.end) + 1
    rest = _REST.match(text, max(parent.end, colon))
    if rest is None:
        return None
    key, item = next(iter(value.items()))
    tail = text[max(parent.end, colon) : rest.end()] if rest[2] else text[max(parent.end, colon) : rest.end()] + _newline(text)
    return text[:colon] + tail + _block(key, item, column + 2, _newline(text)) + text[rest.end() :]


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _block(key: Any, value: Any, column: int, newline: str) -> str:
    import yaml

    dumped = yaml.safe_dump({key: value}, sort_keys=False, width=10**6, allow_unicode=True, default_flow_style=False)
    return "".join(f"{' ' * column}{line}{newline}" for line in dumped.splitlines())


def _rendered(value: Any, dialect: str, flow: bool) -> str:
    """A value as its dialect writes it on one line; inside `{}` a text may need quotes that it does not need outside."""
    if dialect == "json":
        return json.dumps(value, ensure_ascii=False)
    import yaml

    more: dict[str, Any] = {"sort_keys": False, "width": 10**6, "allow_unicode": True, "default_flow_style": True}
    if flow:
        return str(yaml.safe_dump([value], **more).strip()[1:-1])
    return str(yaml.safe_dump(value, **more)).removesuffix("...\n").strip()
