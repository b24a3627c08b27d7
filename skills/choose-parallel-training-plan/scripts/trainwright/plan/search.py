# plan/search.py without its comments
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from trainwright.cost.footprint import Footprint
from trainwright.cost.split import Stage, split, uniform
from trainwright.cost.step import StepModel
from trainwright.errors import UserError
from trainwright.parallel import Plan
from trainwright.plan import space as spaces
from trainwright.plan.space import LARGEST_SPACE, Job, Space, Tally

FRONT = 3
LIGHTER = 0.85
NEAR_ENOUGH = 0.10
Objective = Literal["time", "memory"]
Adapt = Callable[[Plan], Plan | str]
TIGHT = 0.9
PAIR_SPREAD = 0.10
TIE, SURE = 0.05, 0.80
NEAR = 1e-9


@dataclass(frozen=True, slots=True)
class Priced:

    plan: Plan
    seconds: float
    bytes: float


@dataclass(slots=True)
class Found:

    fitting: list[Priced]
    rejected: dict[str, int]
    size: int
    priced: int
    space: Space
    complete: bool
    notes: list[str] = field(default_factory=list)
    capacity: float = math.inf

    @property
    def best(self) -> Priced | None:
        return self.fitting[0] if self.fitting else None

    @property
    def fallback(self) -> Priced | None:
        plain, best = self.simplest, self.best
        if plain is None or best is None or self.has_room(plain):
            return plain
        slow = [one.seconds for one in (plain, best)]
        roomy = [one for one in self.fitting if self.has_room(one) and (one.seconds <= slow[0] or ties(one.seconds / slow[1] - 1))]
        return _simplest(roomy) or plain

    @property
    def simplest(self) -> Priced | None:
        return _simplest(self.fitting)

    def has_room(self, one: Priced) -> bool:
        return one.bytes <= TIGHT * self.capacity

    def front(self) -> list[Priced]:
        found: list[Priced] = []
        for one in sorted(self.fitting, key=lambda one: one.seconds):
            if not found or one.bytes < found[-1].bytes * (1 - 0.02):
                found.append(one)
        return found

    def alternatives(self) -> list[Priced]:
        front = [one for one in self.front() if one is not self.best]
        step = max(len(front) / FRONT, 1)
        return [front[int(i * step)] for i in range(min(FRONT, len(front)))]

    def lighter(self, than: Priced) -> Priced | None:
        light = [one for one in self.fitting if one.bytes <= LIGHTER * than.bytes]
        return min(light, key=lambda one: (len(differences(one.plan, than.plan)), one.seconds, one.plan.simplicity()), default=None)


def _simplest(plans: Sequence[Priced]) -> Priced | None:
    return min(plans, key=lambda one: (kind_of(one.plan), one.seconds, one.plan.simplicity()), default=None)


def chance(gain: float) -> float:
    return 0.5 * (1 + math.erf(math.log(1 + gain) / PAIR_SPREAD / math.sqrt(2)))


def ties(gain: float) -> bool:
    return gain < TIE or chance(gain) < SURE


def differences(one: Plan, other: Plan) -> list[str]:
    return [name for name in Plan.__slots__ if name != "layer_split" and getattr(one, name) != getattr(other, name)]


@dataclass(frozen=True, slots=True)
class Misfit:

    number: int
    name: str
    needed: str
    capacity: str


def kind_of(plan: Plan) -> tuple[int, ...]:
    axes = (plan.pp > 1, plan.cp > 1, plan.ep > 1, plan.tp > 1)
    extras = (plan.virtual_stages > 1, plan.offload != "none", plan.dp_replicate > 1 and plan.dp_shard > 1, plan.zero_stage)
    return (*map(int, axes), *map(int, extras), int(plan.recompute != "none"), int(plan.loss != "eager"))


def search(
    job: Job,
    model: StepModel,
    footprint: Footprint,
    capacity: float,
    space: Space | None = None,
    candidates: Sequence[Plan] | None = None,
    adapt: Adapt | None = None,
    objective: Objective = "time",
) -> Found:
    spaces.judged(job)
    space, notes, complete = (space or Space(), [], True) if candidates is not None else bounded(job, space or Space())
    tally, fitting, size, priced, seen = Tally(), [], 0, 0, set()
    for plan in candidates if candidates is not None else spaces.plans(job, space, tally):
        size += 1
        other = adapt(plan) if adapt else plan
        if isinstance(other, str):
            tally.drop(other)
            continue
        if adapt and other in seen:
            tally.drop("the same as another plan on this backend")
            continue
        if adapt:
            seen.add(other)
        priced += 1
        one = price(other, job, model, footprint, capacity, tally)
        if one is not None:
            fitting.append(one)
    fitting.sort(key=lambda one: (one.seconds, one.plan.simplicity()))
    ordered = _by(objective, _stable(fitting))
    return Found(ordered, dict(sorted(tally.rejected.items())), size, priced, space, complete, notes, capacity)


def _by(objective: Objective, fitting: list[Priced]) -> list[Priced]:
    if objective == "time" or not fitting:
        return fitting
    near = [one for one in fitting if one.seconds <= fitting[0].seconds * (1 + NEAR_ENOUGH)]
    near.sort(key=lambda one: (one.bytes, one.seconds, one.plan.simplicity()))
    return [*near, *fitting[len(near) :]]


def _stable(fitting: list[Priced]) -> list[Priced]:
    if not fitting:
        return fitting
    tied = [one for one in fitting if one.seconds <= fitting[0].seconds * (1 + NEAR)]
    tied.sort(key=lambda one: one.plan.simplicity())
    return [*tied, *fitting[len(tied) :]]


def bounded(job: Job, space: Space) -> tuple[Space, list[str], bool]:
    whole = spaces.size(job, space)
    if whole <= LARGEST_SPACE:
        return space, [], True
    thinner = [
        replace(space, micro_batches=(space.micro_batches or (1, 2, 4, 8))[:3]),
        replace(space, micro_batches=(space.micro_batches or (1, 2))[:2], virtual_stages=(1, 2), recomputes=space.recomputes[-2:]),
        replace(
            space, micro_batches=(1,), virtual_stages=(1,), recomputes=space.recomputes[-1:], losses=space.losses[-1:], offloads=("none",)
        ),
    ]
    for thin in thinner:
        left = spaces.size(job, thin)
        if left <= LARGEST_SPACE:
            return (
                thin,
                [f"{whole:,} plans are more than {LARGEST_SPACE:,}: a thinner space of {left:,} was searched, and no optimum is proven"],
                False,
            )
    raise UserError(f"{whole:,} plans are too many to price; bound the space (--max-tp, --max-pp, --micro-batches)")


def price(plan: Plan, job: Job, model: StepModel, footprint: Footprint, capacity: float, tally: Tally) -> Priced | None:
    if plan.layer_split is not None:
        return _given(plan, model, footprint, capacity, tally)
    states, kept, stages = footprint.room(plan, capacity)
    if plan.virtual_stages > 1:
        return _interleaved(plan, job, model, states, kept, stages, capacity, footprint, tally)
    head = model.head(plan).both
    stages[-1] = replace(stages[-1], seconds=head)
    found = _split(plan, model, states, kept, stages)
    if found is None:
        tally.drop(_why(states, kept, stages, job.network.num_layers))
        return None
    used = _used(states, kept, stages, found, model, capacity)
    chosen = replace(plan, layer_split=found) if plan.pp > 1 else plan
    return Priced(chosen, model.seconds(plan, found), used)


def _given(plan: Plan, model: StepModel, footprint: Footprint, capacity: float, tally: Tally) -> Priced | None:
    used = footprint.peak(plan).total
    if used > capacity:
        tally.drop("memory: a stage of the given split does not fit")
        return None
    return Priced(plan, model.seconds(plan, model.split(plan)), used)


def _split(plan: Plan, model: StepModel, states: list[float], kept: list[float], stages: list[Stage]) -> tuple[int, ...] | None:
    network = model.network
    passes = [model.layer_pass(kind, plan).both for kind in range(len(network.kinds))]
    if len(passes) == 1:
        return uniform(network.num_layers, passes[0], states[0], kept[0], stages)
    order = network.order
    return split([passes[k] for k in order], [states[k] for k in order], [kept[k] for k in order], stages)


def _interleaved(
    plan: Plan,
    job: Job,
    model: StepModel,
    states: list[float],
    kept: list[float],
    stages: list[Stage],
    capacity: float,
    footprint: Footprint,
    tally: Tally,
) -> Priced | None:
    size = job.network.num_layers // plan.chunks
    chunks = (size,) * plan.chunks
    if len(states) == 1:
        used = _used(states, kept, stages, (size * plan.virtual_stages,) * plan.pp, model, capacity)
    else:
        used = footprint.peak(replace(plan, layer_split=chunks)).total
    if used > capacity:
        tally.drop("memory: a stage of equal chunks does not fit")
        return None
    return Priced(replace(plan, layer_split=chunks), model.seconds(plan, chunks), used)


def _used(states: list[float], kept: list[float], stages: list[Stage], found: tuple[int, ...], model: StepModel, capacity: float) -> float:
    fullest, at = -math.inf, 0
    for stage, count in zip(stages, found, strict=True):
        counts = model.network.counts(at, at + count)
        layers = sum(n * (s + stage.held * k) for n, s, k in zip(counts, states, kept, strict=True))
        fullest = max(fullest, stage.bytes + layers - stage.cap)
        at += count
    return capacity + fullest


def _why(states: list[float], kept: list[float], stages: list[Stage], layers: int) -> str:
    worst = [stage.bytes + layers / len(stages) * (max(states) + stage.held * max(kept)) - stage.cap for stage in stages]
    at = worst.index(max(worst))
    name = "the first stage" if at == 0 else "the last stage" if at == len(stages) - 1 else "a stage between"
    return f"memory: {name if len(stages) > 1 else 'the rank'} does not fit"
