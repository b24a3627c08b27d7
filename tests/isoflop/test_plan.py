"""Plans: the study that was recorded, budgets to the digit, rules, costs, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from trainwright import cli, job
from trainwright.errors import UserError
from trainwright.isoflop import calibration, ladder, planning, shapes
from trainwright.isoflop.actions.demo import GRID, demo_plan
from trainwright.isoflop.actions.plan import findings

Ask = Callable[..., tuple[int, dict[str, Any]]]
SCHEMA = json.loads((Path(__file__).resolve().parents[2] / "helpers/trainwright/isoflop/isoflop.schema.json").read_text())


def member(width: int, per_token: float = 1e6, params: int = 100_000, rate: float | None = None) -> dict[str, Any]:
    kinds = dict.fromkeys(("matmul", "total", "nonembedding", "trainable"), params)
    measured = {"tokens_per_sec": rate} if rate else None
    return {"name": f"d{width}", "config": {"hidden_size": width}, "width": width, "layers": 2, "seq_len": 64, "params": kinds,
            "flops_per_token": per_token, "flops_rule": "matmul", "measured": measured, "measured_reason": "not asked"}  # fmt: skip


@pytest.fixture
def cal(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("trainwright.isoflop.calibration.probe.importable", lambda name: False)
    target = tmp_path / "cal.json"
    widths = ["32", "64", "96", "128"]
    assert ask("calibrate", "--model", "tiny-gpt2", "--widths", *widths, "--no-measure", "--output-json", str(target))[0] == 0
    monkeypatch.undo()
    return str(target)


def test_the_demo_is_the_recorded_study(recorded: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (recorded / "own_study" / "runs_v2.jsonl").read_text().splitlines()]
    theirs = {(row["C"], row["d"]): row for row in rows if row["seed"] == 0}
    ours = {(run["budget"], int(run["member"][1:])): run for run in demo_plan(GRID, str(tmp_path))["runs"]}
    assert set(ours) == set(theirs) and len(ours) == 28
    for key, run in ours.items():
        row = theirs[key]
        assert (run["batch"], run["steps"], run["tokens"], run["params"]) == (
            row["B"],
            row["steps"],
            row["D"],
            row["N_nonemb"] + row["d"] * 97,
        )
        assert run["flops"] == pytest.approx(row["flops"], rel=1e-12) and run["lr"] == pytest.approx(row["lr"], abs=6e-6)


@given(st.floats(1e10, 1e25), st.floats(1e3, 1e14), st.integers(8, 4096))
def test_flops_are_within_a_percent_or_the_cell_is_left_out(budget: float, per_token: float, width: int) -> None:
    try:
        planned = planning.plan_runs([budget], [member(width, per_token)], planning.Rules(), [0])
    except UserError as problem:
        assert "cannot be cut into whole steps" in str(problem)
        return
    (run,) = planned.runs
    assert abs(run["flops"] / budget - 1) <= 0.01
    assert run["tokens"] == run["steps"] * run["batch"] * 64 and run["budget"] == budget


def test_near_budgets_stay_apart() -> None:
    planned = planning.plan_runs([1.5e19, 1.50001e19, 2.4e19], [member(64)], planning.Rules(), [0, 1])
    assert len({run["id"] for run in planned.runs}) == 6 and {run["budget"] for run in planned.runs} == {1.5e19, 1.50001e19, 2.4e19}
    assert planned.runs[-1]["checkpoints"] and planned.runs[0]["checkpoints"] == []


def test_the_rules_can_be_replaced() -> None:
    fixed = planning.Rules(lr="fixed", lr_value=3e-4, batch="fixed", batch_value=16, schedule="linear", warmup=0.0, params="total")
    (run,) = planning.plan_runs([1e15], [member(64)], fixed, [3]).runs
    assert (run["lr"], run["batch"], run["schedule"], run["warmup_steps"], run["seed"]) == (3e-4, 16, "linear", 0, 3)
    law = planning.Rules(lr="steplaw", batch="steplaw", batch_most=10**6)
    (run,) = planning.plan_runs([6e18], [member(2048, 6e9, 10**9)], law, [0]).runs
    assert run["lr"] == pytest.approx(1.79 * 1e9**-0.713 * run["tokens"] ** 0.307, rel=1e-3)
    assert run["batch"] * 64 == pytest.approx(0.58 * 1e9**0.571, rel=0.02)


def test_hours_are_known_or_say_why() -> None:
    hardware = planning.Hardware("h", 1e15, "", 0.5, 8)
    run = planning.plan_runs([3.6e18], [member(64, rate=1e6)], planning.Rules(), [0], hardware).runs[0]
    assert run["device_hours"] == pytest.approx(2.0, rel=0.01) and run["hours"] == pytest.approx(0.25, rel=0.01)
    assert run["seconds_here"] == run["tokens"] / 1e6
    dark = planning.plan_runs([3.6e18], [member(64)], planning.Rules(), [0], planning.Hardware("h", None, "not stated", 0.5, 8)).runs[0]
    assert (dark["device_hours"], dark["hours_reason"], dark["seconds_here"], dark["seconds_reason"]) == (
        None,
        "not stated",
        None,
        "not asked",
    )


def test_a_plan_is_written_read_and_told(ask: Ask, cal: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    arguments = ("plan", "--calibration-dir", cal, "--budgets", "1e13", "3e13", "1e14", "--hardware", "h100-sxm", "--plan", str(file))
    code, said = ask(*arguments)
    assert code == 0
    jsonschema.validate(said["data"], SCHEMA)
    plan = yaml.safe_load(file.read_text())
    planning.judge(plan, str(file))
    assert plan["runs"] == said["data"]["runs"] and len(plan["runs"]) == 12 and said["data"]["cost"]["device_hours"] > 0
    assert plan["runs"][0]["budget"] == 10**13 and type(plan["runs"][0]["budget"]) is int
    before = file.read_bytes()
    ask(*arguments)
    assert file.read_bytes() == before


def test_hopeless_grids_are_told(ask: Ask, cal: str) -> None:
    _, said = ask("plan", "--calibration-dir", cal, "--budgets", "1e11", "3e11", "--tokens-per-param", "0.01", "1e9")
    assert {"iso-undercooked", "iso-few-budgets"} <= {finding["rule"] for finding in said["findings"]}
    code, said = ask("plan", "--calibration-dir", cal, "--budgets", "1e13", "--tokens-per-param", "1e8", "1e9")
    assert code == 2


def _off(said: dict[str, Any]) -> list[str]:
    return [finding["message"] for finding in said["findings"] if finding["rule"] == "iso-off-optimum"]


def test_sizes_away_from_the_minimum_are_told(ask: Ask, tmp_path: Path) -> None:
    """At 1e18 FLOP the published points put the minimum at about N = (0.113) (C/6)^0.514 = 80 M, D/N = 26."""
    target = tmp_path / "cal.json"
    sizes = [member(width, 6.0 * params, params) for width, params in ((1, 10**5), (2, 10**6), (3, 10**7), (4, 10**8), (5, 10**9))]

    def plan(members: list[dict[str, Any]], *more: str) -> tuple[int, dict[str, Any]]:
        target.write_text(json.dumps({"schema": calibration.SCHEMA, "members": members}))
        return ask("plan", "--calibration-dir", str(target), "--budgets", "1e18", *more)

    code, said = plan(sizes[:3])
    (words,) = _off(said)
    assert code == 0 and "N (matmul) 100.00 k to 10.00 M, D/N 1.67e+03 to 1.67e+07, cannot hold the minimum" in words
    assert "N 80.20 M, D/N 25.9;" in words and "larger sizes" in words
    assert "N (total)" in _off(plan(sizes[:3], "--params-rule", "total")[1])[0]
    assert "smaller sizes" in _off(plan(sizes[4:])[1])[0]
    assert not _off(plan(sizes)[1]) and not _off(plan([{**one, "modality": "text_image"} for one in sizes[:3]])[1])


def test_numbers_beyond_any_study_have_no_minimum() -> None:
    run = {"member": "m", "budget": 1e18, "params": 1e300, "tokens": 1e300, "flops": 1.0, "steps": 1, "id": "x"}
    found = findings({"runs": [run], "members": [{"name": "m"}], "rules": None})
    assert "iso-off-optimum" not in {finding.rule for finding in found}


def test_without_numpy_the_minimum_is_not_judged_and_that_is_told(ask: Ask, cal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainwright.isoflop.actions.plan.probe.importable", lambda name: False)
    _, said = ask("plan", "--calibration-dir", cal, "--budgets", "1e19")
    assert not _off(said) and [row["name"] for row in said["not_checked"]] == ["iso-off-optimum"]


def test_the_text_names_what_n_counts(cal: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["isoflop", "plan", "--calibration-dir", cal, "--budgets", "1e13", "3e13", "1e14", "--params-rule", "total"]) == 0
    assert "N counts total weights; FLOP by the rule matmul" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda plan: plan.update(schema="x"), "is no plan"),
        (lambda plan: plan["runs"][0].update(member="nobody"), "names no member"),
        (lambda plan: plan["runs"][0].update(id="../../x"), "id is not a name of letters"),
        (lambda plan: plan["runs"][0].update(steps=1.5), "steps is not a whole number"),
        (lambda plan: plan["runs"][0].update(lr=float("nan")), "lr is not a number above zero"),
        (lambda plan: plan["runs"].append(dict(plan["runs"][0])), "a second time"),
        (lambda plan: plan["runs"][0].pop("params"), "lacks params"),
        (lambda plan: plan["runs"][0].update(params=0), "params is not a number above zero"),
        (lambda plan: plan["runs"][0].update(off_budget="x"), "off_budget is not a number"),
        (lambda plan: plan["runs"][0].update(seconds_here="x"), "seconds_here is not a number"),
        (lambda plan: plan["runs"][0].update(schedule="zigzag"), "schedule is not one of"),
        (lambda plan: plan["runs"][0].update(checkpoints=[0]), "checkpoints is not a list of steps"),
        (lambda plan: plan["members"][0].update(name="../x"), "name is not a name"),
        (lambda plan: plan["members"][0].update(params=[1]), "params is not a mapping of numbers"),
        (lambda plan: plan["members"][0].update(modality="smell"), "modality is not one of"),
        (lambda plan: plan["members"].append(dict(plan["members"][0])), "a second time"),
        (lambda plan: plan.update(hardware=5), "hardware: is no mapping"),
        (lambda plan: plan.update(left_out=5), "left_out is no list"),
        (lambda plan: plan.update(left_out=[5]), "left_out: is no mapping"),
        (lambda plan: plan.update(job=[1]), "job is no mapping"),
        (lambda plan: plan.update(rules=1), "rules is no mapping"),
        (lambda plan: plan.update(runs={}), "holds no members or no runs"),
        (lambda plan: plan.update(trainer={"argv": "rm -r x"}), "argv is a list"),
        (lambda plan: plan.update(trainer={"argv": ["x", "{nothing}"]}), "is no placeholder"),
    ],
)
def test_what_is_no_plan(change: Callable[[dict[str, Any]], object], words: str) -> None:
    rules = planning.Rules()
    plan = planning.document(planning.plan_runs([1e13], [member(64)], rules, [0]), [member(64)], rules, {"job": {}, "trainer": None})
    planning.judge(plan, "plan")
    change(plan)
    with pytest.raises(UserError, match=words):
        planning.judge(plan, "plan")


WRONG = (("flops_per_token", 0), ("flops_per_token", "x"), ("flops_per_token", 1e308), ("seq_len", 0), ("seq_len", "a"), ("params", None),
         ("params", {"total": -1}), ("name", "a/b"), ("name", 3), ("width", 0), ("config", 3), ("measured", {"tokens_per_sec": "fast"}),
         ("measured", 3), ("variant", "W9X"))  # fmt: skip


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_a_calibration_with_a_wrong_field_is_refused(ask: Ask, tmp_path: Path, key: str, value: Any) -> None:
    file = tmp_path / "cal.json"
    file.write_text(json.dumps({"schema": calibration.SCHEMA, "members": [member(64), {**member(96), key: value}]}))
    code, said = ask("plan", "--calibration-dir", str(file), "--budgets", "1e13", "3e13", "1e14")
    assert code == 2 and f"member 2: {key} is not " in said["findings"][0]["message"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"no": 1}, "'no' is no field"), ({"threads": "many"}, "threads is not"), ({"eval_windows": "x"}, "eval_windows is 'x'"),
     ({"clip_norm": -1.0}, "clip_norm")],
)  # fmt: skip
def test_a_job_that_no_run_could_start_with_is_refused_before_any_does(
    ask: Ask, tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    plan, file = demo_plan({1e9: (8,)}, str(tmp_path)), tmp_path / "plan.yaml"
    plan["job"] = settings
    file.write_text(planning.dump(plan))
    for execute in ((), ("--execute",)):
        code, said = ask("launch", "--plan", str(file), "--scaling-study-dir", str(tmp_path / "study"), *execute)
        assert code == 2 and words in said["findings"][0]["message"] and not (tmp_path / "study").exists()


def test_folders_that_cannot_be_made(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, said = ask("calibrate", "--model", "tiny", "--no-measure", "--calibration-dir", str(tmp_path / "file" / "x"))
    assert code == 2 and "cannot make" in said["findings"][0]["message"]


def test_words_are_those_of_a_job() -> None:
    assert (shapes.SCHEDULES, shapes.VARIANTS) == (job.SCHEDULES, job.VARIANTS) and set(shapes.MODALITIES) < set(job.MODALITIES)


def test_a_projector_ladder_is_planned_on_what_the_calibration_knows(tmp_path: Path) -> None:
    found = ladder.projector_members("tiny", ["BASE", "W4X"], "text_image", "projector_only")
    rows = [calibration.describe(one, one.spec(str(tmp_path)), 64) for one in found]
    with pytest.raises(UserError, match="calibrate with torch"):
        planning.plan_runs([1e12], rows, planning.Rules(params="trainable"), [0])
    assert len(planning.plan_runs([1e12], rows, planning.Rules(params="total"), [0]).runs) == 2
