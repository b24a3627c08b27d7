"""Source without its comments and docstrings: a skill that would be too large carries its library so; names and code stay.

A rule's docstring is its page: it stays whole where the skill has `explain`, and keeps its title where it has not.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize

QUOTES = '"""'
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def bare(source: str, origin: str, *, titles: bool = False, pages: bool = False) -> str:
    """`source` with one line on top that names `origin`, where the text with its comments is.

    The code is the same, line breaks within it included. `titles` keeps the first line of each function's docstring,
    `pages` the whole docstring of each rule.
    Raises SyntaxError for what is no Python.
    """
    nodes = list(ast.walk(ast.parse(source)))
    documented = {line for node in nodes if not (pages and _is_rule(node)) for line in _docstring(node)}
    heads = {lines[0] for node in nodes if isinstance(node, ast.FunctionDef) and (lines := _docstring(node))} if titles else set()
    comments = {
        token.start[0]: token.start[1] for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type == tokenize.COMMENT
    }
    kept = []
    for number, line in enumerate(source.splitlines(keepends=True), 1):
        if number in heads:
            line = line.rstrip()
            line = (line if line.endswith(QUOTES) and line.strip() != QUOTES else line + QUOTES) + "\n"
        elif number in documented:
            continue
        if number in comments:
            line = line[: comments[number]].rstrip() + "\n"
            if not line.strip():
                continue
        kept.append(line)
    text = re.sub(r"\n{4,}", "\n\n\n", "".join(kept)).lstrip("\n")
    return f"# {origin} without its comments\n{text}" if text else text


def _is_rule(node: ast.AST) -> bool:
    calls = [each.func for each in getattr(node, "decorator_list", []) if isinstance(each, ast.Call)]
    return any(isinstance(call, ast.Name) and call.id == "rule" for call in calls)


def bare_table(source: str, origin: str) -> str:
    """YAML of the same value without comments and layout."""
    import yaml

    text = yaml.safe_dump(yaml.safe_load(source), default_flow_style=True, width=140, allow_unicode=True, sort_keys=False)
    text = re.sub(r"\n +", "\n ", text)  # within braces the depth of a line says nothing
    return f"# {origin} without its comments and its layout\n{text}"


def _docstring(node: ast.AST) -> range:
    """The lines of a node's docstring, none where it is all that the body holds."""
    if not isinstance(node, _DOCUMENTED) or not node.body or (len(node.body) == 1 and not isinstance(node, ast.Module)):
        return range(0)
    first = node.body[0]
    if not (isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)):
        return range(0)
    return range(first.lineno, (first.end_lineno or first.lineno) + 1)
