"""How another command of this bundle is typed, by somebody who typed the one that runs."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path


def command_line(name: str, *arguments: str) -> str:
    """The script beside the one that runs, under the same Python; `trainwright NAME` where none is there, or none runs."""
    return shlex.join([*_words(name), *arguments])


def _words(name: str) -> list[str]:
    started = Path(sys.argv[0] or "-")
    neighbour = started.parent / f"{name}.py"
    if started.suffix == ".py" and started.absolute().parent.name == "scripts" and neighbour.is_file():
        return [sys.executable or "python3", str(neighbour)]
    return ["trainwright", name]
