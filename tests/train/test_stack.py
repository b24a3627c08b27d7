"""The worker that tells what an interpreter has: run by its path, as doctor does, in environments made for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

WORKER = Path(__file__).resolve().parents[2] / "helpers/trainwright/train/stack.py"


def tell(folder: Path, *arguments: str, python: str = sys.executable, **variables: str) -> tuple[list[dict[str, Any]], int]:
    """The lines it prints with `folder` first among the packages, and its exit code."""
    place = {"PATH": os.defpath, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", **variables}
    argv = [python, "-S", str(WORKER), *arguments]
    done = subprocess.run(argv, cwd=folder, env=place, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    return [json.loads(line) for line in done.stdout.splitlines()], done.returncode


def install(folder: Path, name: str, version: str, *requires: str) -> None:
    place = folder / f"{name}-{version}.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(
        "\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {r}" for r in requires)])
    )


def test_nothing_installed(tmp_path: Path) -> None:
    (answer,), code = tell(tmp_path, "torch", "numpy")
    assert code == 0 and answer["versions"] == {} and answer["torch"] == {"state": "absent"} and answer["unmet"] == []
    assert answer["python"] == ".".join(map(str, sys.version_info[:3]))


def test_what_torch_is_built_for_is_read_and_not_run(tmp_path: Path) -> None:
    install(tmp_path, "torch", "2.13.0")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("import os\nos._exit(9)\n")
    (tmp_path / "torch/version.py").write_text("raise SystemExit\ncuda: Optional[str] = '12.6'\nhip = None\nxpu : str = \"20250302\"\n")
    (answer,), code = tell(tmp_path, "torch")
    assert code == 9 and answer["torch"] == {"state": "unknown", "cuda": "12.6", "hip": None, "xpu": "20250302"}
    (answer,), code = tell(tmp_path, "torch", "--packages-only")
    assert code == 0 and answer["versions"] == {"torch": "2.13.0"}


def test_its_neighbours_shadow_nothing(tmp_path: Path) -> None:
    """Beside the worker lie data.py, models.py, run.py: a torch that imports its own modules of such names has to find them."""
    (tmp_path / "torch.py").write_text("import data\n__version__ = data.NAME\n")
    (tmp_path / "data.py").write_text("NAME = 'the right one'\n")
    (_, second), code = tell(tmp_path, "torch")
    assert code == 0 and second["version"] == "the right one"


@pytest.mark.parametrize("text", ["", "Name: x\n", "Metadata-Version: 2.1\nName: torch\n", "\x00"])
def test_metadata_that_is_broken_is_no_version(text: str, tmp_path: Path) -> None:
    (tmp_path / "torch-1.dist-info").mkdir()
    (tmp_path / "torch-1.dist-info/METADATA").write_text(text)
    answers, code = tell(tmp_path, "torch")
    assert code == 0 and answers[0]["versions"] == {}


def test_a_torch_that_is_a_folder_of_data(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    answers, code = tell(tmp_path, "torch")
    assert code == 0 and answers[0]["torch"]["state"] == "unknown" and answers[1]["state"] == "ok" and answers[1]["devices"] == []


def test_devices_of_three_kinds(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(
        "class P:\n    name, total_memory = 'one', 7\n"
        "class cuda:\n    is_available = staticmethod(lambda: True)\n    device_count = staticmethod(lambda: 1)\n"
        "    get_device_properties = staticmethod(lambda i: P)\n"
        "class xpu:\n    is_available = staticmethod(lambda: False)\n"
        "class hpu:\n    is_available = staticmethod(lambda: True)\n    device_count = staticmethod(lambda: 2)\n"
        "    get_device_name = staticmethod(lambda i: 'GAUDI2')\n"
    )
    (_, second), _ = tell(tmp_path)
    assert (
        second["devices"]
        == [{"kind": "cuda", "name": "one", "memory_bytes": 7}] + [{"kind": "hpu", "name": "GAUDI2", "memory_bytes": None}] * 2
    )


@pytest.mark.long
@pytest.mark.parametrize("python", ["python3.8", "python3.9", "python3.10", "python3.12", "python3.13"])
def test_other_pythons(python: str, tmp_path: Path) -> None:
    import shutil

    found = shutil.which(python)
    if found is None or subprocess.run([found, "--version"], capture_output=True).returncode:  # a shim may stand for none
        pytest.skip(f"there is no {python} here")
    (answer,), code = tell(tmp_path, "torch", python=found)
    assert code == 0 and answer["torch"] == {"state": "absent"}
