"""What a runtime calls a device ("NVIDIA H100 80GB HBM3") to its entry in hardware.yaml: whole names, never parts of names."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from trainwright.hardware import Accelerator, bundled

_MAKERS = re.compile(r"\b(nvidia|amd|intel|instinct|habana|google|cloud|corporation|advanced micro devices)\b|\((?:r|tm|c)\)")
_SLICE = re.compile(r"\bmig\b")
# How far a device's memory may lie from its entry's: runtimes keep some for themselves, and GB is read as 10^9 or 2^30.
_NEAR = 0.13


@dataclass(frozen=True, slots=True)
class Match:
    """The entry that a device's name stands for; None with a `reason`, and the entries with the `near`est names."""

    accelerator: Accelerator | None
    reason: str = ""
    near: tuple[str, ...] = ()


def plain_name(name: str) -> str:
    """ "NVIDIA A100-SXM4-80GB" -> "a100 sxm4 80gb": lower case, no makers and marks, words apart by one blank."""
    words = _MAKERS.sub(" ", name.lower()).replace("/", " / ")
    return " ".join(re.split(r"[\s_-]+", words.strip()))


def match_device_name(name: str, memory_bytes: int | None = None) -> Match:
    """The entry that a device which calls itself `name` is, and, where several are called so, whose memory is `memory_bytes`.

    A name matches as a whole: H20 is no H200, B300 no GB300, and a MIG slice is not the device it is cut from.
    """
    wanted, entries = plain_name(name), bundled().accelerators
    if _SLICE.search(wanted):
        return Match(None, f"{name[:80]!r} is a slice (MIG) of a device, whose figures are not the whole device's")
    called = [entry for entry in entries.values() if wanted in entry.names]
    if len(called) > 1:
        called = [entry for entry in called if memory_bytes is not None and _fits(entry, memory_bytes)]
    if len(called) == 1:
        return _weighed(called[0], name, memory_bytes)
    names = {word: entry.name for entry in entries.values() for word in entry.names}
    near = tuple(dict.fromkeys(names[word] for word in difflib.get_close_matches(wanted, names, n=3, cutoff=0.6)))
    if any(wanted in entry.names for entry in entries.values()):
        several = tuple(entry.name for entry in entries.values() if wanted in entry.names)
        return Match(None, f"{name[:80]!r} may be {' or '.join(several)}: its memory tells, and it is not known here", several)
    return Match(None, f"no entry is called {name[:80]!r}; its peak and memory are unknown here", near)


def _weighed(entry: Accelerator, name: str, memory_bytes: int | None) -> Match:
    if memory_bytes is None or entry.memory_bytes is None or _fits(entry, memory_bytes):
        return Match(entry)
    said = f"{name[:80]!r} is called as {entry.name} is, but has {memory_bytes / 1e9:.0f} GB and not {entry.memory_bytes / 1e9:.0f}"
    return Match(None, said, (entry.name,))


def _fits(entry: Accelerator, memory_bytes: int) -> bool:
    return entry.memory_bytes is not None and abs(memory_bytes - entry.memory_bytes) <= _NEAR * entry.memory_bytes
