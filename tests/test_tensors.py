"""safetensors headers and indexes: what they tell, and that a broken or hostile one is named."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright import tensors
from trainwright.document import DocumentError
from trainwright.errors import UserError
from trainwright.model import load_model
from trainwright.presets import preset_path
from trainwright.tensors import read_tensors

TINY = load_model("tiny")


def header(entries: dict[str, Any], data: int, length: int | None = None) -> bytes:
    raw = json.dumps(entries).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + bytes(data)


def entry(shape: list[int], start: int, dtype: str = "F32", width: int = 4) -> dict[str, Any]:
    size = width
    for n in shape:
        size *= n
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, start + size]}


def tiny_file() -> bytes:
    """A file that has the tensors of the preset tiny, with no data behind it but the right length of zeros."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    named = [(f"model.layers.{layer}.{n}.weight", shape) for layer in range(4) for n, shape in enumerate(TINY.layer_shapes)]
    for name, shape in (*named, *((f"root.{n}.weight", shape) for n, shape in enumerate(TINY.root_shapes))):
        entries[name] = entry(list(shape), at)
        at = entries[name]["data_offsets"][1]
    return header(entries, at)


def test_a_header_gives_names_shapes_and_counts(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(tiny_file())
    found = read_tensors(str(path))
    assert found.parameters == TINY.total_parameters and found.bytes == 4 * TINY.total_parameters
    assert found.layers == dict.fromkeys(range(4), TINY.layer_parameters)


def test_the_config_beside_it_makes_the_model(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(tiny_file())
    with pytest.raises(UserError, match=r"hold 803,968 numbers; heads and layers are in config.json, which is not beside it"):
        load_model(str(path))
    config = json.loads(Path(preset_path("tiny")).read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert load_model(str(path)).notes == ("the tensors (39, 3.07 MiB) hold 803,968 numbers, as many as the config's",)
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}), encoding="utf-8")
    assert "184,576 more than the config's 619,392" in load_model(str(path)).notes[0]


def test_an_index_alone_gives_names_and_bytes(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 2048}, "weight_map": {"a.weight": "model-1.safetensors"}}), encoding="utf-8")
    found = read_tensors(str(path))
    assert (found.parameters, found.bytes, found.names, found.layers) == (None, 2048, ("a.weight",), {})
    with pytest.raises(UserError, match=r"the index names 1 tensors, 2.00 KiB, and no shapes; heads and layers are in config.json"):
        load_model(str(path))


def test_an_index_with_its_shards_gives_shapes(tmp_path: Path) -> None:
    for n, name in enumerate(("h.0.a", "h.1.a")):
        (tmp_path / f"model-{n}.safetensors").write_bytes(header({name: entry([3, 5], 0, "BF16", 2)}, 30))
    path = tmp_path / "model.safetensors.index.json"
    places = {"h.0.a": "model-0.safetensors", "h.1.a": "model-1.safetensors"}
    path.write_text(json.dumps({"weight_map": places}), encoding="utf-8")
    found = read_tensors(str(path))
    assert (found.parameters, found.bytes, found.layers) == (30, 60, {0: 15, 1: 15})
    path.write_text(json.dumps({"weight_map": places | {"lost": "model-1.safetensors"}}), encoding="utf-8")
    with pytest.raises(DocumentError, match="names 'lost', which is in none of its files"):
        read_tensors(str(path))


BAD = {
    "empty": b"",
    "short": b"1234567",
    "length-beyond-the-file": header({"a": entry([1], 0)}, 4, 10**6),
    "length-beyond-reason": struct.pack("<Q", 2**63) + b"{}",
    "length-too-small": struct.pack("<Q", 1) + b"{",
    "no-json": struct.pack("<Q", 4) + b"abcd",
    "no-utf8": struct.pack("<Q", 4) + b'{"\xff}',
    "a-list": struct.pack("<Q", 4) + b"[1] ",
    "too-deep": struct.pack("<Q", 20000) + b"[" * 20000,
    "unknown-type": header({"a": entry([1], 0, "F99")}, 4),
    "type-is-a-list": header({"a": {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}}, 4),
    "negative-size": header({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, 4),
    "boolean-size": header({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, 4),
    "offsets-beyond-the-data": header({"a": entry([4], 0)}, 4),
    "offsets-that-do-not-fit": header({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 4]}}, 99),
    "backward-offsets": header({"a": {"dtype": "F32", "shape": [0], "data_offsets": [4, 0]}}, 99),
    "entry-is-a-number": header({"a": 3}, 4),
}


@pytest.mark.parametrize("name", BAD)
def test_a_broken_file_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(BAD[name])
    with pytest.raises(DocumentError, match=r"model\.safetensors") as caught:
        read_tensors(str(path))
    assert "\n" not in str(caught.value)


def test_a_header_of_no_sane_length_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "MAX_HEADER", 10)
    path = tmp_path / "model.safetensors"
    path.write_bytes(tiny_file())
    with pytest.raises(DocumentError, match="not the length of a header"):
        read_tensors(str(path))


@pytest.mark.parametrize(
    "content", [[], {}, {"weight_map": {}}, {"weight_map": {"a": 3}}, {"weight_map": {"a": "../b.safetensors"}}], ids=str
)
def test_a_broken_index_is_named(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(DocumentError, match=r"index\.json"):
        read_tensors(str(path))


def test_a_pipe_and_a_folder_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.safetensors")
    (tmp_path / "folder.safetensors").mkdir()
    for name in ("pipe", "folder", "missing"):
        with pytest.raises(DocumentError, match="cannot be read"):
            read_tensors(str(tmp_path / f"{name}.safetensors"))


HEADERS = st.builds(lambda head, rest: struct.pack("<Q", len(head)) + head + rest, st.binary(max_size=80), st.binary(max_size=20))


@given(content=st.binary(max_size=200) | HEADERS)
@settings(max_examples=100, deadline=None)
def test_any_bytes_give_tensors_or_one_line(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    path.write_bytes(content)
    try:
        read_tensors(str(path))
    except DocumentError as problem:
        assert "\n" not in str(problem)


@pytest.mark.parametrize(
    ("size", "said"), [(2 * 803_968, "2 bytes for each"), (10, "they belong to another model"), (10**400, "and no shapes")]
)
def test_the_bytes_of_an_index_are_held_against_the_config(size: int, said: str, tmp_path: Path) -> None:
    """Two bytes a parameter are bf16; a size that nothing can have is no size."""
    (tmp_path / "config.json").write_text(Path(preset_path("tiny")).read_text(encoding="utf-8"), encoding="utf-8")
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": size}, "weight_map": {"a": "model-1.safetensors"}}), encoding="utf-8")
    assert said in load_model(str(path)).notes[-1]
