"""Generated signals: what the text says is what the signal shows."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch

from trainwright.errors import UserError
from trainwright.train.signals import COLOURS, JUMPS, LENGTH, LONGEST, MODALITIES, PLACES, SAMPLES, SIDE, TRENDS, make_shard

SEQ = 48


def texts(modality: str) -> tuple[Any, list[str]]:
    shard = make_shard(modality, 0, 0, SEQ)
    return shard, [bytes(row[row > 0].tolist()).decode() for row in shard.ids]


@pytest.mark.parametrize("modality", MODALITIES)
def test_texts_are_as_long_as_said_and_labels_are_the_next_tokens(modality: str) -> None:
    shard, found = texts(modality)
    assert len(found) == SAMPLES and max(map(len, found)) + 1 == LONGEST[modality], "no text is longer, and one is as long"
    for ids, labels, targets in zip(shard.ids, shard.labels, shard.targets, strict=True):
        counted = labels != -100
        assert int(counted.sum()) == targets
        following = torch.cat((ids[1:], torch.zeros(1, dtype=torch.int64)))
        assert torch.equal(labels[counted], following[counted]) and labels[counted][-1] == 0
    with pytest.raises(UserError, match=f"is less than the {LONGEST[modality]} tokens"):
        make_shard(modality, 0, 0, LONGEST[modality] - 1)
    assert make_shard(modality, 0, 0, LONGEST[modality]).ids.shape == (SAMPLES, LONGEST[modality])


@pytest.mark.parametrize("modality", MODALITIES)
def test_texts_differ_much(modality: str) -> None:
    assert len(set(texts(modality)[1])) > 50


def test_images_show_the_colour_in_the_corner() -> None:
    shard, found = texts("text_image")
    half = SIDE // 2
    for image, text in zip(shard.signals[0], found, strict=True):
        match = re.fullmatch(r"a (\w+) (\w+), (\w+ \w+)", text)
        assert match
        corners = {name: image[:, y // half * half :, x // half * half :][:, :half, :half] for name, (x, y) in PLACES.items()}
        assert max(corners, key=lambda name: int((corners[name] > 0.6).sum())) == match[3]
        brightness = corners[match[3]].amax(dim=(1, 2))
        assert [int(value > 0.6) for value in brightness.tolist()] == list(COLOURS[match[1]])


def test_series_rise_fall_and_jump_as_told() -> None:
    shard, found = texts("text_ts")
    for (values,), text in zip(shard.signals[0].tolist(), found, strict=True):
        match = re.fullmatch(r"(\w+), (\d) waves, a jump (up|down) (\w+)", text)
        assert match
        at = torch.arange(LENGTH) / LENGTH
        wave = 2 * math.pi * int(match[2]) * at
        told = torch.stack((torch.ones(LENGTH), at, wave.sin(), wave.cos(), (at >= JUMPS[match[4]]).float()), dim=1)
        _, slope, sine, cosine, jump = torch.linalg.lstsq(told, torch.tensor(values)[:, None]).solution[:, 0].tolist()
        assert min(TRENDS, key=lambda name: abs(TRENDS[name] - slope)) == match[1]
        assert math.hypot(sine, cosine) == pytest.approx(0.5, abs=0.15) and jump == pytest.approx(2 if match[3] == "up" else -2, abs=0.4)


def test_graphs_have_the_degree_that_is_told() -> None:
    shard, found = texts("text_graph")
    nodes, edges = shard.signals
    assert torch.equal(edges, edges.transpose(1, 2)) and not edges.diagonal(dim1=1, dim2=2).any()
    degrees = (edges.sum(dim=2) * nodes[:, :, 1]).sum(dim=1)
    for degree, graph, text in zip(degrees.tolist(), edges, found, strict=True):
        match = re.fullmatch(r"a (\w+) of (\d+), marked degree (\d+)", text)
        assert match and int(match[3]) == degree and int(match[2]) == int(graph.any(dim=1).sum())


def test_a_robot_is_told_the_way_to_the_block_that_it_is_asked_for() -> None:
    shard, found = texts("text_vla")
    images, states = shard.signals
    for image, state, text, labels in zip(images, states, found, shard.labels, strict=True):
        match = re.fullmatch(r"reach (\w+): move ([+-]\d+) ([+-]\d+)", text)
        assert match
        at = [round((value + 1) / 2 * (SIDE - 1)) for value in state.tolist()]
        x, y = at[0] + int(match[2]), at[1] + int(match[3])
        assert [int(value > 0.6) for value in image[:, y, x].tolist()] == list(COLOURS[match[1]])
        assert (labels[: text.index(":") + 1] == -100).all(), "the instruction is given, not learned"
