"""Real configs with the verdict of the real accelerate and deepspeed: what they accept, `check` calls no error that stops it."""

from __future__ import annotations

import contextlib
import csv
import io
import json
from pathlib import Path
from typing import Any

from trainwright.cli import main
from trainwright.rules import load_all

STOPS = ("parse", "launcher", "plugin")


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "index.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def judged(path: Path, *options: str) -> tuple[int, dict[str, Any]]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(["check", str(path), *options, "--format", "json", "--limit", "0"])
    return code, json.loads(out.getvalue())


def test_no_false_error_on_real_configs(data: Path) -> None:
    wrong, dialects = {}, set()
    for row in rows(data / "configs"):
        code, envelope = judged(data / "configs" / row["file"])
        assert code in (0, 1, 2), row["file"]
        dialects.add((row["kind"], envelope["data"]["files"][0]["dialect"]))
        stops = [f["message"] for f in envelope["findings"] if f["severity"] == "error" and f.get("fails_at") in STOPS]
        if row["verdict"].startswith("loads-fine") and stops:
            wrong[row["file"]] = stops
    assert not wrong
    assert dialects == {
        ("accelerate", "accelerate"),
        ("accelerate", "sagemaker"),
        ("deepspeed", "deepspeed"),
        ("deepspeed?", "unreadable"),
        ("neox", "unknown"),
    }


def test_what_accelerate_refuses_is_told(data: Path) -> None:
    covered = {trap: code for code, rule in load_all("check").items() for trap in rule.covers}
    for row in rows(data / "configs"):
        trap = row["expected_trap"]
        if row["kind"] == "accelerate" and row["verdict"] == "rejected" and trap in covered:
            assert covered[trap] in {f["rule"] for f in judged(data / "configs" / row["file"])[1]["findings"]}, row["file"]


def test_reported_bugs_are_found_and_nothing_else(data: Path) -> None:
    """Every expected trap that a rule covers and that needs no fact beside the file; no error and, on a good file, no warning beside."""
    covers = {code: {*rule.covers} for code, rule in load_all("check").items()}
    covered = set().union(*covers.values()) - {"FSDP-CLS-WRONG"}  # needs the model
    for row in rows(data / "config-bugs"):
        context = json.loads(row["context"] or "{}")
        ranks = ["--world-size", str(context["world_size"])] if "world_size" in context else []
        findings = judged(data / "config-bugs" / row["file"], *ranks)[1]["findings"]
        expected = {trap for trap in row["expected_finding"].split(";") if trap}
        found = set().union(*(covers[f["rule"]] for f in findings))
        assert expected & covered <= found, row["file"]
        worst = ("error",) if expected else ("error", "warning")
        assert not [f for f in findings if f["severity"] in worst and not covers[f["rule"]] & expected], row["file"]
