"""Copies without comments are the same code."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import yaml

from trainwright.skills.bare import bare, bare_table


def stripped(tree: ast.AST) -> str:
    """The tree without docstrings, as text."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list) or not body or not isinstance(body[0], ast.Expr):
            continue
        if isinstance(getattr(body[0].value, "value", None), str) and (len(body) > 1 or isinstance(node, ast.Module)):
            del body[0]
    return ast.dump(tree)


def test_the_whole_library_keeps_its_code(root: Path) -> None:
    for file in (root / "helpers" / "trainwright").rglob("*.py"):
        text = file.read_text()
        short = bare(text, "x.py")
        assert stripped(ast.parse(short)) == stripped(ast.parse(text)), file
        assert not short or short.startswith("# x.py without its comments\n")


@pytest.mark.parametrize(
    ("source", "left"),
    [
        ('"""Doc."""\n\n# a\nx = "# no comment"  # one\n', 'x = "# no comment"\n'),
        ('def f():\n    """All there is."""\n', 'def f():\n    """All there is."""\n'),
        ('def f():\n    """Doc\n    more."""\n    # why\n    return 1\n', "def f():\n    return 1\n"),
        ("x = (\n    1,  # first\n    2,\n)\n", "x = (\n    1,\n    2,\n)\n"),
        ("", ""),
    ],
)
def test_what_is_left(source: str, left: str) -> None:
    assert bare(source, "x.py") == (f"# x.py without its comments\n{left}" if left else "")


def test_tables_keep_their_values(root: Path) -> None:
    for file in (root / "helpers" / "trainwright").rglob("*.yaml"):
        text = file.read_text()
        short = bare_table(text, "x.yaml")
        assert yaml.safe_load(short) == yaml.safe_load(text), file
        assert short.startswith("# x.yaml without its comments and its layout\n") and "\n#" not in short


def test_a_rule_without_its_page_keeps_its_title_and_its_code(root: Path) -> None:
    for file in (root / "helpers" / "trainwright").rglob("rules/*.py"):
        text = file.read_text()
        short = ast.parse(bare(text, "x.py", titles=True))
        titles = {node.name: ast.get_docstring(node) for node in ast.walk(short) if isinstance(node, ast.FunctionDef)}
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and len(node.body) > 1:
                assert titles[node.name] == next(iter((ast.get_docstring(node) or "").splitlines()), None), (file, node.name)
        assert stripped(short) == stripped(ast.parse(text)), file


def test_a_rule_with_its_page_loses_nothing_else_than_comments(root: Path) -> None:
    for file in (root / "helpers" / "trainwright").rglob("rules/*.py"):
        text = file.read_text()
        short = ast.parse(bare(text, "x.py", pages=True))
        pages = {node.name: ast.get_docstring(node) for node in ast.walk(short) if isinstance(node, ast.FunctionDef)}
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and "rule(" in "".join(map(ast.unparse, node.decorator_list)):
                assert pages[node.name] == ast.get_docstring(node), (file, node.name)
        assert stripped(short) == stripped(ast.parse(text)), file
