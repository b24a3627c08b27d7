"""Documents: values as their consumers read them, the place of every key, and a clear refusal of what is no config."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainwright.document import MAX_BYTES, MAX_DEPTH, Document, DocumentError, dialect_of, load, load_mapping, parse, read_text
from trainwright.report import Location


def refused(text: str | bytes, name: str, folder: Path) -> DocumentError:
    """The error of loading a file with this content."""
    path = folder / name
    path.write_bytes(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)
    with pytest.raises(DocumentError) as caught:
        load(str(path))
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)
    return caught.value


# --- values ---------------------------------------------------------------------------------------------------------


def test_dialect_is_that_of_the_file_name() -> None:
    assert [dialect_of(name) for name in ("a.json", "a.toml", "a.yaml", "a.yml", "a", "a.cfg")] == ["json", "toml", *["yaml"] * 4]


def test_yaml_is_read_as_safe_load_reads_it() -> None:
    document = parse("a: no\nb: 1e-5\nc: 010\nd: 2024-01-01\ne: NO\nf: 1_000\n", "x.yaml", "yaml")
    assert document.get("a") is False and document.get("e") is False
    assert document.get("b") == "1e-5" and document.get("c") == 8 and document.get("f") == 1000


def test_json_keeps_nan_and_the_last_of_duplicates() -> None:
    document = parse('{"a": NaN, "b": 1, "b": 2}', "x.json", "json")
    assert document.get("a") != document.get("a") and document.get("b") == 2


def test_byte_order_mark_is_fine_in_yaml_and_refused_in_json(tmp_path: Path) -> None:
    assert parse("\ufeffa: 1\n", "x.yaml", "yaml").value == {"a": 1}
    assert "byte order mark" in refused("\ufeff{}", "x.json", tmp_path).reason


def test_carriage_returns_do_not_move_a_place() -> None:
    document = parse("a: 1\r\nb:\r\n  c: 2\r\n", "x.yaml", "yaml")
    assert document.value == {"a": 1, "b": {"c": 2}} and document.at("b", "c") == Location("x.yaml", 3, 3)
    document = parse('{\r\n  "a": 1,\r\n  "b": 2\r\n}', "x.json", "json")
    assert document.at("b") == Location("x.json", 3, 3)


def test_lone_surrogate_escapes_are_read_as_the_parsers_read_them() -> None:
    assert parse('{"a": "\\ud800"}', "x.json", "json").get("a") == "\ud800"
    assert parse('a: "\\ud800"', "x.yaml", "yaml").get("a") == yaml.safe_load('a: "\\ud800"')["a"]


def test_merge_keys_and_aliases_are_expanded() -> None:
    document = parse("x: &x {a: 1, b: 2}\ny:\n  <<: *x\n  b: 3\nz: *x\n", "x.yaml", "yaml")
    assert document.get("y") == {"a": 1, "b": 3} and document.get("z", "a") == 1
    assert document.at("y", "b") == Location("x.yaml", 4, 3)
    assert document.duplicates() == []


def test_get_and_has_follow_mappings_and_lists() -> None:
    document = parse('{"a": [{"b": null}]}', "x.json", "json")
    assert document.get("a", 0, "b", default=1) is None and document.has("a", 0, "b")
    assert document.get("a", 1, "b", default=1) == 1 and not document.has("a", -1) and not document.has("a", "b")


def test_load_mapping_wants_a_mapping(tmp_path: Path) -> None:
    for text, word in (("- 1\n", "a list"), ("# nothing\n", "empty"), ("just words\n", "a str")):
        path = tmp_path / "x.yaml"
        path.write_text(text)
        with pytest.raises(DocumentError, match=f"the top level is {word}, not a mapping"):
            load_mapping(str(path))


# --- places ---------------------------------------------------------------------------------------------------------


def test_yaml_places() -> None:
    text = "# head\na: 1\nblock:\n  'quoted key': 2\n  flow: {x: 1, y: [u, {v: 2}]}\n? complex\n: 3\n"
    document = parse(text, "x.yaml", "yaml")
    assert document.at("a") == Location("x.yaml", 2, 1)
    assert document.at("block", "quoted key") == Location("x.yaml", 4, 3)
    assert document.at("block", "flow", "y", 1, "v") == Location("x.yaml", 5, 24)
    assert document.at("complex") == Location("x.yaml", 6, 3)


def test_json_places() -> None:
    text = '{\n  "a": {"b\\n": [1, {"c": "}"}, []], "d": {}},\n\n  "e": true}'
    document = parse(text, "x.json", "json")
    assert document.at("a") == Location("x.json", 2, 3)
    assert document.at("a", "b\n") == Location("x.json", 2, 9)
    assert document.at("a", "b\n", 1, "c") == Location("x.json", 2, 21)
    assert document.at("a", "b\n", 2) == Location("x.json", 2, 32)
    assert document.at("a", "d") == Location("x.json", 2, 37)
    assert document.at("e") == Location("x.json", 4, 3)


def test_toml_places() -> None:
    pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
    text = 'top = 1\n[model]\n  name = "x"\n"a.b".c = 2\ntext = """\ntop = 5\n"""\n'
    text += "[[stage]]\nsize = 1\n[[stage]]\nsize = 2\n[stage.inner]\nq = 3\n"
    document = parse(text, "x.toml", "toml")
    assert document.at("top") == Location("x.toml", 1, 1), "a line inside a text is no key"
    assert document.at("model") == Location("x.toml", 2, 1)
    assert document.at("model", "name") == Location("x.toml", 3, 3)
    assert document.get("model", "a.b", "c") == 2 and document.at("model", "a.b", "c") == Location("x.toml", 4, 1)
    assert document.at("stage", 1, "size") == Location("x.toml", 11, 1)
    assert document.get("stage", 1, "inner", "q") == 3 and document.at("stage", 1, "inner", "q") == Location("x.toml", 13, 1)
    assert document.duplicates() == []


def test_a_missing_key_is_at_its_nearest_parent() -> None:
    document = parse("a:\n  b: 1\n", "x.yaml", "yaml")
    assert document.at("a", "none") == Location("x.yaml", 1, 1)
    assert document.at("none") == Location("x.yaml") and document.at() == Location("x.yaml", 1, 1)


def test_duplicates_are_told_per_mapping() -> None:
    document = parse("a: {x: 1, y: 1}\nb: {x: 1}\na: {x: 2}\n", "x.yaml", "yaml")
    assert [(d.path, d.first.line, d.last.line) for d in document.duplicates()] == [(("a",), 1, 3)]
    assert document.at("a", "x") == Location("x.yaml", 3, 5)
    document = parse('{"a": {"x": 1},\n "a": {"x": 2, "x": 3},\n "b": [{"x": 1}, {"x": 1}]}', "x.json", "json")
    assert [(d.path, d.first.line, d.last.line) for d in document.duplicates()] == [(("a",), 1, 2), (("a", "x"), 2, 2)]


def test_keys_that_python_takes_for_one_are_duplicates() -> None:
    document = parse("1: a\ntrue: b\n", "x.yaml", "yaml")
    assert document.value == {1: "b"} and len(document.duplicates()) == 1


# --- what is refused ------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[str, str | bytes, str]] = {
    "empty": ("x.yaml", "", "is empty"),
    "blank": ("x.json", " \n\t", "is empty"),
    "utf16": ("x.yaml", "a: 1".encode("utf-16"), "UTF-16"),
    "latin1": ("x.yaml", "a: caf\xe9".encode("latin-1"), "not UTF-8 (byte 0xe9)"),
    "nul": ("x.json", b'{"a": "\0"}', "NUL"),
    "png": ("x.yaml", b"\x89PNG\r\n\x1a\n\0\0", "NUL"),
    "deep json": ("x.json", "[" * 10_000 + "]" * 10_000, "levels deep"),
    "deep json objects": ("x.json", '{"a":' * 10_000 + "1" + "}" * 10_000, "levels deep"),
    "deep yaml": ("x.yaml", "[" * 10_000 + "]" * 10_000, "levels deep"),
    "deep yaml blocks": ("x.yaml", "".join(f"{' ' * n}a:\n" for n in range(200)), "levels deep"),
    "deep toml": ("x.toml", f"a = {'[' * 10_000}{']' * 10_000}", "levels deep"),
    "alias bomb": ("x.yaml", "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40)), "aliases"),
    "merge bomb": (
        "x.yaml",
        "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{p: *a{n - 1}, q: *a{n - 1}}}\n" for n in range(1, 40)),
        "aliases",
    ),
    "recursive alias": ("x.yaml", "a: &a [1, *a]\n", "inside its own anchor"),
    "python object": ("x.yaml", "a: !!python/object/apply:os.system ['true']\n", "could not determine a constructor"),
    "two documents": ("x.yaml", "a: 1\n---\nb: 2\n", "expected a single document"),
    "tab": ("x.yaml", "a:\n\tb: 1\n", "cannot start any token"),
    "huge integer": ("x.yaml", f"a: {'9' * 5000}\n", "digits"),
    "huge json integer": ("x.json", f'{{"a": {"9" * 5000}}}', "digits"),
    "impossible date": ("x.yaml", "a: 2024-99-99\n", "month"),
    "impossible offset": ("x.yaml", "a: 2024-01-01 00:00:00 +99:00\n", "offset"),
    "unhashable key": ("x.yaml", "{[1]: 2}\n", "unhashable"),
    "no bool": ("x.yaml", "a: !!bool maybe\n", "maybe"),
    "no int": ("x.yaml", "a: !!int ''\n", "IndexError"),
    "no timestamp": ("x.yaml", "a: !!timestamp x\n", "AttributeError"),
    "unclosed": ("x.json", '{"a": 1', "is not JSON"),
    "hjson": ("x.json", '{"a": 1, // why\n"b": 2}', "is not JSON"),
    "toml": ("x.toml", "a = \n", "is not TOML"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_one_line(case: str, tmp_path: Path) -> None:
    name, content, word = REFUSED[case]
    if name.endswith(".toml"):
        pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
    assert word in refused(content, name, tmp_path).reason


def test_the_place_of_a_syntax_error(tmp_path: Path) -> None:
    assert refused('{\n "a": 1,\n "b" 2}', "x.json", tmp_path).where == Location(str(tmp_path / "x.json"), 3, 6)
    assert refused("a: 1\nb: {c: 2\n", "x.yaml", tmp_path).where.line == 3
    assert refused(b"a: 1\nb: 2\nc: \xff\n", "x.yaml", tmp_path).where.line == 3


def test_depth_limit_is_exact() -> None:
    nested = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert parse(nested, "x.json", "json").value and parse(nested, "x.yaml", "yaml").value
    for dialect in ("json", "yaml"):
        with pytest.raises(DocumentError, match="levels deep"):
            parse(f"[{nested}]" if dialect == "yaml" else f"[[{nested}]]", "x", dialect)


def test_files_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    cases = {"fifo": "not a regular file", "dangling": "No such file", ".": "a folder", "missing": "No such file", "a\0b": "null"}
    for name, word in cases.items():
        with pytest.raises(DocumentError, match=word):
            load(str(tmp_path / name))


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no /dev/zero on this system")
def test_devices_are_no_files() -> None:
    with pytest.raises(DocumentError, match="not a regular file"):
        load("/dev/zero")


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    with path.open("wb") as file:
        file.truncate(100 * 2**20)
    with pytest.raises(DocumentError, match="larger than 512 KiB"):
        load(str(path))
    with path.open("wb") as file:
        file.write(b"#" * MAX_BYTES)
    assert len(read_text(str(path))) == MAX_BYTES


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a: 1\n")))
    assert load("-").value == {"a": 1}
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(DocumentError, match="standard input is closed"):
        load("-")


def test_a_long_line_has_its_places_soon() -> None:
    """Places on one line of 1 MB: a scan that looks back to the line's start for each token would take minutes."""
    document = parse(json.dumps({f"key{n}": n for n in range(20_000)}), "x.json", "json")
    assert document.at("key19999").line == 1


# --- generated documents --------------------------------------------------------------------------------------------

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x85\u2028\u2029\ufeff", exclude_categories=("Cs", "Cc")), max_size=12)
KEYS = st.one_of(st.sampled_from(["a", "no", "1", "null", "fsdp_config", "two words", "", "<<", "=", "'", "#x", "a: b"]), TEXTS)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), TEXTS)
VALUES = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=4)), max_leaves=20
)
MAPPINGS = st.dictionaries(KEYS, VALUES, min_size=1, max_size=6)


def key_paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every path that ends in a key of a mapping."""
    items: list[tuple[Any, Any]] = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else [])
    own = [(*path, key) for key, _ in items] if isinstance(value, dict) else []
    return own + [found for key, item in items for found in key_paths(item, (*path, key))]


def text_at(document: Document, path: tuple[Any, ...]) -> str:
    where = document.at(*path)
    assert where.line is not None and where.column is not None, path
    return "\n".join(document.text.split("\n")[where.line - 1 :])[where.column - 1 :]


@given(MAPPINGS, st.sampled_from([None, True, False]), st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_generated_yaml(value: dict[str, Any], flow: bool | None, unicode: bool) -> None:
    text = yaml.safe_dump(value, default_flow_style=flow, allow_unicode=unicode)
    document = parse(text, "x.yaml", "yaml")
    assert document.value == yaml.safe_load(text) == value
    for path in key_paths(value):
        token = next(t for t in yaml.scan(text_at(document, path)) if isinstance(t, yaml.ScalarToken))
        assert token.value == path[-1]
    assert document.duplicates() == []


@given(MAPPINGS, st.sampled_from([None, 0, 3]), st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_generated_json(value: dict[str, Any], indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    document = parse(text, "x.json", "json")
    assert document.value == json.loads(text) == value
    for path in key_paths(value):
        assert json.JSONDecoder().raw_decode(text_at(document, path))[0] == path[-1]
    assert document.duplicates() == []


@given(st.text(max_size=60))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_text_is_read_or_refused(text: str) -> None:
    for dialect in ("yaml", "json"):
        try:
            document = parse(text, "x", dialect)
        except DocumentError:
            continue
        document.duplicates()
        for path in key_paths(document.value):
            document.at(*path)
