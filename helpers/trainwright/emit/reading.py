"""What a backend's config file asks of the reference trainer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainwright.strategy import Strategy


@dataclass(frozen=True, slots=True)
class KeyUse:
    """One key of a file and what becomes of it: what it does, or why it does nothing."""

    key: str
    value: Any
    meaning: str


@dataclass(frozen=True, slots=True)
class Reading:
    """What the reference trainer makes of a config file; each key is in exactly one of `applied` and `not_applied`.

    `job`: fields of a Job that the file settles itself (a DeepSpeed JSON names batch, clipping and learning rate), by the
    Job's names; a job has to agree with them.
    """

    strategy: Strategy
    num_processes: int | None
    applied: tuple[KeyUse, ...]
    not_applied: tuple[KeyUse, ...]
    job: Mapping[str, Any] = field(default_factory=dict)
