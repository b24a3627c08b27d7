# launch/folder.py without its comments
from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path
from typing import Any

from trainwright.document import DocumentError, load_mapping
from trainwright.errors import UserError
from trainwright.launch.processes import alive, running

MANIFEST_SCHEMA = "trainwright/manifest/1"
_OURS = ("manifest.json", "job.json", "logs", "perf", "heartbeat", "checkpoints")


def check(run_dir: str, force: bool) -> None:
    folder = Path(run_dir)
    if not os.path.lexists(folder):
        return
    if not force:
        raise UserError(f"{run_dir} exists; name a new --run-dir, or add --force to replace an earlier run")
    if folder.is_symlink() or not folder.is_dir():
        raise UserError(f"{run_dir} is not a folder of its own; name another --run-dir")
    manifest = manifest_of(folder)
    if manifest is None:
        raise UserError(f"{run_dir} carries no manifest of a run, so --force leaves it alone; name another --run-dir")
    if _still_runs(manifest):
        raise UserError(f"{run_dir} belongs to a job that still runs (process {manifest.get('pid')}); end it or name another --run-dir")


def create(run_dir: str, force: bool) -> Path:
    check(run_dir, force)
    folder = Path(run_dir)
    try:
        for name in _OURS if os.path.exists(folder) else ():
            _remove(folder / name)
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(exist_ok=force)
        (folder / "logs").mkdir()
        (folder / "perf").mkdir()
    except OSError as problem:
        raise UserError(f"cannot make the folder {run_dir}: {problem.strerror or problem}; name a writable place") from None
    return folder


def manifest_of(folder: Path) -> dict[str, Any] | None:
    try:
        value: dict[str, Any] = load_mapping(str(folder / "manifest.json"), "json").value
    except DocumentError:
        return None
    return value if value.get("schema") == MANIFEST_SCHEMA else None


def _still_runs(manifest: dict[str, Any]) -> bool:
    outcome, pid, token = manifest.get("outcome"), manifest.get("pid"), manifest.get("token")
    unfinished = isinstance(outcome, dict) and outcome.get("status") == "running"
    if not unfinished or manifest.get("host") != platform.node():
        return False
    if os.path.isdir("/proc/self"):
        return isinstance(token, str) and bool(alive(token))
    return type(pid) is int and pid > 0 and running(pid)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
