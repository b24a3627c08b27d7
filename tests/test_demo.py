"""The main job, end to end: real runs under a real cap, and every way the demo is stopped before or while it runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from trainwright import demo, probe
from trainwright.advise.decide import decide
from trainwright.cli import main
from trainwright.cost.memory import Workload, ledger
from trainwright.model import load_model
from trainwright.report import Report
from trainwright.strategy import Strategy

ROOT = Path(__file__).resolve().parents[1]
TINY = {
    "model_type": "llama",
    "name": "tiny",
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 4096,
    "max_position_embeddings": 256,
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY))
    return path


def envelope(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return dict(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--devices", "1"), "needs 2 or more"),
        (("--memory-cap", "lots"), "is not a memory size"),
        (("--memory-cap", "0"), "holds nothing"),
        (("--model", "no.json"), "no.json: cannot be read"),
        (("--micro-batch", "0"), "micro_batch is 0"),
    ],
)
def test_a_mistake_is_one_line_and_touches_nothing(
    arguments: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "importable", lambda name: True)
    assert main(["demo", *arguments, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_of_somebody_else_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "importable", lambda name: True)
    (tmp_path / "thesis.tex").write_text("x")
    assert main(["demo", "--out", str(tmp_path)]) == 2
    assert "is not a folder that demo wrote" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_without_torch_the_line_to_type_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "importable", lambda name: False)
    assert main(["demo", "--out", str(tmp_path / "out")]) == 3
    assert "pip install torch" in capsys.readouterr().err


def trials(model: Path, cap: int) -> tuple[list[str], Report]:
    report = Report("demo")
    spec = load_model(str(model))
    advice = decide(spec, Workload(micro_batch=2, seq_len=64, world_size=2), cap)
    return [trial.strategy.name for trial in demo._trials(advice, report)], report


def test_the_choice_runs_beside_the_fallback(model: Path) -> None:
    spec, workload = load_model(str(model)), Workload(micro_batch=2, seq_len=64, world_size=2)
    cap = ledger(spec, Strategy("ddp"), workload).peak_bytes - 1
    names, report = trials(model, cap)
    assert names[0] == "ddp" and names[1].startswith("fsdp")
    assert report.text == []


def test_where_choice_and_fallback_coincide_the_next_alternative_runs_and_is_said(model: Path) -> None:
    names, report = trials(model, 2**30)
    assert names == ["ddp", "fsdp_shard_grad_op"]
    assert report.text == ["choice and fallback coincide (ddp): the next alternative, fsdp_shard_grad_op, runs beside it"]


def test_where_nothing_fits_two_are_tried_and_it_is_said(model: Path) -> None:
    names, report = trials(model, 2**20)
    assert len(set(names)) == 2
    assert report.text[0].startswith("nothing fits")


@pytest.mark.long
def test_the_whole_story_on_a_tiny_model(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out with a space"
    arguments = ["demo", "--model", str(model), "--devices", "2", "--seq-len", "64", "--steps", "5", "--out", str(out), "--format", "json"]
    for _ in range(2):  # a second run replaces the first
        code = main(arguments)
        report = envelope(capsys)
        assert code == 0, report
    jsonschema.validate(report["data"], json.loads((ROOT / "helpers" / "trainwright" / "demo.schema.json").read_text()))
    saved = json.loads((out / "report.json").read_text())
    assert saved["data"] == report["data"]
    fallback, choice = report["data"]["trials"]
    assert (fallback["strategy"], fallback["fits"], fallback["outcome"]) == ("ddp", False, "failed")
    assert fallback["diagnosis"]["diagnoses"][0]["class"] == "host_oom_alloc"
    assert choice["fits"] and choice["outcome"] == "completed" and choice["as_predicted"]
    assert choice["effective"]["wrapper"] == "FSDPModule" and choice["effective"]["world_size"] == 2
    assert choice["effective"]["shard_ratio"] == pytest.approx(0.5, abs=0.01)
    assert choice["diagnosis"]["run"]["median_step_time_s"] > 0
    for trial in (fallback, choice):
        assert abs(trial["relative_error"]) <= 0.05
        assert trial["applied"] and trial["not_applied"]
    page = (out / "report.html").read_text()
    assert "host_oom_alloc" not in page and "ran out of memory" in page and "FSDPModule" in page


@pytest.mark.long
@pytest.mark.parametrize("delay_s", [0.3, 4.0, 12.0])
def test_ctrl_c_at_any_moment_leaves_no_process_and_no_half_report(model: Path, tmp_path: Path, delay_s: float) -> None:
    out = tmp_path / "out"
    code = "import sys; from trainwright.cli import main; sys.exit(main(sys.argv[1:]))"
    argv = [sys.executable, "-c", code, "demo", "--model", str(model), "--devices", "2", "--seq-len", "64", "--out", str(out)]
    variables = {"PYTHONPATH": str(ROOT / "helpers"), "PATH": os.defpath, "HOME": str(tmp_path)}
    with subprocess.Popen(argv, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        time.sleep(delay_s)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert "Traceback" not in error
    assert not (out / "report.html").exists() and not (out / "report.json").exists()
    assert processes_naming(str(out)) == []


def processes_naming(text: str) -> list[str]:
    """The command lines of live processes that name `text`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            found += [line] if text in line else []
    return found
