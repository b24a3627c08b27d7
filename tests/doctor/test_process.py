"""Programs that are asked: those that flood, hang, lie, or leave others behind; what they start is gone afterwards."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from trainwright.doctor.asking import ended, interpreter_told
from trainwright.doctor.process import ask
from trainwright.launch.processes import alive

SLEEPER = "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=%s)\n"
PACKAGES = '{"stage": "packages", "versions": {}, "torch": {"state": "unknown"}}'


def answer(code: str, seconds: float) -> tuple[Any, str, str]:
    asked = ask([sys.executable, "-S", "-c", code])
    out, err = asked.answer(seconds)
    assert alive(asked.token) == []
    return asked, out, err


@pytest.mark.parametrize("detached", [False, True])
def test_its_own_end_counts_and_what_it_started_is_ended(detached: bool) -> None:
    """The sleeper holds the pipe, and is not waited for."""
    asked, out, _ = answer(SLEEPER % detached + "print('done')", 50)
    assert asked.finished and asked.returncode == 0 and out == "done\n"


@pytest.mark.parametrize("before", ["", SLEEPER % True, "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n"])
def test_one_that_does_not_end_is_ended(before: str) -> None:
    asked, _, _ = answer(f"{before}while True: pass", 1)
    assert not asked.finished and asked.returncode == -9


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_flood_is_drained_and_its_ends_are_kept(stream: str) -> None:
    code = f"import sys\ns = sys.{stream}\ns.write('first ')\nfor _ in range(64): s.write('x' * 2**20)\ns.write(' last')"
    asked, *said = answer(code, 50)
    text = said[stream == "stderr"]
    assert asked.finished and text.startswith("first ") and text.endswith(" last") and len(text) < 5 * 2**20


def test_one_that_closes_its_pipes_is_still_waited_for() -> None:
    asked, out, _ = answer("import os, time\nprint('said', flush=True)\nos.close(1)\nos.close(2)\ntime.sleep(0.3)\nos._exit(7)", 50)
    assert asked.finished and asked.returncode == 7 and out == "said\n"


@pytest.mark.parametrize(
    "line",
    [
        '{"stage": "torch", "state": "ok", "devices": 5}',
        '{"stage": "torch", "state": "ok", "devices": [{"kind": 1, "name": null}]}',
        '{"stage": "torch", "state": "ok", "devices": [{"kind": "cuda", "name": "x", "memory_bytes": -5}]}',
        '{"stage": "torch", "state": "ok", "devices": [{"kind": "cuda"}]}',
        '{"stage": "torch", "state": "ok", "version": [1]}',
        '{"stage": "torch", "state": "ok", "backends": 7}',
        '{"stage": "torch", "state": ["ok"]}',
        '{"stage": "packages", "versions": {}, "torch": {}}',
        '{"stage": "packages", "versions": [], "torch": {"state": "unknown"}}',
        '{"stage": "packages", "versions": {}, "torch": {"state": "unknown"}, "unmet": [{"x": 1}]}',
        "[" * 100_000,
        "1" * 5000,
        "null",
    ],
)
def test_an_answer_of_another_shape_is_none(line: str) -> None:
    asked = ask([sys.executable, "-S", "-c", f"print({PACKAGES!r})\nprint({line!r})"])
    told = interpreter_told(asked, 50)
    assert told.packages["torch"] == {"state": "unknown"} and told.torch["state"] == "ended"


@pytest.mark.parametrize(
    ("code", "err", "said"),
    [
        (3, "", "exit code 3, without a word"),
        (3, "first\n  last words \n\n", "exit code 3: last words"),
        (-11, "", "signal 11 (SIGSEGV), without a word"),
        (-99, "x", "signal 99: x"),
        (None, "", "an end that was not seen, without a word"),
    ],
)
def test_how_it_ended(code: int | None, err: str, said: str) -> None:
    assert ended(code, err) == said


def test_a_worker_whose_asker_was_killed_ends_by_itself(tmp_path: Path) -> None:
    """The worker, asked to end within a second, while torch hangs in its import."""
    (tmp_path / "torch.py").write_text("import time\ntime.sleep(60)\n")
    worker = Path(__file__).resolve().parents[2] / "helpers/trainwright/train/stack.py"
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(tmp_path)
    try:
        asked = ask([sys.executable, "-S", str(worker), "--within=1"])
    finally:
        os.environ["PYTHONPATH"] = before or ""
    asked.answer(50)
    assert asked.finished and asked.returncode == -14
