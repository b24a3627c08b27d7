"""What the pages of the skills say is true: the commands parse, the rules exist, the evidence and the sources are there."""

from __future__ import annotations

import csv
import importlib
import re
import shlex
from pathlib import Path

import pytest
import yaml

from trainwright import cli
from trainwright.errors import Exit
from trainwright.rules import load_all

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("skills/*/SKILL.md"), *(p for p in ROOT.glob("references/*.md") if p.name != "rules.md")])


def command_lines() -> list[tuple[str, str]]:
    """(command, arguments) of every command line in the pages."""
    found = [match.groups() for page in PAGES for match in re.finditer(r"SKILL_DIR/scripts/([a-z]+)\.py( [^`\n|]*)?", page.read_text())]
    return sorted({(name, (arguments or "").strip()) for name, arguments in found})


@pytest.mark.parametrize(("name", "arguments"), command_lines())
def test_command_lines_parse(name: str, arguments: str) -> None:
    command = cli.COMMANDS[name]
    cli._parser(command, importlib.import_module(command.face)).parse_args(shlex.split(arguments))


@pytest.mark.parametrize("page", sorted(ROOT.glob("skills/*/SKILL.md")), ids=lambda page: page.parent.name)
def test_options_named_in_the_table_of_scripts_exist(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = re.findall(r"^\| \[([a-z]+)\.py\].*\| ([^|]*) \|$", page.read_text(), re.MULTILINE)
    assert {name for name, _ in rows} == {name for name, command in cli.COMMANDS.items() if page.parent.name in command.skills}
    for name, arguments in rows:
        assert cli.main([name, "--help"]) == Exit.OK
        text = capsys.readouterr().out
        assert [option for option in re.findall(r"--[a-z-]+", arguments) if option not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_rules_evidence_and_exit_codes_exist(page: Path) -> None:
    text = page.read_text()
    with open(ROOT / "helpers/trainwright/evidence.csv", newline="") as file:
        evidence = {row["id"] for row in csv.DictReader(file)}
    assert not set(re.findall(r"\b(?:ACC|DOC|RUN|ADV|DS|ENV)\d{3}\b", text)) - set(load_all())
    assert not set(re.findall(r"\bAURORA(?:-[A-Z0-9]+)+\b", text)) - evidence
    if page.name == "SKILL.md":
        codes = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
        assert codes == {int(code) for code in Exit}


def test_evidence_and_pages_name_known_sources() -> None:
    sources = set(yaml.safe_load((ROOT / "references" / "sources.yaml").read_text()))
    with open(ROOT / "helpers/trainwright/evidence.csv", newline="") as file:
        assert not {row["source"] for row in csv.DictReader(file)} - sources
    named = {
        name
        for page in PAGES
        for name in re.findall(r"\b(?:prism|alcf|accelerate|torch|zero)-[a-z0-9][a-z0-9.-]*[a-z0-9]\b", page.read_text())
    }
    assert named & sources and {name for name in named if "." in name or name.startswith(("prism", "alcf"))} <= sources
