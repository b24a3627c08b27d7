"""`advise` and `estimate` as their users run them: text, JSON by its schema, the emitted file, and every kind of mistake."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import referencing

from trainwright.cli import main
from trainwright.document import parse
from trainwright.emit import accelerate
from trainwright.hardware import accelerator
from trainwright.strategy import Strategy

Run = Callable[..., "subprocess.CompletedProcess[str]"]
LIBRARY = Path(__file__).resolve().parents[2] / "helpers" / "trainwright"
SCHEMAS = {name: json.loads((LIBRARY / f"advise/{name}.schema.json").read_text(encoding="utf-8")) for name in ("advise", "estimate")}
REGISTRY: Any = referencing.Registry().with_resources(
    [(f"{name}.schema.json", referencing.Resource.from_contents(schema)) for name, schema in SCHEMAS.items()]
)
MODEL = str(LIBRARY / "models/llama-demo/config.json")
JOB = ["--model", MODEL, "--devices", "4", "--micro-batch", "2", "--seq-len", "128", "--precision", "fp32", "--device", "cpu"]


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and report of a command; its data has been held against its schema."""
    code = main([*arguments, "--format", "json"])
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    if report["data"] is not None:
        jsonschema.Draft202012Validator(SCHEMAS[arguments[0]], registry=REGISTRY).validate(report["data"])
    return code, report


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a mistake gets, with exit code 2 and nothing on stdout."""
    assert main(list(arguments)) == 2
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" not in err
    return err.strip().split("\n")[-1]


def test_schemas_are_schemas() -> None:
    for schema in SCHEMAS.values():
        jsonschema.Draft202012Validator.check_schema(schema)


# --- estimate -------------------------------------------------------------------------------------------------------


def test_estimate_shows_every_strategy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", *JOB]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert lines[0] == "llama-demo-21m: 18.88 M parameters"
    assert [line.split("  ")[0] for line in lines[1:5]] == ["strategy", "ddp", "fsdp_shard_grad_op", "fsdp_full_shard"]
    assert "371.4 MiB" in lines[2] and "?" in lines[2]
    assert "not checked: whether it fits (no memory was named" in "\n".join(lines)


def test_estimate_of_one_strategy_shows_items_that_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", *JOB, "--strategy", "fsdp_full_shard", "--memory", "300MiB"]) == 0
    text = capsys.readouterr().out
    assert "parameters = P/W x 4 B" in text and "gathered root = R x 4 B" in text and "the phases:" in text and "W ranks)" in text
    code, report = answer(capsys, "estimate", *JOB, "--strategy", "fsdp_full_shard", "--memory", "300MiB")
    (row,) = report["data"]["candidates"]
    assert code == 0 and sum(item["bytes"] for item in row["ledger"]["items"]) == row["ledger"]["peak_bytes"]
    assert row["fits"] and row["safe"] and row["max_micro_batch"] > 2


def test_estimate_without_memory_has_its_schema(capsys: pytest.CaptureFixture[str]) -> None:
    _, report = answer(capsys, "estimate", *JOB)
    assert report["data"]["memory_bytes"] is None and {row["fits"] for row in report["data"]["candidates"]} == {None}


def test_estimate_finds_a_sequence_that_is_too_long(capsys: pytest.CaptureFixture[str]) -> None:
    code, report = answer(capsys, "estimate", "--model", MODEL, "--devices", "2", "--seq-len", "2048", "--fail-on", "warning")
    assert code == 1 and [f["rule"] for f in report["findings"]] == ["ADV002"]


# --- advise ---------------------------------------------------------------------------------------------------------


def test_advise_chooses(capsys: pytest.CaptureFixture[str]) -> None:
    code, report = answer(capsys, "advise", *JOB, "--memory", "270MiB")
    data = report["data"]
    assert code == 0 and report["findings"] == []
    assert (data["choice"], data["fallback"], data["alternative"]) == ("fsdp_shard_grad_op", "ddp", "fsdp_full_shard")
    assert data["memory_bytes"] == 270 * 2**20 and data["emitted"] is None and data["margin"] == 0.1
    assert {entry["name"] for entry in report["not_checked"]} == {"memory beside tensors", "other model code", "speed"}


def test_advise_says_that_choice_and_fallback_coincide(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", *JOB, "--device-memory", "1GiB"]) == 0
    assert "fallback: ddp too, the choice is the simplest already; the next alternative is fsdp_shard_grad_op" in capsys.readouterr().out


def test_nothing_fits_is_a_finding_with_a_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    code, report = answer(capsys, "advise", *JOB, "--memory", "150MiB")
    (finding,) = report["findings"]
    assert code == 1 and finding["rule"] == "ADV001" and finding["fails_at"] == "first step"
    assert report["data"]["choice"] is None and report["data"]["remedies"] == finding["data"]["remedies"] != []


def test_an_accelerator_is_its_memory_less_a_reserve(capsys: pytest.CaptureFixture[str]) -> None:
    _, report = answer(capsys, "advise", "--model", MODEL, "--devices", "8", "--accelerator", "Max_1550 tile")
    data, found = report["data"], accelerator("max-1550-tile")
    assert data["memory_bytes"] == (found.memory_bytes or 0) - found.reserve_bytes
    assert data["workload"]["device"] == "xpu" and data["accelerator"]["memory"]["source"] == "alcf-user-guides"
    assert "memory for tensors" in {entry["name"] for entry in report["inferred"]}


def test_cpu_ranks_share_the_memory_of_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    one, four = (answer(capsys, "advise", *JOB[:3], n, "--accelerator", "cpu")[1]["data"] for n in ("1", "4"))
    reserve = accelerator("cpu").reserve_bytes
    assert one["workload"]["device"] == "cpu"
    assert abs((one["memory_bytes"] + reserve) - 4 * (four["memory_bytes"] + reserve)) < 4


def test_a_global_batch_is_accumulated(capsys: pytest.CaptureFixture[str]) -> None:
    _, once = answer(capsys, "advise", *JOB, "--memory", "400MiB", "--global-batch", "8")
    _, report = answer(capsys, "advise", *JOB, "--memory", "400MiB", "--global-batch", "64")
    assert once["data"]["workload"]["accumulation"] == 1 and report["data"]["workload"]["accumulation"] == 8
    peaks = [[row["ledger"]["peak_bytes"] for row in r["data"]["candidates"]] for r in (once, report)]
    assert all(a <= b for a, b in zip(*peaks, strict=True)), "gradients of earlier passes stay"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (None, Strategy("fsdp", False, ("LlamaDecoderLayer",))),
        ("ddp", Strategy("ddp")),
        ("fsdp_full_shard", Strategy("fsdp", True, ("LlamaDecoderLayer",))),
    ],
)
def test_emit_writes_a_file_that_reads_back(
    name: str | None, expected: Strategy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "a file.yaml"
    code, report = answer(capsys, "advise", *JOB, "--memory", "270MiB", "--emit", str(written), *(["--strategy", name] if name else []))
    assert code == 0 and report["data"]["emitted"] == {"path": str(written), "strategy": expected.name, "backend": "accelerate"}
    reading = accelerate.read(parse(written.read_text(), str(written), "yaml"))
    assert reading.strategy == expected and reading.num_processes == 4


def test_the_emitted_file_passes_the_check(tmp_path: Path, run_command: Run) -> None:
    for device, level in (("cpu", "error"), ("cuda", "warning")):  # Accelerate's own launcher cannot run FSDP on CPU: a warning
        written = tmp_path / f"{device}.yaml"
        done = run_command("advise", *JOB[:-1], device, "--memory", "270MiB", "--emit", str(written))
        assert done.returncode == 0 and f"trainwright check {written} --world-size 4" in done.stdout
        checked = run_command("check", str(written), "--world-size", "4", "--model", MODEL, "--device", device, "--fail-on", level)
        assert checked.returncode == 0, checked.stdout


# --- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--devices", "4"], "give --memory 36GiB or --accelerator NAME"),
        (["--devices", "0", "--memory", "1GiB"], "'0' is not 1 or more"),
        (["--devices", "-1", "--memory", "1GiB"], "negative"),
        (["--devices", "2.5", "--memory", "1GiB"], "not a whole number"),
        (["--devices", "1e30", "--memory", "1GiB"], "world_size is"),
        (["--devices", "4", "--memory", "0"], "holds nothing"),
        (["--devices", "4", "--memory", "lots"], "'lots' is not a memory size"),
        (["--devices", "4", "--memory", "-1GiB"], "--memory"),
        (["--devices", "4", "--memory", "nan"], "not a memory size"),
        (["--devices", "4", "--memory", "1GiB", "--accelerator", "a100-80gb"], "not allowed with"),
        (["--devices", "4", "--accelerator", "h10"], "did you mean h100-sxm"),
        (["--devices", "4", "--accelerator", "abacus\x1b[31m"], "there is no accelerator"),
        (["--devices", "10000000", "--accelerator", "cpu"], "no memory is left for tensors"),
        (["--devices", "4", "--memory", "1GiB", "--seq-len", "99999999999"], "seq_len is"),
        (["--devices", "4", "--memory", "1GiB", "--micro-batch", "0"], "'0' is not 1 or more"),
        (["--devices", "4", "--memory", "1GiB", "--global-batch", "6"], "no multiple of micro batch x ranks = 4"),
        (["--devices", "4", "--memory", "1GiB", "--precision", "fp8"], "invalid choice"),
        (["--devices", "4", "--memory", "1GiB", "--optimizer", "sgd"], "invalid choice"),
        (["--devices", "4", "--memory", "1GiB", "--strategy", "ddp"], "--emit"),
        (["--devices", "4", "--memory", "1GiB", "--emit", "/nowhere/x.yaml"], "cannot write /nowhere/x.yaml"),
        (["--devices", "4", "--memory", "1GiB", "--emit", "x.yaml", "--strategy", "zero-3"], "'zero-3' is not one of ddp"),
        (["--devices", "4", "--memory", "1MiB", "--emit", "x.yaml"], "nothing fits, so x.yaml is not written"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    line = refused(capsys, "advise", "--model", MODEL, *arguments)
    assert said in line and "\x1b" not in line
    assert list(tmp_path.iterdir()) == [], "nothing was written"


def test_mistakes_of_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    assert "is not one of single" in refused(capsys, "estimate", "--model", MODEL, "--devices", "1", "--strategy", "ddp")
    assert "cannot be read" in refused(capsys, "estimate", "--model", "nowhere.json", "--devices", "1")


def test_without_pyyaml_sizes_still_work_and_names_end_with_the_line_to_type(tmp_path: Path, run_command: Run) -> None:
    (tmp_path / "yaml.py").write_text("raise ImportError('no')\n")  # find_spec sees a module; its import fails only where it is tried
    done = run_command("advise", *JOB, "--memory", "270MiB", PYTHONPATH=f"{tmp_path}:{LIBRARY.parent}")
    assert done.returncode == 0, done.stderr
