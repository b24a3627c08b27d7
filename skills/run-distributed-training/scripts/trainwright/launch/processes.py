# launch/processes.py without its comments
from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

TOKEN = "TRAINWRIGHT_RUN_TOKEN"


def alive(token: str) -> list[int]:
    try:
        ids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:
        return []
    return [pid for pid in ids if pid != os.getpid() and belongs(pid, token)]


def belongs(pid: int, token: str) -> bool:
    try:
        variables = Path("/proc", str(pid), "environ").read_bytes().split(b"\0")
        return f"{TOKEN}={token}".encode() in variables
    except OSError:
        return False


def running(pid: int) -> bool:
    try:
        return Path("/proc", str(pid), "stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        pass
    if os.path.isdir("/proc/self"):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


@dataclass(slots=True)
class Processes:

    launcher: subprocess.Popen[bytes]
    token: str
    sent: list[dict[str, int]] = field(default_factory=list)

    def signal(self, pids: Iterable[int], number: signal.Signals) -> None:
        for pid in pids:
            if pid != os.getpid() and (belongs(pid, self.token) or self._is_launcher(pid)):
                try:
                    os.kill(pid, number)
                except OSError:
                    continue
                self.sent.append({"pid": pid, "signal": int(number)})

    def _is_launcher(self, pid: int) -> bool:
        return pid == self.launcher.pid and self.launcher.poll() is None

    def dump_stacks(self, settle_s: float = 2.0) -> None:
        workers = [pid for pid in alive(self.token) if pid != self.launcher.pid]
        self.signal(workers, signal.SIGABRT)
        deadline = time.monotonic() + settle_s
        while time.monotonic() < deadline and any(belongs(pid, self.token) for pid in workers):
            time.sleep(0.05)

    def end(self, grace_s: float, hurry: Callable[[], bool]) -> list[int]:
        if ended := self.launcher.poll() is not None:
            grace_s = 1.0
        else:
            self.signal([self.launcher.pid], signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while (alive(self.token) if ended else self.launcher.poll() is None) and time.monotonic() < deadline and not hurry():
            time.sleep(0.05)
        quiet = 0
        for attempt in range(100):
            left = self._left()
            quiet = 0 if left else quiet + 1
            if quiet == 2:
                break
            self.signal(left, signal.SIGKILL)
            time.sleep(0.02 * min(attempt + 1, 5))
        return left

    def _left(self) -> list[int]:
        lives = [self.launcher.pid] if self.launcher.poll() is None else []
        return lives + [pid for pid in alive(self.token) if pid not in lives]
