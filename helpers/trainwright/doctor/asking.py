"""Other programs asked what they see, each in a process of its own with a time limit: the job's interpreter, and nvidia-smi."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trainwright
from trainwright.errors import UserError
from trainwright.interpreters import with_package
from trainwright.probe import environment

# Distributions that rules and advice speak of, by the names that packaging compares by.
PACKAGES = (
    *("torch", "torchvision", "torchaudio", "numpy", "accelerate", "deepspeed", "transformers", "datasets", "peft", "trl"),
    *("intel-extension-for-pytorch", "oneccl-bind-pt", "oneccl-bindings-for-pytorch", "oneccl", "mpi4py", "horovod", "apex"),
    *("triton", "triton-xpu", "pytorch-triton-xpu", "torchcomms", "torchao", "flash-attn", "bitsandbytes", "transformer-engine"),
    *("megatron-core", "torchtitan", "lightning", "optimum-habana", "habana-torch-plugin", "torch-xla", "ezpz", "ezpz-ai"),
    *("nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-resiliency-ext", "packaging", "pyyaml", "psutil"),
)
_MOST = 2**20  # bytes of an answer


@dataclass(slots=True)
class Asked:
    """A program that was started; `answer` waits for it. Its process group is ended when the time is over."""

    argv: list[str]
    process: subprocess.Popen[bytes]
    finished: bool = True
    returncode: int | None = None

    def answer(self, seconds: float) -> tuple[str, str]:
        """What it wrote to stdout and stderr within `seconds`; `finished` and `returncode` then say how it ended."""
        try:
            out, err = self.process.communicate(timeout=max(0.01, seconds))
        except subprocess.TimeoutExpired:
            self.finished = False
            out, err = self._stopped()
        self.returncode = self.process.returncode
        return out[:_MOST].decode("utf-8", "replace"), err[-_MOST:].decode("utf-8", "replace")

    def _stopped(self) -> tuple[bytes, bytes]:
        with suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)  # its own session, with all that it started
        try:
            return self.process.communicate(timeout=1)
        except subprocess.TimeoutExpired as late:  # somebody outside the group holds the pipe
            return late.stdout or b"", late.stderr or b""


def ask(argv: list[str]) -> Asked:
    """Start a program in a session of its own; raises OSError where it cannot be started."""
    quiet = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONSAFEPATH": "1", "PYTHONIOENCODING": "utf-8", "PYTHONWARNINGS": "ignore"}
    with environment(quiet):
        pipe = subprocess.PIPE
        started = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True)
    return Asked(argv, started)


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


def ask_interpreter(python: str, import_torch: bool = True) -> Asked:
    """Start the worker in `python`, by its path: that interpreter's own view, with nothing of ours on its path."""
    worker = Path(next(iter(trainwright.__path__))).resolve() / "train" / "stack.py"
    try:
        return ask([python, str(worker), *PACKAGES, *([] if import_torch else ["--packages-only"])])
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
        last = (err.strip().splitlines() or [ended(asked.returncode)])[-1]
        told.trouble = f"it had not answered after {seconds:.1f} s" if not asked.finished else f"it told nothing: {last[:300]}"
    elif import_torch and told.packages["torch"]["state"] != "absent" and not told.torch:
        told.torch = {"state": "ended", "error": ended(asked.returncode)} if asked.finished else {"state": "unfinished"}
    return told


def _take(told: Told, line: str) -> None:
    """Keep a stage's answer; what torch or a start-up file prints beside it is passed over."""
    try:
        row = json.loads(line)
    except ValueError:
        return
    if not isinstance(row, dict):
        return
    if row.get("stage") == "packages" and isinstance(row.get("torch"), dict) and isinstance(row.get("versions"), dict):
        told.packages = row
    elif row.get("stage") == "torch" and row.get("state") in ("ok", "broken"):
        told.torch = row


def ended(returncode: int | None) -> str:
    """-11 -> "signal 11 (SIGSEGV)", 3 -> "exit code 3, without a word"."""
    if returncode is not None and returncode < 0:
        try:
            return f"signal {-returncode} ({signal.Signals(-returncode).name})"
        except ValueError:
            return f"signal {-returncode}"
    return f"exit code {returncode}, without a word"


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
