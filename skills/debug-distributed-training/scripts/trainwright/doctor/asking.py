"""Other programs asked what they see, each in a process of its own with a time limit: the job's interpreter, and nvidia-smi."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trainwright
from trainwright.doctor.process import Asked, ask
from trainwright.environment import from_json
from trainwright.errors import UserError
from trainwright.interpreters import with_package

# Distributions that rules and advice speak of, by the names that packaging compares by.
PACKAGES = (
    *("torch", "torchvision", "torchaudio", "numpy", "accelerate", "deepspeed", "transformers", "datasets", "peft", "trl"),
    *("intel-extension-for-pytorch", "oneccl-bind-pt", "oneccl-bindings-for-pytorch", "oneccl", "mpi4py", "horovod", "apex"),
    *("triton", "triton-xpu", "pytorch-triton-xpu", "torchcomms", "torchao", "flash-attn", "bitsandbytes", "transformer-engine"),
    *("megatron-core", "torchtitan", "lightning", "optimum-habana", "habana-torch-plugin", "torch-xla", "ezpz", "ezpz-ai"),
    *("nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-resiliency-ext", "packaging", "pyyaml", "psutil"),
)


def interpreter(wanted: str | None) -> tuple[str, str]:
    """The job's interpreter and why it is this one; raises UserError for one that is named and cannot be run."""
    if wanted is not None:
        found = shutil.which(wanted)
        if not found:
            raise UserError(f"--python {wanted[:200]}: there is no such program to run")
        return os.path.abspath(found), "named with --python"
    if importlib.util.find_spec("torch") is not None:
        return sys.executable, "it runs this command, and has torch"
    other = with_package("torch")
    return (other, "the first other one that has torch") if other else (sys.executable, "it runs this command; none with torch is seen")


def ask_interpreter(python: str, seconds: float, import_torch: bool = True) -> Asked:
    """Start the worker in `python`, by its path: that interpreter's own view, with nothing of ours on its path.

    It ends by itself soon after `seconds`. Raises UserError where `python` cannot be run.
    """
    worker = Path(next(iter(trainwright.__path__))).resolve() / "train" / "stack.py"
    try:
        return ask([python, str(worker), f"--within={int(seconds) + 3}", *PACKAGES, *([] if import_torch else ["--packages-only"])])
    except OSError as problem:
        raise UserError(f"{python} cannot be run: {problem.strerror or problem}") from None


@dataclass(slots=True)
class Told:
    """What the interpreter told: the answers of its stages, and what kept the rest from coming."""

    packages: dict[str, Any] = field(default_factory=dict)
    torch: dict[str, Any] = field(default_factory=dict)
    trouble: str = ""
    seconds: float = 0.0


def interpreter_told(asked: Asked, seconds: float, import_torch: bool = True) -> Told:
    """The stages that came within `seconds`; torch's `state` says how its import ended, where it was asked for."""
    began = time.monotonic()
    out, err = asked.answer(seconds)
    told = Told(seconds=time.monotonic() - began)
    for line in out.splitlines():
        _take(told, line)
    if not told.packages:
        late, ends = f"it had not answered after {seconds:.1f} s", ended(asked.returncode, err)
        told.trouble = f"it told nothing: {ends}" if asked.finished else late
    elif import_torch and told.packages["torch"]["state"] != "absent" and not told.torch:
        told.torch = {"state": "ended", "error": ended(asked.returncode, err)} if asked.finished else {"state": "unfinished"}
    return told


def _take(told: Told, line: str) -> None:
    """Keep a stage's answer, where it is one; what torch or a start-up file prints beside it is passed over."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return
    if not isinstance(row, dict):
        return
    if row.get("stage") == "packages" and isinstance(row.get("torch"), dict) and row["torch"].get("state") in ("absent", "unknown"):
        if _sound({name: row.get(name) for name in ("python", "versions", "user_packages", "unmet", "torch")}):
            told.packages = row
    elif row.get("stage") == "torch" and row.get("state") in ("ok", "broken"):
        torch = {name: row.get(name) for name in ("state", "version", "error", "backends")}
        if _sound({"torch": torch, "devices": row.get("devices")}):
            told.torch = row


def _sound(body: dict[str, Any]) -> bool:
    """Whether each value is of the kind that an environment has; an answer comes out of a process where anything may run."""
    try:
        from_json(body, "the answer")
    except UserError:
        return False
    return True


def ended(returncode: int | None, err: str = "") -> str:
    """-11 -> "signal 11 (SIGSEGV), without a word", 3 -> "exit code 3: the last line that it wrote"."""
    if returncode is None:
        how = "an end that was not seen"
    elif returncode >= 0:
        how = f"exit code {returncode}"
    else:
        names = {number.value: f" ({number.name})" for number in signal.Signals}
        how = f"signal {-returncode}{names.get(-returncode, '')}"
    last = next((line.strip() for line in reversed(err[-10_000:].splitlines()) if line.strip()), "")
    return f"{how}: {last[:300]}" if last else f"{how}, without a word"


def ask_nvidia_smi() -> Asked | None:
    """Start nvidia-smi, where it is on the path."""
    program = shutil.which("nvidia-smi")
    try:
        return ask([program, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]) if program else None
    except OSError:
        return None


def nvidia_smi_told(asked: Asked, seconds: float) -> tuple[list[tuple[str, int | None]], str | None]:
    """(name, memory in bytes) of each device, and the driver's version."""
    out, _ = asked.answer(seconds)
    rows = [[cell.strip() for cell in line.split(",")] for line in out.splitlines()]
    rows = [row for row in rows if len(row) == 3]
    devices = [(name, int(mib) * 2**20 if mib.isdecimal() and len(mib) < 12 else None) for name, mib, _ in rows]
    driver = next((row[2] for row in rows if row[2][:1].isdecimal()), None)
    return devices, driver
