"""Rotary positions (RoFormer, arXiv 2104.09864) and the ways in which they are stretched over longer texts: numbers, no formula."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stretch:
    """The numbers of stretched rotary positions, as Transformers resolves them; each kind reads those that its formula has.

    original: the positions before stretching. attention: factor of cos and sin. low, high: of llama3's wave lengths. fast, slow:
    rotations that bound yarn's ramp; truncate: to whole pairs. short, long: longrope's divisors, up to `original` and beyond.
    """

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
    """Rotary positions on the first `fraction` of each head; `scaling` names a stretched variant (llama3, yarn, ...).

    stretch: its numbers; None where there is no variant, or the config does not hold them.
    """

    theta: float = 10000.0
    fraction: float = 1.0
    scaling: str = ""
    stretch: Stretch | None = None
