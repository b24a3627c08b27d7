# isoflop/charts.py without its comments
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from trainwright.page import COLOURS, Html, element, join

NAMESPACE = "/".join(("http:", "", "www.w3.org", "2000", "svg"))

Point = tuple[float, float]
WIDTH, HEIGHT = 960, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 20, 14, 46

_DIGITS = ((1, 2, 5), range(1, 10), range(10, 100))


@dataclass(slots=True)
class Series:

    name: str
    points: Sequence[Point]
    kind: str = "line"
    colour: str = ""


@dataclass(slots=True)
class Chart:

    title: str
    x_label: str
    y_label: str
    series: list[Series] = field(default_factory=list)
    log_x: bool = False
    log_y: bool = False


def drawn(chart: Chart) -> Html:
    for k, series in enumerate(chart.series):
        series.colour = series.colour or COLOURS[k % len(COLOURS)]
        series.points = [p for p in series.points if _fits(p, chart)]
    points = [p for series in chart.series for p in series.points]
    if not points:
        return element("p", f"{chart.title}: nothing to draw", class_="soft")
    x_scale = _scale([p[0] for p in points], chart.log_x, _LEFT, WIDTH - _RIGHT)
    y_scale = _scale([p[1] for p in points], chart.log_y, HEIGHT - _BOTTOM, _TOP)
    parts = [*_axes(chart, x_scale, y_scale), *(_series(series, x_scale, y_scale) for series in chart.series)]
    svg = element("svg", element("title", chart.title), *parts, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", xmlns=NAMESPACE)
    return join(svg, _legend(chart.series))


def _fits(point: Point, chart: Chart) -> bool:
    x, y = point
    return math.isfinite(x) and math.isfinite(y) and not (chart.log_x and x <= 0) and not (chart.log_y and y <= 0)


@dataclass(frozen=True, slots=True)
class _Scale:
    low: float
    high: float
    first: float
    last: float
    log: bool

    def at(self, value: float) -> float:
        v = math.log10(value) if self.log else value
        return round(self.first + (v - self.low) / (self.high - self.low) * (self.last - self.first), 1)

    def ticks(self) -> list[float]:
        span = self.high - self.low
        if self.log and span >= 1.5:
            step = max(1, math.ceil(span / 8))
            return [10.0**k for k in range(math.ceil(self.low), math.floor(self.high) + 1, step)]
        if self.log:
            found = next((ticks for digits in _DIGITS if len(ticks := self._round(digits)) > 1), [])
            return found[:: math.ceil(len(found) / 8)] if found else [10 ** (self.low + span * k / 4) for k in range(5)]
        size = 10 ** math.floor(math.log10(span / 5))
        step_ = next(size * m for m in (1, 2, 5, 10) if span / (size * m) <= 6)
        return [k * step_ for k in range(math.ceil(self.low / step_), math.floor(self.high / step_) + 1)]

    def _round(self, digits: Sequence[int]) -> list[float]:
        powers = range(math.floor(self.low) - 2, math.ceil(self.high) + 1)
        return [d * 10.0**k for k in powers for d in digits if self.low <= math.log10(d) + k <= self.high]


def _scale(values: Sequence[float], log: bool, first: float, last: float) -> _Scale:
    seen = [math.log10(v) for v in values] if log else list(values)
    low, high = min(seen), max(seen)
    margin = 0.04 * (high - low) or abs(high) * 0.05 or 0.5
    return _Scale(low - margin, high + margin, first, last, log)


def _axes(chart: Chart, x: _Scale, y: _Scale) -> list[Html]:
    bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    middle = (_TOP + bottom) // 2
    parts = [
        element("line", x1=_LEFT, x2=right, y1=bottom, y2=bottom, class_="axis", stroke="#888"),
        element("line", x1=_LEFT, x2=_LEFT, y1=_TOP, y2=bottom, class_="axis", stroke="#888"),
        element("text", chart.x_label, x=(_LEFT + right) / 2, y=HEIGHT - 8, text_anchor="middle", class_="soft"),
        element("text", chart.y_label, x=14, y=middle, text_anchor="middle", class_="soft", transform=f"rotate(-90 14 {middle})"),
    ]
    for value in x.ticks():
        parts.append(element("text", f"{value:.3g}", x=x.at(value), y=bottom + 17, text_anchor="middle", class_="soft"))
    for value in y.ticks():
        parts.append(
            element("line", x1=_LEFT, x2=right, y1=y.at(value), y2=y.at(value), class_="axis", stroke="#888", stroke_opacity="0.35")
        )
        parts.append(element("text", f"{value:.3g}", x=_LEFT - 8, y=y.at(value) + 4, text_anchor="end", class_="soft"))
    return parts


def _series(series: Series, x: _Scale, y: _Scale) -> Html:
    places = [(x.at(a), y.at(b)) for a, b in series.points]
    if series.kind in ("dots", "rings"):
        look = {"fill": series.colour} if series.kind == "dots" else {"fill": "none", "stroke": series.colour, "stroke_width": "2"}
        return join(
            *(element("circle", element("title", series.name), cx=a, cy=b, r=4 if series.kind == "dots" else 7, **look) for a, b in places)
        )
    line = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
    if series.kind == "band":
        return element("polygon", points=line, fill=series.colour, fill_opacity="0.18")
    dashes = {"stroke_dasharray": "6 5"} if series.kind == "dashes" else {}
    return element("polyline", points=line, fill="none", stroke=series.colour, stroke_width=2.2, **dashes)


def _legend(series: Sequence[Series]) -> Html:
    seen: dict[str, str] = {}
    for one in series:
        if one.name:
            seen.setdefault(one.name, one.colour)
    return element("div", *(element("span", element("i", style=f"background:{c}"), name) for name, c in seen.items()), class_="legend")
