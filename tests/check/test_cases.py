"""tests/cases: each file is one case, judged by the real command. A new case is a new file.

A positive case says in comments on top what is expected, in full above information: `# expect: RULE severity path` (path `-` for
none), which traps it shows (`# trap: ID`), with what facts (`# context: {...}`, the JSON of --context) and options
(`# options: ...`; MODEL stands for the demo model). A JSON case says so in a file beside it, NAME.json.expect. A negative case has
nothing above information.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from trainwright.check.files import load as file_of
from trainwright.cli import main
from trainwright.document import load
from trainwright.report import CHECKED
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
    """What `check` says of a case, in the folder that it stands in."""
    options = [str(MODEL) if word == "MODEL" else word for line in said(case, "options") for word in shlex.split(line)]
    here, out = os.getcwd(), io.StringIO()
    os.chdir(case.parent)
    try:
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(out):
            for text in said(case, "context"):
                (Path(folder) / "context.json").write_text(text)
                options += ["--context", f"{folder}/context.json"]
            main(["check", str(case), *options, "--format", "json", "--limit", "0"])
    finally:
        os.chdir(here)
    return list(json.loads(out.getvalue())["findings"])


@pytest.mark.parametrize("case", POSITIVE, ids=lambda case: case.name)
def test_positive(case: Path) -> None:
    """All that is above information, in full; of information what the case names."""
    expected = sorted(said(case, "expect"))
    found = sorted(f"{f['rule']} {f['severity']} {f.get('path', '-')}" for f in findings(case))
    assert [line for line in found if line.split()[1] != "info" or line in expected] == expected


@pytest.mark.parametrize("case", POSITIVE, ids=lambda case: case.name)
def test_each_finding_has_its_place_and_its_stage(case: Path) -> None:
    for finding in findings(case):
        assert finding["fails_at"] and finding["checked"] in CHECKED
        path, _, rest = finding["where"].rpartition(case.name)
        if "--c" in finding["where"] or "../" in finding["where"]:
            continue  # a launch line, or the file that the case refers to
        assert path == f"{case.parent}/" and re.fullmatch(r"(:\d+){0,2}", rest)
        key: list[Any] = finding.get("path", "").split(".")
        if "-json" in case.name or case.suffix == ".py" or said(case, "trap") == ["ADS-JSON-STRICT"]:
            continue
        if rest.count(":") == 2 and finding["rule"] != "DOC001" and load(str(case)).has(*key):
            line, column = map(int, rest[1:].split(":"))
            assert case.read_text().split("\n")[line - 1][column - 1 :].lstrip('"').startswith(key[-1])


@pytest.mark.parametrize("case", NEGATIVE, ids=lambda case: case.name)
def test_negative(case: Path) -> None:
    assert [f for f in findings(case) if f["severity"] != "info"] == []


def test_every_covered_trap_has_a_case() -> None:
    shown = {trap: said(case, "expect") for case in POSITIVE for trap in said(case, "trap")}
    covered: dict[str, set[str]] = {}
    for rule in load_all("check").values():
        for trap in rule.covers if rule.find.__module__.startswith("trainwright.check.") else ():
            covered.setdefault(trap, set()).add(rule.code)
    assert set(shown) == set(covered)
    for case in POSITIVE:
        fired = {line.split()[0] for line in said(case, "expect")}
        assert all(covered[trap] & fired for trap in said(case, "trap")), case.name


def test_cases_are_small() -> None:
    assert all(case.stat().st_size < 2000 for case in [*POSITIVE, *NEGATIVE]) and len(POSITIVE) > 40 and len(NEGATIVE) > 10


# torchrun, not Accelerate, stops at the first two counts; the third is right where the command line gives the count.
NOT_TOLD_BY_THE_ORACLE = {"count-null.yaml", "count-zero.yaml", "count-missing.yaml", "acc-ip-format.yaml", "ads-launcher-name.yaml"}


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed")
def test_the_real_accelerate_agrees() -> None:
    """Where a case is said to stop Accelerate it does, at that stage; every other case gets past its launcher and plugin."""
    cases = [case for case in [*POSITIVE, *NEGATIVE] if "DOC001" not in str(said(case, "expect")) and "other-tool" not in case.name]
    cases = [case for case in cases if case.suffix == ".yaml" and case.name not in NOT_TOLD_BY_THE_ORACLE and not said(case, "context")]
    cases = [
        case for case in cases if file_of(str(case)).dialect in ("accelerate", "template", "unknown") and "load_in" not in case.read_text()
    ]
    cases = [case for case in cases if "DEEPSPEED" not in case.read_text() and "SAGEMAKER" not in case.read_text()]
    lines = "".join(json.dumps({"accelerate": str(case)}) + "\n" for case in cases)
    argv = [sys.executable, str(Path(__file__).parent / "backend_oracle.py")]
    done = subprocess.run(argv, input=lines, capture_output=True, text=True, timeout=300)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == len(cases) > 100, done.stderr
    for case, row in zip(cases, rows, strict=True):
        stages = {f["fails_at"] for f in findings(case) if f["severity"] == "error"}
        assert row["stage"] == next((s for s in ("parse", "launcher", "plugin") if s in stages), ""), (case.name, row)


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
