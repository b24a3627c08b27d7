# units.py without its comments
from __future__ import annotations

import math
import re

from trainwright.errors import UserError

_QUANTITY = re.compile(r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-zµ]*)\s*", re.ASCII)
LONGEST = 64
_BYTES = {"b": 1} | {
    f"{letter}{tail}": base**power
    for power, letter in enumerate("kmgtp", start=1)
    for tail, base in (("ib", 1024), ("b", 1000), ("", 1000))
}
_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12, "p": 10**15, "e": 10**18}


def parse_bytes(text: str) -> int:
    return round(_parse(text, _BYTES, "a memory size such as 40GiB"))


def parse_rate(text: str) -> float:
    match = re.fullmatch(r"\s*([\d.]{1,20})\s*([kKMGT]?)(i?)([bB])(?:/s|ps)\s*", text, re.ASCII) if len(text) <= LONGEST else None
    try:
        value = float(match[1]) if match else -1.0
    except ValueError:
        value = -1.0
    if not match or value < 0:
        raise UserError(f"{text[:LONGEST]!r} is not a rate such as 200Gbps or 25GB/s")
    power = " kMGT".index(match[2].replace("K", "k") or " ")
    return float(value * (1024 if match[3] else 1000) ** power / (8 if match[4] == "b" else 1))


def parse_seconds(text: str) -> float:
    return float(_parse(text, _SECONDS, "a duration such as 90s or 1.5h"))


def parse_count(text: str) -> int:
    value = _parse(text, _COUNTS, "a whole number such as 4096, 7B or 1e18")
    if value != int(value):
        raise UserError(f"{text!r} is not a whole number")
    return int(value)


def _parse(text: str, units: dict[str, int] | dict[str, float], wanted: str) -> int | float:
    match = _QUANTITY.fullmatch(text) if len(text) <= LONGEST else None
    unit = match[2].lower() if match else ""
    if match and not unit and unit not in units:
        raise UserError(f"{text!r} has no unit; give {wanted}")
    if not match or unit not in units:
        raise UserError(f"{text[:LONGEST]!r} is not {wanted}")
    number = match[1].replace("_", "")
    value = int(number) if number.lstrip("+-").isdigit() else float(number)
    if value < 0 or not math.isfinite(value * units[unit]):
        raise UserError(f"{text!r} is negative or not finite; give {wanted}")
    return value * units[unit]


def format_bytes(count: float) -> str:
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(value) < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} B" if unit == "B" else f"{value:.{2 if abs(value) < 10 else 1}f} {unit}"


def format_count(count: float) -> str:
    for size, suffix in ((1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, " k")):
        if abs(count) >= size:
            return f"{count / size:.2f}{suffix}"
    return f"{count:g}"


def format_seconds(seconds: float) -> str:
    if abs(seconds) < 1:
        return f"{seconds * 1e3:.1f} ms"
    if abs(seconds) < 600:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if abs(seconds) < 7200 else f"{seconds / 3600:.2f} h"


def signed_percent(share: float) -> str:
    text = f"{share * 100:+.2f}"
    return f"{'0.00' if float(text) == 0 else text} %"
