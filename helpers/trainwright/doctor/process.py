"""A program that is asked something: it has so much time, is heard so far, and is ended with all that it started."""

from __future__ import annotations

import os
import secrets
import selectors
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from trainwright.launch.processes import TOKEN, alive
from trainwright.probe import environment

_KEPT = 2**20  # bytes of what it says that are kept, at the beginning and at the end
_QUIET = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONSAFEPATH": "1", "PYTHONIOENCODING": "utf-8", "PYTHONWARNINGS": "ignore"}


@dataclass(slots=True)
class Asked:
    """A program that was started in a session of its own, with `token` in its environment; `answer` waits for it."""

    process: subprocess.Popen[bytes]
    token: str
    finished: bool = True
    returncode: int | None = None

    def answer(self, seconds: float) -> tuple[str, str]:
        """What it wrote to stdout and stderr within `seconds`; `finished` and `returncode` then say how it ended.

        Its own end counts, not that of what it started; nothing of either is left afterwards.
        """
        pipes = [pipe for pipe in (self.process.stdout, self.process.stderr) if pipe is not None]
        try:
            out, err = self._heard(pipes, time.monotonic() + max(0.01, seconds))
        finally:
            self._end()
            for pipe in pipes:
                pipe.close()
        return out.decode("utf-8", "replace"), err.decode("utf-8", "replace")

    def _heard(self, pipes: list[IO[bytes]], deadline: float) -> list[bytearray]:
        said = [bytearray() for _ in pipes]
        with selectors.DefaultSelector() as ready:
            for pipe, text in zip(pipes, said, strict=True):
                os.set_blocking(pipe.fileno(), False)
                ready.register(pipe, selectors.EVENT_READ, text)
            while not (ended := self._ended()) and time.monotonic() < deadline:
                for key, _ in ready.select(0.02):
                    if not _read(key.fd, key.data):
                        ready.unregister(key.fileobj)
            self.finished = ended
            for key in list(ready.get_map().values()):
                while time.monotonic() < deadline and _read(key.fd, key.data):  # what was still in the pipe
                    pass
        return said

    def _ended(self) -> bool:
        """Whether it has ended by itself. It is not reaped yet where the system allows it: its id stays its own."""
        if not hasattr(os, "waitid"):
            return self.process.poll() is not None
        try:
            return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # whoever started us ignores SIGCHLD
            return True

    def _end(self) -> None:
        """End its group, and what left the group: known by the token, until two looks find none."""
        with suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for _ in range(50):
            left = [pid for pid in alive(self.token) if pid != self.process.pid]
            for pid in left:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            if not left:
                break
            time.sleep(0.01)
        with suppress(subprocess.TimeoutExpired):  # in uninterruptible sleep: the driver holds it
            self.returncode = self.process.wait(timeout=0.5)


def _read(descriptor: int, text: bytearray) -> bool:
    """Take what is there into `text`, whose middle is dropped where it grows long; False at the end and where nothing is there."""
    try:
        chunk = os.read(descriptor, 2**16)
    except OSError:
        return False
    text += chunk
    if len(text) > 4 * _KEPT:
        text[_KEPT:-_KEPT] = b"\n"
    return bool(chunk)


def ask(argv: list[str]) -> Asked:
    """Start a program; raises OSError where it cannot be started."""
    token = secrets.token_hex(16)
    with environment({**_QUIET, TOKEN: token}):
        pipe = subprocess.PIPE
        started = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True)
    return Asked(started, token)
