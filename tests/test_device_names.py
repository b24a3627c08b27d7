"""What runtimes call a device, to its entry: whole names, no parts of names."""

from __future__ import annotations

import pytest

from trainwright.device_names import match_device_name, plain_name
from trainwright.hardware import bundled

MIB = 2**20


@pytest.mark.parametrize(
    ("said", "entry"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H200 NVL", "h200-nvl"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA GB300", "gb300"),
        ("NVIDIA L40S", "l40s"),
        ("nvidia l40s", "l40s"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb"),
        ("Tesla V100-SXM2-16GB", "v100-16gb"),
        ("Tesla V100-SXM2-32GB", "v100-32gb"),
        ("AMD Instinct MI250X", "mi250x-gcd"),
        ("AMD Instinct MI250X / MI250", "mi250x-gcd"),
        ("AMD Instinct MI300X", "mi300x"),
        ("GAUDI2", "gaudi2"),
        ("GAUDI3", "gaudi3"),
        ("TPU v4", "tpu-v4"),
        ("TPU v5 lite", "tpu-v5e"),
        ("TPU v5p", "tpu-v5p"),
        ("TPU v6 lite", "tpu-v6e"),
    ],
)
def test_a_name_is_its_entry(said: str, entry: str) -> None:
    found = match_device_name(said)
    assert found.accelerator is not None and found.accelerator.name == entry and not found.reason


@pytest.mark.parametrize(
    ("said", "memory", "entry"),
    [
        ("Intel(R) Data Center GPU Max 1550", 65520 * MIB, "max-1550-tile"),
        ("Intel(R) Data Center GPU Max 1550", 131040 * MIB, "max-1550-card"),
        ("NVIDIA H200", 143156 * MIB, "h200"),
        ("AMD Instinct MI300X", 196592 * MIB, "mi300x"),
    ],
)
def test_memory_tells_a_tile_from_a_card(said: str, memory: int, entry: str) -> None:
    found = match_device_name(said, memory)
    assert found.accelerator is not None and found.accelerator.name == entry


@pytest.mark.parametrize(
    ("said", "memory", "reason"),
    [
        ("NVIDIA H2", None, "no entry is called"),
        ("NVIDIA H200X", None, "no entry is called"),
        ("NVIDIA L40", None, "no entry is called"),
        ("NVIDIA B30", None, "no entry is called"),
        ("NVIDIA GB30", None, "no entry is called"),
        ("NVIDIA A100-SXM-64GB", None, "no entry is called"),
        ("Intel(R) Data Center GPU Max 1100", 49152 * MIB, "no entry is called"),
        ("Intel(R) Data Center GPU Max 1550", None, "its memory tells"),
        ("Intel(R) Data Center GPU Max 1550", 10 * MIB, "its memory tells"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9984 * MIB, "a slice"),
        ("NVIDIA H100 80GB HBM3", 40960 * MIB, "has 43 GB and not 85"),
        ("", None, "no entry is called"),
        ("x" * 100_000, None, "no entry is called"),
    ],
)
def test_any_other_name_is_none_with_a_reason(said: str, memory: int | None, reason: str) -> None:
    found = match_device_name(said, memory)
    assert found.accelerator is None and reason in found.reason and len(found.reason) < 300


def test_the_nearest_are_named() -> None:
    assert match_device_name("NVIDIA L40").near[0] == "l40s"
    assert set(match_device_name("Intel(R) Data Center GPU Max 1550").near) == {"max-1550-tile", "max-1550-card"}


def test_names_are_plain_and_belong_to_one_entry_but_for_tile_and_card() -> None:
    names = [(name, entry.name) for entry in bundled().accelerators.values() for name in entry.names]
    assert all(plain_name(name) == name for name, _ in names)
    several = {name for name, _ in names if sum(name == other for other, _ in names) > 1}
    assert several == {"data center gpu max 1550"}
