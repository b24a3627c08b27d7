# train/stored.py without its comments
from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from trainwright.errors import UserError
from trainwright.output import write_text

SCHEMA = "trainwright/checkpoint/1"
FOLDER, STATE, MARKER = "checkpoints", "state.json", "complete.json"
_NAME = re.compile(r"step_(\d{8,12})")
_DATA = re.compile(r"__\d{1,6}_\d{1,6}\.distcp")
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
_MOST_BYTES = 2**28


@dataclass(frozen=True, slots=True)
class Stored:

    path: Path
    step: int
    world_size: int
    marker: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Shelf:

    complete: tuple[Stored, ...]
    incomplete: tuple[tuple[Path, str], ...]


def folder_of(run_dir: str | Path, step: int) -> Path:
    return Path(run_dir, FOLDER, f"step_{step:08d}")


def look(folder: str | Path) -> Shelf:
    complete: list[Stored] = []
    incomplete: list[tuple[Path, str]] = []
    for path in _steps(Path(folder)):
        try:
            complete.append(judge(path))
        except UserError as problem:
            incomplete.append((path, str(problem)))
    return Shelf(tuple(sorted(complete, key=lambda stored: stored.step)), tuple(incomplete))


def find(place: str) -> tuple[Stored, tuple[tuple[Path, str], ...]]:
    path = Path(place)
    if _NAME.fullmatch(path.name):
        return judge(path), ()
    shelf = look(path / FOLDER if (path / FOLDER).is_dir() else path)
    if shelf.complete:
        return shelf.complete[-1], shelf.incomplete
    seen = f"; {'; '.join(reason for _, reason in shelf.incomplete[:3])}" if shelf.incomplete else ""
    raise UserError(f"{place} holds no complete checkpoint to resume from{seen}; name a run folder that saved one")


def judge(path: Path) -> Stored:
    if not (path / MARKER).is_file():
        raise UserError(f"{path} is incomplete: no {MARKER}, its saving was cut short")
    marker = _mapping(path / MARKER)
    step, world, files = marker.get("step"), marker.get("world_size"), marker.get("files")
    if marker.get("schema") != SCHEMA or not isinstance(files, dict) or not all(type(n) is int and n >= 0 for n in (step, world)):
        raise UserError(f"{path / MARKER} is no marker of a checkpoint")
    if path.name != folder_of("", int(step or 0)).name:
        raise UserError(f"{path / MARKER} is that of another step, {step!r:.20}")
    for name, size in files.items():
        if not (_DATA.fullmatch(name) or name == STATE):
            raise UserError(f"{path / MARKER} names {name[:60]!r}, which is no file of a checkpoint")
        if (found := _size(path / name)) != size:
            has = "is no file of its own" if found is None else f"has {found} bytes instead of {size!r:.30}"
            raise UserError(f"{path / name} {has}: the checkpoint is damaged")
    if type(size := files.get(STATE)) is int and size > _MOST_BYTES:
        raise UserError(f"{path / STATE} is too large: not written here")
    if STATE not in files or _sha256(path / STATE) != marker.get("state_sha256"):
        raise UserError(f"{path / STATE} is not the one that was saved: the checkpoint is damaged")
    return Stored(path, int(step or 0), int(world or 0), marker)


def complete(path: Path, step: int, world_size: int, state: Mapping[str, Any]) -> None:
    write_text(path / STATE, json.dumps({"schema": SCHEMA, **state}, separators=(",", ":")) + "\n")
    _sync(path)
    files = {file.name: file.stat().st_size for file in sorted(path.iterdir()) if _DATA.fullmatch(file.name) or file.name == STATE}
    facts = {"schema": SCHEMA, "step": step, "world_size": world_size, "state_sha256": _sha256(path / STATE), "files": files}
    write_text(path / MARKER, json.dumps(facts, indent=1) + "\n")
    _sync(path)
    _sync(path.parent)


def state_of(stored: Stored) -> dict[str, Any]:
    state = _mapping(stored.path / STATE)
    kinds = {"tensors": dict, "facts": dict, "optimizer": list, "strategy": str, "per_rank": bool}
    if state.get("schema") != SCHEMA or not all(isinstance(state.get(name), kind) for name, kind in kinds.items()):
        raise UserError(f"{stored.path / STATE} is no state of a checkpoint")
    for group in state["optimizer"]:
        names = group.get("params") if isinstance(group, dict) else None
        if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise UserError(f"{stored.path / STATE}: a group of the optimizer does not name its parameters")
    return state


def prune(folder: Path, keep: int) -> list[Path]:
    old = [stored.path for stored in look(folder).complete[: -max(keep, 1)]]
    for path in old:
        remove(path)
    return old


def remove(path: Path) -> None:
    if _NAME.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
        (path / MARKER).unlink(missing_ok=True)
        shutil.rmtree(path)


def layout(metadata: Metadata) -> dict[str, Any]:
    places = {(index.fqn, tuple(index.offset or ())): info for index, info in metadata.storage_data.items()}
    rows: dict[str, Any] = {}
    for name, about in metadata.state_dict_metadata.items():
        if isinstance(about, BytesStorageMetadata):
            raise TypeError(f"{name} is no tensor")
        chunks = [_chunk(chunk, places[name, tuple(chunk.offsets)]) for chunk in about.chunks]
        rows[name] = {"dtype": str(about.properties.dtype).removeprefix("torch."), "size": list(about.size), "chunks": chunks}
    return rows


def _chunk(chunk: ChunkStorageMetadata, info: _StorageInfo) -> list[Any]:
    return [list(chunk.offsets), list(chunk.sizes), info.relative_path, info.offset, info.length]


class Reader(FileSystemReader):

    def __init__(self, stored: Stored, tensors: Mapping[str, Any]) -> None:
        super().__init__(stored.path)
        self._known = _metadata(stored, tensors)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self._known


def shapes(stored: Stored, tensors: Mapping[str, Any]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    about = _metadata(stored, tensors).state_dict_metadata
    return {name: (row.size, row.properties.dtype) for name, row in about.items() if isinstance(row, TensorStorageMetadata)}


def _metadata(stored: Stored, tensors: Mapping[str, Any]) -> Metadata:
    about: dict[str, Any] = {}
    places: dict[MetadataIndex, _StorageInfo] = {}
    files = stored.marker["files"]
    try:
        for name, row in tensors.items():
            chunks = [_Chunk(row["size"], chunk, files) for chunk in row["chunks"]]
            if sum(math.prod(chunk.sizes) for chunk in chunks) != math.prod(row["size"]):
                raise ValueError
            properties = TensorProperties(dtype=_DTYPES[row["dtype"]])
            pieces = [ChunkStorageMetadata(torch.Size(c.offsets), torch.Size(c.sizes)) for c in chunks]
            about[name] = TensorStorageMetadata(properties, torch.Size(row["size"]), pieces)
            places |= {MetadataIndex(name, c.offsets): _StorageInfo(c.file, c.first, c.length) for c in chunks}
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError):
        raise UserError(f"{stored.path / STATE}: the entry of tensor {name!r:.80} is none that a checkpoint has") from None
    return Metadata(about, storage_data=places, storage_meta=StorageMeta())


class _Chunk:

    def __init__(self, size: list[int], row: list[Any], files: Mapping[str, int]) -> None:
        self.offsets, self.sizes, self.file, self.first, self.length = row
        numbers = [*size, *self.offsets, *self.sizes, self.first, self.length]
        if not all(type(n) is int and 0 <= n < 2**53 for n in numbers) or not len(size) == len(self.offsets) == len(self.sizes):
            raise ValueError
        if any(first + part > whole for first, part, whole in zip(self.offsets, self.sizes, size, strict=True)):
            raise ValueError
        if not _DATA.fullmatch(self.file) or self.first + self.length > files[self.file]:
            raise ValueError


def _steps(folder: Path) -> Iterator[Path]:
    try:
        paths = sorted(folder.iterdir())
    except OSError:
        return
    yield from (path for path in paths if _NAME.fullmatch(path.name) and path.is_dir() and not path.is_symlink())


def _mapping(path: Path) -> dict[str, Any]:
    size = _size(path)
    if size is None or size > _MOST_BYTES:
        raise UserError(f"{path} is too large, or no file of its own: not written here")
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as problem:
        raise UserError(f"{path} cannot be read: {type(problem).__name__}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} holds no mapping")
    return value


def _size(path: Path) -> int | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _sha256(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _sync(folder: Path) -> None:
    try:
        number = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(number)
    except OSError:
        pass
    finally:
        os.close(number)
