"""Rules on environments: each row of the traps fires where it says and nowhere else; versions are read as numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from trainwright.check import traps
from trainwright.check.rules import environment as packages_rules
from trainwright.check.rules import environment_variables
from trainwright.environment import Device, Environment, Torch, distribution, release
from trainwright.report import Finding, Severity
from trainwright.rules import check_all

assert packages_rules and environment_variables
ROOT = Path(__file__).resolve().parents[2]
GROUPS = {"COLLECTIVES": traps.COLLECTIVES, "DEBUG": traps.DEBUG, "OBSOLETE": traps.OBSOLETE, "MASKS": traps.MASKS}
ROWS = [row for group in GROUPS.values() for row in group]
SOURCES = yaml.safe_load((ROOT / "references/sources.yaml").read_text(encoding="utf-8"))
# A value for each row that makes it fire, with the stack on which it is true.
AURORA: dict[str, Any] = {"site": "aurora", "nodes": 2, "versions": {"torch": "2.10.0"}}
FIRES: list[tuple[str, str, dict[str, Any]]] = [
    *((name, "ring", AURORA) for name in ("CCL_REDUCE_SCATTER", "CCL_REDUCE_SCATTER_SCALEOUT")),
    ("CCL_WORKER_COUNT", "4", AURORA),
    ("CCL_WORKER_AFFINITY", "1,104", AURORA),
    ("CCL_BCAST", "double_tree", {**AURORA, "versions": {"torch": "2.5.1"}}),
    ("CCL_ALLREDUCE_SCALEOUT", "direct:0-9;rabenseifner:10-max", {**AURORA, "versions": {"torch": "2.8.0a0"}}),
    ("CCL_ATL_TRANSPORT", "ofi", AURORA),
    ("CCL_KVS_MODE", "pmi", AURORA),
    ("CCL_KVS_CONNECTION_TIMEOUT", "120", AURORA),
    ("CCL_ZE_IPC_EXCHANGE", "drmfd", AURORA),
    *((name, "direct", AURORA) for name in ("CCL_SEND", "CCL_RECV")),
    ("FI_PROVIDER", "tcp", AURORA),
    ("FI_CXI_DEFAULT_CQ_SIZE", "1024", AURORA),
    ("FI_MR_CACHE_MONITOR", "disabled", AURORA),
    *((f"MPIR_CVAR_{part}COLL_SELECTION_TUNING_JSON_FILE", "/x.json", AURORA) for part in ("", "CH4_", "CH4_POSIX_")),
    *((name, "1", {"seen": ("nvidia",), "nodes": 2}) for name in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE")),
    *((name, "lo", {"nodes": 2}) for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")),
    ("TORCH_DISTRIBUTED_DEBUG", "DETAIL", {"versions": {"torch": "2.13.0"}}),
    ("TORCH_DISTRIBUTED_DEBUG", "detail", {"versions": {"torch": "2.6.0"}}),
    *((name, "1", AURORA) for name in ("TORCH_XCCL_BLOCKING_WAIT", "TORCH_XCCL_NAN_CHECK", "TORCH_XCCL_ENABLE_TIMING")),
    ("CCL_LOG_LEVEL", "trace", {}),
    ("NCCL_DEBUG", "TRACE", {}),
    ("CUDA_LAUNCH_BLOCKING", "1", {}),
    *((row.variable, "0" if "THRESHOLD" in row.variable else "1", {}) for row in traps.OBSOLETE),
    *(("CUDA_VISIBLE_DEVICES", value, {"seen": ("nvidia",)}) for value in ("", "-1", "NoDevFiles")),
    ("ONEAPI_DEVICE_SELECTOR", "level_zero:gpu", {"versions": {"triton-xpu": "3.6.0"}}),
    ("ONEAPI_DEVICE_SELECTOR", "opencl:gpu", AURORA),
]
QUIET: list[tuple[str, str, dict[str, Any]]] = [
    ("CCL_REDUCE_SCATTER", "topo", AURORA),
    ("CCL_REDUCE_SCATTER", "ring", {}),
    ("CCL_WORKER_COUNT", "1", AURORA),
    ("CCL_WORKER_AFFINITY", "42,43", AURORA),
    ("CCL_BCAST", "double_tree", AURORA),
    ("CCL_ALLREDUCE_SCALEOUT", "direct:0-1048576;rabenseifner:1048577-max", AURORA),
    ("CCL_SEND", "direct", {**AURORA, "versions": {"torch": "2.8.0"}}),
    ("CCL_KVS_CONNECTION_TIMEOUT", "600", AURORA),
    ("NCCL_IB_DISABLE", "1", {"seen": ("nvidia",), "nodes": 1}),
    ("NCCL_P2P_DISABLE", "0", {"seen": ("nvidia",)}),
    ("NCCL_SOCKET_IFNAME", "lo", {"nodes": 1}),
    ("TORCH_DISTRIBUTED_DEBUG", "INFO", {"versions": {"torch": "2.13.0"}}),
    ("CUDA_VISIBLE_DEVICES", "0,1", {"seen": ("nvidia",)}),
    ("CUDA_VISIBLE_DEVICES", "", {}),
    ("ONEAPI_DEVICE_SELECTOR", "opencl:gpu;level_zero:gpu", AURORA),
]


def findings(rules: str, **facts: Any) -> list[Finding]:
    return [finding for finding in check_all(Environment(**facts)) if finding.rule in rules.split()]


def of(variable: str, value: str, facts: dict[str, Any]) -> list[Finding]:
    found = findings("ENV020 ENV022 ENV024 ENV025", variables={variable: value}, **facts)
    return [one for one in found if one.path == f"variables.{variable}"]


@pytest.mark.parametrize(("variable", "value", "facts"), FIRES)
def test_a_trap_fires_with_its_source(variable: str, value: str, facts: dict[str, Any]) -> None:
    found = of(variable, value, facts)
    assert found and variable in found[0].message and found[0].data["source"] in SOURCES


@pytest.mark.parametrize(("variable", "value", "facts"), QUIET)
def test_a_trap_is_silent_elsewhere(variable: str, value: str, facts: dict[str, Any]) -> None:
    assert of(variable, value, facts) == []


def test_every_row_was_made_to_fire_and_names_a_source() -> None:
    for row in ROWS:
        assert row.source in SOURCES, row
        tried = [(value, facts) for variable, value, facts in FIRES if variable == row.variable]
        assert any(row.when(Environment(**facts), value) for value, facts in tried), row


def test_every_variable_that_is_judged_is_also_read() -> None:
    assert {row.variable for row in ROWS} <= set(traps.VARIABLES) and len(set(traps.VARIABLES)) == len(traps.VARIABLES)
    text = (ROOT / "helpers/trainwright/check/rules/environment_variables.py").read_text(encoding="utf-8")
    import re

    named = set(re.findall(r'"((?:CCL|ZE|FI|NCCL|TORCH|PYTORCH|OMP|MASTER|LD|LOCAL|SLURM|TORCHELASTIC|CUDA|HIP)_[A-Z_]+[A-Z])"', text))
    # The first is how two names begin, the second stands in a Good example.
    assert named - {"TORCH_XPU", "TORCH_NCCL_ASYNC_ERROR_HANDLING"} <= set(traps.VARIABLES) and len(named) > 10


@pytest.mark.parametrize(
    ("said", "numbers"),
    [
        ("2.13.0+cpu", (2, 13, 0)),
        ("2.10.0a0+git449b176", (2, 10, 0)),
        ("3", (3,)),
        ("", ()),
        ("unknown", ()),
        ("2.x", (2,)),
        ("9" * 40, (999999,)),
    ],
)
def test_versions_are_numbers(said: str, numbers: tuple[int, ...]) -> None:
    assert release(said) == numbers


def test_names_of_distributions() -> None:
    assert distribution("oneccl_bind.pt") == "oneccl-bind-pt" and distribution("PyYAML") == "pyyaml"


@pytest.mark.parametrize(
    ("versions", "rules"),
    [
        ({"torch": "2.8.0", "intel-extension-for-pytorch": "2.8.10+xpu"}, {"ENV004"}),
        ({"torch": "2.13.0", "intel-extension-for-pytorch": "2.8.0"}, {"ENV003"}),
        ({"torch": "2.5.1+cxx11.abi", "intel-extension-for-pytorch": "2.5.10+xpu", "oneccl-bind-pt": "2.5.0"}, {"ENV004"}),
        ({"torch": "2.10.0", "oneccl-bind-pt": "2.8.0"}, {"ENV004", "ENV005"}),
        ({"torch": "2.2.2", "numpy": "2.0.1"}, {"ENV006"}),
        ({"torch": "2.3.0", "numpy": "2.0.1"}, set()),
        ({"torch": "2.2.2", "numpy": "1.26.4"}, set()),
        ({"torch": "2.13.0", "numpy": "2.4.6", "accelerate": "1.15.0", "deepspeed": "0.19.8"}, set()),
    ],
)
def test_pairs_of_versions(versions: dict[str, str], rules: set[str]) -> None:
    assert {one.rule for one in findings("ENV003 ENV004 ENV005 ENV006 ENV010 ENV011", versions=versions)} == rules


def test_a_pair_that_fits_is_information_only() -> None:
    found = findings("ENV004", versions={"torch": "2.5.1", "intel-extension-for-pytorch": "2.5.10", "oneccl-bind-pt": "2.5.0"})
    assert {one.severity for one in found} == {Severity.INFO}


@pytest.mark.parametrize(
    ("cuda", "driver", "fires"),
    [
        *(("13.0", "575.57", True), ("13.0", "580.65.06", False), ("12.8", "525.60.13", False), ("12.1", "515.1", True)),
        *(("11.8", "450.80", False), ("11.8", "440.1", True), ("14.0", "600.1", False), (None, "500", False), ("12.1", None, False)),
        ("x", "y", False),
    ],
)
def test_cuda_against_the_driver(cuda: str | None, driver: str | None, fires: bool) -> None:
    assert bool(findings("ENV008", torch=Torch(cuda=cuda), nvidia_driver=driver)) is fires


@pytest.mark.parametrize(
    ("torch", "version", "seen", "devices", "fires"),
    [
        (Torch("ok"), "2.13.0+cpu", ("nvidia",), (), True),
        (Torch("ok", cuda="12.6"), "2.13.0", ("nvidia",), (), False),
        (Torch("ok", cuda="12.6"), "2.13.0", ("amd",), (), True),
        (Torch("ok", hip="6.4"), "2.13.0+rocm6.4", ("amd",), (), False),
        (Torch("ok"), "2.13.0+xpu", ("intel",), (), False),
        (Torch("ok", cuda="12.6"), "2.13.0", ("intel", "nvidia"), (), False),
        (Torch("ok"), "2.13.0", ("nvidia",), (Device("cuda", "x"),), False),
        (Torch("absent"), "2.13.0", ("nvidia",), (), False),
        (Torch("unfinished"), "2.5.1+cxx11.abi", ("intel",), (), False),
        (Torch("unfinished"), "2.13.0+cpu", ("nvidia",), (), True),
        (Torch("broken"), "2.13.0", ("nvidia",), (), False),
        (Torch("ok"), "2.13.0+cpu", (), (), False),
    ],
)
def test_torch_against_what_is_in_the_machine(
    torch: Torch, version: str, seen: tuple[str, ...], devices: tuple[Device, ...], fires: bool
) -> None:
    assert bool(findings("ENV009", torch=torch, versions={"torch": version}, seen=seen, devices=devices)) is fires


@pytest.mark.parametrize(
    ("torch", "devices", "fires"),
    [
        (Torch("ok", cuda="12.6"), (), True),
        (Torch("ok", cuda="12.6"), (Device("cuda", "x"),), False),
        (Torch("unfinished", cuda="12.6"), (), False),
        (Torch("ok"), (), False),
    ],
)
def test_a_torch_that_sees_none_of_its_devices(torch: Torch, devices: tuple[Device, ...], fires: bool) -> None:
    assert bool(findings("ENV017", torch=torch, versions={"torch": "2.13.0"}, seen=("nvidia",), devices=devices)) is fires


def test_threads_times_ranks() -> None:
    def fires(threads: str, processors: int | None, ranks: int | None, **more: str) -> bool:
        return bool(findings("ENV026", variables={"OMP_NUM_THREADS": threads, **more}, processors=processors, ranks_per_node=ranks))

    assert (
        fires("8", 8, 4) and fires("4", 8, None, LOCAL_WORLD_SIZE="4") and fires("many", 8, 1) and fires("0", 8, 1) and fires("9", 8, None)
    )
    assert not fires("2", 8, 4) and not fires("8", None, 4) and not fires("2,1", 8, 4) and not fires("8", 8, None)


@pytest.mark.parametrize(
    ("address", "nodes", "site", "fires"),
    [
        ("localhost", 2, None, True),
        ("127.0.0.1", 2, None, True),
        ("0.0.0.0", 2, None, True),
        ("localhost", 1, None, False),
        ("http://h", 1, None, True),
        ("user@h", 1, None, True),
        ("10.0.0.1:29500", 1, None, True),
        ("", 1, None, True),
        ("node17", 2, None, False),
        ("fe80::1", 2, None, False),
        ("x4305c2s6b0n0", 2, "aurora", True),
        ("x4305c2s6b0n0.hsn.cm.aurora.alcf.anl.gov", 2, "aurora", False),
        ("10.115.2.3", 2, "aurora", False),
    ],
)
def test_the_master_address(address: str, nodes: int, site: str | None, fires: bool) -> None:
    assert bool(findings("ENV027", variables={"MASTER_ADDR": address}, nodes=nodes, site=site)) is fires


@pytest.mark.parametrize(("port", "fires"), [("29500", False), ("0", True), ("70000", True), ("http", True), ("", True), ("65535", False)])
def test_the_master_port(port: str, fires: bool) -> None:
    assert bool(findings("ENV027", variables={"MASTER_PORT": port})) is fires


@pytest.mark.parametrize(
    ("variables", "count"),
    [
        ({"RANK": "0", "PMI_RANK": "3"}, 1),
        ({"RANK": "3", "PMI_RANK": "3", "WORLD_SIZE": "8", "OMPI_COMM_WORLD_SIZE": "8"}, 0),
        ({"WORLD_SIZE": "8", "SLURM_NTASKS": "1"}, 0),
        ({"WORLD_SIZE": "8", "SLURM_NTASKS": "1", "SLURM_STEP_ID": "0"}, 1),
        ({"LOCAL_RANK": "1", "MPI_LOCALRANKID": "0", "RANK": "1", "PMIX_RANK": "0"}, 2),
    ],
)
def test_what_launchers_say_of_a_rank(variables: dict[str, str], count: int) -> None:
    assert len(findings("ENV028", variables=variables)) == count


@pytest.mark.parametrize(
    ("variables", "site", "fires"),
    [
        ({"CCL_PROCESS_LAUNCHER": "pmix", "TORCHELASTIC_RUN_ID": "1"}, None, True),
        ({"CCL_PROCESS_LAUNCHER": "torchrun", "TORCHELASTIC_RUN_ID": "1"}, None, False),
        ({"CCL_PROCESS_LAUNCHER": "none", "PALS_LOCAL_RANKID": "0"}, None, True),
        ({"CCL_PROCESS_LAUNCHER": "none", "PALS_LOCAL_RANKID": "0", "CCL_LOCAL_RANK": "0"}, None, False),
        ({"CCL_PROCESS_LAUNCHER": "none"}, None, False),
        ({"CCL_PROCESS_LAUNCHER": "hydra"}, "aurora", True),
        ({"CCL_PROCESS_LAUNCHER": "hydra"}, None, False),
        ({"CCL_PROCESS_LAUNCHER": "pmix"}, "aurora", False),
    ],
)
def test_the_launcher_of_oneccl(variables: dict[str, str], site: str | None, fires: bool) -> None:
    assert bool(findings("ENV029", variables=variables, site=site)) is fires


@pytest.mark.parametrize(
    ("modules", "fires"),
    [
        (("frameworks/2025.0.5",), True),
        (("oneapi/release/2025.3.1", "frameworks/2025.3.1"), False),
        (("frameworks/2025.3.1", "oneapi/release/2026.1.0"), True),
        (("frameworks",), False),
        ((), False),
    ],
)
def test_modules_of_aurora(modules: tuple[str, ...], fires: bool) -> None:
    assert bool(findings("ENV012", site="aurora", modules=modules)) is fires
    assert not findings("ENV012", site="polaris", modules=modules)


@pytest.mark.parametrize(
    ("variable", "value", "facts", "fires"),
    [
        ("ZE_AFFINITY_MASK", "3", {"site": "aurora", "ranks_per_node": 12}, True),
        ("ZE_AFFINITY_MASK", "1.1", {"site": "aurora"}, True),
        ("ZE_AFFINITY_MASK", "0,1,2", {"site": "aurora", "ranks_per_node": 3}, False),
        ("ZE_AFFINITY_MASK", "3", {"ranks_per_node": 12}, False),
        ("CUDA_VISIBLE_DEVICES", "0,0", {"seen": ("nvidia",)}, True),
        ("CUDA_VISIBLE_DEVICES", "0", {"seen": ("nvidia",), "ranks_per_node": 1}, False),
    ],
)
def test_masks(variable: str, value: str, facts: dict[str, Any], fires: bool) -> None:
    assert bool(findings("ENV022", variables={variable: value}, **facts)) is fires


def test_an_environment_of_which_nothing_is_known_has_no_findings() -> None:
    assert check_all(Environment()) == []
