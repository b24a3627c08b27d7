"""A malformed bundle is findings or one clear line, never a fault of ours."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from trainwright.cli import main
from trainwright.errors import Exit

ROOT = Path(__file__).resolve().parents[2]
SKILL = "distributed-strategy"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A copy of this repository's bundle: manifest, page and evals, without the library's copies."""
    for name in ("skill-manifest.yaml", "README.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "skills" / SKILL / "evals", tmp_path / "skills" / SKILL / "evals")
    shutil.copy(ROOT / "skills" / SKILL / "SKILL.md", tmp_path / "skills" / SKILL / "SKILL.md")
    return tmp_path


@pytest.mark.parametrize(
    "skills",
    ["7", "[a, b]", "{1: {}}", "{UPPER: {}}", "{a: 1}", "{a: {library: ['/etc/*']}}", "{a: {library: ['']}}", "{a: {library: ['x**y']}}"],
)
def test_a_manifest_that_is_not_one_is_one_line(skills: str, bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head = "name: x\ndescription: d\nlicense: L\nauthor: A\npython: p\ncategory: c\nkeywords: [k]\n"
    (bundle / "skill-manifest.yaml").write_text(f"{head}skills: {skills}\n")
    for command in (["validate"], ["sync", "--check"]):
        assert main(["skills", *command, "--root", str(bundle)]) == Exit.USAGE
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "text", "rule"),
    [
        ("scripts/x.py", "def (", "skill-idiom"),
        ("scripts/x.py", "(" * 5000, "skill-idiom"),
        ("evals/evals.json", json.dumps({"skill_name": SKILL, "evals": [1, 2, 3, 4, 5]}), "skill-evals"),
        ("evals/evals.json", "[" * 100_000, "skill-evals"),
        ("evals/trigger-evals.json", "[1, 2]", "skill-evals"),
        ("SKILL.md", "---\nname: " + "9" * 5000 + "\n---\n", "skill-front-matter"),
        ("SKILL.md", "---\nname: " + "[" * 5000 + "\n---\n", "skill-front-matter"),
    ],
)
def test_a_malformed_file_is_a_finding(name: str, text: str, rule: str, bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = bundle / "skills" / SKILL / name
    target.parent.mkdir(exist_ok=True)
    target.write_text(text)
    assert main(["skills", "validate", "--root", str(bundle), "--format", "json", "--limit", "0"]) == Exit.FINDINGS
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert any(f["rule"] == rule and name in f["where"] for f in findings), [f["rule"] for f in findings]
