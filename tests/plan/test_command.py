"""`trainwright plan` as its users call it: answers with their schema, refusals in one line."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from trainwright.cli import main
from trainwright.plan import command
from trainwright.plan.predict import ADDED

LIBRARY = Path(__file__).resolve().parents[2] / "helpers" / "trainwright"
SCHEMA = json.loads((LIBRARY / "plan" / "plan.schema.json").read_text(encoding="utf-8"))
JOB = ("--model", "7b", "--accelerator", "a100", "--devices", "16", "--network", "200Gbps", "--memory", "80GiB", "--global-batch", "64")
FEW = ("--micro-batches", "1,4")
HEAD = (
    "row_id,source,hardware,gpu_mem_gb,gpus_per_node,inter_gbps_per_gpu,n_gpus,layers,hidden,heads,vocab,seq,gbs,mbs,dp,tp,pp,cp,dp_shard"
)
TIMED = f"{HEAD},schedule,recompute,precision,step_time_s,mem_gb,oom,notes\n"
RUN = "a,lab,A100-SXM-80GB,80,8,200,8,24,2048,16,50304,2048,64,4,8,1,1,1,fsdp_full,none,full,bf16,2.5,30,0,\n"


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert main(["plan", *arguments, "--format", "json"]) == code
    envelope: dict[str, Any] = json.loads(capsys.readouterr().out)
    if envelope["data"] is not None:
        jsonschema.validate(envelope["data"], SCHEMA)
    return envelope


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["plan", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" not in err
    return err.strip().splitlines()[-1]


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_search(capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, "search", *JOB)["data"]
    best, fallback = data["best"], data["fallback"]
    assert best["step_time_s"]["value"] <= fallback["step_time_s"]["value"] and data["proven"]
    assert sum(best["time"]["parts"].values()) == pytest.approx(best["step_time_s"]["value"])
    for one in (best, fallback, *data["alternatives"]):
        assert one["fits"] and all(held["holds"] is not False for held in one["invariants"])
        assert one["plan"]["world_size"] == 16 and 64 % (one["plan"]["dp"] * one["plan"]["micro_batch"]) == 0
        assert max(stage["total"] for stage in one["memory"]["stages"]) <= one["memory"]["capacity"]
    assert data["figures"]["device"]["matmul_flops"]["tag"] == "measured"
    assert {number["tag"] for number in data["figures"]["constants"].values()} == {"assumed"}
    assert data["space"]["size"] == data["fitting"] + sum(n for reason, n in data["rejected"].items() if reason.startswith("memory"))


def test_the_same_bytes_every_time(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (answer(capsys, "search", *JOB, *FEW) for _ in range(2))
    assert first == second


def test_search_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "search", *JOB, *FEW]) == 0
    text = capsys.readouterr().out
    assert text.startswith("best ") and "\nfallback " in text and "plans priced" in text and "decision: " in text


def test_a_short_run_takes_the_fallback(capsys: pytest.CaptureFixture[str]) -> None:
    job = (
        "--model",
        "7b",
        "--accelerator",
        "a100",
        "--devices",
        "8",
        "--memory",
        "80GiB",
        "--global-batch",
        "64",
        "--seq-len",
        "16384",
        *FEW,
    )
    long = answer(capsys, "search", *job)["data"]["decision"]
    short = answer(capsys, "search", *job, "--steps", "5")["data"]["decision"]
    assert long["kind"] == "best" and long["break_even_steps"] > 5
    assert short["kind"] == "short" and short["break_even_steps"] == long["break_even_steps"]


def test_a_device_never_profiled_has_no_step_time(capsys: pytest.CaptureFixture[str]) -> None:
    job = ("--model", "7b", "--accelerator", "max-1550-tile", "--devices", "24", "--network", "133Gbps", "--memory", "64GiB")
    envelope = answer(capsys, "search", *job, "--global-batch", "48")
    data = envelope["data"]
    assert data["best"]["step_time_s"] is None and data["best"]["time"] is None and data["decision"]["kind"] == "unknown"
    assert any("time a large bf16 product" in one["reason"] for one in envelope["not_checked"])


def test_nothing_fits_is_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    job = ("--model", "70b", "--accelerator", "a100", "--devices", "8", "--memory", "40GiB", "--global-batch", "64")
    envelope = answer(capsys, "search", *job, code=1)
    assert envelope["data"]["best"] is None and envelope["findings"][0]["rule"] == "PLN001"


def test_where_nothing_fits_on_the_device_states_go_to_the_host(capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(
        capsys, "search", "--model", "7b", "--accelerator", "a100", "--devices", "1", "--memory", "80GiB", "--global-batch", "8", *FEW
    )["data"]
    assert {one["plan"]["offload"] for one in (data["best"], data["fallback"])} == {"optimizer"}
    assert "keep them in host memory" in data["space"]["notes"][0] and data["space"]["offloads"] == ["optimizer"]
    assert data["best"]["memory"]["host_bytes_per_node"] > 6e9 * 12


def test_a_fit_that_is_no_sure_one_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, "search", *JOB, *FEW)["data"]
    best = data["best"]
    full = max(stage["total"] for stage in best["memory"]["stages"])
    tight = answer(capsys, "search", *JOB, *FEW, "--memory", f"{round(full / 0.97 / 2**20)}MiB")["data"]["best"]
    assert any("it may run out of memory" in text for text in tight["counter_signals"])
    assert data["decision"]["if_out_of_memory"]["memory_bytes"] <= 0.85 * full


def test_a_model_of_too_many_layers_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "deep.json"
    config.write_text(
        json.dumps(
            {
                "model_type": "llama",
                "hidden_size": 64,
                "intermediate_size": 64,
                "num_hidden_layers": 10**9,
                "num_attention_heads": 1,
                "vocab_size": 100,
                "max_position_embeddings": 64,
            }
        )
    )
    assert "at most 10,000 are placed" in refused(capsys, "search", *JOB, "--model", str(config))


def test_compare(capsys: pytest.CaptureFixture[str]) -> None:
    plans = ("--plan", "dp_shard=16,zero_stage=3,recompute=full", "--plan", "tp=8,sequence_parallel=true,dp_shard=2,zero_stage=1")
    data = answer(capsys, "compare", *JOB, *plans)["data"]
    assert [one["plan"]["tp"] for one in data["plans"]] == [1, 8]


def test_compare_where_no_plan_fits_is_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    big, small = "dp_shard=16,zero_stage=0,dp_replicate=1", "dp_shard=16,zero_stage=3,recompute=full"
    none = answer(capsys, "compare", *JOB, "--plan", big, "--plan", "dp_replicate=16", code=1)["findings"]
    assert (none[0]["rule"], none[0]["severity"]) == ("PLN001", "error") and {one["rule"] for one in none[1:]} == {"PLN002"}
    one = answer(capsys, "compare", *JOB, "--plan", big, "--plan", small)["findings"]
    assert [found["rule"] for found in one] == ["PLN002"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("search", "--model", "7b", "--accelerator", "a100", "--devices", "64", "--global-batch", "64"), "no network is given"),
        (("search", "--model", "7b", "--devices", "8", "--global-batch", "64"), "needs --accelerator"),
        (("search", "--model", "7b", "--accelerator", "a100", "--devices", "8", "--global-batch", "64"), "add --memory"),
        (("search", *JOB, "--network", "200"), "is not a rate"),
        (("search", *JOB, "--network=-5GB/s"), "is not a rate"),
        (("search", *JOB, "--network", "0GB/s"), "carries nothing"),
        (("search", *JOB, "--slowest", "0.5"), "give 1 or more"),
        (("search", *JOB, "--memory", "1GiB"), "no more than a device's own needs"),
        (("search", *JOB, "--freeze", "decoder"), "nothing is left to train"),
        (("search", *JOB, "--micro-batches", "0"), "give 1 or more"),
        (("search", *JOB, "--per-node", "0"), "give 1 or more"),
        (("search", *JOB, "--steps", "0"), "give 1 or more"),
        (("search", *JOB, "--emit-file", "plan.toml"), "--emit-file needs --emit"),
        (("search", *JOB, "--plan", "tp=4,tp=8"), "'tp' stands there twice"),
        (("search", *JOB, "--plan", "dp_shard=16,zero_stage=1,offload=disk"), "offload is 'disk'"),
        (("search", *JOB, "--plan", "dp_shard=16,zero_stage=1,precision=int3"), "precision is 'int3'"),
        (("search", *JOB, "--plan", "dp_shard=8,cp=2,zero_stage=1,context=sphere"), "context is 'sphere'"),
        (("search", *JOB, "--plan", "dp_shard=16,zero_stage=1,compiled=7"), "compiled is 7"),
        (("search", *JOB, "--plan", "dp_shard=16,recompute=budget,activation_budget=x"), "activation_budget is 'x'"),
        (("search", *JOB, "--plan", "dp_shard=8,ep=2,tp=2"), "has no experts"),
        (("compare", *JOB, "--plan", "tp=8"), "twice or more"),
        (("compare", *JOB, "--plan", "tp=8,dp_shard=2", "--plan", "tq=8"), "'tq' is no field of a plan"),
        (("compare", *JOB, "--plan", "tp=8", "--plan", "tp=16"), "needs 8 devices"),
        (("compare", *JOB, "--plan", "tp=eight", "--plan", "tp=16"), "tp is 'eight'"),
        (("predict",), "needs a file of rows"),
        (("predict", "/no/such/file.csv"), "cannot be read"),
        (("predict", "/dev/zero"), "not a regular file"),
        (
            ("emit", "--plan", "dp_shard=3,zero_stage=1", "--model", "7b", "--global-batch", "64", "--emit", "megatron"),
            "no multiple of dp 3",
        ),
        (("emit", "--plan", "pp=40,schedule=1f1b", "--model", "7b", "--global-batch", "64", "--emit", "megatron"), "40 stages are more"),
        (("emit", "--plan", "tp=33", "--model", "7b", "--global-batch", "64", "--emit", "dtensor"), "tp 33 does not divide"),
    ],
)
def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str) -> None:
    assert said in refused(capsys, *arguments)


# --- rows -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Six runs of one lab at several micro batches, 20 % slower than shipped constants say; one row that is no run."""
    path = tmp_path / "runs.csv"
    path.write_text(TIMED + RUN + RUN.replace("a,lab", "b,lab").replace(",2048,16,", ",2560,20,") + RUN.replace("8,24,", "8,x,"))
    return path


def test_predict_writes_the_table(capsys: pytest.CaptureFixture[str], runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    data = answer(capsys, "predict", str(runs), "--output", str(out))["data"]
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["row_id"] for row in rows] == ["a", "b", "a"] and set(ADDED) < set(rows[0])
    assert (
        float(rows[0]["predicted_step_time_low_s"]) < float(rows[0]["predicted_step_time_s"]) < float(rows[0]["predicted_step_time_high_s"])
    )
    assert rows[0]["predicted_oom"] == "0" and float(rows[0]["predicted_memory_gb"]) > 3
    assert rows[2]["predicted_step_time_s"] == "" and "layers 'x' is no number" in rows[2]["prediction_note"]
    assert data["rows"][2]["step_time_s"] is None


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x80\x81", "not UTF-8"),
        (TIMED.encode() + b"\0\0", "binary"),
        (TIMED.replace("source", "hardware").encode(), "'hardware' stands there twice"),
        (b"row_id,hardware\n", "the columns n_gpus"),
        (TIMED.encode() + b'"open', "no CSV"),
        (b"x" * (9 * 2**20), "larger than"),
    ],
    ids=["bytes", "nul", "twice", "missing", "quote", "large"],
)
@pytest.mark.parametrize("action", ["predict", "calibrate", "score"])
def test_a_table_that_is_none(capsys: pytest.CaptureFixture[str], tmp_path: Path, action: str, data: bytes, said: str) -> None:
    path, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    path.write_bytes(data)
    assert said in refused(capsys, action, str(path), *(["--output", str(out)] if action == "predict" else []))
    assert not out.exists()


def test_a_refusal_never_lands_in_the_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    envelope = answer(capsys, "predict", "/no/such.csv", "--output", str(out), code=2)
    assert envelope["findings"] and not out.exists()


def test_a_long_table_is_fitted_on_a_part_and_says_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "MOST_FITTED", 4)
    path = tmp_path / "runs.csv"
    path.write_text(TIMED + "".join(RUN.replace("a,lab", f"{i},lab").replace(",24,2048", f",{20 + i},2048") for i in range(12)))
    found = answer(capsys, "calibrate", str(path))
    assert found["data"]["fit"]["time_rows"] == 4
    assert any(one["name"] == "8 of 12 measured rows" for one in found["not_checked"])
    assert answer(capsys, "calibrate", str(path))["data"] == found["data"]


def test_too_few_rows_to_hold_some_out_is_said(capsys: pytest.CaptureFixture[str], runs: Path) -> None:
    found = answer(capsys, "score", str(runs), "--held-out", "0.2")
    assert found["data"]["errors"]["held_out"] == {"time": [], "memory": []}
    assert any(one["name"] == "a fit of a share" and "15 rows" in one["reason"] for one in found["not_checked"])


def test_a_prediction_does_not_see_what_was_measured(capsys: pytest.CaptureFixture[str], runs: Path) -> None:
    first = answer(capsys, "predict", str(runs))["data"]["rows"]
    runs.write_text(runs.read_text().replace(",2.5,30,", ",99,70,"))
    assert answer(capsys, "predict", str(runs))["data"]["rows"] == first


def test_calibrate_then_predict(capsys: pytest.CaptureFixture[str], runs: Path, tmp_path: Path) -> None:
    fit = tmp_path / "fit.json"
    data = answer(capsys, "calibrate", str(runs), "--save", str(fit))["data"]
    assert data["fit"]["time_rows"] == 2 and data["errors"]["fitted"]["time"][0]["median"] < data["errors"]["shipped"]["time"][0]["median"]
    rows = answer(capsys, "predict", str(runs), "--calibration", str(fit))["data"]["rows"]
    assert rows[0]["tag"] == "calibrated" and rows[0]["step_time_s"]["value"] == pytest.approx(2.5, rel=0.3)
    searched = answer(capsys, "search", *JOB, *FEW, "--calibration", str(fit))["data"]
    assert searched["figures"]["constants"]["sustained"]["tag"] == "calibrated"


@pytest.mark.parametrize("text", ["[]", "{}", '{"time": {"sustained": -1}, "memory": {}, "time_rows": 1, "memory_rows": 0}', '{"time": 3}'])
def test_a_file_that_is_no_fit_is_refused(capsys: pytest.CaptureFixture[str], runs: Path, tmp_path: Path, text: str) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text(text)
    refused(capsys, "predict", str(runs), "--calibration", str(bad))


def test_score(capsys: pytest.CaptureFixture[str], runs: Path) -> None:
    data = answer(capsys, "score", str(runs))["data"]
    assert data["errors"]["fit"]["time"][0]["count"] == 2 and data["choices"] == []


def test_score_writes_its_tables(capsys: pytest.CaptureFixture[str], runs: Path, tmp_path: Path) -> None:
    page = tmp_path / "accuracy.md"
    data = answer(capsys, "score", str(runs), "--other-sources", "--table", str(page))["data"]
    text = page.read_text()
    assert "`trainwright plan score runs.csv --other-sources --table accuracy.md`" in text
    assert f"| all | {data['errors']['fit']['time'][0]['count']} |" in text and "## Ordering pairs" in text


def test_a_plan_may_be_json_as_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    job = ["--model", "7b", "--global-batch", "64", "--emit", "megatron", "--format", "json"]
    written = []
    for text in ('{"tp": 8, "dp_shard": 2, "zero_stage": 1}', "tp=8,dp_shard=2,zero_stage=1"):
        assert main(["plan", "emit", "--plan", text, *job]) == 0
        written.append(capsys.readouterr().out)
    assert written[0] == written[1] and json.loads(written[0])["status"] == "ok"
    assert main(["plan", "emit", "--plan", '{"tp": 8,', *job[:-2]]) == 2
    assert capsys.readouterr().err.startswith("trainwright plan: --plan:1:")
