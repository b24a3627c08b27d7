# check/source/parse.py without its comments
from __future__ import annotations

import ast
import re
import sys
import warnings

from trainwright.document import DocumentError, read_text
from trainwright.report import Location

MAX_SOURCE = 512 * 1024
_OLD = re.compile(r"^\s*(print\s+[\"'\w]|exec\s+[\"']|except\s+[\w.]+\s*,\s*\w+\s*:|raise\s+\w+\s*,)|<>|\b0[0-7]+\b|\bur[\"']|`")


def read_source(path: str) -> tuple[str, ast.Module]:
    text = read_text(path, MAX_SOURCE)
    return text, parse_source(text, path)


def parse_source(text: str, path: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text.removeprefix("\ufeff"))
    except SyntaxError as problem:
        raise DocumentError(_why(text, problem), Location(path, problem.lineno, problem.offset)) from None
    except (RecursionError, MemoryError):
        raise DocumentError("is nested deeper than Python parses; no source written by hand is", Location(path)) from None
    except ValueError as problem:
        raise DocumentError(f"is no Python source: {problem}", Location(path)) from None


def _why(text: str, problem: SyntaxError) -> str:
    lines = text.split("\n")
    line = lines[problem.lineno - 1] if problem.lineno and problem.lineno <= len(lines) else ""
    if (problem.msg or "").startswith(("Missing parentheses in call", "multiple exception types")) or _OLD.search(line):
        return f"is Python 2 (line {problem.lineno}), which no release of these backends runs"
    version = ".".join(map(str, sys.version_info[:2]))
    return f"does not parse as Python {version}: {problem.msg}"
