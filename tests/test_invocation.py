"""The next command is typed as the one before: by its script where that was started, by name else."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from trainwright.invocation import command_line


def test_a_neighbour_of_the_script_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "a skill" / "scripts"
    place.mkdir(parents=True)
    for name in ("doctor.py", "explain.py"):
        (place / name).write_text("")
    monkeypatch.setattr(sys, "argv", [str(place / "doctor.py"), "--quiet"])
    assert shlex.split(command_line("explain", "ENV002")) == [sys.executable, str(place / "explain.py"), "ENV002"]
    assert command_line("advise", "--devices", "8") == "trainwright advise --devices 8"


@pytest.mark.parametrize("started", ["/usr/bin/trainwright", "", "-c", "doctor.py"])
def test_any_other_start_is_by_name(started: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [started])
    assert command_line("explain", "it's") == "trainwright explain 'it'\"'\"'s'"


def test_the_module_itself_is_no_script(monkeypatch: pytest.MonkeyPatch) -> None:
    import trainwright.cli

    monkeypatch.setattr(sys, "argv", [trainwright.cli.__file__])
    assert command_line("doctor") == "trainwright doctor"
