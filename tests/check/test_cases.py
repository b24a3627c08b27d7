"""tests/cases: each file is one case, judged by the real command. A new case is a new file.

A positive case says in comments on top what is expected, in full: `# expect: RULE severity path` (path `-` for none), which
traps it shows (`# trap: ID`) and with what options (`# options: ...`; MODEL stands for the demo model). A JSON case says so
in a file beside it, NAME.json.expect. A negative case has nothing above information.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainwright.cli import main
from trainwright.document import load
from trainwright.rules import load_all

CASES = Path(__file__).resolve().parents[1] / "cases"
MODEL = Path(__file__).resolve().parents[2] / "helpers/trainwright/models/llama-demo/config.json"
POSITIVE = sorted(p for p in CASES.glob("positive/*") if p.suffix != ".expect")
NEGATIVE = sorted(p for p in CASES.glob("negative/*") if p.suffix != ".expect")


def said(case: Path, word: str) -> list[str]:
    """What a case says on its comment lines `# WORD: ...`."""
    beside = case.with_name(f"{case.name}.expect")
    return re.findall(rf"^# {word}: (.*)$", (beside if beside.exists() else case).read_text(), re.MULTILINE)


def findings(case: Path) -> list[dict[str, Any]]:
    options = [str(MODEL) if word == "MODEL" else word for line in said(case, "options") for word in shlex.split(line)]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        main(["check", str(case), *options, "--format", "json", "--limit", "0"])
    return list(json.loads(out.getvalue())["findings"])


@pytest.mark.parametrize("case", POSITIVE, ids=lambda case: case.name)
def test_positive(case: Path) -> None:
    found = [f"{f['rule']} {f['severity']} {f.get('path', '-')}" for f in findings(case)]
    assert sorted(found) == sorted(said(case, "expect"))


@pytest.mark.parametrize("case", POSITIVE, ids=lambda case: case.name)
def test_each_finding_has_its_place_and_its_stage(case: Path) -> None:
    for finding in findings(case):
        path, _, rest = finding["where"].rpartition(case.name)
        assert path == f"{case.parent}/" and re.fullmatch(r"(:\d+){0,2}", rest)
        assert finding["fails_at"] and finding["checked"] == "run"
        key = finding.get("path", "").split(".")
        if rest.count(":") == 2 and finding["rule"] != "DOC001" and load(str(case)).has(*key):
            line, column = map(int, rest[1:].split(":"))
            assert case.read_text().split("\n")[line - 1][column - 1 :].lstrip('"').startswith(key[-1])


@pytest.mark.parametrize("case", NEGATIVE, ids=lambda case: case.name)
def test_negative(case: Path) -> None:
    assert [f for f in findings(case) if f["severity"] != "info"] == []


def test_every_covered_trap_has_a_case() -> None:
    shown = {trap: said(case, "expect") for case in POSITIVE for trap in said(case, "trap")}
    rules = [rule for rule in load_all("check").values() if rule.find.__module__.startswith("trainwright.check.")]
    covered = {trap: rule.code for rule in rules for trap in rule.covers}
    assert set(shown) == set(covered)
    for case in POSITIVE:
        fired = {line.split()[0] for line in said(case, "expect")}
        assert {covered[trap] for trap in said(case, "trap")} <= fired, case.name


def test_cases_are_small() -> None:
    assert all(case.stat().st_size < 2000 for case in [*POSITIVE, *NEGATIVE]) and len(POSITIVE) > 40 and len(NEGATIVE) > 10


# torchrun, not Accelerate, stops at the first two counts; the third is right where the command line gives the count.
NOT_TOLD_BY_THE_ORACLE = {"count-null.yaml", "count-zero.yaml", "count-missing.yaml"}


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed")
def test_the_real_accelerate_agrees() -> None:
    """Where a case is said to stop Accelerate it does, at that stage; every other case gets past its launcher and plugin."""
    cases = [case for case in [*POSITIVE, *NEGATIVE] if "DOC001" not in str(said(case, "expect")) and "other-tool" not in case.name]
    cases = [case for case in cases if case.name not in {"deepspeed.json", *NOT_TOLD_BY_THE_ORACLE}]
    argv = [sys.executable, str(CASES.parent / "emit/accelerate_oracle.py"), *map(str, cases)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for row in map(json.loads, done.stdout.splitlines()):
        stages = {f["fails_at"] for f in findings(Path(row["path"])) if f["severity"] == "error"}
        assert row["stage"] == next((s for s in ("parse", "launcher", "plugin") if s in stages), ""), row


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_the_classes_of_a_model_are_those_of_transformers() -> None:
    from trainwright.check.rules.accelerate_fsdp import MODULE_CLASSES

    code = (
        "import json, sys, torch, transformers\n"
        "config = transformers.AutoConfig.from_pretrained(sys.argv[1])\n"
        "with torch.device('meta'):\n"
        "    model = transformers.AutoModelForCausalLM.from_config(config)\n"
        "print(json.dumps(sorted({type(m).__name__ for m in model.modules()})))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(MODEL.parent)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)) <= set(MODULE_CLASSES["llama"])
