"""Only processes that carry the run's token are ever signalled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from trainwright.launch.processes import TOKEN, Processes, alive, belongs, running

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="processes are told apart by /proc")

Start = Callable[[str, "str | None"], "subprocess.Popen[bytes]"]
SLEEP = "import time; time.sleep(60)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); {SLEEP}"
PARENT = (
    f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}], start_new_session=True); print(1, flush=True); {SLEEP}"
)


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def begin(code: str, token: str | None) -> subprocess.Popen[bytes]:
        variables = {"PATH": os.defpath} | ({TOKEN: token} if token else {})
        process = subprocess.Popen([sys.executable, "-c", code], env=variables, stdout=subprocess.PIPE)
        started.append(process)
        if "print" in code:
            assert process.stdout and process.stdout.readline()
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def wait_until(found: Callable[[], object], value: object) -> None:
    deadline = time.monotonic() + 20
    while found() != value and time.monotonic() < deadline:
        time.sleep(0.02)
    assert found() == value


def test_a_token_marks_a_process_and_its_children(start: Start) -> None:
    parent, other = start(PARENT, "tok-1"), start(SLEEP, "tok-11")
    wait_until(lambda: len(alive("tok-1")), 2)
    assert parent.pid in alive("tok-1") and other.pid not in alive("tok-1")
    assert not belongs(os.getpid(), "tok-1")
    assert Processes(parent, "tok-1").end(grace_s=5, hurry=lambda: False) == []
    assert alive("tok-1") == [] and other.poll() is None


def test_a_stranger_is_not_signalled(start: Start) -> None:
    ours, stranger = start(SLEEP, "tok-2"), start(SLEEP, None)
    processes = Processes(ours, "tok-2")
    processes.signal([stranger.pid, os.getpid(), 1, 2**22 - 1], signal.SIGKILL)
    assert processes.sent == [] and stranger.poll() is None


def test_who_ignores_sigterm_is_killed_after_the_grace(start: Start) -> None:
    process = start(STUBBORN, "tok-3")
    processes = Processes(process, "tok-3")
    assert processes.end(grace_s=0.3, hurry=lambda: False) == []
    assert process.returncode == -signal.SIGKILL
    assert [row["signal"] for row in processes.sent] == [signal.SIGTERM, signal.SIGKILL]


def test_a_launcher_that_has_ended_is_not_signalled(start: Start) -> None:
    process = start("pass", "tok-4")
    process.wait()
    processes = Processes(process, "tok-4")
    assert processes.end(grace_s=5, hurry=lambda: False) == [] and processes.sent == []


def test_a_zombie_does_not_run(start: Start) -> None:
    process = start("pass", "tok-5")
    wait_until(lambda: running(process.pid), False)
    assert process.poll() == 0
    assert running(os.getpid()) and not running(2**22 - 1)
