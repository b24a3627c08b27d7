# helpers/trainwright/check/rules/documents.py without its comments
from __future__ import annotations

from collections.abc import Iterator

from trainwright.check.dialects import is_shell
from trainwright.check.subject import Template, Unreadable
from trainwright.document import Document
from trainwright.report import Severity
from trainwright.rules import Hit, rule


@rule("DOC001", Severity.ERROR, Unreadable, fails_at="parse", checked="run", source="pyyaml-documentation", covers=("ACC-EMPTY",))
def unreadable_document(unreadable: Unreadable) -> Iterator[Hit]:
    """A file cannot be read as YAML, JSON or TOML with a mapping on top."""
    yield Hit(unreadable.problem.reason, unreadable.problem.where)


@rule("DOC002", Severity.WARNING, Document, fails_at="never", checked="run", source="pyyaml-documentation", covers=("ACC-DUPKEY",))
def duplicate_key(document: Document) -> Iterator[Hit]:
    """A key stands twice in one mapping, and the last one counts without a word."""
    for duplicate in document.duplicates():
        key = ".".join(map(str, duplicate.path))
        line = f"the one in line {duplicate.first.line}" if duplicate.first.line != duplicate.last.line else "the first"
        yield Hit(f"{key} stands twice: {line} is ignored", duplicate.last, key)


@rule(
    "DOC003",
    Severity.INFO,
    Template,
    fails_at="never",
    checked="run",
    source="pyyaml-documentation",
    covers=("ADS-JSON-STRICT",),
)
def template_not_filled(template: Template) -> Iterator[Hit]:
    """A file with places that something else fills first is recognised as a template, and not judged."""
    message = f"{template.mark[:60]} has to be filled first: this is a template, and it is not judged"
    if is_shell(template.mark) and template.path.endswith(".json"):
        yield Hit(f"{message}; as it stands it is no JSON", template.where, severity=Severity.ERROR, fails_at="parse")
    else:
        yield Hit(message, template.where)
