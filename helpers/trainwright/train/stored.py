"""Checkpoints as they lie on the disk: RUN/checkpoints/step_00000012/, complete once its marker is there.

    __0_0.distcp ...   tensors, by torch.distributed.checkpoint (and its .metadata, for other tools)
    state.json         everything else: step, options of the optimizer, data position, and where each tensor lies
    complete.json      the marker, written last: step, world size, sha256 of state.json, size of every other file

Files are untrusted. `.metadata` is a pickle and is never opened here: what it says stands in state.json too, as plain
numbers that are checked. Tensors are read with weights_only.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
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
_MOST_BYTES = 2**28  # of state.json: millions of chunks


@dataclass(frozen=True, slots=True)
class Stored:
    """A complete checkpoint."""

    path: Path
    step: int
    world_size: int
    marker: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Shelf:
    """What a folder of checkpoints holds: complete ones, oldest first, and (path, reason) of those that are not."""

    complete: tuple[Stored, ...]
    incomplete: tuple[tuple[Path, str], ...]


def folder_of(run_dir: str | Path, step: int) -> Path:
    return Path(run_dir, FOLDER, f"step_{step:08d}")


def look(folder: str | Path) -> Shelf:
    """Every checkpoint in `folder` (RUN/checkpoints); links and other names are not looked at."""
    complete: list[Stored] = []
    incomplete: list[tuple[Path, str]] = []
    for path in _steps(Path(folder)):
        try:
            complete.append(judge(path))
        except UserError as problem:
            incomplete.append((path, str(problem)))
    return Shelf(tuple(sorted(complete, key=lambda stored: stored.step)), tuple(incomplete))


def find(place: str) -> tuple[Stored, tuple[tuple[Path, str], ...]]:
    """The newest complete checkpoint of `place` (a run folder, its checkpoints, or one checkpoint), and what was passed over.

    Raises UserError where there is none.
    """
    path = Path(place)
    if _NAME.fullmatch(path.name):
        return judge(path), ()
    shelf = look(path / FOLDER if (path / FOLDER).is_dir() else path)
    if shelf.complete:
        return shelf.complete[-1], shelf.incomplete
    seen = f"; {'; '.join(reason for _, reason in shelf.incomplete[:3])}" if shelf.incomplete else ""
    raise UserError(f"{place} holds no complete checkpoint to resume from{seen}; name a run folder that saved one")


def judge(path: Path) -> Stored:
    """The checkpoint in `path`; raises UserError with the reason why it is none that is complete."""
    if not (path / MARKER).is_file():
        raise UserError(f"{path} is incomplete: no {MARKER}, its saving was cut short")
    marker = _mapping(path / MARKER)
    step, world, files = marker.get("step"), marker.get("world_size"), marker.get("files")
    if marker.get("schema") != SCHEMA or not isinstance(files, dict) or not all(type(n) is int and n >= 0 for n in (step, world)):
        raise UserError(f"{path / MARKER} is no marker of a checkpoint")
    for name, size in files.items():
        if not (_DATA.fullmatch(name) or name == STATE) or (path / name).is_symlink():
            raise UserError(f"{path / MARKER} names {name[:60]!r}, which is no file of a checkpoint")
        if _size(path / name) != size:
            raise UserError(f"{path / name} has {_size(path / name)} bytes instead of {size!r:.30}: the checkpoint is damaged")
    if STATE not in files or _sha256(path / STATE) != marker.get("state_sha256"):
        raise UserError(f"{path / STATE} is not the one that was saved: the checkpoint is damaged")
    return Stored(path, int(step or 0), int(world or 0), marker)


def complete(path: Path, step: int, world_size: int, state: Mapping[str, Any]) -> None:
    """Write state.json, then the marker, each whole and on the disk before the next; raises UserError."""
    write_text(path / STATE, json.dumps({"schema": SCHEMA, **state}, separators=(",", ":")) + "\n")
    _sync(path)
    files = {file.name: file.stat().st_size for file in sorted(path.iterdir()) if _DATA.fullmatch(file.name) or file.name == STATE}
    facts = {"schema": SCHEMA, "step": step, "world_size": world_size, "state_sha256": _sha256(path / STATE), "files": files}
    write_text(path / MARKER, json.dumps(facts, indent=1) + "\n")
    _sync(path)
    _sync(path.parent)


def state_of(stored: Stored) -> dict[str, Any]:
    """The state.json of a checkpoint; raises UserError where it is none."""
    state = _mapping(stored.path / STATE)
    kinds = {"tensors": dict, "facts": dict, "optimizer": list, "strategy": str, "per_rank": bool}
    if state.get("schema") != SCHEMA or not all(isinstance(state.get(name), kind) for name, kind in kinds.items()):
        raise UserError(f"{stored.path / STATE} is no state of a checkpoint")
    return state


def prune(folder: Path, keep: int) -> list[Path]:
    """Remove all but the newest `keep` complete checkpoints (never the last one); the paths that went.

    The marker goes first: what is half removed is not complete.
    """
    old = [stored.path for stored in look(folder).complete[: -max(keep, 1)]]
    for path in old:
        remove(path)
    return old


def remove(path: Path) -> None:
    """Remove one checkpoint of ours, complete or not; a link or another name stays. Raises OSError."""
    if _NAME.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
        (path / MARKER).unlink(missing_ok=True)
        shutil.rmtree(path)


def layout(metadata: Metadata) -> dict[str, Any]:
    """Where each tensor lies, from what torch wrote: {name: {dtype, size, chunks: [[offsets, sizes, file, first byte, bytes]]}}."""
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
    """torch's reader, which takes the places of tensors from state.json in place of the pickled `.metadata`."""

    def __init__(self, stored: Stored, tensors: Mapping[str, Any]) -> None:
        super().__init__(stored.path)
        self._known = _metadata(stored, tensors)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self._known


def shapes(stored: Stored, tensors: Mapping[str, Any]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """{name: (shape, dtype)} of every tensor in the checkpoint; raises UserError where the layout is damaged."""
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
    """One row of a tensor's chunks, checked: inside the tensor, and inside a data file of this checkpoint; raises ValueError."""

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
    """A JSON mapping of ours; raises UserError."""
    if (_size(path) or 0) > _MOST_BYTES or path.is_symlink():
        raise UserError(f"{path} is too large, or a link: not written here")
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as problem:
        raise UserError(f"{path} cannot be read: {type(problem).__name__}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} holds no mapping")
    return value


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _sha256(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _sync(folder: Path) -> None:
    """Have the folder's own entries on the disk; systems that cannot open a folder have no such thing."""
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
