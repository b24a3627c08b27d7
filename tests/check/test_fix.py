"""`check --fix` and `--diff`: what is written, what never is, and that fixed findings are gone."""

from __future__ import annotations

import contextlib
import io
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from trainwright.check.fix import fixed, key_path
from trainwright.check.judge import judge
from trainwright.check.subject import Context
from trainwright.cli import main
from trainwright.errors import Exit
from trainwright.rules import examples, load_all

BAD = """# the job
distributed_type: fsdp   # kind
num_processes: 8
mixed_precision: no
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: true
  # old key
  fsdp_use_orig_params: true
"""
GOOD = BAD.replace("fsdp   #", "FSDP   #").replace(": no\n", ": 'no'\n").replace("  fsdp_use_orig_params: true\n", "")


def check(*options: str) -> tuple[int, dict[str, Any]]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(["check", *options, "--format", "json", "--limit", "0"])
    return code, json.loads(out.getvalue())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.yaml"
    path.write_text(BAD)
    return path


def test_diff_shows_and_writes_nothing(file: Path) -> None:
    code, envelope = check(str(file), "--diff")
    assert code == Exit.FINDINGS and file.read_text() == BAD
    (row,) = envelope["data"]["fixes"]
    assert row["written"] is False and {f["rule"] for f in row["mended"]} == {"ACC003", "ACC004"}
    assert "-distributed_type: fsdp   # kind\n+distributed_type: FSDP   # kind\n" in row["diff"]


def test_fix_writes_and_reports_what_is_left(file: Path) -> None:
    file.chmod(0o640)
    code, envelope = check(str(file), "--fix")
    assert code == Exit.OK and file.read_text() == GOOD and stat.S_IMODE(file.stat().st_mode) == 0o640
    assert not [f for f in envelope["findings"] if f["severity"] == "error"] and envelope["data"]["fixes"][0]["written"]
    assert check(str(file), "--fix")[1]["data"]["fixes"] == [] and file.read_text() == GOOD
    assert [path.name for path in file.parent.iterdir()] == ["a.yaml"]


def test_links_read_only_files_and_files_that_are_not_named_stay(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.yaml"
    link.symlink_to(file)
    code, envelope = check(str(link), "--fix")
    assert code == Exit.USAGE and file.read_text() == BAD and link.is_symlink()
    assert {"name": str(link), "reason": "is a link: it was not changed"} in envelope["not_checked"]
    file.chmod(0o440)
    code, envelope = check(str(file), "--fix")
    assert code == Exit.USAGE and file.read_text() == BAD and "is read-only" in str(envelope["not_checked"])
    file.chmod(0o640)
    script = tmp_path / "job.sh"
    script.write_text(f"accelerate launch --config_file {file} train.py\n")
    assert check(str(script), "--fix")[1]["data"]["fixes"] == [] and file.read_text() == BAD


def test_text_shows_the_difference(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", str(file), "--diff"])
    assert "+mixed_precision: 'no'\n" in (out := capsys.readouterr().out) and "--fix would mend 3 findings in 1 file" in out
    main(["check", str(file), "--fix"])
    assert "mended 3 findings in 1 file" in capsys.readouterr().out


def test_a_key_of_a_block_is_named_from_the_top(tmp_path: Path) -> None:
    path = tmp_path / "axolotl.yaml"
    path.write_text(
        "base_model: x\ndatasets: []\ndeepspeed:\n  train_micro_batch_size_per_gpu: 1\n  bf16: {enabled: true, loss_scale: 0}\n"
    )
    check(str(path), "--fix")
    assert path.read_text().endswith("  bf16: {enabled: true}\n")


def test_a_file_with_countless_findings_takes_bounded_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainwright.check.fix._MOST", 20_000)
    path = tmp_path / "a.yaml"
    rows = "".join(f"  key_number_{number}: {number}\n" for number in range(100))
    path.write_text(f"distributed_type: FSDP\nnum_processes: 4\nfsdp_config:\n  fsdp_version: 2\n{rows}")
    _, envelope = check(str(path), "--fix")
    assert 3 < len(envelope["data"]["fixes"][0]["mended"]) < 30 and "call it again" in str(envelope["not_checked"])
    assert path.read_text().count("key_number") == 100 - len(envelope["data"]["fixes"][0]["mended"])


def test_paths_of_keys() -> None:
    value = {"a.b": {"c": 1}, "a": {"b": [{"d": 2}]}}
    assert (
        key_path(value, "a.b.c") == ("a.b", "c") and key_path(value["a"], "b.0.d") == ("b", 0, "d") and key_path(value, "x.y") == ("x", "y")
    )


def test_every_bad_example_of_a_page_is_mended_or_left_whole(tmp_path: Path) -> None:
    """A safe fix silences its finding, brings no error that was not there, and a second run changes nothing."""
    mended = 0
    for rule in load_all("check").values():
        if not rule.find.__module__.startswith("trainwright.check."):
            continue
        for example in (e for e in examples(rule.page) if e.bad and not e.options and len(e.files) == 1):
            name, text = next(iter(example.files.items()))
            path = tmp_path / name
            path.write_text(text)
            mended += silenced(path)
    assert mended > 8


def silenced(path: Path) -> int:
    def judged(texts: Any) -> Any:
        return judge([str(path)], Context(), texts=texts)

    key = os.path.realpath(path)
    before = judged({}).findings
    changes = fixed(judged, {key})
    for each in changes:
        after = judged({key: each.after}).findings
        assert not [f for f in after if f.fix and f.fix.safe], (path.name, each.after)
        path.write_text(each.after)
        assert not fixed(judged, {key})
        new = {(f.rule, f.path) for f in after if f.severity.word == "error"} - {(f.rule, f.path) for f in before}
        assert not new, (each.before, each.after, new)
    return len(changes)


@pytest.mark.long
def test_mutated_real_configs(data: Path, tmp_path: Path) -> None:
    """Of every trap put into real configs: what has a safe fix is silent after it."""
    import importlib.util
    import sys

    import yaml

    modules = []
    for name in ("mutations", "test_mutations"):
        spec = importlib.util.spec_from_file_location(f"fix_{name}", Path(__file__).parent / f"{name}.py")
        assert spec and spec.loader
        modules.append(importlib.util.module_from_spec(spec))
        sys.modules[f"fix_{name}"] = modules[-1]
        spec.loader.exec_module(modules[-1])
    table, other = modules
    configs, mended = other.accepted(data / "configs"), 0
    for mutation in table.MUTATIONS:
        for _name, value in configs[mutation.kind][:4]:
            path = tmp_path / ("x.json" if mutation.kind == "deepspeed" else "x.yaml")
            config = table.put(table.put(value, mutation.before), mutation.change)
            text = (
                json.dumps(config, indent=2) if path.suffix == ".json" else yaml.safe_dump(config, sort_keys=False).replace("\n", "  # c\n")
            )
            path.write_text(mutation.text(text))
            if mutation.trap != "ACC-UNKNOWN-TOP":  # there a misspelt key has a wrong value too, which is told once it is a key
                mended += silenced(path)
    assert mended > 150
