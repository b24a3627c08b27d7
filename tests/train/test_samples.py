"""Every sample is read once, in one global order, whatever the number of ranks, rounds and steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.job import Job
from trainwright.train.samples import Done, Share, before, last_step, share


def job(ranks: int, micro: int, rounds: int, **fields: int | None) -> Job:
    return Job("/m", "/c", ranks, micro_batch=micro, accumulation=rounds, **fields)  # type: ignore[arg-type]


def mine(part: Share) -> int:
    return sum(piece.count for piece in part.rounds)


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 3), st.integers(1, 100), st.integers(1, 9))
def test_all_ranks_together_read_each_sample_once_and_in_order(ranks: int, micro: int, rounds: int, samples: int, steps: int) -> None:
    ready, done = job(ranks, micro, rounds, samples=samples, steps=steps), Done()
    read: list[int] = []
    for step in range(1, last_step(ready, done) + 1):
        parts = [share(ready, step, rank, done) for rank in range(ranks)]
        assert len({len(part.rounds) for part in parts}) == 1 and {part.first for part in parts} == {len(read)}
        assert sum(map(mine, parts)) == parts[0].count > 0
        assert all(part.idle_ranks == sum(mine(other) == 0 for other in parts) for part in parts)
        full = all(piece.count == micro for part in parts for piece in part.rounds[:-1])
        assert full, "only the last round may be short"
        for number in range(len(parts[0].rounds)):
            for part in parts:
                piece = part.rounds[number]
                read += range(piece.first, piece.first + piece.count)
    assert read == list(range(min(samples, steps * ready.step_samples)))


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 50), st.integers(1, 4))
def test_a_run_taken_up_by_other_ranks_reads_what_is_left(before_ranks: int, after_ranks: int, samples: int, stop: int) -> None:
    first = job(before_ranks, 2, 1, samples=samples, steps=1000)
    stop = min(stop, last_step(first, Done()))
    done = Done(stop, before(first, stop + 1, Done()))
    second = job(after_ranks, 2, 1, samples=samples, steps=1000)
    read = list(range(done.samples))
    for step in range(stop + 1, last_step(second, done) + 1):
        for rank in range(after_ranks):
            for piece in share(second, step, rank, done).rounds:
                read += range(piece.first, piece.first + piece.count)
    assert read == list(range(samples))


@pytest.mark.parametrize(("samples", "last"), [(None, 5), (1, 1), (8, 1), (9, 2), (100, 5)])
def test_the_run_ends_with_its_steps_or_its_samples(samples: int | None, last: int) -> None:
    ready = job(2, 2, 2, samples=samples, steps=5)
    assert last_step(ready, Done()) == ready.last_step == last
