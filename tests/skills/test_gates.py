"""Every gate of `skills validate`: silent on the skill as it is, loud on each way to break it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from trainwright import cli
from trainwright.skills.bundle import load_bundle
from trainwright.skills.gates import judge
from trainwright.skills.sync import drift, write

Break = Callable[[Path], object]


def rules(root: Path) -> set[str]:
    return {finding.rule for finding in judge(load_bundle(str(root)))}


def page(old: str, new: str, count: int = 1) -> Break:
    def change(skill: Path) -> None:
        text = (skill / "SKILL.md").read_text()
        assert old in text, old
        (skill / "SKILL.md").write_text(text.replace(old, new, count))

    return change


def put(path: str, content: str | bytes) -> Break:
    def change(skill: Path) -> None:
        target = skill / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)

    return change


def evals(change: Callable[[dict[str, object]], object]) -> Break:
    def rewrite(skill: Path) -> None:
        file = skill / "evals" / "evals.json"
        tasks = json.loads(file.read_text())
        change(tasks)
        file.write_text(json.dumps(tasks))

    return rewrite


def test_the_bundle_passes(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["skills", "validate", "--root", str(root)]) == 0, capsys.readouterr().out


BREAKS: dict[str, tuple[Break, str]] = {
    "too big a file": (put("references/big.md", "x\n" * 60_000), "skill-file"),
    "too many files": (lambda skill: [put(f"assets/{n}.md", "")(skill) for n in range(160)], "skill-size"),
    "a hidden file": (put(".hidden.md", ""), "skill-file"),
    "a binary": (put("assets/a.md", b"\0"), "skill-file"),
    "latin-1": (put("assets/a.md", b"\xe9"), "skill-file"),
    "a picture": (put("assets/a.png", "x"), "skill-file"),
    "a link": (lambda skill: (skill / "assets.md").symlink_to("SKILL.md"), "skill-file"),
    "a full __init__": (put("scripts/trainwright/__init__.py", "x = 1\n"), "skill-file"),
    "an underscore": (put("scripts/trainwright/_x.py", ""), "skill-file"),
    "a README": (put("README.md", ""), "skill-file"),
    "another folder": (put("docs/a.md", ""), "skill-file"),
    "a nested skill": (put("assets/SKILL.md", ""), "skill-nested"),
    "an extra key": (page("license:", "version: 1\nlicense:"), "skill-front-matter"),
    "another licence": (page("license: Apache-2.0", "license: MIT"), "skill-front-matter"),
    "another name": (page("name: distributed-strategy", "name: distributed"), "skill-front-matter"),
    "an unquoted version": (page('  version: "', "  version: 1 #"), "skill-front-matter"),
    "an old version": (page('  version: "', '  version: "9'), "skill-front-matter"),
    "no date": (page('  last_verified: "', '  last_verified: "x'), "skill-front-matter"),
    "no author": (page("  author:", "  writer:"), "skill-front-matter"),
    "an unquoted description": (page('description: "', "description: "), "skill-description"),
    "a long description": (page('description: "', 'description: "' + "x" * 200), "skill-description"),
    "no use when": (page("Use when", "Used if"), "skill-description"),
    "a tag": (page('description: "', 'description: "<b>'), "skill-description"),
    "second person": (page('description: "', 'description: "your '), "skill-description"),
    "a missing section": (page("## Gotchas", "## Traps"), "skill-sections"),
    "no run_script": (page("run_script", "running", 9), "skill-sections"),
    "no scope": (page("Does NOT", "Does not", 9), "skill-sections"),
    "an unlinked script": (page("(scripts/advise.py)", "(scripts/check.py)", 9), "skill-sections"),
    "too long": (page("## Gotchas", "\n" * 200 + "## Gotchas"), "skill-length"),
    "too many words": (page("## Gotchas\n", "## Gotchas\n" + "word " * 2400), "skill-length"),
    "a buzzword": (page("## Gotchas", "We leverage it.\n\n## Gotchas"), "skill-word"),
    "a forbidden word": (page("## Gotchas", "Type sudo make.\n\n## Gotchas"), "skill-word"),
    "a dead link": (page("(references/strategies.md)", "(references/nothing.md)", 9), "skill-link"),
    "no read when": (page("read when", "read", 99), "skill-link"),
    "a link in a reference": (put("references/strategies.md", "[x](y.md)\n"), "skill-reference"),
    "a long reference": (put("references/strategies.md", "x\n" * 102), "skill-reference"),
    "a deep reference": (put("references/deep/a.md", "x\n"), "skill-reference"),
    "an idiom": (put("scripts/trainwright/bad.py", "import os\nos.popen('x')\n"), "skill-idiom"),
    "a module left out": (put("scripts/trainwright/bad.py", "from trainwright.cost.memory import ledger\n"), "skill-import"),
    "an address in the library": (put("scripts/trainwright/bad.py", "X = 'https://example.org/x'\n"), "skill-address"),
    "no evals": (lambda skill: (skill / "evals" / "evals.json").unlink(), "skill-evals"),
    "few evals": (evals(lambda tasks: tasks.update(evals=[])), "skill-evals"),
    "another skill's evals": (evals(lambda tasks: tasks.update(skill_name="x")), "skill-evals"),
    "a missing fixture": (evals(lambda tasks: tasks["evals"][0].update(files=["evals/files/none.json"])), "skill-evals"),  # type: ignore[index]
    "no expectation": (evals(lambda tasks: tasks["evals"][0].pop("expected_exit")), "skill-evals"),  # type: ignore[index]
    "few triggers": (put("evals/trigger-evals.json", "[]"), "skill-evals"),
    "broken triggers": (put("evals/trigger-evals.json", "{"), "skill-evals"),
    "no page": (lambda skill: (skill / "SKILL.md").unlink(), "skill-page"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_each_break_is_found(small: Path, skill: Path, name: str) -> None:
    bundle = load_bundle(str(small))
    write(bundle, drift(bundle))
    assert rules(small) == set()
    change, rule = BREAKS[name]
    change(skill)
    assert rule in rules(small)


def test_an_unlisted_skill_is_found(small: Path) -> None:
    (small / "skills" / "other").mkdir()
    (small / "skills" / "other" / "SKILL.md").write_text("x")
    assert "skill-manifest" in rules(small)
