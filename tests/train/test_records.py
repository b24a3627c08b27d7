"""The records of a rank: lines in order, one end, whoever writes it."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from trainwright.errors import UserError
from trainwright.train.records import LONGEST, Records, failure, versions


def lines(folder: Path, rank: int = 0) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "perf" / f"rank{rank}.jsonl").read_text(encoding="utf-8").splitlines()]


def test_a_run_is_a_header_its_steps_and_an_end(tmp_path: Path) -> None:
    records = Records(str(tmp_path), 3, {"rank": 3})
    records.header({"strategy": {"name": "ddp"}})
    records.step({"step": 1, "loss": float("nan")})
    assert lines(tmp_path, 3)[-1] == {"kind": "step", "step": 1, "loss": None}  # written at once; NaN is no JSON
    records.end("completed")
    header, _, end = lines(tmp_path, 3)
    assert header == {"kind": "header", "rank": 3, "strategy": {"name": "ddp"}}
    assert end == {"kind": "end", "status": "completed", "steps": 1, "peak_memory_bytes": None, "memory": None, "error": None}


def test_a_failure_before_the_header_still_has_one(tmp_path: Path) -> None:
    records = Records(str(tmp_path), 0, {"rank": 0})
    records.end("failed", failure("out_of_memory", "RuntimeError", "no\n", "model"))
    header, end = lines(tmp_path)
    assert header == {"kind": "header", "rank": 0, "strategy": None, "applied": [], "not_applied": []}
    assert end["error"] == {"type": "out_of_memory", "exception": "RuntimeError", "message": "no", "phase": "model"}


def test_the_first_end_stands_and_nothing_follows_it(tmp_path: Path) -> None:
    records = Records(str(tmp_path), 0, {})
    records.header({})
    threads = [threading.Thread(target=records.end, args=(f"status {n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    records.step({"step": 1})
    assert [row["kind"] for row in lines(tmp_path)] == ["header", "end"]


def test_a_folder_that_cannot_be_written_is_a_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "perf").write_text("a file")
    with pytest.raises(UserError, match=r"cannot write .*rank0\.jsonl"):
        Records(str(tmp_path), 0, {})


def test_a_name_that_is_no_utf_8_is_recorded_as_it_is(tmp_path: Path) -> None:
    """The system gives such a file name as text with lone surrogates."""
    name = b"part-\xff.npy".decode("utf-8", "surrogateescape")
    records = Records(str(tmp_path), 0, {})
    records.data = lambda: {"read": [{"name": name}]}
    records.end("completed")
    last = (tmp_path / "perf" / "rank0.jsonl").read_text(encoding="utf-8").splitlines()[-1]
    assert json.loads(last)["data"]["read"][0]["name"] == name


def test_long_messages_are_cut() -> None:
    assert len(failure("exception", "RuntimeError", "x" * 5000, "forward")["message"]) == LONGEST


def test_versions_are_of_this_interpreter() -> None:
    assert versions()["torch"] and versions()["python"].count(".") == 2  # type: ignore[union-attr]
