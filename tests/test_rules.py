"""The registry: every rule's page holds up, and its examples are executed through the command that its users run."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainwright.cli import main
from trainwright.environment import Environment
from trainwright.report import Severity
from trainwright.rules import Hit, Rule, examples, load_all, rule

ROOT = Path(__file__).resolve().parents[1]
RULES = load_all()
EXAMPLES = [(code, number) for code, found in RULES.items() for number in range(len(examples(found.page)))]


def package_of(found: Rule) -> str:
    return found.find.__module__.split(".")[1]


def command_of(found: Rule, first: str) -> list[str]:
    """The command that judges a rule's subject in the file `first`: environments are doctor's, whose rules stand in check/."""
    if found.subject is Environment:
        return ["doctor", "--from", first]
    return {
        "check": ["check", first],
        "diagnose": ["diagnose", "."],
        "advise": ["advise", "--model", first],
        "plan": ["plan", "search", "--model", first],
    }[package_of(found)]


def findings_of(found: Rule, number: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The findings of the rule's own command on one of its examples."""
    example = examples(found.page)[number]
    for name, text in example.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)
    first = next(iter(example.files))
    command, *target = command_of(found, first)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([command, *target, *shlex.split(example.options), "--format", "json", "--limit", "0"])
    assert code in (0, 1, 2), err.getvalue()
    return list(json.loads(out.getvalue())["findings"])


@pytest.mark.parametrize(("code", "number"), EXAMPLES)
def test_bad_examples_fire_and_good_ones_are_silent(code: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = examples(RULES[code].page)[number]
    findings = findings_of(RULES[code], number, tmp_path, monkeypatch)
    fired = [f for f in findings if f["rule"] == code]
    if example.bad:
        assert fired, findings
        assert max(f["severity"] == RULES[code].severity.word for f in fired), "the Bad example shows the rule at its own severity"
    else:
        assert not [f for f in findings if f["severity"] != "info"], "a Good example is good by every rule"


@pytest.mark.parametrize("code", RULES)
def test_page(code: str) -> None:
    found = RULES[code]
    title, blank, *rest = found.page.split("\n")
    assert found.title == title and not blank and rest, "a title line, a blank line, and why it matters"
    assert title.endswith(".") and len(title) <= 140 and not re.search(r"  |`[^`]*$", title)
    assert not re.search(r"\b(TODO|FIXME|XXX)\b", found.page)
    shown = examples(found.page)
    assert {e.bad for e in shown} == {True, False}, "a Bad and a Good example"
    assert found.page.count("\nBad `") + found.page.count("\nGood `") == sum(len(e.files) for e in shown), "every example is one that runs"


@pytest.mark.parametrize("code", RULES)
def test_name_reads_as_what_is_allowed(code: str) -> None:
    name = RULES[code].name
    assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)+", name) and len(name) <= 40
    assert not re.match(r"(no|check|validate|test|must|rule|is|has)_", name), "the name says what is wrong, as in `allow NAME`"


def test_names_and_traps_are_told_once() -> None:
    names = [found.name for found in RULES.values()]
    traps = [(trap, found.subject) for found in RULES.values() for trap in found.covers]
    assert len(set(names)) == len(names) and len(set(traps)) == len(traps), "the same trap may show in two kinds of subject"
    assert all(re.fullmatch(r"[A-Z0-9]+(-[A-Z0-9.]+)+", trap) for trap, _ in traps)


def test_sources_resolve() -> None:
    sources = yaml.safe_load((ROOT / "references" / "sources.yaml").read_text(encoding="utf-8"))
    assert not {found.source for found in RULES.values()} - set(sources)
    for name in {found.source for found in RULES.values()}:
        assert set(sources[name]) >= {"title", "address", "date"} and sources[name]["address"].startswith("https://"), name


def test_covered_traps_are_known(data: Path) -> None:
    import csv

    with (data / "backend-keys" / "traps.csv").open(encoding="utf-8") as file:
        known = {row["id"] for row in csv.DictReader(file)}
    assert not {trap for found in RULES.values() for trap in found.covers if trap.startswith(("ACC-", "FSDP-"))} - known


def test_a_code_is_never_used_twice() -> None:
    register = rule("ACC001", Severity.INFO, str, fails_at="never", checked="run", source="x")
    with pytest.raises(AssertionError, match="used twice"):
        register(lambda subject: [Hit(subject)])
    for code, fails_at, checked in (("acc1", "never", "run"), ("ACC999", "some day", "run"), ("ACC999", "never", "maybe")):
        with pytest.raises(AssertionError):
            rule(code, Severity.INFO, str, fails_at=fails_at, checked=checked, source="x")


def test_a_hit_may_differ_from_its_rule_in_severity_and_stage() -> None:
    made = Rule(
        "ZZ001",
        "made_up",
        Severity.ERROR,
        str,
        lambda s: [Hit(s), Hit(s, severity=Severity.INFO, fails_at="never")],
        "parse",
        "run",
        "x",
        (),
    )
    first, second = made.judge("words")
    assert (first.severity, first.fails_at) == (Severity.ERROR, "parse")
    assert (second.severity, second.fails_at) == (Severity.INFO, "never")


def test_examples_are_read_with_their_options_and_further_files() -> None:
    page = "Title.\n\nBad `a.yaml` with `--x 1`:\n\n    a: 1\n\n      b: 2\nBad `b.json`:\n    {}\n\nGood `a.yaml`:\n    a: 2\n"
    bad, good = examples(page)
    assert bad.files == {"a.yaml": "\na: 1\n\n  b: 2\n", "b.json": "{}\n"} and bad.options == "--x 1" and bad.bad
    assert good.files == {"a.yaml": "a: 2\n"} and good.options == "" and not good.bad


def test_load_all_of_one_package_imports_no_other(run_command: Any) -> None:
    done = run_command("rules", "--format", "json")
    everything = {row["rule"] for row in json.loads(done.stdout)["data"]["rules"]}
    assert everything == set(RULES)
    assert {"ACC001", "DOC001"} <= set(load_all("check")) <= everything
