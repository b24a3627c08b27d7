"""The last word of each rank, as it stands in its record, however odd the record is."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.launch.ends import RankEnd, ends_of

ERROR = {"type": "exception", "exception": "ValueError", "message": "no", "phase": "backward"}


def put(run_dir: Path, rank: int, content: str | bytes) -> None:
    (run_dir / "perf").mkdir(exist_ok=True)
    (run_dir / "perf" / f"rank{rank}.jsonl").write_bytes(content.encode() if isinstance(content, str) else content)


def end(**fields: object) -> str:
    return json.dumps({"kind": "end", "status": "failed", "error": ERROR, **fields}) + "\n"


def test_one_of_each(tmp_path: Path) -> None:
    put(tmp_path, 0, '{"kind":"header"}\n' + end(status="completed", error=None))
    put(tmp_path, 1, '{"kind":"step","step":1}\n' + end())
    put(tmp_path, 2, '{"kind":"header"}\n{"kind":"step","st')
    found = ends_of(str(tmp_path), 4)
    assert found[0] == RankEnd(0, "completed") and found[0].completed
    assert str(found[1]) == "rank 1 failed in backward: ValueError: no"
    assert found[2] == RankEnd(2) and found[3] == RankEnd(3) and "left no end record" in str(found[3])


@pytest.mark.parametrize(
    "content",
    ["", "\n", "[1]\n", '{"kind":"end"}\n', end(status=7, error=None), end(status=["x"], error="no"), "{" * 100_000, b"\xff\x00\n"],
)
def test_a_record_that_is_none_is_no_fault(content: str | bytes, tmp_path: Path) -> None:
    put(tmp_path, 0, content)
    assert ends_of(str(tmp_path), 1) == [RankEnd(0)]


def test_only_the_tail_of_a_large_file_is_read_and_a_long_message_is_cut_for_people(tmp_path: Path) -> None:
    message = "x" * 2000
    put(tmp_path, 0, end(status="completed") + '{"kind":"step","step":1}\n' * 100_000 + end(error={**ERROR, "message": message}))
    [found] = ends_of(str(tmp_path), 1)
    assert found.message == message and len(str(found)) < 400
    put(tmp_path, 0, end() + '{"kind":"step","step":1}\n' * 100_000)
    assert ends_of(str(tmp_path), 1) == [RankEnd(0)]


def test_what_is_no_plain_file_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "perf").mkdir()
    os.mkfifo(tmp_path / "perf" / "rank0.jsonl")
    (tmp_path / "elsewhere").write_text(end())
    (tmp_path / "perf" / "rank1.jsonl").symlink_to(tmp_path / "elsewhere")
    assert ends_of(str(tmp_path), 2) == [RankEnd(0), RankEnd(1)]


@given(st.binary(max_size=300))
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("run")
    put(folder, 0, content)
    assert ends_of(str(folder), 1)[0].rank == 0
