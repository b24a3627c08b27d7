# progress.py without its comments
from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Step(Protocol):

    def __call__(self, what: str, fraction: float | None = None) -> None: ...


@contextmanager
def progress(title: str, quiet: bool = False) -> Iterator[Step]:
    if quiet or not sys.stderr.isatty():
        yield silent
    elif importlib.util.find_spec("rich"):
        yield from _rich(title)
    else:
        yield from _plain(title)


def silent(what: str, fraction: float | None = None) -> None:
    """A Step that shows nothing."""


def _rich(title: str) -> Iterator[Step]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)

        def step(what: str, fraction: float | None = None) -> None:
            total = None if fraction is None else 1.0
            bar.update(task, description=f"{title}: {what}", total=total, completed=fraction or 0.0)

        yield step


def _plain(title: str) -> Iterator[Step]:
    def step(what: str, fraction: float | None = None) -> None:
        share = "" if fraction is None else f" {fraction:4.0%}"
        print(f"\r\033[K{title}: {what}{share}", end="", file=sys.stderr, flush=True)

    try:
        yield step
    finally:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
