# rules_list.py without its comments
from __future__ import annotations

import argparse

from trainwright.report import Report
from trainwright.rules import load_all

EXAMPLES = "example: trainwright rules --format json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--filter", metavar="TEXT", default="", help="only rules whose code, name or covered trap contains TEXT")


def run(options: argparse.Namespace) -> Report:
    wanted = options.filter.lower()
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
        for r in load_all().values()
        if wanted in " ".join((r.code, r.name, *r.covers)).lower()
    ]
    text = [f"{row['rule']}  {row['severity']:7}  {row['name']}: {row['title']}" for row in rows]
    return Report("rules", data={"rules": rows}, text=text)
