# train/samples.py without its comments
from __future__ import annotations

from dataclasses import dataclass

from trainwright.job import Job


@dataclass(frozen=True, slots=True)
class Done:

    step: int = 0
    samples: int = 0


@dataclass(frozen=True, slots=True)
class Round:

    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Share:

    first: int
    count: int
    rounds: tuple[Round, ...]
    idle_ranks: int


def before(job: Job, step: int, done: Done) -> int:
    whole = done.samples + (step - 1 - done.step) * job.step_samples
    return whole if job.samples is None else min(whole, job.samples)


def last_step(job: Job, done: Done) -> int:
    if job.samples is None:
        return job.steps
    return min(job.steps, done.step + -(-max(job.samples - done.samples, 0) // job.step_samples))


def share(job: Job, step: int, rank: int, done: Done) -> Share:
    first = before(job, step, done)
    count = before(job, step + 1, done) - first
    width = job.world_size * job.micro_batch
    rounds = tuple(_round(job, first, count, number, rank) for number in range(-(-count // width)))
    busy = -(-min(count, width) // job.micro_batch)
    return Share(first, count, rounds, job.world_size - busy)


def _round(job: Job, first: int, count: int, number: int, rank: int) -> Round:
    offset = (number * job.world_size + rank) * job.micro_batch
    return Round(first + offset, max(min(job.micro_batch, count - offset), 0))
