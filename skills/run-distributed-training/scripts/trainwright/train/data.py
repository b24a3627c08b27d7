"""Training data every Python has: the sources of its own standard library, one byte a token."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainwright.errors import UserError

LARGEST = 4 * 1024 * 1024  # bytes: plenty for the runs made here, read in a moment
SKIPPED = {"site-packages", "dist-packages", "test", "tests", "__pycache__"}  # not the same on every machine, or not prose-like


@dataclass(frozen=True, slots=True)
class Corpus:
    """The bytes that every rank reads its windows from."""

    text: bytes
    files: int

    def window(self, index: int, seq_len: int) -> bytes:
        """The `index`-th window of seq_len + 1 bytes; neighbours share one byte, and after the last comes the first again."""
        windows = (len(self.text) - 1) // seq_len
        if windows < 1:
            raise UserError(f"seq_len {seq_len} is longer than the {len(self.text):,} bytes of training text; take a shorter one")
        start = index % windows * seq_len
        return self.text[start : start + seq_len + 1]

    def to_json(self, vocab_size: int) -> dict[str, Any]:
        folded = f"byte modulo {vocab_size}" if vocab_size < 256 else "byte"
        return {"files": self.files, "bytes": len(self.text), "sha256": hashlib.sha256(self.text).hexdigest(), "token": folded}


def load(folder: str | None = None, largest: int = LARGEST) -> Corpus:
    """The Python sources below `folder` (default: the standard library) in sorted order, cut at `largest` bytes.

    Raises UserError when there are none.
    """
    root = folder or sysconfig.get_paths()["stdlib"]
    parts: list[bytes] = []
    missing = largest
    for path in _sources(root):
        parts.append(path.read_bytes()[:missing])
        missing -= len(parts[-1])
        if missing <= 0:
            break
    if not any(parts):
        raise UserError(f"{root} holds no Python sources to train on; run under a Python that has its standard library as files")
    return Corpus(b"".join(parts), len(parts))


def _sources(root: str) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(set(folders) - SKIPPED)
        yield from (Path(folder, name) for name in sorted(names) if name.endswith(".py"))


def batch(corpus: Corpus, first: int, micro_batch: int, seq_len: int, vocab_size: int) -> tuple[Tensor, Tensor]:
    """Token ids and labels, int64 [b, t], of the windows `first` ... `first + micro_batch - 1`."""
    rows = b"".join(corpus.window(first + row, seq_len) for row in range(micro_batch))
    tokens = torch.frombuffer(bytearray(rows), dtype=torch.uint8).long().view(micro_batch, seq_len + 1)
    tokens = tokens % vocab_size if vocab_size < 256 else tokens
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
