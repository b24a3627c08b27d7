"""Figures of a run, by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trainwright.diagnose.measure import Measures, measure
from trainwright.diagnose.run_folder import read_run

Row = Callable[..., dict[str, Any]]


def measured(folder: Any) -> Measures:
    return measure(read_run(str(folder.path)))


def test_a_step_takes_as_long_as_its_slowest_rank(folder: Any, row: Row) -> None:
    folder.perf(0, row(1, 9.0), row(2, 1.0), row(3, 1.0), row(4, 3.0)).perf(1, row(1, 7.0), row(2, 2.0), row(3, 1.5), row(4, 1.0))
    found = measured(folder)
    assert (found.steady_steps, found.first_step_time_s) == (3, 9.0)
    assert (found.median_step_time_s, found.p90_step_time_s) == (2.0, 3.0)
    assert found.tokens_per_step == 512 and found.tokens_per_s == 256
    assert found.rank_spread == pytest.approx(0.5)  # medians 1.0 and 1.5


def test_tracked_steps_are_no_throughput(folder: Any, row: Row) -> None:
    folder.perf(0, row(1, 5.0, memory_bytes=10), row(2, 5.0, memory_bytes=20), row(3, 1.0), row(4, 1.0), world_size=1)
    found = measured(folder)
    assert (found.steady_steps, found.median_step_time_s) == (2, 1.0)
    assert found.first_step_time_s == 5.0


def test_too_few_steady_steps_are_no_figure(folder: Any, row: Row) -> None:
    folder.perf(0, row(1), row(2), world_size=1)
    found = measured(folder)
    assert found.median_step_time_s is None and found.tokens_per_s is None
    assert found.not_measured == [
        ("step time and throughput", "1 steady steps, and a median needs 2: the first step and tracked ones do not count")
    ]


def test_a_missing_rank_makes_the_throughput_unknown_not_smaller(folder: Any, row: Row) -> None:
    folder.perf(0, row(1), row(2), row(3), row(4), world_size=2)
    found = measured(folder)
    assert found.median_step_time_s == 0.5 and found.tokens_per_s is None
    assert found.not_measured == [("tokens/s over all ranks", "1 of 2 ranks recorded no step")]


def test_only_steps_of_all_ranks_count(folder: Any, row: Row) -> None:
    folder.perf(0, *(row(n, 1.0) for n in range(1, 9))).perf(1, *(row(n, 2.0) for n in range(1, 5)))
    found = measured(folder)
    assert (found.steps, found.steady_steps, found.median_step_time_s) == (4, 3, 2.0)


def test_phases_peaks_and_losses(folder: Any, row: Row, last: Row) -> None:
    steps = [row(n, forward_s=0.1 * n, backward_s=0.2, rss_bytes=100 * n) for n in (1, 2, 3, 4)]
    folder.perf(0, *steps, last(peak_memory_bytes=70, memory={"parameters": 70}), world_size=2)
    folder.perf(1, *steps, last(peak_memory_bytes=90, memory={"parameters": 90}), world_size=2)
    found = measured(folder)
    assert found.phases == {
        "forward_s": pytest.approx(0.3),
        "backward_s": 0.2,
        "optimizer_s": None,
        "data_s": None,
        "communication_s": None,
    }
    assert (found.peak_memory_bytes, found.memory) == (90, {"parameters": 90})
    assert (found.first_loss, found.last_loss) == (5.0, 1.25)
    assert [(r.rank, r.steps, r.status, r.peak_memory_bytes, r.peak_rss_bytes) for r in found.ranks] == [
        (0, 4, "completed", 70, 400),
        (1, 4, "completed", 90, 400),
    ]


def test_a_run_without_steps(folder: Any) -> None:
    found = measured(folder.perf(0, world_size=1))
    assert found.steps == 0 and found.not_measured == [("step time and throughput", "no rank recorded a step")]
