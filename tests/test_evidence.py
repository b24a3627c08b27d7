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
    # Rows on strategies that advice does not choose yet, and rows on machines and stacks, are for plans, benchmarks and readers.
    assert {row.strategy for row in ROWS} <= known | {"hsdp", "zero2", "zero3", "any"}
    assert {row.id for row in evidence("ddp")} == {row.id for row in ROWS if row.strategy == "ddp"} and evidence("zero") == []


# Every figure that was measured in the five skills which this bundle starts from: what it is of, and how it is written there.
FIGURES = {
    "hsdp over full_shard": "42-47",
    "full_shard efficiency": "94",
    "ddp ceiling": "3",
    "fsdp smoke test": "4",
    "fsdp out of memory": "16",
    "sequence that ran": "1024",
    "sequence that did not": "2048",
    "layers a checkpoint": "1",
    "find_unused_parameters": "30",
    "zero-2 against ddp": "92",
    "zero-2 end to end": "9.8",
    "zero-3 at batch 8": "14.9",
    "hsdp before collapse": "252",
    "hsdp in collapse": "25-75",
    "backward in collapse": "12",
    "step of collapse": "20",
    "mfu of the model": "6",
    "mfu of 2b": "27.6",
    "tokens a sample": "708",
    "gain on one node": "4-5",
    "plateau": "10",
    "nic naming": "1.4",
    "torch 2.13 on 1 node": "37",
    "torch 2.13 on 2 nodes": "33",
    "torch 2.13 on 4 nodes": "14",
    "torch 2.13 on 10 nodes": "0",
    "isoflop deviation": "0.012",
    "isoflop signal": "11",
    "topology falsified": "10-20",
    "alpa moe": "9.7",
}


@pytest.mark.parametrize("what", FIGURES)
def test_every_measured_figure_has_a_row(what: str) -> None:
    assert [row for row in ROWS if row.value == FIGURES[what]], what


def test_no_row_beyond_the_list() -> None:
    assert {row.value for row in ROWS} == set(FIGURES.values()) | {"1"} and len(ROWS) >= len(FIGURES)


def test_advice_quotes_what_speaks_of_its_strategies_only() -> None:
    assert not [row for row in evidence("fsdp_full_shard") if row.strategy != "fsdp_full_shard"]
    assert {row.strategy for row in ROWS if row.strategy.startswith("fsdp")} == {"fsdp_full_shard", "fsdp_shard_grad_op"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("A,ddp,q,f,1,u,w,h,s,d,src,scope,report,more", "one too many"),
        ("A,ddp,q,f,1,u,w,h,s,d,src,scope", "missing"),
        ("A,ddp,q,f,1,u,w,h,s,d,src,,report", "empty"),
        ("A,ddp,q,f,1,u,w,h,s,d,src,scope,surely", "none of"),
        ("A,ddp,q,f,1,u,w,h,s,d,src,scope,report\nA,ddp,q,f,1,u,w,h,s,d,src,scope,report", "twice"),
    ],
)
def test_a_table_that_is_not_whole_is_refused(line: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text(",".join(Evidence.__slots__) + "\n" + line + "\n")
    with pytest.raises(ValueError, match=said):
        module.load(tmp_path / "e.csv")
    (tmp_path / "f.csv").write_text("id,figure\n1,2\n")
    with pytest.raises(ValueError, match="the columns are"):
        module.load(tmp_path / "f.csv")
