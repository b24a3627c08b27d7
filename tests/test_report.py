"""The report: one envelope with ten keys, findings folded and limited, text that cannot steer a terminal."""

from __future__ import annotations

import json
import math
from datetime import date
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainwright.errors import Exit
from trainwright.report import Finding, Fix, Location, Report, Severity, finite, fold, printable

relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
KEYS = ["schema", "command", "version", "status", "counts", "findings", "inferred", "not_checked", "data", "truncated"]


def finding(rule: str = "ACC001", severity: Severity = Severity.ERROR, message: str = "wrong", line: int = 1, **more: Any) -> Finding:
    return Finding(rule, severity, message, Location("a.yaml", line, 3), **more)


def envelope(report: Report, limit: int = 0, fail_on: Severity | None = Severity.ERROR) -> dict[str, Any]:
    text = report.to_json(fail_on, limit)
    assert text.endswith("\n") and text.count("\n") == 1
    return dict(json.loads(text))


# --- JSON -----------------------------------------------------------------------------------------------------------


def test_the_envelope_has_ten_keys_whatever_it_holds() -> None:
    full = Report(
        "check", {"a": 1}, [finding()], [{"name": "n", "value": 1, "source": "s"}], [{"name": "n", "reason": "r"}], ["text"], "one"
    )
    for report in (Report("check"), full):
        assert list(envelope(report)) == KEYS
    assert envelope(Report("check")) | {"schema": "", "version": ""} == {
        "schema": "",
        "command": "check",
        "version": "",
        "status": "ok",
        "counts": {"error": 0, "warning": 0, "info": 0},
        "findings": [],
        "inferred": [],
        "not_checked": [],
        "data": None,
        "truncated": False,
    }


def test_a_finding_leaves_out_what_it_has_not() -> None:
    assert Finding("ACC001", Severity.INFO, "words").to_json() == {"rule": "ACC001", "severity": "info", "message": "words"}
    row = finding(path="a.b", fails_at="parse", fix=Fix({"a": None, "b": 0}, safe=True), checked="run", data={"n": 0}).to_json()
    assert row == {
        "rule": "ACC001",
        "severity": "error",
        "fails_at": "parse",
        "where": "a.yaml:1:3",
        "path": "a.b",
        "message": "wrong",
        "fix": {"safe": True, "set": {"a": None, "b": 0}, "note": ""},
        "checked": "run",
        "data": {"n": 0},
    }


def test_not_a_number_is_null() -> None:
    data = {"a": math.nan, "b": [math.inf, -math.inf, 1.5], "c": {"d": (math.nan,)}, 7: "key"}
    assert envelope(Report("x", data))["data"] == {"a": None, "b": [None, None, 1.5], "c": {"d": [None]}, "7": "key"}
    assert finite({1: math.nan}) == {"1": None}


def test_what_json_has_no_word_for_becomes_text() -> None:
    assert envelope(Report("x", {"a": {1}, "b": Severity.INFO, "c": b"x"}))["data"] == {"a": "{1}", "b": 1, "c": "b'x'"}


def test_json_shows_no_control_character_as_itself() -> None:
    text = Report("x", "\x1b[31m\x9b2J\u202e\x7f ü").to_json(None)
    assert all(c.isprintable() for c in text.rstrip("\n")) and "ü" in text
    assert json.loads(text)["data"] == "\x1b[31m\x9b2J\u202e\x7f ü"


@relaxed
@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_any_data_gives_one_line_of_strict_json(data: Any) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    assert list(json.loads(Report("x", data).to_json(None), parse_constant=refuse)) == KEYS


# --- outcome --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("severity", "fail_on", "outcome"),
    [
        (Severity.ERROR, Severity.ERROR, Exit.FINDINGS),
        (Severity.WARNING, Severity.ERROR, Exit.OK),
        (Severity.WARNING, Severity.WARNING, Exit.FINDINGS),
        (Severity.INFO, Severity.INFO, Exit.FINDINGS),
        (Severity.ERROR, None, Exit.OK),
    ],
)
def test_exit_follows_from_the_worst_finding(severity: Severity, fail_on: Severity | None, outcome: Exit) -> None:
    report = Report("x", findings=[finding(severity=severity), finding(severity=Severity.INFO)])
    assert report.outcome(fail_on) is outcome and envelope(report, fail_on=fail_on)["status"] == outcome.name.lower()


def test_an_exit_that_a_command_sets_stands() -> None:
    assert Report("x", findings=[finding()], exit=Exit.USAGE).outcome(None) is Exit.USAGE
    assert envelope(Report("x", exit=Exit.FAILED))["status"] == "failed"


# --- folding and limits ---------------------------------------------------------------------------------------------


def test_findings_that_say_the_same_fold_into_one() -> None:
    found = fold(
        [
            finding(line=1),
            finding(line=2, message="other"),
            finding(line=3),
            finding(line=4, severity=Severity.INFO),
            finding("ACC002", line=5),
        ]
    )
    assert [(f.rule, f.message, f.severity.word, f.also) for f in found] == [
        ("ACC001", "wrong", "error", ("a.yaml:3:3",)),
        ("ACC001", "other", "error", ()),
        ("ACC002", "wrong", "error", ()),
        ("ACC001", "wrong", "info", ()),
    ]
    assert found[0].to_json()["count"] == 2 and "count" not in found[1].to_json()


def test_the_worst_comes_first_and_equals_keep_their_order() -> None:
    found = fold(
        [
            finding(message="a", severity=Severity.INFO),
            finding(message="b"),
            finding(message="c", severity=Severity.WARNING),
            finding(message="d"),
        ]
    )
    assert [f.message for f in found] == ["b", "d", "c", "a"]


def test_a_limit_cuts_what_is_shown_and_says_so() -> None:
    report = Report("x", findings=[finding(message=f"m{n}") for n in range(5)] + [finding(message="m0", line=9)])
    cut = envelope(report, limit=2)
    assert [f["message"] for f in cut["findings"]] == ["m0", "m1"] and cut["truncated"] and cut["counts"]["error"] == 6
    assert not envelope(report)["truncated"] and not envelope(report, limit=5)["truncated"]
    assert "... 3 more findings (--limit 0 shows all)" in report.to_text(limit=2)
    assert "more findings" not in report.to_text()


# --- text -----------------------------------------------------------------------------------------------------------


def test_text_is_that_of_the_contract() -> None:
    fix = Fix({"train_batch_size": 96}, note="changes the global batch")
    found = Finding(
        "DS001", Severity.ERROR, "train_batch_size 100 != 96", Location("ds.json", 4, 3), "train_batch_size", "engine start", fix
    )
    report = Report(
        "check", findings=[found, finding(severity=Severity.INFO, fails_at="never", line=2), finding(severity=Severity.INFO, line=3)]
    )
    report.text, report.summary = ["first"], "2 files judged"
    report.infer("world size", 24, "job.sh:3")
    report.skip("b.yaml", "not known")
    report.skip("b.yaml", "not known")
    assert report.to_text().splitlines() == [
        "first",
        "ds.json:4:3: error DS001: train_batch_size 100 != 96 [engine start]",
        "  fix: train_batch_size 96 (changes the global batch)   why: explain DS001",
        "a.yaml:2:3: info ACC001: wrong (and 1 more: a.yaml:3:3)",
        "  why: explain ACC001",
        "inferred: world size = 24 (job.sh:3)",
        "not checked: b.yaml (not known)",
        "check: 2 files judged, 1 error, 2 info",
    ]
    assert report.to_text(quiet=True).splitlines()[-1] == "  why: explain ACC001"


def test_summary_counts_in_words() -> None:
    report = Report("check", summary="1 file judged")
    assert report.to_text() == "check: 1 file judged, nothing found\n"
    report.findings = [finding(), finding(message="b"), finding(severity=Severity.WARNING)]
    assert report.to_text().splitlines()[-1] == "check: 1 file judged, 2 errors, 1 warning"
    assert Report("rules").to_text() == ""


def test_a_finding_without_a_rule_page_points_to_none() -> None:
    assert Finding("USAGE", Severity.ERROR, "words").to_text() == "error USAGE: words"


def test_a_fix_in_words() -> None:
    assert str(Fix({"a": None, "b": "no", "c": 1})) == 'delete a, b "no", c 1'
    assert str(Fix({"a": [{date(2024, 1, 1): math.nan}]})) == 'a [{"2024-01-01": null}]'
    assert str(Fix({"a": {1}})) == 'a "{1}"' and len(str(Fix({"a": "x" * 9999}))) < 250


def test_locations() -> None:
    assert [str(Location("a")), str(Location("a", 2)), str(Location("a", 2, 3))] == ["a", "a:2", "a:2:3"]


def test_no_content_of_a_file_can_steer_the_terminal_or_forge_a_line() -> None:
    nasty = "\x1b[2J\r\x00\x9b\u202e\u2028\nerror ACC001: forged"
    report = Report(
        "check", findings=[Finding("ACC001", Severity.ERROR, nasty, Location(nasty, 1), fix=Fix({nasty: nasty}), also=(nasty,))]
    )
    report.infer(nasty, nasty, nasty)
    report.skip(nasty, nasty)
    text = report.to_text()
    assert all(c.isprintable() or c == "\n" for c in text)
    assert not [line for line in text.splitlines() if line.startswith("error")] and len(text.splitlines()) == 5


@relaxed
@given(st.text())
def test_printable_keeps_what_is_printable(text: str) -> None:
    shown = printable(text)
    assert all(c.isprintable() or c in "\n\t" for c in shown)
    assert not text.isprintable() or shown == text
