"""The bundle as skill-manifest.yaml describes it: its facts, its skills, and what belongs into each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright.cli import COMMANDS, Command
from trainwright.document import Document, load_mapping
from trainwright.errors import UserError

MANIFEST = "skill-manifest.yaml"
LIBRARY = "helpers/trainwright"
_NAME = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
_PART = r"(?:[\w.-]+\*?[\w.-]*|\*[\w.-]*)"
_GLOB = re.compile(rf"(?:(?:\*\*|{_PART})/)*{_PART}")  # relative; a part is ** or holds at most one *


@dataclass(frozen=True, slots=True)
class Skill:
    """One folder skills/NAME: the commands that name it, and the globs of what is copied beside them and what they import."""

    name: str
    root: Path
    commands: tuple[Command, ...]
    library: tuple[str, ...]
    references: tuple[str, ...]
    bare: bool = False  # whether the copied library leaves its comments and docstrings behind

    @property
    def path(self) -> Path:
        return self.root / "skills" / self.name

    def files(self) -> list[Path]:
        """What an installer would copy: every file and link, byte code left out, sorted by path in lower case."""
        found = (file for file in self.path.rglob("*") if (file.is_file() or file.is_symlink()) and "__pycache__" not in file.parts)
        return sorted(found, key=lambda file: (self.inside(file).lower(), self.inside(file)))

    def inside(self, file: Path) -> str:
        return file.relative_to(self.path).as_posix()


@dataclass(frozen=True, slots=True)
class Bundle:
    """The repository: `facts` are the top-level keys of the manifest."""

    root: Path
    manifest: Document
    facts: dict[str, Any]
    skills: tuple[Skill, ...]


def load_bundle(root: str | None = None) -> Bundle:
    """The bundle in folder `root`: by default the repository around this library, else the current folder.

    Raises UserError where there is no manifest, or where it does not hold what sync needs.
    """
    place = Path(root).resolve() if root else next((folder for folder in _around() if (folder / MANIFEST).is_file()), Path.cwd())
    if not (place / MANIFEST).is_file():
        raise UserError(f"there is no {MANIFEST} in {place}; run this in a clone of the repository, or name it with --root")
    document = load_mapping(str(place / MANIFEST))
    for key in ("name", "description", "license", "author", "python", "category", "keywords", "skills"):
        if not document.get(key):
            raise UserError(f"{document.at(key)}: {key} is missing or empty")
    skills = document.get("skills")
    if not isinstance(skills, dict) or not all(isinstance(row, dict) and _NAME.fullmatch(str(name)) for name, row in skills.items()):
        raise UserError(f"{document.at('skills')}: skills is not a mapping of names (lower case, digits, hyphens) to what each holds")
    return Bundle(place, document, document.value, tuple(_skills(document, place)))


def _around() -> Iterator[Path]:
    return iter((*Path(__file__).resolve().parents, Path.cwd()))  # never a folder that merely happens to be the current one first


def _skills(document: Document, root: Path) -> Iterator[Skill]:
    for name in document.get("skills"):
        commands = tuple(command for command in COMMANDS.values() if name in command.skills)
        library, references = (_strings(document, "skills", name, key) for key in ("library", "references"))
        yield Skill(name, root, commands, library, references, document.get("skills", name, "bare", default=False) is True)


def _strings(document: Document, *path: str) -> tuple[str, ...]:
    value = document.get(*path, default=[])
    if not isinstance(value, list) or not all(isinstance(item, str) and _GLOB.fullmatch(item) and ".." not in item for item in value):
        raise UserError(f"{document.at(*path)}: {path[-1]} is not a list of file names or globs")
    return tuple(value)
