"""Log files of any bytes and any size become lines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.diagnose.lines import MOST_ROWS, read_log


def lines(path: Path, raw: bytes, **bounds: int) -> list[tuple[int | None, str]]:
    path.write_bytes(raw)
    return [(line.number, line.text) for line in read_log(path, "x", **bounds).lines]


def test_lines_are_numbered_from_one(tmp_path: Path) -> None:
    assert lines(tmp_path / "a", b"one\n\nthree\n") == [(1, "one"), (2, ""), (3, "three")]


def test_a_last_line_without_its_end_is_kept_and_marked(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one\ntw")
    log = read_log(tmp_path / "a", "x")
    assert [line.text for line in log.lines] == ["one", "tw"] and log.cut_short
    (tmp_path / "a").write_bytes(b"one\n")
    assert not read_log(tmp_path / "a", "x").cut_short


def test_colours_go_and_rewritten_lines_show_their_last_state(tmp_path: Path) -> None:
    assert lines(tmp_path / "a", b"\x1b[31mred\x1b[0m\n 10%\r 20%\r\n") == [(1, "red"), (2, " 20%")]


def test_of_a_large_file_head_and_tail_are_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"".join(b"line %d\n" % n for n in range(10_000)))
    log = read_log(tmp_path / "a", "x", head_bytes=100, tail_bytes=100)
    assert log.lines[0].text == "line 0" and log.lines[0].number == 1
    assert log.lines[-1].text == "line 9999" and log.lines[-1].number is None
    assert log.skipped_bytes == (tmp_path / "a").stat().st_size - 200
    assert all(line.text.startswith("line ") for line in log.lines), "no line of which a part was not read"
    assert [line.text for line in log.lines[:13]] == [f"line {n}" for n in range(13)]


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", ".", "missing"):
        with pytest.raises(OSError):
            read_log(tmp_path / name, "x")


@given(raw=st.binary(max_size=400), head=st.integers(1, 50), tail=st.integers(1, 50))
def test_any_bytes(raw: bytes, head: int, tail: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("log") / "a"
    path.write_bytes(raw)
    log = read_log(path, "x", head, tail)
    assert log.skipped_bytes == max(0, len(raw) - head - tail)
    assert all("\n" not in line.text for line in log.lines)


def test_a_file_of_countless_rows_keeps_its_ends(tmp_path: Path) -> None:
    """Rows are bounded, not bytes alone: nine million empty rows are nine megabytes."""
    path = tmp_path / "log"
    path.write_bytes(b"first\n" + b"\n" * (3 * MOST_ROWS) + b"last\n")
    log = read_log(path, "log")
    assert len(log.lines) <= 2 * MOST_ROWS + 2 and log.skipped_bytes > 0
    assert (log.lines[0].text, log.lines[0].number) == ("first", 1)
    assert (log.lines[-1].text, log.lines[-1].number) == ("last", None)
