"""The backends that a plan can be written for, by the word of `plan emit`; each writes a file, and reads it back as the same plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from trainwright.emit import accelerate_plan, deepspeed_plan, dtensor, megatron, nanotron, torchtitan
from trainwright.emit.planned import NotExpressibleError, Planned
from trainwright.errors import UserError
from trainwright.model import ModelSpec
from trainwright.parallel import Plan

Adapt = Callable[[Plan, ModelSpec | None], Plan]


def _as_it_is(plan: Plan, model: ModelSpec | None) -> Plan:
    return plan


@dataclass(frozen=True, slots=True)
class Backend:
    """One way to write a plan: its title with a version, the usual name of its file, writer and reader.

    `adapt` gives a plan with the fields that the backend leaves no choice in (types of gradients, who places layers) as it has them.
    """

    title: str
    file: str
    write: Callable[[Planned], str]
    read: Callable[[str], Planned]
    adapt: Adapt = _as_it_is


_TITAN = torchtitan.VERSIONS
_python = partial(torchtitan.write, generation="python")
BACKENDS: dict[str, Backend] = {
    "megatron": Backend(megatron.VERSION, "megatron.args", megatron.write, megatron.read),
    "torchtitan-toml": Backend(_TITAN["toml"], "torchtitan.toml", torchtitan.write, torchtitan.read, torchtitan.adapt),
    "torchtitan-python": Backend(_TITAN["python"], "torchtitan_plan.py", _python, torchtitan.read),
    "accelerate": Backend(accelerate_plan.VERSION, "accelerate.yaml", accelerate_plan.write, accelerate_plan.read, accelerate_plan.adapt),
    "deepspeed": Backend(deepspeed_plan.VERSION, "deepspeed.json", deepspeed_plan.write, deepspeed_plan.read, deepspeed_plan.adapt),
    "nanotron": Backend(nanotron.VERSION, "nanotron.yaml", nanotron.write, nanotron.read, nanotron.adapt),
    "dtensor": Backend(dtensor.VERSION, "plan_dtensor.py", dtensor.write, dtensor.read),
}


def backend(name: str) -> Backend:
    """The backend of that name; raises UserError."""
    if name not in BACKENDS:
        raise UserError(f"there is no backend {name[:60]!r}; known are {', '.join(BACKENDS)}")
    return BACKENDS[name]


def emit(name: str, job: Planned) -> str:
    """The text for a backend, read back once: raises NotExpressibleError, and a fault of ours where it does not say the same plan."""
    one = backend(name)
    text = one.write(job)
    if one.read(text) != job.normal():
        raise AssertionError(f"{name} wrote a plan that does not read back as itself: {job.plan.name}")
    return text


def expressible(name: str, job: Planned) -> tuple[str, ...]:
    """Why the backend cannot express the job; () where it can."""
    try:
        backend(name).write(job)
    except NotExpressibleError as problem:
        return problem.reasons
    return ()


def adapted(name: str, job: Planned) -> Planned:
    """The job as the backend would run it where it leaves no choice."""
    return replace(job, plan=backend(name).adapt(job.plan, job.model))
