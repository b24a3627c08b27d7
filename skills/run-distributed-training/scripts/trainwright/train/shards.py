# train/shards.py without its comments
from __future__ import annotations

import bisect
import hashlib
import os
import re
import stat
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from trainwright.document import load_mapping
from trainwright.errors import UserError

LARGEST_TEXT = 2**30
HASHED = 2**28
MOST_FILES = 100_000
TYPES: dict[str, str] = {".bin": "<u2", ".u8": "|u1", ".u16": "<u2", ".u32": "<u4"}
MAGIC, HEADER = 20240520, 1024
SKIPPED = {
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idle_test",
    "__pycache__",
}
NUMBERED = re.compile(r"^(.*?)(\d+)-of-(\d+)(.*)$")
INDEX = "shards.json"
LONGEST_HEADER = 4096
ARRAY = re.compile(rb"\{'descr': '([<>|=][iu][1248])', 'fortran_order': (?:True|False), 'shape': \((\d{1,18}),\), \}\s*")
Tokens = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Shard:

    name: str
    tokens: Tokens
    bytes: int
    sha256: str
    hashed: str = "all"


def is_tokens(path: Path) -> bool:
    return path.suffix in TYPES or path.suffix == ".npy"


def open_path(path: str) -> list[Shard] | list[bytes]:
    place = Path(path)
    if not os.path.exists(path):
        raise UserError(f"{path[:200]}: there is no such file or folder to train on")
    files = list(found_files(place)) if place.is_dir() else [place]
    shards = [file for file in files if is_tokens(file)]
    expected = indexed(place / INDEX) if os.path.exists(place / INDEX) else {}
    if absent := [name for name in expected if not os.path.isfile(place / name)]:
        raise UserError(f"{path}: shard {absent[0][:200]} is missing, which {INDEX} names{_more(absent)}")
    if absent := gaps([file.name for file in shards or files]):
        raise UserError(f"{path}: shard {absent[0]} is missing{_more(absent)}")
    if not shards:
        return read_texts(path, [file for file in files if file.name != INDEX])
    opened = [token_shard(file) for file in shards]
    for shard in opened:
        said = expected.get(Path(shard.name).name, "")
        if said and shard.hashed == "all" and said != shard.sha256:
            raise UserError(f"{shard.name}: its sha256 {shard.sha256[:12]}... is not {said[:12]}..., which {INDEX} says")
    return opened


def _more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def found_files(folder: Path) -> Iterator[Path]:
    number = 0
    for at, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in names if not name.startswith(".")):
            number += 1
            if number > MOST_FILES:
                raise UserError(f"{folder}: holds more than {MOST_FILES:,} files; name a smaller folder or make shards")
            yield Path(at, name)


def gaps(names: list[str]) -> list[str]:
    found: dict[tuple[str, str, str, int], set[int]] = {}
    for match in filter(None, map(NUMBERED.match, names)):
        key = match[1], match[4], match[3], len(match[2])
        found.setdefault(key, set()).add(int(match[2]))
    absent = []
    for (before, after, total, digits), numbers in sorted(found.items()):
        first = 1 if 0 not in numbers and int(total) in numbers else 0
        if int(total) <= MOST_FILES:
            wanted = range(first, first + int(total))
            absent += [f"{before}{number:0{digits}d}-of-{total}{after}" for number in wanted if number not in numbers]
    return absent


def indexed(path: Path) -> dict[str, str]:
    rows = load_mapping(str(path), "json").get("shards")
    names = [row.get("name") if isinstance(row, dict) else None for row in rows] if isinstance(rows, list) else [None]
    if not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise UserError(f'{path}: "shards" has to be a list of mappings, each with the name of a file beside it')
    return {row["name"]: str(row.get("sha256") or "") for row in rows}


def regular(path: Path) -> int:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise UserError(f"{path}: is not a regular file")
        if not os.access(path, os.R_OK):
            raise UserError(f"{path}: cannot be read")
    except OSError as problem:
        raise UserError(f"{path}: cannot be read: {problem.strerror}") from None
    return found.st_size


def token_shard(path: Path) -> Shard:
    size = regular(path)
    try:
        tokens = npy(path, size) if path.suffix == ".npy" else raw(path, size)
    except (OSError, ValueError) as problem:
        raise UserError(f"{path}: is no token shard: {' '.join(str(problem).split())[:120]}") from None
    sha256, hashed = digest(path, size)
    return Shard(str(path), tokens, size, sha256, hashed)


def npy(path: Path, size: int) -> Tokens:
    with path.open("rb") as file:
        start = file.read(12)
        wide = start[6:7] != bytes([1])
        length = int.from_bytes(start[8:12] if wide else start[8:10], "little")
        offset = (12 if wide else 10) + length
        if start[:1] != bytes([0x93]) or start[1:6] != b"NUMPY" or length > LONGEST_HEADER or offset > size:
            raise ValueError("it does not start as a .npy file does")
        file.seek(offset - length)
        match = ARRAY.fullmatch(file.read(length))
    if match is None:
        raise ValueError("its array is not one axis of whole numbers")
    kind, count = np.dtype(match[1].decode()), int(match[2])
    if not 0 < count * kind.itemsize == size - offset:
        raise ValueError(f"its header says {count} tokens, which its size is not that of")
    return np.memmap(path, dtype=kind, mode="r", offset=offset)


def raw(path: Path, size: int) -> Tokens:
    kind = np.dtype(TYPES[path.suffix])
    with path.open("rb") as file:
        start = HEADER if path.suffix == ".bin" and size >= HEADER and int.from_bytes(file.read(4), "little") == MAGIC else 0
    if size <= start or (size - start) % kind.itemsize:
        raise ValueError(f"its {size - start} bytes are not a whole number of tokens of {kind.itemsize} bytes")
    return np.memmap(path, dtype=kind, mode="r", offset=start)


def digest(path: Path, size: int) -> tuple[str, str]:
    found = hashlib.sha256()
    with path.open("rb") as file:
        if size <= HASHED:
            while block := file.read(2**20):
                found.update(block)
            return found.hexdigest(), "all"
        found.update(file.read(2**20))
        file.seek(-(2**20), os.SEEK_END)
        found.update(file.read(2**20) + str(size).encode())
    return found.hexdigest(), "first MiB, last MiB, size"


def read_texts(name: str, files: list[Path], largest: int = LARGEST_TEXT) -> list[bytes]:
    total = sum(map(regular, files))
    if total > largest:
        raise UserError(f"{name}: holds {total:,} bytes of text, and at most {largest:,} are read; write token shards (.npy, .bin)")
    try:
        found = [file.read_bytes() for file in files]
    except OSError as problem:
        raise UserError(f"{name}: cannot be read: {problem.strerror}") from None
    if not any(found):
        raise UserError(f"{name}: holds no text to train on")
    return found


def first(files: list[Path], size: int) -> list[Path]:
    ends = list(accumulate(map(regular, files)))
    return files[: bisect.bisect_left(ends, size) + 1]


def text_shard(name: str, text: bytes) -> Shard:
    return Shard(name, np.frombuffer(text, dtype=np.uint8), len(text), hashlib.sha256(text).hexdigest())


def library(root: str = "") -> list[Path]:
    top = root or sysconfig.get_paths()["stdlib"]
    found = []
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(set(folders) - SKIPPED)
        found += [Path(folder, name) for name in sorted(names) if name.endswith(".py")]
    if not found:
        raise UserError(f"{top} holds no Python sources to train on; run under a Python that has its standard library as files")
    return found
