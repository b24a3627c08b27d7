"""A backend's config file, whatever its dialect, read as the strategy that the trainer runs."""

from __future__ import annotations

from trainwright.document import Document
from trainwright.emit import accelerate, deepspeed
from trainwright.emit.reading import Reading
from trainwright.model import ModelSpec


def read(document: Document, model: ModelSpec | None = None) -> Reading:
    """The Reading of an Accelerate file or a DeepSpeed JSON; raises UserError for one that the trainer cannot run."""
    return deepspeed.read(document) if deepspeed.is_deepspeed(document) else accelerate.read(document, model)
