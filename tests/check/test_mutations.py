"""Accepted configs, each with one trap more: exactly the rules of that trap speak, and the companions that the trap brings along."""

from __future__ import annotations

import csv
import importlib.util
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainwright.check.judge import judge
from trainwright.check.subject import Context
from trainwright.report import Finding
from trainwright.rules import load_all

HERE = Path(__file__).parent
EACH = 12  # configs a trap is applied to

Rows = list[tuple[Any, str, Counter[str], Counter[str]]]


def module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert spec and spec.loader
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def accepted(folder: Path) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Kind -> (file, value) of the configs that the real libraries take as they are."""
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {"deepspeed": [], "accelerate": []}
    with open(folder / "index.csv", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            path = folder / row["file"]
            if row["kind"] in found and row["verdict"].startswith("loads"):
                value = json.loads(path.read_text()) if path.suffix == ".json" else yaml.safe_load(path.read_text())
                found[row["kind"]].append((row["file"], value))
    return found


def findings(value: dict[str, Any], path: Path, change: Callable[[str], str] = str) -> list[Finding]:
    path.write_text(change(json.dumps(value) if path.suffix == ".json" else yaml.safe_dump(value, sort_keys=False)))
    return judge([str(path)], Context()).findings


def told(found: list[Finding]) -> Counter[str]:
    # information is told once a file, of all its keys together
    return Counter(f"{f.rule} {f.severity.word} {f.path if f.severity.word != 'info' else f.message}" for f in found)


@pytest.fixture(scope="module")
def pairs(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """(mutation, config, what is found more, what is found less)"""
    table, configs = module("mutations"), accepted(data / "configs")
    rows: Rows = []
    folder = tmp_path_factory.mktemp("mutations")
    for mutation in table.MUTATIONS:
        path = folder / ("x.json" if mutation.kind == "deepspeed" else "x.yaml")
        done = 0
        for name, value in configs[mutation.kind]:
            before = table.put(value, mutation.before)
            after = table.put(before, mutation.change)
            if done >= EACH or (after == before and mutation.change) or not mutation.fits(before):
                continue
            done += 1
            one, two = told(findings(before, path)), told(findings(after, path, mutation.text))
            rows.append((mutation, name, two - one, one - two))
        assert done >= 10, f"{mutation.trap} fits {done} configs alone"
    return rows


def right(covers: Callable[[str], set[str]], mutation: Any, more: Counter[str]) -> str:
    """ "" where exactly the trap and its companions are told, else what is wrong."""
    rules = {line.split()[0] for line in more}
    if not any(mutation.trap in covers(code) for code in rules):
        return "missed"
    loud = {line.split()[0] for line in more if line.split()[1] != "info"}
    extra = {code for code in loud if mutation.trap not in covers(code)} - {*mutation.also}
    return f"also {', '.join(sorted(extra))}" if extra else f"without {mutation.also}" if {*mutation.also} - rules else ""


@pytest.mark.long
def test_each_trap_is_told_and_nothing_else(pairs: Rows) -> None:
    known = load_all("check")

    def covers(code: str) -> set[str]:
        return {*known[code].covers}

    wrong = Counter[tuple[str, str]]()
    for mutation, _name, more, _less in pairs:
        if problem := right(covers, mutation, more):
            wrong[(f"{mutation.trap} {str(mutation.change)[:60]}", problem)] += 1
    traps = {mutation.trap for mutation, *_ in pairs}
    shown = {trap for rule in known.values() for trap in rule.covers}
    print(f"{len(pairs)} pairs of {len(traps)} traps, {sum(wrong.values())} wrong; not mutated: {', '.join(sorted(shown - traps))}")
    for (trap, problem), count in wrong.most_common():
        print(f"  {count:3} {trap}: {problem}")
    assert len(traps) > 120 and sum(wrong.values()) <= len(pairs) // 100, wrong.most_common(20)
