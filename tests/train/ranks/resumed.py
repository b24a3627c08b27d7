"""The trainer itself saved and taken up: `python resumed.py WORLD FILE`; FILE holds cases, {"name", "strategy", "job", "config", "from"}.

Each trains 4 steps with a checkpoint after the second, takes that up with everything built anew, and trains the last two again;
with "from" it only takes up what that case of an earlier call has saved. Rank 0 prints one JSON line a case.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch.multiprocessing.spawn import spawn

from trainwright.job import Job
from trainwright.model import ModelSpec, load_model
from trainwright.strategy import Strategy
from trainwright.train import checkpoint, data, parallelize
from trainwright.train.effective import effective
from trainwright.train.loop import Clock, Training, run_step
from trainwright.train.run import settings
from trainwright.train.samples import Done
from trainwright.train.saving import Saver
from trainwright.train.tracker import Tracker

spec_of_truth = importlib.util.spec_from_file_location("truth", Path(__file__).with_name("truth.py"))
assert spec_of_truth and spec_of_truth.loader
truth = importlib.util.module_from_spec(spec_of_truth)
spec_of_truth.loader.exec_module(truth)

CPU = torch.device("cpu")
Made = tuple[Training, Saver]


def make(spec: ModelSpec, case: dict[str, Any], folder: str) -> Made:
    strategy = Strategy(**{**case["strategy"], "wrap_classes": tuple(case["strategy"].get("wrap_classes", ()))})
    fields = {
        "model": "/m",
        "backend_config": "/c",
        "steps": 4,
        "micro_batch": 1,
        "seq_len": 16,
        "learning_rate": 1e-2,
        **case.get("job", {}),
    }
    job = Job(**fields, world_size=dist.get_world_size(), run_dir=folder, checkpoint_every=2, keep_checkpoints=0)
    strategy = job.placed(strategy)
    model, adam = parallelize.prepare(spec, strategy, job, CPU, case.get("config", {}))
    training = Training(model, adam, strategy, job, data.open_data(settings(job), spec, job.seq_len), CPU, Clock(CPU), Tracker(CPU, 0))
    return training, Saver(job, model, adam, effective(model).name, CPU)


def train(training: Training, saver: Saver, save: bool) -> list[list[str]]:
    rows = []
    for number in range(training.done.step + 1, 5):
        row, _ = run_step(training, number)
        rows.append([float(row[name]).hex() for name in ("loss", "grad_norm", "learning_rate")])
        if save and number == 2:
            saver.finished(number, 4)
    return rows


def take_up(spec: ModelSpec, case: dict[str, Any], folder: str, out: str) -> tuple[Training, Saver, Any]:
    training, saver = make(spec, case, out)
    saver.job = replace(saver.job, resume=folder)
    found = saver.resume(lambda: training.model(training.data.batch(0, 1)))
    return replace(training, done=saver.done), saver, found


def run(spec: ModelSpec, case: dict[str, Any], root: Path) -> dict[str, Any]:
    folder = str(root / case["name"].replace(" ", "_"))
    if "from" in case:
        training, saver, found = take_up(spec, case, str(root / case["from"].replace(" ", "_")), folder)
        train(training, saver, False)
        straight = torch.load(root / f"{case['from'].replace(' ', '_')}.pt", weights_only=True)
        ends = truth.whole(training.model)
        gap = max(float((straight[name] - ends[name]).abs().max()) for name in straight)
        return {"why": found.why, "step": found.step, "gap": gap, "names": straight.keys() == ends.keys()}
    training, saver = make(spec, case, folder)
    rows = train(training, saver, True)
    straight = truth.whole(training.model)
    if dist.get_rank() == 0:
        torch.save(straight, f"{folder}.pt")
    training, saver, found = take_up(spec, case, folder, folder)
    same = everyone(train(training, saver, False) == rows[2:])
    again = truth.whole(training.model)
    different = [name for name in straight if not torch.equal(straight[name], again[name])]
    row = {
        "rows": all(same),
        "different": different,
        "exact": found.exact,
        "why": found.why,
        "changed": found.changed,
        "done": saver.done == Done(2, found.facts["samples"]),
    }
    return row | begun(spec, case, folder)


def begun(spec: ModelSpec, case: dict[str, Any], folder: str) -> dict[str, Any]:
    """A new run with the weights alone: those of step 2."""
    training, _ = make(spec, case | {"job": case.get("job", {}) | {"seed": 7}}, f"{folder}_begun")
    begun = checkpoint.begin(f"{folder}/checkpoints/step_00000002", training.model)
    resumed, _, _ = take_up(spec, case, folder, folder)
    new, old = truth.whole(training.model), truth.whole(resumed.model)
    apart = training.job.local_sgd_steps and dist.get_rank()  # there all begin with the weights of rank 0
    equal = bool(apart) or all(torch.equal(new[name], old[name]) for name in old)
    run_step(training, 1)
    return {"begun": all(everyone(equal)), "kept": len(begun.kept)}


def everyone(value: bool) -> list[bool]:
    values = [False] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def rank(number: int, store: str, world: int, file: str) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(number), WORLD_SIZE=str(world), LOCAL_RANK=str(number), MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=world)
    root = Path(file).resolve().parent
    spec = load_model(str(root / "config.json"))
    for case in json.loads(Path(file).read_text()):
        row = {"name": case["name"], **run(spec, case, root)}
        if number == 0:
            os.write(1, json.dumps(row).encode() + b"\n")
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        spawn(rank, args=(f"{place}/store", int(sys.argv[1]), sys.argv[2]), nprocs=int(sys.argv[1]))  # type: ignore[no-untyped-call]
