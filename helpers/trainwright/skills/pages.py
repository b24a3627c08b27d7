"""Generated prose: the README's command table and the page of all rules."""

from __future__ import annotations

from collections.abc import Iterable

from trainwright.cli import Command
from trainwright.errors import UserError
from trainwright.rules import Rule

START, END = "<!-- commands:start -->", "<!-- commands:end -->"


def with_command_table(readme: str, commands: Iterable[Command]) -> str:
    """`readme` with the table of commands between its two markers; raises UserError where they are missing."""
    before, start, rest = readme.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise UserError(f"README.md has no {START} and {END}: the command table goes between them")
    rows = [f"| `{c.name}` | [scripts/{c.name}.py](scripts/{c.name}.py) | `{_place(c)}` | {c.summary} |" for c in commands]
    table = "\n".join(["| command | script | code | what it answers |", "|---|---|---|---|", *rows])
    return f"{before}{START}\n{table}\n{END}{after}"


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
