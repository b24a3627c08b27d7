"""The generated files: in step with their sources in this repository, and made, mended and cleared in a small one."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from trainwright import cli
from trainwright.errors import UserError
from trainwright.skills.bundle import load_bundle
from trainwright.skills.gates import judge
from trainwright.skills.pages import with_tables
from trainwright.skills.sync import drift, write
from trainwright.version import VERSION


def sync(root: Path) -> None:
    bundle = load_bundle(str(root))
    write(bundle, drift(bundle))


def test_this_repository_is_in_sync(root: Path) -> None:
    assert list(drift(load_bundle(str(root)))) == [], "run `make sync`"


def test_the_command_says_what_differs(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["skills", "sync", "--check", "--root", str(small)]) == 1
    assert "run `make sync`" in capsys.readouterr().out
    assert cli.main(["skills", "sync", "--root", str(small)]) == 0
    assert cli.main(["skills", "sync", "--check", "--root", str(small)]) == 0


def test_sync_twice_changes_nothing_more(small: Path) -> None:
    sync(small)
    assert drift(load_bundle(str(small))) == {}


@pytest.mark.parametrize(
    "path",
    [
        "scripts/check.py",
        "skills/distributed-strategy/scripts/check.py",
        "skills/distributed-strategy/scripts/trainwright/one.py",
        "skills/distributed-strategy/references/strategies.md",
        ".claude-plugin/plugin.json",
        ".claude-plugin/marketplace.json",
        "plugin.json",
        "references/rules.md",
    ],
)
def test_an_edited_copy_is_drift_and_is_mended(small: Path, path: str) -> None:
    sync(small)
    before = (small / path).read_text()
    (small / path).write_text(before + "\nedited\n")
    assert path in drift(load_bundle(str(small)))
    sync(small)
    assert (small / path).read_text() == before


def test_an_edited_source_reaches_its_copies_and_hashes(small: Path) -> None:
    sync(small)
    (small / "helpers/trainwright/one.py").write_text('"""Two."""\n')
    copy = "skills/distributed-strategy/scripts/trainwright/one.py"
    assert set(drift(load_bundle(str(small)))) == {copy, "skill-manifest.yaml"}
    sync(small)
    assert (small / copy).read_text() == '"""Two."""\n'


def test_a_command_brings_what_it_imports_and_nothing_else(small: Path) -> None:
    library = small / "helpers/trainwright"
    for path, text in {
        "check/__init__.py": "",
        "check/command.py": "from trainwright.check import judge\nfrom trainwright import one\n",
        "check/judge.py": "",
        "check/rules/__init__.py": "",
        "check/rules/late.py": "from trainwright import two\n",
        "two.py": "",
        "three.py": "",
    }.items():
        (library / path).parent.mkdir(parents=True, exist_ok=True)
        (library / path).write_text(text)
    manifest = small / "skill-manifest.yaml"
    manifest.write_text(manifest.read_text().replace('["**/*.py"]', "[check/rules/*.py]"))
    sync(small)
    copy = small / "skills/distributed-strategy/scripts/trainwright"
    held = {file.relative_to(copy).as_posix() for file in copy.rglob("*") if file.is_file()}
    assert held == {path.relative_to(library).as_posix() for path in library.rglob("*.py")} - {"three.py"}
    assert not [finding for finding in judge(load_bundle(str(small))) if finding.rule == "skill-import"]
    (library / "two.py").write_text("def (\n")
    assert cli.main(["skills", "sync", "--root", str(small)]) == 2


def test_a_left_over_copy_is_deleted(small: Path) -> None:
    sync(small)
    stale = small / "skills/distributed-strategy/scripts/trainwright/gone/now/x.py"
    stale.parent.mkdir(parents=True)
    stale.write_text("")
    assert drift(load_bundle(str(small))) == {stale.relative_to(small).as_posix(): None}
    sync(small)
    assert not stale.parents[1].exists() and stale.parents[2].is_dir(), "no empty folder stays behind"


def test_evals_are_nobodys_copy_but_are_hashed(small: Path) -> None:
    sync(small)
    evals = small / "skills/distributed-strategy/evals/trigger-evals.json"
    evals.write_text("[]\n")
    assert set(drift(load_bundle(str(small)))) == {"skill-manifest.yaml"}
    sync(small)
    assert evals.read_text() == "[]\n"


def test_stubs_differ_in_their_command_only(root: Path) -> None:
    texts = set()
    for command in cli.COMMANDS.values():
        text = (root / "scripts" / f"{command.name}.py").read_text()
        texts.add(text.replace(f'"{command.name}"', '"NAME"').replace(f'"""{command.name}: {command.summary} (', '"""NAME ('))
        for skill in command.skills:
            assert (root / "skills" / skill / "scripts" / f"{command.name}.py").read_text() == text
    assert len(texts) == 1


def test_hashes_are_those_of_the_files(root: Path) -> None:
    manifest = yaml.safe_load((root / "skill-manifest.yaml").read_text())
    for name, facts in manifest["shipped"].items():
        folder = root / "skills" / name
        files = {
            file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file() and file.suffix != ".pyc"
        }
        assert facts["files"] == {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}
        joined = b"".join(path.encode() + files[path] for path in sorted(files, key=str.lower))
        assert facts["tree_sha256"] == hashlib.sha256(joined).hexdigest()
        assert facts["skill_md_sha256"] == hashlib.sha256(files["SKILL.md"]).hexdigest()


def test_one_version_one_description_one_licence(root: Path) -> None:
    manifest = yaml.safe_load((root / "skill-manifest.yaml").read_text())
    plugins = [json.loads((root / path).read_text()) for path in ("plugin.json", ".claude-plugin/plugin.json")]
    market = json.loads((root / ".claude-plugin/marketplace.json").read_text())
    for facts in (*plugins, *market["plugins"]):
        assert (facts["version"], facts["description"], facts["license"]) == (VERSION, manifest["description"], manifest["license"])
    assert manifest["version"] == market["metadata"]["version"] == VERSION
    project = (root / "pyproject.toml").read_text()
    assert f'description = "{manifest["description"]}"' in project and f'license = "{manifest["license"]}"' in project
    assert f'requires-python = "{manifest["python"]}"' in project
    assert f"## {VERSION}" in (root / "CHANGELOG.md").read_text()
    for page in (root / "skills").glob("*/SKILL.md"):
        assert re.search(rf'^  version: "{re.escape(VERSION)}"$', page.read_text(), re.MULTILINE)


def test_readme_table_has_every_command(root: Path) -> None:
    readme = (root / "README.md").read_text()
    assert all(f"| `{name}` | [scripts/{name}.py](scripts/{name}.py) |" in readme for name in cli.COMMANDS)
    assert readme.count("<!-- commands:start -->") == 1


def test_readme_table_has_every_skill_with_its_commands(root: Path) -> None:
    rows = re.findall(r"^\| \[([a-z-]+)\]\(skills/\1/SKILL\.md\) \| ([^|]*) \|", (root / "README.md").read_text(), re.MULTILINE)
    held = {name: {word.strip("`") for word in words.split(", ")} for name, words in rows}
    assert set(held) == {path.name for path in (root / "skills").iterdir()}
    for name, command in cli.COMMANDS.items():
        assert {skill for skill, names in held.items() if name in names} == set(command.skills)


def test_readme_without_markers_is_refused() -> None:
    with pytest.raises(UserError, match="commands:start"):
        with_tables("# no markers\n", cli.COMMANDS.values(), {})


@pytest.mark.parametrize(
    ("old", "new"),
    [("name: trainwright\n", ""), ('["**/*.py"]', '"**/*.py"'), ('["**/*.py"]', '["../**"]'), ("skills:", "skill:")],
)
def test_a_broken_manifest_is_one_line(small: Path, old: str, new: str, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = small / "skill-manifest.yaml"
    manifest.write_text(manifest.read_text().replace(old, new))
    assert cli.main(["skills", "sync", "--root", str(small)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["skills", "manifest", "--root", str(tmp_path)]) == 2
    assert "skill-manifest.yaml" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["manifest"], ["validate"], ["sync", "--check"]])
def test_data_follows_its_schema(root: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    schema = json.loads((root / "helpers/trainwright/skills/skills.schema.json").read_text())
    assert cli.main(["skills", *arguments, "--root", str(root), "--format", "json", "--fail-on", "never"]) == 0
    jsonschema.validate(json.loads(capsys.readouterr().out)["data"], schema)


def test_the_manifest_follows_its_schema(root: Path) -> None:
    schema = json.loads((root / "helpers/trainwright/skills/skill-manifest.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(yaml.safe_load((root / "skill-manifest.yaml").read_text()), schema)
