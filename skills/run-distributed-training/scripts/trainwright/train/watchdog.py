"""A thread that ends the worker when it is told to, or when whoever started it is gone.

The main thread may be deep in a collective that never returns, where no Python signal handler runs. The C part of a
handler always does: it writes the signal's number into a pipe, and this thread reads it.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable
from pathlib import Path

LAUNCHER = "TRAINWRIGHT_LAUNCHER_PID"
GONE = 128 + signal.SIGHUP  # the exit code when the launcher is gone
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LEAVING = threading.Lock()  # whoever holds it says the last words; a failed main thread takes it and keeps it


def start(last_words: Callable[[str, str], None], interval_s: float = 1.0) -> None:
    """Watch from now on; call in the main thread.

    `last_words(exception, message)` runs before the exit: "SIGTERM" and 143, or "LauncherGone" and 129.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup stays nohup
            signal.signal(number, _noted)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    launcher = os.environ.get(LAUNCHER, "")
    watched = (int(launcher) if launcher.isdecimal() else None, os.getppid())
    threading.Thread(target=_watch, args=(reader, watched, last_words, interval_s), name="watchdog", daemon=True).start()


def _noted(number: int, frame: object) -> None:
    """Nothing: the thread acts. Without a handler of Python's the pipe would stay silent."""


def _watch(reader: int, watched: tuple[int | None, int], last_words: Callable[[str, str], None], interval_s: float) -> None:
    gone = ""
    while not gone:
        ready, _, _ = select.select([reader], [], [], interval_s)
        number = os.read(reader, 1)[0] if ready else 0
        if number in ENDING:
            _leave(signal.Signals(number).name, f"ended by {signal.Signals(number).name}", 128 + number, last_words)
        gone = _gone(*watched)
    _leave("LauncherGone", gone, GONE, last_words)


def _gone(launcher: int | None, parent: int) -> str:
    """What is gone of those that started this process, "" while all live."""
    if os.getppid() != parent:
        return f"the parent process {parent} is gone"
    if launcher is not None and not alive(launcher):
        return f"the launcher, process {launcher}, is gone"
    return ""


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and only waits for its parent to notice (a zombie) does not."""
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


def _leave(exception: str, message: str, code: int, last_words: Callable[[str, str], None]) -> None:
    LEAVING.acquire(timeout=5)
    try:
        os.write(2, f"trainwright worker {os.getpid()}: {message}; it ends\n".encode())
        last_words(exception, message)
    finally:
        os._exit(code)
