# emit/backend.py without its comments
from __future__ import annotations

from trainwright.document import Document
from trainwright.emit import accelerate, deepspeed
from trainwright.emit.reading import Reading
from trainwright.model import ModelSpec


def read(document: Document, model: ModelSpec | None = None) -> Reading:
    return deepspeed.read(document) if deepspeed.is_deepspeed(document) else accelerate.read(document, model)
