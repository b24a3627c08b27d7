"""`trainwright rules`: the registry as a table."""

from __future__ import annotations

import argparse
import re

from trainwright.report import Report
from trainwright.rules import load_all

EXAMPLES = "example: trainwright rules --format json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--filter", metavar="TEXT", default="", help="only rules with TEXT at the start of a word of their code, name, title or traps"
    )


def run(options: argparse.Namespace) -> Report:
    every, wanted = load_all().values(), _words(options.filter)
    rows = [
        {
            "rule": r.code,
            "name": r.name,
            "title": r.title,
            "severity": r.severity.word,
            "fails_at": r.fails_at,
            "checked": r.checked,
            "source": r.source,
            "covers": list(r.covers),
        }
        for r in every
        if f" {wanted}" in f" {_words(' '.join((r.code, r.name, r.title, *r.covers)))}"
    ]
    text = [f"{row['rule']}  {row['severity']:7}  {row['name']}: {row['title']}" for row in rows]
    if not rows:
        text = [f"no rule has {options.filter[:80]!r} in its code, name, title or traps; {len(every)} rules are here"]
    return Report("rules", data={"rules": rows}, text=text)


def _words(text: str) -> str:
    """In lower case, with one space for whatever stands between words."""
    return re.sub(r"[^a-z0-9]+", " ", text.lower()).lstrip()
