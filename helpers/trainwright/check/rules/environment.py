"""Rules on an environment that jobs start in: the packages of the job's interpreter, how they pair, and the place itself."""

from __future__ import annotations

from collections.abc import Iterator

from trainwright.environment import Environment, release
from trainwright.report import Fix, Severity
from trainwright.rules import Hit, rule
from trainwright.units import format_bytes

_IPEX = "intel-extension-for-pytorch"
_BINDINGS = ("oneccl-bind-pt", "oneccl-bindings-for-pytorch")
# Minimum driver branch of each CUDA major version: within one, a newer minor version runs on an older driver.
_DRIVERS = {11: 450, 12: 525, 13: 580}
_SHM = 2**30
_STALE_MODULES = {
    "frameworks/2025.0.5": "was dropped in February 2026",
    "frameworks/2025.2.0": "was a preview: Rabenseifner all-reduce fails in it, direct works",
}


@rule("ENV001", Severity.WARNING, Environment, fails_at="engine start", checked="run", source="python-packaging-metadata")
def torch_missing(environment: Environment) -> Iterator[Hit]:
    """The interpreter of the job has no PyTorch.

    Often another interpreter was meant: a module or virtual environment that is not loaded in this shell. Doctor asks the one
    that `--python` names, else the first with torch among its own, $VIRTUAL_ENV, ./.venv and those behind accelerate and torchrun.

    Bad `environment.json`:
        {"torch": {"state": "absent"}}

    Good `environment.json`:
        {"torch": {"state": "ok"}, "versions": {"torch": "2.13.0"}}
    """
    if environment.torch.state == "absent":
        load = {"aurora": "module load frameworks", "sunspot": "module load frameworks", "polaris": "module load conda"}
        line = load.get(environment.site or "", "pip install torch")
        yield _typed("the job's interpreter has no torch", line, "torch")


@rule("ENV002", Severity.ERROR, Environment, fails_at="engine start", checked="run", source="python-packaging-metadata")
def torch_breaks_on_import(environment: Environment) -> Iterator[Hit]:
    """Importing torch raises, or ends the process.

    A library that is missing or of another version raises (ImportError, OSError); one that was built for another processor or
    whose start-up code fails ends the process by a signal, and then no traceback is left. Each rank of a job ends the same way.

    Bad `environment.json`:
        {"versions": {"torch": "2.13.0"}, "torch": {"state": "ended", "error": "signal 11 (SIGSEGV)"}}

    Good `environment.json`:
        {"versions": {"torch": "2.13.0"}, "torch": {"state": "ok"}}
    """
    torch = environment.torch
    if torch.state == "broken":
        yield Hit(f"importing torch raises: {torch.error or 'no message'}{_library_hint(torch.error or '')}", path="torch")
    elif torch.state == "ended":
        yield Hit(f"importing torch ends the process: {torch.error or 'no message'}", path="torch")


def _library_hint(error: str) -> str:
    """What a known text of the loader means."""
    if "libsycl" in error or "urDevice" in error or "libur_" in error:
        return "; a oneAPI module loaded after the environment puts older libraries first: load it before, or prepend the environment's lib"
    if "numpy.core.multiarray" in error or "NumPy 1.x" in error:
        return "; torch and numpy do not fit: see ENV006"
    return ""


@rule("ENV003", Severity.ERROR, Environment, fails_at="engine start", checked="run", source="ipex-2.8.0")
def ipex_of_another_torch(environment: Environment) -> Iterator[Hit]:
    """Intel Extension for PyTorch works with one minor version of torch only, and the installed torch is another.

    Its import then fails ("needs to work with PyTorch 2.8.*"), and with it all that imports it: DeepSpeed up to 0.18.5 on XPU
    among them. pip does not see it, as its metadata does not pin torch. Its last public release is 2.8.0; torch 2.8 and newer
    run on Intel GPUs without it.

    Bad `environment.json`:
        {"versions": {"torch": "2.13.0", "intel-extension-for-pytorch": "2.8.0"}}

    Good `environment.json`:
        {"versions": {"torch": "2.13.0"}}
    """
    if _minor(environment, _IPEX) and _minor(environment, "torch") and _minor(environment, _IPEX) != _minor(environment, "torch"):
        has, torch = environment.versions[_IPEX], environment.versions["torch"]
        need = ".".join(map(str, _minor(environment, _IPEX)))
        message = f"{_IPEX} {has} imports only with torch {need}.*, and torch is {torch}"
        fix = Fix({_IPEX: None}, note="torch runs on Intel GPUs by itself since 2.8")
        yield _typed(message, f"pip uninstall {_IPEX}", f"versions.{_IPEX}", fix)


@rule("ENV004", Severity.WARNING, Environment, fails_at="never", checked="source", source="accelerate-1.15.0-state")
def retired_package(environment: Environment) -> Iterator[Hit]:
    """A package is installed that torch has replaced and that nobody maintains.

    Intel Extension for PyTorch (repository archived in March 2026) and the oneCCL bindings (`ccl`, deprecated) were needed on
    Intel GPUs up to torch 2.7. Since 2.8 torch has the backend `xccl`. Accelerate 1.13 and newer look for xccl only, and a
    DeepSpeed that finds the bindings may fall back to `ccl`. A pair that still fits is information only.

    Bad `environment.json`:
        {"versions": {"torch": "2.10.0", "oneccl-bind-pt": "2.8.0"}}

    Good `environment.json`:
        {"versions": {"torch": "2.10.0"}}
    """
    old = environment.at_least("torch", 2, 8) is False
    for name in (one for one in _BINDINGS if environment.has(one)):
        severity = Severity.INFO if old else Severity.WARNING
        yield Hit(
            f"{name} {environment.versions[name]} is deprecated; torch 2.8 and newer use xccl", path=f"versions.{name}", severity=severity
        )
    if _minor(environment, _IPEX) and _minor(environment, _IPEX) == _minor(environment, "torch"):
        message = f"{_IPEX} {environment.versions[_IPEX]} is retired: 2.8 was its last public release"
        yield Hit(message, path=f"versions.{_IPEX}", severity=Severity.INFO)


@rule("ENV005", Severity.ERROR, Environment, fails_at="engine start", checked="source", source="torch-ccl")
def bindings_of_another_torch(environment: Environment) -> Iterator[Hit]:
    """The oneCCL bindings are built against one minor version of torch, and the installed torch is another.

    Their import ends in an undefined symbol; the backend `ccl` is then not known to torch.distributed. With torch 2.8 and newer
    use `xccl`, which needs no bindings.

    Bad `environment.json`:
        {"versions": {"torch": "2.7.1", "oneccl-bind-pt": "2.5.0"}}

    Good `environment.json`:
        {"versions": {"torch": "2.8.0"}, "torch": {"backends": ["gloo", "xccl"]}}
    """
    for name in _BINDINGS:
        bound, torch = _minor(environment, name), _minor(environment, "torch")
        if bound and torch and bound != torch:
            message = f"{name} {environment.versions[name]} is built for another torch than {environment.versions['torch']}"
            yield Hit(message, path=f"versions.{name}", fix=Fix({name: None}, note="xccl of torch 2.8 and newer takes its place"))


@rule("ENV006", Severity.ERROR, Environment, fails_at="first step", checked="report", source="openfl-issue-999")
def numpy_2_under_old_torch(environment: Environment) -> Iterator[Hit]:
    """torch before 2.3 was compiled against NumPy 1 and cannot use NumPy 2.

    torch imports with a long warning, and the first `tensor.numpy()` or `torch.from_numpy` raises "Numpy is not available":
    as a rule in the data loader.

    Bad `environment.json`:
        {"versions": {"torch": "2.2.2", "numpy": "2.0.1"}}

    Good `environment.json`:
        {"versions": {"torch": "2.2.2", "numpy": "1.26.4"}}
    """
    if environment.at_least("numpy", 2) and environment.at_least("torch", 2, 3) is False:
        message = f"torch {environment.versions['torch']} cannot use numpy {environment.versions['numpy']}"
        yield _typed(message, "pip install 'numpy<2'", "versions.numpy", Fix({"numpy": "<2"}))


@rule("ENV007", Severity.WARNING, Environment, fails_at="engine start", checked="run", source="python-packaging-metadata")
def unmet_requirement(environment: Environment) -> Iterator[Hit]:
    """An installed package states a requirement that the installed version of another does not meet.

    Such is left behind by `pip install` over a module or conda environment: the one that was installed last wins. Compiled
    companions of torch (torchvision, torchaudio, triton) fail at import with undefined symbols, others later.

    Bad `environment.json`:
        {"versions": {"torch": "2.13.0"}, "unmet": [{"package": "torchvision", "needs": "torch==2.5.0", "found": "2.13.0"}]}

    Good `environment.json`:
        {"versions": {"torch": "2.13.0"}, "unmet": []}
    """
    for gap in environment.unmet:
        found = f"{gap.found} is installed" if gap.found else "it is not installed"
        yield Hit(f"{gap.package} needs {gap.needs}, and {found}", path=f"versions.{gap.package}")


@rule("ENV008", Severity.ERROR, Environment, fails_at="engine start", checked="source", source="nvidia-cuda-compatibility")
def cuda_newer_than_driver(environment: Environment) -> Iterator[Hit]:
    """torch is built for a major version of CUDA that the NVIDIA driver does not know.

    torch imports, says that the driver is too old, and finds no device. CUDA 11, 12 and 13 need driver 450, 525 and 580;
    within one major version a newer toolkit runs on an older driver, so that is not judged.

    Bad `environment.json`:
        {"versions": {"torch": "2.13.0"}, "torch": {"cuda": "13.0"}, "nvidia_driver": "550.90.07"}

    Good `environment.json`:
        {"versions": {"torch": "2.13.0"}, "torch": {"cuda": "12.6"}, "nvidia_driver": "550.90.07"}
    """
    cuda, driver = release(environment.torch.cuda or ""), release(environment.nvidia_driver or "")
    if cuda and driver and driver[0] < (needed := _DRIVERS.get(cuda[0], 0)):
        fits = max((major for major, branch in _DRIVERS.items() if branch <= driver[0]), default=None)
        instead = f"install a torch for CUDA {fits}" if fits else "ask for a newer driver"
        message = (
            f"torch is built for CUDA {environment.torch.cuda}, which needs driver {needed} or newer; this is {environment.nvidia_driver}"
        )
        yield Hit(f"{message}: {instead}", path="torch.cuda")


@rule("ENV009", Severity.ERROR, Environment, fails_at="never", checked="source", source="torch-2.13.0-version")
def torch_without_this_device(environment: Environment) -> Iterator[Hit]:
    """The machine has accelerators that the installed torch is not built for.

    torch finds no device and every library falls back to the CPU, mostly without a word: Accelerate trains as MULTI_CPU. The
    wheels of PyPI are built for CUDA on Linux; those for ROCm, XPU and CPU are on PyTorch's own index.

    Bad `environment.json`:
        {"versions": {"torch": "2.13.0+cpu"}, "torch": {"state": "ok"}, "seen": ["nvidia"]}

    Good `environment.json`:
        {"versions": {"torch": "2.13.0"}, "torch": {"state": "unfinished", "cuda": "12.6"}, "seen": ["nvidia"]}
    """
    torch, version = environment.torch, environment.versions.get("torch", "")
    # Before 2.6 version.py says nothing of XPU: only a torch that imports and sees nothing, or that is for CPUs by its name, is judged.
    if environment.devices or not version or not (torch.state == "ok" or "+cpu" in version):
        return
    if not any(_built(environment, maker) for maker in environment.seen):
        for maker in (one for one in _BUILDS if one in environment.seen):
            yield Hit(f"{maker} devices are here, and torch {version} is not built for {_BUILDS[maker]}", path="torch")


_BUILDS = {"nvidia": "CUDA", "amd": "ROCm", "intel": "XPU"}


def _built(environment: Environment, maker: str) -> bool:
    """Whether torch is built for that maker's devices, by its version.py or by its own name (+xpu, +rocm6.4)."""
    torch = environment.torch
    said = {"nvidia": torch.cuda, "amd": torch.hip, "intel": torch.xpu}.get(maker)
    return bool(said) or f"+{_BUILDS.get(maker, 'none').lower()}" in environment.versions.get("torch", "")


@rule("ENV010", Severity.ERROR, Environment, fails_at="never", checked="source", source="accelerate-1.15.0-state")
def accelerate_finds_no_xccl(environment: Environment) -> Iterator[Hit]:
    """Accelerate 1.13 and newer knows only the backend xccl on Intel GPUs, and this torch has none.

    Without it the job's distributed type becomes NO and every rank trains alone, with exit code 0. xccl came with torch 2.8.

    Bad `environment.json`:
        {"versions": {"torch": "2.7.1+xpu", "accelerate": "1.15.0"}, "torch": {"xpu": "20250"}, "seen": ["intel"]}

    Good `environment.json`:
        {"versions": {"torch": "2.10.0+xpu", "accelerate": "1.15.0"}, "torch": {"xpu": "20250"}, "seen": ["intel"]}
    """
    torch = environment.torch
    lacks = environment.at_least("torch", 2, 8) is False or (torch.state == "ok" and bool(torch.backends) and "xccl" not in torch.backends)
    if environment.uses("xpu") and bool(torch.xpu) and environment.at_least("accelerate", 1, 13) and lacks:
        have = f"accelerate {environment.versions['accelerate']} and torch {environment.versions.get('torch', '')}"
        yield Hit(f"{have}: without xccl every rank trains alone; torch 2.8 or newer for XPU has it", path="versions.accelerate")


@rule("ENV011", Severity.ERROR, Environment, fails_at="engine start", checked="source", source="deepspeed-0.18.5-xpu")
def deepspeed_asks_for_ipex(environment: Environment) -> Iterator[Hit]:
    """DeepSpeed up to 0.18.5 takes Intel GPUs only with Intel Extension for PyTorch, which is not installed.

    It then either stops (DS_ACCELERATOR=xpu: "XPU_Accelerator requires intel_extension_for_pytorch") or runs on the CPU.
    0.18.7 and newer use torch alone.

    Bad `environment.json`:
        {"versions": {"torch": "2.10.0+xpu", "deepspeed": "0.17.5"}, "torch": {"xpu": "20250"}, "seen": ["intel"]}

    Good `environment.json`:
        {"versions": {"torch": "2.10.0+xpu", "deepspeed": "0.18.7"}, "torch": {"xpu": "20250"}, "seen": ["intel"]}
    """
    if environment.uses("xpu") and environment.at_least("deepspeed", 0, 18, 6) is False and not environment.has(_IPEX):
        message = f"deepspeed {environment.versions['deepspeed']} finds no Intel GPU without {_IPEX}"
        yield _typed(message, "pip install 'deepspeed>=0.18.7'", "versions.deepspeed", Fix({"deepspeed": ">=0.18.7"}))


@rule("ENV012", Severity.WARNING, Environment, fails_at="never", checked="source", source="alcf-aurora-system-updates")
def stale_module(environment: Environment) -> Iterator[Hit]:
    """A frameworks module is loaded that Aurora has dropped or replaced.

    Pinning an old version after the system's stack has moved can load a mixture: torch is then missing without a message at load
    time. Load `frameworks` without a version, and set variables of CCL and Level Zero after it, since it overrides them.

    Bad `environment.json`:
        {"site": "aurora", "modules": ["frameworks/2025.2.0"]}

    Good `environment.json`:
        {"site": "aurora", "modules": ["frameworks/2025.3.1"]}
    """
    for module in environment.modules:
        if environment.aurora and module in _STALE_MODULES:
            yield _typed(f"module {module} {_STALE_MODULES[module]}", "module load frameworks", "modules")
    names = [module.partition("/")[0] for module in environment.modules]
    if environment.aurora and "frameworks" in names and "oneapi" in names[names.index("frameworks") :]:
        yield Hit("module oneapi was loaded after frameworks: it unsets CONDA_PREFIX and evicts its Python; load it before", path="modules")


@rule("ENV013", Severity.WARNING, Environment, fails_at="never", checked="source", source="python-site")
def package_of_the_user_folder(environment: Environment) -> Iterator[Hit]:
    """Packages come from the user's own folder (~/.local) and stand before those of the module or system.

    `pip install` without a virtual environment puts them there; every Python of the same minor version then takes them, also
    those of modules loaded later. PYTHONNOUSERSITE=1 leaves the folder out.

    Bad `environment.json`:
        {"versions": {"torch": "2.13.0", "numpy": "1.24.0"}, "user_packages": ["numpy"]}

    Good `environment.json`:
        {"versions": {"torch": "2.13.0", "numpy": "2.4.6"}}
    """
    if environment.user_packages:
        names = ", ".join(f"{name} {environment.versions.get(name, '')}".strip() for name in environment.user_packages)
        yield Hit(f"taken from the user's own folder: {names}", path="user_packages", fix=Fix({"PYTHONNOUSERSITE": "1"}))


@rule("ENV014", Severity.WARNING, Environment, fails_at="engine start", checked="run", source="python-sys-path")
def file_shadows_a_module(environment: Environment) -> Iterator[Hit]:
    """A file in the working folder is called as a module of the standard library.

    A script beside it, or `python -m`, imports the file instead of the module: a `queue.py` breaks `import torch` with errors
    that speak of neither. Rename it, or set PYTHONSAFEPATH=1 (Python 3.11 and newer).

    Bad `environment.json`:
        {"shadows": ["queue.py"]}

    Good `environment.json`:
        {"shadows": []}
    """
    if environment.shadows:
        yield Hit(f"{', '.join(environment.shadows)} in the working folder hides the standard module of that name", path="shadows")


@rule("ENV015", Severity.INFO, Environment, fails_at="never", checked="source", source="alcf-polaris")
def login_node(environment: Environment) -> Iterator[Hit]:
    """This is a login node: many people share it, and jobs, benchmarks and large imports do not belong here.

    The next command asks the scheduler for a node of one's own. A login node often has other devices, other modules and other
    limits than the nodes that jobs run on, so what is seen here says little of them.

    Bad `environment.json`:
        {"role": "login", "site": "polaris", "scheduler": "pbs"}

    Good `environment.json`:
        {"role": "batch", "site": "polaris", "scheduler": "pbs", "nodes": 2}
    """
    if environment.role == "login":
        yield Hit(
            f"this is a login node{f' of {environment.site}' if environment.site else ''}: start no job and no benchmark here", path="role"
        )


@rule("ENV016", Severity.WARNING, Environment, fails_at="first step", checked="report", source="deepspeed-issue-4015")
def small_shared_memory(environment: Environment) -> Iterator[Hit]:
    """/dev/shm is smaller than 1 GiB, as a container's default of 64 MiB is.

    Data loader workers and the communication libraries keep buffers there: a worker ends with "bus error", NCCL and DeepSpeed
    with an error on a shared memory segment. Start the container with --shm-size or --ipc=host.

    Bad `environment.json`:
        {"shm_bytes": 67108864}

    Good `environment.json`:
        {"shm_bytes": 8589934592}
    """
    if environment.shm_bytes is not None and environment.shm_bytes < _SHM:
        message = f"/dev/shm has {format_bytes(environment.shm_bytes)}; data loaders and communication need 1 GiB or more"
        yield Hit(message, path="shm_bytes", fix=Fix({"--shm-size": "8g"}, note="of the container"))


@rule("ENV017", Severity.ERROR, Environment, fails_at="never", checked="source", source="torch-2.13.0-cuda")
def torch_sees_no_device(environment: Environment) -> Iterator[Hit]:
    """torch is built for the devices of this machine, imports, and sees none of them.

    Jobs then run on the CPU, mostly without a word. Reasons, the most frequent first: a variable that hides them (ENV022), a driver
    that is older than torch needs (ENV008) or that was updated without a restart, a container that was started without its devices.

    Bad `environment.json`:
        {"versions": {"torch": "2.13.0"}, "torch": {"state": "ok", "cuda": "12.6"}, "seen": ["nvidia"]}

    Good `environment.json`:
        {"versions": {"torch": "2.13.0"}, "torch": {"state": "ok", "cuda": "12.6"}, "seen": ["nvidia"],
         "devices": [{"kind": "cuda", "name": "NVIDIA H200"}]}
    """
    for maker in (one for one in _BUILDS if one in environment.seen and _built(environment, one)):
        if environment.torch.state == "ok" and not environment.devices:
            yield Hit(f"{maker} devices are here, and torch, which is built for {_BUILDS[maker]}, sees none", path="devices")


def _typed(message: str, command: str, path: str, fix: Fix | None = None) -> Hit:
    """A hit that one command mends; doctor shows it as the next to type."""
    return Hit(f"{message}; type: {command}", path=path, fix=fix, data={"command": command})


def _minor(environment: Environment, name: str) -> tuple[int, ...]:
    """(2, 8) of 2.8.10; () where it is not installed or cannot be read."""
    return release(environment.versions.get(name, ""))[:2]
