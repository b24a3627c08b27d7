# check/rules/documents.py without its comments
from __future__ import annotations

from collections.abc import Iterator

from trainwright.check.dialects import is_shell
from trainwright.check.subject import Template, Unreadable
from trainwright.document import Document
from trainwright.report import Severity
from trainwright.rules import Hit, rule


@rule("DOC001", Severity.ERROR, Unreadable, fails_at="parse", checked="run", source="pyyaml-documentation", covers=("ACC-EMPTY",))
def unreadable_document(unreadable: Unreadable) -> Iterator[Hit]:
    """A file cannot be read as YAML, JSON or TOML with a mapping on top.

    Files are read as their consumers read them: `.json` by `json.load`, `.toml` by `tomllib`, all else by
    `yaml.safe_load` (YAML 1.1), in UTF-8. The command ends with exit 2; other files named with it are judged all the same.

    Refused are also files that no consumer should be given: larger than 512 KiB (JSON 2 MiB, TOML 128 KiB), nested
    deeper than 64 levels, more than 50,000 values once aliases are expanded, an alias inside its own anchor, UTF-16, NUL
    bytes, a byte order mark in JSON, a tag that constructs an object, a folder, a device or a pipe by name (`-` reads standard input).

    Bad `accelerate.yaml`:

        distributed_type: FSDP
        fsdp_config: {fsdp_version: 2

    Good `accelerate.yaml`:

        distributed_type: FSDP
        num_processes: 4
        fsdp_config: {fsdp_version: 2}
    """
    yield Hit(unreadable.problem.reason, unreadable.problem.where)


@rule("DOC002", Severity.WARNING, Document, fails_at="never", checked="run", source="pyyaml-documentation", covers=("ACC-DUPKEY",))
def duplicate_key(document: Document) -> Iterator[Hit]:
    """A key stands twice in one mapping, and the last one counts without a word.

    `yaml.safe_load` and `json.load` both drop the first (DeepSpeed, reading its own file, stops instead). Whoever edits the
    first one changes nothing.

    Bad `accelerate.yaml`:

        distributed_type: MULTI_GPU
        num_processes: 8
        mixed_precision: bf16
        num_processes: 4

    Good `accelerate.yaml`:

        distributed_type: MULTI_GPU
        num_processes: 4
        mixed_precision: bf16
    """
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
    """A file with places that something else fills first is recognised as a template, and not judged.

    `{{ name }}`, `{% if %}`, `<NAME>` and, in JSON, a bare word in capitals are filled before any backend reads the file: judge what
    comes out of it. `${name}` is the shell's: as the file stands it is no JSON, and whoever hands it to a backend unfilled meets an
    error, so that one is told as an error.

    Bad `accelerate.yaml`:

        distributed_type: MULTI_GPU
        num_processes: {{ gpus }}

    Good `accelerate.yaml`:

        distributed_type: MULTI_GPU
        num_processes: 4
    """
    message = f"{template.mark[:60]} has to be filled first: this is a template, and it is not judged"
    if is_shell(template.mark) and template.path.endswith(".json"):
        yield Hit(f"{message}; as it stands it is no JSON", template.where, severity=Severity.ERROR, fails_at="parse")
    else:
        yield Hit(message, template.where)
