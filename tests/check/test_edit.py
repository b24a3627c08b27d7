"""Edits in place: what is asked and nothing else changes, in any layout that the parsers take."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from trainwright.check.edit import edit

YAML = """# top
distributed_type: fsdp  # kind
fsdp_config:
  # how
  fsdp_version: 1   # one

  fsdp_backward_prefetch: BACKWARD_PRE
num_processes: "8"
empty:
names: [a, b]  # two
last: {x: 1, y: 2}
"""


@pytest.mark.parametrize(
    ("changes", "old", "new"),
    [
        ({("distributed_type",): "FSDP"}, "distributed_type: fsdp  # kind", "distributed_type: FSDP  # kind"),
        ({("fsdp_config", "fsdp_version"): 2}, "fsdp_version: 1   # one", "fsdp_version: 2   # one"),
        ({("fsdp_config", "fsdp_backward_prefetch"): None}, "  fsdp_backward_prefetch: BACKWARD_PRE\n", ""),
        ({("num_processes",): None, ("processes",): "8"}, 'num_processes: "8"', 'processes: "8"'),
        ({("num_processes",): 8}, '"8"', "8"),
        ({("num_processes",): "no"}, '"8"', '"no"'),
        ({("distributed_type",): "no"}, "fsdp  #", "'no'  #"),
        ({("empty", "a", "b"): 1}, "empty:\n", "empty:\n  a:\n    b: 1\n"),
        ({("fsdp_config", "z"): True}, "BACKWARD_PRE\n", "BACKWARD_PRE\n  z: true\n"),
        ({("last", "y"): None}, "{x: 1, y: 2}", "{x: 1}"),
        ({("last", "x"): None}, "{x: 1, y: 2}", "{y: 2}"),
        ({("last", "z"): "a, b"}, "{x: 1, y: 2}", "{x: 1, y: 2, z: 'a, b'}"),
        ({("names",): "a,b"}, "[a, b]  # two", "a,b  # two"),
        ({("new",): {"x": [1]}}, "y: 2}\n", "y: 2}\nnew:\n  x:\n  - 1\n"),
        ({("gone",): None}, "# top", "# top"),
    ],
)
def test_yaml(changes: Any, old: str, new: str) -> None:
    assert YAML.count(old) == 1 and edit(YAML, "yaml", changes) == YAML.replace(old, new)


JSON = '{\n\t"a": 1,\n\t"z": {"stage": "2", "x": null},\n\t"b": [1, 2]\n}\n'


@pytest.mark.parametrize(
    ("changes", "old", "new"),
    [
        ({("a",): None}, '\t"a": 1,\n', ""),
        ({("b",): None}, ',\n\t"b": [1, 2]', ""),
        ({("z", "stage"): 2, ("z", "x"): None}, '"2", "x": null', "2"),
        ({("c",): {"d": 1}}, "[1, 2]", '[1, 2],\n\t"c": {"d": 1}'),
        ({("z", "stage"): None, ("z", "st"): "2"}, '"stage"', '"st"'),
        ({("z", "x", "y"): True}, "null", '{"y": true}'),
    ],
)
def test_json(changes: Any, old: str, new: str) -> None:
    assert edit(JSON, "json", changes) == JSON.replace(old, new)


def test_line_endings_and_a_missing_last_one_stay() -> None:
    assert edit("a: 1\r\nb: 2\r\n", "yaml", {("c",): 3}) == "a: 1\r\nb: 2\r\nc: 3\r\n"
    assert edit("a: 1\nb: 2", "yaml", {("c",): 3}) == "a: 1\nb: 2\nc: 3\n"


@pytest.mark.parametrize(
    ("text", "dialect", "changes"),
    [
        ("a: &x {k: 1}\nb: *x\n", "yaml", {("b", "k"): 2}),
        ("a: &x 1\nb: *x\n", "yaml", {("a",): 2}),
        ('{"a": 1, "a": 2}', "json", {("a",): None}),
        ("a: 1\n", "yaml", {("a",): None}),
        ("\ufeffa: 1\n", "yaml", {("a",): 2}),
        ("a: [", "yaml", {("a",): 2}),
        ("a = 1\n", "toml", {("a",): 2}),
        ('{"a": []}', "json", {("a", "b"): {}}),
        ('{"a": [{}]}', "json", {("a", "b", "c"): 1}),
        ("a: []\n", "yaml", {("a", "b"): None}),
    ],
)
def test_what_cannot_be_edited_alone_is_left(text: str, dialect: str, changes: Any) -> None:
    assert edit(text, dialect, changes) is None


_KEYS = st.text("abcxyz_", min_size=1, max_size=4)
_LEAVES = st.one_of(st.none(), st.booleans(), st.integers(-99, 99), st.sampled_from(["no", "a b", "1e-5", "x: y", "#c", "", "é"]))
_VALUES = st.recursive(_LEAVES, lambda inner: st.dictionaries(_KEYS, inner, max_size=3) | st.lists(inner, max_size=3), max_leaves=8)


@example({"_": []}, ["_", "_"], {}, 0)
@given(st.dictionaries(_KEYS, _VALUES, min_size=1, max_size=4), st.lists(_KEYS, min_size=1, max_size=3), _VALUES, st.integers(0, 4))
def test_any_value_in_any_layout(value: dict[str, Any], path: list[str], new: Any, layout: int) -> None:
    """Whatever is written is what was asked, or nothing is."""
    texts = [json.dumps(value), json.dumps(value, indent=2), yaml.safe_dump(value), yaml.safe_dump(value, default_flow_style=True)]
    texts.append(yaml.safe_dump(value, indent=4, allow_unicode=True).replace("\n", "  # c\n"))
    dialect = "json" if layout < 2 else "yaml"
    changed = edit(texts[layout], dialect, {tuple(path): new})
    here: Any = value
    for part in path[:-1]:
        here = here.get(part) if isinstance(here, dict) else None
    if changed is None:
        return
    read = json.loads(changed) if dialect == "json" else yaml.safe_load(changed)
    for part in path[:-1]:
        read = read.get(part, {}) if isinstance(read, dict) else {}
    assert (path[-1] not in read) if new is None else read[path[-1]] == new
