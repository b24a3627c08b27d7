"""Job: what is asked of the workers, and job.json, the file that carries it to them."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from typing import Any, get_type_hints

from trainwright.document import load_mapping
from trainwright.errors import UserError
from trainwright.output import write_text

SCHEMA = "trainwright/job/1"
DEVICES = ("cpu", "cuda", "xpu")
MOST_RANKS = 4096  # on one host; more is a slip of the finger


@dataclass(frozen=True, slots=True)
class Job:
    """One training job on this host. Paths are absolute; sizes in bytes, times in seconds, batch and steps in counts.

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

    def __post_init__(self) -> None:
        """Raises UserError: one line that names every field that is wrong."""
        wrong = [*_types(self)]
        wrong += [] if wrong else [*_ranges(self)]
        if wrong:
            raise UserError(f"this job cannot run: {'; '.join(wrong)}")

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


_WORDS = {str: "a text", int: "a whole number", float: "a number", int | None: "a whole number or null"}


def _types(job: Job) -> list[str]:
    return [
        f"{name} is {value!r:.60}, not {_WORDS[kind]}"
        for name, kind in get_type_hints(Job).items()
        if not _is(value := getattr(job, name), kind)
    ]


def _is(value: Any, kind: Any) -> bool:
    if kind == int | None:
        return value is None or type(value) is int
    return type(value) is kind or (kind is float and type(value) is int)


def _ranges(job: Job) -> list[str]:
    """What is wrong with values that have the right type."""
    at_least = {"world_size": 1, "steps": 1, "micro_batch": 1, "seq_len": 2, "seed": 0, "track_memory_steps": 0}
    wrong = [f"{name} {getattr(job, name)!r:.40} is less than {least}" for name, least in at_least.items() if getattr(job, name) < least]
    if job.world_size > MOST_RANKS:
        wrong.append(f"world_size {job.world_size!r:.40} is more than {MOST_RANKS} ranks on one host")
    if job.device not in DEVICES:
        wrong.append(f"device {job.device!r:.40} is not one of {', '.join(DEVICES)}")
    if job.memory_cap_bytes is not None and job.memory_cap_bytes < 1:
        wrong.append(f"memory_cap_bytes {job.memory_cap_bytes!r:.40} is not positive")
    wrong += [f"{name} is larger than any job needs" for name in (*at_least, "memory_cap_bytes") if (getattr(job, name) or 0) >= 2**60]
    wrong += [
        f"{name} {value!r:.40} is not a positive number"
        for name, value in (("learning_rate", job.learning_rate), ("timeout_s", job.timeout_s))
        if not 0 < value < 1e18  # NaN and infinity are neither
    ]
    wrong += [
        f"{name} {path!r:.200} is not an absolute path"
        for name, path in (("model", job.model), ("backend_config", job.backend_config))
        if not os.path.isabs(path)
    ]
    return wrong
