"""The HTML page: everything from outside is escaped, and charts hold every number given to them."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright import page


class Balanced(HTMLParser):
    """Fails on an end tag that does not close the element last opened."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parsed(text: str) -> Balanced:
    parser = Balanced()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    return parser


@given(st.text())
def test_text_never_becomes_markup(text: str) -> None:
    built = page.document(text, text, page.section(text, page.paragraph(text), page.code(text), page.table([text], [[text]])))
    tags = set(re.findall(r"<([a-z0-9]+)", built))
    assert tags <= {
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "h1",
        "h2",
        "p",
        "section",
        "pre",
        "div",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
    }
    assert "<script" not in built


def test_attributes_are_escaped() -> None:
    assert page.element("p", "x", class_='"><b>') == '<p class="&quot;&gt;&lt;b&gt;">x</p>'


def test_stacked_bars_are_in_proportion_and_mark_the_limit() -> None:
    chart = page.stacked_bars(
        [page.Bar("a", (("x", 1.0), ("y", 3.0)), "four"), page.Bar("b", (("x", 2.0),), "two")], limit=8.0, limit_label="cap"
    )
    widths = [float(w) for w in re.findall(r'<rect[^>]* width="([\d.]+)"', chart)]
    assert widths == pytest.approx([70, 210, 140])  # 560 px for the limit of 8
    assert ">cap</text>" in chart
    parsed(chart)


def test_line_chart_spans_its_axes_and_survives_no_points() -> None:
    chart = page.line_chart([("loss", [(1, 4.0), (2, 2.0)])], "step", "loss")
    assert 'points="60.0,12.0 920.0,212.0"' in chart
    parsed(chart)
    assert "no points" in page.line_chart([("loss", [])], "step", "loss")


def test_a_whole_page_is_balanced_and_needs_nothing_from_outside() -> None:
    built = page.document("t", "l", page.section("s", page.cards([("1", "c", "good")])), page.line_chart([("a", [(0, 0)])], "x", "y"))
    parsed(built)
    assert not re.search(r"https?://|<script|<link|@import", built)
