# interpreters.py without its comments
from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

LIBRARIES = ("lib/python3.*/site-packages", "lib64/python3.*/site-packages", "lib/python3*/dist-packages")
_SHEBANGS = (
    re.compile(r"\A#!\s*(/\S*/python[\d.]*)\s*\n"),
    re.compile(r'^\'\'\'exec\' "?(/[^"\n]*?/python[\d.]*)"? ', re.MULTILINE),
)
_FOLDER = re.compile(r"python3(?:\.(\d+))?")


def same_command(module: str) -> str | None:
    script = Path(sys.argv[0])
    python = with_package(module)
    if python is None or not script.is_file() or script.resolve().is_relative_to(Path(__file__).resolve().parent):
        return None
    return shlex.join([python, *sys.argv])


def with_package(module: str) -> str | None:
    return next((python for python in _candidates() if python != sys.executable and _has(python, module)), None)


def _candidates() -> Iterator[str]:
    for environment in (os.environ.get("VIRTUAL_ENV"), os.path.abspath(".venv")):
        if environment:
            yield os.path.join(environment, "bin", "python")
    for name in ("accelerate", "torchrun"):
        if script := shutil.which(name):
            yield from _shebang(script)


def _shebang(script: str) -> Iterator[str]:
    try:
        with open(script, "rb") as file:
            head = file.read(1024).decode("utf-8", "replace")
    except OSError:
        return
    for form in _SHEBANGS:
        if found := form.search(head):
            yield found[1]


def _has(python: str, module: str) -> bool:
    if not os.access(python, os.X_OK):
        return False
    prefix = Path(python).parent.parent
    return any((folder / module).is_dir() and _new_enough(folder) for pattern in LIBRARIES for folder in prefix.glob(pattern))


def _new_enough(folder: Path) -> bool:
    found = _FOLDER.fullmatch(folder.parent.name)
    return found is not None and (found[1] is None or int(found[1]) >= 10)
