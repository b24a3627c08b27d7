"""What the probe tells of versions, memory, a checkout and devices."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trainwright import probe

SHA = "0123456789abcdef0123456789abcdef01234567"


def test_versions_of_what_is_there_and_of_what_is_not() -> None:
    found = probe.versions(["pytest", "no-such-distribution-anywhere"])
    assert found["pytest"] == pytest.__version__ and found["no-such-distribution-anywhere"] is None


def test_the_environment_is_set_inside_and_restored_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TW_OLD", "before")
    monkeypatch.delenv("TW_NEW", raising=False)
    with pytest.raises(RuntimeError), probe.environment({"TW_OLD": "inside", "TW_NEW": "x"}):
        assert (os.environ["TW_OLD"], os.environ["TW_NEW"]) == ("inside", "x")
        raise RuntimeError
    assert os.environ["TW_OLD"] == "before" and "TW_NEW" not in os.environ


def test_the_path_of_the_caller_stays_behind_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    assert probe.python_variables()["PYTHONPATH"] == f"{probe.library_root()}{os.pathsep}/theirs"
    monkeypatch.delenv("PYTHONPATH")
    assert probe.python_variables()["PYTHONPATH"] == probe.library_root()
    assert (Path(probe.library_root()) / "trainwright" / "probe.py").exists()


def test_host_memory_is_plausible() -> None:
    found = probe.host_memory()
    assert found.total_bytes and 2**28 < found.total_bytes < 2**50
    assert found.available_bytes is None or found.available_bytes <= found.total_bytes
    assert found.limit_bytes is None or found.limit_bytes < found.total_bytes


def test_oom_kills_is_a_count_or_unknown() -> None:
    found = probe.oom_kills()
    assert found is None or found >= 0


def repository(path: Path, head: str = "ref: refs/heads/main\n") -> Path:
    (path / ".git" / "refs" / "heads").mkdir(parents=True)
    (path / ".git" / "HEAD").write_text(head)
    return path


def test_git_sha_of_a_branch_a_packed_branch_and_a_detached_head(tmp_path: Path) -> None:
    loose = repository(tmp_path / "loose")
    (loose / ".git" / "refs" / "heads" / "main").write_text(SHA + "\n")
    (loose / "sub" / "folder").mkdir(parents=True)
    assert probe.git_sha(str(loose / "sub" / "folder")) == SHA
    packed = repository(tmp_path / "packed", "ref: refs/heads/fix/#12\n")
    (packed / ".git" / "packed-refs").write_text(f"# pack-refs\n{'f' * 40} refs/heads/main\n{SHA} refs/heads/fix/#12\n^{'e' * 40}\n")
    assert probe.git_sha(str(packed)) == SHA
    assert probe.git_sha(str(repository(tmp_path / "detached", SHA + "\n"))) == SHA


@pytest.mark.parametrize("head", ["", "ref: refs/heads/none\n", "ref: refs/../../secret\n", "ref: /etc/passwd\n", "\x00\xff", SHA[:-1]])
def test_git_sha_of_anything_else_is_unknown(head: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SHA)
    assert probe.git_sha(str(repository(tmp_path / "x", head))) is None


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here to compare with")
def test_git_sha_is_what_git_says(tmp_path: Path) -> None:
    def git(*words: str, cwd: Path = tmp_path) -> str:
        names = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
        return subprocess.run(["git", *names, *words], cwd=cwd, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q", "a")
    git("commit", "-q", "--allow-empty", "-m", "x", cwd=tmp_path / "a")
    git("worktree", "add", "-q", str(tmp_path / "b"), "-b", "other", cwd=tmp_path / "a")
    git("commit", "-q", "--allow-empty", "-m", "y", cwd=tmp_path / "b")
    for place in ("a", "b"):
        assert probe.git_sha(str(tmp_path / place)) == git("rev-parse", "HEAD", cwd=tmp_path / place)
    git("pack-refs", "--all", cwd=tmp_path / "a")
    assert probe.git_sha(str(tmp_path / "b")) == git("rev-parse", "HEAD", cwd=tmp_path / "b")


def test_devices_of_an_interpreter_that_is_none(tmp_path: Path) -> None:
    found = probe.devices(str(tmp_path / "python"))
    assert found["torch"] is None and found["devices"] == [] and "FileNotFoundError" in found["error"]


@pytest.mark.parametrize(("answer", "complaint"), [("", "No module named torch\n"), ("hello\n", ""), ('{"torch": 1}', "x"), ("[]", "y")])
def test_an_answer_that_is_none_is_told(answer: str, complaint: str) -> None:
    found = probe._devices_answer(answer, complaint)
    assert found["torch"] is None and found["error"]


@pytest.mark.long
def test_devices_of_this_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('a module of the user folder must not be imported')")
    (tmp_path / "json.py").write_text("raise SystemExit('nor this')")
    monkeypatch.chdir(tmp_path)
    found = probe.devices()
    assert json.dumps(found)
    assert set(found) == {"torch", "devices", "error"}
    assert (found["torch"] is None) == (found["error"] is not None), found


def test_interpreter() -> None:
    assert probe.interpreter()["executable"] == sys.executable
