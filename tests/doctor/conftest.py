"""A doctor's room: doctor run in an almost empty environment, fake interpreters with fake packages, fake programs on the path."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
Doctor = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def doctor(tmp_path: Path) -> Doctor:
    """Run `doctor ARGUMENTS` in `folder` with only the given variables; exit code, JSON envelope (or {}), stderr."""

    def run(*arguments: str, folder: Path | None = None, **variables: str) -> tuple[int, dict[str, Any], str]:
        argv = [sys.executable, "-m", "trainwright.cli", "doctor", *arguments, "--format", "json", "--limit", "0"]
        place = {
            "PATH": os.defpath,
            "HOME": str(tmp_path),
            "PYTHONPATH": str(ROOT / "helpers"),
            "PYTHONDONTWRITEBYTECODE": "1",
            **variables,
        }
        done = subprocess.run(
            argv, cwd=folder or tmp_path, env=place, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
        )
        assert "a fault of ours" not in done.stderr and "Traceback" not in done.stderr
        return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr

    return run


@pytest.fixture
def interpreter(tmp_path: Path) -> Callable[..., str]:
    """A virtual environment without pip whose `torch` is the given source, with metadata for each named version; its python."""
    made = 0

    def make(source: str | None = None, /, **versions: str) -> str:
        nonlocal made
        made += 1
        home = tmp_path / f"env{made}"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(home)], check=True, capture_output=True)
        packages = next(home.glob("lib/python3*/site-packages"))
        if source is not None:
            (packages / "torch").mkdir()
            (packages / "torch" / "__init__.py").write_text(source)
        for name, version in versions.items():
            metadata(packages, name.replace("_", "-"), version)
        return str(home / "bin" / "python")

    return make


def metadata(packages: Path, name: str, version: str, *requires: str) -> None:
    """What pip leaves of an installed distribution."""
    folder = packages / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {one}" for one in requires)]
    (folder / "METADATA").write_text("\n".join(lines) + "\n")


@pytest.fixture
def install() -> Callable[..., None]:
    return metadata


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str, str], str]:
    """Make an executable of that name and text; a PATH that begins with its folder."""

    def make(name: str, text: str) -> str:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(text)
        (folder / name).chmod(stat.S_IRWXU)
        return os.pathsep.join([str(folder), os.defpath])

    return make
