"""The deterministic half of every skill's evals: the scripts are called as written; and each query finds its skill by its words."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SKILLS = Path(__file__).resolve().parents[2] / "skills"
CASES = [
    pytest.param(path.parents[1], case, id=f"{path.parents[1].name}-{case['id']}")
    for path in sorted(SKILLS.glob("*/evals/evals.json"))
    for case in json.loads(path.read_text())["evals"]
]
QUERIES = [
    pytest.param(path.parents[1].name, row["query"], row["should_trigger"], id=f"{path.parents[1].name}-{number}")
    for path in sorted(SKILLS.glob("*/evals/trigger-evals.json"))
    for number, row in enumerate(json.loads(path.read_text()))
]
STOP = {
    *("a", "an", "and", "any", "are", "as", "at", "be", "by", "do", "does", "each", "for", "from", "how", "i", "if", "in", "into", "is"),
    *(
        "it",
        "its",
        "me",
        "my",
        "need",
        "not",
        "of",
        "on",
        "or",
        "our",
        "the",
        "this",
        "to",
        "use",  # every description says "Use when"
        "we",
        "what",
        "when",
        "which",
        "who",
        "why",
        "with",
    ),
}


@pytest.mark.parametrize(("skill", "case"), CASES)
def test_a_task_gives_what_it_expects(skill: Path, case: dict[str, Any], tmp_path: Path) -> None:
    alone = shutil.copytree(skill, tmp_path / "copied alone", ignore=shutil.ignore_patterns("__pycache__"))

    def call(*more: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, case["script"], *case["arguments"], *more]
        return subprocess.run(argv, cwd=alone, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)

    done = call("--format", "json")
    assert done.returncode == case["expected_exit"], done.stderr
    answer = json.loads(done.stdout)
    assert sorted({finding["rule"] for finding in answer["findings"]}) == case["expected_rules"]
    text = call().stdout
    assert [words for words in case["expected_text"] if words not in text] == []
    assert len(text) <= 10_000 and len(done.stdout) <= 20_000, "hosts of agents cut longer answers"


def words(text: str) -> set[str]:
    """The words that carry meaning, without a plural or third-person s."""
    found = re.findall(r"[a-z][a-z0-9]+", text.lower())
    return {word.rstrip("s") if len(word) > 3 else word for word in found if word not in STOP}


def descriptions() -> dict[str, set[str]]:
    """Per skill the words of its description that say what it is for, its "Not for" left out."""
    found = {}
    for page in SKILLS.glob("*/SKILL.md"):
        text = page.read_text()
        match = re.search(r'^description: "(.*)"$', text, re.MULTILINE)
        assert match, page
        tags = re.search(r'^  tags: "(.*)"$', text, re.MULTILINE)
        found[page.parent.name] = words(match[1].partition("Not for")[0] + (tags[1] if tags else ""))
    return found


def scores(query: str) -> dict[str, int]:
    return {name: len(words(query) & theirs) for name, theirs in descriptions().items()}


@pytest.mark.parametrize(("skill", "query", "should_trigger"), QUERIES)
def test_a_query_finds_its_skill_by_its_words(skill: str, query: str, should_trigger: bool) -> None:
    found = scores(query)
    if should_trigger:
        assert found[skill] >= 2 and found[skill] == max(found.values()), (found, words(query))
    else:
        assert found[skill] < 2, words(query) & descriptions()[skill]
