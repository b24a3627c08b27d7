#!/usr/bin/env python3
"""Score `check` on a folder of real configs with the verdict of the real libraries (index.csv): score_configs.py FOLDER

Prints a table: rejected files with an error that covers their trap, accepted files without an error that the libraries do not
raise, and keys called ignored that are. Files are laid out as in their repositories, so that references are found.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from trainwright.check.judge import judge
from trainwright.check.subject import Context
from trainwright.rules import load_all

STOPS = ("parse", "launcher", "plugin", "engine start")
IGNORED = {"ACC-UNKNOWN-NESTED", "ACC-KEY-IGNORED-TOP"}


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "index.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def lay_out(folder: Path, target: Path) -> dict[str, Path]:
    """Copy each file to where it stands in its repository; the paths by name."""
    places = {}
    for row in rows(folder):
        place = target / row["repo"].replace("/", "__") / row["path"]
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / row["file"], place)
        places[row["file"]] = place
    return places


def judged(path: Path) -> dict[str, Any]:
    report = judge([str(path)], Context())
    return dict(json.loads(report.to_json(None)))


def complaints(row: dict[str, str], envelope: dict[str, Any], covers: dict[str, set[str]]) -> dict[str, Any]:
    """What is wrong with the answer on one file: by measure, "" or the reason."""
    errors = [f for f in envelope["findings"] if f["severity"] == "error"]
    found = set().union(*(covers[f["rule"]] for f in errors)) if errors else set()
    expected = {trap for trap in row["expected_trap"].split(";") if trap}
    wrong: dict[str, Any] = {}
    if row["verdict"] == "rejected" and "TEMPLATE" not in row["expected_trap"]:
        missing = expected - found
        # ACC-NP-MISSING is information by traps.csv: the command line may give the number
        told = set().union(*(covers[f["rule"]] for f in envelope["findings"])) if envelope["findings"] else set()
        wrong["rejected"] = sorted(missing - (told & {"ACC-NP-MISSING"}))
    elif row["verdict"].startswith("loads-fine"):
        wrong["accepted"] = [f"{f['rule']} {f['message'][:90]}" for f in errors if f.get("fails_at") in STOPS]
    else:
        wrong["not judged"] = [f["rule"] for f in errors]
    if row["kind"] == "accelerate" and row["verdict"] == "loads-fine":
        wrong["ignored keys"] = sorted(ignored(envelope, covers) ^ said_ignored(row["silently_ignored"]))
    return wrong


def ignored(envelope: dict[str, Any], covers: dict[str, set[str]]) -> set[str]:
    """The keys that the findings call ignored."""
    keys: set[str] = set()
    for finding in envelope["findings"]:
        if covers[finding["rule"]] & IGNORED:
            keys |= set(finding.get("data", {}).get("keys") or [finding.get("path", "")])
    return keys


def said_ignored(text: str) -> set[str]:
    return {re.sub(r"\(.*", "", part).strip() for part in text.split(" ; ") if part.strip()}


def score(folder: Path) -> tuple[Counter[str], Counter[str], list[str]]:
    """(right, all) by measure, and a line for each file that is wrong."""
    covers = {code: {*rule.covers} for code, rule in load_all("check").items()}
    right, total, lines = Counter[str](), Counter[str](), list[str]()
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as scratch:
        places = lay_out(folder, Path(scratch))
        os.chdir(scratch)
        try:
            for row in rows(folder):
                for measure, wrong in complaints(row, judged(places[row["file"]]), covers).items():
                    total[measure] += 1
                    right[measure] += not wrong
                    lines += [f"{measure}: {row['file']}: {wrong}"] if wrong else []
        finally:
            os.chdir(here)
    return right, total, lines


if __name__ == "__main__":
    if len(sys.argv) != 2 or not (Path(sys.argv[1]) / "index.csv").is_file():
        sys.exit("usage: score_configs.py FOLDER, a folder of configs with index.csv")
    right, total, lines = score(Path(sys.argv[1]).resolve())
    for line in lines:
        print(line)
    for measure in total:
        print(f"{measure:13} {right[measure]:4} of {total[measure]:4}")
    sys.exit(bool(lines))
