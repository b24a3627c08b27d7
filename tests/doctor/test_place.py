"""Site, role and allocation from a host's name, the path and the variables that schedulers set."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainwright.doctor import place as module
from trainwright.doctor.place import place


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No scheduler's variable, and a path with nothing on it."""
    for name in ("PBS_JOBID", "SLURM_JOB_ID", "LSB_JOBID", "FLUX_JOB_ID", "PBS_NODEFILE", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))


def client(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("#!/bin/sh\n")
    (tmp_path / name).chmod(0o755)


def test_a_plain_box() -> None:
    found = place("laptop.home")
    assert (found.site, found.role, found.scheduler, found.job, found.nodes) == (None, "workstation", None, False, None)


@pytest.mark.parametrize(("program", "scheduler"), [("qsub", "pbs"), ("sbatch", "slurm"), ("bsub", "lsf"), ("flux", "flux")])
def test_a_client_without_a_job_is_taken_for_a_login_node(program: str, scheduler: str, tmp_path: Path) -> None:
    client(tmp_path, program)
    found = place("front7")
    assert (found.role, found.scheduler) == ("login", scheduler) and program in found.reason


@pytest.mark.parametrize("host", ["login3", "login-03.cluster.org", "uan-0001", "cluster-login01", "frontend2.x", "headnode"])
def test_a_name_that_says_login(host: str, tmp_path: Path) -> None:
    client(tmp_path, "sbatch")
    assert place(host).role == "login"


def test_a_name_alone_makes_no_login_node() -> None:
    assert place("login-box").role == "workstation" and place("blogin").role == "workstation"


def test_a_compute_node_outside_a_job() -> None:
    found = place("x4305c2s6b0n0")
    assert (found.site, found.role, found.scheduler) == ("aurora", "compute", "pbs")


def test_a_site_brings_its_lines() -> None:
    found = place("polaris-login-01")
    assert found.role == "login" and "filesystems=home:eagle" in (found.interactive or "") and "conda" in (found.stack or "")


@pytest.mark.parametrize(
    ("lines", "nodes", "ranks"),
    [("a\nb\n", 2, None), ("a\na\nb\nb\n", 2, 2), ("a\na\nb\n", 2, None), ("", None, None), ("a " * 12, 1, 12)],
)
def test_pbs(lines: str, nodes: int | None, ranks: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nodes").write_text(lines)
    monkeypatch.setenv("PBS_JOBID", "1.host")
    monkeypatch.setenv("PBS_NODEFILE", str(tmp_path / "nodes"))
    found = place("anything")
    assert (found.role, found.scheduler, found.nodes, found.ranks_per_node) == ("batch", "pbs", nodes, ranks)


@pytest.mark.parametrize("path", ["/no/such/file", "/", "/dev/zero", "a\0b", ""])
def test_a_node_file_that_is_none(path: str) -> None:
    assert module._hosts(path) == []


@pytest.mark.parametrize(
    ("variables", "nodes", "ranks"),
    [
        ({"SLURM_JOB_NUM_NODES": "4", "SLURM_NTASKS_PER_NODE": "8"}, 4, 8),
        ({"SLURM_NNODES": "2", "SLURM_TASKS_PER_NODE": "4(x2)"}, 2, 4),
        ({"SLURM_NNODES": "2", "SLURM_TASKS_PER_NODE": "4,3"}, 2, None),
        ({"SLURM_NNODES": "two"}, None, None),
        ({"SLURM_NNODES": "9" * 30}, None, None),
    ],
)
def test_slurm(variables: dict[str, str], nodes: int | None, ranks: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"SLURM_JOB_ID": "1", **variables}.items():
        monkeypatch.setenv(name, value)
    found = place("anything")
    assert (found.scheduler, found.nodes, found.ranks_per_node) == ("slurm", nodes, ranks)


def test_lsf_and_flux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LSB_JOBID", "1")
    monkeypatch.setenv("LSB_MCPU_HOSTS", "batch1 1 h2 42 h3 42")
    assert (place("h2").scheduler, place("h2").nodes) == ("lsf", 3)
    monkeypatch.delenv("LSB_JOBID")
    for name, value in {"FLUX_JOB_ID": "f1", "FLUX_JOB_NNODES": "2", "FLUX_JOB_SIZE": "16"}.items():
        monkeypatch.setenv(name, value)
    found = place("h2")
    assert (found.scheduler, found.nodes, found.ranks_per_node) == ("flux", 2, 8)
