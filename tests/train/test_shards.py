"""Token shards and texts in files that nobody vouches for."""

from __future__ import annotations

import hashlib
import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.errors import UserError
from trainwright.train.shards import HEADER, MAGIC, Shard, digest, first, gaps, library, open_path, read_texts, token_shard


def shard(path: Path) -> Shard:
    return token_shard(path)


@pytest.mark.parametrize(("ext", "kind"), [(".bin", "<u2"), (".u8", "|u1"), (".u16", "<u2"), (".u32", "<u4")])
def test_raw_tokens_are_little_endian(ext: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"x{ext}"
    path.write_bytes(np.array([1, 2, 250], dtype=kind).tobytes())
    found = shard(path)
    assert found.tokens.tolist() == [1, 2, 250] and found.bytes == path.stat().st_size
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_header_of_llm_c_is_known(tmp_path: Path) -> None:
    header = np.zeros(HEADER // 4, dtype="<i4")
    header[:3] = (MAGIC, 1, 4)
    (tmp_path / "x.bin").write_bytes(header.tobytes() + np.array([7, 8, 9, 10], dtype="<u2").tobytes())
    assert shard(tmp_path / "x.bin").tokens.tolist() == [7, 8, 9, 10]


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("x.u16", b"abc", "its 3 bytes are not a whole number of tokens of 2 bytes"),
        ("x.u16", b"", "its 0 bytes are not"),
        ("x.npy", b"no array at all", "is no token shard"),
        ("x.npy", b"", "is no token shard"),
    ],
)
def test_what_is_no_shard_is_told_in_one_line(name: str, data: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError) as caught:
        shard(tmp_path / name)
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("array", [np.zeros((2, 2), dtype=np.int64), np.zeros(3), np.array(5), np.array(["a"])], ids=str)
def test_an_array_has_to_be_one_axis_of_whole_numbers(array: object, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", array)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="is no token shard: its array is not one axis of whole numbers"):
        shard(tmp_path / "x.npy")


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match="is no token shard"):
        shard(tmp_path / "x.npy")


@given(st.binary(max_size=200), st.sampled_from([".npy", ".bin", ".u8", ".u32"]))
def test_no_bytes_break_the_reader(tmp_path_factory: pytest.TempPathFactory, data: bytes, ext: str) -> None:
    path = tmp_path_factory.mktemp("shard") / f"x{ext}"
    path.write_bytes(data)
    try:
        assert shard(path).tokens.ndim == 1
    except UserError as problem:
        assert "\n" not in str(problem)


@given(st.integers(0, 120), st.integers(0, 255))
def test_no_damaged_array_breaks_the_reader(tmp_path_factory: pytest.TempPathFactory, at: int, byte: int) -> None:
    whole = io.BytesIO()
    np.save(whole, np.arange(20, dtype=np.uint16))
    damaged = bytearray(whole.getvalue())
    damaged[at] = byte
    path = tmp_path_factory.mktemp("shard") / "x.npy"
    path.write_bytes(damaged)
    try:
        assert shard(path).tokens.ndim == 1
    except UserError as problem:
        assert "\n" not in str(problem)


# --- what has to be there


def test_gaps_are_found_counted_from_0_or_from_1() -> None:
    assert gaps(["a-00000-of-00003.npy", "a-00002-of-00003.npy"]) == ["a-00001-of-00003.npy"]
    assert gaps(["a-1-of-3.bin", "a-3-of-3.bin"]) == ["a-2-of-3.bin"]
    assert gaps([f"a-{n}-of-2.bin" for n in (1, 2)]) == gaps([f"a-{n}-of-2.bin" for n in (0, 1)]) == gaps(["any.txt"]) == []
    assert gaps(["x-0-of-99999999999999.bin"]) == [], "a hostile name makes no long list"


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    for number in (0, 3):
        np.save(tmp_path / f"t-{number}-of-4.npy", np.arange(20))
    with pytest.raises(UserError, match=r"shard t-1-of-4\.npy is missing \(and 1 more\)"):
        open_path(str(tmp_path))


def test_an_index_names_what_has_to_be_there_and_its_content(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(20))
    index = tmp_path / "shards.json"
    index.write_text(json.dumps({"shards": [{"name": "a.npy", "sha256": digest(tmp_path / "a.npy", 1)[0]}]}), encoding="utf-8")
    assert len(open_path(str(tmp_path))) == 1
    index.write_text(json.dumps({"shards": [{"name": "a.npy"}, {"name": "b.npy"}]}), encoding="utf-8")
    with pytest.raises(UserError, match=r"shard b\.npy is missing, which shards\.json names"):
        open_path(str(tmp_path))
    index.write_text(json.dumps({"shards": [{"name": "a.npy", "sha256": "0" * 64}]}), encoding="utf-8")
    with pytest.raises(UserError, match=r"is not 000000000000\.\.\., which shards\.json says"):
        open_path(str(tmp_path))
    for wrong in ({"shards": "a.npy"}, {"shards": [{"name": "../a.npy"}]}, {}):
        index.write_text(json.dumps(wrong), encoding="utf-8")
        with pytest.raises(UserError, match="shards"):
            open_path(str(tmp_path))


def test_only_regular_files_are_read_and_no_more_than_the_bound(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(UserError, match="is not a regular file"):
        open_path(str(tmp_path / "pipe.txt"))
    (tmp_path / "a.txt").write_bytes(b"x" * 100)
    with pytest.raises(UserError, match="holds 100 bytes of text, and at most 99 are read; write token shards"):
        read_texts("here", [tmp_path / "a.txt"], 99)
    (tmp_path / "a.txt").write_bytes(b"")
    with pytest.raises(UserError, match="holds no text"):
        read_texts("here", [tmp_path / "a.txt"])
    with pytest.raises(UserError, match="holds no text"):
        open_path(str(tmp_path_of_nothing(tmp_path)))


def tmp_path_of_nothing(tmp_path: Path) -> Path:
    (tmp_path / "empty").mkdir()
    return tmp_path / "empty"


def test_a_large_shard_is_known_by_its_ends_and_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainwright.train.shards.HASHED", 2**21)
    path = tmp_path / "x.u8"
    path.write_bytes(b"a" * 2**22)
    found = shard(path)
    assert found.hashed == "first MiB, last MiB, size"
    path.write_bytes(b"a" * (2**22 + 1))
    assert shard(path).sha256 != found.sha256


def test_no_more_files_are_read_than_are_needed(tmp_path: Path) -> None:
    files = [tmp_path / name for name in "abcd"]
    for file in files:
        file.write_bytes(b"x" * 10)
    assert [len(first(files, size)) for size in (1, 10, 11, 40, 41)] == [1, 1, 2, 4, 4]


def test_sources_are_walked_in_sorted_order(tmp_path: Path) -> None:
    for name in ("b.py", "a.py", "sub/c.py", "x.txt", "test/t.py", "site-packages/p.py", "idle_test/i.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x", encoding="utf-8")
    assert [str(path.relative_to(tmp_path)) for path in library(str(tmp_path))] == ["a.py", "b.py", "sub/c.py"]
    with pytest.raises(UserError, match="no Python sources"):
        library(str(tmp_path / "test" / "none"))
