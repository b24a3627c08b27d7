"""What records, heartbeat and the timing of waits cost of a step's CPU time: `python overhead.py [STEPS]`.

In one process, step for step in pairs: the step as the worker does it, then the same without any of these. Prints one JSON line:
CPU seconds of the writing alone (counted within the steps), of a step, their ratio, and the writes of a step.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from trainwright.emit import accelerate
from trainwright.heartbeat import Heartbeat
from trainwright.job import Job
from trainwright.model import load_model
from trainwright.strategy import Strategy
from trainwright.train import data, parallelize, world
from trainwright.train.loop import Clock, Training, train
from trainwright.train.records import Records
from trainwright.train.tracker import Tracker

DEMO = Path(data.__file__).resolve().parents[1] / "models" / "llama-demo" / "config.json"


class Silent(Records):
    """Records that write nothing."""

    def _write(self, row: dict[str, Any], last: bool = False) -> None:
        return


def made(folder: str, steps: int, heartbeat: Heartbeat | None) -> Training:
    config = Path(folder, "accelerate.yaml")
    strategy = Strategy("ddp")
    config.write_text(accelerate.write(strategy, 1, "cpu"), encoding="utf-8")
    job = Job(model=str(DEMO), backend_config=str(config), world_size=1, steps=steps, micro_batch=1, seq_len=64, run_dir=folder)
    spec = load_model(job.model)
    device = torch.device("cpu")
    model, optimizer = parallelize.prepare(spec, strategy, job, device, {})
    clock = Clock(device, heartbeat)
    source = data.open_data(data.Settings(), spec, job.seq_len)
    return Training(model, optimizer, strategy, job, source, device, clock, Tracker(device, 0))


def main(steps: int) -> dict[str, Any]:
    """Two runs of the same job in turns of one step each would share one model; here each has its own and they alternate by run."""
    torch.set_num_threads(1)
    world.connect(torch.device("cpu"), world.Place(0, 0, 1), 60)
    with tempfile.TemporaryDirectory() as folder:
        heartbeat = Heartbeat(folder, 0)
        spent = Spent()
        pairs = []
        recorded = made(folder, steps, spent.watched(heartbeat))
        bare = made(folder, steps, None)
        for turn in range(3):
            records: Records = spent.watched_records(Records(folder, turn, {}))
            recorded.clock.waits.install()
            with_all = cpu(recorded, records)
            recorded.clock.waits.remove()
            without = cpu(bare, Silent(folder, 100 + turn, {}))
            pairs.append((with_all / steps, without / steps))
    step = statistics.median(without for _, without in pairs)
    writing = spent.seconds / (3 * steps)
    difference = statistics.median(a - b for a, b in pairs)
    return {
        "steps": 3 * steps,
        "step_cpu_s": round(step, 6),
        "writing_cpu_s": round(writing, 9),
        "share": round(writing / step, 6),
        "paired_difference_cpu_s": round(difference, 6),
        "beats_per_step": heartbeat.count / (3 * steps),
        "lines_per_step": spent.lines / (3 * steps),
        "waits_per_step": recorded.clock.waits.count,
    }


def cpu(training: Training, records: Records) -> float:
    start = time.process_time()
    train(training, records)
    return time.process_time() - start


class Spent:
    """CPU seconds inside the writers themselves."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.lines = 0

    def watched(self, heartbeat: Heartbeat) -> Heartbeat:
        beat = heartbeat.beat

        def timed(phase: str) -> None:
            start = time.thread_time()
            beat(phase)
            self.seconds += time.thread_time() - start

        heartbeat.beat = timed  # type: ignore[method-assign]
        return heartbeat

    def watched_records(self, records: Records) -> Records:
        write = records._write

        def timed(row: dict[str, Any], last: bool = False) -> None:
            start = time.thread_time()
            write(row, last)
            self.seconds += time.thread_time() - start
            self.lines += 1

        records._write = timed  # type: ignore[method-assign]
        return records


if __name__ == "__main__":
    quiet, sys.stdout = sys.stdout, open(os.devnull, "w", encoding="utf-8")
    found = main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
    print(json.dumps(found), file=quiet, flush=True)
    dist.barrier()
    os._exit(0)
