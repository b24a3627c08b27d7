"""Where this process runs: site, scheduler, allocation, and whether it is a login node. Names and files are read, nothing is asked."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from trainwright import hardware
from trainwright.errors import MissingPackageError

# Scheduler: its clients, and the variable that every process of a job has.
SCHEDULERS = {
    "pbs": (("qsub", "qstat"), "PBS_JOBID"),
    "slurm": (("sbatch", "salloc", "srun"), "SLURM_JOB_ID"),
    "lsf": (("bsub",), "LSB_JOBID"),
    "flux": (("flux",), "FLUX_JOB_ID"),
}
_LOGIN = re.compile(r"(^|[-.])(login|uan|frontend|fe|headnode|submit)(-?\d+)?([-.]|$)")
_MOST_HOSTS = 4 * 2**20  # bytes of a node file: more than any machine has nodes


@dataclass(frozen=True, slots=True)
class Place:
    """Site (None: not one that is known), role, why that role, scheduler, whether inside a job, and what the allocation holds."""

    site: str | None
    role: str
    reason: str
    scheduler: str | None
    job: bool
    nodes: int | None = None
    ranks_per_node: int | None = None
    interactive: str | None = None
    stack: str | None = None
    unknown: str = ""


def place(hostname: str) -> Place:
    """What the host's name, the environment and the programs on the path tell."""
    known, unknown = _site(hostname)
    site, login = known if known else (None, False)
    inside = next((name for name, (_, variable) in SCHEDULERS.items() if os.environ.get(variable)), None)
    clients = {name: next((c for c in programs if shutil.which(c)), None) for name, (programs, _) in SCHEDULERS.items()}
    scheduler = inside or (site.scheduler if site else None) or next((name for name, client in clients.items() if client), None)
    role, reason = _role(hostname, site, login, inside, clients.get(scheduler or ""), scheduler)
    nodes, ranks = _allocation(inside)
    facts = (site.interactive, site.stack) if site else (None, None)
    return Place(site.name if site else None, role, reason, scheduler, inside is not None, nodes, ranks, *facts, unknown)


def _site(hostname: str) -> tuple[tuple[hardware.Site, bool] | None, str]:
    try:
        return hardware.site_of_host(hostname), ""
    except MissingPackageError:
        return None, "the table of sites is YAML, which this Python cannot read without PyYAML"


def _role(
    hostname: str, site: hardware.Site | None, login: bool, inside: str | None, client: str | None, scheduler: str | None
) -> tuple[str, str]:
    if inside:
        return "batch", f"{SCHEDULERS[inside][1]} is set: this is inside a job"
    if site and login:
        return "login", f"its name is that of a login node of {site.title}"
    if site:
        return "compute", f"its name is that of a compute node of {site.title}, and no job's variable is set"
    if _LOGIN.search(hostname.lower()) and (client or scheduler):
        return "login", f"its name says so, {client or scheduler} is here, and no job's variable is set"
    if client:
        return "login", f"{client} is here and no job's variable is set: taken for a login node"
    return "workstation", "no scheduler is seen here"


def _allocation(inside: str | None) -> tuple[int | None, int | None]:
    """Nodes of the job and ranks a node, where the scheduler says them; equal on all nodes or None."""
    read = {"pbs": _pbs, "slurm": _slurm, "lsf": _lsf, "flux": _flux}
    return read[inside]() if inside else (None, None)


def _pbs() -> tuple[int | None, int | None]:
    hosts = _hosts(os.environ.get("PBS_NODEFILE", ""))
    if not hosts:
        return _count("PBS_NUM_NODES"), None
    times = {hosts.count(host) for host in set(hosts)}
    # One line a node is PBS's default and says nothing of ranks; more are mpiprocs.
    return len(set(hosts)), times.pop() if len(times) == 1 and len(hosts) > len(set(hosts)) else None


def _hosts(path: str) -> list[str]:
    try:
        if not path or not Path(path).is_file():
            return []
        with open(path, "rb") as file:
            return file.read(_MOST_HOSTS).decode("utf-8", "replace").split()[:100_000]
    except (OSError, ValueError):
        return []


def _slurm() -> tuple[int | None, int | None]:
    nodes = _count("SLURM_JOB_NUM_NODES") or _count("SLURM_NNODES")
    said = (
        os.environ.get("SLURM_NTASKS_PER_NODE") or os.environ.get("SLURM_STEP_TASKS_PER_NODE") or os.environ.get("SLURM_TASKS_PER_NODE", "")
    )
    found = re.fullmatch(r"(\d{1,6})(?:\(x\d+\))?", said.strip())
    return nodes, int(found[1]) if found and int(found[1]) else None


def _lsf() -> tuple[int | None, int | None]:
    words = os.environ.get("LSB_MCPU_HOSTS", "").split()
    return len(set(words[::2])) or None, None


def _flux() -> tuple[int | None, int | None]:
    nodes, size = _count("FLUX_JOB_NNODES"), _count("FLUX_JOB_SIZE")
    return nodes, size // nodes if nodes and size and size % nodes == 0 else None


def _count(name: str) -> int | None:
    value = os.environ.get(name, "").strip()
    return int(value) if value.isdecimal() and 0 < len(value) < 8 and int(value) else None
