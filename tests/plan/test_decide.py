"""Ties, probes, runs too short, what was measured, what is missing; and the cases 10, 13 and 14 that a chooser gets wrong."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from trainwright.cli import main
from trainwright.parallel import Plan
from trainwright.plan import score
from trainwright.plan.calibrate import SHIPPED, Fit
from trainwright.plan.predict import CALIBRATED_SPREAD, SHIPPED_SPREAD
from trainwright.plan.rows import row_of
from trainwright.plan.search import Found, Priced
from trainwright.plan.signals import of_rows
from trainwright.plan.space import Space

LIBRARY = Path(__file__).resolve().parents[2] / "helpers" / "trainwright"
SCHEMA = json.loads((LIBRARY / "plan" / "plan.schema.json").read_text(encoding="utf-8"))
JOB = ("--model", "7b", "--accelerator", "a100", "--devices", "16", "--network", "200Gbps", "--memory", "80GiB", "--global-batch", "64")
FEW = ("--micro-batches", "1,4")
LONG = ("--model", "7b", "--accelerator", "a100", "--devices", "8", "--memory", "80GiB", "--global-batch", "64", "--seq-len", "16384")


def envelope(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert main(["plan", *arguments, "--format", "json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    jsonschema.validate(found["data"], SCHEMA)
    return found


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    data: dict[str, Any] = envelope(capsys, *arguments)["data"]
    return data


# --- decisions --------------------------------------------------------------------------------------------------------


def test_a_tie_names_at_most_three_runs_that_would_split_it(capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(
        capsys, "search", "--model", "70b", "--accelerator", "h100-sxm", "--devices", "64", "--network", "400Gbps", *JOB[-2:], *FEW
    )
    decided = data["decision"]
    assert decided["kind"] == "tie" and decided["take"] == "fallback"
    names = [one["name"] for one in decided["probes"]]
    assert 2 <= len(names) <= 3 and len(set(names)) == len(names)
    assert {data["best"]["plan"]["name"], data["fallback"]["plan"]["name"]} <= set(names)
    assert data["counter_signals"][0] == "the predicted gain is inside the model's own error"
    assert data["planning"]["device_seconds"] == 0 < data["planning"]["probe_device_seconds"]


NODES = ("--model", "7b", "--node", "dgx-h100", "--devices", "64", "--global-batch", "512")


def test_the_fallback_of_a_tie_leaves_room_in_memory(capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, "search", *NODES, "--micro-batches", "1,2")
    decided, capacity = data["decision"], data["job"]["capacity_bytes"]
    assert decided["kind"] == "tie" and decided["take"] == "fallback"
    assert data["fallback"]["memory_bytes"]["value"] <= 0.9 * capacity < decided["too_tight"]["memory_bytes"] <= capacity
    assert main(["plan", "search", *NODES, "--micro-batches", "1,2"]) == 0
    said = capsys.readouterr().out
    assert "take the fallback, it leaves room in memory and is simpler" in said
    assert f"simpler, but no fallback: {decided['too_tight']['name']} takes" in said and "it may run out of memory" not in said


PLAIN, SHARDED, CUT = Plan(dp_replicate=8), Plan(dp_shard=8, zero_stage=3), Plan(dp_shard=4, tp=2, zero_stage=3)


@pytest.mark.parametrize(
    ("seconds", "used", "taken"),
    [
        ((1.02, 1.01, 1.0), (80, 80, 80), PLAIN),  # room everywhere: the simplest
        ((1.02, 1.01, 1.0), (95, 80, 80), SHARDED),
        ((1.02, 1.01, 1.0), (95, 95, 80), CUT),  # the best alone has room
        ((1.02, 1.01, 1.0), (95, 95, 95), PLAIN),  # none has: as ever
        ((1.02, 1.30, 1.0), (95, 80, 80), CUT),  # what has room, but is no tie, is no fallback
        ((1.30, 1.25, 1.0), (95, 80, 80), SHARDED),  # no tie: the simplest with room that is no slower
        ((1.30, 1.35, 1.0), (95, 80, 95), PLAIN),  # room for slower steps than the tight plan's is no bargain
    ],
)
def test_which_plan_is_the_fallback(seconds: tuple[float, ...], used: tuple[float, ...], taken: Plan) -> None:
    priced = [Priced(*one) for one in zip((PLAIN, SHARDED, CUT), seconds, used, strict=True)]
    found = Found(sorted(priced, key=lambda one: one.seconds), {}, 3, 3, Space(), True, capacity=100)
    assert found.fallback is not None and found.fallback.plan == taken
    assert found.simplest is not None and found.simplest.plan == PLAIN


def test_a_gain_beyond_the_error_is_no_tie(capsys: pytest.CaptureFixture[str]) -> None:
    decided = answer(capsys, "search", *LONG, *FEW)["decision"]
    assert decided["kind"] == "best" and decided["take"] == "best" and decided["probes"] == []
    assert decided["gain"] >= 0.05 and decided["probability"] >= 0.8


def test_case_13_a_short_run_takes_the_fallback_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, "search", *LONG, *FEW, "--tokens", str(5 * 64 * 16384))
    assert data["decision"]["kind"] == "short" and data["decision"]["steps"] == 5 and data["decision"]["take"] == "fallback"
    assert any("shorter than" in text for text in data["counter_signals"])


def test_a_device_never_profiled_is_told_what_to_measure(capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, "search", "--model", "7b", "--node", "aurora", "--devices", "24", "--global-batch", "48", *FEW)
    assert data["decision"]["kind"] == "unknown" and "large bf16 product" in data["decision"]["measure"]
    assert data["best"]["step_time_s"] is None and data["job"]["per_node"] == 12


def test_case_10_long_packed_sequences_are_no_static_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    job = ("--model", "7b", "--accelerator", "h100-sxm", "--devices", "16", "--network", "400Gbps", "--global-batch", "16", *FEW)
    long = answer(capsys, "search", *job, "--seq-len", "131072", "--max-cp", "16")
    short = answer(capsys, "search", *job, "--seq-len", "4096")
    said = "packed documents make attention depend on the data"
    assert any(said in text for text in long["best"]["counter_signals"])
    assert not any(said in text for text in short["best"]["counter_signals"])
    assert long["best"]["time"]["parts"]["attention"] > long["best"]["time"]["parts"]["products"]


CELLS = {
    "source": "lab",
    "hardware": "A100-SXM-80GB",
    "gpu_mem_gb": "80",
    "gpus_per_node": "8",
    "inter_gbps_per_gpu": "200",
    "vocab": "51200",
}


def weak(devices: int, layers: int, hidden: int, seconds: float, **more: str) -> Any:
    sizes = {"n_gpus": devices, "layers": layers, "hidden": hidden, "heads": hidden // 128, "seq": 2048, "gbs": devices, "mbs": 1}
    cells = {
        **CELLS,
        **{key: str(value) for key, value in sizes.items()},
        "dp": str(devices),
        "dp_shard": "fsdp",
        "step_time_s": str(seconds),
    }
    return row_of(2, {**cells, **more})


def test_case_14_models_that_grow_with_the_machine_are_never_compared() -> None:
    """A job of four times the devices and the model that is four times as fast a device is no speed-up: no pair, no choice, and a word."""
    rows = [weak(8, 16, 2048, 2.0), weak(32, 24, 4096, 2.1), weak(128, 40, 5120, 2.2)]
    assert all(row.plan for row in rows)
    assert score.choices(rows, lambda row: SHIPPED) == [] and all(one["pairs"] == 0 for one in score.pairs(rows, lambda row: SHIPPED))
    assert any("weak scaling" in text for text in of_rows(rows))
    assert not any("weak scaling" in text for text in of_rows([weak(n, 24, 4096, 2.0) for n in (8, 32, 128)]))


def test_runs_that_are_no_equals() -> None:
    rows = [weak(8, 16, 2048, 2.0, tflops_kind="HFU_F96", compile="1"), weak(8, 16, 2048, 2.0, tflops_kind="MFU_F72")]
    assert {text.split(" ")[0] for text in of_rows(rows)} == {"HFU", "compiled"}
    capped = [weak(8, 16, 2048, 2.0, hardware="H100-SXM-96GB(500W,HBM2e)")]
    assert any("power-capped" in text for text in of_rows(capped))


def test_far_beyond_any_run_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    job = ("--model", "405b", "--node", "dgx-h100", "--global-batch", "16384", "--micro-batches", "1")
    far = answer(capsys, "search", *job, "--devices", "16384")
    assert any("more than 4 times any run" in text for text in far["best"]["counter_signals"])


# --- what a fit rests on ------------------------------------------------------------------------------------------------

TIME = {"sustained:a100": 0.9, "attention:a100": 1.1, "intra": 2.0, "inter": 3.0}
MEMORY = {"states": 1.1, "activations": 0.9}


def fitted(tmp_path: Path, rows: int, **more: object) -> tuple[str, str]:
    path = tmp_path / "fit.json"
    path.write_text(json.dumps({"time": TIME, "memory": MEMORY, "time_rows": rows, "memory_rows": rows, "largest": 8, **more}))
    return "--calibration", str(path)


def half(entry: dict[str, Any], name: str = "step_time_s") -> float:
    return math.log(entry[name]["high"] / entry[name]["value"])


def test_a_fit_to_another_device_narrows_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    job = ("--model", "7b", "--accelerator", "h100-sxm", "--devices", "8", "--global-batch", "64", *FEW)
    shipped, best = (answer(capsys, "search", *job, *fit)["best"] for fit in ((), fitted(tmp_path, 40)))
    for name in ("step_time_s", "memory_bytes"):
        assert best[name]["tag"] == "assumed" and half(best, name) == pytest.approx(half(shipped, name), rel=1e-4)
    assert "step time and memory not calibrated on this machine" in best["counter_signals"]
    assert any(text.startswith("step time calibrated on a100, not on h100") for text in best["counter_signals"])
    assert any(text.startswith("memory calibrated on a100, not on h100") for text in best["counter_signals"])
    data = answer(capsys, "search", *job, *fitted(tmp_path, 40))
    assert {one["tag"] for one in data["figures"]["constants"].values()} == {"assumed"}
    assert any(one["what"] == "runs of this stack" and "calibrated on a100" in one["instead"] for one in data["missing_evidence"])


def test_a_fit_to_this_device_narrows_where_its_rows_are_enough(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    many, few = (answer(capsys, "search", *JOB, *FEW, *fitted(tmp_path, rows)) for rows in (40, 3))
    assert half(many["best"]) == pytest.approx(CALIBRATED_SPREAD, rel=1e-4) and half(few["best"]) == pytest.approx(SHIPPED_SPREAD, rel=1e-4)
    assert {one["best"]["step_time_s"]["tag"] for one in (many, few)} == {"calibrated"}
    said = "step time calibrated on 3 rows for 4 factors: too few to narrow the interval"
    assert said in few["best"]["counter_signals"] and said not in many["best"]["counter_signals"]
    assert not any("calibrated on" in text for text in many["best"]["counter_signals"])
    assert many["figures"]["constants"]["intra"] == {"value": 1.0, "tag": "calibrated"}


def test_memory_says_which_devices_were_weighed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    best = answer(capsys, "search", *JOB, *FEW, *fitted(tmp_path, 40, weighed=["h100"]))["best"]
    assert best["step_time_s"]["tag"] == "calibrated" and best["memory_bytes"]["tag"] == "assumed"
    assert "memory calibrated on h100, not on a100" in best["counter_signals"]


def test_a_fitted_link_carries_no_more_than_its_rate() -> None:
    found = Fit(time={"intra": 2.0, "inter": 3.0}).constants("a100")
    assert (found.intra, found.inter) == (1.0, 1.0)
    assert Fit(time={"intra": 0.5}).constants("a100").intra == SHIPPED.constants("a100").intra / 2


# --- what was measured --------------------------------------------------------------------------------------------------


def test_measured_stages_scale_ours(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan = ("--plan", "dp_shard=16,zero_stage=3,recompute=full", "--plan", "dp_shard=16,zero_stage=3,recompute=full,micro_batch=2")
    before = answer(capsys, "compare", *JOB, *plan)["plans"][0]["time"]["parts"]["products"]
    for seconds, wanted in ((1.0, None), (2.0, 2.0)):
        path = tmp_path / "stages.json"
        path.write_text(json.dumps({"stages": [{"layers": 32, "seconds": seconds, "head": True, "recompute": "full"}]}))
        found = answer(capsys, "compare", *JOB, *plan, "--latencies", str(path))["plans"][0]["time"]["parts"]["products"]
        if wanted is None:
            before = found
        else:
            assert found == pytest.approx(wanted * before)


def test_measured_workspace_stands_in_the_ledger(capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, "search", *JOB, *FEW, "--workspace", "5GiB")
    assert {stage["workspace"] for stage in data["best"]["memory"]["stages"]} == {5 * 2**30}
    assert "measured workspace" not in [one["what"] for one in data["missing_evidence"]]


def test_contention_slows_what_crosses_the_network(capsys: pytest.CaptureFixture[str]) -> None:
    plan = ("--plan", "dp_shard=16,zero_stage=3", "--plan", "tp=8,dp_shard=2,zero_stage=1,sequence_parallel=true")
    alone, shared = (answer(capsys, "compare", *JOB, *plan, *more)["plans"] for more in ((), ("--contention", "8")))
    assert all(after["time"]["seconds"] > before["time"]["seconds"] for before, after in zip(alone, shared, strict=True))
    assert shared[0]["time"]["parts"]["tp"] == alone[0]["time"]["parts"]["tp"]


def test_candidates_are_the_whole_space(capsys: pytest.CaptureFixture[str]) -> None:
    plans = (
        "--plan",
        "dp_shard=16,zero_stage=3,recompute=full",
        "--plan",
        "tp=2,pp=2,dp_shard=4,zero_stage=1,schedule=1f1b,layer_split=17/15",
    )
    data = answer(capsys, "search", *JOB, *plans)
    assert data["space"]["size"] == 2 == data["fitting"] + sum(data["rejected"].values())
    assert {data["best"]["plan"]["pp"], data["fallback"]["plan"]["pp"]} <= {1, 2}


def test_memory_as_the_objective(capsys: pytest.CaptureFixture[str]) -> None:
    fast, lean = (answer(capsys, "search", *JOB, "--objective", word)["best"] for word in ("time", "memory"))
    assert lean["memory_bytes"]["value"] < fast["memory_bytes"]["value"]
    assert lean["step_time_s"]["value"] <= 1.1 * fast["step_time_s"]["value"] * (1 + 1e-9)


PROFILE = """
accelerators:
  this-machine-device:
    title: a tile
    per: tile
    device: xpu
    names: [data center gpu max 1550]
    memory_bytes: {value: 68702699520, per: tile, source: this-machine, date: "2026-11-29", checked: run}
    measured_bf16_flops: {value: %s, per: tile, source: this-machine, date: "2026-11-29", checked: run}
    measured_memory_bytes_per_s: {value: 9.0e+11, per: tile, source: this-machine, date: "2026-11-29", checked: run}
nodes:
  this-machine:
    title: this machine
    devices: [{accelerator: this-machine-device, count: 12}]
    sockets: 2
    threads_per_core: 2
    reserved_cores: {cpus: null, reason: unknown}
    links:
      - {level: node, kind: Xe Link, group: 12, shape: unknown, duplex: full,
         measured_bytes_per_s: {value: %s, per: device, source: this-machine, date: "2026-11-29", checked: run}}
"""


def test_a_profile_gives_aurora_its_step_times(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path, fit = tmp_path / "profile.yaml", tmp_path / "fit.json"
    path.write_text(PROFILE % ("2.0e+14", "3.0e+10"))
    told = envelope(capsys, "calibrate", str(path), "--save", str(fit))
    figures = told["data"]["figures"][0]
    assert figures["device"] == "max-1550-tile" and figures["missing"] == ""
    assert figures["figures"]["matmul_flops"]["shipped"]["value"] == 2.56e14
    assert figures["figures"]["matmul_flops"]["profiled"] == {"value": 2.0e14, "tag": "measured", "source": "this-machine"}
    job = ("search", "--model", "7b", "--devices", "24", "--network", "133Gbps", "--global-batch", "48", *FEW)
    by_fit = answer(capsys, *job, "--accelerator", "max-1550-tile", "--memory", "64GiB", "--calibration", str(fit))
    by_profile = answer(capsys, *job, "--hardware", str(path))
    assert by_fit["best"]["step_time_s"] is not None and by_profile["best"]["step_time_s"] is not None
    assert by_profile["figures"]["device"]["matmul_flops"]["source"] == "this-machine"


def test_a_profile_that_measured_nothing_changes_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(PROFILE % ("null", "null"))
    data = answer(capsys, "search", "--model", "7b", "--devices", "12", "--global-batch", "48", "--hardware", str(path), *FEW)
    assert data["best"]["step_time_s"] is None


# --- emitting -----------------------------------------------------------------------------------------------------------


def test_a_search_for_a_backend_finds_what_it_can_express(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name in ("megatron", "torchtitan-toml", "torchtitan-python", "accelerate", "deepspeed", "nanotron", "dtensor"):
        path = tmp_path / name
        data = answer(capsys, "search", *JOB, *FEW, "--emit", name, "--emit-file", str(path))
        assert data["emitted"]["backend"] == name and path.read_text() == data["emitted"]["text"]
        assert any(reason.startswith(f"{name} cannot express") for reason in data["rejected"])


def test_emit(capsys: pytest.CaptureFixture[str]) -> None:
    plan = "tp=8,pp=2,dp_shard=4,zero_stage=1,schedule=1f1b,sequence_parallel=true"
    assert main(["plan", "emit", "--plan", plan, "--model", "70b", "--global-batch", "512", "--emit", "megatron"]) == 0
    assert "--pipeline-model-parallel-layout Et*40|t*40L" in capsys.readouterr().out.replace("'", "")
    data = answer(capsys, "emit", "--plan", plan, "--model", "70b", "--global-batch", "512", "--emit", "megatron", "--devices", "64")
    assert data["plan"]["layer_split"] == [40, 40] and data["emitted"]["file"] is None


def test_emit_is_the_file_alone_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    emit = ("emit", "--plan", "tp=8,dp_shard=8,zero_stage=1", "--model", "70b", "--global-batch", "512", "--emit", "megatron")
    found = envelope(capsys, *emit)
    assert main(["plan", *emit]) == 0
    out, err = capsys.readouterr()
    assert out.rstrip() == found["data"]["emitted"]["text"].rstrip() and "inferred" not in out
    assert "inferred: sequence length = " in err and found["inferred"][0]["name"] == "sequence length"


def test_what_plan_search_wrote_can_be_emitted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    assert main(["plan", "search", *JOB, *FEW, "--emit", "dtensor", "--format", "json", "--output", str(path)]) == 0
    capsys.readouterr()
    data = answer(capsys, "emit", "--plan", str(path), "--model", "7b", "--global-batch", "64", "--emit", "dtensor")
    found = json.loads(path.read_text())["data"]
    assert data["plan"] == found[found["decision"]["take"]]["plan"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("emit", "--plan", "tp=8"), "plan emit needs --plan, --emit BACKEND"),
        (("emit", "--plan", "pp=2,schedule=gpipe", "--model", "7b", "--global-batch", "8", "--emit", "megatron"), "the schedule gpipe"),
        (
            ("emit", "--plan", "dp_shard=3,zero_stage=3", "--model", "7b", "--global-batch", "8", "--emit", "dtensor"),
            "is no multiple of dp 3",
        ),
        (("emit", "--plan", "tp=8", "--model", "7b", "--global-batch", "8", "--emit", "dtensor", "--devices", "16"), "--devices says 16"),
        (
            ("emit", "--plan", "dp_shard=8,zero_stage=3", "--model", "7b", "--global-batch", "8", "--emit", "accelerate"),
            "(16 are, in bf16: gradient_bytes=2)",
        ),
        (("search", *JOB, "--contention", "0.5"), "give 1 or more"),
        (("search", *JOB, "--contention=-2"), "give 1 or more"),
        (("search", *JOB, "--latencies", "/no/such/file.json"), "/no/such/file.json"),
        (("search", "--model", "7b", "--devices", "8", "--global-batch", "64", "--node", "no-such"), "there is no node 'no-such'"),
        (("search", *JOB, "--global-batch", "10000001"), "is not from 1 to 10,000,000"),
        (
            ("search", "--model", "7b", "--accelerator", "a100", "--devices", "3072", "--memory", "80GiB", "--global-batch", "64"),
            "no topology",
        ),
    ],
)
def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str) -> None:
    assert main(["plan", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" not in err and said in err.strip().splitlines()[-1]


@pytest.mark.parametrize("text", ["{}", '{"stages": []}', '{"stages": [3]}', '{"stages": [{"layers": 0, "seconds": 1}]}', '{"stages": 5}'])
def test_latencies_that_are_none(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str) -> None:
    path = tmp_path / "stages.json"
    path.write_text(text)
    assert main(["plan", "search", *JOB, "--latencies", str(path)]) == 2
    assert "Traceback" not in capsys.readouterr().err
