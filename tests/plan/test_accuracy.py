"""The bars of accuracy on recorded runs: shipped constants, fits of a fifth, memory, and choosing. Needs TRAINWRIGHT_DATA."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainwright.cost.constants import CALIBRATED, Constants
from trainwright.cost.footprint import MEMORY_CALIBRATED, MemoryConstants
from trainwright.plan import score
from trainwright.plan.calibrate import SHIPPED, Fit, calibrate
from trainwright.plan.predict import predict
from trainwright.plan.rows import Row, read_rows

SPLITS = 20


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    import os

    place = os.environ.get("TRAINWRIGHT_DATA")
    if not place or not (Path(place) / "plan" / "throughput.csv").exists():
        pytest.skip("TRAINWRIGHT_DATA names no folder with plan/throughput.csv")
    return read_rows(str(Path(place) / "plan" / "throughput.csv"))[1]


def bloom(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.name.startswith("bloom")]


def test_what_a_fit_may_move_are_constants() -> None:
    assert set(CALIBRATED) <= set(Constants.__slots__) and set(MEMORY_CALIBRATED) <= set(MemoryConstants.__slots__)


def test_shipped_constants(rows: list[Row]) -> None:
    found = score.time_errors(rows, lambda row: SHIPPED)[0]
    assert found.count >= 293
    assert found.median <= 0.15 and found.p90 <= 0.35


def test_a_row_without_a_prediction_has_a_reason(rows: list[Row]) -> None:
    for row in rows:
        one = predict(row, SHIPPED)
        assert one.seconds is not None or one.note, row.name
    never = [predict(row, SHIPPED) for row in rows if "PVC" in row.cells["hardware"] and row.plan]
    assert never and all(one.seconds is None and "measured" in one.note and one.memory_gib is not None for one in never)


def test_intervals_hold_nine_of_ten(rows: list[Row]) -> None:
    inside = [
        one.seconds.low <= row.seconds <= one.seconds.high
        for row in rows
        if row.seconds is not None and (one := predict(row, SHIPPED)).seconds is not None
    ]
    assert sum(inside) / len(inside) >= 0.9


def test_the_memory_of_bloom_fitted_on_a_fifth(rows: list[Row]) -> None:
    """One split here, twenty in the long test."""
    judge_memory(rows, 1)


@pytest.mark.long
def test_memory_fitted_on_a_fifth(rows: list[Row]) -> None:
    judge_memory(rows, SPLITS)
    for found in score.held_out(rows, 0.2, SPLITS, "memory"):
        assert found.median <= 0.04, found.name


def judge_memory(rows: list[Row], splits: int) -> None:
    """At most one OOM missed in a split (82 layers, where a neighbour of 94 fits), two in one of twenty; false ones below 1 %."""
    [found] = score.held_out_oom(bloom(rows), 0.2, splits)
    assert set(found["missed"]) <= {"bloom_142", "bloom_092"}
    assert sum(found["missed"].values()) <= splits + 0.05 * splits and found["most_missed"] <= 2
    assert found["oom"] > 3 * splits and found["false"] <= max(1, 0.01 * found["fit"])


@pytest.mark.long
def test_steps_fitted_on_a_fifth(rows: list[Row]) -> None:
    found = score.held_out(rows, 0.2, SPLITS, "time")[0]
    assert found.median <= 0.06 and found.p90 <= 0.15


def test_choosing_among_the_plans_of_bloom(rows: list[Row]) -> None:
    chosen = score.choices(bloom(rows), lambda row: SHIPPED)
    found = score.regrets(chosen)
    assert len(chosen) >= 10 and found["mean"]["model"] <= 0.035
    assert found["within_5_percent"] >= 9
    assert found["mean"]["model"] < found["mean"]["random"] < found["mean"]["tp8_least_pp"]


def test_the_eleventh_workload_counted_at_its_worst(rows: list[Row]) -> None:
    """One plan run twice is no choice; counted as two plans, with the slower one picked, the bars hold all the same."""
    twice = [row for row in bloom(rows) if row.cells["layers"] == "6" and row.seconds]
    assert len(twice) == 2 and len({row.plan for row in twice}) == 1
    seconds = [row.seconds or 0.0 for row in twice]
    regrets = [one.model for one in score.choices(bloom(rows), lambda row: SHIPPED)] + [max(seconds) / min(seconds) - 1]
    assert len(regrets) == 11 and sum(regrets) / 11 <= 0.035 and sum(one <= 0.05 for one in regrets) >= 9


def test_larger_predicted_gaps_are_surer(rows: list[Row]) -> None:
    found = score.pairs(rows, lambda row: SHIPPED)
    wide = [one for one in found if one["gap"] in ("10% to 20%", "20% to 40%", "above 40%")]
    assert sum(one["right"] for one in wide) >= 0.8 * sum(one["pairs"] for one in wide) > 0


def test_a_source_counts_alike_whatever_its_length(rows: list[Row]) -> None:
    """A fit of one long and one short table is as far from both in the middle."""
    few, many = (
        [row for row in rows if row.source.startswith(name) and row.machine and row.machine.device.name == "a100"]
        for name in ("Korthikanti", "mosaicml")
    )
    many = many[::6]
    fit = calibrate([*few, *many], "time")
    assert isinstance(fit, Fit) and fit.time_rows == len(few) + len(many)
    short = score.time_errors(few, lambda row: fit)[0]
    assert short.median <= score.time_errors(few, lambda row: SHIPPED)[0].median + 0.02


def test_a_long_fit_says_where_it_stands(rows: list[Row]) -> None:
    few = [row for row in rows if row.source.startswith("Korthikanti")]
    said: list[float | None] = []
    score.left_out(few, "time", folds=4, step=lambda what, fraction=None: said.append(fraction))
    assert said == [0.0, 0.25, 0.5, 0.75]
