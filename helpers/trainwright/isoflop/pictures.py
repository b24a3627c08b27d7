"""The charts of a fit as PNG, SVG or PDF files. SVG needs nothing; PNG and PDF are drawn by matplotlib, loaded only here."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Sequence
from typing import Any

from trainwright.errors import MissingPackageError, UserError
from trainwright.isoflop.charts import Chart, drawn
from trainwright.output import make_folder, write_text
from trainwright.page import COLOURS

FORMATS = ("svg", "png", "pdf")


def write_pictures(charts: Sequence[Chart], folder: str, formats: Sequence[str]) -> list[str]:
    """One file a chart and format, named by the chart's title; raises MissingPackageError where matplotlib is needed and missing."""
    pyplot = _pyplot() if set(formats) - {"svg"} else None
    make_folder(folder)
    written = []
    for chart in charts:
        name = re.sub(r"[^a-z0-9]+", "-", chart.title.lower()).strip("-")[:60]
        for suffix in formats:
            path = os.path.join(folder, f"{name}.{suffix}")
            if suffix == "svg":
                write_text(path, f"{re.split('<div', drawn(chart))[0]}\n")
            else:
                _plot(pyplot, chart, path)
            written.append(path)
    return written


def _pyplot() -> Any:
    try:
        importlib.import_module("matplotlib").use("Agg")
    except ImportError:
        raise MissingPackageError("matplotlib", "drawing PNG or PDF") from None
    return importlib.import_module("matplotlib.pyplot")


def _plot(pyplot: Any, chart: Chart, path: str) -> None:
    figure, axes = pyplot.subplots(figsize=(9.6, 5.4))
    for k, series in enumerate(chart.series):
        colour = series.colour or COLOURS[k % len(COLOURS)]
        if not series.points:
            continue
        x, y = zip(*series.points, strict=True)
        label = series.name or "_nolegend_"
        if series.kind == "band":
            axes.fill(x, y, color=colour, alpha=0.18, label=label)
        elif series.kind in ("dots", "rings"):
            face = colour if series.kind == "dots" else "none"
            axes.scatter(x, y, s=18 if series.kind == "dots" else 60, facecolors=face, edgecolors=colour, label=label)
        else:
            axes.plot(x, y, color=colour, linestyle="--" if series.kind == "dashes" else "-", label=label)
    axes.set(title=chart.title, xlabel=chart.x_label, ylabel=chart.y_label)
    axes.set_xscale("log" if chart.log_x else "linear")
    axes.set_yscale("log" if chart.log_y else "linear")
    if any(series.name for series in chart.series):
        axes.legend(fontsize=8)
    partial = f"{path}.partial"
    try:
        figure.savefig(partial, format=path.rpartition(".")[2], dpi=130, bbox_inches="tight")
        os.replace(partial, path)
    except OSError as problem:
        raise UserError(f"cannot write {path}: {problem.strerror or problem}") from None
    finally:
        pyplot.close(figure)
