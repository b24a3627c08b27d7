"""Where a job stands by its perf files, and when it has to end."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.launch.watch import Clocks, Progress


def write(folder: Path, rank: int, text: str) -> None:
    with open(folder / f"rank{rank}.jsonl", "a", encoding="utf-8") as file:
        file.write(text)


def step(number: int) -> str:
    return json.dumps({"kind": "step", "step": number}) + "\n"


def test_the_slowest_rank_counts(tmp_path: Path) -> None:
    progress = Progress(str(tmp_path))
    progress.look()
    assert progress.slowest(2) == 0
    write(tmp_path, 0, '{"kind": "header"}\n' + step(1) + step(2))
    progress.look()
    assert progress.slowest(2) == 0, "rank 1 has not begun"
    write(tmp_path, 1, step(1))
    progress.look()
    assert progress.slowest(2) == 1


def test_a_line_half_written_waits_for_its_end(tmp_path: Path) -> None:
    progress = Progress(str(tmp_path))
    write(tmp_path, 0, step(1) + step(2)[:9])
    progress.look()
    assert progress.slowest(1) == 1
    write(tmp_path, 0, step(2)[9:])
    progress.look()
    assert progress.slowest(1) == 2


def test_only_growth_resets_the_stall_clock(tmp_path: Path) -> None:
    progress = Progress(str(tmp_path))
    write(tmp_path, 0, step(1))
    progress.look()
    progress.grew -= 100
    progress.look()
    assert progress.idle_s() > 99
    write(tmp_path, 0, step(2))
    progress.look()
    assert progress.idle_s() < 99


def test_clocks(tmp_path: Path) -> None:
    progress = Progress(str(tmp_path))
    clocks = Clocks(time.monotonic(), timeout_s=100, stall_s=50)
    assert clocks.expired(progress) == ""
    progress.grew -= 60
    assert clocks.expired(progress) == "stall" and clocks.reason("stall") == "no rank wrote a line for 50 s"
    late = Clocks(time.monotonic() - 101, timeout_s=100, stall_s=50)
    assert late.expired(progress) == "total" and late.reason("total") == "not finished 100 s after the start"


@given(pieces=st.lists(st.binary(max_size=80) | st.sampled_from([b'{"kind": "step", "step": 4}\n', b"[" * 5000 + b"\n"]), max_size=6))
def test_any_bytes(pieces: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("perf")
    progress = Progress(str(folder))
    for piece in pieces:
        with open(folder / "rank0.jsonl", "ab") as file:
            file.write(piece)
        progress.look()
    assert progress.slowest(1) >= 0
