"""Quantities as people type them, both ways."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.errors import UserError
from trainwright.units import format_bytes, format_count, format_seconds, parse_bytes, parse_count, parse_seconds, signed_percent


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("40GiB", 40 * 2**30),
        ("40 gib", 40 * 2**30),
        ("40GB", 40 * 10**9),
        ("40g", 40 * 10**9),
        ("1.5MiB", 1572864),
        ("512", 512),
        ("512B", 512),
        ("0", 0),
        ("1_024KiB", 2**20),
        (".5KiB", 512),
        ("1e3 KB", 10**6),
        ("2PiB", 2**51),
        ("9007199254740993", 9007199254740993),
    ],
)
def test_bytes(text: str, value: int) -> None:
    assert parse_bytes(text) == value and type(parse_bytes(text)) is int


@pytest.mark.parametrize(
    ("text", "value"),
    [("90", 90), ("1.5h", 5400), ("2 min", 120), ("2m", 120), ("250ms", 0.25), ("5us", 5e-6), ("5µs", 5e-6), ("1d", 86400)],
)
def test_seconds(text: str, value: float) -> None:
    assert parse_seconds(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "value"), [("4096", 4096), ("4k", 4000), ("7B", 7 * 10**9), ("1e18", 10**18), ("1.5M", 1500000), ("1_000", 1000)]
)
def test_counts(text: str, value: int) -> None:
    assert parse_count(text) == value and type(parse_count(text)) is int


@pytest.mark.parametrize("parse", [parse_bytes, parse_seconds, parse_count])
@pytest.mark.parametrize(
    "text", ["", " ", "lots", "-1", "nan", "inf", "1e999", "1.2.3", "1 2", "0x10", "1,5", "٣", "1²", "5 GiBs", "--", "_1", "1" * 65]
)
def test_what_is_no_quantity_is_one_clear_line(parse: object, text: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(text)  # type: ignore[operator]
    assert "\n" not in str(caught.value)


def test_half_a_device_is_no_count() -> None:
    with pytest.raises(UserError, match="not a whole number"):
        parse_count("2.5")


def test_an_unbounded_number_is_refused_or_exact() -> None:
    assert parse_count("9" * 50) == int("9" * 50)
    for text in ("9" * 5000, "1" + "0" * 10**5):  # more digits than Python converts
        with pytest.raises(UserError) as caught:
            parse_count(text)
        assert len(str(caught.value)) < 150


@given(st.text(max_size=20))
def test_any_text_is_a_number_or_a_user_error(text: str) -> None:
    for parse in (parse_bytes, parse_seconds, parse_count):
        with contextlib.suppress(UserError):
            assert parse(text) >= 0


@given(st.integers(0, 2**60))
def test_bytes_survive_being_shown(count: int) -> None:
    assert parse_bytes(format_bytes(count)) == pytest.approx(count, rel=0.006, abs=0.5)


@given(st.integers(0, 10**15))
def test_counts_survive_being_shown(count: int) -> None:
    shown = format_count(count).replace(" ", "")
    assert parse_seconds(shown.rstrip("kMBT")) * {"k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}.get(shown[-1], 1) == pytest.approx(
        count, rel=0.006
    )


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (format_bytes(0), "0 B"),
        (format_bytes(1023), "1023 B"),
        (format_bytes(1610612736), "1.50 GiB"),
        (format_bytes(-3 * 2**30), "-3.00 GiB"),
        (format_bytes(80 * 2**30), "80.0 GiB"),
        (format_bytes(2**70), "1048576.0 PiB"),
        (format_count(7241732096), "7.24 B"),
        (format_count(12), "12"),
        (format_seconds(0.0123), "12.3 ms"),
        (format_seconds(95), "95.0 s"),
        (format_seconds(3000), "50.0 min"),
        (format_seconds(7260), "2.02 h"),
        (signed_percent(0.0312), "+3.12 %"),
        (signed_percent(-0.0312), "-3.12 %"),
        (signed_percent(-0.00001), "0.00 %"),
    ],
)
def test_shown(shown: str, expected: str) -> None:
    assert shown == expected
