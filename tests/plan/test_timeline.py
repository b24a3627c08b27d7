"""The pipeline played through: against the closed form, and by what a step has to be whatever its schedule."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.cost.pipeline import in_flight, step_seconds
from trainwright.parallel import Plan
from trainwright.plan.timeline import play, shown


def plan_of(schedule: str, pp: int, virtual: int = 1) -> Plan:
    return Plan(pp=pp, schedule=schedule, virtual_stages=virtual if schedule == "interleaved" else 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schedule", "pp", "virtual", "microbatches"),
    [
        ("gpipe", 4, 1, 8),
        ("1f1b", 4, 1, 8),
        ("1f1b", 8, 1, 8),
        ("interleaved", 4, 2, 8),
        ("interleaved", 8, 3, 32),
        ("zero-bubble", 8, 1, 64),
    ],
)
def test_equal_stages_take_what_the_closed_form_says(schedule: str, pp: int, virtual: int, microbatches: int) -> None:
    plan = plan_of(schedule, pp, virtual)
    played = play(plan, [1 / virtual] * plan.chunks, [2 / virtual] * plan.chunks, 0.0, microbatches)
    assert played.seconds == pytest.approx(step_seconds([3.0] * pp, 0.0, microbatches, plan.schedule, virtual))


@pytest.mark.parametrize(("forward", "backward"), [([1.0, 2.0, 1.5], [2.0, 4.0, 3.0]), ([3.0, 1.0, 1.0], [6.0, 2.0, 2.0])])
def test_uneven_stages_are_bound_by_the_closed_form(forward: list[float], backward: list[float]) -> None:
    """It adds the whole fill to the slowest stage's work; what is played hides a part of the fill, and is never slower."""
    played = play(plan_of("1f1b", 3), forward, backward, 0.0, 12)
    closed = step_seconds([a + b for a, b in zip(forward, backward, strict=True)], 0.0, 12, "1f1b")
    assert 0.9 * closed <= played.seconds <= closed * (1 + 1e-9)


@st.composite
def steps(draw: st.DrawFn) -> tuple[Plan, list[float], list[float], float, int]:
    pp = draw(st.integers(2, 5))
    plan = plan_of(draw(st.sampled_from(["gpipe", "1f1b", "interleaved", "zero-bubble"])), pp, draw(st.integers(2, 3)))
    times = st.lists(st.floats(0.1, 3.0), min_size=plan.chunks, max_size=plan.chunks)
    microbatches = draw(st.integers(1, 4)) * (pp if plan.schedule == "interleaved" else 1)
    return plan, draw(times), draw(times), draw(st.floats(0.0, 1.0)), microbatches


@given(step=steps())
def test_any_step(step: tuple[Plan, list[float], list[float], float, int]) -> None:
    """Every chunk does every microbatch once each way; a stage does one thing at a time; nothing starts before what it needs is there."""
    plan, forward, backward, transfer, microbatches = step
    played = play(plan, forward, backward, transfer, microbatches)
    kinds = 3 if plan.schedule == "zero-bubble" else 2
    done = Counter((slot.kind, slot.chunk, slot.microbatch) for slot in played.slots)
    assert len(done) == kinds * plan.chunks * microbatches and set(done.values()) == {1}
    for stage in range(plan.pp):
        mine = sorted((slot.start, slot.end) for slot in played.slots if slot.stage == stage)
        assert all(before[1] <= after[0] + 1e-9 for before, after in pairwise(mine))
        assert 0 < played.busy(stage) <= 1 + 1e-9
    ends = {(slot.kind, slot.chunk, slot.microbatch): slot for slot in played.slots}
    for slot in played.slots:
        if slot.kind == "forward" and slot.chunk:
            before = ends["forward", slot.chunk - 1, slot.microbatch]
            assert slot.start >= before.end + (transfer if before.stage != slot.stage else 0) - 1e-9


@given(step=steps())
def test_what_a_stage_holds_is_what_the_ledger_counts(step: tuple[Plan, list[float], list[float], float, int]) -> None:
    """Microbatches between their forward and their backward, in whole stages: never more than in_flight says."""
    plan, forward, backward, transfer, microbatches = step
    played = play(plan, forward, backward, transfer, microbatches)
    for stage in range(plan.pp):
        held, most = 0, 0
        for slot in sorted((s for s in played.slots if s.stage == stage), key=lambda s: s.start):
            held += {"forward": 1, "backward": -1, "weights": 0}[slot.kind]
            most = max(most, held)
        assert most / plan.virtual_stages <= in_flight(plan, stage, microbatches) + 1e-9


def test_a_picture_is_bounded() -> None:
    assert shown(plan_of("1f1b", 64), 10_000, 3000) * 128 <= 3000
    assert shown(plan_of("interleaved", 8, 4), 512, 3000) % 8 == 0
