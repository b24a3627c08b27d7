"""A run's folder is new, or an earlier run's; nothing else is ever touched."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from trainwright.errors import UserError
from trainwright.launch import folder
from trainwright.launch.processes import TOKEN, belongs


def earlier(path: Path, status: str = "completed", token: str = "t") -> Path:
    folder.create(str(path), force=False)
    value = {"schema": folder.MANIFEST_SCHEMA, "token": token, "host": platform.node(), "pid": 1, "outcome": {"status": status}}
    (path / "manifest.json").write_text(json.dumps(value))
    (path / "perf" / "rank0.jsonl").write_text("old")
    return path


def test_a_new_folder_with_its_parents(tmp_path: Path) -> None:
    place = folder.create(str(tmp_path / "a" / "b"), force=False)
    assert sorted(child.name for child in place.iterdir()) == ["logs", "perf"]


@pytest.mark.parametrize("what", ["folder", "file", "dangling link", "earlier run"])
def test_what_exists_is_refused(what: str, tmp_path: Path) -> None:
    path = tmp_path / "run"
    if what == "folder":
        path.mkdir()
    elif what == "file":
        path.write_text("x")
    elif what == "dangling link":
        path.symlink_to(tmp_path / "nowhere")
    else:
        earlier(path)
    for act in (folder.check, folder.create):
        with pytest.raises(UserError, match=r"run exists; name a new --run-dir"):
            act(str(path), force=False)


def test_force_replaces_an_earlier_run_and_leaves_what_is_not_ours(tmp_path: Path) -> None:
    path = earlier(tmp_path / "run")
    (path / "notes.txt").write_text("mine")
    folder.create(str(path), force=True)
    assert sorted(child.name for child in path.iterdir()) == ["logs", "notes.txt", "perf"]
    assert not (path / "perf" / "rank0.jsonl").exists()


def test_force_makes_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert folder.create(str(tmp_path / "run"), force=True).is_dir()


@pytest.mark.parametrize("what", ["no manifest", "another manifest", "broken manifest", "link to a run", "file"])
def test_force_leaves_everything_else_alone(what: str, tmp_path: Path) -> None:
    path = tmp_path / "run"
    if what == "link to a run":
        path.symlink_to(earlier(tmp_path / "real"))
    elif what == "file":
        path.write_text("precious")
    else:
        path.mkdir()
        (path / "perf").mkdir()
        (path / "perf" / "precious").write_text("x")
        if what != "no manifest":
            (path / "manifest.json").write_text('{"schema": "other"}' if what == "another manifest" else "{")
    with pytest.raises(UserError):
        folder.create(str(path), force=True)
    kept = {"link to a run": tmp_path / "real" / "perf" / "rank0.jsonl", "file": path}.get(what, path / "perf" / "precious")
    assert kept.read_text()


def test_force_follows_no_link_inside(tmp_path: Path) -> None:
    path = earlier(tmp_path / "run")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_text("x")
    os.rename(path / "logs", tmp_path / "moved")
    (path / "logs").symlink_to(tmp_path / "outside")
    folder.create(str(path), force=True)
    assert (tmp_path / "outside" / "precious").exists() and not (path / "logs").is_symlink()


def test_a_job_that_still_runs_is_not_replaced(tmp_path: Path) -> None:
    path = earlier(tmp_path / "run", status="running", token="tok-9")
    folder.check(str(path), force=True)  # its processes are gone: a launcher that was killed
    code = "import sys; print(1, flush=True); sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", code], env={TOKEN: "tok-9"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout and process.stdout.readline()
        assert belongs(process.pid, "tok-9")
        with pytest.raises(UserError, match="still runs"):
            folder.check(str(path), force=True)
    finally:
        process.communicate()


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match=r"cannot make the folder .*; name a writable place"):
        folder.create(str(tmp_path / "file" / "run"), force=False)
