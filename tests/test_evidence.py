"""The rows that advice quotes: complete, sourced, scoped, and none of them a law."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import yaml

from trainwright import evidence as module
from trainwright.advise.decide import strategies
from trainwright.evidence import Evidence, evidence
from trainwright.model import load_model
from trainwright.report import CHECKED

ROOT = Path(__file__).resolve().parents[1]
ROWS = evidence()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_a_row_is_complete(row: Evidence) -> None:
    assert all(value.strip() for value in row.to_json().values())
    assert row.checked in CHECKED and row.checked == "report", "nobody here has run these"
    assert row.source in yaml.safe_load((ROOT / "references/sources.yaml").read_text(encoding="utf-8"))
    assert "http" not in " ".join(row.to_json().values())
    assert any(part in row.quote for part in row.value.split("-")), "the quote says the figure"


def test_ids_are_unique_and_rows_are_whole() -> None:
    assert len({row.id for row in ROWS}) == len(ROWS) >= 5
    with module.TABLE.open(encoding="utf-8", newline="") as file:
        lines = list(csv.reader(file))
    assert {len(line) for line in lines} == {len(Evidence.__slots__)} and lines[0] == list(Evidence.__slots__)


def test_rows_speak_of_strategies_that_advice_knows() -> None:
    model = load_model(str(ROOT / "helpers/trainwright/models/llama-demo/config.json"))
    known = {strategy.name for ranks in (1, 2) for strategy in strategies(model, ranks)}
    assert {row.strategy for row in ROWS} <= known
    assert {row.id for row in evidence("ddp")} == {row.id for row in ROWS if row.strategy == "ddp"} and evidence("zero") == []
