"""What `skills sync` makes: every generated file of the repository, compared with what is there, or written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from trainwright.cli import COMMANDS
from trainwright.document import DocumentError, read_text
from trainwright.errors import UserError
from trainwright.output import write_text
from trainwright.rules import load_all
from trainwright.skills import manifests
from trainwright.skills.bare import bare, bare_table
from trainwright.skills.bundle import LIBRARY, MANIFEST, Bundle, Skill
from trainwright.skills.imports import needed
from trainwright.skills.pages import rules_page, with_tables
from trainwright.skills.stubs import ANCHOR, stub
from trainwright.version import VERSION

_VERSION_LINE = re.compile(r'^  version: ".*"$', re.MULTILINE)


def expected(bundle: Bundle) -> dict[str, str]:
    """Path (from the root) to text of every file that is generated, the skills' own included."""
    texts = {f"scripts/{command.name}.py": stub(command) for command in COMMANDS.values()}
    descriptions = {skill.name: manifests.description_of(read_text(str(skill.path / "SKILL.md"))) for skill in bundle.skills}
    texts["README.md"] = with_tables(read_text(str(bundle.root / "README.md")), COMMANDS.values(), descriptions)
    texts["references/rules.md"] = rules_page(load_all().values())
    shipped = {}
    for skill in bundle.skills:
        own = skill_files(skill)
        texts |= {f"skills/{skill.name}/{path}": text for path, text in own.items()}
        shipped[skill.name] = manifests.skill_facts(skill, _by_hand(skill) | own)
    return texts | manifests.manifests(bundle) | {MANIFEST: manifests.manifest_text(bundle, shipped)}


def skill_files(skill: Skill) -> dict[str, str]:
    """Path inside the skill to text of what is copied into it; SKILL.md with the version of today."""
    page = read_text(str(skill.path / "SKILL.md"))
    head = manifests.frontmatter(page)
    texts = {"SKILL.md": page.replace(head, _VERSION_LINE.sub(f'  version: "{VERSION}"', head), 1)}
    texts |= {f"scripts/{command.name}.py": stub(command) for command in skill.commands} | {"scripts/trainwright.py": ANCHOR}
    texts |= {f"scripts/trainwright/{path}": text for path, text in _library(skill).items()}
    return texts | {f"references/{name}": read_text(str(skill.root / "references" / name)) for name in skill.references}


def _library(skill: Skill) -> dict[str, str]:
    """Path to text of what the skill holds of the library: what its globs name, its commands, and all that these import."""
    library = skill.root / LIBRARY
    named = {path for glob in skill.library for path in _files(library, glob)}
    sources = {path: read_text(str(library / path)) for path in _files(library, "**/*.py")}
    faces = {command.face.removeprefix("trainwright.").replace(".", "/") + ".py" for command in skill.commands}
    try:
        named |= needed(sources, named | faces | {"cli.py"})
    except (SyntaxError, ValueError, RecursionError, MemoryError) as problem:
        raise UserError(f"{library} holds a file that is no Python: {problem}") from None
    named |= {marker for path in named for folder in PurePosixPath(path).parents if (marker := f"{folder}/__init__.py") in sources}
    named |= {"__init__.py"} & set(sources)
    texts = {path: read_text(str(library / path)) for path in sorted(named)}
    return {path: _as_copied(skill, path, text) for path, text in texts.items()}


def _as_copied(skill: Skill, path: str, text: str) -> str:
    if not skill.bare:
        return text
    if path.endswith(".json"):
        return json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":")) + "\n"
    if path.endswith(".yaml"):
        return bare_table(text, f"{LIBRARY}/{path}")
    if not path.endswith(".py"):
        return text
    explains = any(command.name == "explain" for command in skill.commands)
    return bare(text, path, titles="/rules/" in path and not explains, pages="/rules/" in path and explains)


def _files(library: Path, glob: str) -> Iterator[str]:
    for file in library.glob(glob):
        if file.is_file() and "__pycache__" not in file.parts and not file.name.endswith(".schema.json"):
            yield file.relative_to(library).as_posix()


def _by_hand(skill: Skill) -> dict[str, str]:
    """Files of the skill that sync does not write: its evals."""
    files = (file for file in skill.files() if not generated(skill.inside(file)) and not file.is_symlink())
    return {skill.inside(file): file.read_bytes().decode("utf-8", "surrogateescape") for file in files}


def generated(path: str) -> bool:
    return path == "SKILL.md" or path.startswith(("scripts/", "references/"))


def drift(bundle: Bundle) -> dict[str, str | None]:
    """Path to wanted text of every file that differs; None for a file in a generated place that should not be there."""
    texts = expected(bundle)
    differing: dict[str, str | None] = {path: text for path, text in texts.items() if _current(bundle.root / path) != text}
    places = [bundle.root / "scripts", *(skill.path / part for skill in bundle.skills for part in ("scripts", "references"))]
    there = (file for place in places for file in sorted(place.rglob("*")) if file.is_file() and "__pycache__" not in file.parts)
    names = (file.relative_to(bundle.root).as_posix() for file in there)
    return differing | {name: None for name in names if name not in texts}


def _current(path: Path) -> str | None:
    try:
        return read_text(str(path))
    except DocumentError:
        return None


def write(bundle: Bundle, differing: dict[str, str | None]) -> None:
    """Write what differs and delete what is left over."""
    for path, text in differing.items():
        target = bundle.root / path
        if text is None:
            target.unlink()
            _prune(target.parent)
            continue
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise UserError(f"cannot make the folder {target.parent}: {problem.strerror}") from None
        write_text(target, text)


def _prune(folder: Path) -> None:
    """Remove a folder that is empty now, and what that leaves empty around it."""
    while not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent
