"""Each skill holds all that its scripts import, nothing that they do not, and little enough to be published."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from trainwright.cli import COMMANDS
from trainwright.skills.gates import MAX_SKILL
from trainwright.skills.imports import needed, targets

SKILLS = sorted({skill for command in COMMANDS.values() for skill in command.skills})


def library(root: Path, skill: str) -> dict[str, str]:
    """Path to text of the copied library's sources."""
    place = root / "skills" / skill / "scripts" / "trainwright"
    return {file.relative_to(place).as_posix(): file.read_text() for file in place.rglob("*.py")}


def asked_first(tree: ast.AST) -> set[ast.AST]:
    """The nodes under an `if` that asks whether a module is there."""
    asking = ("importable('trainwright.", "find_spec('trainwright.", "TYPE_CHECKING")
    tests = [node for node in ast.walk(tree) if isinstance(node, ast.If) and any(call in ast.unparse(node.test) for call in asking)]
    return {inner for test in tests for statement in test.body for inner in ast.walk(statement)}


@pytest.mark.parametrize("skill", SKILLS)
def test_every_import_of_the_copy_is_inside_the_copy(root: Path, skill: str) -> None:
    sources = library(root, skill)
    assert {f"{c.face.removeprefix('trainwright.').replace('.', '/')}.py" for c in COMMANDS.values() if skill in c.skills} <= set(sources)
    missing = []
    for path, text in sources.items():
        tree = ast.parse(text)
        guarded = asked_first(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("trainwright") and node not in guarded:
                base = "/".join(str(node.module).split(".")[1:])
                wanted = [f"{base}.py"] if f"{base}.py" in sources else [f"{base}/{alias.name}.py".lstrip("/") for alias in node.names]
                missing += [(path, module) for module in wanted if module not in sources]
    assert missing == []


def needs_numpy(sources: dict[str, str]) -> set[str]:
    """The modules that cannot be imported without numpy: those that import it on top, or a module that does."""
    on_top = {
        path: [node for node in ast.parse(text).body if isinstance(node, ast.Import | ast.ImportFrom)] for path, text in sources.items()
    }
    heavy = {path for path, nodes in on_top.items() if any("numpy" in ast.unparse(node) for node in nodes)}
    while more := {
        path
        for path, nodes in on_top.items()
        if path not in heavy and heavy & {target for _, _, target in targets("\n".join(map(ast.unparse, nodes)), sources)}
    }:
        heavy |= more
    return heavy


@pytest.mark.parametrize("skill", SKILLS)
def test_every_module_of_the_copy_imports_from_the_copy_alone(root: Path, skill: str) -> None:
    """By Python itself, with no installed package; the workers need torch, fits need numpy: neither is there."""
    sources = library(root, skill)
    heavy = needs_numpy(sources)
    modules = [path.removesuffix(".py").replace("/", ".") for path in sources if not path.endswith("__init__.py") and path not in heavy]
    names = [f"trainwright.{module}" for module in modules if not module.startswith("train.")]
    code = "import sys, importlib; sys.path.insert(0, sys.argv[1]); [importlib.import_module(name) for name in sys.argv[2:]]"
    argv = [sys.executable, "-B", "-S", "-E", "-c", code, str(root / "skills" / skill / "scripts"), *names]
    done = subprocess.run(argv, cwd="/", capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("skill", SKILLS)
def test_nothing_is_carried_that_no_script_reaches(root: Path, skill: str) -> None:
    sources = library(root, skill)
    faces = {f"{c.face.removeprefix('trainwright.').replace('.', '/')}.py" for c in COMMANDS.values() if skill in c.skills}
    found_by_name = {
        path
        for path in sources
        if "/rules/" in path or path.startswith(("train/", "check/source/", "isoflop/actions/")) or path == "isoflop/one_run.py"
    }
    asked_for = {"check/actions.py", "check/effective.py", "sarif.py"} & set(sources)  # the code does without them where they are not there
    reached = needed(sources, {"cli.py"} | faces | found_by_name | asked_for)
    assert {path for path in sources if not path.endswith("__init__.py")} <= reached


@pytest.mark.parametrize("skill", SKILLS)
def test_the_size_is_below_the_limit(root: Path, skill: str) -> None:
    size = sum(file.stat().st_size for file in (root / "skills" / skill).rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    assert size < MAX_SKILL == 500_000, f"{size:,} bytes: give what grew a skill of its own"


def test_what_a_module_needs() -> None:
    sources = {
        "a.py": "import trainwright\nfrom trainwright import b\nfrom trainwright.c.d import e\nfrom trainwright.c import f\nimport json",
        "b.py": "def late():\n    from trainwright.g import h\n",
        "c/d.py": "from trainwright.a import x",
        "c/f.py": "import trainwright.c.i\n",
        "c/i.py": "if probe.importable('trainwright.z'):\n    from trainwright.z import z\nelse:\n    from trainwright.j import k\n",
        "g.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from trainwright.z import z\n",
        "j.py": "",
        "z.py": "",
    }
    assert needed(sources, {"a.py", "not there.py"}) == set(sources) - {"z.py"}
    del sources["g.py"], sources["c/f.py"]
    found = {(path, line, name) for path, text in sources.items() for line, name, target in targets(text, sources) if not target}
    assert found == {("b.py", 2, "trainwright.g"), ("a.py", 4, "trainwright.c")}
