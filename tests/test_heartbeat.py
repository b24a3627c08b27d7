"""The heartbeat of a rank: one line, written over, read by whoever watches; its files are untrusted."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.heartbeat import PHASES, WIDTH, Beat, Heartbeat, behind, read, stuck


def beating(folder: Path, rank: int, step: int, phase: str) -> Heartbeat:
    heartbeat = Heartbeat(str(folder), rank)
    heartbeat.step = step
    heartbeat.beat(phase)
    return heartbeat


def test_the_last_phase_is_read_with_its_time(tmp_path: Path) -> None:
    heartbeat = beating(tmp_path, 2, 7, "data")
    heartbeat.beat("backward")
    beat = read(str(tmp_path))[2]
    assert (beat.rank, beat.step, beat.phase, beat.pid) == (2, 7, "backward", os.getpid())
    assert 0 <= beat.since_s() < 60 and abs(beat.wall - time.time()) < 60
    assert replace(beat, monotonic=beat.monotonic - 40).since_s() == pytest.approx(40, abs=5)
    assert replace(beat, host="another", wall=beat.wall - 50).since_s() == pytest.approx(50, abs=5)


def test_a_beat_is_one_write_of_one_width(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[int] = []
    real = os.pwrite

    def counted(file: int, data: bytes, at: int) -> int:
        writes.append(at)
        return real(file, data, at)

    monkeypatch.setattr(os, "pwrite", counted)
    heartbeat = beating(tmp_path, 0, 10**9, "x" * 100)
    for phase in PHASES:
        heartbeat.beat(phase)
        assert (tmp_path / "heartbeat" / "rank0").stat().st_size == WIDTH
    assert heartbeat.count == len(writes) == len(PHASES) + 1 and set(writes) == {0}


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "heartbeat").write_text("a file")
    heartbeat = beating(tmp_path, 0, 1, "data")
    assert heartbeat.count == 0 and read(str(tmp_path)) == {}


def test_a_full_disk_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heartbeat = beating(tmp_path, 0, 1, "data")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    heartbeat.beat("forward")
    assert heartbeat.count == 1 and read(str(tmp_path))[0].phase == "data"


def test_where_the_ranks_sit_is_one_line(tmp_path: Path) -> None:
    for rank in range(12):
        beating(tmp_path, rank, 7, "data" if rank == 2 else "backward")
    line = stuck(read(str(tmp_path)))
    assert line.startswith(
        "rank 2 sits in data of step 7 since 0 s; ranks 0, 1, 3, 4, 5, 6, 7, 8 and 3 more sit in backward of step 7 since"
    )
    assert stuck({}) == "" and stuck({0: Beat(0, 0, "connect", 0, 0, 1, "x")}).startswith("rank 0 sits in connect since")


SEVEN: list[tuple[list[tuple[int, str]], list[int]]] = [
    ([(7, "backward"), (7, "backward"), (7, "data")], [2]),
    ([(7, "backward"), (6, "checkpoint"), (7, "backward")], [1]),
    ([(7, "data"), (7, "backward")], [0]),
    ([(7, "data"), (7, "data"), (7, "backward"), (7, "backward")], []),
    ([(7, "backward"), (7, "backward")], []),
    ([(7, "connect"), (7, "backward"), (7, "backward")], []),
    ([], []),
]


@pytest.mark.parametrize(("places", "late"), SEVEN)
def test_who_is_behind(places: list[tuple[int, str]], late: list[int]) -> None:
    beats = {rank: Beat(rank, step, phase, 1, 1, 1, "x") for rank, (step, phase) in enumerate(places)}
    assert [beat.rank for beat in behind(beats)] == late


GOOD = '{"step":1,"phase":"data","wall":1.5,"monotonic":2.5,"rank":0,"pid":3,"host":"h"}'
BAD = {
    "empty": "",
    "half": GOOD[:40],
    "a list": "[1]",
    "deep": "[" * 250,
    "another rank": GOOD.replace('"rank":0', '"rank":1'),
    "a phase that is no word": GOOD.replace("data", "\\u001b[31m"),
    "a step that is none": GOOD.replace('"step":1', '"step":true'),
    "a time that is none": GOOD.replace("1.5", "NaN"),
    "a time beyond numbers": GOOD.replace("1.5", "1e999"),
    "a negative id": GOOD.replace('"pid":3', '"pid":-3'),
    "a host that is a number": GOOD.replace('"h"', "7"),
    "a missing name": GOOD.replace('"host":"h"', '"port":"h"'),
}


@pytest.mark.parametrize("how", BAD)
def test_a_file_that_no_rank_wrote_is_left_out(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "heartbeat"
    folder.mkdir()
    (folder / "rank0").write_text(GOOD)
    assert list(read(str(tmp_path))) == [0]
    (folder / "rank0").write_text(BAD[how])
    assert read(str(tmp_path)) == {}


def test_links_pipes_and_other_names_are_not_opened(tmp_path: Path) -> None:
    folder = tmp_path / "heartbeat"
    folder.mkdir()
    (tmp_path / "elsewhere").write_text(GOOD)
    (folder / "rank0").symlink_to(tmp_path / "elsewhere")
    (folder / "notes").write_text(GOOD)
    os.mkfifo(folder / "rank1")
    assert read(str(tmp_path)) == {}


@given(st.binary(max_size=WIDTH))
def test_any_bytes_are_read(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    folder = tmp_path_factory.mktemp("run")
    (folder / "heartbeat").mkdir()
    (folder / "heartbeat" / "rank0").write_bytes(raw)
    assert len(read(str(folder))) <= 1
