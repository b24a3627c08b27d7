"""Generated prose: the README's tables and the page of all rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trainwright.cli import Command
from trainwright.errors import UserError
from trainwright.rules import Rule

_MARKER = "<!-- {}:{} -->"


def with_tables(readme: str, commands: Iterable[Command], descriptions: Mapping[str, str]) -> str:
    """`readme` with the tables of commands and of skills (name to description) between their markers.

    Raises UserError where a marker is missing.
    """
    rows = list(commands)
    table = ["| command | script | code | what it answers |", "|---|---|---|---|"]
    table += [f"| `{c.name}` | [scripts/{c.name}.py](scripts/{c.name}.py) | `{_place(c)}` | {c.summary} |" for c in rows]
    skills = ["| skill | commands | what it is for |", "|---|---|---|"]
    for name, description in descriptions.items():
        held = ", ".join(f"`{command.name}`" for command in rows if name in command.skills)
        skills.append(f"| [{name}](skills/{name}/SKILL.md) | {held} | {description} |")
    return _filled(_filled(readme, "commands", table), "skills", skills)


def _filled(readme: str, name: str, lines: list[str]) -> str:
    """`readme` with `lines` between the two markers of `name`."""
    start, end = (_MARKER.format(name, word) for word in ("start", "end"))
    before, found, rest = readme.partition(start)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise UserError(f"README.md has no {start} and {end}: the table of {name} goes between them")
    return "\n".join([f"{before}{start}", *lines, f"{end}{after}"])


def _place(command: Command) -> str:
    """Where the command's code is: its package, or its module where it has none."""
    package, _, module = command.face.removeprefix("trainwright.").rpartition(".")
    return f"{package}/" if package else f"{module}.py"


def rules_page(rules: Iterable[Rule]) -> str:
    """references/rules.md: every rule with its page, as `explain` prints it."""
    head = "# Rules\n\nGenerated from the registry by `make sync`; `explain CODE` prints one page. `source` is an id in `sources.yaml`.\n"
    return "\n".join([head, *(_rule_section(rule) for rule in rules)])


def _rule_section(rule: Rule) -> str:
    covers = f", covers {', '.join(rule.covers)}" if rule.covers else ""
    facts = f"{rule.severity.word}, fails at: {rule.fails_at}, checked: {rule.checked}, source: {rule.source}{covers}"
    return f"## {rule.code} {rule.name}\n\n{facts}\n\n{rule.page}\n"
