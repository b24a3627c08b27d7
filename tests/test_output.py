"""Files are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainwright.errors import UserError
from trainwright.output import write_text


def test_the_text_arrives_and_nothing_else_stays(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "ü\n")
    assert (tmp_path / "a.txt").read_bytes() == "ü\n".encode()
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device"):
        write_text(target, "new")
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_missing_folder_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot write .*No such file"):
        write_text(tmp_path / "no" / "a.txt", "x")


def test_a_folder_in_the_place_of_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(UserError, match="cannot write"):
        write_text(tmp_path / "a", "x")
    assert os.listdir(tmp_path) == ["a"]


def test_a_pipe_is_written_to_and_never_replaced(tmp_path: Path) -> None:
    # A pipe stands here for /dev/null and /dev/stdout: as root, a rename would replace the device of the whole machine.
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_text(pipe, "one ")
        write_text(tmp_path / "link", "two")
        assert os.read(reader, 100) == b"one two"
    finally:
        os.close(reader)
    assert pipe.is_fifo() and sorted(os.listdir(tmp_path)) == ["link", "pipe"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "a.txt")
    write_text(tmp_path / "link", "x")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "a.txt").read_text() == "x"
