"""The watchdog: a process that is deep in C still ends when told to, or when its launcher is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from trainwright.train import watchdog

# fcntl.flock keeps the main thread in a call that no Python handler interrupts for good: it is taken up again.
BLOCKED = """
import fcntl, signal, sys
from trainwright.train import watchdog
for number in watchdog.ENDING:
    signal.signal(number, signal.SIG_DFL)
if "nohup" in sys.argv:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
watchdog.start(lambda exception, message: print(exception, flush=True), interval_s=0.05)
first, second = (open(sys.argv[1], "w") for _ in range(2))
fcntl.flock(first, fcntl.LOCK_EX)
print("ready", flush=True)
fcntl.flock(second, fcntl.LOCK_EX)
"""
STARTER = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", *sys.argv[1:]])
print(child.pid, flush=True)
sys.stdin.read(1)
"""


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def blocked(*arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", BLOCKED, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda n: n.name)
def test_a_signal_ends_a_blocked_process(paths: None, tmp_path: object, number: signal.Signals) -> None:
    process = blocked(f"{tmp_path}/lock")
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 128 + number and out == f"{number.name}\n" and f"ended by {number.name}; it ends" in err


def test_a_hangup_that_is_ignored_stays_ignored(paths: None, tmp_path: object) -> None:
    process = blocked(f"{tmp_path}/lock", "nohup")
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=20)[0] == "SIGTERM\n" and process.returncode == 143


def test_it_ends_when_the_launcher_ends(
    paths: None, tmp_path: object, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher is dead and not yet waited for, a zombie: it counts as gone."""
    monkeypatch.setenv(watchdog.LAUNCHER, str(sleeper.pid))
    process = blocked(f"{tmp_path}/lock")
    assert process.poll() is None
    sleeper.kill()
    out, err = process.communicate(timeout=20)
    assert process.returncode == watchdog.GONE == 129 and out == "LauncherGone\n" and f"process {sleeper.pid}, is gone" in err


def test_it_ends_when_its_parent_ends(paths: None, tmp_path: object) -> None:
    argv = [sys.executable, "-c", STARTER, BLOCKED, f"{tmp_path}/lock"]
    starter = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert starter.stdout
    lines = {starter.stdout.readline().strip() for _ in range(2)}
    child = int((lines - {"ready"}).pop())
    assert watchdog.alive(child)
    starter.kill()
    assert starter.stdout.readline() == "LauncherGone\n"
    starter.communicate(timeout=20)


def test_the_living_and_the_dead(sleeper: subprocess.Popen[bytes]) -> None:
    assert watchdog.alive(os.getpid()) and watchdog.alive(os.getppid()) and watchdog.alive(sleeper.pid)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)  # dead, and still in the table of processes
    assert not watchdog.alive(sleeper.pid)
    sleeper.wait()
    assert not watchdog.alive(sleeper.pid)
