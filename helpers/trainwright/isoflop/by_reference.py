"""What isoflop asks of the reference trainer, all of it through launch: one run of a study, and the short run of a calibration.

A skill's copy of isoflop leaves this module out, for the size of what it needs; those who call it ask first whether it is there.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from trainwright import probe
from trainwright.emit import accelerate
from trainwright.errors import Exit, UserError
from trainwright.isoflop.calibration import Measurement
from trainwright.isoflop.trainer import results_of
from trainwright.job import Job
from trainwright.launch import folder, torchrun
from trainwright.launch.ends import ends_of
from trainwright.output import write_text
from trainwright.strategy import Strategy

_OURS = {"manifest.json", "job.json", "logs", "perf", "heartbeat", "checkpoints"}
_WAIT_S = 30  # for the ranks of a killed launcher to notice


def write_backend(place: str, device: str = "cpu") -> str:
    """The path of the backend's file in `place`: one process, nothing shared."""
    path = os.path.join(place, "backend.yaml")
    write_text(path, accelerate.write(Strategy("single"), 1, device))
    return path


def judge(job: dict[str, Any], run_id: str) -> None:
    """Raises UserError where the reference trainer would refuse a run's job."""
    unknown = [key for key in job if key not in Job.__dataclass_fields__]
    if unknown:
        raise UserError(f"the plan's job: {unknown[0]!r:.60} is no field of a job")
    try:
        Job(**job)
    except UserError as problem:
        raise UserError(f"run {run_id}: {problem}") from None


def run(request: dict[str, Any]) -> int:
    """One run of a study; its exit code. Raises UserError."""
    job, run_dir = Job(**request["job"]), request["run_dir"]
    _clear_unfinished(run_dir)
    for _ in range(_WAIT_S):
        with suppress(UserError):
            folder.check(run_dir, force=True)
            break
        time.sleep(1)
    outcome = torchrun.run(job, run_dir, force=os.path.lexists(run_dir), stall_s=request["stall_s"])
    print(outcome.status, outcome.reason)
    if outcome.status == "interrupted":
        return int(Exit.INTERRUPTED)
    return 0 if outcome.completed else int(Exit.FAILED)


def _clear_unfinished(run_dir: str) -> None:
    """Remove a run's folder that was killed before its manifest stood: it holds nothing but what a launch makes first."""
    place = Path(run_dir)
    if place.is_dir() and not place.is_symlink() and not (place / "manifest.json").exists():
        names = {entry.name for entry in place.iterdir()}
        if names <= _OURS or all(name.endswith(".partial") for name in names - _OURS):
            shutil.rmtree(place)


def measure(row: dict[str, Any], path: str, place: str, how: Measurement) -> None:
    """Add throughput and memory of a short run of the reference trainer on this machine, or why there is none."""
    backend = write_backend(place, how.device)
    run_dir = os.path.join(place, "calibration", row["name"])
    sizes = {"steps": how.steps + 2, "micro_batch": how.micro_batch, "seq_len": row["seq_len"], "track_memory_steps": 2}
    kind = {"modality": row["modality"], "regime": row["regime"], "variant": row["variant"]}
    job = Job(model=path, backend_config=backend, world_size=1, device=how.device, timeout_s=how.timeout_s, **sizes, **kind)
    with probe.environment({"OMP_NUM_THREADS": str(how.threads)}):
        outcome = torchrun.run(job, run_dir, force=os.path.lexists(run_dir))
    if not outcome.completed:
        row["measured_reason"] = f"{outcome.status}: {ends_of(run_dir, 1)[0]}"
        if outcome.status == "interrupted":
            raise KeyboardInterrupt
        return
    row["measured"], row["measured_reason"] = _read(run_dir, row, how), ""


def _read(run_dir: str, row: dict[str, Any], how: Measurement) -> dict[str, Any]:
    lines = results_of(os.path.join(run_dir, "perf", "rank0.jsonl"))
    steps = [line for line in lines if line.get("kind") == "step" and line.get("memory_bytes") is None][1:]
    tokens = how.micro_batch * row["seq_len"]
    seconds = median(line["step_time_s"] for line in steps)
    end = next((line for line in lines if line.get("kind") == "end"), {})
    return {
        "tokens_per_sec": tokens / seconds,
        "flops_per_sec": row["flops_per_token"] * tokens / seconds,
        "step_time_s": seconds,
        "steps": len(steps),
        "micro_batch": how.micro_batch,
        "device": how.device,
        "threads": how.threads,
        "peak_memory_bytes": end.get("peak_memory_bytes"),
        "rss_bytes": max((line["rss_bytes"] for line in steps), default=None),
        "run_dir": run_dir,
    }
