# isoflop/events.py without its comments
from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import xor
from typing import BinaryIO

from trainwright.errors import UserError

LONGEST = 1 << 20
_MOST = 10_000_000
_POLYNOMIAL = 0x82F63B78
_FLOAT, _DOUBLE = 1, 2


def _table() -> list[int]:
    rows = []
    for value in range(256):
        for _ in range(8):
            value = xor(value >> 1, _POLYNOMIAL) if value & 1 else value >> 1
        rows.append(value)
    return rows


_CRC = _table()


def crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value = xor(_CRC[xor(value, byte) & 0xFF], value >> 8)
    return int(xor(value, 0xFFFFFFFF))


def masked(data: bytes) -> int:
    value = crc32c(data)
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


@dataclass(slots=True)
class Scalars:

    values: dict[str, dict[int, float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_events(path: str) -> Scalars:
    found = Scalars()
    count = 0
    try:
        with open(path, "rb") as file:
            for record in _records(file, found, path):
                for step, tag, value in _scalars(record):
                    found.values.setdefault(tag, {})[step] = value
                    count += 1
                if count > _MOST:
                    found.notes.append(f"holds more than {_MOST} scalars; the rest was not read")
                    break
    except OSError as problem:
        raise UserError(f"cannot read {path}: {problem.strerror or problem}") from None
    return found


def _records(file: BinaryIO, found: Scalars, path: str) -> Iterator[bytes]:
    first = True
    while head := file.read(12):
        if len(head) < 12 or struct.unpack("<I", head[8:])[0] != masked(head[:8]):
            if first:
                raise UserError(f"{path}: is no TensorBoard event file: its first record has a wrong checksum")
            found.notes.append(
                "ends in half a record" if len(head) < 12 else "has a record with a wrong checksum; what follows was not read"
            )
            return
        first = False
        length = struct.unpack("<Q", head[:8])[0]
        if length > LONGEST:
            here = file.tell()
            file.seek(0, 2)
            if here + length + 4 > file.tell():
                found.notes.append("ends in half a record")
                return
            file.seek(here + length + 4)
            continue
        data = file.read(length + 4)
        if len(data) < length + 4:
            found.notes.append("ends in half a record")
            return
        if struct.unpack("<I", data[length:])[0] != masked(data[:length]):
            found.notes.append("has a record with a wrong checksum; what follows was not read")
            return
        yield data[:length]


def _fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, wire, value
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            if at + size > end:
                return
            yield number, wire, data[at : at + size]
            at += size
        elif wire == 2:
            size, at = _varint(data, at)
            if at + size > end:
                return
            yield number, wire, data[at : at + size]
            at += size
        else:
            return


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    return value, at


def _scalars(record: bytes) -> Iterator[tuple[int, str, float]]:
    step, summaries = 0, []
    for number, wire, value in _fields(record):
        if number == 2 and isinstance(value, int):
            step = value - (1 << 64) if value >= 1 << 63 else value
        elif number == 5 and wire == 2 and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for number, _, entry in _fields(summary):
            if number == 1 and isinstance(entry, bytes):
                yield from ((step, tag, scalar) for tag, scalar in _value(entry))


def _value(entry: bytes) -> Iterator[tuple[str, float]]:
    tag, scalar = "", None
    for number, wire, value in _fields(entry):
        if not isinstance(value, bytes):
            continue
        if number == 1 and wire == 2:
            tag = value[:300].decode("utf-8", "replace")
        elif number == 2 and wire == 5:
            scalar = struct.unpack("<f", value)[0]
        elif number == 8 and wire == 2:
            scalar = _tensor(value)
    if tag and scalar is not None:
        yield tag, scalar


def _tensor(data: bytes) -> float | None:
    kind, content = 0, b""
    for number, _, value in _fields(data):
        if number == 1 and isinstance(value, int):
            kind = value
        elif number in (4, 5, 6) and isinstance(value, bytes):
            content = value
    if kind == _FLOAT and len(content) == 4:
        return float(struct.unpack("<f", content)[0])
    if kind == _DOUBLE and len(content) == 8:
        return float(struct.unpack("<d", content)[0])
    return None
