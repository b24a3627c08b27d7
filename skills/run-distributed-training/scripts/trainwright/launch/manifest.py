# launch/manifest.py without its comments
from __future__ import annotations

import hashlib
import json
import os
import platform
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from trainwright import probe
from trainwright.document import load
from trainwright.emit import backend
from trainwright.errors import UserError
from trainwright.job import Job
from trainwright.launch.folder import MANIFEST_SCHEMA
from trainwright.model import load_model
from trainwright.output import write_text
from trainwright.version import VERSION

PACKAGES = ("torch", "numpy", "accelerate", "transformers", "deepspeed")
INHERITED = (
    "CUDA_VISIBLE_DEVICES",
    "GLOO_SOCKET_IFNAME",
    "LOGLEVEL",
    "NCCL_DEBUG",
    "NCCL_SOCKET_IFNAME",
    "PYTORCH_ALLOC_CONF",
    "TORCH_CPP_LOG_LEVEL",
    "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_FR_BUFFER_SIZE",
    "ZE_AFFINITY_MASK",
    "ZE_FLAT_DEVICE_HIERARCHY",
)


def begin(job: Job, argv: list[str], variables: dict[str, str], token: str) -> dict[str, Any]:
    strategy = backend.read(load(job.backend_config), load_model(job.model)).under(job).strategy
    return {
        "schema": MANIFEST_SCHEMA,
        "trainwright": VERSION,
        "argv": argv,
        "environment": variables,
        "inherited": {name: value for name in INHERITED if (value := os.environ.get(name)) is not None},
        "host": platform.node(),
        "pid": os.getpid(),
        "token": token,
        "interpreter": probe.interpreter(),
        "versions": probe.versions(PACKAGES),
        "git": probe.git_sha(os.getcwd()),
        "model": {"path": job.model, "sha256": sha256(job.model)},
        "backend_config": {"path": job.backend_config, "sha256": sha256(job.backend_config)},
        "asked": {"world_size": job.world_size, "strategy": strategy.name},
        "started": now(),
        "ended": None,
        "outcome": {"status": "running", "returncode": None},
    }


def write(folder: Path, manifest: dict[str, Any]) -> None:
    write_text(folder / "manifest.json", json.dumps(manifest, indent=1) + "\n")


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def sha256(path: str) -> str:
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while block := file.read(2**20):
                digest.update(block)
    except OSError as problem:
        raise UserError(f"{path}: cannot be read: {problem.strerror or problem}") from None
    return digest.hexdigest()
