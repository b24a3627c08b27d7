"""Reading what a run left, however broken. The folders are fabricated."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainwright.diagnose.run_folder import read_files, read_run
from trainwright.diagnose.verdict import diagnose
from trainwright.errors import UserError

Row = Callable[..., dict[str, Any]]


def test_a_complete_folder(folder: Any, row: Row, last: Row) -> None:
    for rank in (0, 1):
        folder.perf(rank, row(1), row(2), last())
    run = read_run(str(folder.manifest("completed").job().path))
    assert (run.status, run.world_size, sorted(run.ranks)) == ("completed", 2, [0, 1])
    assert [step.step for step in run.ranks[1].steps] == [1, 2]
    assert run.ranks[1].completed and run.ranks[0].pid == 100
    assert run.notes == []


def test_a_line_cut_short_is_left_out_and_told(folder: Any, row: Row) -> None:
    folder.perf(0, row(1), '{"kind": "step", "st').manifest("running").job(world_size=1)
    path = folder.path / "perf" / "rank0.jsonl"
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    run = read_run(str(folder.path))
    assert run.ranks[0].last_step == 1
    assert run.notes == [("perf/rank0.jsonl", "1 of 3 lines are no record and were left out (the last one was cut short)")]


GARBAGE = [
    "not json",
    "[1, 2]",
    '"text"',
    "null",
    "{}",
    '{"kind": "other"}',
    '{"kind": "step"}',
    '{"kind": "step", "step": "two"}',
    '{"kind": "step", "step": -1}',
    '{"kind": "step", "step": true}',
    '{"kind": "step", "step": 1e3}',
    '{"kind": "step", "step": ' + "9" * 5000 + "}",
    '{"kind": "end", "status": ["completed"], "error": 7}',
    '{"kind": "end", "error": {"type": 3, "message": {"a": 1}, "exception": []}}',
    '{"kind": "header", "rank": "0", "world_size": 1e9, "job": [], "strategy": "fsdp"}',
    '{"kind": "header", "rank": -5, "pid": "x"}',
    "[" * 100_000,
    '{"kind": "step", "step": 3, "loss": ' + "[" * 500 + "]" * 500 + "}",
    "\x00\x01",
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_a_garbage_line_changes_nothing_else(garbage: str, folder: Any, row: Row, last: Row) -> None:
    run = read_run(str(folder.perf(0, row(1), garbage, row(5), last(), world_size=1).manifest("completed").path))
    diagnosis = diagnose(run)
    assert run.ranks[0].steps[-1].step == 5
    assert diagnosis.measures.status == "completed"
    json.dumps(diagnosis.to_json())


def test_numbers_of_the_wrong_kind_are_unknown(folder: Any, row: Row) -> None:
    folder.perf(0, row(1, seconds="fast", tokens=None, loss=[1], rss_bytes=True), row(2, loss=10**400), world_size=1)
    first, second = read_run(str(folder.path)).ranks[0].steps
    assert (first.step_time_s, first.tokens, first.loss, first.rss_bytes) == (None, None, None, None)
    assert second.loss == math.inf


@pytest.mark.parametrize("loss", ["NaN", "null", "Infinity", '"nan"'])
def test_a_loss_that_json_cannot_hold_is_not_finite(loss: str, folder: Any) -> None:
    folder.perf(0, '{"kind": "step", "step": 1, "loss": ' + loss + "}")
    value = read_run(str(folder.path)).ranks[0].steps[0].loss
    assert value is not None and not math.isfinite(value)


def test_a_second_header_begins_anew(folder: Any, row: Row) -> None:
    folder.perf(0, row(1), row(2), '{"kind": "header", "rank": 0, "world_size": 1, "pid": 7}', row(1), world_size=1)
    run = read_run(str(folder.path))
    assert run.ranks[0].last_step == 1 and run.ranks[0].pid == 7


def test_ranks_that_left_nothing_are_there(folder: Any, row: Row) -> None:
    run = read_run(str(folder.perf(0, row(1), world_size=3).path))
    assert sorted(run.ranks) == [0, 1, 2]
    assert not run.ranks[2].header


def test_exit_codes_come_from_torchrun_s_summary(folder: Any) -> None:
    run = read_run(str(folder.exits({1: -9, 0: -15}).path))
    assert {rank.number: (rank.exitcode, rank.pid) for rank in run.in_order} == {0: (-15, 100), 1: (-9, 101)}
    line = run.ranks[0].exit_line
    assert line is not None and line.text.strip() == "exitcode  : -15 (pid: 100)"


def test_marked_lines_of_torchrun_s_output_belong_to_their_rank(folder: Any) -> None:
    run = read_run(str(folder.file("logs/launcher.log", "hello\n[rank1]: Traceback\n [default0]:[rank0]: x\n").path))
    assert [line.number for line in run.ranks[1].log.lines] == [2]  # type: ignore[union-attr]
    assert [line.number for line in run.ranks[0].log.lines] == [3]  # type: ignore[union-attr]


def test_files_alone(folder: Any, row: Row, last: Row, tmp_path: Path) -> None:
    folder.perf(1, row(1), last()).stderr(0, "ValueError: x\n").exits({0: 1})
    (tmp_path / "other.log").write_text("epoch 1\n")
    paths = [folder.path / "perf/rank1.jsonl", folder.path / "logs/some_id/attempt_0/0/stderr.log", folder.path / "logs/launcher.log"]
    run = read_files([*map(str, paths), str(tmp_path / "other.log")])
    assert run.ranks[1].completed and run.ranks[0].exitcode == 1 and run.ranks[0].log is not None
    assert run.notes == [(str(tmp_path / "other.log"), "is no perf or log file of a run; other formats are not judged yet")]


@pytest.mark.parametrize("text", ["", " \n\n"])
def test_an_empty_file_is_called_empty(text: str, tmp_path: Path) -> None:
    (tmp_path / "launcher.log").write_text(text)
    with pytest.raises(UserError, match=r"nothing to diagnose: \S+launcher\.log is empty; name a run folder"):
        read_files([str(tmp_path / "launcher.log")])


@pytest.mark.parametrize("make", ["missing", "empty", "file"])
def test_what_is_no_run_is_one_clear_line(make: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    if make == "empty":
        path.mkdir()
    elif make == "file":
        path.write_text("x")
    with pytest.raises(UserError, match=r"name (the|a run) folder") as caught:
        read_run(str(path)) if make != "missing" else read_files([str(path)])
    assert "\n" not in str(caught.value)


def test_special_files_do_not_block(folder: Any) -> None:
    folder.manifest("completed")
    (folder.path / "perf").mkdir()
    os.mkfifo(folder.path / "perf" / "rank0.jsonl")
    (folder.path / "perf" / "rank1.jsonl").mkdir()
    run = read_run(str(folder.path))
    assert [name for name, _ in run.notes] == ["job.json", "perf/rank0.jsonl", "perf/rank1.jsonl"]


NAMES = ("perf/rank0.jsonl", "perf/rank1.jsonl", "logs/launcher.log", "logs/i/attempt_0/0/stderr.log", "manifest.json", "job.json")
PIECES = (
    b'{"kind": "header", "rank": 0, "world_size": 2, "strategy": {"name": "ddp", "wrapper": "none"}, "job": {"steps": 3}}\n',
    b'{"kind": "step", "step": 1, "step_time_s": 1.0, "tokens": 8, "loss": NaN}\n',
    b'{"kind": "step", "step": 2, "step_time_s": 1e999, "tokens": -1}\n',
    b'{"kind": "end", "status": "failed", "error": {"type": "exception", "message": "Connection closed by peer"}}\n',
    b'{"schema": "trainwright/manifest/1", "outcome": {"status": "timeout", "signals_sent": [{"pid": 1}, 3], "oom_kills": "many"}}\n',
    b'{"outcome": [], "asked": 3}',
    b"[rank0]: Traceback (most recent call last):\n",
    b'[rank0]:   File "a.py", line 1, in f\n',
    b"[rank0]: RuntimeError: Timed out waiting 15000ms for recv\n",
    b"Current thread 0x00 (most recent call first):\n",
    b"  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 7)\n",
    b"failed (exitcode: -9999) local_rank: 19999 (pid: 3)\n",
    b"DefaultCPUAllocator: can't allocate memory: you tried to allocate 99999999999999999 bytes\n",
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(contents=st.dictionaries(st.sampled_from(NAMES), st.lists(st.sampled_from(PIECES) | st.binary(max_size=60), max_size=8), min_size=1))
def test_whatever_the_files_hold_there_is_an_answer(contents: dict[str, list[bytes]], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("run")
    for name, pieces in contents.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(b"".join(pieces))
    try:
        run = read_run(str(path))
    except UserError:
        return
    json.dumps(diagnose(run).to_json())
