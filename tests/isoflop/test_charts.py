"""Axes of a fit's charts have ticks that a reader knows."""

from __future__ import annotations

import math

import pytest

from trainwright.isoflop.charts import Chart, Series, drawn


def ticks(values: list[float]) -> list[float]:
    chart = Chart("t", "x", "y", [Series("s", [(1.0, value) for value in values], "dots")], log_y=True)
    words = str(drawn(chart)).split('text-anchor="end"')[1:]
    return [float(part.split(">")[1].split("<")[0]) for part in words]


@pytest.mark.parametrize("values", [[4.5e5, 9e6], [4800.0, 5200.0], [1e4, 2e4], [3e3, 2e5], [1.0, 1e9]])
def test_a_logarithmic_axis_has_round_ticks(values: list[float]) -> None:
    found = ticks(values)
    assert 2 <= len(found) <= 10 and found == sorted(found)
    digits = [f"{value:e}".split("e")[0].rstrip("0") for value in found]
    assert all(len(digit) <= 3 for digit in digits), "two digits at most, such as 4.8"
    assert math.log10(found[0]) >= math.log10(values[0]) - 0.5 and math.log10(found[-1]) <= math.log10(values[1]) + 0.5
