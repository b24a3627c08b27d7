"""What the rules of `check` judge: a parsed document, recognised by its keys, and the facts that are known beside it."""

from __future__ import annotations

from dataclasses import dataclass

from trainwright.document import Document, DocumentError
from trainwright.emit.accelerate_file import AccelerateFile, accelerate_file, table
from trainwright.model import ModelSpec

DEVICES = ("cpu", "cuda", "xpu")
_DEEPSPEED_KEYS = ("zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu")


@dataclass(frozen=True, slots=True)
class Context:
    """Facts that no config file holds; None is unknown, and what needs it is then not judged."""

    world_size: int | None = None
    model: ModelSpec | None = None
    device: str | None = None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file that could not be read as YAML, JSON or TOML with a mapping on top."""

    problem: DocumentError


@dataclass(frozen=True, slots=True)
class AccelerateConfig:
    """A config file for `accelerate launch` on this machine or cluster, and its context."""

    file: AccelerateFile
    context: Context

    @property
    def document(self) -> Document:
        return self.file.document


def dialect_of(document: Document) -> str:
    """Whose config a mapping is, from its keys alone: "accelerate", "sagemaker", "deepspeed", "model" or "unknown"."""
    keys = set(document.value)
    if "distributed_type" in keys or "compute_environment" in keys:
        return "sagemaker" if document.get("compute_environment") == "AMAZON_SAGEMAKER" else "accelerate"
    if "model_type" in keys or "architectures" in keys:
        return "model"
    if document.dialect == "json" and keys & {*_DEEPSPEED_KEYS}:
        return "deepspeed"
    # Other tools borrow a key or two of Accelerate's: only a file that is mostly made of them is one that lost its type.
    known = keys & {*table()["cluster"]}
    return "accelerate" if len(known) >= 2 and len(known) > len(keys) / 2 else "unknown"


def accelerate_config(document: Document, context: Context) -> AccelerateConfig:
    return AccelerateConfig(accelerate_file(document), context)
