"""Jobs for the launcher's tests, and the question whether anything of a run still lives."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from trainwright.emit import accelerate
from trainwright.job import Job
from trainwright.strategy import Strategy

MODEL = Path(__file__).resolve().parents[2] / "helpers" / "trainwright" / "models" / "llama-demo" / "config.json"
WORKERS = Path(__file__).parent / "workers"


@pytest.fixture
def make_job(tmp_path: Path) -> Callable[..., Job]:
    """A Job of the demo model; keyword arguments replace fields, `kind` is the strategy's."""

    def make(kind: str = "ddp", world_size: int = 3, **fields: object) -> Job:
        strategy = Strategy("fsdp", wrap_classes=("LlamaDecoderLayer",)) if kind == "fsdp" else Strategy("ddp")
        config = tmp_path / f"{kind}.yaml"
        config.write_text(accelerate.write(strategy, world_size, "cpu"), encoding="utf-8")
        return Job(model=str(MODEL), backend_config=str(config), world_size=world_size, **fields)  # type: ignore[arg-type]

    return make


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The module name of the faulty worker, with its settings in the environment."""

    def prepare(fault: str = "", **settings: str) -> str:
        monkeypatch.setenv("PYTHONPATH", str(WORKERS))
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        for name, value in {"FAULT": fault, **settings}.items():
            monkeypatch.setenv(name, value)
        return "faulty"

    return prepare


@pytest.fixture
def living() -> Callable[[Path], list[str]]:
    """Processes whose command line, environment or working folder names the run's folder."""
    return _living


@pytest.fixture
def gone() -> Callable[..., None]:
    """Assert that nothing of a run lives, now or within some seconds."""

    def check(run_dir: Path, within_s: float = 0.0) -> None:
        deadline = time.monotonic() + within_s
        while (left := _living(run_dir)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not left, left

    return check


def _living(run_dir: Path) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            texts = [(entry / name).read_bytes() for name in ("cmdline", "environ")] + [os.fsencode(os.readlink(entry / "cwd"))]
        except OSError:
            continue
        if any(os.fsencode(str(run_dir)) in text for text in texts):
            found.append(f"{entry.name}: {texts[0].replace(bytes(1), b' ').decode(errors='replace')}")
    return found
