# rules.py without its comments
from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import trainwright
from trainwright.report import CHECKED, FAILS_AT, Finding, Fix, Location, Severity

CODE = re.compile(r"[A-Z]{2,5}\d{3}")


@dataclass(frozen=True, slots=True)
class Hit:

    message: str
    where: Location | None = None
    path: str = ""
    fix: Fix | None = None
    severity: Severity | None = None
    fails_at: str = ""
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rule:

    code: str
    name: str
    severity: Severity
    subject: type
    find: Callable[[Any], Iterable[Hit]]
    fails_at: str
    checked: str
    source: str
    covers: tuple[str, ...]

    @property
    def title(self) -> str:
        return (self.page.splitlines() or [self.name])[0]

    @property
    def page(self) -> str:
        return inspect.cleandoc(self.find.__doc__ or "")

    def judge(self, subject: Any) -> Iterator[Finding]:
        for hit in self.find(subject):
            yield Finding(
                rule=self.code,
                severity=hit.severity or self.severity,
                message=hit.message,
                where=hit.where,
                path=hit.path,
                fails_at=hit.fails_at or self.fails_at,
                fix=hit.fix,
                checked=self.checked,
                data=hit.data,
            )


_REGISTRY: dict[str, Rule] = {}
_Find = TypeVar("_Find", bound=Callable[..., Iterable[Hit]])


def rule(
    code: str,
    severity: Severity,
    subject: type,
    *,
    fails_at: str,
    checked: str,
    source: str,
    covers: tuple[str, ...] = (),
) -> Callable[[_Find], _Find]:
    assert CODE.fullmatch(code) and fails_at in FAILS_AT and checked in CHECKED, code

    def register(find: _Find) -> _Find:
        assert code not in _REGISTRY or _REGISTRY[code].find.__module__ == find.__module__, f"{code} is used twice"
        _REGISTRY[code] = Rule(code, find.__name__, severity, subject, find, fails_at, checked, source, covers)
        return find

    return register


def check_all(subject: Any) -> list[Finding]:
    rules = sorted((r for r in _REGISTRY.values() if isinstance(subject, r.subject)), key=lambda r: r.code)
    return [finding for r in rules for finding in r.judge(subject)]


_LOADED: set[tuple[str, str]] = set()


def load_all(package: str = "*", modules: str = "*") -> dict[str, Rule]:
    if (package, modules) in _LOADED:
        return dict(sorted(_REGISTRY.items()))
    _LOADED.add((package, modules))
    for root in map(Path, trainwright.__path__):
        for file in sorted(root.glob(f"{package}/rules/{modules}.py")):
            if file.stem != "__init__":
                importlib.import_module(".".join(("trainwright", *file.relative_to(root).with_suffix("").parts)))
    return dict(sorted(_REGISTRY.items()))


_EXAMPLE = re.compile(r"^(Bad|Good) `([^`]+)`(?: with `([^`]*)`)?:\n((?:(?:[ ]{4}.*)?(?:\n|$))+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Example:

    bad: bool
    files: dict[str, str]
    options: str


def examples(page: str) -> list[Example]:
    found: list[Example] = []
    for match in _EXAMPLE.finditer(page):
        bad, name, options = match[1] == "Bad", match[2], match[3] or ""
        body = "\n".join(line[4:] for line in match[4].rstrip().split("\n")) + "\n"
        if found and found[-1].bad is bad and name not in found[-1].files and not options:
            found[-1].files[name] = body
        else:
            found.append(Example(bad, {name: body}, options))
    return found
