"""SARIF 2.1.0: the shape that the specification demands of what we write, places, rules and fingerprints."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from trainwright.cli import main
from trainwright.errors import Exit
from trainwright.report import Finding, Location, Severity
from trainwright.sarif import fingerprint


def _object(required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required.split(), "additionalProperties": False, "properties": properties}


# Written from the sections of the specification on the objects that we use (3.13 to 3.58): required properties, types, bounds.
TEXT = {"type": "string", "minLength": 1}
MESSAGE = _object("text", text=TEXT, markdown=TEXT)
LEVEL = {"enum": ["none", "note", "warning", "error"]}
BAG = {"type": "object"}
REGION = _object("startLine", startLine={"type": "integer", "minimum": 1}, startColumn={"type": "integer", "minimum": 1})
URI = {"type": "string", "pattern": r"^(file:///)?[^\s\\]+$"}
PHYSICAL = _object("artifactLocation", artifactLocation=_object("uri", uri=URI), region=REGION)
LOGICAL = {"type": "array", "minItems": 1, "items": _object("fullyQualifiedName", fullyQualifiedName=TEXT, kind=TEXT)}
LOCATION = {**_object("", physicalLocation=PHYSICAL, logicalLocations=LOGICAL), "minProperties": 1}
DESCRIPTOR = _object(
    "id",
    id={"type": "string", "pattern": r"^[A-Z0-9]+$"},
    name=TEXT,
    shortDescription=MESSAGE,
    fullDescription=MESSAGE,
    help=MESSAGE,
    defaultConfiguration=_object("level", level=LEVEL),
    properties=BAG,
)
RESULT = _object(
    "ruleId ruleIndex level message partialFingerprints",
    ruleId=TEXT,
    ruleIndex={"type": "integer", "minimum": 0},
    level=LEVEL,
    message=MESSAGE,
    locations={"type": "array", "minItems": 1, "maxItems": 1, "items": LOCATION},
    partialFingerprints={"type": "object", "additionalProperties": TEXT},
    properties=BAG,
)
NOTE = _object("message", level=LEVEL, message=MESSAGE, descriptor=_object("id", id=TEXT))
INVOCATION = _object(
    "executionSuccessful",
    executionSuccessful={"type": "boolean"},
    exitCode={"type": "integer"},
    toolExecutionNotifications={"type": "array", "items": NOTE},
)
DRIVER = _object("name", name=TEXT, version=TEXT, semanticVersion=TEXT, rules={"type": "array", "uniqueItems": True, "items": DESCRIPTOR})
RUN = _object(
    "tool results",
    tool=_object("driver", driver=DRIVER),
    invocations={"type": "array", "items": INVOCATION},
    columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
    results={"type": "array", "items": RESULT},
    properties=BAG,
)
LOG = _object("version runs", **{"$schema": {"type": "string"}}, version={"const": "2.1.0"}, runs={"type": "array", "items": RUN})


def sarif(*options: str) -> tuple[int, dict[str, Any]]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(["check", *options, "--format", "sarif"])
    log = json.loads(out.getvalue())
    Draft202012Validator(LOG).validate(log)
    (run,) = log["runs"]
    for result in run["results"]:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
    return code, run


BAD = "distributed_type: FSDP\nnum_processes: 4\nnum_gpus: 4\nfsdp_config:\n  fsdp_foo: é\n"


def test_places_levels_and_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a b.yaml").write_text(BAD)
    code, run = sarif("a b.yaml")
    assert code == Exit.FINDINGS and run["invocations"][0]["exitCode"] == 1
    rows = {r["ruleId"]: r for r in run["results"]}
    place = rows["ACC001"]["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "a%20b.yaml"}, "region": {"startLine": 3, "startColumn": 1}}
    assert rows["ACC001"]["level"] == "error" and rows["ACC002"]["level"] == "warning"
    assert rows["ACC002"]["locations"][0]["physicalLocation"]["region"] == {"startLine": 5, "startColumn": 3}
    rule = run["tool"]["driver"]["rules"][rows["ACC001"]["ruleIndex"]]
    assert "Bad `accelerate.yaml`" in rule["help"]["text"] and rule["defaultConfiguration"] == {"level": "error"}
    assert "not checked: " in run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]


def test_an_absolute_path_is_an_address_and_a_typed_line_is_none(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(BAD)
    assert sarif(str(path))[1]["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == path.as_uri()
    _, run = sarif("--cli", "accelerate launch --use_fsdp true train.py")
    assert run["results"][0]["locations"] == [{"logicalLocations": [{"fullyQualifiedName": "--cli"}]}]


def test_what_cannot_be_read_and_a_mistake_are_results_too(tmp_path: Path) -> None:
    code, run = sarif(str(tmp_path / "none.yaml"))
    assert code == Exit.USAGE and run["results"][0]["ruleId"] == "DOC001" and not run["invocations"][0]["executionSuccessful"]
    assert "region" not in run["results"][0]["locations"][0]["physicalLocation"]
    code, run = sarif("--schema", "none")
    assert code == Exit.USAGE and run["results"][0]["ruleId"] == "USAGE"


def test_nothing_is_cut_and_like_findings_differ_in_their_fingerprints(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number}.yaml").write_text(BAD)
    _, run = sarif(str(tmp_path), "--limit", "2")
    marks = [result["partialFingerprints"]["trainwright/v1"] for result in run["results"]]
    assert len(run["results"]) >= 60 and len(set(marks)) == len(marks)


def test_a_fingerprint_does_not_follow_the_lines() -> None:
    def finding(line: int, message: str = "x", path: str = "k") -> Finding:
        return Finding("ACC001", Severity.ERROR, message, Location("/t/a.yaml", line, 1), path)

    assert fingerprint(finding(3)) == fingerprint(finding(9)) == fingerprint(finding(9, "x"))
    assert fingerprint(finding(3, "the one in line 3 is")) == fingerprint(finding(3, "the one in line 7 is"))
    assert len({fingerprint(f) for f in (finding(3), finding(3, "y"), finding(3, "x", "l"))}) == 3
    assert fingerprint(finding(3), "/t") != fingerprint(finding(3))


def test_commands_without_places_do_not_offer_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "--format", "sarif"]) == Exit.USAGE and "invalid choice: 'sarif'" in capsys.readouterr().err
