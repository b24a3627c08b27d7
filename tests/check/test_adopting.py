"""Adopting `check` in a tree: baselines, the hook definitions, needed packages."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from trainwright.cli import main
from trainwright.errors import Exit

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "helpers/trainwright/check/command.schema.json").read_text())
BAD = "distributed_type: MULTI_GPU\nnum_processes: 4\nnum_gpus: 4\n"
Check = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """Run the command in the temporary folder; the exit code and the JSON envelope, whose data fits its schema."""
    monkeypatch.chdir(tmp_path)

    def run(*options: str) -> tuple[int, dict[str, Any]]:
        code = main(["check", *options, "--format", "json", "--limit", "0"])
        envelope = json.loads(capsys.readouterr().out)
        if envelope["data"] is not None:
            Draft202012Validator(SCHEMA).validate(envelope["data"])
        return code, envelope

    return run


def test_a_baseline_puts_aside_what_is_known(check: Check) -> None:
    Path("a.yaml").write_text(BAD)
    assert check("a.yaml")[0] == Exit.FINDINGS
    assert check("a.yaml", "--write-baseline", "known.json")[0] == Exit.OK
    code, envelope = check("a.yaml", "--baseline", "known.json")
    assert code == Exit.OK and envelope["findings"] == [] and envelope["data"]["baseline"] == {"path": "known.json", "known": 1, "gone": 0}
    Path("a.yaml").write_text(f"# a line\n\n{BAD}")
    assert check("a.yaml", "--baseline", "known.json")[0] == Exit.OK, "lines may move"
    Path("a.yaml").write_text(f"{BAD}lr_scheduler: x\n")
    code, envelope = check("a.yaml", "--baseline", "known.json")
    assert code == Exit.FINDINGS and [f["path"] for f in envelope["findings"]] == ["lr_scheduler"]
    Path("a.yaml").write_text(BAD.replace("num_gpus: 4\n", ""))
    assert check("a.yaml", "--baseline", "known.json")[1]["data"]["baseline"]["gone"] == 1


def test_a_baseline_does_not_depend_on_where_it_is_read_from(check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "configs").mkdir()
    Path("configs/a.yaml").write_text(BAD)
    check("configs", "--write-baseline", "known.json")
    assert json.loads(Path("known.json").read_text())["findings"].popitem()[1]["file"] == "configs/a.yaml"
    monkeypatch.chdir(tmp_path / "configs")
    assert check("a.yaml", "--baseline", "../known.json")[0] == Exit.OK


def test_a_second_finding_like_a_known_one_is_new(check: Check) -> None:
    for name in ("a", "b"):
        Path(f"{name}.yaml").write_text(BAD)
    check("a.yaml", "--write-baseline", "known.json")
    code, envelope = check("a.yaml", "b.yaml", "--baseline", "known.json")
    assert code == Exit.FINDINGS and [f["where"] for f in envelope["findings"]] == ["b.yaml:3:1"]


@pytest.mark.parametrize("text", ["{}", "[]", '{"schema": "other", "findings": {}}', "a: 1", ""])
def test_what_is_no_baseline_is_said_to_be_none(check: Check, text: str) -> None:
    Path("a.yaml").write_text(BAD)
    Path("known.json").write_text(text)
    assert check("a.yaml", "--baseline", "known.json")[0] == Exit.USAGE


def test_files_of_no_backend_are_passed_over_when_asked(check: Check) -> None:
    Path("compose.yaml").write_text("services: {}\n")
    assert check("compose.yaml")[0] == Exit.USAGE
    assert check("compose.yaml", "--ignore-unknown")[0] == Exit.OK
    Path("broken.yaml").write_text("a: [")
    assert check("broken.yaml", "--ignore-unknown")[0] == Exit.USAGE


HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook["id"])
def test_hooks(hook: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry of each hook, as pre-commit calls it: with the changed files behind it."""
    assert {"id", "name", "entry", "language"} <= set(hook) and re.fullmatch("[a-z-]+", hook["id"])
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "helpers"))
    program, *options = shlex.split(hook["entry"])
    assert program == "trainwright" and hook["language"] == "python"
    (tmp_path / "good.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 4\n")
    (tmp_path / "compose.yaml").write_text("services: {}\n")
    (tmp_path / "bad.yaml").write_text(BAD)
    argv = [sys.executable, "-m", "trainwright.cli", *options]
    for names, code in ((["good.yaml", "compose.yaml"], 0), (["good.yaml", "bad.yaml"], 1)):
        done = subprocess.run([*argv, *names], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == code, done.stdout + done.stderr


def packages(check: Check, *options: str) -> dict[str, Any]:
    return {row["package"]: row for row in check(*options, "--check-imports")[1]["data"]["imports"]}


def test_packages_that_configs_need(check: Check) -> None:
    Path("a.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 4\nmixed_precision: fp8\nfp8_config: {backend: AO}\n")
    Path("ds.json").write_text(
        json.dumps(
            {
                "train_micro_batch_size_per_gpu": 1,
                "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
                "wandb": {"enabled": True},
                "tensorboard": {"enabled": False},
            }
        )
    )
    Path("args.json").write_text(json.dumps({"output_dir": "o", "per_device_train_batch_size": 1, "optim": "paged_adamw_8bit"}))
    assert set(packages(check, "a.yaml")) == {"accelerate", "torchao"}
    assert set(packages(check, "ds.json")) == {"deepspeed", "wandb", "ninja"}
    assert set(packages(check, "args.json")) == {"transformers", "accelerate", "bitsandbytes"}
    assert packages(check, "a.yaml")["torchao"]["needed_by"] == "a.yaml: mixed_precision fp8, backend AO"


def test_a_package_is_looked_for_in_the_interpreter_of_the_job(check: Check, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho accelerate 1.13.0\n")
    python.chmod(0o755)
    Path("a.yaml").write_text("distributed_type: DEEPSPEED\nnum_processes: 4\ndeepspeed_config: {zero_stage: 2}\n")
    rows = packages(check, "a.yaml", "--python", str(python))
    assert rows["accelerate"]["installed"] == "1.13.0" and "install" not in rows["accelerate"]
    assert rows["deepspeed"]["installed"] is None and rows["deepspeed"]["install"] == f"{python} -m pip install deepspeed"


def test_data_of_conversions_and_schemas_fits_its_schema(check: Check) -> None:
    Path("a.yaml").write_text("distributed_type: FSDP\nnum_processes: 4\nfsdp_config: {fsdp_version: 1}\n")
    assert check("a.yaml", "--convert", "fsdp2")[0] == check("--schema")[0] == check("--schema", "deepspeed")[0] == Exit.OK
    Path("a.yaml").write_text("distributed_type: FSDP\nnum_processes: 4\nmixed_precision: fp32\n")
    assert check("a.yaml", "--diff")[1]["data"]["fixes"]


def test_a_copy_without_the_actions_or_the_models_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import importlib.util

    real = importlib.util.find_spec
    left_out = ("trainwright.check.actions", "trainwright.model")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: None if name in left_out else real(name, package))
    for options, words in (
        (["--schema"], "judges files and does nothing else"),
        (["a.yaml", "--model", "config.json"], "does not read models"),
    ):
        assert main(["check", *options]) == Exit.USAGE
        assert words in (line := capsys.readouterr().err) and line.count("\n") == 1
