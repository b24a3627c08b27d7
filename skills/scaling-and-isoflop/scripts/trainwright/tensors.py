# tensors.py without its comments
from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from trainwright.document import DocumentError, parse, read_text
from trainwright.parts import Shape, count, elements
from trainwright.report import Location
from trainwright.units import format_bytes

MAX_HEADER = MAX_INDEX = 32 * 2**20
MAX_SHARDS = 10_000
MAX_VALUES = 1_000_000
BITS = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16}
BITS |= {"I32": 32, "U32": 32, "F32": 32, "F64": 64, "I64": 64, "U64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
INDEX = ".safetensors.index.json"


@dataclass(frozen=True, slots=True)
class Tensor:

    name: str
    shape: Shape
    dtype: str


@dataclass(frozen=True, slots=True)
class Tensors:

    names: tuple[str, ...]
    bytes: int | None
    tensors: tuple[Tensor, ...] | None

    @property
    def parameters(self) -> int | None:
        return None if self.tensors is None else count(tensor.shape for tensor in self.tensors)

    @property
    def layers(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for tensor in self.tensors or ():
            if match := LAYER.search(tensor.name):
                found[int(match[1])] = found.get(int(match[1]), 0) + elements(tensor.shape)
        return found

    @property
    def told(self) -> str:
        size = "" if self.bytes is None else f", {format_bytes(self.bytes)}"
        if self.parameters is None:
            return f"the index names {len(self.names)} tensors{size}, and no shapes"
        return f"the tensors ({len(self.names)}{size}) hold {self.parameters:,} numbers"


def is_tensor_file(path: str) -> bool:
    return path.endswith((".safetensors", INDEX))


def read_tensors(path: str) -> Tensors:
    if not path.endswith(INDEX):
        return of_files([path])
    document = parse(read_text(path, MAX_INDEX), path, "json", MAX_VALUES)
    places, size = document.get("weight_map"), document.get("metadata", "total_size")
    if not isinstance(places, dict) or not places or not all(isinstance(file, str) for file in places.values()):
        raise DocumentError("has no weight_map from tensors to files; this is no safetensors index", Location(path))
    files = sorted(set(places.values()))
    if any(os.path.basename(file) != file for file in files) or len(files) > MAX_SHARDS:
        raise DocumentError("names files outside its own folder", document.at("weight_map"))
    shards = [str(Path(path).parent / file) for file in files]
    if not all(map(os.path.isfile, shards)):
        return Tensors(tuple(places), size if type(size) is int and 0 < size < 2**63 else None, None)
    found = of_files(shards)
    if lacking := set(places) - set(found.names):
        raise DocumentError(f"names {sorted(lacking)[0]!r}, which is in none of its files", Location(path))
    return found


def of_files(paths: list[str]) -> Tensors:
    found = [tensor for path in paths for tensor in read_header(path)]
    size = sum(elements(tensor.shape) * BITS[tensor.dtype] // 8 for tensor in found)
    return Tensors(tuple(tensor.name for tensor in found), size, tuple(found))


def read_header(path: str) -> list[Tensor]:
    try:
        with _regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little") if size >= 8 else size
            if not 2 <= length <= min(MAX_HEADER, size - 8):
                raise DocumentError("is no safetensors file: its first 8 bytes are not the length of a header in it", Location(path))
            raw = file.read(length)
    except OSError as problem:
        raise DocumentError(f"cannot be read: {problem.strerror or problem}", Location(path)) from None
    try:
        document = parse(raw.decode("utf-8"), path, "json", MAX_VALUES)
    except UnicodeDecodeError:
        raise DocumentError("is no safetensors file: its header is not UTF-8", Location(path)) from None
    if not isinstance(document.value, dict):
        raise DocumentError("is no safetensors file: its header is not a mapping", Location(path))
    return [_tensor(path, name, entry, size - 8 - length) for name, entry in document.value.items() if name != "__metadata__"]


def _regular(path: str) -> BinaryIO:
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("it is not a regular file")
    return open(descriptor, "rb")


def _tensor(path: str, name: str, entry: Any, data: int) -> Tensor:
    said: dict[str, Any] = entry if isinstance(entry, dict) else {}
    kind, shape, offsets = said.get("dtype"), _whole(said.get("shape")), _whole(said.get("data_offsets"))
    if not isinstance(kind, str) or kind not in BITS or shape is None or offsets is None or not _fits(shape, BITS[kind], offsets, data):
        raise DocumentError(f"is no safetensors file: the entry of {name[:80]!r} does not fit its data", Location(path))
    return Tensor(name, shape, kind)


def _fits(shape: Shape, bits: int, offsets: Shape, data: int) -> bool:
    return len(offsets) == 2 and offsets[0] <= offsets[1] <= data and (offsets[1] - offsets[0]) * 8 == elements(shape) * bits


def _whole(values: Any) -> Shape | None:
    right = isinstance(values, list) and len(values) <= 16 and all(type(value) is int and 0 <= value < 2**63 for value in values)
    return tuple(values) if right else None
