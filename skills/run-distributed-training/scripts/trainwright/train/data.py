# train/data.py without its comments
from __future__ import annotations

import bisect
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from trainwright.errors import UserError
from trainwright.model import ModelSpec
from trainwright.train import shards, signals
from trainwright.train.shards import Shard, Tokens
from trainwright.train.signals import SignalShard

WALK_BYTES = 4 * 1024 * 1024
TRAIN_SHARE = 0.94
COMMON = 50


class Batch(NamedTuple):

    ids: Tensor
    labels: Tensor
    signals: tuple[Tensor, ...] = ()
    tokens: int = 0

    @property
    def samples(self) -> int:
        return self.ids.shape[0]

    def to(self, device: torch.device) -> Batch:
        moved = tuple(signal.to(device) for signal in self.signals)
        return Batch(self.ids.to(device), self.labels.to(device), moved, self.tokens)


@dataclass(frozen=True, slots=True)
class Settings:

    path: str = ""
    tokens: Literal["bytes", "counted", "ids"] = "bytes"
    order: Literal["walk", "study"] = "walk"
    seed: int = 0
    eval_windows: int = 0
    single_pass: bool = False
    modality: str = "text"
    shards: int = 2


class TextData:

    def __init__(self, settings: Settings, seq_len: int, vocab_size: int, corpus: Corpus) -> None:
        self.settings, self.seq_len, self.vocab_size, self.corpus = settings, seq_len, vocab_size, corpus
        counts = [(len(tokens) - 1) // seq_len for tokens in corpus.train]
        self.ends = list(accumulate(counts))
        self.windows = self.ends[-1]
        if self.windows < 1:
            longest = max(len(tokens) for tokens in corpus.train)
            raise UserError(f"seq_len {seq_len} is longer than the {longest:,} tokens of training text; take a shorter one")
        shuffle = torch.Generator().manual_seed(settings.seed)
        self.places = torch.randperm(self.windows, generator=shuffle) if settings.order == "study" else None
        self.reads: Counter[int] = Counter()

    @property
    def samples(self) -> int:
        return self.windows

    @property
    def positions(self) -> int:
        return self.seq_len

    def targets(self, first: int, count: int) -> int:
        return count * self.seq_len

    def batch(self, first: int, count: int) -> Batch:
        rows = [self._window(number) for number in numbers(first, count, self.windows, self.settings.single_pass)]
        return self._batch(rows)

    def _window(self, number: int) -> Tokens:
        place = number if self.places is None else int(self.places[number])
        shard = bisect.bisect_right(self.ends, place)
        start = (place - (self.ends[shard - 1] if shard else 0)) * self.seq_len
        self.reads[shard] += 1
        return self.corpus.train[shard][start : start + self.seq_len + 1]

    def _batch(self, rows: Sequence[Tokens]) -> Batch:
        if not rows:
            empty = torch.empty(0, self.seq_len, dtype=torch.int64)
            return Batch(empty, empty)
        tokens = torch.from_numpy(self.corpus.ids(np.stack(rows)).astype(np.int64))
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= self.vocab_size:
            raise UserError(f"{self.corpus.name}: holds token {low if low < 0 else high}, and the model's vocabulary is {self.vocab_size}")
        return Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), (), len(rows) * self.seq_len)

    def eval_batches(self, size: int = 32) -> Iterator[Batch]:
        texts = [text for text in self.corpus.held if len(text) > self.seq_len]
        if self.settings.eval_windows and not texts:
            raise UserError(f"seq_len {self.seq_len} is longer than the text kept for evaluation; take a shorter one or more text")
        draw, rows = Random(0), []
        for _ in range(self.settings.eval_windows):
            text = draw.choices(texts, [len(text) - self.seq_len for text in texts])[0] if len(texts) > 1 else texts[0]
            start = draw.randrange(len(text) - self.seq_len)
            rows.append(text[start : start + self.seq_len + 1])
        for at in range(0, len(rows), size):
            yield self._batch(rows[at : at + size])

    def to_json(self) -> dict[str, Any]:
        found, known = self.corpus, self.corpus.shards
        read = [{**identity(known[at if len(known) > 1 else 0]), "samples": samples} for at, samples in sorted(self.reads.items())]
        said = {"kind": "text", "modality": "text", "order": self.settings.order, "files": found.files, "token": found.token}
        sizes = {"bytes": sum(shard.bytes for shard in known), "sha256": found.sha256, "vocabulary": found.vocabulary}
        return {**said, **sizes, "shards": len(known), "samples": self.windows, "read": read}


class SignalData:

    def __init__(self, settings: Settings, seq_len: int) -> None:
        self.settings, self.seq_len = settings, seq_len
        self.made: dict[int, SignalShard] = {}
        self.reads: Counter[int] = Counter()
        self._shard(0)

    @property
    def samples(self) -> int:
        return self.settings.shards * signals.SAMPLES

    @property
    def positions(self) -> int:
        return signals.POSITIONS[self.settings.modality] + self.seq_len

    def targets(self, first: int, count: int) -> int:
        return sum(self._shard(shard).targets[row] for shard, row in self._places(first, count))

    def batch(self, first: int, count: int) -> Batch:
        places = self._places(first, count)
        self.reads.update(shard for shard, _ in places)
        return self._gather(places)

    def _places(self, first: int, count: int) -> list[tuple[int, int]]:
        return [divmod(number, signals.SAMPLES) for number in numbers(first, count, self.samples, self.settings.single_pass)]

    def _gather(self, places: list[tuple[int, int]]) -> Batch:
        if not places:
            like = self._shard(0)
            return Batch(like.ids[:0], like.labels[:0], tuple(signal[:0] for signal in like.signals))
        found = [(self._shard(shard), row) for shard, row in places]
        ids, labels = (torch.stack([getattr(shard, name)[row] for shard, row in found]) for name in ("ids", "labels"))
        parts = tuple(torch.stack([shard.signals[at][row] for shard, row in found]) for at in range(len(found[0][0].signals)))
        return Batch(ids, labels, parts, sum(shard.targets[row] for shard, row in found))

    def _shard(self, number: int) -> SignalShard:
        if number not in self.made:
            seed = self.settings.seed if number >= 0 else -1
            self.made[number] = signals.make_shard(self.settings.modality, seed, max(number, 0), self.seq_len)
        return self.made[number]

    def eval_batches(self, size: int = 32) -> Iterator[Batch]:
        wanted = min(self.settings.eval_windows, signals.SAMPLES)
        for at in range(0, wanted, size):
            yield self._gather([(-1, row) for row in range(at, min(at + size, wanted))])

    def to_json(self) -> dict[str, Any]:
        read = [{**identity(self.made[at]), "samples": samples} for at, samples in sorted(self.reads.items())]
        said = {"kind": "generated", "modality": self.settings.modality, "seed": self.settings.seed, "token": "byte"}
        return {**said, "shards": self.settings.shards, "samples": self.samples, "read": read}


Data = TextData | SignalData


def identity(shard: Shard | SignalShard) -> dict[str, Any]:
    found: dict[str, Any] = {"name": shard.name, "bytes": shard.bytes, "sha256": shard.sha256}
    if isinstance(shard, Shard) and shard.hashed != "all":
        found["sha256_of"] = shard.hashed
    return found


def numbers(first: int, count: int, samples: int, single_pass: bool) -> list[int]:
    if single_pass and count and first + count > samples:
        raise UserError(f"the data has {samples:,} samples, and a single pass was asked for: sample {first + count:,} is not there")
    return [number % samples for number in range(first, first + count)]


@dataclass(frozen=True, slots=True)
class Corpus:

    name: str
    train: list[Tokens]
    held: list[Tokens]
    shards: list[Shard]
    files: int
    token: str
    vocabulary: int | None
    sha256: str
    table: Tokens | None = field(default=None)

    def ids(self, tokens: Tokens) -> Tokens:
        found: Tokens = tokens if self.table is None else self.table[tokens]
        return found


def open_data(settings: Settings, spec: ModelSpec, seq_len: int) -> Data:
    if settings.modality != "text":
        found: Data = _open_signals(settings, spec, seq_len)
    else:
        found = TextData(settings, seq_len, spec.vocab_size, _open_text(settings, spec.vocab_size))
    if found.positions > spec.max_positions:
        more = found.positions - seq_len
        with_signal = f" with {more} positions of the signal" if more else ""
        raise UserError(f"seq_len {seq_len}{with_signal} is more than max_position_embeddings {spec.max_positions} of {spec.name}")
    return found


def _open_signals(settings: Settings, spec: ModelSpec, seq_len: int) -> SignalData:
    if settings.path:
        raise UserError(f"family {settings.modality} draws its own signals and texts; a data path is for family text")
    if settings.modality not in signals.MODALITIES:
        raise UserError(f"family {settings.modality[:40]!r} is not one of text, {', '.join(signals.MODALITIES)}")
    if spec.vocab_size < 128:
        raise UserError(f"the texts of {settings.modality} are ASCII, and {spec.name} has a vocabulary of {spec.vocab_size}; it takes 128")
    return SignalData(settings, seq_len)


def _open_text(settings: Settings, vocab_size: int) -> Corpus:
    if settings.path:
        opened = shards.open_path(settings.path)
        name = settings.path
    else:
        name = "the standard library"
        files = shards.library()
        opened = shards.read_texts(name, files if settings.order == "study" else shards.first(files, WALK_BYTES))
    texts = [text for text in opened if isinstance(text, bytes)]
    if texts:
        if settings.tokens == "ids":
            raise UserError(f"{name}: holds text, and token ids were asked for; name .npy, .bin, .u8, .u16 or .u32 shards")
        return text_corpus(settings, name, texts, vocab_size)
    return token_corpus(settings, name, [shard for shard in opened if isinstance(shard, Shard)])


def token_corpus(settings: Settings, name: str, found: list[Shard]) -> Corpus:
    if settings.tokens == "counted":
        raise UserError(f"{name}: holds token ids, and tokens counted is for text")
    cuts = [cut(settings, len(shard.tokens)) for shard in found]
    train = [shard.tokens[:end] for shard, end in zip(found, cuts, strict=True)]
    held = [shard.tokens[end:] for shard, end in zip(found, cuts, strict=True)]
    together = hashlib.sha256("".join(shard.sha256 for shard in found).encode()).hexdigest()
    return Corpus(name, train, held, found, len(found), "id", None, together)


def text_corpus(settings: Settings, name: str, texts: list[bytes], vocab_size: int) -> Corpus:
    if settings.order == "study":
        texts = list(texts)
        Random(0).shuffle(texts)
        train, held = split_files(texts)
    else:
        limit = None if settings.path else WALK_BYTES
        joined = (b"\0" if settings.path else b"").join(texts)[:limit]
        end = cut(settings, len(joined))
        train, held = joined[:end], joined[end:]
    shard = shards.text_shard(name, b"\0".join((train, held)) if settings.order == "study" else train + held)
    table, token, vocabulary = byte_table(settings, shard.tokens, vocab_size)
    if vocabulary > vocab_size:
        raise UserError(f"{name}: has a vocabulary of {vocabulary} tokens, and the model's is {vocab_size}")
    sha256 = hashlib.sha256(b"".join(texts)).hexdigest() if settings.order == "study" else shard.sha256
    parts = [np.frombuffer(part, dtype=np.uint8) for part in (train, held)]
    return Corpus(name, parts[:1], parts[1:], [shard], len(texts), token, vocabulary, sha256, table)


def cut(settings: Settings, size: int) -> int:
    return int(size * TRAIN_SHARE) if settings.eval_windows or settings.order == "study" else size


def split_files(texts: list[bytes]) -> tuple[bytes, bytes]:
    end = int(len(texts) * TRAIN_SHARE)
    if 0 < end < len(texts):
        return b"\0".join(texts[:end]), b"\0".join(texts[end:])
    joined = b"\0".join(texts)
    size = int(len(joined) * TRAIN_SHARE)
    return joined[:size], joined[size:]


def byte_table(settings: Settings, text: Tokens, vocab_size: int) -> tuple[Tokens, str, int]:
    if settings.tokens == "bytes":
        said = f"byte modulo {vocab_size}" if vocab_size < 256 else "byte"
        return np.arange(256) % vocab_size, said, min(vocab_size, 256)
    common = [byte for byte, times in enumerate(np.bincount(text, minlength=256)[:128]) if byte and times > COMMON]
    table = np.zeros(256, dtype=np.int64)
    table[common] = np.arange(1, len(common) + 1)
    return table, f"ASCII byte that stands more than {COMMON} times, else 0", len(common) + 1
