"""`trainwright diagnose` as its users run it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

Row = Callable[..., dict[str, Any]]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_a_healthy_run(folder: Any, row: Row, last: Row, run_command: Run) -> None:
    live = {"name": "ddp", "wrapper": "DistributedDataParallel", "world_size": 2, "shard_ratio": 1.0}
    for rank in (0, 1):
        folder.perf(rank, *(row(n, forward_s=0.2) for n in (1, 2, 3, 4)), last(), strategy=live)
    done = run_command("diagnose", str(folder.job().manifest("completed").path))
    assert (done.returncode, done.stderr) == (0, "")
    assert "completed; 2 ranks, 4 of 4 steps" in done.stdout
    assert "ran ddp (DistributedDataParallel) on 2 ranks" in done.stdout
    assert "1,024 tokens/s over all ranks" in done.stdout and "phases: forward 200.0 ms" in done.stdout
    assert "nothing found" in done.stdout


def test_a_failed_run_in_json(folder: Any, row: Row, last: Row, run_command: Run) -> None:
    folder.perf(0, row(1), last("ValueError: \x1b[31mbad shard")).perf(1).manifest("failed")
    done = run_command("diagnose", str(folder.path), "--format", "json")
    report = json.loads(done.stdout)
    assert done.returncode == 1 and report["status"] == "findings"
    assert [f["rule"] for f in report["findings"]] == ["RUN002"]
    assert report["data"]["diagnoses"][0]["class"] == "user_exception"
    assert {"name": "job.json", "reason": "is missing"} in report["not_checked"]
    text = run_command("diagnose", str(folder.path)).stdout
    assert "user_exception: rank 0, confidence high" in text and "\x1b" not in text


def test_a_run_that_has_not_ended(folder: Any, row: Row, run_command: Run) -> None:
    done = run_command("diagnose", str(folder.perf(0, row(1), world_size=1).manifest("running").path))
    assert done.returncode == 0
    assert "not checked: outcome (the run has not ended" in done.stdout


def test_usage(folder: Any, tmp_path: Path, run_command: Run) -> None:
    for paths in ([str(tmp_path / "missing")], [str(tmp_path)], [str(folder.path), str(folder.path)]):
        done = run_command("diagnose", *paths)
        assert done.returncode == 2 and done.stdout == ""
        assert len(done.stderr.splitlines()) == 1 and "Traceback" not in done.stderr
