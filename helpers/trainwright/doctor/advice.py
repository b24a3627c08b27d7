"""What is missing, what takes the place of what is gone, and the one command to type next."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from trainwright.device_names import match_device_name
from trainwright.environment import Device, Environment
from trainwright.errors import MissingPackageError
from trainwright.invocation import command_line
from trainwright.report import Finding, Severity

_MUCH = 60.0  # seconds in which a sound torch imports, also from a parallel file system
# Commands that are named next and that the skill with doctor does not carry: their module, and who has them.
FACES = {"advise": ("trainwright.advise.command", "the skill distributed-strategy"), "demo": ("trainwright.demo", "the repository")}
_ASK_FOR_A_NODE = {
    "pbs": "qsub -I -A PROJECT -l select=1 -l walltime=00:30:00",
    "slurm": "salloc -N 1 -t 00:30:00",
    "lsf": "bsub -Is -nnodes 1 -W 30 bash",
    "flux": "flux alloc -N 1 -t 30m",
}


@dataclass(frozen=True, slots=True)
class Missing:
    """A package that is not there: what needs it, and what to do instead; `command` is None where nothing has to be done."""

    name: str
    needed_for: str
    instead: str
    command: str | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def missing(environment: Environment, python: str, stack: str | None) -> Iterator[Missing]:
    """Packages that are not there and that somebody will look for."""
    if importlib.util.find_spec("yaml") is None:
        line = f"{shlex.quote(sys.executable)} -m pip install pyyaml"
        yield Missing(
            "PyYAML", "reading YAML configs and the table of hardware, in the Python of this command", "JSON inputs work without", line
        )
    if not environment.versions and environment.torch.state == "unknown":
        return  # the interpreter told nothing: what it lacks is not known
    pip = f"{shlex.quote(python)} -m pip install"
    if environment.torch.state == "absent":
        yield Missing("torch", "launch --execute, demo, bench", stack or "a wheel for this machine's devices", stack or f"{pip} torch")
    elif not environment.has("accelerate"):
        yield Missing(
            "accelerate",
            "starting a script with `accelerate launch`",
            "`launch` starts the reference trainer without it",
            f"{pip} accelerate",
        )
    if environment.uses("xpu"):
        yield from _of_intel(environment)


def _of_intel(environment: Environment) -> Iterator[Missing]:
    new = environment.at_least("torch", 2, 8)
    if not environment.has("intel-extension-for-pytorch"):
        instead = (
            "torch 2.8 and newer run on Intel GPUs by themselves" if new is not False else "needed by torch before 2.8: take a newer torch"
        )
        yield Missing("intel-extension-for-pytorch", "Intel GPUs, up to torch 2.7", instead, None)
    if not environment.has("oneccl-bind-pt", "oneccl-bindings-for-pytorch"):
        yield Missing("oneccl_bindings_for_pytorch", "the backend ccl, up to torch 2.7", "the backend xccl of torch 2.8 and newer", None)


@dataclass(frozen=True, slots=True)
class Next:
    """One command line and why it is the next."""

    command: str
    reason: str


@dataclass(frozen=True, slots=True)
class Situation:
    """What the next command is made of beside the environment: the interpreter and whether it was named, the time that it got in
    seconds (None: not named), the site's lines for a node of one's own and for its stack, the device's entry in hardware.yaml."""

    python: str
    named: bool
    seconds: float | None
    interactive: str | None
    stack: str | None
    entry: str | None


def next_command(environment: Environment, findings: list[Finding], here: Situation) -> Next:
    """The most urgent thing: what stops every job first, then the place, then what is not known yet, then the work itself."""
    for finding in sorted(findings, key=lambda one: -one.severity):
        if finding.severity is Severity.ERROR:
            line = _of_python(finding.data.get("command"), here.python) or command_line("explain", finding.rule)
            return Next(line, f"{finding.rule}: {finding.message}"[:200])
    if environment.role == "login":
        asks = here.interactive or _ASK_FOR_A_NODE.get(environment.scheduler or "", "")
        if asks:
            return Next(asks, "this is a login node: ask for a node of your own (put your project in), then run doctor there")
    if environment.torch.state == "absent":
        return Next(here.stack or f"{shlex.quote(here.python)} -m pip install torch", "no torch is seen")
    if environment.torch.state in ("unfinished", "unknown"):
        return _patience(here)
    if environment.devices:
        size = ("--accelerator", here.entry) if here.entry else ("--memory", "SIZE")
        count = len(environment.devices) * (environment.nodes or 1)
        line = command_line("advise", "--model", "config.json", "--devices", str(count), *size)
        return Next(line, f"the machine is known: choose a strategy for it{_holder('advise')}")
    return Next(command_line("demo"), f"no accelerator is seen: the main job runs on CPU ranks{_holder('demo')}")


def _of_python(line: str | None, python: str) -> str | None:
    """A rule's command line; its pip is that of the job's interpreter."""
    return f"{shlex.quote(python)} -m {line}" if line and line.startswith("pip ") else line


def _patience(here: Situation) -> Next:
    """More time for the interpreter; where much was not enough, what shows the line at which it stands."""
    if here.seconds is not None and here.seconds >= _MUCH:
        code = f"import faulthandler; faulthandler.dump_traceback_later({_MUCH:.0f}, exit=True); import torch"
        return Next(shlex.join([here.python, "-c", code]), f"torch has not imported in {here.seconds:g} s: this shows where it stands")
    named = ("--python", here.python) if here.named else ()
    return Next(command_line("doctor", *named, "--timeout", f"{_MUCH:.0f}s"), "whether torch imports is not known yet")


def _holder(name: str) -> str:
    """Who has a command that this copy of the library does not hold; "" where it does."""
    try:
        found = importlib.util.find_spec(FACES[name][0])
    except ModuleNotFoundError:
        found = None
    return "" if found else f"; {FACES[name][1]} has it"


def entry_of(device: Device) -> tuple[str | None, str]:
    """The entry of hardware.yaml that a device is, and why none is."""
    try:
        found = match_device_name(device.name, device.memory_bytes)
    except MissingPackageError:
        return None, "hardware.yaml cannot be read without PyYAML"
    hint = f" (near: {', '.join(found.near)})" if found.near and found.accelerator is None else ""
    return (found.accelerator.name, "") if found.accelerator else (None, found.reason + hint)
