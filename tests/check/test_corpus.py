"""Real configs and reported bugs with the verdict of the real accelerate and deepspeed: `check` tells what they refuse, and no more."""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import io
import json
from pathlib import Path
from typing import Any

import pytest

from trainwright.cli import main
from trainwright.rules import load_all

TOOL = Path(__file__).resolve().parents[2] / "tools" / "score_configs.py"


@pytest.fixture(scope="module")
def tool() -> Any:
    spec = importlib.util.spec_from_file_location("score_configs", TOOL)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def scored(data: Path, tool: Any) -> tuple[dict[str, int], dict[str, int], list[str]]:
    right, total, lines = tool.score(data / "configs")
    return right, total, lines


def test_every_refused_file_has_an_error_of_its_trap(scored: Any) -> None:
    _right, total, lines = scored
    assert total["rejected"] > 20 and not [line for line in lines if line.startswith("rejected")]


def test_no_accepted_file_has_an_error_that_the_libraries_do_not_raise(scored: Any) -> None:
    _right, total, lines = scored
    assert total["accepted"] > 150 and not [line for line in lines if line.startswith("accepted")]


def test_ignored_keys_are_those_that_the_libraries_ignore(scored: Any) -> None:
    _right, total, lines = scored
    assert total["ignored keys"] > 50 and not [line for line in lines if line.startswith("ignored keys")]


def test_templates_and_other_tools_files_are_not_judged(scored: Any) -> None:
    _right, total, lines = scored
    assert total["not judged"] > 10 and not [line for line in lines if line.startswith("not judged")]


def test_dialects(data: Path, tool: Any) -> None:
    from trainwright.check.files import load

    dialects = {(row["kind"], load(str(data / "configs" / row["file"])).dialect) for row in tool.rows(data / "configs")}
    assert dialects == {
        ("accelerate", "accelerate"),
        ("accelerate", "sagemaker"),
        ("deepspeed", "deepspeed"),
        ("deepspeed?", "template"),
        ("neox", "gpt-neox"),
    }


# "hf": false with "auto" batch sizes: DeepSpeed itself would stop at those before it comes to the reported bug.
BOTH_ARE_TRUE = {"75.json"}


def test_reported_bugs_are_found_and_nothing_else(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    covers = {code: {*rule.covers} for code, rule in load_all("check").items()}
    monkeypatch.chdir(data / "config-bugs")
    missing, unexpected = {}, {}
    with open("index.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        context = tmp_path / "context.json"
        context.write_text(row["context"] or "{}")
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            main(["check", row["file"], "--context", str(context), "--format", "json", "--limit", "0"])
        findings = json.loads(out.getvalue())["findings"]
        expected = {trap for trap in row["expected_finding"].split(";") if trap}
        found = set().union(*(covers[f["rule"]] for f in findings)) if findings else set()
        if expected - found:
            missing[row["file"]] = expected - found
        worst = ("error",) if expected else ("error", "warning")
        extra = [f["rule"] for f in findings if f["severity"] in worst and not covers[f["rule"]] & expected]
        if extra and row["file"] not in BOTH_ARE_TRUE:
            unexpected[row["file"]] = extra
    assert len(rows) > 60 and not missing and not unexpected
