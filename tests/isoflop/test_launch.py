"""Launching a plan: rows of every end, going on after any end, a trainer of the user's, and the reference trainer."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from trainwright import cli
from trainwright.isoflop import planning
from trainwright.isoflop import study as studies
from trainwright.isoflop.actions import demo

Ask = Callable[..., tuple[int, dict[str, Any]]]
SCHEMA = json.loads((Path(__file__).resolve().parents[2] / "helpers/trainwright/isoflop/isoflop.schema.json").read_text())
# Loss falls with size; size 3 diverges, size 4 crashes; every start leaves a mark.
TRAINER = """
import json, sys, time
run_dir, params, steps, seed, pause = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
open(run_dir + '/starts', 'a').write('x')
time.sleep(pause)
with open(run_dir + '/metrics.jsonl', 'a') as file:
    for step in range(1, 6):
        loss = 3.0 / params + 0.01 * seed if params != 3 else float('nan')
        file.write(json.dumps({'step': step * steps // 5, 'loss': loss, 'eval_loss': loss + 0.5, 'tokens_per_sec': 100.0 * step}) + '\\n')
sys.exit(7 if params == 4 else 0)
"""


def plan_file(folder: Path, sizes: list[int], pause: float = 0.0) -> str:
    (folder / "train.py").write_text(TRAINER)
    argv = [sys.executable, str(folder / "train.py"), "{run_dir}", "{params}", "{steps}", "{seed}", str(pause)]
    members = [
        {"name": f"n{size}", "config": {"model_type": "plain", "vocab_size": 97, "hidden_size": 16 * size, "num_hidden_layers": 1},
         "width": 16, "seq_len": 64, "params": {"matmul": size}, "flops_per_token": 10.0 * size, "flops_rule": "matmul"}
        for size in sizes
    ]  # fmt: skip
    rules = planning.Rules()
    planned = planning.plan_runs([1e8], members, rules, [0])
    plan = planning.document(planned, members, rules, {"job": {}, "trainer": {"argv": argv}})
    path = folder / "plan.yaml"
    path.write_text(planning.dump(plan))
    return str(path)


def starts(study: Path) -> int:
    return sum(len(file.read_text()) for file in study.glob("runs/*/starts"))


def test_without_execute_nothing_is_written(ask: Ask, tmp_path: Path) -> None:
    code, said = ask("launch", "--plan", plan_file(tmp_path, [1, 2]), "--scaling-study-dir", str(tmp_path / "study"))
    jsonschema.validate(said["data"], SCHEMA)
    assert code == 0 and len(said["data"]["to_do"]) == 2 and not (tmp_path / "study").exists()


def test_without_a_trainer_the_dry_run_foretells_the_end(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, study = tmp_path / "plan.yaml", str(tmp_path / "study")
    plan.write_text(planning.dump(demo.demo_plan({1e9: (8,)}, str(tmp_path))))
    call = ("launch", "--plan", str(plan), "--scaling-study-dir", study)
    monkeypatch.setattr("trainwright.probe.importable", lambda name: name not in ("torch", "trainwright.isoflop.by_reference"))
    code, said = ask(*call)
    (words,) = [finding["message"] for finding in said["findings"] if finding["rule"] == "iso-no-trainer"]
    assert code == 0 and "the reference trainer is not in this copy" in words and "pip install '.[run]'" in words
    assert cli.main(["isoflop", *call]) == 0
    told = capsys.readouterr().out
    assert "1 of 1 runs to do; --execute would start none and end with exit 3" in told and "--execute starts them" not in told
    code, said = ask(*call, "--execute")
    assert code == 3 and words in said["findings"][0]["message"] and not (tmp_path / "study").exists()
    own = plan_file(tmp_path, [1])
    _, said = ask("launch", "--plan", own, "--scaling-study-dir", study)
    assert "iso-no-trainer" not in {finding["rule"] for finding in said["findings"]}


def test_every_end_has_its_row_and_a_second_launch_does_nothing(ask: Ask, tmp_path: Path) -> None:
    study, table = tmp_path / "study", tmp_path / "runs.csv"
    call = ("launch", "--plan", plan_file(tmp_path, [1, 2, 3, 4]), "--scaling-study-dir", str(study), "--csv", str(table), "--execute")
    code, said = ask(*call, "--workers", "4")
    jsonschema.validate(said["data"], SCHEMA)
    rows = {row["params"]: row for row in said["data"]["rows"]}
    assert code == 0 and {n: row["state"] for n, row in rows.items()} == {1: "finished", 2: "finished", 3: "diverged", 4: "failed"}
    assert (rows[1]["loss"], rows[2]["loss"], rows[3]["loss"], rows[4]["loss"]) == (3.5, 2.0, None, None)
    assert rows[1]["tokens_per_sec"] == 450.0 and starts(study) == 4
    assert [finding["rule"] for finding in said["findings"]] == ["iso-diverged", "iso-failed"]
    written = {row["run_id"]: row for row in csv.DictReader(table.read_text().splitlines())}
    assert len(written) == 4 and written["c1e8-n2-s0"]["loss"] == "2.0" and written["c1e8-n4-s0"]["state"] == "failed"
    before = table.read_bytes()
    assert ask(*call)[0] == 0 and starts(study) == 4 and table.read_bytes() == before
    assert ask(*call, "--retry-failed")[0] == 0 and starts(study) == 6


def test_collect_reads_the_table(ask: Ask, tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    call = ("launch", "--plan", plan_file(tmp_path, [1, 2, 3]), "--scaling-study-dir", str(tmp_path / "study"), "--csv", str(table))
    assert ask(*call, "--execute")[0] == 0
    code, said = ask("collect", str(table))
    assert code == 0 and said["data"]["rows"]["used"] == 2 and "diverged" in said["data"]["excluded"][0]["reason"]


def test_collect_reads_the_folders_of_a_trainer_of_the_users(ask: Ask, tmp_path: Path) -> None:
    call = ("launch", "--plan", plan_file(tmp_path, [1, 2, 3, 4]), "--scaling-study-dir", str(tmp_path / "study"), "--execute")
    assert ask(*call)[0] == 0
    code, said = ask("collect", str(tmp_path / "study"), "--csv", str(tmp_path / "out.csv"))
    assert code == 0 and said["data"]["rows"]["used"] == 2, said
    assert sorted(row["reason"] for row in said["data"]["excluded"]) == ["the run's state is diverged", "the run's state is failed"]
    rows = {row["run_id"]: row for row in csv.DictReader((tmp_path / "out.csv").read_text().splitlines())}
    assert {name: row["loss"] for name, row in rows.items()} == {"c1e8-n1-s0": "3.5", "c1e8-n2-s0": "2"}


@pytest.mark.parametrize(
    ("lines", "code", "state", "loss"),
    [
        ([{"step": 5, "eval_loss": 2.0}, {"step": 6, "loss": 9.0}], 0, "finished", 2.0),
        ([{"step": 5, "eval_loss": 2.0}, {"step": 6, "loss": float("nan")}], 0, "diverged", None),
        ([{"step": 5, "loss": 3.0}, {"state": "completed"}], 0, "finished", 3.0),
        ([{"step": 5, "loss": 3.0}, {"state": "failed"}], 0, "failed", None),
        ([{"step": 5, "loss": 3.0, "state": "what a state"}], 3, "failed", None),
        ([{"step": 5, "loss": 10**400}], 0, "diverged", None),
        ([{"step": 5, "loss": "low"}], 0, "failed", None),
        ([], 0, "failed", None),
    ],
)
def test_what_a_trainer_says_of_its_end(
    ask: Ask, tmp_path: Path, lines: list[dict[str, Any]], code: int, state: str, loss: float | None
) -> None:
    plan = plan_file(tmp_path, [1])
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "train.py").write_text(f"import sys\nopen(sys.argv[1] + '/metrics.jsonl', 'w').write({text!r})\nsys.exit({code})\n")
    _, said = ask("launch", "--plan", plan, "--scaling-study-dir", str(tmp_path / "study"), "--execute")
    assert [(row["state"], row["loss"]) for row in said["data"]["rows"]] == [(state, loss)]


@pytest.mark.long
def test_a_constant_rate_is_evaluated_where_it_passes_lower_budgets(ask: Ask, tmp_path: Path) -> None:
    made = demo.demo_plan({1e8: (6,), 2e8: (6,), 4e8: (6,)}, str(tmp_path / "configs"))
    plan, study = tmp_path / "plan.yaml", tmp_path / "study"
    for run in made["runs"]:
        run["schedule"] = "constant"
    plan.write_text(planning.dump(made))
    assert ask("launch", "--plan", str(plan), "--scaling-study-dir", str(study), "--execute")[0] == 0
    code, said = ask("collect", str(study), "--every-eval", "--csv", str(tmp_path / "out.csv"))
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert code == 0 and len(rows) == 6, said
    longest = [row for row in rows if row["run_id"].startswith("c4e8")]
    assert [round(float(row["flops"]) / 1e8) for row in longest] == [1, 2, 4]
    assert all(2 < float(row["loss"]) < 5 for row in rows)


def test_two_launches_never_work_in_one_folder(ask: Ask, tmp_path: Path) -> None:
    plan, folder = plan_file(tmp_path, [1, 2]), str(tmp_path / "study")
    with studies.held(studies.open_study(folder, plan)):
        code, said = ask("launch", "--plan", plan, "--scaling-study-dir", folder, "--execute")
        assert code == 2 and "another `isoflop launch` is at work" in said["findings"][0]["message"]
    assert starts(tmp_path / "study") == 0
    assert ask("launch", "--plan", plan, "--scaling-study-dir", folder, "--execute")[0] == 0


def test_an_edited_plan_takes_up_nothing(ask: Ask, tmp_path: Path) -> None:
    plan, study = plan_file(tmp_path, [1, 2]), str(tmp_path / "study")
    assert ask("launch", "--plan", plan, "--scaling-study-dir", study, "--execute")[0] == 0
    text = Path(plan).read_text()
    Path(plan).write_text(text.replace("seed: 0", "seed: 1"))
    assert ask("launch", "--plan", plan, "--scaling-study-dir", study, "--execute")[0] == 2


def test_a_program_that_is_not_there(ask: Ask, tmp_path: Path) -> None:
    plan = Path(plan_file(tmp_path, [1]))
    plan.write_text(plan.read_text().replace(sys.executable, "/no/such/program"))
    code, said = ask("launch", "--plan", str(plan), "--scaling-study-dir", str(tmp_path / "study"), "--execute")
    assert code == 4 and said["data"]["rows"][0]["state"] == "failed"


def launched(root: Path, *arguments: str) -> subprocess.Popen[bytes]:
    argv = [sys.executable, str(root / "scripts" / "isoflop.py"), "launch", *arguments, "--execute", "--format", "json"]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_goes_on_after_an_end_at_any_moment(ask: Ask, root: Path, tmp_path: Path, number: int) -> None:
    plan, study = plan_file(tmp_path, [1, 2], pause=1.0), tmp_path / "study"
    process = launched(root, "--plan", plan, "--scaling-study-dir", str(study), "--workers", "1")
    wait_for(lambda: starts(study) >= 1)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == (130 if number == signal.SIGTERM else -number)
    code, said = ask("launch", "--scaling-study-dir", str(study), "--execute", "--workers", "2")
    assert code == 0 and {row["state"] for row in said["data"]["rows"]} == {"finished"} and len(said["data"]["rows"]) == 2


@pytest.mark.long
def test_the_reference_trainer_repeats_to_the_bit_and_survives_a_kill(ask: Ask, root: Path, tmp_path: Path) -> None:
    grid = {3e8: (6, 8), 6e8: (8,)}
    plan = tmp_path / "plan.yaml"
    plan.write_text(planning.dump(demo.demo_plan(grid, str(tmp_path / "configs"))))
    killed = tmp_path / "killed"
    process = launched(root, "--plan", str(plan), "--scaling-study-dir", str(killed), "--workers", "1")
    wait_for(lambda: any(killed.glob("runs/*/perf/rank0.jsonl")))
    process.kill()
    process.communicate(timeout=60)
    losses = []
    for study in (killed, tmp_path / "whole"):
        code, said = ask("launch", "--plan", str(plan), "--scaling-study-dir", str(study), "--execute", "--workers", "2")
        assert code == 0, said
        rows = {row["run_id"]: row for row in said["data"]["rows"]}
        assert all(row["state"] == "finished" and row["loss"] > 2 for row in rows.values()) and len(rows) == 3
        losses.append({name: row["loss"] for name, row in rows.items()})
    assert losses[0] == losses[1]
    code, said = ask("collect", str(killed))
    assert code == 0 and said["data"]["rows"]["used"] == 3


@pytest.mark.long
def test_the_smoke_study_has_its_minima_inside(ask: Ask, tmp_path: Path) -> None:
    code, said = ask("demo", "--smoke", "--scaling-study-dir", str(tmp_path / "study"), "--csv", str(tmp_path / "runs.csv"))
    assert code == 0
    budgets = said["data"]["budgets"]
    assert len(budgets) == 3 and all(row["params"] for row in budgets), budgets
    assert [row["params"] for row in budgets] == sorted(row["params"] for row in budgets)
    assert os.path.exists(tmp_path / "runs.csv") and said["data"]["trusted"] == "2"


@pytest.mark.long
def test_a_killed_run_goes_on_from_its_checkpoint(ask: Ask, root: Path, tmp_path: Path) -> None:
    made = demo.demo_plan({1e9: (8,)}, str(tmp_path / "configs"))
    made["job"] = {**made["job"], "checkpoint_every": 50}
    plan, study = tmp_path / "plan.yaml", tmp_path / "study"
    plan.write_text(planning.dump(made))
    process = launched(root, "--plan", str(plan), "--scaling-study-dir", str(study))
    wait_for(lambda: any(study.glob("runs/*/checkpoints/step_*/complete.json")))
    process.kill()
    process.communicate(timeout=60)
    code, said = ask("launch", "--scaling-study-dir", str(study), "--execute")
    (row,) = said["data"]["rows"]
    assert code == 0 and row["state"] == "finished" and row["steps"] == made["runs"][0]["steps"]
    assert len(list(study.glob("runs/*.2/isoflop.json"))) == 1
    code, said = ask("collect", str(study))
    assert code == 0 and said["data"]["rows"]["used"] == 1, said
