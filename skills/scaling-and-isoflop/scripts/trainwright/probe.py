# probe.py without its comments
from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trainwright
from trainwright import host

SHA = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def versions(names: Iterable[str]) -> dict[str, str | None]:
    return {name: _version(name) for name in names}


def _version(name: str) -> str | None:
    import importlib.metadata

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def interpreter() -> dict[str, Any]:
    return {
        "executable": sys.executable,
        "version": platform.python_version(),
        "implementation": platform.python_implementation(),
        "prefix": sys.prefix,
        "virtual_environment": sys.prefix != sys.base_prefix,
    }


def library_root() -> str:
    return str(Path(next(iter(trainwright.__path__))).resolve().parent)


@contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def python_variables() -> dict[str, str]:
    before = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join([library_root(), *([before] if before else [])])
    traceless = {"PYTHONDONTWRITEBYTECODE": "1"} if sys.dont_write_bytecode else {}
    return {"PYTHONPATH": path, "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1", **traceless}


def devices(python: str = sys.executable, timeout_s: float = 120.0) -> dict[str, Any]:
    argv = [python, "-m", "trainwright.train.devices"]
    try:
        with environment(python_variables()):
            done = subprocess.run(argv, capture_output=True, timeout=timeout_s, cwd=library_root(), stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as problem:
        return {"torch": None, "devices": [], "error": f"{type(problem).__name__}: {problem}"}
    return _devices_answer(done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))


def _devices_answer(answer: str, complaint: str) -> dict[str, Any]:
    lines = answer.strip().splitlines()
    try:
        found = json.loads(lines[-1])
        return {"torch": found["torch"], "devices": list(found["devices"]), "error": found.get("error")}
    except (IndexError, ValueError, KeyError, TypeError):
        last = (complaint.strip().splitlines() or ["no answer"])[-1]
        return {"torch": None, "devices": [], "error": last[:300]}


def cpu_count() -> int:
    return host.processors().usable


@dataclass(frozen=True, slots=True)
class HostMemory:

    total_bytes: int | None
    available_bytes: int | None
    limit_bytes: int | None


def host_memory() -> HostMemory:
    total, limit = host.installed_bytes(), host.memory_limit_bytes()
    return HostMemory(total, host.meminfo().get("MemAvailable"), limit if limit and (total is None or limit < total) else None)


def free_memory_bytes() -> int | None:
    found = host_memory()
    return min((size for size in (found.available_bytes, found.limit_bytes) if size), default=None)


def oom_kills() -> int | None:
    nearest = next(host.group_files("/", "memory", "memory.events", "memory.oom_control"), "")
    found = re.search(r"^oom_kill (\d+)", nearest, re.MULTILINE)
    return int(found[1]) if found else None


def git_sha(folder: str) -> str | None:
    for parent in (Path(folder).resolve(), *Path(folder).resolve().parents):
        mark = parent / ".git"
        if mark.is_dir():
            return _head(mark)
        if found := re.match(r"gitdir: (.+)", host.text(mark)):
            return _head(parent / found[1].strip())
    return None


def _head(git: Path) -> str | None:
    head = host.text(git / "HEAD").strip()
    if SHA.fullmatch(head):
        return head
    reference = re.fullmatch(r"ref: (refs/[^\s\\:?*\[~^]+)", head)
    if not reference or ".." in reference[1]:
        return None
    common = git / (host.text(git / "commondir").strip() or ".")
    for place in (git, common):
        if SHA.fullmatch(loose := host.text(place / reference[1]).strip()):
            return loose
    packed = re.search(rf"^({SHA.pattern}) {re.escape(reference[1])}$", host.text(common / "packed-refs"), re.MULTILINE)
    return packed[1] if packed else None
