# train/signals.py without its comments
from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from trainwright.errors import UserError

SAMPLES = 512
SIDE, PATCH = 16, 4
PATCHES = (SIDE // PATCH) ** 2
LENGTH, CHUNK = 128, 8
CHUNKS = LENGTH // CHUNK
NODES, NODE_FEATURES = 12, 2
STATE = 2
NOISE = 0.1

Pixels = list[list[list[float]]]
Drawn = tuple[tuple[object, ...], str, str]
COLOURS = {"red": (1, 0, 0), "green": (0, 1, 0), "blue": (0, 0, 1), "yellow": (1, 1, 0), "purple": (1, 0, 1), "white": (1, 1, 1)}
SHAPES: dict[str, Callable[[int, int], bool]] = {
    "square": lambda x, y: max(abs(x), abs(y)) <= 2,
    "diamond": lambda x, y: abs(x) + abs(y) <= 2,
    "cross": lambda x, y: abs(x) == abs(y) <= 2,
    "bar": lambda x, y: abs(y) <= 0 and abs(x) <= 2,
}
PLACES = {"top left": (3, 3), "top right": (11, 3), "bottom left": (3, 11), "bottom right": (11, 11)}


def image(draw: Random) -> Drawn:
    shape, colour, place = draw.choice(sorted(SHAPES)), draw.choice(sorted(COLOURS)), draw.choice(sorted(PLACES))
    column, row = (at + draw.randint(0, 1) for at in PLACES[place])
    pixels = noise(draw)
    paint(pixels, SHAPES[shape], COLOURS[colour], column, row)
    return (pixels,), "", f"a {colour} {shape}, {place}"


def noise(draw: Random) -> Pixels:
    values = [(byte / 255 - 0.5) * math.sqrt(12) * NOISE for byte in draw.randbytes(3 * SIDE * SIDE)]
    rows = [values[at : at + SIDE] for at in range(0, len(values), SIDE)]
    return [rows[at : at + SIDE] for at in range(0, len(rows), SIDE)]


def paint(pixels: Pixels, inside: Callable[[int, int], bool], colour: tuple[int, int, int], column: int, row: int) -> None:
    for y in range(max(row - 2, 0), min(row + 3, SIDE)):
        for x in range(max(column - 2, 0), min(column + 3, SIDE)):
            if inside(x - column, y - row):
                for channel, value in enumerate(colour):
                    pixels[channel][y][x] += value


TRENDS = {"rising": 1.5, "falling": -1.5, "level": 0.0}
CYCLES = (2, 4, 8)
JUMPS = {"early": 0.25, "midway": 0.5, "late": 0.75}


def series(draw: Random) -> Drawn:
    trend, cycles, jump = draw.choice(sorted(TRENDS)), draw.choice(CYCLES), draw.choice(sorted(JUMPS))
    phase, up = draw.random(), draw.choice((2.0, -2.0))
    values = [
        TRENDS[trend] * (at - 0.5) + 0.5 * math.sin(2 * math.pi * (cycles * at + phase)) + (up if at >= JUMPS[jump] else 0.0)
        for at in (step / LENGTH for step in range(LENGTH))
    ]
    noisy = [value + draw.gauss(0, NOISE) for value in values]
    return ([noisy],), "", f"{trend}, {cycles} waves, a jump {'up' if up > 0 else 'down'} {jump}"


def ring(n: int) -> list[tuple[int, int]]:
    return [(i, (i + 1) % n) for i in range(n)]


GRAPHS: dict[str, Callable[[int], list[tuple[int, int]]]] = {
    "ring": ring,
    "path": lambda n: ring(n)[:-1],
    "star": lambda n: [(0, i) for i in range(1, n)],
    "wheel": lambda n: [(0, i) for i in range(1, n)] + [(i, i % (n - 1) + 1) for i in range(1, n)],
    "clique": lambda n: [(i, j) for i in range(n) for j in range(i)],
}


def graph(draw: Random) -> Drawn:
    kind, size = draw.choice(sorted(GRAPHS)), draw.randint(5, NODES)
    names = draw.sample(range(NODES), NODES)
    edges = [[0.0] * NODES for _ in range(NODES)]
    for a, b in GRAPHS[kind](size):
        edges[names[a]][names[b]] = edges[names[b]][names[a]] = 1.0
    marked = names[draw.randrange(size)]
    nodes = [[1.0, float(node == marked)] for node in range(NODES)]
    return (nodes, edges), "", f"a {kind} of {size}, marked degree {int(sum(edges[marked]))}"


def robot(draw: Random) -> Drawn:
    wanted, other = draw.sample(sorted(COLOURS), 2)
    places = draw.sample(sorted(PLACES), 2)
    pixels = noise(draw)
    for colour, place in zip((wanted, other), places, strict=True):
        paint(pixels, SHAPES["square"], COLOURS[colour], *PLACES[place])
    gripper = draw.choice((5, 7, 9)), draw.choice((5, 7, 9))
    dx, dy = (to - at for to, at in zip(PLACES[places[0]], gripper, strict=True))
    state = [2 * at / (SIDE - 1) - 1 for at in gripper]
    return (pixels, state), f"reach {wanted}:", f" move {dx:+d} {dy:+d}"


MODALITIES: dict[str, Callable[[Random], Drawn]] = {"text_image": image, "text_ts": series, "text_graph": graph, "text_vla": robot}
POSITIONS = {"text_image": PATCHES, "text_ts": CHUNKS, "text_graph": NODES, "text_vla": PATCHES + 1}
LONGEST = {"text_image": 31, "text_ts": 37, "text_graph": 33, "text_vla": 25}


@dataclass(frozen=True, slots=True)
class SignalShard:

    name: str
    ids: Tensor
    labels: Tensor
    signals: tuple[Tensor, ...]
    targets: tuple[int, ...]
    bytes: int
    sha256: str


def make_shard(modality: str, seed: int, number: int, seq_len: int) -> SignalShard:
    if seq_len < LONGEST[modality]:
        raise UserError(f"seq_len {seq_len} is less than the {LONGEST[modality]} tokens of the longest text of {modality}")
    name = f"{modality}/seed{seed}/{number:05d}"
    draw = Random(name)
    drawn = [MODALITIES[modality](draw) for _ in range(SAMPLES)]
    signals = tuple(torch.tensor(part, dtype=torch.float32) for part in zip(*(signal for signal, _, _ in drawn), strict=True))
    rows = [tokens(given, said, seq_len) for _, given, said in drawn]
    ids, labels = (torch.tensor(part, dtype=torch.int64) for part in zip(*rows, strict=True))
    digest, size = hashlib.sha256(), 0
    for part in (ids, labels, *signals):
        raw = part.numpy().tobytes()
        digest.update(raw)
        size += len(raw)
    return SignalShard(name, ids, labels, signals, tuple(len(said) + 1 for _, _, said in drawn), size, digest.hexdigest())


def tokens(given: str, said: str, seq_len: int) -> tuple[list[int], list[int]]:
    text = [0, *f"{given}{said}".encode("ascii")]
    labels = [-100] * len(given) + [*said.encode("ascii"), 0]
    more = seq_len - len(text)
    return text + [0] * more, labels + [-100] * more
