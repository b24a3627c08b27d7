"""The worker: one rank of a training job.

    torchrun --standalone --nproc-per-node 4 -m trainwright.train.run --job RUN/job.json

Exit codes: 0 trained, 1 failed (traceback on stderr), 2 a mistake in the job or a file (one line), 129 the launcher is
gone, 128 + n ended by signal n. Whatever happens is in RUN/perf/rank{r}.jsonl too.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import os
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import torch

from trainwright.document import load_mapping
from trainwright.emit import accelerate
from trainwright.errors import Exit, UserError
from trainwright.job import Job, read
from trainwright.model import ModelSpec, load_model
from trainwright.report import printable
from trainwright.strategy import Strategy
from trainwright.train import data, memory, parallelize, watchdog, world
from trainwright.train.loop import Clock, Training, make_optimizer, run_step, train
from trainwright.train.records import Records, failure, host, now, versions
from trainwright.train.tracker import Tracker

KEYS = {"cpu_offload": ("fsdp_offload_params",), "precision": ("mixed_precision", "fp16")}  # a Strategy's field -> keys that set it


def main() -> int:
    """Run the job that --job names; returns for a user's mistake only. A failed process leaves at once: taking down a broken
    group can hang."""
    parser = argparse.ArgumentParser(prog="trainwright.train.run", description="one rank of a training job, started by torchrun or alone")
    parser.add_argument("--job", required=True, metavar="FILE", help="job.json in the run's folder")
    options = parser.parse_args()
    try:
        job = read(options.job)
        place = world.read_place(job.world_size)
        device = world.choose_device(job.device, place)
        records = Records(job.run_dir or str(Path(options.job).parent), place.rank, opening(job, place, device))
    except UserError as problem:
        return _say(problem)
    clock = Clock(device)
    watchdog.start(lambda exception, message: records.end("failed", failure("terminated", exception, message, clock.phase)))
    try:
        work(job, place, device, clock, records)
    except BaseException as problem:
        _leave(failed(problem, clock, records))
    records.end("completed")
    # Past the last barrier nothing is left to do; the interpreter's own teardown under gloo's threads can still crash.
    _leave(int(Exit.OK))


def work(job: Job, place: world.Place, device: torch.device, clock: Clock, records: Records) -> None:
    """From the files to the last step."""
    spec = load_model(job.model)
    if job.seq_len > spec.max_positions:
        raise UserError(f"seq_len {job.seq_len} is more than max_position_embeddings {spec.max_positions} in {job.model}")
    config = load_mapping(job.backend_config)
    reading = accelerate.read(config, spec)
    strategy, refused = parallelize.applicable(reading.strategy, device)
    corpus = data.load()

    if job.memory_cap_bytes:
        memory.steady_allocator()
    world.connect(device, place, job.timeout_s)
    warm_up(spec, strategy, job, corpus, device)
    uncapped = memory.enforce(job.memory_cap_bytes, device) if job.memory_cap_bytes else ""

    tracker = records.tracker = Tracker(device, job.track_memory_steps)
    with clock.during("model"), tracker.construction():
        model = parallelize.distribute(spec, strategy, device, place.world_size, job.seed)
        optimizer = make_optimizer(model, job.learning_rate)
    found = parallelize.confirm(model, strategy, place.world_size, place.rank)
    tracker.follow(model, optimizer)
    applied, not_applied = uses(reading, refused)
    if uncapped:
        not_applied.append({"key": "memory_cap_bytes", "value": job.memory_cap_bytes, "reason": uncapped})
    records.header(
        {
            "strategy": found.to_json(),
            "config_sha256": hashlib.sha256(config.text.encode()).hexdigest(),
            "applied": applied,
            "not_applied": not_applied,
            "memory_cap_bytes": None if uncapped else job.memory_cap_bytes,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "data": corpus.to_json(spec.vocab_size),
        }
    )
    train(Training(model, optimizer, spec, strategy, job, corpus, device, clock, tracker), records)
    world.disconnect()


def opening(job: Job, place: world.Place, device: torch.device) -> dict[str, Any]:
    """What a header says of the process, known before anything can fail."""
    about = {"device": str(device), "backend": world.BACKENDS[device.type]}
    return {**dataclasses.asdict(place), **host(), "started": now(), "job": job.to_json(), "versions": versions(), **about}


def warm_up(spec: ModelSpec, strategy: Strategy, job: Job, corpus: data.Corpus, device: torch.device) -> None:
    """Have threads, buffers and caches made before memory is capped or timed.

    One product of the head's real size (the BLAS library keeps work buffers that grow with the product), then one step
    of a very small model under the same strategy.
    """
    dtype = torch.bfloat16 if strategy.precision == "bf16" else torch.float32
    x_th = torch.ones(job.micro_batch * job.seq_len, spec.hidden_size, device=device, dtype=dtype)
    torch.mm(x_th, x_th.new_ones(spec.hidden_size, spec.vocab_size))
    small: dict[str, Any] = {"num_layers": 1, "hidden_size": 64, "intermediate_size": 64, "num_heads": 2, "head_dim": 16}
    small |= {"num_kv_heads": 1 if spec.num_kv_heads < spec.num_heads else 2, "vocab_size": min(spec.vocab_size, 256)}
    tiny = spec.resized(**small)
    short = dataclasses.replace(job, micro_batch=1, seq_len=min(job.seq_len, 16))
    model = parallelize.distribute(tiny, strategy, device, job.world_size, job.seed)
    optimizer = make_optimizer(model, job.learning_rate)
    run_step(Training(model, optimizer, tiny, strategy, short, corpus, device, Clock(device), Tracker(device, 0)), 1)


def uses(reading: accelerate.Reading, refused: dict[str, str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The config's keys that are applied, as `becomes`, and those that are not, with the reason; `refused` moves some over."""
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
    """Write the end line and say on stderr what happened; the exit code."""
    watchdog.LEAVING.acquire(timeout=5)  # its peers' launcher may end this process any moment; the reason comes first
    memory.lift()
    kind = "out_of_memory" if memory.is_out_of_memory(problem) else "exception"
    records.end("failed", failure(kind, type(problem).__name__, str(problem), clock.phase))
    if isinstance(problem, UserError):
        return _say(problem)
    traceback.print_exception(problem)
    return 1


def _say(problem: UserError) -> int:
    print(f"trainwright.train.run: {printable(str(problem))}", file=sys.stderr)
    return int(problem.exit)


def _leave(code: int) -> NoReturn:
    with contextlib.suppress(OSError, ValueError):  # a reader of our output may be gone
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
