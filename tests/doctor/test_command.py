"""`trainwright doctor` as its users run it: machines with nothing, with a torch that breaks or kills, in jobs, on login nodes."""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from trainwright import hardware, host
from trainwright.cli import main
from trainwright.doctor.profile import as_yaml

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "helpers/trainwright/doctor/doctor.schema.json").read_text(encoding="utf-8"))
FAKE = """
__version__ = "{version}"
class distributed:
    is_available = staticmethod(lambda: True)
    is_gloo_available = staticmethod(lambda: True)
"""
XPU = (
    FAKE
    + """
class _Properties:
    name = "Intel(R) Data Center GPU Max 1550"
    total_memory = 65520 * 2**20
class xpu:
    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 12)
    get_device_properties = staticmethod(lambda index: _Properties)
distributed.is_xccl_available = staticmethod(lambda: True)
"""
)
Make = Callable[..., str]
Doctor = Callable[..., tuple[int, dict[str, Any], str]]


def rules(envelope: dict[str, Any]) -> set[str]:
    return {finding["rule"] for finding in envelope["findings"]}


def valid(envelope: dict[str, Any]) -> None:
    Draft202012Validator.check_schema(SCHEMA)
    errors = [f"{list(e.absolute_path)}: {e.message[:300]}" for e in Draft202012Validator(SCHEMA).iter_errors(envelope["data"])]
    assert not errors
    assert envelope["data"].get("next", {"command": "x"})["command"]


def test_a_machine_with_nothing(doctor: Doctor, interpreter: Make) -> None:
    code, envelope, _ = doctor("--python", interpreter())
    valid(envelope)
    data = envelope["data"]
    assert code == 0 and rules(envelope) == {"ENV001"} and data["devices"] == [] and data["environment"]["torch"]["state"] == "absent"
    assert data["missing"][0]["name"] == "torch" and data["next"]["command"].endswith("pip install torch")
    assert data["place"]["role"] == "workstation" and data["place"]["site"] is None


def test_a_torch_that_imports(doctor: Doctor, interpreter: Make) -> None:
    python = interpreter(FAKE.format(version="2.13.0"), torch="2.13.0", accelerate="1.15.0")
    code, envelope, _ = doctor("--python", python, "--timeout", "30s")
    valid(envelope)
    found = envelope["data"]["environment"]
    assert code == 0 and found["torch"]["state"] == "ok" and found["torch"]["backends"] == ["gloo"]
    assert found["versions"] == {"torch": "2.13.0", "accelerate": "1.15.0"} and envelope["data"]["next"]["command"] == "trainwright demo"


@pytest.mark.parametrize(
    ("source", "state", "said"),
    [
        ("raise ImportError('libsycl.so.8: undefined symbol: urDeviceWaitExp')", "broken", "a oneAPI module"),
        ("raise RuntimeError('half of it is missing')", "broken", "half of it is missing"),
        ("raise SystemExit(3)", "broken", "SystemExit"),
        ("syntax error here", "broken", "SyntaxError"),
        ("import os\nos._exit(3)", "ended", "exit code 3"),
        ("import os\nos._exit(0)", "ended", "exit code 0"),
        ("import ctypes\nctypes.string_at(0)", "ended", "SIGSEGV"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGILL)", "ended", "SIGILL"),
        ("import os\nos.abort()", "ended", "SIGABRT"),
        ('print(\'{"stage": "torch", "state": "fine"}\')\nprint(\'[1]\')\nraise ValueError(\'x\')', "broken", "ValueError: x"),
        ("class cuda:\n    is_available = staticmethod(lambda: 1 / 0)\n", "broken", "asking it for devices raises ZeroDivisionError"),
    ],
)
def test_a_torch_that_breaks_or_ends_the_process(source: str, state: str, said: str, doctor: Doctor, interpreter: Make) -> None:
    code, envelope, _ = doctor("--python", interpreter(source, torch="2.13.0", numpy="2.4.6"), "--timeout", "30s")
    valid(envelope)
    found = envelope["data"]["environment"]
    assert code == 1 and found["torch"]["state"] == state and found["versions"] == {"torch": "2.13.0", "numpy": "2.4.6"}, (
        "the rest is known"
    )
    (finding,) = [one for one in envelope["findings"] if one["rule"] == "ENV002"]
    assert said in finding["message"] and envelope["data"]["next"]["command"] == "trainwright explain ENV002"


def test_a_torch_that_takes_too_long_is_not_waited_for(doctor: Doctor, interpreter: Make, tmp_path: Path) -> None:
    slow = f"import os, time, subprocess, sys\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)"
    python = interpreter(slow, torch="2.13.0")
    code, envelope, _ = doctor("--python", python, "--timeout", "4s")
    valid(envelope)
    assert code == 0 and envelope["data"]["environment"]["torch"]["state"] == "unfinished"
    assert [one for one in envelope["not_checked"] if "doctor --timeout 60s" in one["reason"]]
    assert envelope["data"]["next"]["command"] == f"trainwright doctor --python {python} --timeout 60s"
    if (tmp_path / "pid").exists():
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGCONT)


def test_devices_their_entry_and_the_next_command(doctor: Doctor, interpreter: Make) -> None:
    python = interpreter(XPU.format(version="2.10.0a0"), torch="2.10.0a0+git449b176", accelerate="1.15.0", deepspeed="0.18.7")
    _, envelope, _ = doctor("--python", python, "--timeout", "30s")
    valid(envelope)
    rows = envelope["data"]["devices"]
    assert len(rows) == 12 and {(row["entry"], row["seen_by"]) for row in rows} == {("max-1550-tile", "torch")}
    assert envelope["data"]["next"]["command"] == "trainwright advise --model config.json --devices 12 --accelerator max-1550-tile"
    assert {gap["name"]: gap["command"] for gap in envelope["data"]["missing"]} == {
        "intel-extension-for-pytorch": None,
        "oneccl_bindings_for_pytorch": None,
    }, "what xccl and torch replace needs no command"


def test_pairings_are_judged_in_the_jobs_interpreter(doctor: Doctor, interpreter: Make) -> None:
    python = interpreter(
        FAKE.format(version="2.13.0"), torch="2.13.0", intel_extension_for_pytorch="2.8.0", oneccl_bind_pt="2.5.0", numpy="2.0.0"
    )
    code, envelope, _ = doctor("--python", python, "--timeout", "30s")
    assert code == 1 and {"ENV003", "ENV004", "ENV005"} <= rules(envelope)
    assert envelope["data"]["next"]["command"] == f"{python} -m pip uninstall intel-extension-for-pytorch"


def test_requirements_that_are_not_met(doctor: Doctor, interpreter: Make, install: Callable[..., None]) -> None:
    import packaging

    python = interpreter(FAKE.format(version="2.13.0"), torch="2.13.0")
    packages = next(Path(python).parents[1].glob("lib/python3*/site-packages"))
    (packages / "packaging").symlink_to(Path(packaging.__file__).parent)
    install(
        packages,
        "torchvision",
        "0.20.0",
        "torch==2.5.0",
        "numpy",
        "scipy ; extra == 'scipy'",
        "torch>=2 ; python_version < '3'",
        "b@d l!ne",
    )
    _, envelope, _ = doctor("--python", python, "--timeout", "30s")
    assert envelope["data"]["environment"]["unmet"] == [
        {"package": "torchvision", "needs": "torch==2.5.0", "found": "2.13.0"},
        {"package": "torchvision", "needs": "numpy", "found": None},
    ]
    assert "ENV007" in rules(envelope)


AURORA = {
    "PBS_JOBID": "12345.aurora-pbs-0001",
    "PBS_ENVIRONMENT": "PBS_BATCH",
    "LOADEDMODULES": "mpich/20231026:oneapi/release/2025.3.1:frameworks/2025.3.1",
    "CONDA_DEFAULT_ENV": "aurora_frameworks-2025.3.1",
    "ZE_FLAT_DEVICE_HIERARCHY": "FLAT",
    "ONEAPI_DEVICE_SELECTOR": "opencl:gpu;level_zero:gpu",
    "CCL_PROCESS_LAUNCHER": "pmix",
    "CCL_ATL_TRANSPORT": "mpi",
    "CCL_KVS_MODE": "mpi",
    "FI_MR_CACHE_MONITOR": "userfaultfd",
    "FI_PROVIDER": "cxi",
    "CCL_WORKER_COUNT": "1",
    "CCL_OP_SYNC": "1",
}


@pytest.fixture
def aurora(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, interpreter: Make, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """doctor in this process on a host called as Aurora's are, with twelve tiles and the documented variables."""
    from trainwright.doctor import place

    nodes = tmp_path / "nodes"
    nodes.write_text("x4305c2s6b0n0.hsn.cm.aurora.alcf.anl.gov\nx4305c2s7b0n0.hsn.cm.aurora.alcf.anl.gov\n")
    python = interpreter(XPU.format(version="2.10.0a0"), torch="2.10.0a0+git449b176", accelerate="1.15.0", deepspeed="0.18.7")

    def run(*arguments: str, host: str = "x4305c2s6b0n0", **variables: str) -> dict[str, Any]:
        for scheduler in place.SCHEDULERS.values():
            monkeypatch.delenv(scheduler[1], raising=False)
        for name, value in {**AURORA, "PBS_NODEFILE": str(nodes), **variables}.items():
            monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(platform, "node", lambda: host)
        main(["doctor", "--python", python, "--timeout", "30s", "--format", "json", "--limit", "0", *arguments])
        return dict(json.loads(capsys.readouterr().out))

    return run


def test_aurora_in_a_job(aurora: Callable[..., Any]) -> None:
    envelope = aurora()
    valid(envelope)
    place, found = envelope["data"]["place"], envelope["data"]["environment"]
    assert (place["site"], place["role"], place["scheduler"], place["job"], place["nodes"]) == ("aurora", "batch", "pbs", True, 2)
    assert found["modules"][-1] == "frameworks/2025.3.1" and envelope["data"]["interpreter"]["conda"] == "aurora_frameworks-2025.3.1"
    assert not [one for one in envelope["findings"] if one["severity"] != "info"], "the documented environment is a good one"
    assert envelope["data"]["next"]["command"].endswith("--devices 24 --accelerator max-1550-tile")


def test_the_profile_of_a_known_kind_of_node(aurora: Callable[..., Any], tmp_path: Path) -> None:
    table = aurora("--hardware")["data"]["hardware"]
    found = table["nodes"]["this-machine"]
    assert found["devices"] == [{"accelerator": "this-machine-device", "count": 12}] and found["reserved_cores"]["cpus"] == [
        0,
        52,
        104,
        156,
    ]
    assert [link["level"] for link in found["links"]] == ["card", "node", "host", "network"]
    assert {link["measured_bytes_per_s"]["value"] for link in found["links"]} == {None}, "what others measured is not measured here"
    assert found["links"][3]["bytes_per_s"]["value"] == 25e9 and "aurora" in found["title"]
    path = tmp_path / "machine.yaml"
    path.write_text("\n".join(as_yaml(table)))
    assert hardware.node("this-machine", hardware.load(str(path))).reserved_cpus == (0, 52, 104, 156)
    schema = json.loads((ROOT / "helpers/trainwright/hardware.schema.json").read_text(encoding="utf-8"))
    assert [error.message for error in Draft202012Validator(schema).iter_errors(table)] == []


@pytest.mark.parametrize(
    ("variable", "value", "rule", "severity"),
    [
        ("TORCH_XPU_ALLOC_CONF", "expandable_segments:True", "ENV021", "error"),
        ("CCL_REDUCE_SCATTER", "ring", "ENV020", "warning"),
        ("CCL_WORKER_AFFINITY", "42,43,52", "ENV020", "error"),
        ("ZE_FLAT_DEVICE_HIERARCHY", "COMPOSITE", "ENV022", "error"),
        ("LD_PRELOAD", "/usr/lib64/libpil4dfs.so.none", "ENV023", "warning"),
        ("MASTER_ADDR", "localhost", "ENV027", "error"),
        ("MASTER_ADDR", "x4305c2s6b0n0", "ENV027", "warning"),
        ("CCL_PROCESS_LAUNCHER", "hydra", "ENV029", "warning"),
        ("FI_CXI_DEFAULT_CQ_SIZE", "4096", "ENV020", "warning"),
        ("LOADEDMODULES", "frameworks/2025.0.5", "ENV012", "warning"),
        ("CCL_SEND", "direct", "ENV020", "warning"),
        ("TORCH_XCCL_BLOCKING_WAIT", "1", "ENV024", "warning"),
    ],
)
def test_a_trap_on_aurora(variable: str, value: str, rule: str, severity: str, aurora: Callable[..., Any]) -> None:
    found = [(one["rule"], one["severity"]) for one in aurora(**{variable: value})["findings"]]
    assert (rule, severity) in found


def test_a_job_without_the_guides_set(aurora: Callable[..., Any]) -> None:
    found = {one["rule"]: one for one in aurora(CCL_ATL_TRANSPORT="", CCL_KVS_MODE="")["findings"]}
    assert found["ENV030"]["fix"]["set"] == {"CCL_ATL_TRANSPORT": "mpi", "CCL_KVS_MODE": "mpi"} and found["ENV030"]["severity"] == "info"
    assert "ENV031" in found and "ENV031" not in rules(aurora(TORCH_FR_BUFFER_SIZE="2000"))


def test_torch_is_not_imported_on_a_login_node(doctor: Doctor, interpreter: Make, program: Make, tmp_path: Path) -> None:
    python = interpreter(f"open({str(tmp_path / 'imported')!r}, 'w')", torch="2.13.0")
    path = program("qsub", "#!/bin/sh\nexit 1\n")
    _, envelope, _ = doctor("--python", python, PATH=path)
    valid(envelope)
    assert envelope["data"]["environment"]["torch"]["state"] == "unknown" and not (tmp_path / "imported").exists()
    assert envelope["data"]["environment"]["versions"] == {"torch": "2.13.0"}
    assert "not tried on a login node" in envelope["not_checked"][0]["reason"] and envelope["data"]["next"]["command"].startswith("qsub -I")
    doctor("--python", python, "--timeout", "20s", PATH=path)
    assert (tmp_path / "imported").exists(), "whoever names a time wants it"


def test_a_login_node_of_aurora(aurora: Callable[..., Any]) -> None:
    envelope = aurora(host="aurora-uan-0011", PBS_JOBID="", PBS_NODEFILE="")
    assert envelope["data"]["place"]["role"] == "login" and "ENV015" in rules(envelope)
    assert envelope["data"]["next"]["command"].startswith("qsub -I") and "filesystems=home:flare" in envelope["data"]["next"]["command"]


def test_a_login_node_by_its_client(doctor: Doctor, interpreter: Make, program: Make) -> None:
    path = program("sbatch", "#!/bin/sh\nexit 1\n")
    _, envelope, _ = doctor("--python", interpreter(), PATH=path)
    place = envelope["data"]["place"]
    assert (place["role"], place["scheduler"], place["job"]) == ("login", "slurm", False) and "sbatch is here" in place["reason"]
    assert envelope["data"]["next"]["command"].startswith("salloc")
    _, envelope, _ = doctor("--python", interpreter(), PATH=path, SLURM_JOB_ID="7", SLURM_JOB_NUM_NODES="3", SLURM_TASKS_PER_NODE="4(x3)")
    place = envelope["data"]["place"]
    assert (place["role"], place["nodes"], place["ranks_per_node"]) == ("batch", 3, 4) and "ENV015" not in rules(envelope)


def test_nvidia_smi_tells_where_torch_does_not(doctor: Doctor, interpreter: Make, program: Make) -> None:
    text = "#!/bin/sh\nprintf 'NVIDIA H100 80GB HBM3, 81559, 550.90.07\\nNVIDIA H100 80GB HBM3, 81559, 550.90.07\\n'\n"
    path = program("nvidia-smi", text)
    python = interpreter("raise ImportError('libcudart.so.13: cannot open')", torch="2.13.0")
    packages = next(Path(python).parents[1].glob("lib/python3*/site-packages"))
    (packages / "torch" / "version.py").write_text("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n")
    code, envelope, _ = doctor("--python", python, "--timeout", "30s", PATH=path)
    valid(envelope)
    assert code == 1 and {"ENV002", "ENV008"} <= rules(envelope)
    assert [(d["entry"], d["seen_by"], d["memory_bytes"]) for d in envelope["data"]["devices"]] == [
        ("h100-sxm", "nvidia-smi", 81559 * 2**20)
    ] * 2
    cpu = interpreter(FAKE.format(version="2.13.0+cpu"), torch="2.13.0+cpu")
    _, envelope, _ = doctor("--python", cpu, "--timeout", "30s", PATH=path)
    assert "ENV009" in rules(envelope), "a torch for CPUs on a machine with NVIDIA devices"


@pytest.mark.parametrize("text", ["#!/bin/sh\nsleep 60\n", "#!/bin/sh\necho rubbish, more\nexit 9\n", "\x00\x01", "#!/no/such/shell\n"])
def test_an_nvidia_smi_that_fails_is_passed_over(text: str, doctor: Doctor, interpreter: Make, program: Make) -> None:
    path = program("nvidia-smi", text)
    code, envelope, _ = doctor("--python", interpreter(), "--timeout", "3s", PATH=path)
    assert code == 0 and envelope["data"]["devices"] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--python", "/no/such/python"], "there is no such program to run"),
        (["--python", "/"], "there is no such program to run"),
        (["--python", "/bin/false"], "it is no Python 3.8 or newer that works"),
        (["--timeout", "soon"], "is not a duration"),
        (["--timeout", "0"], "is not between 0 and an hour"),
        (["--from", "none.json"], "none.json"),
        (["--from", "none.json", "--hardware"], "give one or the other"),
        (["--report", "/no/such/folder/r.json"], "cannot write"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], said: str, doctor: Doctor) -> None:
    code, envelope, err = doctor(*arguments)
    assert code == 2 and said in err and err.strip().count("\n") < 12, envelope


def test_from_judges_what_was_recorded_and_asks_nothing_here(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "e.json").write_text('{"versions": {"Torch": "2.2.0", "numpy": "2.0.0"}, "variables": {"NCCL_BLOCKING_WAIT": "1"}}')
    code, envelope, _ = doctor("--from", "e.json")
    valid(envelope)
    assert code == 1 and rules(envelope) == {"ENV006", "ENV025"} and {one["where"] for one in envelope["findings"]} == {"e.json"}
    again = tmp_path / "again.json"
    again.write_text(json.dumps(envelope))
    _, second, _ = doctor("--from", "again.json")
    assert second["data"] == envelope["data"], "doctor's own envelope is read too"


@pytest.mark.parametrize(
    "text",
    [
        '{"vresions": {}}',
        '{"schema": "trainwright/job/1"}',
        '{"versions": [1]}',
        '{"devices": [{"kind": 1}]}',
        '{"devices": 3}',
        '{"nodes": "many"}',
        '{"nodes": -1}',
        '{"torch": {"state": "fine"}}',
        '{"torch": {"error": 5}}',
        '{"python": 3.11}',
        '{"unmet": [{"package": "a"}]}',
        '{"data": 3}',
        '{"environment": {"a": 1}}',
        "[]",
        "{",
    ],
)
def test_a_record_that_is_none_is_refused_in_one_line(text: str, doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "e.json").write_text(text)
    code, _, err = doctor("--from", "e.json")
    assert code == 2 and "e.json" in err


def test_without_pyyaml_all_but_the_tables_is_told(tmp_path: Path, interpreter: Make) -> None:
    import subprocess

    argv = [sys.executable, "-S", "-m", "trainwright.cli", "doctor", "--python", interpreter(), "--format", "json"]
    place = {"PATH": os.defpath, "PYTHONPATH": str(ROOT / "helpers"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(argv, cwd=tmp_path, env=place, capture_output=True, text=True, timeout=60)
    envelope = json.loads(done.stdout)
    valid(envelope)
    assert done.returncode == 0 and envelope["data"]["missing"][0]["name"] == "PyYAML"
    assert envelope["not_checked"][0]["name"] == "the site"


def test_a_container_with_limits(
    tmp_path: Path, interpreter: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kernel's files of a container: 64 GiB and 8 processors in the machine, 4 GiB and 1.5 for this one."""
    files = {
        "proc/meminfo": f"MemTotal: {64 * 2**20} kB\nMemAvailable: {60 * 2**20} kB\n",
        "proc/self/cgroup": "0::/pod/box\n",
        "sys/fs/cgroup/pod/memory.max": f"{4 * 2**30}\n",
        "sys/fs/cgroup/pod/box/memory.max": "max\n",
        "sys/fs/cgroup/pod/box/cpu.max": "150000 100000\n",
        **{f"sys/devices/system/cpu/cpu{n}/topology/thread_siblings_list": f"{n}\n" for n in range(8)},
    }
    for name, text in files.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(text)
    for function in (host.memory_bytes, host.installed_bytes, host.memory_limit_bytes, host.meminfo, host.processors):
        monkeypatch.setattr(function, "__defaults__", (str(tmp_path / "root"),))
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    monkeypatch.chdir(tmp_path)
    main(["doctor", "--python", interpreter(), "--format", "json"])
    envelope = json.loads(capsys.readouterr().out)
    valid(envelope)
    found = envelope["data"]["host"]
    assert (found["memory_bytes"], found["memory_limit_bytes"]) == (4 * 2**30, 4 * 2**30)
    assert (found["processors"]["cores"], found["processors"]["quota"], found["processors"]["usable"]) == (8, 1.5, 1)
    assert "ENV026" in rules(envelope), "eight threads on one and a half processors"
    main(["doctor", "--python", interpreter()])
    assert "1 processor usable of 8 (8 cores), by a quota of 1.5; memory 4.00 GiB (a control group's limit)" in capsys.readouterr().out


def test_text_is_for_people(run_command: Any, interpreter: Make) -> None:
    done = run_command("doctor", "--python", interpreter(), "--timeout", "20s")
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines[:4]] == ["place", "python", "torch", "devices"] and done.returncode == 0
    assert any(line.startswith("next: ") for line in lines) and any("ENV001" in line for line in lines)


def test_a_file_that_hides_a_module(doctor: Doctor, interpreter: Make, tmp_path: Path) -> None:
    (tmp_path / "queue.py").write_text("")
    (tmp_path / "train.py").write_text("")
    _, envelope, _ = doctor("--python", interpreter())
    assert envelope["data"]["environment"]["shadows"] == ["queue.py"] and "ENV014" in rules(envelope)


def test_it_imports_nothing_heavy_and_little_else(tmp_path: Path, interpreter: Make) -> None:
    import subprocess

    code = "import sys; from trainwright.cli import main; main(sys.argv[1:]); sys.stderr.write('LOADED ' + ' '.join(sys.modules))"
    argv = [sys.executable, "-c", code, "doctor", "--python", interpreter(), "--format", "json"]
    place = {"PATH": os.defpath, "PYTHONPATH": str(ROOT / "helpers")}
    done = subprocess.run(argv, cwd=tmp_path, env=place, capture_output=True, text=True, timeout=60)
    loaded = set(done.stderr.rpartition("LOADED ")[2].split())
    heavy = {"torch", "numpy", "accelerate", "deepspeed", "transformers", "jsonschema", "rich", "psutil", "packaging", "socket"}
    assert "trainwright.doctor.command" in loaded
    assert not loaded & heavy
    ours = {
        name
        for name in loaded
        if name.startswith(("trainwright.train", "trainwright.model", "trainwright.families", "trainwright.launch."))
    }
    assert ours == {"trainwright.launch.processes"}


@pytest.mark.long
def test_the_real_packages_of_this_interpreter(doctor: Doctor) -> None:
    import importlib.metadata

    code, envelope, _ = doctor("--python", sys.executable, "--timeout", "120s")
    valid(envelope)
    found = envelope["data"]["environment"]
    assert found["torch"]["state"] == "ok" and "gloo" in found["torch"]["backends"], found["torch"]
    for name in ("torch", "accelerate", "transformers", "numpy"):
        assert found["versions"][name] == importlib.metadata.version(name)
    assert code == 0 and found["unmet"] == [], "a fresh environment has no gap"


def test_the_schema_file_is_yaml_too() -> None:
    assert yaml.safe_load(json.dumps(SCHEMA)) == SCHEMA
