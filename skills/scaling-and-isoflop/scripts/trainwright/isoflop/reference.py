# isoflop/reference.py without its comments
from __future__ import annotations

from trainwright import probe
from trainwright.errors import Exit, UserError

RUN_SKILL = "run-distributed-training"


class NoReferenceError(UserError):

    exit = Exit.MISSING


def has_reference() -> bool:
    return probe.importable("trainwright.isoflop.by_reference")


def need_reference(action: str, other: str) -> None:
    if not has_reference():
        where = f"the skill {RUN_SKILL} and the repository (clone it, and there pip install '.[run]') hold it"
        raise NoReferenceError(f"isoflop {action}: the reference trainer is not in this copy; {where}; {other}")
