"""Another Python with the missing package is found by reading only, and named in the very line to type."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trainwright.errors import MissingPackageError
from trainwright.interpreters import with_package


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No environment, nothing on PATH, an empty current folder."""
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.chdir(tmp_path)


def python(prefix: Path, version: str = "3.11", module: str = "yaml") -> Path:
    """A prefix with an interpreter that would tell if it were run."""
    (prefix / "bin").mkdir(parents=True)
    (prefix / f"lib/python{version}/site-packages" / module).mkdir(parents=True)
    program = prefix / "bin" / "python"
    program.write_text(f"#!/bin/sh\ntouch {prefix}/it-was-run\n")
    program.chmod(0o755)
    return program


def script(place: Path, text: str) -> None:
    place.parent.mkdir(exist_ok=True)
    place.write_text(text)
    place.chmod(0o755)


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    assert with_package("yaml") is None


def test_the_active_environment_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    active, local = python(tmp_path / "active"), python(tmp_path / ".venv")
    assert with_package("yaml") == str(local)
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "active"))
    assert with_package("yaml") == str(active)
    assert not list(tmp_path.rglob("it-was-run"))


@pytest.mark.parametrize("name", ["accelerate", "torchrun"])
@pytest.mark.parametrize(
    "form",
    ["#!{python}\nimport sys\n", "#!/bin/sh\n'''exec' {python} \"$0\" \"$@\"\n' '''\n", '#!/bin/sh\n\'\'\'exec\' "{python}" "$0" "$@"\n'],
)
def test_the_interpreter_behind_a_launcher(tmp_path: Path, name: str, form: str) -> None:
    program = python(tmp_path / "env")
    script(tmp_path / "bin" / name, form.format(python=program))
    assert with_package("yaml") == str(program)
    assert with_package("no_such_module") is None


@pytest.mark.parametrize("text", ["", "\0\xff", "#!/usr/bin/env python3\n", "#!python\n", "#!/no/such/python\n"])
def test_a_launcher_that_names_no_interpreter(tmp_path: Path, text: str) -> None:
    script(tmp_path / "bin" / "accelerate", text)
    assert with_package("yaml") is None


@pytest.mark.parametrize(("version", "module"), [("3.9", "yaml"), ("3.11", "other")])
def test_an_old_python_or_one_without_it_does_not_help(tmp_path: Path, version: str, module: str) -> None:
    python(tmp_path / ".venv", version, module)
    assert with_package("yaml") is None


def test_the_message_is_the_line_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "my scripts" / "check.py"
    script(command, "")
    monkeypatch.setattr(sys, "argv", [str(command), "a b.yaml", "--quiet"])
    assert str(MissingPackageError("PyYAML", "reading", "pyyaml")).endswith(f"{sys.executable} -m pip install pyyaml")
    program = python(tmp_path / ".venv")
    assert str(MissingPackageError("PyYAML", "reading", "pyyaml")).endswith(f"{program} '{command}' 'a b.yaml' --quiet")
