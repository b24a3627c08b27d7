"""The gates that every skill passes before it is published, each by its own tool, and each shown to be able to fail."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.gates
SKILL = "distributed-strategy"
PRIVATE = shutil.ignore_patterns(".git", ".venv*", ".*_cache", ".hypothesis", "__pycache__", "out", "dist", "build", "*.egg-info")


@pytest.fixture
def published(root: Path, tmp_path: Path) -> Path:
    """The repository as a clone would have it."""
    return Path(shutil.copytree(root, tmp_path / "trainwright", ignore=PRIVATE))


def run(name: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a tool of the gates' own environment."""
    default = Path(__file__).resolve().parents[2] / ".venv-gates"
    program = Path(os.environ.get("TRAINWRIGHT_GATES", default)) / "bin" / name
    assert program.is_file(), f"there is no {program}; `make gates` installs it"
    return subprocess.run([program, *arguments], cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)


def edit(published: Path, old: str, new: str) -> None:
    page = published / "skills" / SKILL / "SKILL.md"
    text = page.read_text()
    assert old in text
    page.write_text(text.replace(old, new, 1))


def agentskills(published: Path) -> str:
    answers = [run("agentskills", "validate", str(skill), cwd=published) for skill in sorted((published / "skills").iterdir())]
    return "".join(answer.stdout + answer.stderr for answer in answers if answer.returncode)


def skillsaw(published: Path) -> str:
    answer = run("skillsaw", "lint", "--strict", cwd=published)
    return answer.stdout + answer.stderr if answer.returncode else ""


def agnix(published: Path) -> str:
    answer = run("agnix", "--strict", ".", cwd=published)
    return answer.stdout + answer.stderr if answer.returncode else ""


def scanner(published: Path) -> str:
    """What skill-scanner finds at medium severity or above."""
    flags = ("--recursive", "--use-behavioral", "--use-trigger", "--check-overlap", "--format", "json")
    answer = run("skill-scanner", "scan-all", "skills", *flags, "--output", "scan.json", cwd=published)
    assert (published / "scan.json").is_file(), answer.stderr
    scan = json.loads((published / "scan.json").read_text())
    results = scan["results"]
    assert sorted(result["skill_name"] for result in results) == sorted(path.name for path in (published / "skills").iterdir())
    findings = [finding for result in results for finding in result["findings"]] + scan.get("cross_skill_findings", [])
    shown = [f"{f['severity']} {f['rule_id']} {f.get('file_path')}:{f.get('line_number')} {f['title']}" for f in findings]
    return "\n".join(line for line in shown if line.split()[0] not in ("INFO", "LOW", "SAFE"))


GATES = {"agentskills": agentskills, "skillsaw": skillsaw, "agnix": agnix, "skill-scanner": scanner}


@pytest.mark.parametrize("gate", GATES)
def test_the_bundle_passes(published: Path, gate: str) -> None:
    assert GATES[gate](published) == ""


def test_agentskills_can_fail(published: Path) -> None:
    edit(published, "license:", "version: 1\nlicense:")
    assert "Unexpected fields" in agentskills(published)


def test_skillsaw_can_fail(published: Path) -> None:
    edit(published, "(references/strategies.md)", "(references/nothing.md)")
    assert "nothing.md" in skillsaw(published)


def test_agnix_can_fail(published: Path) -> None:
    edit(published, "name: distributed-strategy", "name: Distributed_Strategy")
    assert "error" in agnix(published)


def test_the_scanner_can_fail(published: Path) -> None:
    bad = published / "skills" / SKILL / "scripts" / "bad.py"
    bad.write_text("import os\nimport subprocess\n\nsubprocess.run('ls ' + os.environ['HOME'], shell=True)\n")
    assert "bad.py" in scanner(published)


def test_the_scanner_sees_what_two_skills_share(published: Path) -> None:
    for name in ("distributed-strategy", "run-distributed-training"):
        (published / "skills" / name / "scripts" / "shared.py").write_text('"""See https://shared.example.net/x."""\n')
    assert "CROSS_SKILL" in scanner(published)
