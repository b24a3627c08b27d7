"""Every stub, run as strangers run it: a bare environment, odd places, old Pythons, no input, a reader that leaves."""

from __future__ import annotations

import ast
import glob
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainwright.cli import COMMANDS

OLD = sorted(glob.glob("/usr/bin/python2.7") + glob.glob(os.path.expanduser("~/.pyenv/versions/[23].[0-9].*/bin/python")))
SKILLS = sorted({skill for command in COMMANDS.values() for skill in command.skills})
STUBS = [pytest.param(skill, name, id=f"{skill}-{name}") for skill in SKILLS for name, row in COMMANDS.items() if skill in row.skills]


@pytest.fixture(scope="module")
def lonely(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder that holds each skill's folder and nothing else, on a path with a space, and read-only."""
    target = tmp_path_factory.mktemp("a stranger's home") / "skills"
    shutil.copytree(root / "skills", target, ignore=shutil.ignore_patterns("__pycache__"))
    everything = [target, *target.rglob("*")]
    for path in everything:
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield target
    for path in everything:
        path.chmod(path.stat().st_mode | stat.S_IWUSR)


def run(stub: Path, *arguments: str, cwd: Path | str = "/") -> subprocess.CompletedProcess[str]:
    """`env -i python3 STUB ARGUMENTS` with a closed stdin."""
    argv = ["env", "-i", sys.executable, str(stub), *arguments]
    return subprocess.run(argv, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(("skill", "name"), STUBS)
def test_help_from_the_root_folder(lonely: Path, skill: str, name: str) -> None:
    done = run(lonely / skill / "scripts" / f"{name}.py", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") < 60 and done.stdout.startswith(f"usage: trainwright {name}")


@pytest.mark.parametrize(("skill", "name"), STUBS)
def test_a_bad_flag_is_2_and_leaves_no_trace(lonely: Path, skill: str, name: str) -> None:
    before = {path: path.stat().st_mtime_ns for path in lonely.rglob("*")}
    done = run(lonely / skill / "scripts" / f"{name}.py", "--no-such-flag")
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr
    assert {path: path.stat().st_mtime_ns for path in lonely.rglob("*")} == before, "a copied folder stays as it was copied"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_repository_stub_finds_helpers(root: Path, tmp_path: Path, name: str) -> None:
    done = run(root / "scripts" / f"{name}.py", "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_stub_reached_through_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "rules").symlink_to(root / "scripts" / "rules.py")
    assert run(tmp_path / "rules", "--format", "json").returncode == 0


def test_the_current_folder_is_no_place_to_import_from(lonely: Path, tmp_path: Path) -> None:
    for name in ("trainwright", "yaml", "argparse"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('taken in')\n")
    for skill in SKILLS:
        script = sorted((lonely / skill / "scripts").glob("*.py"))[0]
        assert run(script, "--help", cwd=tmp_path).returncode == 0


def test_a_reader_that_leaves_after_one_line(lonely: Path) -> None:
    line = 'env -i "$0" "$1" --format json | head -c 1'
    argv = ["bash", "-c", f"set -o pipefail; {line}", sys.executable, str(lonely / SKILLS[0] / "scripts" / "rules.py")]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "{", "")


def test_a_closed_stdin(lonely: Path) -> None:
    argv = ["bash", "-c", 'exec 0<&-; "$0" "$1" --format json', sys.executable, str(lonely / SKILLS[0] / "scripts" / "rules.py")]
    assert subprocess.run(argv, capture_output=True, timeout=60).returncode == 0


def test_a_stub_without_its_library(root: Path, tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    stub = shutil.copy(root / "scripts" / "check.py", tmp_path / "scripts")
    argv = ["env", "-i", sys.executable, "-S", stub, "--help"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3 and done.stderr.count("\n") == 1 and "copy the whole folder" in done.stderr


def test_an_old_python_is_told_so(root: Path) -> None:
    code = "import sys; sys.version_info = (3, 6, 0); import runpy; runpy.run_path(sys.argv[1], run_name='__main__')"
    argv = [sys.executable, "-c", code, str(root / "scripts" / "check.py")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3 and done.stderr == "trainwright check: this is Python 3.6; run it with Python 3.10 or newer\n"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_stubs_parse_on_python_3_6(root: Path, name: str) -> None:
    ast.parse((root / "scripts" / f"{name}.py").read_text(), feature_version=(3, 6))


@pytest.mark.parametrize("old", OLD or [pytest.param("", marks=pytest.mark.skip(reason="no Python older than 3.10 is installed here"))])
def test_real_old_pythons(root: Path, old: str) -> None:
    done = subprocess.run([old, str(root / "scripts" / "check.py")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 3 and "run it with Python 3.10 or newer" in done.stderr and done.stderr.count("\n") == 1
