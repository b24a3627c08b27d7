"""Whether this copy of the library holds the reference trainer: a skill's copy of isoflop does not, for its size."""

from __future__ import annotations

from trainwright import probe
from trainwright.errors import Exit, UserError

RUN_SKILL = "run-distributed-training"


class NoReferenceError(UserError):
    """The trainer or the launcher is not in this copy."""

    exit = Exit.MISSING


def has_reference() -> bool:
    return probe.importable("trainwright.isoflop.by_reference")


def need_reference(action: str, other: str) -> None:
    """Raises NoReferenceError, one line, where this copy cannot train by itself."""
    if not has_reference():
        where = f"the skill {RUN_SKILL} and the repository (clone it, and there pip install '.[run]') hold it"
        raise NoReferenceError(f"isoflop {action}: the reference trainer is not in this copy; {where}; {other}")
