# output.py without its comments
from __future__ import annotations

import errno
import os
import secrets
from contextlib import suppress
from pathlib import Path

from trainwright.errors import UserError


def write_text(path: str | Path, text: str, keep_mode: bool = False) -> None:
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        _write_through(Path(path), text)
        return
    partial = None
    try:
        target = Path(os.path.realpath(path))
        if not os.fspath(path) or not target.name:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        wanted = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}.partial")
        with open(wanted, "x", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            partial = wanted
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if keep_mode and target.exists():
            import shutil

            shutil.copymode(target, partial)
        os.replace(partial, target)
    except OSError as problem:
        raise UserError(f"cannot write {path}: {problem.strerror or problem}; name a writable place") from None
    finally:
        if partial:
            with suppress(OSError):
                partial.unlink()


def _write_through(path: Path, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.write(text)
    except OSError as problem:
        raise UserError(f"cannot write {path}: {problem.strerror or problem}; name a writable place") from None


def make_folder(path: str | Path) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as problem:
        raise UserError(f"cannot make {path}: {problem.strerror or problem}; name a writable place") from None
