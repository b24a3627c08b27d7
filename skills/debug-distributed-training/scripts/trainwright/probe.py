"""What is on this machine: versions, devices, memory, the interpreter; heavy packages are observed, never imported here."""

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
    """The installed version of each distribution, None where it is not installed; nothing is imported."""
    return {name: _version(name) for name in names}


def _version(name: str) -> str | None:
    import importlib.metadata  # it loads the parser of mails and, with it, sockets: only where a version is asked for

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def importable(name: str) -> bool:
    """Whether `import name` would find a package, or a module in one, in this interpreter."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # not even the package around it
        return False


def interpreter() -> dict[str, Any]:
    """Facts on the running Python that a job inherits."""
    return {
        "executable": sys.executable,
        "version": platform.python_version(),
        "implementation": platform.python_implementation(),
        "prefix": sys.prefix,
        "virtual_environment": sys.prefix != sys.base_prefix,
    }


def library_root() -> str:
    """The folder that PYTHONPATH needs so that another Python finds this copy of trainwright."""
    return str(Path(next(iter(trainwright.__path__))).resolve().parent)


@contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    """Set variables in this process, for the children started inside; what was there is restored after."""
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
    """What makes `python -m trainwright.train.NAME` find this copy, and nothing in the folder it starts in."""
    before = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join([library_root(), *([before] if before else [])])
    traceless = {"PYTHONDONTWRITEBYTECODE": "1"} if sys.dont_write_bytecode else {}  # a skill's folder stays as it was copied
    return {"PYTHONPATH": path, "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1", **traceless}


def devices(python: str = sys.executable, timeout_s: float = 120.0) -> dict[str, Any]:
    """The accelerators that torch sees in the interpreter `python`, asked in a short subprocess.

    Returns {"torch": version or None, "devices": [{kind, index, name, memory_bytes}], "error": why not, or None}.
    """
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
    """Processors that this process may use, by its affinity and its control group."""
    return host.processors().usable


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes of main memory: installed, free for new work, and the control group's limit; None where unknown."""

    total_bytes: int | None
    available_bytes: int | None
    limit_bytes: int | None


def host_memory() -> HostMemory:
    """Memory of this host from /proc/meminfo and the control groups; from sysconf where there is no /proc."""
    total, limit = host.installed_bytes(), host.memory_limit_bytes()
    return HostMemory(total, host.meminfo().get("MemAvailable"), limit if limit and (total is None or limit < total) else None)


def free_memory_bytes() -> int | None:
    """What new processes here may take together: free memory, or less where the control group says so; None where unknown."""
    found = host_memory()
    return min((size for size in (found.available_bytes, found.limit_bytes) if size), default=None)


def oom_kills() -> int | None:
    """Processes that the kernel has ended in this control group for want of memory, since it exists; None if unknown."""
    nearest = next(host.group_files("/", "memory", "memory.events", "memory.oom_control"), "")
    found = re.search(r"^oom_kill (\d+)", nearest, re.MULTILINE)
    return int(found[1]) if found else None


def git_sha(folder: str) -> str | None:
    """The commit that the checkout around `folder` has, read from its files; no program of that tree runs."""
    for parent in (Path(folder).resolve(), *Path(folder).resolve().parents):
        mark = parent / ".git"
        if mark.is_dir():
            return _head(mark)
        if found := re.match(r"gitdir: (.+)", host.text(mark)):  # a worktree or a submodule
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
