"""The fit as one HTML page: verdict, charts, tables, checklist, and every excluded row."""

from __future__ import annotations

from typing import Any

from trainwright import page as p
from trainwright.isoflop.analysis import Analysis
from trainwright.isoflop.charts import drawn
from trainwright.isoflop.fit_charts import charts
from trainwright.isoflop.fit_text import checklist
from trainwright.page import Html

_TONES = {"identified": "good", "weak": "warn", "underdetermined": "bad"}
_MOST_ROWS = 500


def page(result: Analysis) -> str:
    """The whole page as text."""
    data = result.data
    lead = (
        f"{data['rows']['used']} rows used, {data['rows']['excluded']} excluded; verdict {data['verdict']}, by approach {data['trusted']}"
    )
    parts = [
        _headline(data),
        _reasons(data),
        *(p.section(chart.title, drawn(chart)) for chart in charts(result)),
        _fits(data),
        _budgets(data),
    ]
    parts += [_remedy(data), p.section("Checklist", p.table(("item", "answer"), checklist(result))), _excluded(data)]
    return p.document("IsoFLOP fit", lead, *parts)


def _headline(data: dict[str, Any]) -> Html:
    cards = [(data["verdict"], "verdict on the exponent", _TONES[data["verdict"]])]
    for fit in data["fits"]:
        a = fit["exponents"]["a"]
        pair = fit["intervals"].get("a")
        untold = "refused" if a is None else "not told by these rows" if fit["verdict"] == "underdetermined" else ""
        said = untold or f"{a:.4f}" + (f" [{pair[0]:.3f}, {pair[1]:.3f}]" if pair else "")
        cards.append((said, f"a by approach {fit['approach']}", _TONES[fit["verdict"]] if a is not None else "bad"))
    return p.cards(cards)


def _reasons(data: dict[str, Any]) -> Html:
    rows = [(fit["approach"], d["level"], d["reason"]) for fit in data["fits"] for d in fit["diagnostics"] if d["level"] != "identified"]
    if not rows:
        return p.section("Doubts", p.paragraph("None of the diagnostics raises one.", tone="good"))
    return p.section("Doubts", p.table(("approach", "level", "reason"), rows))


def _fits(data: dict[str, Any]) -> Html:
    rows = []
    for fit in data["fits"]:
        values = fit["parameters"] or {}
        cells = [_cell(values.get(key)) for key in ("E", "A", "B", "alpha", "beta")]
        objective = _cell(fit["objective"])
        rows.append(
            (
                fit["approach"],
                _cell(fit["exponents"]["a"]),
                _cell(fit["exponents"]["b"]),
                *cells,
                objective,
                fit["refused"] or fit["verdict"],
            )
        )
    headers = ("approach", "a", "b", "E", "A", "B", "alpha", "beta", "objective", "verdict")
    return p.section("Fits", p.table(headers, rows, range(1, 9)))


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _budgets(data: dict[str, Any]) -> Html:
    rows = [
        (
            f"{b['flops']:.4g}",
            b["points"],
            f"{b['n_spread']:.3g}x",
            _cell(b["params"]),
            _cell(b["tokens"]),
            _cell(b["log_params_sd"]),
            b["refused"],
        )
        for b in data["budgets"][:_MOST_ROWS]
    ]
    headers = ("FLOP", "rows", "N spread", "N*", "D*", "sd of ln N*", "refused")
    return p.section("Budgets", p.table(headers, rows, range(6))) if rows else p.Html("")


def _remedy(data: dict[str, Any]) -> Html:
    found = data["remedy"]
    if not found or not found["runs"]:
        return p.Html("")
    rows = [(f"{run['flops']:.3g}", f"{run['params']:.4g}", f"{run['tokens']:.4g}") for run in found["runs"]]
    said = f"{len(rows)} runs, {found['cost_flops']:.3g} FLOP, predicted sd of a {found['sd_exponent']:.3f}"
    more = "" if found["reached"] else "; no set found is enough"
    return p.section("The least set of runs that would identify it", p.paragraph(said + more), p.table(("FLOP", "N", "D"), rows, range(3)))


def _excluded(data: dict[str, Any]) -> Html:
    rows = [(row["row"], row["reason"]) for row in data["excluded"]]
    if not rows:
        return p.section("Excluded rows", p.paragraph("None."))
    more = (
        [p.paragraph(f"{len(rows) - _MOST_ROWS} more are in the JSON and Markdown forms.", tone="soft")] if len(rows) > _MOST_ROWS else []
    )
    return p.section("Excluded rows", p.table(("row", "reason"), rows[:_MOST_ROWS]), *more)
