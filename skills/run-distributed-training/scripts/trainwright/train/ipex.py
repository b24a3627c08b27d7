# train/ipex.py without its comments
from __future__ import annotations

import importlib
import json
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from torch import nn
from torch.optim import Optimizer

from trainwright.errors import UserError

DISTRIBUTION, MODULE = "intel-extension-for-pytorch", "intel_extension_for_pytorch"
CHECKED = "stub"


@dataclass(frozen=True, slots=True)
class Ipex:

    version: str | None
    why: str


def find(timeout_s: float = 120.0) -> Ipex:
    found = _version(DISTRIBUTION)
    if found is None:
        return Ipex(None, "is not installed")
    torch = _version("torch") or ""
    if _series(found) != _series(torch):
        return Ipex(found, f"{found} works with torch {_series(found)} only, and torch {torch} is here")
    return Ipex(found, _probe(timeout_s))


def optimize(model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
    ipex: Any = importlib.import_module(MODULE)
    faster, fused = ipex.optimize(model, optimizer=optimizer, inplace=True, weights_prepack=False, split_master_weight_for_bf16=False)
    return faster, fused


def apply(model: Any, optimizer: Optimizer, kind: str) -> tuple[Optimizer, dict[str, str] | None]:
    found = find()
    if found.version is None:
        return optimizer, None
    why = found.why or (f"it does not know the shards of {kind}" if kind in ("fsdp", "zero") else "")
    if not why:
        inner = model.module if kind in ("ddp", "local_sgd") else model
        before = [id(parameter) for parameter in inner.parameters()]
        _, optimizer = optimize(inner, optimizer)
        if [id(parameter) for parameter in inner.parameters()] != before:
            raise UserError(f"ipex.optimize of {found.version} replaced parameters that the ranks share already; uninstall it for this job")
    return optimizer, {"version": found.version, "not_used": why, "checked": CHECKED}


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _series(text: str) -> str:
    return ".".join(re.findall(r"\d+", text)[:2])


def _probe(timeout_s: float) -> str:
    argv = [sys.executable, "-m", "trainwright.train.ipex"]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return f"its import did not end within {timeout_s:g} s"
    except OSError as problem:
        return f"it could not be tried: {problem.strerror or problem}"
    if done.returncode == 0 and _answered(done.stdout):
        return ""
    said = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return f"its import {_ending(done.returncode)}{': ' + said[-1][:200] if said else ''}"


def _answered(output: str) -> bool:
    return any(line.startswith('{"ipex":') for line in output.splitlines())


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended the interpreter with exit code {code}"
    try:
        return f"ended the interpreter by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended the interpreter by signal {-code}"


if __name__ == "__main__":
    module: Any = importlib.import_module(MODULE)
    print(json.dumps({"ipex": str(getattr(module, "__version__", ""))}))
