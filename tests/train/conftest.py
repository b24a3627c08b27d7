"""What the workers' tests share: a small model, a process group of one rank, and real jobs under torchrun."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import distributed as dist  # noqa: E402

from trainwright.emit import accelerate  # noqa: E402
from trainwright.job import Job  # noqa: E402
from trainwright.model import ModelSpec, load_model  # noqa: E402
from trainwright.strategy import Strategy  # noqa: E402
from trainwright.train import world  # noqa: E402

DEMO = Path(__file__).resolve().parents[2] / "helpers" / "trainwright" / "models" / "llama-demo" / "config.json"
SMALL: dict[str, object] = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
SMALL |= {"model_type": "llama", "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5}
CPU = torch.device("cpu")
FSDP = Strategy("fsdp", wrap_classes=("LlamaDecoderLayer",))


@pytest.fixture(scope="session")
def demo() -> ModelSpec:
    return load_model(str(DEMO))


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    """2 layers, grouped heads, 256 tokens: about 0.1 M parameters."""
    return load_model(str(small_config(tmp_path_factory.mktemp("model"))))


def small_config(folder: Path, **fields: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(SMALL | fields), encoding="utf-8")
    return path


@pytest.fixture
def group() -> Iterator[None]:
    """A gloo group of this process alone."""
    world.connect(CPU, world.Place(0, 0, 1), timeout_s=20)
    yield
    dist.destroy_process_group()


@dataclasses.dataclass(frozen=True)
class Ran:
    """What a finished job left: torchrun's return code, each rank's records, each rank's stderr."""

    returncode: int
    ranks: dict[int, list[dict[str, Any]]]
    stderr: str
    run_dir: Path

    def steps(self, rank: int = 0) -> list[dict[str, Any]]:
        return [row for row in self.ranks[rank] if row["kind"] == "step"]

    def end(self, rank: int = 0) -> dict[str, Any]:
        assert self.ranks[rank][-1]["kind"] == "end"
        return self.ranks[rank][-1]


def make_run(folder: Path, strategy: Strategy, ranks: int, **fields: Any) -> Path:
    """A run folder with its config and job.json; returns the latter."""
    folder.mkdir()
    config = folder / "accelerate.yaml"
    config.write_text(accelerate.write(strategy, ranks, "cpu"), encoding="utf-8")
    paths = {"model": str(DEMO), "backend_config": str(config), "run_dir": str(folder)}
    job = Job(**{**paths, "world_size": ranks, "steps": 3, "micro_batch": 1, "seq_len": 32, "timeout_s": 60.0, **fields})
    job.write(str(folder / "job.json"))
    return folder / "job.json"


def command(job: Path, ranks: int = 0) -> list[str]:
    """The command of a worker alone, or of torchrun with `ranks` workers."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks else []
    return [sys.executable, *launcher, "-m", "trainwright.train.run", "--job", str(job)]


@pytest.fixture
def paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker's process inherits: where the library is, and one thread a rank."""
    monkeypatch.setenv("PYTHONPATH", str(DEMO.parents[3]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "5")
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TRAINWRIGHT_LAUNCHER_PID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run_job(tmp_path: Path, paths: None) -> Callable[..., Ran]:
    """Run a job to its end: `run_job("name", strategy, ranks, steps=3, ...)`; 1 rank runs without torchrun."""

    def run(name: str, strategy: Strategy, ranks: int, **fields: Any) -> Ran:
        job = make_run(tmp_path / name, strategy, ranks, **fields)
        line = command(job, ranks if ranks > 1 else 0)
        done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=150)
        return Ran(done.returncode, read_records(job.parent), done.stderr, job.parent)

    return run


@pytest.fixture
def write_job() -> Callable[..., Path]:
    return make_run


@pytest.fixture
def argv() -> Callable[..., list[str]]:
    return command


def read_records(folder: Path) -> dict[int, list[dict[str, Any]]]:
    files = sorted((folder / "perf").glob("rank*.jsonl"))
    return {int(file.stem[4:]): [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] for file in files}
