# train/run.py without its comments
from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import os
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from trainwright.train import watchdog

STARTED = time.monotonic()
if __name__ == "__main__":
    watchdog.start()

import torch

from trainwright.document import load_mapping
from trainwright.emit import backend
from trainwright.emit.reading import Reading
from trainwright.errors import Exit, UserError
from trainwright.heartbeat import Heartbeat
from trainwright.job import Job, read
from trainwright.model import ModelSpec, load_model
from trainwright.possible import possible
from trainwright.report import printable
from trainwright.strategy import Strategy
from trainwright.train import checkpoint, data, ipex, memory, parallelize, projected, world
from trainwright.train.effective import confirm
from trainwright.train.loop import Clock, NonFinite, Training, run_step, train
from trainwright.train.records import Records, failure, host, now, versions
from trainwright.train.samples import last_step
from trainwright.train.saving import Saver, Stopped, grace_s
from trainwright.train.tiny import tiny
from trainwright.train.tracker import Tracker

KEYS = {
    "cpu_offload": ("fsdp_offload_params", "offload_optimizer", "offload_param"),
    "precision": ("mixed_precision", "fp16"),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="trainwright.train.run", description="one rank of a training job, started by torchrun or alone")
    parser.add_argument("--job", required=True, metavar="FILE", help="job.json in the run's folder")
    options = parser.parse_args()
    try:
        job = read(options.job)
        job = dataclasses.replace(job, run_dir=job.run_dir or str(Path(options.job).resolve().parent))
        place = world.read_place(job.world_size)
        device = world.choose_device(job.device, place)
        records = Records(job.run_dir, place.rank, opening(job, place, device))
    except UserError as problem:
        return _say(problem)
    heartbeat = Heartbeat(job.run_dir, place.rank)
    clock = Clock(device, heartbeat)
    watchdog.tell(lambda exception, message: records.end("failed", failure("terminated", exception, message, clock.phase)))
    try:
        work(job, place, device, clock, records)
    except BaseException as problem:
        _leave(failed(problem, clock, records))
    records.end("completed")
    heartbeat.beat("ended")
    _leave(int(Exit.OK))


def work(job: Job, place: world.Place, device: torch.device, clock: Clock, records: Records) -> None:
    spec = load_model(job.model)
    if job.modality != "text":
        spec = projected.with_variant(spec, job.variant)
    if job.seq_len > spec.max_positions:
        raise UserError(f"seq_len {job.seq_len} is more than max_position_embeddings {spec.max_positions} in {job.model}")
    config = load_mapping(job.backend_config)
    reading = backend.read(config, spec).under(job)
    agrees(job, reading)
    strategy, refused = parallelize.applicable(reading.strategy, device)
    possible(spec, strategy, job)
    source = data.open_data(settings(job), spec, job.seq_len)

    if job.memory_cap_bytes:
        memory.steady_allocator()
    with clock.during("connect"):
        connected = world.connect(device, place, job.timeout_s)
    clock.waits.install()
    warm_up(spec, strategy, job, source, device, config.value)
    uncapped = memory.enforce(job.memory_cap_bytes, device) if job.memory_cap_bytes else ""

    tracker = records.tracker = Tracker(device, job.track_memory_steps)
    with clock.during("model"), tracker.construction():
        model, optimizer = parallelize.prepare(spec, strategy, job, device, config.value)
    optimizer, extension = ipex.apply(model, optimizer, strategy.kind)
    found = confirm(model, strategy, place.world_size, place.rank)
    saver = Saver(job, model, optimizer, found.name, device)
    with clock.during("resume"):
        begun = checkpoint.begin(job.init_from, model).to_json() if job.init_from and not job.resume else None
        resumed = taken_up(saver, strategy, source) if job.resume else None
    untracked = tracker.follow(model, optimizer)
    applied, not_applied = uses(reading, refused)
    for key, reason in (("memory_cap_bytes", uncapped), ("track_memory_steps", untracked)):
        not_applied += [{"key": key, "value": getattr(job, key), "reason": reason}] if reason else []
    records.header(
        {
            "strategy": found.to_json(),
            "config_sha256": hashlib.sha256(config.text.encode()).hexdigest(),
            "applied": applied,
            "not_applied": not_applied,
            "memory_cap_bytes": None if uncapped else job.memory_cap_bytes,
            "parameters": spec.total_parameters if found.name == "zero_3" else sum(p.numel() for p in model.parameters()),
            "data": source.to_json(),
            "backend": connected,
            "ipex": extension,
            "checked": world.CHECKED[device.type],
            "init_from": begun,
            "resumed": resumed,
            "setup_s": time.monotonic() - STARTED,
        }
    )
    records.data = source.to_json
    watchdog.hold(grace_s() if job.checkpoint_every else 0)
    train(Training(model, optimizer, strategy, job, source, device, clock, tracker, saver.done), records, saver)
    watchdog.hold(0)
    world.disconnect(device)


def taken_up(saver: Saver, strategy: Strategy, source: data.Data) -> dict[str, Any]:

    def loss() -> torch.Tensor:
        with parallelize.precision(strategy, saver.device):
            return saver.model(source.batch(0, 1).to(saver.device))

    found = saver.resume(loss)
    if (last := last_step(saver.job, saver.done)) <= found.step:
        raise UserError(f"{found.path} has done {found.step} steps, and the job ends with step {last}; give it more")
    return found.to_json()


def settings(job: Job) -> data.Settings:
    names = {field.name for field in dataclasses.fields(data.Settings)}
    return data.Settings(path=job.data, **{name: getattr(job, name) for name in names - {"path"}})


def agrees(job: Job, reading: Reading) -> None:
    said = {name: getattr(job, name) for name in reading.job} | {"global_batch": job.step_samples}
    wrong = [f"{name} {value} in the file, {said[name]} in the job" for name, value in reading.job.items() if value != said[name]]
    if wrong:
        raise UserError(f"{job.backend_config} and the job do not agree: {'; '.join(wrong)}")


def opening(job: Job, place: world.Place, device: torch.device) -> dict[str, Any]:
    about = {"device": str(device), "backend": world.BACKENDS[device.type]}
    return {**dataclasses.asdict(place), **host(), "started": now(), "job": job.to_json(), "versions": versions(), **about}


def warm_up(spec: ModelSpec, strategy: Strategy, job: Job, source: data.Data, device: torch.device, config: dict[str, Any]) -> None:
    dtype = torch.bfloat16 if strategy.precision == "bf16" else torch.float32
    x_th = torch.ones(job.micro_batch * job.seq_len, spec.hidden_size, device=device, dtype=dtype)
    torch.mm(x_th, x_th.new_ones(spec.hidden_size, spec.vocab_size))
    small = tiny(spec)
    once: dict[str, Any] = {"steps": 1, "accumulation": 1, "micro_batch": 1, "warmup_steps": 0, "compile": "none"}
    once |= {"global_batch": None, "samples": None}
    short = dataclasses.replace(job, **once)
    model, optimizer = parallelize.prepare(small, strategy, short, device, config)
    sample = Fixed(source.batch(0, 1), small.vocab_size)
    source.reads.clear()
    run_step(Training(model, optimizer, strategy, short, sample, device, Clock(device), Tracker(device, 0)), 1)


class Fixed:

    def __init__(self, batch: data.Batch, vocab_size: int, longest: int = 16) -> None:
        ids, labels = batch.ids[:, :longest] % vocab_size, batch.labels[:, :longest].clamp(max=vocab_size - 1)
        self.sample = data.Batch(ids, labels, batch.signals, int((labels >= 0).sum()))

    def batch(self, first: int, count: int) -> data.Batch:
        return self.sample

    def targets(self, first: int, count: int) -> int:
        return self.sample.tokens * count

    def eval_batches(self, size: int = 32) -> Iterator[data.Batch]:
        yield self.sample


def uses(reading: Reading, refused: dict[str, str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    reasons = {key: reason for field, reason in refused.items() for key in KEYS[field]}
    applied, not_applied = [], [{"key": use.key, "value": use.value, "reason": use.meaning} for use in reading.not_applied]
    for use in reading.applied:
        reason = reasons.get(use.key.rpartition(".")[2])
        if reason:
            not_applied.append({"key": use.key, "value": use.value, "reason": reason})
        else:
            applied.append({"key": use.key, "value": use.value, "becomes": use.meaning})
    return applied, not_applied


def failed(problem: BaseException, clock: Clock, records: Records) -> int:
    watchdog.LEAVING.acquire(timeout=5)
    memory.lift()
    with contextlib.suppress(UserError):
        records.end("failed", failure(*named(problem), str(problem), clock.phase))
    if isinstance(problem, Stopped):
        print(f"trainwright.train.run: {problem}", file=sys.stderr)
        return 128 + problem.number
    if isinstance(problem, UserError):
        return _say(problem)
    if isinstance(problem, NonFinite):
        print(f"trainwright.train.run: {problem}", file=sys.stderr)
        return 1
    traceback.print_exception(problem)
    return 1


def named(problem: BaseException) -> tuple[str, str]:
    if isinstance(problem, Stopped):
        return "terminated", problem.name
    if memory.is_out_of_memory(problem):
        return "out_of_memory", type(problem).__name__
    return "nonfinite" if isinstance(problem, NonFinite) else "exception", type(problem).__name__


def _say(problem: UserError) -> int:
    print(f"trainwright.train.run: {printable(str(problem))}", file=sys.stderr)
    return int(problem.exit)


def _leave(code: int) -> NoReturn:
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
