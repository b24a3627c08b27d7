"""The layer split against every cut there is."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from trainwright.cost.split import Stage, equal, split, uniform


def cuts(layers: int, parts: int) -> list[tuple[int, ...]]:
    """Every way to cut `layers` into `parts` runs, empty ones too."""
    bars = combinations(range(layers + parts - 1), parts - 1)
    return [tuple(b - a - 1 for a, b in zip((-1, *at), (*at, layers + parts - 1), strict=True)) for at in bars]


def cost(found: tuple[int, ...], seconds: list[float], states: list[float], kept: list[float], stages: list[Stage]) -> float:
    """The slowest stage, infinite where one is over its cap."""
    at, slowest = 0, 0.0
    for count, stage in zip(found, stages, strict=True):
        mine = range(at, at + count)
        used = stage.bytes + sum(states[i] + stage.held * kept[i] for i in mine)
        if used > stage.cap * (1 + 1e-12):
            return float("inf")
        slowest = max(slowest, stage.seconds + sum(seconds[i] for i in mine))
        at += count
    return slowest


def drawn(seed: int, same: bool) -> tuple[list[float], list[float], list[float], list[Stage]]:
    rng = random.Random(seed)
    layers, parts = rng.randint(1, 12), rng.randint(1, 4)

    def each(low: float, high: float) -> list[float]:
        return [rng.uniform(low, high)] * layers if same else [rng.uniform(low, high) for _ in range(layers)]

    seconds, states, kept = each(0.1, 3), each(0.1, 2), each(0.0, 1)
    whole = sum(states) + parts * sum(kept)
    cap = rng.choice([float("inf"), whole / parts * rng.uniform(0.6, 1.6)])
    stages = [Stage(rng.uniform(0, 4) if i in (0, parts - 1) else 0.0, rng.uniform(0, 1), parts - i, cap) for i in range(parts)]
    return seconds, states, kept, stages


@pytest.mark.parametrize("block", range(5))
def test_split_is_the_best_cut(block: int) -> None:
    for seed in range(block * 60, block * 60 + 60):
        seconds, states, kept, stages = drawn(seed, same=False)
        best = min(cost(found, seconds, states, kept, stages) for found in cuts(len(seconds), len(stages)))
        found = split(seconds, states, kept, stages)
        assert (found is None) == (best == float("inf")), seed
        if found is not None:
            assert cost(found, seconds, states, kept, stages) == pytest.approx(best, rel=1e-7), seed


@pytest.mark.parametrize("block", range(5))
def test_equal_layers_in_closed_form(block: int) -> None:
    for seed in range(1000 + block * 60, 1000 + block * 60 + 60):
        seconds, states, kept, stages = drawn(seed, same=True)
        best = min(cost(found, seconds, states, kept, stages) for found in cuts(len(seconds), len(stages)))
        found = uniform(len(seconds), seconds[0], states[0], kept[0], stages)
        assert (found is None) == (best == float("inf")), seed
        if found is not None:
            assert sum(found) == len(seconds)
            assert cost(found, seconds, states, kept, stages) == pytest.approx(best, rel=1e-7), seed


def test_a_heavy_head_empties_the_last_stage() -> None:
    """12 layers and a head of 6.2 layers' time on four stages: three layers each would be 9.2 at the end."""
    found = uniform(12, 1.0, 0.0, 0.0, [Stage()] * 3 + [Stage(6.2)])
    assert found == (4, 4, 4, 0)
    assert uniform(12, 1.0, 0.0, 0.0, [Stage()] * 3 + [Stage(1.4)]) in ((3, 4, 3, 2), (4, 3, 3, 2), (3, 3, 4, 2))


def test_equal_memory_does_not_fit_and_uneven_does() -> None:
    """Stage 0 keeps four microbatches, stage 3 one: the same cap holds different layers."""
    stages = [Stage(held=4.0 - i, cap=14.0) for i in range(4)]
    assert max(stage.held * 4 for stage in stages) > 14.0
    found = uniform(16, 1.0, 0.0, 1.0, stages)
    assert found is not None and sum(found) == 16 and found[0] == 3
    assert uniform(17, 1.0, 5.0, 1.0, stages) is None


def test_equal_spreads_the_rest_to_the_middle() -> None:
    assert equal(126, 16) == (7, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 7)
    assert equal(12, 4) == (3, 3, 3, 3)
