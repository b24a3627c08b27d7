"""The gates of a skill: its folder, its front matter, its page and its evals, as registries and hosts judge them."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainwright.document import DocumentError, parse
from trainwright.report import Finding, Location, Severity
from trainwright.skills.bundle import Bundle, Skill
from trainwright.skills.idioms import ADDRESS, forbidden_idioms, forbidden_words
from trainwright.skills.imports import targets
from trainwright.skills.manifests import frontmatter
from trainwright.version import VERSION

MAX_SKILL, MAX_FILE, MAX_FILES = 500_000, 100_000, 150  # bytes, bytes, count
MAX_LINES, MAX_TOKENS, MAX_DESCRIPTION = 200, 3000, 200  # of SKILL.md; a token is four characters, as skillsaw counts
KEYS = ["name", "description", "license", "metadata"]
METADATA = ("author", "version", "tags", "last_verified")
SUFFIXES = {".md", ".py", ".json", ".jsonl", ".yaml", ".csv"}
FOLDERS = {"scripts", "references", "evals", "assets"}
SECTIONS = (
    "Purpose",
    "When to Use",
    "Scope",
    "Permissions",
    "Security Notes",
    "Prerequisites",
    "Available Scripts",
    "Instructions",
    "Inputs",
    "Outputs",
    "Exit Codes",
    "Examples",
    "Gotchas",
    "Limitations",
    "Troubleshooting",
    "References",
)
_VAGUE = re.compile(r"\b(?:something|things?|stuff|various|general|your?|my|I|we|you can)\b", re.IGNORECASE)
_BUZZ = re.compile(r"\b(?:utili[sz]e|leverage|seamless|cutting-edge|robust)\w*\b", re.IGNORECASE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def judge(bundle: Bundle) -> Iterator[Finding]:
    """Every finding on every skill; an empty answer means that each may be published."""
    names = [skill.name for skill in bundle.skills]
    yield from _folders(bundle, names)
    for skill in bundle.skills:
        for place, rule, message in _judge_skill(skill, str(bundle.facts["license"]), names):
            path, line = place if isinstance(place, tuple) else (place, None)
            where = Location(f"skills/{skill.name}/{path}" if path else f"skills/{skill.name}", line)
            yield Finding(f"skill-{rule}", Severity.ERROR, message, where)
    yield from _shared_addresses(bundle)


Problem = tuple[str | tuple[str, int], str, str]  # the file inside the skill (and line), the rule, the message


def _folders(bundle: Bundle, names: list[str]) -> Iterator[Finding]:
    pages = sorted((bundle.root / "skills").rglob("SKILL.md"))
    for page in pages:
        where = Location(page.relative_to(bundle.root).as_posix())
        if page.parent.parent != bundle.root / "skills":
            yield Finding("skill-nested", Severity.ERROR, "a SKILL.md stands only at skills/NAME/SKILL.md", where)
        elif page.parent.name not in names:
            yield Finding("skill-manifest", Severity.ERROR, "this skill is not in skill-manifest.yaml", where)


def _judge_skill(skill: Skill, license_name: str, names: list[str]) -> Iterator[Problem]:
    yield from _folder(skill)
    texts = {skill.inside(file): file.read_text(encoding="utf-8") for file in skill.files() if _is_text(file)}
    page = texts.get("SKILL.md")
    if page is None:
        yield "SKILL.md", "page", "there is no SKILL.md"
        return
    yield from _front_matter(skill, page, license_name, names)
    yield from _page(skill, page)
    yield from _links(skill, page, texts)
    yield from _references(texts)
    yield from _evals(skill, texts)
    for path, text in texts.items():
        yield from (((path, line), "word", message) for line, message in forbidden_words(text))
        if path.endswith(".py"):
            yield from _python(path, text, texts)


def _python(path: str, text: str, texts: dict[str, str]) -> Iterator[Problem]:
    try:
        files = {name.removeprefix("scripts/trainwright/") for name in texts}
        idioms, imports = list(forbidden_idioms(text)), list(targets(text, files))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as problem:
        yield path, "idiom", f"is no Python that can be read: {type(problem).__name__}"
        return
    yield from (((path, line), "idiom", message) for line, message in idioms)
    yield from (((path, line), "import", f"{name} is not in this skill; run `make sync`") for line, name, target in imports if not target)


def _folder(skill: Skill) -> Iterator[Problem]:
    files = skill.files()
    total = sum(file.lstat().st_size for file in files)
    if total >= MAX_SKILL or len(files) > MAX_FILES:
        yield "", "size", f"the skill has {len(files)} files of {total:,} bytes; at most {MAX_FILES} files and {MAX_SKILL:,} bytes"
    for file in files:
        path = skill.inside(file)
        yield from ((path, "file", message) for message in _file(file, path))


def _file(file: Path, path: str) -> Iterator[str]:
    parts = path.split("/")
    if file.is_symlink():
        yield "is a link; installers copy files only"
        return
    if any(part.startswith(".") for part in parts):
        yield "is hidden; scanners warn of what a reader does not see"
    if parts[-1].startswith("_") and (parts[-1] != "__init__.py" or file.stat().st_size):
        yield "starts with _ and is more than an empty __init__.py; some installers leave such files out"
    if parts[-1] in ("README.md", "metadata.json") or (len(parts) > 1 and parts[0] not in FOLDERS):
        yield f"does not belong into a skill, which holds SKILL.md and {', '.join(sorted(FOLDERS))}"
    if file.suffix not in SUFFIXES:
        yield f"is none of {', '.join(sorted(SUFFIXES))}"
    if file.stat().st_size >= MAX_FILE:
        yield f"has {file.stat().st_size:,} bytes; at most {MAX_FILE:,}"
    if not _is_text(file):
        yield "is not UTF-8 text"


def _is_text(file: Path) -> bool:
    try:
        return not file.is_symlink() and "\0" not in file.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return False


def _front_matter(skill: Skill, page: str, license_name: str, names: list[str]) -> Iterator[Problem]:
    head = frontmatter(page)
    try:
        fields = parse(head, "SKILL.md", "yaml").value
    except DocumentError as problem:
        fields = None
        yield "SKILL.md", "front-matter", problem.reason
    if not isinstance(fields, dict) or list(fields) != KEYS:
        yield ("SKILL.md", 1), "front-matter", f"the front matter is not exactly {', '.join(KEYS)}, in this order"
        return
    if fields["name"] != skill.name or not re.fullmatch(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*", str(fields["name"])):
        yield ("SKILL.md", 2), "front-matter", f"name {fields['name']!r} is not the folder's name in lower case, digits and hyphens"
    if fields["license"] != license_name:
        yield ("SKILL.md", 1), "front-matter", f"license {fields['license']!r} is not the bundle's {license_name}"
    description = re.search(r'^description: "([^"\\]*)"$', head, re.MULTILINE)
    if description is None:
        yield ("SKILL.md", 3), "description", "the description is not one line in double quotes"
    else:
        others = [name for name in names if name != skill.name]
        yield from ((("SKILL.md", 3), "description", message) for message in _description(description[1], others))
    yield from ((("SKILL.md", 1), "front-matter", message) for message in _metadata(fields["metadata"]))


def _description(text: str, others: list[str]) -> Iterator[str]:
    if not 20 <= len(text) <= MAX_DESCRIPTION:
        yield f"the description has {len(text)} characters; 20 to {MAX_DESCRIPTION}"
    yield from (f"the description lacks {words!r}" for words in ("Use when", "Not for") if words not in text)
    if "<" in text or ">" in text:
        yield "the description holds < or >, which some hosts take for a tag"
    if vague := _VAGUE.search(text):
        yield f"the description says {vague[0]!r}: third person and definite words only"
    yield from (f"the description names another skill, {name}" for name in others if name in text)


def _metadata(metadata: Any) -> Iterator[str]:
    if not isinstance(metadata, dict) or not all(isinstance(part, str) for item in metadata.items() for part in item):
        yield "metadata is not a mapping of strings to strings (quote each value)"
        return
    yield from (f"metadata lacks {key}" for key in METADATA if not metadata.get(key))
    if metadata.get("version") != VERSION:
        yield f"metadata.version is {metadata.get('version')}, the bundle's {VERSION}; `skills sync` writes it"
    try:
        datetime.date.fromisoformat(metadata.get("last_verified", ""))
    except ValueError:
        yield "metadata.last_verified is not a date such as 2026-01-31"


def _page(skill: Skill, page: str) -> Iterator[Problem]:
    lines, tokens = page.count("\n"), len(page) // 4
    if lines > MAX_LINES or tokens >= MAX_TOKENS:
        yield "SKILL.md", "length", f"{lines} lines and {tokens} tokens; at most {MAX_LINES} lines and fewer than {MAX_TOKENS} tokens"
    headings = re.findall(r"^## (.+)$", page, re.MULTILINE)
    if headings != list(SECTIONS):
        wrong = [name for name in SECTIONS if name not in headings] or [name for name in headings if name not in SECTIONS]
        yield "SKILL.md", "sections", f"the sections are not the required ones in their order; look at {', '.join(wrong) or 'the order'}"
    needed = {"Does NOT": "Scope", "| Script |": "Available Scripts", "run_script": "Available Scripts", "1. ": "Instructions"}
    for words, section in needed.items():
        if words not in section_of(page, section):
            yield "SKILL.md", "sections", f"## {section} lacks {words!r}"
    for command in skill.commands:
        if f"(scripts/{command.name}.py)" not in page:
            yield "SKILL.md", "sections", f"no Markdown link to scripts/{command.name}.py"
    for number, line in enumerate(page.split("\n"), start=1):
        if found := _BUZZ.search(line) or re.search(r"\b[A-Za-z]:\\|\bREADME\.md", line):
            yield ("SKILL.md", number), "word", f"{found[0]!r} does not belong into a skill's page"


def section_of(page: str, name: str) -> str:
    """The text under `## name`, up to the next such heading."""
    return re.split(r"^## ", page.partition(f"\n## {name}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def _links(skill: Skill, page: str, texts: dict[str, str]) -> Iterator[Problem]:
    targets = [target for target in _LINK.findall(page) if "://" not in target]
    for target in targets:
        if not any(path == target or path.startswith(f"{target}/") for path in texts):
            yield "SKILL.md", "link", f"({target}) is no file of this skill"
    for path in texts:
        if path.startswith("references/") and path not in targets:
            yield path, "link", "SKILL.md does not link to it"
    for line in section_of(page, "References").splitlines():
        if _LINK.search(line) and "read when" not in line.lower():
            yield "SKILL.md", "link", f"{line.strip()!r} does not say when to read it"


def _references(texts: dict[str, str]) -> Iterator[Problem]:
    for path, text in texts.items():
        if not path.startswith("references/"):
            continue
        if path.count("/") > 1 or not path.endswith(".md"):
            yield path, "reference", "references are Markdown, one level deep"
        if _LINK.search(text):
            yield path, "reference", "a reference holds no links; name the file or the source's id"
        if text.count("\n") > 100 and "## Contents" not in text:
            yield path, "reference", "longer than 100 lines and without ## Contents"


def _evals(skill: Skill, texts: dict[str, str]) -> Iterator[Problem]:
    tasks, triggers = (_json(texts.get(f"evals/{name}.json", "")) for name in ("evals", "trigger-evals"))
    cases = tasks.get("evals") if isinstance(tasks, dict) else None
    if (
        not isinstance(cases, list)
        or not all(isinstance(case, dict) for case in cases)
        or tasks.get("skill_name") != skill.name
        or len(cases) < 5
    ):
        yield "evals/evals.json", "evals", "is not {skill_name, evals: [5 tasks or more]}"
        return
    for case in cases:
        yield from (("evals/evals.json", "evals", message) for message in _case(case, texts))
    wanted = [row.get("should_trigger") for row in triggers if isinstance(row, dict)] if isinstance(triggers, list) else []
    if min(wanted.count(True), wanted.count(False)) < 8:
        yield "evals/trigger-evals.json", "evals", "is not a list of {query, should_trigger} with 8 or more of each kind"


def _case(case: dict[str, Any], texts: dict[str, str]) -> Iterator[str]:
    keys = {"id", "prompt", "expected_output", "files", "assertions", "script", "arguments", "expected_exit", "expected_rules"}
    if missing := keys - set(case):
        yield f"task {case.get('id')} lacks {', '.join(sorted(missing))}"
        return
    files = case["files"] if isinstance(case["files"], list) else [case["files"]]
    yield from (f"task {case['id']}: there is no {path}" for path in map(str, (*files, case["script"])) if path not in texts)


def _json(text: str) -> Any:
    try:
        return parse(text, "evals", "json").value
    except DocumentError:
        return None


def _shared_addresses(bundle: Bundle) -> Iterator[Finding]:
    """An external address in a copied file is shared as soon as two skills copy it; one in a page, where two pages name it."""
    seen: dict[str, str] = {}
    for skill in bundle.skills:
        for file in filter(_is_text, skill.files()):
            for address in sorted(set(ADDRESS.findall(file.read_text(encoding="utf-8")))):
                where = f"skills/{skill.name}/{skill.inside(file)}"
                other = "another skill with the next copy" if "/scripts/" in where else seen.setdefault(address, where)
                if other.split("/")[:2] != where.split("/")[:2]:
                    message = f"the address {address} is shared with {other}; keep it in references/sources.yaml and name its id"
                    yield Finding("skill-address", Severity.ERROR, message, Location(where))
