"""Job: what is asked of the workers, and job.json, the file that carries it to them."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_type_hints

from trainwright.document import load_mapping
from trainwright.errors import UserError
from trainwright.output import write_text
from trainwright.strategy import Strategy

SCHEMA = "trainwright/job/1"
MOST_RANKS = 4096  # on one host; more is a slip of the finger

DEVICES = ("cpu", "cuda", "xpu")
SCHEDULES = ("constant", "cosine", "linear")
DECAYS = ("all", "matrices")
COMM_HOOKS = ("none", "fp16", "bf16", "powersgd")
COMPILERS = ("none", "eager", "aot_eager", "inductor")
MODALITIES = ("text", "text_image", "text_ts", "text_graph", "text_vla")
REGIMES = ("projector_only", "encoder_projector", "e2e")
VARIANTS = ("", "BASE", "W2X", "W4X", "D2X", "D4X")
TOKENS = ("bytes", "counted", "ids")
ORDERS = ("walk", "study")


@dataclass(frozen=True, slots=True)
class Job:
    """One training job on this host. Paths are absolute; sizes in bytes, times in seconds, batch and steps in counts.

    A step reads micro_batch x world_size x accumulation samples; sample i is the same whatever the number of ranks.
    `track_memory_steps` first steps run under a tensor tracker, which slows them: they are no throughput.
    """

    model: str
    backend_config: str
    world_size: int
    device: str = "cpu"
    steps: int = 12
    micro_batch: int = 2
    seq_len: int = 128
    learning_rate: float = 1e-3
    seed: int = 0
    memory_cap_bytes: int | None = None
    track_memory_steps: int = 0
    timeout_s: float = 300.0
    run_dir: str = ""
    # The batch: how many samples a step reads, and the whole run. Where `samples` is not a multiple of the step's, the
    # last step is short: the last ranks read fewer samples or none, and every sample still weighs the same.
    accumulation: int = 1
    global_batch: int | None = None  # where given it has to be micro_batch x world_size x accumulation
    samples: int | None = None  # the run ends when so many are read, if `steps` does not end it before
    # The update: AdamW on a schedule that ends at the run's own last step.
    clip_norm: float | None = None
    schedule: str = "constant"
    warmup_steps: int = 0
    min_lr_ratio: float = 0.0  # the last step's learning rate as a share of `learning_rate`
    weight_decay: float = 0.01
    decay: str = "all"  # what decays: all, or matrices (every parameter of two or more axes)
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    # How the ranks talk. The first five are DDP's own.
    static_graph: bool = False
    find_unused_parameters: bool = False
    bucket_mb: float = 25.0
    comm_hook: str = "none"
    powersgd_rank: int = 1
    powersgd_start: int = 1000  # the step from which PowerSGD compresses; plain all-reduce before
    local_sgd_steps: int = 0  # n: no gradient is shared, every n steps the parameters are averaged; 0: DDP
    whole_gradients: bool = False  # FSDP, HSDP: sum whole gradients over the rounds and cut them once: less traffic, more memory
    # Memory for time, and time for compilation.
    activation_checkpoint_every: int | None = None  # n: every n-th block; 0: none; null: as the backend config says
    compile: str = "none"
    # What is kept.
    checkpoint_every: int = 0  # steps; 0: none. The last step is saved too
    keep_checkpoints: int = 2  # the newest ones; 0: all
    resume: str = ""  # a run's folder or one of its checkpoints; "": from the start
    init_from: str = ""  # a checkpoint whose weights the run starts with, at step 0 and without its optimizer
    # Data and model regime.
    data: str = ""  # a file or folder; "": the sources of Python's standard library
    tokens: str = "bytes"
    order: str = "walk"
    single_pass: bool = False
    modality: str = "text"
    shards: int = 2
    regime: str = "e2e"
    variant: str = ""
    eval_every: int = 0
    eval_at: str = ""  # steps after which to evaluate as well: 100,300
    eval_windows: int = 0

    def __post_init__(self) -> None:
        """Raises UserError: one line that names every field that is wrong."""
        wrong = [*_types(self)]
        wrong += [] if wrong else [*_ranges(self), *_choices(self)]
        wrong += [] if wrong else [*_together(self)]
        if wrong:
            raise UserError(f"this job cannot run: {'; '.join(wrong)}")

    @property
    def eval_steps(self) -> frozenset[int]:
        return frozenset(int(word) for word in self.eval_at.split(",") if word)

    @property
    def step_samples(self) -> int:
        """Samples that all ranks together read in a full step."""
        return self.micro_batch * self.world_size * self.accumulation

    @property
    def last_step(self) -> int:
        """The number of the run's last step: `steps`, or the one in which `samples` run out. Schedules end here."""
        return self.steps if self.samples is None else min(self.steps, -(-self.samples // self.step_samples))

    def placed(self, strategy: Strategy) -> Strategy:
        """The strategy of the backend config with what this job adds to it; raises UserError where the two exclude each other."""
        if self.local_sgd_steps:
            if strategy.kind != "ddp":
                raise UserError(f"local_sgd_steps averages whole models, and the backend config asks for {strategy.name}; use ddp")
            strategy = dataclasses.replace(strategy, kind="local_sgd")
        if self.activation_checkpoint_every is None:
            return strategy
        every = self.activation_checkpoint_every
        return dataclasses.replace(strategy, activation_checkpointing=every > 0, checkpoint_every=max(every, 1))

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **dataclasses.asdict(self)}

    def write(self, path: str) -> None:
        write_text(path, json.dumps(self.to_json(), indent=1) + "\n")


def read(path: str) -> Job:
    """The Job of a job.json; raises UserError for a file that is not one, or a field that is missing, unknown or wrong."""
    rows = dict(load_mapping(path, "json").value)
    if rows.pop("schema", None) != SCHEMA:
        raise UserError(f'{path}: is no job file; "schema" has to be "{SCHEMA}"')
    fields = {field.name: field for field in dataclasses.fields(Job)}
    missing = [name for name, field in fields.items() if field.default is dataclasses.MISSING and name not in rows]
    unknown = [name for name in rows if name not in fields]
    wrong = [f"{name} is missing" for name in missing] + [f"{name[:60]!r} is no field of a job" for name in unknown]
    if wrong:
        raise UserError(f"{path}: {'; '.join(wrong)}")
    try:
        return Job(**rows)
    except UserError as problem:
        raise UserError(f"{path}: {problem}") from None


# --- what a job may say ---------------------------------------------------------------------------------------------

_WORDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
_AT_LEAST = {
    **dict.fromkeys(("world_size", "steps", "micro_batch", "accumulation", "powersgd_rank", "shards", "samples", "global_batch"), 1),
    **dict.fromkeys(("seed", "track_memory_steps", "warmup_steps", "local_sgd_steps", "activation_checkpoint_every"), 0),
    **dict.fromkeys(("checkpoint_every", "keep_checkpoints", "eval_every", "eval_windows"), 0),
    **{"seq_len": 2, "powersgd_start": 2, "memory_cap_bytes": 1},
}
_POSITIVE = ("learning_rate", "timeout_s", "clip_norm", "bucket_mb", "eps")
_SHARES = {"min_lr_ratio": (0.0, 1.0), "weight_decay": (0.0, 1e18), "beta1": (0.0, 1.0 - 1e-12), "beta2": (0.0, 1.0 - 1e-12)}
_CHOICES = {
    "device": DEVICES,
    "schedule": SCHEDULES,
    "decay": DECAYS,
    "comm_hook": COMM_HOOKS,
    "compile": COMPILERS,
    "modality": MODALITIES,
    "regime": REGIMES,
    "variant": VARIANTS,
    "tokens": TOKENS,
    "order": ORDERS,
}


def _types(job: Job) -> list[str]:
    return [
        f"{name} is {value!r:.60}, not {_word(kind)}"
        for name, kind in get_type_hints(Job).items()
        if not _is(value := getattr(job, name), kind)
    ]


def _kinds(kind: Any) -> tuple[Any, ...]:
    """int | None -> (int, NoneType); int -> (int,)."""
    return getattr(kind, "__args__", (kind,))


def _word(kind: Any) -> str:
    first, *more = _kinds(kind)
    return _WORDS[first] + (" or null" if more else "")


def _is(value: Any, kind: Any) -> bool:
    kinds = _kinds(kind)
    return type(value) in kinds or (float in kinds and type(value) is int)


def _ranges(job: Job) -> Iterator[str]:
    """What is wrong with numbers that have the right type; null is in order where the type allows it."""
    for name, least in _AT_LEAST.items():
        value = getattr(job, name)
        if value is not None and value < least:
            yield f"{name} {value!r:.40} is {'not positive' if name == 'memory_cap_bytes' else f'less than {least}'}"
        elif value is not None and value >= 2**60:
            yield f"{name} is larger than any job needs"
    if job.world_size > MOST_RANKS:
        yield f"world_size {job.world_size!r:.40} is more than {MOST_RANKS} ranks on one host"
    for name in _POSITIVE:
        if (value := getattr(job, name)) is not None and not 0 < value < 1e18:  # NaN and infinity are neither
            yield f"{name} {value!r:.40} is {'larger than any job needs' if value >= 1e18 else 'not a positive number'}"
    for name, (low, high) in _SHARES.items():
        if not low <= getattr(job, name) <= high:
            yield f"{name} {getattr(job, name)!r:.40} is not between {low:g} and {high:g}"


def _choices(job: Job) -> Iterator[str]:
    """What is wrong with words and paths."""
    if not re.fullmatch(r"(\d{1,15}(,\d{1,15})*)?", job.eval_at, re.ASCII):
        yield f"eval_at {job.eval_at!r:.40} is no list of steps such as 100,300"
    for name, choices in _CHOICES.items():
        if getattr(job, name) not in choices:
            yield f"{name} {getattr(job, name)!r:.40} is not one of {', '.join(filter(None, choices))}"
    for name in ("model", "backend_config", "data", "resume", "init_from", "run_dir"):
        if "\0" in getattr(job, name):
            yield f"{name} {getattr(job, name)!r:.200} holds a zero byte, which no path has"
    for name in ("model", "backend_config"):
        if not os.path.isabs(getattr(job, name)):
            yield f"{name} {getattr(job, name)!r:.200} is not an absolute path"
    for name in ("data", "resume", "init_from"):
        if getattr(job, name) and not os.path.isabs(getattr(job, name)):
            yield f"{name} {getattr(job, name)!r:.200} is not an absolute path"


def _together(job: Job) -> Iterator[str]:
    """What is wrong with fields that are each in order."""
    if job.global_batch not in (None, job.step_samples):
        product = f"micro_batch {job.micro_batch} x world_size {job.world_size} x accumulation {job.accumulation} = {job.step_samples}"
        yield f"global_batch {job.global_batch} is not {product}"
    if job.warmup_steps >= job.last_step and job.warmup_steps:
        yield f"warmup_steps {job.warmup_steps} leave nothing of the {job.last_step} steps"
    if job.modality == "text" and (job.regime != "e2e" or job.variant):
        yield "regime and variant are of a projector model, and modality text has none; name another modality"
    if job.modality != "text" and job.data:
        yield f"modality {job.modality} draws its own signals and texts; data is for modality text"
    if job.local_sgd_steps and (job.comm_hook != "none" or job.static_graph or job.find_unused_parameters):
        yield "local_sgd_steps shares no gradients, so comm_hook, static_graph and find_unused_parameters mean nothing with it"
