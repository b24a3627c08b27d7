"""Which samples of the one global order a rank reads in a step, and what each counts in the gradient."""

from __future__ import annotations

from dataclasses import dataclass

from trainwright.job import Job


@dataclass(frozen=True, slots=True)
class Done:
    """What was trained before this process started: the last finished step, and how many samples all steps together read."""

    step: int = 0
    samples: int = 0


@dataclass(frozen=True, slots=True)
class Round:
    """One micro batch of one rank: `count` samples from `first` on; a rank without any in this round has count 0."""

    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Share:
    """What a step reads: all ranks together `count` samples from `first` on, and this rank its `rounds`."""

    first: int
    count: int
    rounds: tuple[Round, ...]
    idle_ranks: int  # ranks that read nothing at all in this step


def before(job: Job, step: int, done: Done) -> int:
    """How many samples were read before `step`: also where one of another size has trained the first steps."""
    whole = done.samples + (step - 1 - done.step) * job.step_samples
    return whole if job.samples is None else min(whole, job.samples)


def last_step(job: Job, done: Done) -> int:
    """The run's last step: the job's `steps`, or the step in which `samples` run out."""
    if job.samples is None:
        return job.steps
    return min(job.steps, done.step + -(-max(job.samples - done.samples, 0) // job.step_samples))


def share(job: Job, step: int, rank: int, done: Done) -> Share:
    """This rank's part of step `step` (from 1). Rounds follow each other in the order of the samples, ranks within a round.

    Every rank has the same number of rounds; only in the last round of the run's last step can ranks get fewer samples than
    micro_batch, or none.
    """
    first = before(job, step, done)
    count = before(job, step + 1, done) - first
    width = job.world_size * job.micro_batch
    rounds = tuple(_round(job, first, count, number, rank) for number in range(-(-count // width)))
    busy = -(-min(count, width) // job.micro_batch)
    return Share(first, count, rounds, job.world_size - busy)


def _round(job: Job, first: int, count: int, number: int, rank: int) -> Round:
    offset = (number * job.world_size + rank) * job.micro_batch
    return Round(first + offset, max(min(job.micro_batch, count - offset), 0))
