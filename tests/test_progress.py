"""Progress shows on a terminal only, and what is shown is on stderr."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from trainwright.progress import progress


def test_silent_where_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("demo") as step:
        step("training", 0.5)
    assert capsys.readouterr() == ("", "")


def test_one_line_without_rich(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with progress("demo") as step:
        step("training", 0.5)
        step("waiting")
    out, err = capsys.readouterr()
    assert out == ""
    assert "demo: training  50%" in err and "demo: waiting" in err and err.endswith("\r\x1b[K")


def test_quiet_wins_over_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress("demo", quiet=True) as step:
        step("training", 0.5)
    assert capsys.readouterr() == ("", "")
