# train/watchdog.py without its comments
from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

LAUNCHER = "TRAINWRIGHT_LAUNCHER_PID"
GONE = 128 + signal.SIGHUP
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LEAVING = threading.Lock()

Words = Callable[[str, str], None]


@dataclass(slots=True)
class _State:
    words: Words = lambda exception, message: None
    grace_s: float = 0.0
    asked: int = 0


_STATE = _State()


def start(last_words: Words | None = None, interval_s: float = 0.5) -> None:
    _STATE.words = last_words or _STATE.words
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _noted)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reader, (launcher(), os.getppid()), interval_s), name="watchdog", daemon=True).start()


def launcher() -> int | None:
    number = os.environ.get(LAUNCHER, "")
    return int(number) if number.isdecimal() else None


def tell(last_words: Words) -> None:
    _STATE.words = last_words


def hold(grace_s: float) -> None:
    _STATE.grace_s = grace_s


def asked() -> int:
    return _STATE.asked


def _noted(number: int, frame: object) -> None:
    """Nothing: the thread acts. Without a handler of Python's the pipe would stay silent."""


def _watch(reader: int, watched: tuple[int | None, int], interval_s: float) -> None:
    deadline = float("inf")
    while not (gone := _gone(*watched)) and time.monotonic() < deadline:
        ready, _, _ = select.select([reader], [], [], interval_s)
        number = os.read(reader, 1)[0] if ready else 0
        if number in ENDING and not _STATE.asked:
            _STATE.asked = number
            deadline = time.monotonic() + _STATE.grace_s
    if gone:
        _leave("LauncherGone", gone, GONE)
    name = signal.Signals(_STATE.asked).name
    late = f"; the step did not end within {_STATE.grace_s:g} s, nothing of it is saved" if _STATE.grace_s else ""
    _leave(name, f"ended by {name}{late}", 128 + _STATE.asked)


def _gone(launcher: int | None, parent: int) -> str:
    if os.getppid() != parent:
        return f"the parent process {parent} is gone"
    if launcher is not None and not alive(launcher):
        return f"the launcher, process {launcher}, is gone"
    return ""


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        return Path("/proc", str(pid), "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0] not in ("Z", "X")
    except (OSError, IndexError):
        return os.name == "posix" and not os.path.isdir("/proc/self")


def _leave(exception: str, message: str, code: int) -> None:
    LEAVING.acquire(timeout=5)
    try:
        os.write(2, f"trainwright worker {os.getpid()}: {message}; it ends\n".encode())
        _STATE.words(exception, message)
    finally:
        os._exit(code)
