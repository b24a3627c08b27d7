"""The manifests that hosts and registries read, derived from skill-manifest.yaml, and the hashes of what it ships."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from trainwright.skills.bundle import Bundle, Skill
from trainwright.version import VERSION

MARK = "# ---- below this line `make sync` writes ----\n"
_FRONTMATTER = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)


def frontmatter(text: str) -> str:
    """The YAML between the first two `---` lines of a SKILL.md; "" where there is none."""
    found = _FRONTMATTER.match(text)
    return found[1] if found else ""


def description_of(page: str) -> str:
    """The description in the front matter of a SKILL.md; "" where it is not one line in double quotes."""
    found = re.search(r'^description: "(.*)"$', frontmatter(page), re.MULTILINE)
    return found[1] if found else ""


def manifests(bundle: Bundle) -> dict[str, str]:
    """Path to text of each derived JSON manifest: Claude Code's two, and Agent Plugins v1 at the root."""
    facts = bundle.facts
    common = {"name": facts["name"], "version": VERSION, "description": facts["description"]}
    rest = {"author": {"name": facts["author"]}, "license": facts["license"], "keywords": facts["keywords"]}
    entry = {"source": "./", "description": facts["description"], "version": VERSION, "license": facts["license"]}
    market = {
        "$schema": "https://anthropic.com/claude-code/marketplace.schema.json",
        "name": facts["name"],
        "description": facts["description"],
        "owner": {"name": facts["author"]},
        "metadata": {"description": facts["description"], "version": VERSION},
        "plugins": [{"name": facts["name"], **entry, "category": facts["category"], "keywords": facts["keywords"]}],
    }
    agent_plugin = {"$schema": "https://agent-plugins.org/schemas/1.0.0/plugin.schema.json", **common, **rest}
    texts = {".claude-plugin/plugin.json": {**common, **rest}, ".claude-plugin/marketplace.json": market, "plugin.json": agent_plugin}
    return {path: json.dumps(value, indent=2, ensure_ascii=False) + "\n" for path, value in texts.items()}


def skill_facts(skill: Skill, texts: dict[str, str]) -> dict[str, Any]:
    """What the manifest records of one skill, given the text of each of its files by path inside it.

    skill_md_sha256 is the hash that the registry of vskill shows, tree_sha256 the computedHash of skills-lock.json.
    """
    page = texts.get("SKILL.md", "")
    return {
        "path": f"skills/{skill.name}",
        "description_sha256": sha256(description_of(page)),
        "skill_md_sha256": sha256(page.removeprefix("\ufeff").replace("\r\n", "\n")),
        "tree_sha256": tree_sha256(texts),
        "scripts": {f"scripts/{command.name}.py": command.summary for command in skill.commands},
        "files": {path: sha256(text) for path, text in sorted(texts.items())},
    }


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def tree_sha256(texts: dict[str, str]) -> str:
    """SHA-256 over path and content of every file, ordered by the path in lower case."""
    total = hashlib.sha256()
    for path in sorted(texts, key=lambda name: (name.lower(), name)):
        total.update(f"{path}{texts[path]}".encode("utf-8", "surrogateescape"))
    return total.hexdigest()


def manifest_text(bundle: Bundle, skills: dict[str, dict[str, Any]]) -> str:
    """skill-manifest.yaml: the part by hand as it stands, and the generated part anew (JSON values, which are YAML)."""
    by_hand = bundle.manifest.text.partition(MARK)[0]
    lines = [MARK, f"version: {json.dumps(VERSION)}\n", "shipped:\n"]
    for name, facts in skills.items():
        lines.append(f"  {name}:\n")
        for key, value in facts.items():
            if isinstance(value, dict):
                lines += [f"    {key}:\n", *(f"      {json.dumps(inner)}: {json.dumps(value[inner])}\n" for inner in value)]
            else:
                lines.append(f"    {key}: {json.dumps(value)}\n")
    return by_hand + "".join(lines)
