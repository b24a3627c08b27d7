"""A skill's folder copied alone, also by an installer that leaves every `_*` file out, answers from its own copy of the library."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from trainwright.rules import load_all

NAME = "distributed-strategy"
MODEL, RIGHT, TYPO = (f"evals/files/{name}" for name in ("llama-7b.json", "fsdp-right.yaml", "typo.json"))
JOB = ["--model", MODEL, "--devices", "8", "--seq-len", "2048"]
JSON_CALLS = {
    "estimate": (JOB, 0),
    "advise": ([*JOB, "--memory", "80GiB"], 0),
    "check": ([TYPO], 1),
    "explain": (["ACC001"], 0),
    "rules": ([], 0),
    "diagnose": (["evals/files/run-oom/rank0.jsonl"], 1),
    "launch": (["--model", MODEL, "--backend-config", TYPO, "--run-dir", "out", "--nproc", "2"], 2),
}


@pytest.fixture(scope="module", params=["as it is", "without _ files"])
def alone(request: pytest.FixtureRequest, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The copied folder; beside it `packages` with PyYAML and nothing else."""
    place = tmp_path_factory.mktemp("copied alone")
    left_out = ["__pycache__", *(["_*"] if request.param == "without _ files" else [])]
    shutil.copytree(root / "skills" / NAME, place / NAME, ignore=shutil.ignore_patterns(*left_out))
    shutil.copytree(Path(yaml.__file__).parent, place / "packages" / "yaml", ignore=shutil.ignore_patterns("__pycache__"))
    return place / NAME


def run(alone: Path, name: str, *arguments: str, with_yaml: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a script with the standard library, PyYAML where wanted, and no installed package (-S)."""
    variables = [f"PYTHONPATH={alone.parent / 'packages'}"] if with_yaml else []
    argv = ["env", "-i", *variables, sys.executable, "-S", str(alone / "scripts" / f"{name}.py"), *arguments]
    return subprocess.run(argv, cwd=alone, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("name", JSON_CALLS)
@pytest.mark.parametrize("with_yaml", [True, False], ids=["with PyYAML", "without PyYAML"])
def test_json_inputs_need_no_package(alone: Path, name: str, with_yaml: bool) -> None:
    arguments, code = JSON_CALLS[name]
    done = run(alone, name, *arguments, "--format", "json", with_yaml=with_yaml)
    assert done.returncode == code, done.stderr
    assert json.loads(done.stdout)["command"] == name


def test_yaml_inputs(alone: Path) -> None:
    done = run(alone, "check", RIGHT, "--model", MODEL, "--world-size", "8", "--device", "cuda")
    assert (done.returncode, done.stderr) == (0, "")
    done = run(alone, "launch", "--model", MODEL, "--backend-config", RIGHT, "--run-dir", "out")
    assert done.returncode == 0, done.stderr
    assert not (alone / "out").exists(), "without --execute nothing is written"


@pytest.mark.parametrize("form", ["text", "json"])
def test_yaml_without_pyyaml_is_3_with_the_line_to_type(alone: Path, form: str) -> None:
    done = run(alone, "check", RIGHT, "--format", form, with_yaml=False)
    assert done.returncode == 3 and "pip install pyyaml" in done.stdout + done.stderr
    assert done.stderr.count("\n") <= 1 and "Traceback" not in done.stderr


def test_the_strategy_is_written_and_read_again(alone: Path, tmp_path: Path) -> None:
    written = tmp_path / "chosen.yaml"
    done = run(alone, "advise", *JOB, "--memory", "80GiB", "--emit", str(written))
    assert done.returncode == 0, done.stderr
    done = run(alone, "check", str(written), "--model", MODEL, "--world-size", "8", "--device", "cuda", "--fail-on", "info")
    assert done.returncode == 0, done.stdout


def test_the_copy_answers_not_the_repository(alone: Path) -> None:
    source = alone / "scripts" / "trainwright" / "version.py"
    before = source.read_text()
    source.write_text('VERSION = "99.0.0"\n')
    try:
        assert json.loads(run(alone, "rules", "--format", "json").stdout)["version"] == "99.0.0"
    finally:
        source.write_text(before)


def test_it_knows_every_rule_that_the_repository_knows(alone: Path) -> None:
    assert {row["rule"] for row in json.loads(run(alone, "rules", "--format", "json").stdout)["data"]["rules"]} == set(load_all())


def test_nothing_was_left_in_the_folder(alone: Path, root: Path) -> None:
    run(alone, "rules")
    theirs = {path.relative_to(alone).as_posix() for path in alone.rglob("*")}
    ours = {path.relative_to(root / "skills" / NAME).as_posix() for path in (root / "skills" / NAME).rglob("*")}
    assert theirs <= ours and not [path for path in theirs if "__pycache__" in path]


@pytest.mark.long
def test_a_job_runs_from_the_copied_folder_and_leaves_no_trace_in_it(alone: Path, tmp_path: Path) -> None:
    """Two CPU ranks of the small model, started from the copy: every worker loads the copy, and the folder stays as it was."""
    before = sorted(path.relative_to(alone).as_posix() for path in alone.rglob("*"))
    model, config, out = (
        str(path) for path in (alone / "scripts/trainwright/models/llama-demo/config.json", tmp_path / "a b.yaml", tmp_path / "my run")
    )

    def call(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        argv = ["env", "-i", sys.executable, str(alone / "scripts" / f"{name}.py"), *arguments]
        return subprocess.run(argv, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=280)

    job = ["--model", model, "--seq-len", "32"]
    assert call("advise", *job, "--devices", "2", "--memory", "300MiB", "--device", "cpu", "--emit", config).returncode == 0
    done = call("launch", *job, "--backend-config", config, "--run-dir", out, "--steps", "3", "--execute")
    assert done.returncode == 0, done.stdout + done.stderr
    assert call("diagnose", out).returncode == 0
    assert sorted(path.relative_to(alone).as_posix() for path in alone.rglob("*")) == before
