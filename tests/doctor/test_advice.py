"""The next command: one that can be typed as it stands, and that leads on."""

from __future__ import annotations

import ast
import shlex

import pytest

from trainwright.cli import COMMANDS
from trainwright.doctor.advice import FACES, Situation, next_command
from trainwright.environment import Environment, Torch
from trainwright.rules import check_all, load_all

HERE = Situation("/opt/my env/bin/python", True, None, None, None, None)


def after(seconds: float | None, state: str = "unfinished") -> list[str]:
    situation = Situation(HERE.python, True, seconds, None, None, None)
    return shlex.split(next_command(Environment(torch=Torch(state)), [], situation).command)


@pytest.mark.parametrize("seconds", [None, 5.0])
def test_a_slow_import_gets_time_in_the_same_interpreter(seconds: float | None) -> None:
    assert after(seconds) == ["trainwright", "doctor", "--python", HERE.python, "--timeout", "60s"]


def test_where_much_time_was_not_enough_the_line_is_shown() -> None:
    python, _, code = after(60.0)
    assert python == HERE.python
    ast.parse(code)
    assert "dump_traceback_later(60" in code


def test_pip_is_that_of_the_jobs_interpreter() -> None:
    load_all()
    found = Environment(versions={"torch": "2.2.2", "numpy": "2.0.1"})
    assert shlex.split(next_command(found, check_all(found), HERE).command) == [HERE.python, "-m", "pip", "install", "numpy<2"]
    assert after(None, "absent") == [HERE.python, "-m", "pip", "install", "torch"]


def test_who_has_a_command_is_what_the_table_says() -> None:
    for name, (module, holder) in FACES.items():
        command = COMMANDS[name]
        assert command.face == module and holder == (f"the skill {command.skills[0]}" if command.skills else "the repository")
