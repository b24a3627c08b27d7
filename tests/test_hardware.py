"""The table of accelerators, and the memory of this machine under every kind of limit."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainwright import hardware
from trainwright.errors import MissingPackageError, UserError
from trainwright.hardware import accelerator, this_machine_memory_bytes
from trainwright.report import CHECKED

ROOT = Path(__file__).resolve().parents[1]
TABLE: dict[str, dict[str, Any]] = yaml.safe_load(hardware.TABLE.read_text(encoding="utf-8"))
SOURCES = yaml.safe_load((ROOT / "references/sources.yaml").read_text(encoding="utf-8"))
GIB = 2**30


@pytest.mark.parametrize("name", TABLE)
def test_every_figure_is_a_number_with_a_source_or_unknown_with_a_reason(name: str) -> None:
    found = accelerator(name)
    assert found.per in ("device", "tile", "GCD") and found.device in ("cuda", "xpu") and found.title
    for figure in (found.memory, found.peak_bf16):
        if figure.value is None:
            assert figure.reason
        else:
            assert type(figure.value) in (int, float), "YAML 1.1 reads 312.0e12 as text"
            assert figure.source in SOURCES and figure.date and figure.checked in CHECKED
    assert type(found.memory_bytes) is int and 30 * GIB < found.memory_bytes < 80 * GIB
    assert found.peak_bf16.value is None or 1e14 < found.peak_bf16.value < 1e15, "dense, of one addressable device"


def test_the_table_holds_no_address() -> None:
    assert "http" not in hardware.TABLE.read_text(encoding="utf-8")


@pytest.mark.parametrize("said", ["a100-80gb", "A100-80GB", "a100_80gb", " A100 80gb "])
def test_names_are_read_generously(said: str) -> None:
    assert accelerator(said).name == "a100-80gb"


@pytest.mark.parametrize(
    ("said", "hint"),
    [("a100", "did you mean a100-80gb or a100-40gb"), ("h100", "did you mean h100-sxm"), ("tpu-v4", "known are"), ("", "known are")],
)
def test_an_unknown_name_gets_the_nearest_and_the_list(said: str, hint: str) -> None:
    with pytest.raises(UserError, match="there is no accelerator") as caught:
        accelerator(said)
    assert hint in str(caught.value) and str(caught.value).endswith("max-1550-tile, cpu")


def test_a_name_of_any_length_makes_a_short_line() -> None:
    with pytest.raises(UserError) as caught:
        accelerator("x" * 10**6)
    assert len(str(caught.value)) < 300


def test_without_pyyaml_a_name_ends_with_the_line_to_type_and_cpu_works(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "yaml" else find(name, *rest))
    with pytest.raises(MissingPackageError, match="pip install pyyaml"):
        accelerator("a100-80gb")
    assert accelerator("cpu").memory_bytes


def test_cpu_is_this_machine() -> None:
    found = accelerator("CPU")
    assert found.per == "machine" and found.device == "cpu" and found.memory_bytes == this_machine_memory_bytes()
    assert found.peak_bf16.value is None and found.peak_bf16.reason
    assert found.to_json()["memory"]["checked"] == "run"


# --- the memory of a machine ----------------------------------------------------------------------------------------


def machine(root: Path, files: dict[str, str], total_kib: int = 16 * 2**20) -> Path:
    """A file system whose /proc says 16 GiB, and `files` beside it."""
    for name, text in {"proc/meminfo": f"MemTotal:       {total_kib} kB\nMemFree:  1 kB\n", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "gib"),
    [
        ({}, 16),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, 16),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": f"{4 * GIB}\n"}, 4),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/memory.max": f"{3 * GIB}\n"}, 3),
        ({"proc/self/cgroup": "0::/seen/by/the/host/only\n", "sys/fs/cgroup/memory.max": f"{2 * GIB}\n"}, 2),
        ({"proc/self/cgroup": "0::/../../up\n", "sys/fs/cgroup/memory.max": f"{2 * GIB}\n"}, 2),
        ({"proc/self/cgroup": "4:memory:/pod\n3:cpu:/\n", "sys/fs/cgroup/memory/pod/memory.limit_in_bytes": f"{5 * GIB}\n"}, 5),
        ({"proc/self/cgroup": "4:cpu,memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 16),
        ({"proc/self/cgroup": "2:cpuset:/x\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{1 * GIB}\n"}, 16),
        ({"proc/self/cgroup": "rubbish\n\n::\n0::/a\n", "sys/fs/cgroup/a/memory.max": "rubbish\n"}, 16),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": f"{64 * GIB}\n"}, 16),
    ],
)
def test_the_least_of_all_limits_counts(files: dict[str, str], gib: int, tmp_path: Path) -> None:
    assert this_machine_memory_bytes(str(machine(tmp_path, files))) == gib * GIB


def test_a_system_that_tells_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="give --memory"):
        this_machine_memory_bytes(str(tmp_path))


def test_this_machine_has_memory() -> None:
    assert 2**28 < this_machine_memory_bytes() < 2**50
