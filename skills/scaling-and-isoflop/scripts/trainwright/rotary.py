# rotary.py without its comments
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stretch:

    factor: float
    original: int
    attention: float = 1.0
    low: float = 1.0
    high: float = 4.0
    fast: float = 32.0
    slow: float = 1.0
    truncate: bool = True
    short: tuple[float, ...] = ()
    long: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Rotary:

    theta: float = 10000.0
    fraction: float = 1.0
    scaling: str = ""
    stretch: Stretch | None = None
