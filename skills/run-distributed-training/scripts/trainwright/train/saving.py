# train/saving.py without its comments
from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainwright.errors import UserError
from trainwright.job import Job
from trainwright.train import checkpoint, watchdog, world
from trainwright.train.checkpoint import Resumed
from trainwright.train.local_sgd import LocalSGD
from trainwright.train.samples import Done, before

GRACE_VARIABLE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
MARGIN_S = 0.5
FREE: tuple[str, ...] = ("run_dir", "timeout_s", "resume", "init_from", "checkpoint_every", "keep_checkpoints", "memory_cap_bytes")
FREE += ("track_memory_steps", "model", "backend_config", "world_size")
HORIZON = ("steps", "samples")


class Stopped(Exception):

    def __init__(self, number: int, step: int, path: Path) -> None:
        self.number = number
        name = signal.Signals(number).name if number in signal.Signals._value2member_map_ else f"signal {number}"
        self.name = name
        super().__init__(f"ended by {name} after step {step}, which is saved in {path}")


@dataclass(slots=True)
class Saver:

    job: Job
    model: nn.Module
    optimizer: Optimizer
    name: str
    device: torch.device
    done: Done = field(default_factory=Done)
    saved: int = 0

    def resume(self, loss: Callable[[], Tensor]) -> Resumed:
        checkpoint.settle(self.model, loss)
        found = checkpoint.resume(self.job.resume, self.model, self.optimizer, strategy=self._placement())
        samples = found.facts.get("samples")
        if type(samples) is not int or samples < 0:
            raise UserError(f"{found.path} does not say how many samples were read")
        self.done, self.saved = Done(found.step, samples), found.step
        if isinstance(self.model, LocalSGD):
            self.model.apart = int(found.facts.get("apart") or 0)
        changed = changes(self.job, found.facts.get("job"))
        why = found.why or ("PowerSGD's memory of what it left out is not saved" if self._compressed(found.step) else "")
        return dataclasses.replace(found, exact=not why and not changed, why=why, changed=changed)

    def _compressed(self, step: int) -> bool:
        return self.name == "ddp" and self.job.comm_hook == "powersgd" and step >= self.job.powersgd_start

    def finished(self, step: int, last: int) -> dict[str, Any] | None:
        every = self.job.checkpoint_every
        if not every:
            return None
        asked = world.any_rank(watchdog.asked(), self.device)
        row = None
        if asked or step % every == 0 or step == last:
            row = self._save(step)
        if asked:
            raise Stopped(asked, step, Path(row["path"] if row else ""))
        return row

    def _save(self, step: int) -> dict[str, Any]:
        start = time.perf_counter()
        facts: dict[str, Any] = {"job": self.job.to_json(), "samples": before(self.job, step + 1, self.done)}
        apart = isinstance(self.model, LocalSGD)
        if isinstance(self.model, LocalSGD):
            facts["apart"] = self.model.apart
        path = checkpoint.save(
            self.job.run_dir,
            step,
            self.model,
            self.optimizer,
            facts,
            strategy=self._placement(),
            keep=self.job.keep_checkpoints,
            per_rank=apart,
        )
        self.saved = step
        return {"step": step, "path": str(path), "seconds": time.perf_counter() - start}

    def _placement(self) -> str:
        hook = f" with {self.job.comm_hook}" if self.job.comm_hook != "none" and self.name == "ddp" else ""
        return f"{self.name}{hook}"


def changes(job: Job, then: Any) -> tuple[str, ...]:
    if not isinstance(then, Mapping):
        return ("the job: not recorded",)
    free = (*FREE, *HORIZON) if job.schedule == "constant" else FREE
    now = dataclasses.asdict(job)
    before = {f.name: then.get(f.name, f.default) for f in dataclasses.fields(job)}
    return tuple(f"{name}: {before[name]!r:.60} -> {now[name]!r:.60}" for name in now if name not in free and now[name] != before[name])


def grace_s() -> float:
    try:
        return max(float(os.environ.get(GRACE_VARIABLE, "30")) - MARGIN_S, 0.0)
    except ValueError:
        return 0.0
