"""Rules on the environment variables that jobs inherit: those of oneCCL, libfabric, NCCL, Level Zero, torch and the launchers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from trainwright.check import traps
from trainwright.environment import Environment
from trainwright.report import Fix, Severity
from trainwright.rules import Hit, rule


@rule("ENV020", Severity.WARNING, Environment, fails_at="first step", checked="report", source="alcf-aurora-oneccl")
def setting_that_hurts_collectives(environment: Environment) -> Iterator[Hit]:
    """A variable of oneCCL, libfabric, MPI or NCCL has a value that failed, hung or was slow on this stack.

    Such lines are copied from job scripts of other years: a workaround of one version is the fault of the next. Each row names
    its source in `data`. On Aurora set these after `module load frameworks`, which overrides them.

    Bad `environment.json`:
        {"site": "aurora", "variables": {"CCL_WORKER_COUNT": "4", "FI_PROVIDER": "tcp"}}

    Good `environment.json`:
        {"site": "aurora", "variables": {"CCL_WORKER_COUNT": "1", "FI_PROVIDER": "cxi", "CCL_ATL_TRANSPORT": "mpi"}}
    """
    yield from _trapped(environment, traps.COLLECTIVES)
    configuration, path = (environment.variables.get(name) for name in ("CCL_CONFIGURATION", "CCL_CONFIGURATION_PATH"))
    if (configuration is None) != (path is None) and environment.aurora:
        message = "CCL_CONFIGURATION and CCL_CONFIGURATION_PATH are set together or not at all"
        yield Hit(
            message, path="variables.CCL_CONFIGURATION", fix=Fix({"CCL_CONFIGURATION": "cpu_gpu_dpcpp", "CCL_CONFIGURATION_PATH": ""})
        )


def _trapped(environment: Environment, rows: Iterable[traps.Trap]) -> Iterator[Hit]:
    for trap in rows:
        value = environment.variables.get(trap.variable)
        if value is not None and trap.when(environment, value):
            shown = f"{trap.variable}={_short(value)}"
            # A new name takes the old one's place; any other text is the value to give.
            renamed = trap.instead is not None and trap.instead.isupper() and "_" in trap.instead
            fix = Fix({trap.variable: None, trap.instead: value} if renamed and trap.instead else {trap.variable: trap.instead})
            message = f"{shown}: {trap.says}"
            yield Hit(message, None, f"variables.{trap.variable}", fix, trap.severity, trap.fails_at, {"source": trap.source})


def _short(value: str) -> str:
    return value if len(value) <= 80 else f"{value[:77]}..."


@rule("ENV021", Severity.ERROR, Environment, fails_at="first step", checked="report", source="oneccl-issue-177")
def allocator_setting_beside_ccl(environment: Environment) -> Iterator[Hit]:
    """torch's allocator is told to change its ways on an Intel GPU, and oneCCL then refuses its pointers.

    TORCH_XPU_ALLOC_CONF (or PYTORCH_ALLOC_CONF with expandable segments) hands out virtual memory, which collectives do not
    know: "invalid usm pointer type: unknown" in the first one. Leave both unset where ranks talk through oneCCL.

    Bad `environment.json`:
        {"seen": ["intel"], "variables": {"TORCH_XPU_ALLOC_CONF": "expandable_segments:True"}}

    Good `environment.json`:
        {"seen": ["intel"], "variables": {}}
    """
    if not (environment.aurora or environment.uses("xpu")):
        return
    for name in ("TORCH_XPU_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        value = environment.variables.get(name, "")
        if value and (name.startswith("TORCH_XPU") or re.search(r"expandable_segments\s*:\s*true", value, re.IGNORECASE)):
            yield Hit(
                f"{name}={_short(value)}: oneCCL refuses what this allocator hands out", path=f"variables.{name}", fix=Fix({name: None})
            )


@rule("ENV022", Severity.WARNING, Environment, fails_at="engine start", checked="source", source="alcf-aurora-pytorch")
def devices_hidden_or_renumbered(environment: Environment) -> Iterator[Hit]:
    """A variable hides devices, or numbers them otherwise than the job does.

    ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE shows six cards on Aurora where FLAT shows twelve tiles. Under ZE_AFFINITY_MASK or
    CUDA_VISIBLE_DEVICES a rank that sees one device has to take device 0: set_device(local_rank) fails on all but the first.

    Bad `environment.json`:
        {"site": "aurora", "ranks_per_node": 12, "variables": {"ZE_FLAT_DEVICE_HIERARCHY": "FLAT", "ZE_AFFINITY_MASK": "3"}}

    Good `environment.json`:
        {"site": "aurora", "ranks_per_node": 12, "variables": {"ZE_FLAT_DEVICE_HIERARCHY": "FLAT"}}
    """
    yield from _trapped(environment, traps.MASKS)
    yield from _hierarchy(environment)
    for name in ("ZE_AFFINITY_MASK", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        yield from _mask(environment, name)


def _hierarchy(environment: Environment) -> Iterator[Hit]:
    value, ranks = environment.variables.get("ZE_FLAT_DEVICE_HIERARCHY", "").upper(), environment.ranks_per_node or 0
    if environment.aurora and value == "COMPOSITE" and (ranks > 6 or not ranks):
        many = f"{ranks} ranks" if ranks else "twelve ranks"
        message = f"ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE shows six devices a node: too few for {many}"
        yield Hit(
            message, path="variables.ZE_FLAT_DEVICE_HIERARCHY", fix=Fix({"ZE_FLAT_DEVICE_HIERARCHY": "FLAT"}), severity=Severity.ERROR
        )


def _mask(environment: Environment, name: str) -> Iterator[Hit]:
    value = environment.variables.get(name)
    parts = [part.strip() for part in (value or "").split(",") if part.strip()]
    if not parts or not (environment.aurora or any(environment.uses(kind) for kind in ("xpu", "cuda")) or environment.devices):
        return
    if len(set(parts)) < len(parts):
        yield Hit(f"{name}={_short(value or '')} names a device twice", path=f"variables.{name}", severity=Severity.ERROR)
    flat = environment.variables.get("ZE_FLAT_DEVICE_HIERARCHY", "FLAT" if environment.aurora else "").upper() == "FLAT"
    if name.startswith("ZE_") and flat and any("." in part for part in parts):
        yield Hit(
            f"{name}={_short(value or '')} names tiles of cards, and under FLAT a device is a tile: write 3, not 1.1",
            path=f"variables.{name}",
        )
    elif len(parts) == 1 and (environment.ranks_per_node or 0) > 1:
        message = f"{name}={_short(value or '')}: a rank sees one device, so only set_device(0) works, not set_device(local_rank)"
        yield Hit(message, path=f"variables.{name}", fix=Fix({name: None}, note="and pin ranks with set_device(local_rank)"))


@rule("ENV023", Severity.WARNING, Environment, fails_at="engine start", checked="report", source="alcf-aurora-daos")
def preloaded_library(environment: Environment) -> Iterator[Hit]:
    """LD_PRELOAD puts libpil4dfs (DAOS) under every process.

    It breaks `python script` ([Errno 95]) and now and then hangs or aborts with gpu_tile_compact.sh. Only ranks that read
    DAOS need it, with D_IL_COMPATIBLE=1; FSDP and ZeRO-3 runs over DAOS left it out.

    Bad `environment.json`:
        {"site": "aurora", "variables": {"LD_PRELOAD": "/usr/lib64/libpil4dfs.so"}}

    Good `environment.json`:
        {"site": "aurora", "variables": {}}
    """
    if "libpil4dfs" in environment.variables.get("LD_PRELOAD", ""):
        message = "LD_PRELOAD holds libpil4dfs: python scripts break with it ([Errno 95]); preload it for I/O ranks alone"
        yield Hit(message, path="variables.LD_PRELOAD", fix=Fix({"LD_PRELOAD": None}))


@rule("ENV024", Severity.WARNING, Environment, fails_at="never", checked="run", source="torch-2.13.0-distributed")
def debug_setting_left_on(environment: Environment) -> Iterator[Hit]:
    """A setting for finding faults is on, and changes what it watches.

    TORCH_DISTRIBUTED_DEBUG=DETAIL crashes DDP's construction on torch 2.13 with gloo, and hangs elsewhere; the others serialise
    or flood the output. Set them for one short run, and unset them after.

    Bad `environment.json`:
        {"versions": {"torch": "2.13.0"}, "variables": {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}}

    Good `environment.json`:
        {"versions": {"torch": "2.13.0"}, "variables": {"TORCH_DISTRIBUTED_DEBUG": "INFO"}}
    """
    yield from _trapped(environment, traps.DEBUG)


@rule("ENV025", Severity.WARNING, Environment, fails_at="never", checked="source", source="torch-2.13.0-distributed")
def obsolete_variable(environment: Environment) -> Iterator[Hit]:
    """A variable is set that nothing reads any more, or that has a new name.

    Whoever set it believes that something is protected or tuned, and nothing is.

    Bad `environment.json`:
        {"variables": {"NCCL_ASYNC_ERROR_HANDLING": "1"}}

    Good `environment.json`:
        {"variables": {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}}
    """
    yield from _trapped(environment, traps.OBSOLETE)


@rule("ENV026", Severity.WARNING, Environment, fails_at="never", checked="source", source="torch-2.13.0-elastic")
def more_threads_than_processors(environment: Environment) -> Iterator[Hit]:
    """Ranks of a node times OMP_NUM_THREADS is more than the processors that they may use.

    Threads then take turns, and a step takes many times as long. The processors are those that affinity and control groups
    leave: in a container often far fewer than the machine has. torchrun sets 1 where nothing is set.

    Bad `environment.json`:
        {"processors": 8, "ranks_per_node": 4, "variables": {"OMP_NUM_THREADS": "8"}}

    Good `environment.json`:
        {"processors": 8, "ranks_per_node": 4, "variables": {"OMP_NUM_THREADS": "2"}}
    """
    value = environment.variables.get("OMP_NUM_THREADS")
    if value is None:
        return
    threads = _number(value.split(",")[0])
    if threads is None or threads < 1:
        yield Hit(f"OMP_NUM_THREADS={_short(value)} is no number of threads", path="variables.OMP_NUM_THREADS")
    elif environment.processors and threads * (ranks := _ranks(environment)) > environment.processors:
        message = (
            f"{ranks} rank{'s' if ranks > 1 else ''} x OMP_NUM_THREADS={threads} is more than the {environment.processors} processors here"
        )
        yield Hit(message, path="variables.OMP_NUM_THREADS", fix=Fix({"OMP_NUM_THREADS": str(max(1, environment.processors // ranks))}))


def _ranks(environment: Environment) -> int:
    return environment.ranks_per_node or _number(environment.variables.get("LOCAL_WORLD_SIZE", "")) or 1


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() and len(text) < 10 else None


@rule("ENV027", Severity.ERROR, Environment, fails_at="engine start", checked="source", source="torch-2.13.0-distributed")
def master_address(environment: Environment) -> Iterator[Hit]:
    """MASTER_ADDR or MASTER_PORT cannot be reached by the ranks of this job.

    Each rank waits for rank 0 there: with localhost over several nodes each node waits for itself, until a time-out of minutes.
    The address is a bare name or number: no scheme, no user, no port. On Aurora take the name in the fast network.

    Bad `environment.json`:
        {"nodes": 2, "variables": {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}}

    Good `environment.json`:
        {"nodes": 2, "variables": {"MASTER_ADDR": "node17", "MASTER_PORT": "29500"}}
    """
    address, port = environment.variables.get("MASTER_ADDR"), environment.variables.get("MASTER_PORT")
    several = (environment.nodes or 1) > 1
    if address is not None:
        if several and re.fullmatch(r"localhost(\..*)?|127\.\d+\.\d+\.\d+|::1|0\.0\.0\.0|::", address.strip(), re.IGNORECASE):
            yield Hit(f"MASTER_ADDR={_short(address)} on {environment.nodes} nodes: each waits for itself", path="variables.MASTER_ADDR")
        elif not address.strip() or re.search(r"[/@\s]|^[^:]+:\d+$", address):
            yield Hit(f"MASTER_ADDR={_short(address)} is no bare name or address", path="variables.MASTER_ADDR")
        elif several and environment.aurora and ".hsn." not in address and not re.match(r"[\d.]+$", address):
            message = f"MASTER_ADDR={_short(address)} is not the name in the fast network (NODE.hsn.cm.{environment.site}.alcf.anl.gov)"
            yield Hit(message, path="variables.MASTER_ADDR", severity=Severity.WARNING)
    if port is not None and not 0 < (_number(port) or 0) < 65536:
        yield Hit(f"MASTER_PORT={_short(port)} is no port", path="variables.MASTER_PORT")


@rule("ENV028", Severity.WARNING, Environment, fails_at="engine start", checked="source", source="torch-2.13.0-distributed")
def launchers_disagree(environment: Environment) -> Iterator[Hit]:
    """Variables of several launchers give this process different ranks or world sizes.

    Libraries take the first that they know: Accelerate knows neither PALS nor PMIx nor Slurm, DeepSpeed knows Open MPI's. So
    one part of a job believes in rank 3 of 8 and another in rank 0 of 1. What an earlier launch left in a shell does the same.

    Bad `environment.json`:
        {"variables": {"RANK": "0", "WORLD_SIZE": "1", "PMI_RANK": "3", "PMI_SIZE": "8"}}

    Good `environment.json`:
        {"variables": {"RANK": "3", "WORLD_SIZE": "8", "PMI_RANK": "3", "PMI_SIZE": "8"}}
    """
    for names in (traps.RANK, traps.LOCAL_RANK, traps.WORLD_SIZE):
        said = {name: environment.variables[name] for name in names if name in environment.variables}
        if "SLURM_STEP_ID" not in environment.variables:
            said = {name: value for name, value in said.items() if not name.startswith("SLURM_")}
        if len(set(said.values())) > 1:
            listed = ", ".join(f"{name}={_short(value)}" for name, value in said.items())
            yield Hit(f"{listed}: they name one fact, and differ", path=f"variables.{next(iter(said))}")


@rule("ENV029", Severity.WARNING, Environment, fails_at="engine start", checked="source", source="alcf-aurora-oneccl")
def ccl_launcher_is_another(environment: Environment) -> Iterator[Hit]:
    """CCL_PROCESS_LAUNCHER names another launcher than the one that starts the ranks.

    oneCCL takes ranks from that launcher's variables: pmix under PALS's mpiexec, torchrun under torchrun, none with
    CCL_LOCAL_RANK and CCL_LOCAL_SIZE. With a wrong one it says "did not find MPI-launcher specific variables", hangs or crashes.

    Bad `environment.json`:
        {"site": "aurora", "variables": {"CCL_PROCESS_LAUNCHER": "hydra"}}

    Good `environment.json`:
        {"site": "aurora", "variables": {"CCL_PROCESS_LAUNCHER": "pmix"}}
    """
    value, elastic = environment.variables.get("CCL_PROCESS_LAUNCHER", "").lower(), "TORCHELASTIC_RUN_ID" in environment.variables
    if not value:
        return
    if elastic and value not in ("torchrun", "none"):
        yield _launcher(value, "torchrun", "torchrun starts these ranks")
    elif value == "none" and "CCL_LOCAL_RANK" not in environment.variables and environment.variables.keys() & {*traps.LOCAL_RANK}:
        yield _launcher(value, "pmix", "none needs CCL_LOCAL_RANK and CCL_LOCAL_SIZE in each rank")
    elif environment.aurora and not elastic and value == "hydra":
        yield _launcher(value, "pmix", "mpiexec of Aurora is PALS's")


def _launcher(value: str, instead: str, why: str) -> Hit:
    return Hit(
        f"CCL_PROCESS_LAUNCHER={_short(value)}: {why}", path="variables.CCL_PROCESS_LAUNCHER", fix=Fix({"CCL_PROCESS_LAUNCHER": instead})
    )


@rule("ENV030", Severity.INFO, Environment, fails_at="never", checked="source", source="alcf-aurora-oneccl")
def recommended_set_missing(environment: Environment) -> Iterator[Hit]:
    """A job over several nodes leaves out variables that the site's guide sets for training.

    On Aurora this is the minimal set that was tested up to 1024 nodes; set it after `module load frameworks`. On Polaris it puts
    NCCL on the fast network; where a job hangs with it (seen with Megatron-DeepSpeed), unset it.

    Bad `environment.json`:
        {"site": "aurora", "role": "batch", "nodes": 2, "variables": {"CCL_PROCESS_LAUNCHER": "pmix"}}

    Good `environment.json`:
        {"site": "aurora", "role": "batch", "nodes": 1}
    """
    recommended, source = traps.RECOMMENDED.get(environment.site or "", ({}, ""))
    lacking = {name: value for name, value in recommended.items() if name not in environment.variables}
    if lacking and environment.role == "batch" and (environment.nodes or 1) > 1:
        listed = " ".join(f"{name}={value}" for name, value in lacking.items())
        yield Hit(
            f"the guide of {environment.site} sets for several nodes: {listed}",
            path="variables",
            fix=Fix({**lacking}),
            data={"source": source},
        )


@rule("ENV031", Severity.INFO, Environment, fails_at="never", checked="source", source="torch-xpu-ops-xccl")
def hang_would_be_silent(environment: Environment) -> Iterator[Hit]:
    """Ranks talk through xccl, which enforces no time limit, and nothing would tell where they wait.

    XCCL neither ends a collective that does not finish nor says so: a hang lasts until the job's walltime. With
    TORCH_FR_BUFFER_SIZE set, the flight recorder keeps the last collectives of each rank; a watchdog outside has to end the job.

    Bad `environment.json`:
        {"role": "batch", "devices": [{"kind": "xpu", "name": "Max 1550"}], "torch": {"state": "ok", "backends": ["gloo", "xccl"]}}

    Good `environment.json`:
        {"role": "batch", "devices": [{"kind": "xpu", "name": "Max 1550"}], "torch": {"state": "ok", "backends": ["gloo", "xccl"]},
         "variables": {"TORCH_FR_BUFFER_SIZE": "2000"}}
    """
    watched = environment.variables.get("TORCH_FR_BUFFER_SIZE", "0") not in ("", "0")
    if environment.role == "batch" and environment.uses("xpu") and "xccl" in environment.torch.backends and not watched:
        message = "xccl has no time limit: a hang is silent until walltime, and no flight recorder is on"
        yield Hit(message, path="variables.TORCH_FR_BUFFER_SIZE", fix=Fix({"TORCH_FR_BUFFER_SIZE": "2000"}))
