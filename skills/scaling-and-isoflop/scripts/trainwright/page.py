# page.py without its comments
from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class Html(str):

    __slots__ = ()


Child = str | int | float | Html | None

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c8c00", "#7f7f7f")

_STYLE = """
:root{color-scheme:light dark;--ink:#1c2024;--soft:#60646c;--line:#d9dce1;--back:#fff;--card:#f7f8fa;--good:#18794e;--bad:#c62a2f;
  --warn:#946800}
@media(prefers-color-scheme:dark){:root{--ink:#edeef0;--soft:#a5abb5;--line:#3a3f46;--back:#15181b;--card:#1d2125;--good:#4cc38a;
  --bad:#ff8589;--warn:#f1b94a}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1080px;padding:32px 24px 64px;background:var(--back);color:var(--ink);font:15px/1.55 system-ui,sans-serif}
h1{font-size:28px;line-height:1.2;margin:0 0 6px}h2{font-size:19px;margin:40px 0 10px}p{margin:8px 0}
.lead{font-size:17px;color:var(--soft);margin:0 0 20px}.soft{color:var(--soft)}.good{color:var(--good)}.bad{color:var(--bad)}
.warn{color:var(--warn)}.good,.bad,.warn{font-weight:600}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(200px,1fr));gap:12px}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 14px}
.card b{display:block;font-size:17px;line-height:1.3;overflow-wrap:anywhere}.card span{color:var(--soft);font-size:13px}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:6px 12px 6px 0;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--soft);font-weight:600;font-size:13px}td.num,th.num{text-align:right}
pre{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 14px;overflow-x:auto;
  font:13px/1.5 ui-monospace,monospace}
code{font:13px ui-monospace,monospace}svg{width:100%;height:auto;display:block}
svg text{fill:var(--ink);font:12px system-ui,sans-serif;paint-order:stroke;stroke:var(--back);stroke-width:4px}
svg .soft{fill:var(--soft)}svg .axis{stroke:var(--line)}.legend{display:flex;flex-wrap:wrap;gap:4px 16px;font-size:13px;margin:6px 0}
.legend i{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:6px}
"""


def element(tag: str, *children: Child, **attributes: str | int | float) -> Html:
    words = "".join(f' {name.rstrip("_").replace("_", "-")}="{html.escape(_number(value))}"' for name, value in attributes.items())
    return Html(f"<{tag}{words}>{join(*children)}</{tag}>")


def join(*children: Child) -> Html:
    return Html("".join(c if isinstance(c, Html) else html.escape(_number(c)) for c in children if c is not None))


def _number(value: Child) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def document(title: str, lead: str, *parts: Html) -> str:
    head = join(Html('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'), element("title", title))
    body = join(element("h1", title), element("p", lead, class_="lead"), *parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}<style>{_STYLE}</style></head><body>{body}</body></html>\n'


def section(title: str, *parts: Child) -> Html:
    return element("section", element("h2", title), *parts)


def paragraph(*parts: Child, tone: str = "") -> Html:
    return element("p", *parts, **({"class_": tone} if tone else {}))


def cards(items: Iterable[tuple[str, str, str]]) -> Html:
    boxes = (
        element("div", element("b", value, class_=tone or "plain"), element("span", caption), class_="card")
        for value, caption, tone in items
    )
    return element("div", *boxes, class_="cards")


def table(headers: Sequence[str], rows: Iterable[Sequence[Child]], numeric: Iterable[int] = ()) -> Html:
    right = set(numeric)

    def cells(tag: str, row: Sequence[Child]) -> Html:
        return join(*(element(tag, cell, **({"class_": "num"} if i in right else {})) for i, cell in enumerate(row)))

    head = element("thead", element("tr", cells("th", headers)))
    body = element("tbody", *(element("tr", cells("td", row)) for row in rows))
    return element("div", element("table", head, body), class_="wide")


def code(text: str) -> Html:
    return element("pre", text)


@dataclass(frozen=True, slots=True)
class Bar:

    label: str
    segments: tuple[tuple[str, float], ...]
    note: str = ""

    @property
    def total(self) -> float:
        return sum(value for _, value in self.segments)


def stacked_bars(bars: Sequence[Bar], limit: float | None = None, limit_label: str = "") -> Html:
    names = list(dict.fromkeys(name for bar in bars for name, _ in bar.segments))
    colour = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    left, width, row = 190, 560, 34
    top = 26 if limit is not None else 6
    scale = width / max([bar.total for bar in bars] + [limit or 0, 1e-9])
    height = top + len(bars) * row
    rows = [_bar(bar, top + i * row, left, scale, colour) for i, bar in enumerate(bars)]
    chart = element("svg", *_limit(limit, limit_label, left, scale, height), *rows, viewBox=f"0 0 960 {height + 6}", role="img")
    return join(chart, _legend(colour))


def _limit(limit: float | None, label: str, left: float, scale: float, height: float) -> list[Html]:
    if limit is None:
        return []
    x = left + limit * scale
    return [
        element("line", x1=x, x2=x, y1=18, y2=height, stroke="var(--bad)", stroke_width=2, stroke_dasharray="5 4"),
        element("text", label, x=x, y=13, text_anchor="middle", style="fill:var(--bad)"),
    ]


def _bar(bar: Bar, y: float, left: float, scale: float, colour: dict[str, str]) -> Html:
    parts = [element("text", bar.label, x=left - 12, y=y + 17, text_anchor="end")]
    x = left
    for name, value in bar.segments:
        tip = element("title", f"{name}: {bar.note}" if len(bar.segments) == 1 else name)
        parts.append(element("rect", tip, x=x, y=y + 3, width=value * scale, height=20, fill=colour[name]))
        x += value * scale
    return join(*parts, element("text", bar.note, x=x + 8, y=y + 17, class_="soft"))


def _legend(colour: dict[str, str]) -> Html:
    return element("div", *(element("span", element("i", style=f"background:{c}"), name) for name, c in colour.items()), class_="legend")


def line_chart(series: Sequence[tuple[str, Sequence[tuple[float, float]]]], x_label: str, y_label: str) -> Html:
    points = [point for _, line in series for point in line]
    if not points:
        return paragraph("no points", tone="soft")
    (x0, x1), (y0, y1) = ((min(values), max(values)) for values in zip(*points, strict=True))
    left, top, width, height = 60, 12, 860, 200

    def place(x: float, y: float) -> str:
        return f"{left + (x - x0) / ((x1 - x0) or 1) * width:.1f},{top + height - (y - y0) / ((y1 - y0) or 1) * height:.1f}"

    colour = {name: COLOURS[i % len(COLOURS)] for i, (name, _) in enumerate(series)}
    lines = [
        element("polyline", points=" ".join(place(*p) for p in line), fill="none", stroke=colour[name], stroke_width=2.5)
        for name, line in series
    ]
    axis = [
        element("line", x1=left, x2=left + width, y1=top + height, y2=top + height, class_="axis"),
        element("line", x1=left, x2=left, y1=top, y2=top + height, class_="axis"),
        element("text", f"{y1:.3g}", x=left - 8, y=top + 10, text_anchor="end", class_="soft"),
        element("text", f"{y0:.3g}", x=left - 8, y=top + height, text_anchor="end", class_="soft"),
        element("text", f"{x0:g}", x=left, y=top + height + 18, class_="soft"),
        element("text", f"{x1:g}", x=left + width, y=top + height + 18, text_anchor="end", class_="soft"),
        element("text", f"{x_label}; vertical: {y_label}", x=left + width / 2, y=top + height + 18, text_anchor="middle", class_="soft"),
    ]
    chart = element("svg", *axis, *lines, viewBox=f"0 0 960 {top + height + 28}", role="img")
    return join(chart, _legend(colour))
