"""doctor --hardware: one entry in the format of hardware.yaml, which the same loader reads, with nothing measured that was not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from trainwright import hardware
from trainwright.doctor.profile import NAME, TO_MEASURE, as_yaml

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "helpers/trainwright/hardware.schema.json").read_text(encoding="utf-8"))
TORCH = """
class _Properties:
    def __init__(self, name, memory):
        self.name, self.total_memory = name, memory
DEVICES = {devices}
class cuda:
    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: len(DEVICES))
    get_device_properties = staticmethod(lambda index: _Properties(*DEVICES[index]))
"""
H100, H20, ODD = ("NVIDIA H100 80GB HBM3", 85017493504), ("NVIDIA H20", 102000000000), ("NVIDIA \\\"Odd: #1'\\\\", 12345)


def profile(tmp_path: Path, doctor: Callable[..., Any], python: str) -> tuple[hardware.Hardware, dict[str, Any]]:
    code, envelope, _ = doctor("--hardware", "--python", python)
    assert code == 0
    table = envelope["data"]["hardware"]
    path = tmp_path / "machine.yaml"
    path.write_text("\n".join(as_yaml(table)) + "\n")
    assert yaml.safe_load(path.read_text()) == table, "the YAML says what the JSON says"
    assert [e.message for e in Draft202012Validator(SCHEMA).iter_errors(table)] == []
    return hardware.load(str(path)), table


def test_a_machine_of_processors_only(tmp_path: Path, doctor: Callable[..., Any], interpreter: Callable[..., str]) -> None:
    table, _ = profile(tmp_path, doctor, interpreter())
    found = hardware.node(NAME, table)
    assert [(group.accelerator, group.count) for group in found.devices] == [(f"{NAME}-cpu", 1)]
    cpu = hardware.accelerator(f"{NAME}-cpu", table)
    assert cpu.device == "cpu" and cpu.per == "machine" and cpu.memory_bytes and cpu.memory.checked == "run"
    assert cpu.measured_bf16.value is None and cpu.measured_bf16.reason == TO_MEASURE
    assert found.host_memory.value == cpu.memory_bytes


def test_a_machine_of_known_devices(tmp_path: Path, doctor: Callable[..., Any], interpreter: Callable[..., str]) -> None:
    python = interpreter(TORCH.format(devices=[H100] * 4), torch="2.13.0")
    table, _ = profile(tmp_path, doctor, python)
    found = hardware.node(NAME, table)
    device = hardware.accelerator(f"{NAME}-device", table)
    assert found.num_devices == 4 and device.memory_bytes == H100[1] and device.memory.source == NAME
    assert (
        device.peak_bf16.value == hardware.accelerator("h100-sxm").peak_bf16.value
        and device.peak_bf16.source == "ml-engineering-accelerators"
    )
    assert device.measured_bf16.value is None and device.measured_bf16.reason == TO_MEASURE
    between = found.link("node")
    assert between and between.group == 4 and between["measured_bytes_per_s"].reason == TO_MEASURE and between["alpha_s"].value is None


def test_mixed_and_unknown_devices(tmp_path: Path, doctor: Callable[..., Any], interpreter: Callable[..., str]) -> None:
    python = interpreter(TORCH.format(devices=[H20, ODD, ODD]), torch="2.13.0")
    table, _ = profile(tmp_path, doctor, python)
    found = hardware.node(NAME, table)
    assert found.mixed and [(g.accelerator, g.count) for g in found.devices] == [(f"{NAME}-0", 1), (f"{NAME}-1", 2)]
    odd = hardware.accelerator(f"{NAME}-1", table)
    assert odd.peak_bf16.value is None and "no entry is called" in odd.peak_bf16.reason and odd.memory_bytes == 12345


def test_the_file_is_yaml_and_names_nobody(tmp_path: Path, run_command: Any, interpreter: Callable[..., str]) -> None:
    path = tmp_path / "machine.yaml"
    done = run_command("doctor", "--hardware", "--python", interpreter(), "--output", str(path), USER="zqalice")
    assert done.returncode == 0 and done.stdout == ""
    text = path.read_text()
    assert hardware.node(NAME, hardware.load(str(path))).name == NAME
    assert (
        "zqalice" not in text and str(tmp_path) not in text and "/" not in text.replace("collectives", "").replace("bandwidth / bench", "")
    )


@given(
    st.dictionaries(
        st.from_regex(r"[a-z_]{1,8}", fullmatch=True).filter(
            lambda k: k not in ("on", "off", "yes", "no", "y", "n", "null", "true", "false")
        ),
        st.one_of(
            st.none(), st.booleans(), st.integers(-(10**18), 10**18), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=20)
        ),
        min_size=1,
        max_size=4,
    )
)
def test_any_scalar_is_read_back(row: dict[str, Any]) -> None:
    table = {"nodes": {"a": {"title": "t", "figure": {"value": 1, **row}}}}
    assert yaml.safe_load("\n".join(as_yaml(table))) == table


@pytest.mark.parametrize("value", [1e16, 1e-6, 3.7e-06, 2.5e10, 0.0, -1e300, 5e-324])
def test_a_number_stays_a_number(value: float) -> None:
    read = yaml.safe_load("\n".join(as_yaml({"a": {"value": value}})))
    assert read["a"]["value"] == value and isinstance(read["a"]["value"], (int, float))


def test_what_is_left_open_names_no_option_that_is_not_there() -> None:
    assert "by hand, with its source" in TO_MEASURE and "--" not in TO_MEASURE and "bench" not in TO_MEASURE
