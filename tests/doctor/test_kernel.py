"""Devices and network from fake /proc and /sys."""

from __future__ import annotations

from pathlib import Path

from trainwright.doctor.kernel import limits, look


def write(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return str(root)


def pci(number: int, vendor: str, kind: str) -> dict[str, str]:
    place = f"sys/bus/pci/devices/0000:{number:02x}:00.0"
    return {f"{place}/vendor": f"{vendor}\n", f"{place}/class": f"{kind}\n"}


def test_nothing_at_all(tmp_path: Path) -> None:
    found = look(str(tmp_path))
    assert (found.cards, found.names, found.nvidia_driver, found.nics, found.seen) == ({}, (), None, (), ())


def test_cards_that_compute_are_counted_and_graphics_are_not(tmp_path: Path) -> None:
    files = {**pci(1, "0x8086", "0x038000"), **pci(2, "0x8086", "0x038000"), **pci(3, "0x8086", "0x030000"), **pci(4, "0x1002", "0x120000")}
    files |= {**pci(5, "0x1da3", "0x120000"), **pci(6, "0x1b36", "0x120000"), **pci(7, "0x10de", "0x030200")}
    found = look(write(tmp_path, files))
    assert found.cards == {"intel": 2, "amd": 1, "habana": 1, "nvidia": 1} and found.seen == (), "a container that holds none of them"
    opened = dict.fromkeys(("dev/kfd", "dev/dri/renderD128", "dev/accel/accel0", "dev/nvidiactl"), "")
    assert look(write(tmp_path, opened)).seen == ("amd", "habana", "intel", "nvidia")


def test_nvidia_by_its_driver(tmp_path: Path) -> None:
    version = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024\nGCC version: 12\n"
    files = {"proc/driver/nvidia/version": version}
    files |= {f"proc/driver/nvidia/gpus/0000:0{n}:00.0/information": "Model: \t\t NVIDIA A100-SXM4-40GB\nIRQ: 5\n" for n in (1, 2)}
    found = look(write(tmp_path, files))
    assert found.nvidia_driver == "550.90.07" and found.names == ("NVIDIA A100-SXM4-40GB",) * 2 and found.cards == {"nvidia": 2}
    opened = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n"
    assert look(write(tmp_path / "open", {"proc/driver/nvidia/version": opened})).nvidia_driver == "580.65.06"
    assert look(write(tmp_path / "odd", {"proc/driver/nvidia/version": "rubbish"})).nvidia_driver is None


def test_fast_networks_hide_ethernet(tmp_path: Path) -> None:
    files = {"sys/class/net/eth0/device/x": "", "sys/class/net/eth0/speed": "25000\n", "sys/class/net/lo/mtu": "1"}
    assert look(write(tmp_path, files)).nics == (("ethernet 0", 25 * 10**9),)
    files = {"sys/class/infiniband/mlx5_0/ports/1/rate": "200 Gb/sec (4X HDR)\n", "sys/class/infiniband/mlx5_1/ports/1/rate": "rubbish"}
    assert look(write(tmp_path, files)).nics == (("infiniband 0", 2 * 10**11), ("infiniband 1", None))
    assert look(write(tmp_path / "x", {f"sys/class/cxi/cxi{n}/device": "" for n in range(8)})).nics == tuple(
        (f"cxi {n}", None) for n in range(8)
    )


def test_an_interface_that_is_down_has_no_speed(tmp_path: Path) -> None:
    assert look(write(tmp_path, {"sys/class/net/eth0/device/x": "", "sys/class/net/eth0/speed": "-1\n"})).nics == (("ethernet 0", None),)


def test_limits_are_told() -> None:
    found = limits()
    assert found.open_files is not None and found.open_files != 0
    assert found.shm_bytes is None or found.shm_bytes > 0
