# ruff: noqa: E501 -- a row is one line
"""Environment variables that are known to hurt: one row each. A rule of rules/environment_variables.py reads each group.

`when` sees the environment and the value. `source` is an id in references/sources.yaml. A row belongs to one stack and one time:
what is true of one version is often false of the next, so most rows ask for a site, a kind of device or a version.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from trainwright.environment import Environment
from trainwright.report import Severity

Test = Callable[[Environment, str], bool]
RESERVED = frozenset((0, 52, 104, 156))  # processors that Aurora keeps for its system since 2025-03-31


@dataclass(frozen=True, slots=True)
class Trap:
    """A variable, when its value hurts, why, what to set instead (None: unset it), and whose word that is."""

    variable: str
    when: Test
    says: str
    instead: str | None
    source: str
    severity: Severity | None = None
    fails_at: str = ""


def of(pattern: str) -> Test:
    """The whole value, in any case."""
    return lambda environment, value: re.fullmatch(pattern, value.strip(), re.IGNORECASE) is not None


def below(limit: int) -> Test:
    return lambda environment, value: value.strip().isdecimal() and int(value.strip()[:18]) < limit


def on(test: Test, *, site: str = "", kind: str = "", since: tuple[int, ...] = (), before: tuple[int, ...] = (), nodes: int = 0) -> Test:
    """`test`, where the site is Aurora's, jobs compute on `kind`, torch is `since` and not yet `before`, and there are `nodes` or more."""

    def judge(environment: Environment, value: str) -> bool:
        return (
            (not site or environment.aurora)
            and (not kind or environment.aurora or environment.uses(kind))
            and (not since or environment.at_least("torch", *since) is True)
            and (not before or environment.at_least("torch", *before) is False)
            and (environment.nodes or 1) >= (nodes or 1)
            and test(environment, value)
        )

    return judge


def _reserved(environment: Environment, value: str) -> bool:
    return any(part.strip().isdecimal() and int(part.strip()[:6]) in RESERVED for part in value.split(","))


ANY, YES = of(r".*"), of(r"1|true|yes|on|y")
XPU, AURORA = "xpu", "aurora"
INFO, WARNING, ERROR = Severity.INFO, Severity.WARNING, Severity.ERROR
_ALCF, _CCL, _PRISM, _NCCL = "alcf-aurora-oneccl", "oneccl-environment", "prism-distributed-strategy", "nccl-environment"

# fmt: off
COLLECTIVES = (
    Trap("CCL_REDUCE_SCATTER", on(of("ring"), kind=XPU), "a ring reduce-scatter was banned after failures in FSDP on Aurora", None, _PRISM),
    Trap("CCL_REDUCE_SCATTER_SCALEOUT", on(of("ring"), kind=XPU), "a ring reduce-scatter was banned after failures in FSDP on Aurora", None, _PRISM),
    Trap("CCL_WORKER_COUNT", on(of(r"[2-9]|\d\d+"), kind=XPU), "oneCCL advises against more than one worker for GPU buffers", "1", _CCL),
    Trap("CCL_WORKER_AFFINITY", on(_reserved, site=AURORA), "it names a core that Aurora keeps for its system (0, 52, 104, 156)", "42,43,44,45,46,47,94,95,96,97,98,99", "alcf-aurora-running-jobs", ERROR, "engine start"),
    Trap("CCL_BCAST", on(of("double_tree|direct|naive"), site=AURORA, before=(2, 8)), "this broadcast crashed DDP in frameworks 2025.0 and 2025.1", None, "aurora-bug-34", ERROR),
    Trap("CCL_ALLREDUCE_SCALEOUT", on(of(r".*rabenseifner.*"), site=AURORA, since=(2, 8), before=(2, 9)), "Rabenseifner all-reduce fails in frameworks 2025.2.0", "direct", "alcf-aurora-system-updates", ERROR),
    Trap("CCL_ATL_TRANSPORT", on(of("ofi"), site=AURORA), "ALCF's tested set for training has mpi", "mpi", _ALCF),
    Trap("CCL_KVS_MODE", on(of("pmi"), site=AURORA), "ALCF's tested set for training has mpi", "mpi", _ALCF),
    Trap("CCL_KVS_CONNECTION_TIMEOUT", on(below(600), site=AURORA, nodes=2), "short at scale, where ranks start far apart", "600", _ALCF),
    Trap("CCL_ZE_IPC_EXCHANGE", on(of("drmfd"), kind=XPU), "the default is pidfd since oneCCL 2021.14; sockets help where pidfd hangs", None, "torch-xpu-ops-issue-4238", INFO),
    Trap("CCL_SEND", on(of("direct"), kind=XPU, since=(2, 9)), "needed on torch 2.8 only; since 2.9 it only costs speed", None, "pytorch-issue-156782"),
    Trap("CCL_RECV", on(of("direct"), kind=XPU, since=(2, 9)), "needed on torch 2.8 only; since 2.9 it only costs speed", None, "pytorch-issue-156782"),
    Trap("FI_PROVIDER", on(of("shm|tcp|sockets|udp"), site=AURORA), "the Slingshot network is used through cxi only", "cxi", _ALCF),
    Trap("FI_CXI_DEFAULT_CQ_SIZE", on(below(131072), site=AURORA, nodes=2), "too small ends in 'Cassini Event Queue overflow detected'", "131072", "alcf-aurora-known-issues"),
    Trap("FI_MR_CACHE_MONITOR", on(of("disabled"), site=AURORA), "the tested set has userfaultfd; the same page lists disabled as a thing to try", "userfaultfd", _ALCF, INFO),
    *(Trap(f"MPIR_CVAR_{part}COLL_SELECTION_TUNING_JSON_FILE", on(ANY, site=AURORA), "ALCF's tested set unsets it", None, _ALCF, INFO) for part in ("", "CH4_", "CH4_POSIX_")),
    Trap("NCCL_P2P_DISABLE", on(YES, kind="cuda"), "devices of a node then talk through host memory, not NVLink", None, _NCCL),
    Trap("NCCL_SHM_DISABLE", on(YES, kind="cuda"), "ranks of a node then talk through the network where they have no peer access", None, _NCCL),
    Trap("NCCL_IB_DISABLE", on(YES, kind="cuda", nodes=2), "nodes then talk through TCP sockets", None, _NCCL),
    Trap("NCCL_SOCKET_IFNAME", on(of(r"=?lo\d*"), nodes=2), "other nodes cannot be reached through the loopback interface", None, _NCCL, ERROR, "engine start"),
    Trap("GLOO_SOCKET_IFNAME", on(of(r"lo\d*"), nodes=2), "other nodes cannot be reached through the loopback interface", None, "torch-2.13.0-distributed", ERROR, "engine start"),
)
DEBUG = (
    Trap("TORCH_DISTRIBUTED_DEBUG", on(of("DETAIL"), since=(2, 13)), "DDP's construction crashes with it on torch 2.13 and gloo (signal 11), and every collective is checked twice", "OFF", "torch-2.13.0-distributed"),
    Trap("TORCH_DISTRIBUTED_DEBUG", on(of("DETAIL"), before=(2, 13)), "every collective is checked by one more; with NCCL, init was seen to hang", "OFF", "pytorch-issue-129672"),
    Trap("TORCH_XCCL_BLOCKING_WAIT", on(YES, kind=XPU), "without a time limit given to wait() it waits for ever: XCCL enforces none", None, "torch-xpu-ops-xccl"),
    Trap("CCL_LOG_LEVEL", of("trace|debug"), "floods the output of every rank", "warn", "aurora-bug-35"),
    Trap("NCCL_DEBUG", of("TRACE"), "floods the output of every rank", "WARN", _NCCL),
    Trap("CUDA_LAUNCH_BLOCKING", YES, "every kernel is waited for: nothing overlaps", None, "torch-2.13.0-cuda"),
    Trap("TORCH_XCCL_NAN_CHECK", on(YES, kind=XPU), "every collective checks its buffers", None, "torch-xpu-ops-xccl", INFO),
    Trap("TORCH_XCCL_ENABLE_TIMING", on(YES, kind=XPU), "every collective is timed", None, "torch-xpu-ops-xccl", INFO),
)
OBSOLETE = (
    Trap("TORCH_NCCL_TRACE_BUFFER_SIZE", ANY, "deprecated", "TORCH_FR_BUFFER_SIZE", "torch-2.13.0-distributed"),
    Trap("NCCL_ASYNC_ERROR_HANDLING", ANY, "deprecated: it was torch's, never NCCL's", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "torch-2.13.0-distributed"),
    Trap("NCCL_BLOCKING_WAIT", ANY, "deprecated: it was torch's, never NCCL's", "TORCH_NCCL_BLOCKING_WAIT", "torch-2.13.0-distributed"),
    Trap("CCL_SYCL_ESIMD", ANY, "a workaround of oneCCL 2021.12; no effect now", None, "torch-ccl"),
    Trap("CCL_SKIP_SCHEDULER", ANY, "a workaround of oneCCL 2021.13; no effect now", None, "torch-ccl"),
    Trap("TORCH_LLM_ALLREDUCE", ANY, "of the oneCCL bindings only; torch's xccl does not read it", None, "torch-ccl"),
    Trap("CCL_ALLGATHERV_MEDIUM_SIZE_THRESHOLD", of("0"), "a workaround of oneCCL 2021.12; no effect now", None, "torch-ccl"),
)
MASKS = (
    Trap("CUDA_VISIBLE_DEVICES", on(of(r"|-1|none|nodevfiles"), kind="cuda"), "hides every device: torch then computes on the CPU", None, "torch-2.13.0-cuda", ERROR, "never"),
    Trap("ONEAPI_DEVICE_SELECTOR", lambda e, v: v == "level_zero:gpu" and e.versions.get("triton-xpu", "") == "3.6.0", "broke Triton-XPU 3.6.0 (3.6.1 mends it)", "opencl:gpu;level_zero:gpu", "aurora-bug-102"),
    Trap("ONEAPI_DEVICE_SELECTOR", on(of(r".*opencl:cpu.*|opencl:gpu"), kind=XPU), "leaves Level Zero out, which torch needs", "level_zero:gpu", "alcf-aurora-pytorch", ERROR, "engine start"),
)
# fmt: on

# What a site's own guide sets for training over several nodes, and where it says so.
RECOMMENDED = {
    "aurora": (
        {"CCL_PROCESS_LAUNCHER": "pmix", "CCL_ATL_TRANSPORT": "mpi", "FI_MR_CACHE_MONITOR": "userfaultfd", "CCL_KVS_MODE": "mpi"},
        _ALCF,
    ),
    "polaris": (
        {"NCCL_NET": "AWS Libfabric", "NCCL_NET_GDR_LEVEL": "PHB", "NCCL_CROSS_NIC": "1", "NCCL_COLLNET_ENABLE": "1"},
        "alcf-polaris-nccl",
    ),
}
RECOMMENDED["sunspot"] = RECOMMENDED["aurora"]

# Several names of one fact, the first that a launcher sets wins. Slurm's are inherited from salloc: they count inside srun only.
RANK = ("RANK", "PMIX_RANK", "PALS_RANKID", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID")
LOCAL_RANK = ("LOCAL_RANK", "PALS_LOCAL_RANKID", "PMI_LOCAL_RANK", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
WORLD_SIZE = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS")
_OTHERS = (
    *("ZE_FLAT_DEVICE_HIERARCHY", "ZE_AFFINITY_MASK", "ZE_ENABLE_PCI_ID_DEVICE_ORDER", "ZEX_NUMBER_OF_CCS", "LD_PRELOAD", "TMPDIR"),
    *("TORCH_XPU_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "OMP_NUM_THREADS", "MASTER_ADDR", "MASTER_PORT"),
    *("CCL_PROCESS_LAUNCHER", "CCL_LOCAL_RANK", "CCL_LOCAL_SIZE", "CCL_CONFIGURATION", "CCL_CONFIGURATION_PATH", "CCL_OP_SYNC"),
    *("CCL_ATL_SYNC_COLL", "CCL_ALLREDUCE", "CCL_MNIC", "CCL_ROOT", "TORCH_FR_BUFFER_SIZE", "TORCHELASTIC_RUN_ID", "LOCAL_WORLD_SIZE"),
    *("SLURM_STEP_ID", "PALS_PMI", "DS_ACCELERATOR", "ACCELERATE_USE_CPU", "PYTHONNOUSERSITE", "PYTHONSAFEPATH", "HIP_VISIBLE_DEVICES"),
    *("NCCL_NET", "NCCL_NET_GDR_LEVEL", "NCCL_CROSS_NIC", "NCCL_COLLNET_ENABLE", "FI_CXI_RX_MATCH_MODE", "XLA_DOWNCAST_BF16"),
)
VARIABLES = tuple(
    dict.fromkeys(
        (*(trap.variable for group in (COLLECTIVES, DEBUG, OBSOLETE, MASKS) for trap in group), *RANK, *LOCAL_RANK, *WORLD_SIZE, *_OTHERS)
    )
)
