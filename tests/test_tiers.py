"""Who may import whom: a package imports only what stands above it, nothing of its own tier, and nothing imports the workers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

LIBRARY = Path(__file__).resolve().parents[1] / "helpers" / "trainwright"
CORE_FOLDERS = {"cost", "emit", "families"}
TIERS = [{"check", "diagnose"}, {"launch"}, {"advise", "plan", "bench", "isoflop", "doctor", "skills"}, {"demo"}, {"cli"}]
# The table of commands stands in the root; the bundle's stubs and README are generated from it.
DECLARED = {("skills", "cli")}


def tier(name: str) -> int:
    """0 for core, 1.. for the tiers; `name` is a package or a top-level module."""
    if name == "train":
        return len(TIERS) + 1
    if (LIBRARY / name).is_dir() and name not in CORE_FOLDERS:
        return next(number for number, names in enumerate(TIERS, start=1) if name in names)
    return next((number for number, names in enumerate(TIERS, start=1) if name in names), 0)


def part(module: str) -> str:
    """trainwright.cost.memory -> cost, trainwright.model -> model; the demo's page is part of the demo."""
    return module.split(".")[1].removesuffix("_page")


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Every node but those under `if TYPE_CHECKING:`, which nothing runs."""
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield child
            yield from walk(child)


def imports(source: str) -> Iterator[str]:
    """The trainwright modules that a source imports, at its top or inside a function."""
    for node in walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            names = [node.module or ""]
            if node.module == "trainwright":
                names = [f"trainwright.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.startswith("trainwright."))


def edges() -> set[tuple[str, str]]:
    """(importer, imported) between modules of the library, by dotted name."""
    found = set()
    for file in LIBRARY.rglob("*.py"):
        name = ".".join(("trainwright", *file.relative_to(LIBRARY).with_suffix("").parts))
        found |= {(name, target) for target in imports(file.read_text(encoding="utf-8"))}
    return found


def breach(importer: str, imported: str) -> str:
    """Why this import is not allowed, or ""."""
    here, there = part(importer), part(imported)
    if here == there or (here, there) in DECLARED:
        return ""
    if there == "train":
        return "nothing imports the workers"
    if here == "train":
        return "" if tier(there) == 0 else "the workers import core only"
    if tier(here) == 0:
        return "" if tier(there) == 0 else "core imports core only"
    return "" if tier(there) < tier(here) else "not above it"


def test_every_import_goes_up() -> None:
    broken = {f"{a} imports {b}: {why}" for a, b in edges() if (why := breach(a, b))}
    assert not broken


def test_breaches_are_seen() -> None:
    assert breach("trainwright.model", "trainwright.check.judge")
    assert breach("trainwright.check.judge", "trainwright.diagnose.lines")
    assert breach("trainwright.launch.command", "trainwright.advise.decide")
    assert breach("trainwright.diagnose.lines", "trainwright.train.run")
    assert breach("trainwright.train.run", "trainwright.check.judge")
    assert breach("trainwright.explain", "trainwright.cli")
    assert not breach("trainwright.launch.command", "trainwright.check.judge")
    assert not breach("trainwright.cost.memory", "trainwright.model")


def test_there_is_no_circle() -> None:
    graph: dict[str, set[str]] = {}
    for importer, imported in edges():
        graph.setdefault(importer, set()).add(imported)
    done: set[str] = set()

    def visit(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, f"a circle: {' -> '.join((*above, module))}"
        if module not in done:
            for target in sorted(graph.get(module, ())):
                visit(target, (*above, module))
            done.add(module)

    for module in sorted(graph):
        visit(module, ())


def test_package_markers_are_empty() -> None:
    marked = {file for file in LIBRARY.rglob("_*") if file.is_file() and file.suffix != ".pyc"}
    assert {file.name for file in marked} <= {"__init__.py"}
    assert not [file for file in marked if file.read_bytes()]
    folders = {file.parent for file in LIBRARY.rglob("*.py")}
    assert not [folder for folder in folders if not (folder / "__init__.py").is_file()]
