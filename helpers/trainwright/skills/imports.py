"""What the library's modules import of it, so that a skill holds all that its scripts need and nothing else."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping

# An import under such a question is asked for first: the code does without it where a skill does not hold it.
_ASKED = ("importable(", "find_spec(", "TYPE_CHECKING")


def needed(sources: Mapping[str, str], roots: Iterable[str]) -> set[str]:
    """Paths of `roots` and of every module that they import, directly or not.

    `sources` is path to text of the whole library (check/judge.py). Raises SyntaxError where a text does not parse.
    """
    found: set[str] = set()
    waiting = [root for root in roots if root in sources]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += [target for _, _, target in targets(sources[path], sources) if target]
    return found


def targets(source: str, files: Collection[str]) -> Iterator[tuple[int, str, str]]:
    """Line, dotted name and path in `files` ("" where it is not there) of each module of ours that a source needs."""
    for node in _walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "trainwright":
            yield from ((node.lineno, *_target(node.module, alias.name, files)) for alias in node.names)
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("trainwright.")]
            yield from ((node.lineno, *_target(name, "", files)) for name in names)


def _target(module: str, name: str, files: Collection[str]) -> tuple[str, str]:
    """`name` of a module that is a file, else the module `name` of a package: packages are empty, they hold no other names."""
    base = "/".join(module.split(".")[1:])
    if f"{base}.py" in files:
        return module, f"{base}.py"
    inner = f"{base}/{name}.py".lstrip("/")
    dotted = f"{module}.{name}".rstrip(".")
    return (dotted, inner) if inner in files else (module if base else dotted, "")


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Every node but those that run only where an import was asked for first."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and any(word in ast.unparse(child.test) for word in _ASKED):
            for other in child.orelse:
                yield other
                yield from _walk(other)
        else:
            yield child
            yield from _walk(child)
