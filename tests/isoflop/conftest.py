"""What the tests of scaling studies share: recorded data, tables written on the spot, and simulated studies."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainwright import cli
from trainwright.isoflop.columns import mapping
from trainwright.isoflop.power import REFERENCE, around_optimum
from trainwright.isoflop.rows import Study, Wishes, study
from trainwright.isoflop.table import read_tables

Ask = Callable[..., tuple[int, dict[str, Any]]]
Write = Callable[..., str]


@pytest.fixture(scope="session")
def recorded(data: Path) -> Path:
    """The folder of recorded studies; skips where TRAINWRIGHT_DATA holds none."""
    folder = data / "isoflop"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    return folder


@pytest.fixture
def read() -> Callable[..., Study]:
    def reader(
        path: Path | str, columns: Iterable[str] = (), where: Iterable[str] = (), constants: Iterable[str] = (), **wishes: Any
    ) -> Study:
        return study(read_tables([str(path)], mapping(list(columns), list(where), list(constants))), Wishes(**wishes))

    return reader


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A CSV of rows (mappings), or of text as it stands."""

    def writer(rows: list[dict[str, Any]] | str, name: str = "runs.csv") -> str:
        path = tmp_path / name
        if isinstance(rows, str):
            path.write_text(rows, encoding="utf-8")
            return str(path)
        text = io.StringIO()
        table = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
        path.write_text(text.getvalue(), encoding="utf-8")
        return str(path)

    return writer


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """`trainwright isoflop ARGUMENTS --format json`: exit code and envelope."""

    def asker(*arguments: str) -> tuple[int, dict[str, Any]]:
        code = cli.main(["isoflop", *arguments, "--format", "json"])
        said = capsys.readouterr().out
        envelope: dict[str, Any] = json.loads(said) if said else {}
        return code, envelope

    return asker


def _simulated(spread: float = 10.0, sigma: float = 0.003, points: int = 7, budgets: int = 4, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of a study on the reference surface; the exponent is 0.514."""
    rng = np.random.default_rng(seed)
    plan = around_optimum(REFERENCE, 10.0 ** np.linspace(17, 20, budgets), points, spread, sigma, relative=True)
    loss = REFERENCE.loss(plan.params, plan.tokens) * np.exp(rng.normal(0, sigma, len(plan.params)))
    rows = zip(plan.params.tolist(), plan.tokens.tolist(), plan.flops.tolist(), loss.tolist(), strict=True)
    return [{"params": n, "tokens": d, "flops": c, "loss": x, "budget": c} for n, d, c, x in rows]


@pytest.fixture
def simulated() -> Callable[..., list[dict[str, Any]]]:
    """Rows of a study on the reference surface: simulated(spread=10, sigma=0.003, points=7, budgets=4, seed=0)."""
    return _simulated


@pytest.fixture
def study_arrays() -> Callable[..., tuple[Any, Any, Any, Any]]:
    """The same as arrays: params, tokens, flops, loss."""

    def arrays(**how: Any) -> tuple[Any, Any, Any, Any]:
        rows = _simulated(**how)
        n, d, c, loss = (np.array([row[key] for row in rows]) for key in ("params", "tokens", "flops", "loss"))
        return n, d, c, loss

    return arrays
