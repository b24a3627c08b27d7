"""A report that may be shared: built from what is known to be harmless, word by word; all else is left out or replaced.

A black list of secrets would miss the one nobody thought of. So nothing is copied as it is: a version has to look like a version, a
variable's value has to be made of numbers and of words that the libraries themselves use, a module has to be a known one.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

from trainwright.check.traps import VARIABLES
from trainwright.doctor.asking import PACKAGES
from trainwright.doctor.place import SCHEDULERS
from trainwright.environment import SCHEMA, Device, Environment, Torch, Unmet, distribution
from trainwright.errors import MissingPackageError
from trainwright.hardware import bundled

HIDDEN = "<set>"
_VERSION = re.compile(r"\d{1,6}(?:\.\d{1,6}){0,4}(?:(?:a|b|rc)\d{1,4})?(?:\.post\d{1,4})?(?:\.dev\d{1,8})?")
_LOCAL = re.compile(r"(?:cpu|cu\d{2,3}|xpu|rocm[\d.]{1,8}|cxx11\.abi|git[0-9a-f]{6,40}|hpu[\d.]{0,10})")
# What a variable's value may be made of: words of the libraries' own documentation.
_WORDS_TEXT = """
    true false yes no on off none auto ring direct topo naive rabenseifner double_tree double tree mpi ofi pmi pmix hydra torchrun pidfd
    drmfd sockets cxi tcp shm verbs userfaultfd disabled memhooks flat composite combined detail info warn error trace debug version max
    level_zero opencl cuda gpu cpu expandable_segments max_split_size_mb garbage_collection_threshold cpu_gpu_dpcpp cpu_gpu hybrid
    software hardware global local phb pix pxb sys nvl xpu hpu aws libfabric ib socket native use_v1 roundup_power2_divisions
"""
_WORDS = frozenset(_WORDS_TEXT.split())
_NUMBER = re.compile(r"-?\d{1,9}(?:\.\d{1,4})?(?:-(?:\d{1,9}|max))?")
_PRIVATE = frozenset(
    (
        *("MASTER_ADDR", "MASTER_PORT", "LD_PRELOAD", "TMPDIR", "CCL_ROOT", "CCL_CONFIGURATION_PATH", "TORCHELASTIC_RUN_ID"),
        *("SLURM_STEP_ID", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"),
    )
)
_MODULES = re.compile(
    r"(frameworks|oneapi|conda|pytorch|cudatoolkit|cuda|cudnn|nccl|rocm|mpich|cray-mpich|openmpi|gcc|python|cmake|libfabric"
    r"|PrgEnv-(?:gnu|cray|nvidia|intel|amd))(?:/([\w.+-]{1,40}))?"
)
_DEVICE_TEXT = """
    nvidia amd intel intel(r) geforce rtx gtx quadro tesla data center gpu max flex arc graphics generation ada pcie sxm nvl instinct
    radeon pro super ti laptop oam vf
"""
_DEVICE_WORDS = frozenset(_DEVICE_TEXT.split())
_DEVICE_PART = re.compile(r"[a-z]{0,4}\d{1,4}[a-z]{0,2}", re.IGNORECASE)
_LIBRARY = re.compile(
    r"\blib(?:torch|torch_cpu|torch_cuda|torch_python|torch_xpu|torch_hip|c10|c10_cuda|c10_xpu|cuda|cudart|cudnn|cublas|cublasLt|nccl"
    r"|sycl|ur_loader|ze_loader|mpi|fabric|stdc\+\+|gomp|iomp5|mkl_core|ccl|pmix|nvrtc|pil4dfs)\.so[.\d]{0,12}"
)


def report(environment: Environment, findings: Iterable[Any], version: str) -> dict[str, Any]:
    """The shareable report: the environment of harmless words, and of each finding its rule, severity and stage."""
    found = [{"rule": one.rule, "severity": one.severity.word, "fails_at": one.fails_at} for one in findings]
    kind = {"platform": sys.platform, "machine": platform.machine()}
    body = {
        "schema": "trainwright/doctor-report/1",
        "version": version,
        "host": kind,
        "environment": harmless(environment),
        "findings": found,
    }
    return dict(_without_names(body))


def harmless(environment: Environment) -> dict[str, Any]:
    """The environment in words that are known; Environment.from_json reads it back, where HIDDEN values are left out."""
    roles = ("login", "compute", "batch", "workstation")
    shared = replace(
        environment,
        variables={name: _value(name, value) for name, value in environment.variables.items() if name in VARIABLES},
        versions={name: _version(value) for name, value in environment.versions.items() if distribution(name) in PACKAGES},
        python=_version(environment.python) if environment.python else None,
        torch=_torch(environment.torch),
        devices=tuple(Device(_word(d.kind), _device(d.name), d.memory_bytes) for d in environment.devices),
        seen=tuple(one for one in environment.seen if one in ("nvidia", "amd", "intel", "habana")),
        nvidia_driver=_version(environment.nvidia_driver) if environment.nvidia_driver else None,
        unmet=tuple(_gap(gap) for gap in environment.unmet),
        user_packages=tuple(name for name in environment.user_packages if name in PACKAGES),
        modules=tuple(_module(name) for name in environment.modules),
        site=environment.site if environment.site in _sites() else None,
        role=environment.role if environment.role in roles else None,
        scheduler=environment.scheduler if environment.scheduler in SCHEDULERS else None,
        shadows=tuple(name for name in environment.shadows if re.fullmatch(r"[a-z0-9_]{1,30}\.py", name)),
    )
    return {"schema": SCHEMA, **asdict(shared)}


def _sites() -> set[str]:
    try:
        return set(bundled().sites)
    except MissingPackageError:
        return set()


def _version(text: str) -> str:
    """A public version, and a local part that builders of torch are known to use; the rest is "+local"."""
    public, _, local = text.partition("+")
    if not _VERSION.fullmatch(public):
        return "unknown"
    parts = [part for part in re.split(r"[-_]", local) if part]
    if not parts:
        return public
    return f"{public}+{'.'.join(parts)}" if all(_LOCAL.fullmatch(part) for part in parts) else f"{public}+local"


def _value(name: str, value: str) -> str:
    if name == "LD_PRELOAD":
        return "libpil4dfs.so" if "libpil4dfs" in value else HIDDEN
    parts = [part for part in re.split(r"[;:,|=\s]+", value) if part]
    known = all(_NUMBER.fullmatch(part) or part.lower().lstrip("^") in _WORDS for part in parts)
    return value if known and name not in _PRIVATE and len(value) <= 200 else HIDDEN


def _torch(torch: Torch) -> Torch:
    version = _version(torch.version) if torch.version else None
    builds = {key: _version(value) if value else None for key, value in (("cuda", torch.cuda), ("hip", torch.hip), ("xpu", torch.xpu))}
    backends = tuple(one for one in torch.backends if one in ("gloo", "nccl", "xccl", "mpi"))
    return Torch(torch.state, version, error=_error(torch.error), backends=backends, **builds)


def _error(text: str | None) -> str | None:
    """The kind of an error and the libraries it names; never its words."""
    if text is None:
        return None
    ended = re.match(r"signal \d+ \(SIG[A-Z]+\)|exit code \d+", text)
    kind = ended or re.match(r"(?:Import|ModuleNotFound|OS|Runtime|Attribute|Value|Type|Syntax|System|Name)\w{0,12}(?=:)", text)
    libraries = dict.fromkeys(_LIBRARY.findall(text))
    return " ".join([kind[0] if kind else "error", *libraries])


def _device(name: str) -> str:
    parts = re.split(r"[\s_-]+", name.replace("/", " ").strip())
    known = all(part.lower() in _DEVICE_WORDS or _DEVICE_PART.fullmatch(part) for part in parts if part)
    return name if known and len(name) <= 60 else "<device>"


def _gap(gap: Unmet) -> Unmet:
    needs = re.match(r"[A-Za-z0-9._-]+", gap.needs)
    name = distribution(needs[0]) if needs else ""
    rest = gap.needs[len(needs[0]) :] if needs else ""
    said = (
        f"{name}{rest}" if name in PACKAGES and re.fullmatch(r"(?:[,\s]*[<>=!~]=?[\d.*]{1,20}(?:(?:a|b|rc)\d+)?)*", rest) else "<package>"
    )
    return Unmet(gap.package if gap.package in PACKAGES else "<package>", said, _version(gap.found) if gap.found else None)


def _module(name: str) -> str:
    found = _MODULES.fullmatch(name)
    return "<module>" if not found else f"{found[1]}/{_version(found[2])}" if found[2] else found[1]


def _word(text: str) -> str:
    return text if text in ("cuda", "xpu", "hpu", "mps", "xla", "cpu") else "device"


def _without_names(value: Any) -> Any:
    """`value` with the names of this user, host, home, folder and project taken out, should one have passed as a harmless word."""
    names = _names()
    if isinstance(value, dict):
        return {key: _without_names(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_names(item) for item in value]
    if isinstance(value, str) and any(name in re.split(r"[^a-z0-9]+", value.lower()) for name in names):
        return "<name>"
    return value


def _names() -> set[str]:
    """Names that are this user's alone; a word that the report is made of (a user called "torch") is none."""
    variables = (
        "USER",
        "LOGNAME",
        "HOME",
        "PBS_ACCOUNT",
        "PBS_JOBNAME",
        "SLURM_JOB_ACCOUNT",
        "SLURM_JOB_NAME",
        "SLURM_JOB_USER",
        "LSB_PROJECT_NAME",
    )
    said = [os.environ.get(name, "") for name in variables] + [platform.node(), os.path.basename(os.getcwd())]
    parts = {part for text in said for part in re.split(r"[^a-z0-9]+", text.lower())}
    common = (
        _WORDS
        | {*SCHEDULERS}
        | {part for name in PACKAGES for part in name.split("-")}
        | {"root", "home", "users", "user", "job", "aurora"}
    )
    common |= {
        "doctor",
        "report",
        "trainwright",
        "run",
        "test",
        "python",
        "linux",
        "batch",
        "login",
        "compute",
        "workstation",
        "frameworks",
    }
    common |= {part for site in _sites() for part in site.split("-")}
    return {part for part in parts if len(part) >= 3 and not part.isdecimal()} - common
