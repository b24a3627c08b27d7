"""Writing files so that a reader sees the old content or the new one, never half of it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from trainwright.errors import UserError


def write_text(path: str | Path, text: str) -> None:
    """Write `text` (UTF-8) to a temporary file beside `path`, then rename it into place.

    A device or a pipe (/dev/null, /dev/stdout) is written to, never replaced; a link is followed.
    Raises UserError when the folder is missing, not writable, or the disk is full.
    """
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        _write_through(Path(path), text)
        return
    target = Path(os.path.realpath(path))
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with open(partial, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    except OSError as problem:
        raise UserError(f"cannot write {path}: {problem.strerror or problem}; name a writable place") from None
    finally:
        with suppress(OSError):
            partial.unlink()


def _write_through(path: Path, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.write(text)
    except OSError as problem:
        raise UserError(f"cannot write {path}: {problem.strerror or problem}; name a writable place") from None
