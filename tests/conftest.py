"""What many tests need: the repository, the data beside it, and a command run as its users run it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A slow machine is no failure: no deadline, no complaint about slow or filtered drawing. CI draws the same cases every time.
_SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
settings.register_profile("trainwright", deadline=None, suppress_health_check=_SLOW, derandomize=bool(os.environ.get("CI")))
settings.load_profile("trainwright")

ROOT = Path(__file__).resolve().parents[1]

# Whoever starts pytest in the background or under nohup has these ignored, and each child would inherit that.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of recorded configs and logs that TRAINWRIGHT_DATA names."""
    place = os.environ.get("TRAINWRIGHT_DATA")
    if not place:
        pytest.skip("TRAINWRIGHT_DATA names no folder of recorded data")
    return Path(place)


@pytest.fixture(scope="session")
def run_command() -> Run:
    """Run `trainwright ARGUMENTS` of this tree in a process of its own, with an almost empty environment."""

    def run(*arguments: str, cwd: Path = ROOT, **settings: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "trainwright.cli", *arguments]
        variables = {"PATH": os.defpath, "PYTHONPATH": str(ROOT / "helpers"), "PYTHONDONTWRITEBYTECODE": "1", **settings}
        return subprocess.run(argv, cwd=cwd, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)

    return run
