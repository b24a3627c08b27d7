# explain.py without its comments
from __future__ import annotations

import argparse
import difflib

from trainwright.errors import UserError
from trainwright.report import Report
from trainwright.rules import Rule, load_all

EXAMPLES = "example: trainwright explain ACC001"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("code", help="a rule's code (ACC001), its name, or the id of a trap it covers")


def run(options: argparse.Namespace) -> Report:
    found = _find(options.code)
    facts = f"{found.severity.word}, fails at: {found.fails_at}, checked: {found.checked}, source: {found.source}"
    covers = [f"covers: {', '.join(found.covers)}"] if found.covers else []
    data = {
        "rule": found.code,
        "name": found.name,
        "severity": found.severity.word,
        "fails_at": found.fails_at,
        "checked": found.checked,
        "source": found.source,
        "covers": list(found.covers),
        "page": found.page,
    }
    return Report("explain", data=data, text=[f"{found.code} {found.name}", facts, *covers, "", *found.page.split("\n"), ""])


def _find(wanted: str) -> Rule:
    rules = load_all()
    names = {name: r for r in rules.values() for name in (r.code, r.name.upper(), *r.covers)}
    if wanted.upper() in names:
        return names[wanted.upper()]
    near = difflib.get_close_matches(wanted.upper(), names, n=3)
    hint = f"did you mean {', '.join(near)}?" if near else "`rules` lists them all"
    raise UserError(f"there is no rule {wanted!r} in this copy of the library; {hint}")
