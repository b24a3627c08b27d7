"""`trainwright launch` as its users run it: dry, refused, and (long) for real."""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from trainwright import probe
from trainwright.cli import COMMANDS, main
from trainwright.job import Job
from trainwright.launch import torchrun
from trainwright.launch.command import CHECK_SKILL, DIAGNOSE_SKILL

Run = Callable[..., "subprocess.CompletedProcess[str]"]
LIBRARY = Path(__file__).resolve().parents[2] / "helpers" / "trainwright"
SCHEMA = json.loads((LIBRARY / "launch" / "launch.schema.json").read_text(encoding="utf-8"))


@pytest.fixture
def arguments(make_job: Callable[..., Job], tmp_path: Path) -> list[str]:
    job = make_job("fsdp", world_size=2)
    return ["launch", "--model", job.model, "--backend-config", job.backend_config, "--run-dir", str(tmp_path / "a run")]


def test_dry_it_shows_everything_and_starts_nothing(arguments: list[str], tmp_path: Path, run_command: Run) -> None:
    done = run_command(*arguments, "--memory-cap", "300MiB")
    assert done.returncode == 0, done.stderr
    assert "-m trainwright.train.elastic --standalone" in done.stdout and f"--job '{tmp_path}/a run/job.json'" in done.stdout
    assert "strategy: fsdp_full_shard" in done.stdout and "not applied: num_processes" in done.stdout
    assert "300.0 MiB a rank enforced" in done.stdout and "nothing was started" in done.stdout
    assert not (tmp_path / "a run").exists()


def test_json_has_its_schema(arguments: list[str], run_command: Run) -> None:
    report = json.loads(run_command(*arguments, "--format", "json").stdout)
    jsonschema.validate(report["data"], SCHEMA)
    assert report["data"]["job"]["world_size"] == 2 and report["data"]["outcome"] is None
    assert report["inferred"][0]["name"] == "nproc"


def test_another_number_of_ranks_than_the_file_says_is_an_error_of_the_check(arguments: list[str], run_command: Run) -> None:
    done = run_command(*arguments, "--nproc", "3", "--execute")
    assert done.returncode == 1
    assert "num_processes 2 in the file, --nproc 3" in done.stdout and "not started" in done.stdout and "error ACC" in done.stdout
    assert run_command(*arguments, "--nproc", "3", "--no-check").returncode == 0


def test_the_schema_knows_every_field_of_a_job() -> None:
    assert SCHEMA["properties"]["job"]["properties"].keys() == {"schema", *(field.name for field in dataclasses.fields(Job))}


def deepspeed(tmp_path: Path, **keys: object) -> str:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"zero_optimization": {"stage": 2}, "gradient_clipping": 0.5, **keys}), encoding="utf-8")
    return str(path)


def test_a_deepspeed_json_settles_what_it_names(arguments: list[str], tmp_path: Path, run_command: Run) -> None:
    keys: dict[str, object] = {
        "train_batch_size": 24,
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 2e-4}},
    }
    line = ["launch", "--model", arguments[2], "--backend-config", deepspeed(tmp_path, **keys), "--run-dir", str(tmp_path / "run")]
    assert "does not say how many ranks; say it with --nproc" in run_command(*line).stderr
    report = json.loads(run_command(*line, "--nproc", "2", "--no-check", "--format", "json").stdout)
    jsonschema.validate(report["data"], SCHEMA)
    job = report["data"]["job"]
    assert (report["data"]["strategy"], job["micro_batch"], job["accumulation"], job["global_batch"]) == ("zero_2", 4, 3, 24)
    assert (job["clip_norm"], job["learning_rate"], job["weight_decay"]) == (0.5, 2e-4, 0.0)
    assert {row["name"] for row in report["inferred"]} >= {"clip_norm", "learning_rate", "micro_batch", "global_batch"}
    for typed, words in (("--clip-norm 1", "do not agree"), ("--nproc 5", "cannot be divided by 5 ranks x micro_batch 4")):
        done = run_command(*line, "--nproc", "2", *typed.split())
        assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1


def test_options_of_the_job_reach_it(arguments: list[str], run_command: Run) -> None:
    typed = "--global-batch 24 --micro-batch 3 --schedule cosine --warmup-steps 2 --clip-norm 1 --find-unused-parameters --samples 100"
    done = run_command(*arguments, *typed.split(), "--activation-checkpoint-every", "2", "--format", "json")
    job = json.loads(done.stdout)["data"]["job"]
    assert (job["micro_batch"], job["accumulation"], job["clip_norm"], job["schedule"], job["warmup_steps"]) == (3, 4, 1.0, "cosine", 2)
    assert job["find_unused_parameters"] is True and job["samples"] == 100 and job["activation_checkpoint_every"] == 2
    local = run_command(*arguments, "--local-sgd-steps", "4")
    assert (
        local.returncode == 2 and "local_sgd_steps averages whole models, and the backend config asks for fsdp_full_shard" in local.stderr
    )


MISTAKES = {
    "--global-batch 9 --micro-batch 2": "global batch 9 cannot be divided by 2 ranks x micro_batch 2",
    "--global-batch 9 --micro-batch 2 --accumulation 2": "global_batch 9 is not micro_batch 2 x world_size 2 x accumulation 2 = 8",
    "--schedule step": "invalid choice",
    "--clip-norm much": "'much' is not a number",
    "--warmup-steps 50": "warmup_steps 50 leave nothing of the 12 steps",
    "--steps 0": "steps 0 is less than 1",
    "--steps x": "'x' is not a whole number",
    "--seq-len 100000": "positions",
    "--memory-cap 0B": "memory_cap_bytes",
    "--memory-cap lots": "'lots' is not a memory size",
    "--timeout 0": "timeout_s",
    "--learning-rate nan": "learning_rate",
    "--nproc 0": "world_size 0",
    "--device tpu": "invalid choice",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told(mistake: str, arguments: list[str], run_command: Run) -> None:
    done = run_command(*arguments, *mistake.split())
    assert done.returncode == 2 and MISTAKES[mistake] in done.stderr and "Traceback" not in done.stderr


def test_a_folder_that_exists_is_refused_even_dry(arguments: list[str], tmp_path: Path, run_command: Run) -> None:
    (tmp_path / "a run").mkdir()
    done = run_command(*arguments)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "exists" in done.stderr


def test_without_torch_execute_says_how_to_get_it(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(probe, "importable", lambda name: False)
    assert main([*arguments, "--execute"]) == 3
    assert "pip install torch" in capsys.readouterr().err
    assert not (tmp_path / "a run").exists()
    assert main(arguments) == 0
    assert "not checked: torch" in capsys.readouterr().out


def ended(run_dir: Path, rank: int, *rows: dict[str, Any] | str) -> None:
    (run_dir / "perf").mkdir(parents=True, exist_ok=True)
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (run_dir / "perf" / f"rank{rank}.jsonl").write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize("diagnose_is_here", [True, False])
def test_what_a_run_says_at_its_end_with_and_without_diagnose(
    diagnose_is_here: bool, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """torchrun is left out: the records of a failed job of two ranks stand there as workers would have left them."""
    error = {"type": "exception", "exception": "IndexError", "message": "index \x1b[2J out of range", "phase": "forward"}

    def run(job: Job, run_dir: str, **settings: object) -> torchrun.Outcome:
        ended(Path(run_dir), 0, {"kind": "header", "rank": 0, "world_size": 2, "pid": 7})
        ended(
            Path(run_dir),
            1,
            {"kind": "header", "rank": 1, "world_size": 2},
            {"kind": "end", "status": "failed", "steps": 0, "error": error},
        )
        return torchrun.Outcome("failed", 1, run_dir, "torchrun ended with 1", 2.0)

    monkeypatch.setattr(torchrun, "run", run)
    monkeypatch.setattr(probe, "importable", lambda name: diagnose_is_here or name == "torch")
    assert main([*arguments, "--execute", "--format", "json"]) == 4
    report = json.loads(capsys.readouterr().out)
    jsonschema.validate(report["data"], SCHEMA)
    if diagnose_is_here:
        assert report["data"]["diagnosis"]["diagnoses"][0]["class"] == "user_exception" and report["data"]["ends"] is None
        assert not [row for row in report["not_checked"] if row["name"] == "diagnosis"]
        return
    assert report["data"]["diagnosis"] is None and not [f for f in report["findings"] if f["rule"].startswith("RUN")]
    assert [end["status"] for end in report["data"]["ends"]] == ["", "failed"] and report["data"]["ends"][1]["exception"] == "IndexError"
    assert [row["name"] for row in report["not_checked"]] == ["check", "diagnosis"]
    assert main([*arguments, "--execute", "--force"]) == 2, "the folder carries no manifest"
    shutil.rmtree(tmp_path / "a run")
    assert main([*arguments, "--execute"]) == 4
    text = capsys.readouterr().out
    assert "rank 1 failed in forward: IndexError: index \\x1b[2J out of range" in text and "rank 0 left no end record" in text
    assert "the skill debug-distributed-training has it" in text


def test_the_skill_that_has_diagnose_is_named_rightly() -> None:
    assert DIAGNOSE_SKILL in COMMANDS["diagnose"].skills and CHECK_SKILL in COMMANDS["check"].skills


def test_a_preset_reaches_the_workers_as_a_path(arguments: list[str], run_command: Run) -> None:
    arguments[arguments.index("--model") + 1] = "llama-demo"
    report = json.loads(run_command(*arguments, "--format", "json").stdout)
    assert Path(report["data"]["job"]["model"]) == LIBRARY / "models" / "llama-demo" / "config.json"


@pytest.mark.long
def test_a_real_run_and_one_that_fails(arguments: list[str], tmp_path: Path) -> None:
    for name in ("torch", "trainwright", "json", "run"):  # nothing of the user's folder may stand in for a module of the job
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')")
    small = ["--steps", "3", "--micro-batch", "1", "--seq-len", "16", "--execute", "--format", "json"]

    def launch(*more: str) -> tuple[int, Any]:
        argv = [sys.executable, str(LIBRARY / "cli.py"), *arguments, *small, *more]
        path = {"PYTHONPATH": str(LIBRARY.parent), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(argv, env=path, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        report = json.loads(done.stdout)
        jsonschema.validate(report["data"], SCHEMA)
        return done.returncode, report

    code, report = launch()
    assert code == 0 and report["data"]["outcome"]["status"] == "completed"
    assert report["data"]["diagnosis"]["run"]["tokens_per_s"] > 0
    code, report = launch("--force", "--memory-cap", "20MiB")
    assert code == 4 and report["status"] == "failed"
    assert report["data"]["diagnosis"]["diagnoses"][0]["class"] == "host_oom_alloc"


@pytest.mark.long
def test_ctrl_c_is_the_documented_exit_code(arguments: list[str], tmp_path: Path, gone: Callable[..., None]) -> None:
    argv = [sys.executable, "-m", "trainwright.cli", *arguments, "--steps", "1000", "--seq-len", "16", "--execute", "--format", "json"]
    path = {"PYTHONPATH": str(LIBRARY.parent), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(argv, env=path, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (tmp_path / "a run" / "manifest.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    answer, complaint = process.communicate(timeout=60)
    gone(tmp_path / "a run")
    report = json.loads(answer)
    assert (process.returncode, report["status"], complaint) == (130, "interrupted", "")
    assert report["data"]["outcome"]["status"] == "interrupted"
