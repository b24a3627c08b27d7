"""Who did it: fabricated endings of every kind, and what each is called. The victims must never be blamed."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from trainwright.diagnose.run_folder import read_files, read_run
from trainwright.diagnose.verdict import Diagnosis, diagnose

Row = Callable[..., dict[str, Any]]
LIBRARY = Path(__file__).resolve().parents[2] / "helpers" / "trainwright"
SCHEMA = json.loads((LIBRARY / "diagnose" / "diagnose.schema.json").read_text(encoding="utf-8"))

LOST = "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:1. GLHF!"
WAITED = "RuntimeError: [unbound_buffer.cc:78] Timed out waiting 15000ms for recv operation to complete"
FRAMES = '  File "/home/u/train.py", line 9, in step\n    x\n  File "/v/site-packages/torch/a.py", line 1, in f\n'
TRACEBACK = f"Traceback (most recent call last):\n{FRAMES}"
STACK = "Fatal Python error: Aborted\n\nCurrent thread 0x00007f (most recent call first):\n"
IN_TORCH = STACK + '  File "/v/site-packages/torch/distributed/c10d.py", line 3 in all_reduce\n  File "/home/u/train.py", line 4 in main\n'
IN_SLEEP = STACK + '  File "/home/u/data.py", line 12 in load_shard\n  File "/home/u/train.py", line 4 in main\n'


def judged(folder: Any) -> Diagnosis:
    found = diagnose(read_run(str(folder.path)))
    jsonschema.validate(json.loads(json.dumps(found.to_json())), SCHEMA)
    return found


def verdicts(folder: Any) -> list[tuple[str, str | None]]:
    return [(d["class"], d["culprit"] and d["culprit"]["value"]) for d in judged(folder).diagnoses]


def test_a_healthy_run_has_no_diagnosis(folder: Any, row: Row, last: Row) -> None:
    folder.perf(0, row(1), last()).perf(1, row(1), last()).manifest("completed", returncode=0)
    assert judged(folder).findings == []


def test_the_victim_of_an_exception_is_not_blamed(folder: Any, row: Row, last: Row) -> None:
    folder.perf(0, row(1), last(LOST)).perf(1, row(1), last("ValueError: bad shard"))
    folder.exits({0: 1, 1: 1}).manifest("failed", returncode=1)  # torchrun's "root cause" is the victim
    assert verdicts(folder) == [("user_exception", "1")]


def test_an_exception_in_stderr_alone(folder: Any) -> None:
    folder.stderr(0, f'[rank0]: Traceback (most recent call last):\n[rank0]:   File "x", line 1\n[rank0]: {LOST}\n')
    folder.stderr(1, f"{TRACEBACK}ValueError: bad shard\n").exits({0: 1, 1: 1}).manifest("failed")
    found = judged(folder)
    assert verdicts(folder) == [("user_exception", "1")]
    evidence = found.diagnoses[0]["evidence"]
    assert (evidence[0]["line"], evidence[0]["text"]) == (5, "ValueError: bad shard")
    assert "/home/u/train.py" in evidence[1]["text"], "the innermost frame of the user's own code"


def test_a_traceback_that_python_ignored_is_no_cause(folder: Any) -> None:
    text = f"{TRACEBACK}ValueError: the real one\nException ignored in: <function f>\n{TRACEBACK}KeyError: 'late'\n"
    folder.stderr(0, text).exits({0: 1}).manifest("failed")
    assert "the real one" in judged(folder).findings[0].message


def test_ranks_that_fail_alike_have_no_culprit(folder: Any, last: Row) -> None:
    for rank in (0, 1):
        folder.perf(rank, last("UserError: no such file"))
    assert verdicts(folder.manifest("failed")) == [("user_exception", None)]


MEMORY = {
    "RuntimeError: [x] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8388608 bytes. Error code 12": (
        "host_oom_alloc",
        "8.00 MiB (8388608 bytes)",
    ),
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has": ("cuda_oom", "2.00 GiB"),
    "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 20.00 MiB. GPU 0 has": ("xpu_oom", "20.00 MiB"),
    "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8.00 TiB for an array": ("host_oom_alloc", ""),
    "MemoryError": ("host_oom_alloc", ""),
    "terminate called after throwing an instance of 'std::bad_alloc'": ("host_oom_alloc", ""),
}


@pytest.mark.parametrize("said", MEMORY, ids=range(len(MEMORY)))
def test_out_of_memory_by_stderr(said: str, folder: Any) -> None:
    folder.stderr(0, f"{TRACEBACK}{LOST}\n").stderr(1, f"{TRACEBACK}{said}\n").exits({0: 1, 1: 1}).manifest("failed")
    name, tried = MEMORY[said]
    assert verdicts(folder) == [(name, "1")]
    assert tried in judged(folder).findings[0].message


def test_out_of_memory_by_the_end_line_says_cap_and_phase(folder: Any, last: Row) -> None:
    folder.job(memory_cap_bytes=300 * 2**20)
    folder.perf(0, last("RuntimeError: you tried to allocate 4096 bytes", "out_of_memory")).manifest("failed")
    (finding,) = judged(folder).findings
    assert finding.rule == "RUN001"
    assert (
        finding.message
        == "rank 0 ran out of memory in forward: it tried to allocate 4.00 KiB (4096 bytes), under a cap of 300.0 MiB a rank"
    )
    assert finding.where is not None and finding.where.path == str(folder.path / "perf/rank0.jsonl") and finding.where.line == 2


def test_a_kill_is_not_called_out_of_memory_without_evidence(folder: Any, last: Row) -> None:
    folder.perf(0, last(LOST)).perf(1).exits({1: -9, 0: -15}).manifest("failed", oom_kills=0)
    assert verdicts(folder) == [("rank_killed_sigkill", "1")]
    assert "dmesg" in judged(folder).diagnoses[0]["confirm"]


def test_a_kill_that_the_kernel_counted_is(folder: Any) -> None:
    folder.perf(1).exits({1: -9, 0: -15}).manifest("failed", oom_kills=1)
    assert verdicts(folder) == [("sigkill_probably_host_oom", "1")]


@pytest.mark.parametrize("how", ["launcher", "torchrun"])
def test_a_kill_of_ours_is_no_cause(how: str, folder: Any, last: Row) -> None:
    folder.perf(0, last("ValueError: x")).perf(1).exits({0: 1, 1: -9})
    sent = [{"pid": 101, "signal": 9}] if how == "launcher" else []
    if how == "torchrun":
        text = (folder.path / "logs/launcher.log").read_text()
        folder.file("logs/launcher.log", "Unable to shutdown process 101 via Signals.SIGTERM, forcefully exiting via 9\n" + text)
    assert verdicts(folder.manifest("failed", signals_sent=sent)) == [("user_exception", "0")]


@pytest.mark.parametrize(
    ("code", "name"), [(-11, "segfault"), (-7, "segfault"), (-6, "insufficient_evidence"), (-64, "insufficient_evidence")]
)
def test_other_signals(code: int, name: str, folder: Any) -> None:
    assert verdicts(folder.stderr(1, "").exits({1: code, 0: -15}).manifest("failed")) == [(name, "1")]


def test_an_exit_code_with_an_empty_log_names_the_rank(folder: Any) -> None:
    folder.stderr(0, f"{TRACEBACK}{LOST}\n").stderr(1, "wandb: bye\n").exits({1: 3, 0: -15}).manifest("failed")
    assert verdicts(folder) == [("insufficient_evidence_need_rank_log", "1")]
    assert "its last word: wandb: bye" in judged(folder).findings[0].message


def test_an_exit_code_without_a_log_names_no_rank(folder: Any) -> None:
    assert verdicts(folder.exits({0: 1, 1: -15}).manifest("failed")) == [("insufficient_evidence_need_rank_log", None)]


def test_a_rank_that_was_told_to_end_is_no_cause(folder: Any, last: Row) -> None:
    folder.perf(0, last("SIGTERM: ended by SIGTERM", "terminated")).perf(1, last("LauncherGone: gone", "terminated"))
    assert verdicts(folder.exits({0: 143, 1: 129}).manifest("interrupted")) == []


def test_who_waited_is_not_to_blame(folder: Any, row: Row, last: Row) -> None:
    folder.perf(0, row(1), last(WAITED)).perf(1, row(1)).perf(2, row(1), last(WAITED), world_size=3)
    folder.exits({0: 1, 1: -15, 2: 1}).manifest("failed")
    assert verdicts(folder) == [("hang_rank_not_in_collective", "1")]


def test_when_all_waited_nobody_is_named(folder: Any, last: Row) -> None:
    folder.perf(0, last(WAITED)).perf(1, last(WAITED)).manifest("failed")
    assert verdicts(folder) == [("hang_cause_unknown", None)]


def test_a_stall_is_told_by_the_stacks(folder: Any, row: Row) -> None:
    for rank in range(4):
        folder.perf(rank, row(1), row(2), world_size=4).stderr(rank, IN_SLEEP if rank == 2 else IN_TORCH)
    folder.manifest(
        "timeout", clock="stall", reason="no rank wrote a line for 60 s", signals_sent=[{"pid": 100 + r, "signal": 6} for r in range(4)]
    )
    folder.exits({0: -6, 1: -6, 2: -6, 3: -6})
    (found,) = judged(folder).diagnoses
    assert (found["class"], found["culprit"], found["confidence"]) == (
        "hang_rank_not_in_collective",
        {"kind": "rank", "value": "2"},
        "high",
    )
    assert "load_shard" in found["evidence"][0]["text"]
    assert any("no rank wrote a line" in line["text"] for line in found["evidence"]), "the launcher's word is evidence too"


@pytest.mark.parametrize(("phase", "confidence"), [("data", "medium"), ("forward", "low")])
def test_a_stall_is_told_by_the_heartbeats(folder: Any, row: Row, phase: str, confidence: str) -> None:
    beat = '{"step":3,"phase":"%s","wall":1.5,"monotonic":2.5,"rank":%d,"pid":3,"host":"h"}\n'
    found = folder.manifest("timeout", clock="stall", reason="no rank wrote a line for 60 s")
    for rank in range(3):
        found.perf(rank, row(1), row(2), world_size=3).file(f"heartbeat/rank{rank}", beat % (phase if rank == 1 else "backward", rank))
    (stated,) = diagnose(read_run(str(found.path))).diagnoses
    assert (stated["culprit"]["value"], stated["confidence"]) == ("1", confidence)
    assert stated["evidence"][0]["file"] == "heartbeat/rank1"


def test_a_stall_in_which_all_stand_in_torch_names_nobody(folder: Any, row: Row) -> None:
    for rank in (0, 1):
        folder.perf(rank, row(1), row(2)).stderr(rank, IN_TORCH)
    folder.manifest("timeout", clock="stall", signals_sent=[{"pid": 100, "signal": 6}, {"pid": 101, "signal": 6}])
    assert verdicts(folder) == [("hang_cause_unknown", None)]


def test_ranks_that_waited_for_one_to_join(folder: Any) -> None:
    joining = IN_TORCH.replace("all_reduce", "init_process_group")
    folder.stderr(0, joining).stderr(1, IN_SLEEP).stderr(2, joining).manifest("timeout", clock="stall")
    assert verdicts(folder) == [("init_rank_missing", "1")]


def test_a_stall_without_stacks_names_the_rank_with_fewer_steps_and_is_unsure(folder: Any, row: Row) -> None:
    folder.perf(0, row(1), row(2)).perf(1, row(1)).perf(2, row(1), row(2), world_size=3)
    (found,) = judged(folder.manifest("timeout", clock="stall")).diagnoses
    assert (found["culprit"]["value"], found["confidence"]) == ("1", "low")


@pytest.mark.parametrize(("idle_s", "name"), [(0.4, "walltime"), (250.0, "hang_cause_unknown")])
def test_time_over_while_steps_came_is_no_hang(idle_s: float, name: str, folder: Any, row: Row) -> None:
    for rank in (0, 1):
        folder.perf(rank, row(1), row(2), row(3))
    folder.job(steps=100).manifest("timeout", clock="total", idle_s=idle_s, reason="not finished 300 s after the start")
    assert verdicts(folder) == [(name, None)]


def test_a_rank_that_ran_out_of_steps(folder: Any, row: Row, last: Row) -> None:
    folder.perf(0, row(1), last(LOST)).perf(1, row(1), last(steps=1)).exits({0: 1}).manifest("failed")
    assert verdicts(folder) == [("rank_skipped_iteration_desync", "1")]


def test_a_rank_that_returned_early_is_told_by_its_absence_from_the_failures(folder: Any, row: Row, last: Row) -> None:
    folder.perf(0, row(1), last(LOST)).perf(1, row(1)).exits({0: 1}).manifest("failed")
    assert verdicts(folder) == [("rank_divergent_control_flow", "1")]


LIVE = {"name": "fsdp_full_shard", "wrapper": "FSDPModule", "world_size": 2, "shard_ratio": 0.5}
EFFECTS: list[tuple[str, dict[str, Any], str, str]] = [
    ("fsdp_full_shard", {}, "", ""),
    ("", {}, "", ""),
    ("fsdp_full_shard", {"name": "ddp", "wrapper": "DistributedDataParallel"}, "silent_strategy_downgrade", "runs ddp"),
    ("fsdp_full_shard", {"wrapper": "DistributedDataParallel"}, "silent_strategy_downgrade", "wrapped in DistributedDataParallel"),
    ("", {"wrapper": "none"}, "silent_strategy_downgrade", "wrapped in none"),
    ("fsdp_full_shard", {"shard_ratio": 1.0}, "silent_strategy_downgrade", "holds 100%"),
    ("fsdp_full_shard", {"world_size": 1, "shard_ratio": 1.0}, "silent_independent_processes", "a world of 1 where 2"),
    ("hsdp_full_shard", {"name": "hsdp_full_shard", "replicas": 2, "shard_ratio": 1.0}, "", ""),
    ("hsdp_full_shard", {"replicas": 1}, "silent_strategy_downgrade", "runs fsdp_full_shard"),
    ("zero_2", {"name": "zero_2", "wrapper": "DeepSpeedEngine", "shard_ratio": 1.0, "replicas": 2}, "", ""),
    ("zero_3", {"name": "zero_3", "wrapper": "DeepSpeedEngine", "replicas": 1}, "", ""),
    ("zero_3", {"name": "zero_3", "wrapper": "DeepSpeedEngine", "shard_ratio": 1.0}, "silent_strategy_downgrade", "holds 100%"),
    ("zero_3", {"name": "zero_1", "wrapper": "DeepSpeedEngine"}, "silent_strategy_downgrade", "runs zero_1"),
    ("local_sgd", {"name": "local_sgd", "wrapper": "LocalSGD", "shard_ratio": 1.0}, "", ""),
    ("local_sgd", {"name": "ddp", "wrapper": "DistributedDataParallel"}, "silent_strategy_downgrade", "runs ddp"),
]


@pytest.mark.parametrize(("asked", "live", "name", "words"), EFFECTS)
def test_what_ran_against_what_was_asked(asked: str, live: dict[str, Any], name: str, words: str, folder: Any, last: Row) -> None:
    for rank in (0, 1):
        folder.perf(rank, last(), strategy=LIVE | live)
    folder.job().file("manifest.json", json.dumps({"asked": {"strategy": asked}, "outcome": {"status": "completed"}}))
    found = judged(folder)
    assert [d["class"] for d in found.diagnoses] == ([name] if name else [])
    assert all(words in finding.message and finding.rule == "RUN005" for finding in found.findings)


def test_nan_names_the_first_rank_where_there_is_one(folder: Any, row: Row, last: Row) -> None:
    folder.perf(0, row(1), row(2), row(3, loss=None), last()).perf(1, row(1), row(2, loss=None), row(3, loss=None), last()).manifest(
        "completed"
    )
    assert verdicts(folder) == [("nonfinite_loss", "1")]
    folder.perf(0, row(1), row(2, grad_norm=None), last())
    assert verdicts(folder) == [("nonfinite_loss", None)]


def test_a_run_that_stopped_at_nan_is_one_diagnosis_that_names_the_rank(folder: Any, row: Row) -> None:
    said = "the loss is nan in step 2, on rank 1; the job stops with the weights of step 1"
    error = {"type": "nonfinite", "exception": "NonFinite", "message": said, "phase": "report"}
    end = {"kind": "end", "status": "failed", "steps": 2, "error": error}
    for rank in (0, 1):
        folder.perf(rank, row(1), row(2, loss=None), end)
    folder.exits({0: 1, 1: 1}).manifest("failed", returncode=1)
    assert verdicts(folder) == [("nonfinite_loss", "1")]
    assert "it began on rank 1" in judged(folder).findings[0].message


def test_nothing_is_guessed(folder: Any, row: Row, last: Row) -> None:
    assert verdicts(folder.manifest("failed", returncode=1)) == [("insufficient_evidence", None)]
    folder.perf(0, row(1), last(LOST)).perf(1, row(1), last(LOST))
    assert verdicts(folder) == [("insufficient_evidence_need_rank_log", None)]


def test_torchrun_s_own_end_is_told(folder: Any) -> None:
    folder.manifest("failed", returncode=-9).file("logs/launcher.log", "x\nOSError: libtorch.so: cannot open shared object\n")
    (finding,) = judged(folder).findings
    assert "torchrun itself was ended by SIGKILL" in finding.message and "libtorch.so" in finding.message


def test_every_class_is_in_the_catalogue(data: Path) -> None:
    with open(data / "logs" / "classes.csv", encoding="utf-8") as file:
        catalogue = {row["class"] for row in csv.DictReader(file)}
    sources = "".join(file.read_text(encoding="utf-8") for file in (LIBRARY / "diagnose" / "rules").glob("*.py"))
    used = set(re.findall(r'Cause\(\s*"(\w+)"|yield "(\w+)"|name = "(\w+)"|"(\w+_oom\w*)"', sources))
    names = {name for found in used for name in found if name}
    assert len(names) > 12 and names <= catalogue


CORPUS = {  # what torchrun's own output tells of recorded runs; a class is named or nothing is, and no victim is
    "local_kill": ("rank_killed_sigkill", "1"),
    "local_hang": ("hang_rank_not_in_collective", "1"),
    "local_exc_tee": ("user_exception", "1"),
    "local_mismatch_op": ("hang_cause_unknown", None),
    "bug_tspyre3835_hidden": ("insufficient_evidence_need_rank_log", None),
}


@pytest.mark.parametrize("name", CORPUS)
def test_recorded_logs(name: str, data: Path) -> None:
    found = diagnose(read_files([str(data / "logs" / f"{name}.log")]))
    assert [(d["class"], d["culprit"] and d["culprit"]["value"]) for d in found.diagnoses] == [CORPUS[name]]
