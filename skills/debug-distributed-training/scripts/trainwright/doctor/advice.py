"""What is missing, what takes the place of what is gone, and the one command to type next."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from trainwright.device_names import match_device_name
from trainwright.environment import Device, Environment
from trainwright.errors import MissingPackageError
from trainwright.report import Finding, Severity

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
        line = f"{sys.executable} -m pip install pyyaml"
        yield Missing(
            "PyYAML", "reading YAML configs and the table of hardware, in the Python of this command", "JSON inputs work without", line
        )
    if not environment.versions and environment.torch.state == "unknown":
        return  # the interpreter told nothing: what it lacks is not known
    pip = f"{python} -m pip install"
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


def next_command(
    environment: Environment, findings: list[Finding], python: str, interactive: str | None, stack: str | None, entry: str | None
) -> Next:
    """The most urgent thing: what stops every job first, then the place, then what is not known yet, then the work itself."""
    for finding in sorted(findings, key=lambda one: -one.severity):
        if finding.severity is Severity.ERROR:
            return Next(finding.data.get("command") or f"trainwright explain {finding.rule}", f"{finding.rule}: {finding.message}"[:200])
    if environment.role == "login":
        asks = interactive or _ASK_FOR_A_NODE.get(environment.scheduler or "", "")
        if asks:
            return Next(asks, "this is a login node: ask for a node of your own (put your project in), then run doctor there")
    if environment.torch.state == "absent":
        return Next(stack or f"{python} -m pip install torch", "no torch is seen")
    if environment.torch.state in ("unfinished", "unknown"):
        return Next("trainwright doctor --timeout 60s", "whether torch imports is not known yet")
    if environment.devices:
        named = f"--accelerator {entry}" if entry else "--memory SIZE"
        count = len(environment.devices) * (environment.nodes or 1)
        return Next(f"trainwright advise --model config.json --devices {count} {named}", "the machine is known: choose a strategy for it")
    return Next("trainwright demo", "no accelerator is seen: the main job runs on CPU ranks")


def entry_of(device: Device) -> tuple[str | None, str]:
    """The entry of hardware.yaml that a device is, and why none is."""
    try:
        found = match_device_name(device.name, device.memory_bytes)
    except MissingPackageError:
        return None, "hardware.yaml cannot be read without PyYAML"
    hint = f" (near: {', '.join(found.near)})" if found.near and found.accelerator is None else ""
    return (found.accelerator.name, "") if found.accelerator else (None, found.reason + hint)
