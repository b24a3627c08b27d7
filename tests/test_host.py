"""What the kernel tells of memory and processors, under every kind of limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainwright import host
from trainwright.errors import UserError
from trainwright.host import memory_bytes, processors

GIB = 2**30


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
    assert memory_bytes(str(machine(tmp_path, files))) == gib * GIB


def test_a_system_that_tells_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="give --memory"):
        memory_bytes(str(tmp_path))


def test_this_machine_has_memory() -> None:
    assert 2**28 < memory_bytes() < 2**50


# --- processors ---------------------------------------------------------------------------------------------------------


def cpus(root: Path, count: int, threads: int = 1, sockets: int = 1) -> Path:
    """A file system whose /sys has `count` processors, `threads` of them on each core."""
    for number in range(count):
        core = number % (count // threads)
        place = root / f"sys/devices/system/cpu/cpu{number}/topology"
        place.mkdir(parents=True)
        (place / "thread_siblings_list").write_text(",".join(str(core + n * (count // threads)) for n in range(threads)) + "\n")
        (place / "physical_package_id").write_text(f"{core * sockets // (count // threads)}\n")
    (root / "sys/devices/system/node/node0").mkdir(parents=True)
    return root


def test_cores_threads_and_sockets(tmp_path: Path) -> None:
    found = processors(str(cpus(tmp_path, 16, threads=2, sockets=2)))
    assert (found.logical, found.cores, found.sockets, found.numa_nodes, found.quota) == (16, 8, 2, 1, None)


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "150000 100000\n"}, 1.5),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n", "sys/fs/cgroup/a/cpu.max": "400000 100000"}, 4.0),
        ({"proc/self/cgroup": "0::/host/only\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 0.5),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "100000 0\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "rubbish"}, None),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/pod\n",
                "sys/fs/cgroup/cpu,cpuacct/pod/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu,cpuacct/pod/cpu.cfs_period_us": "100000\n",
            },
            2.0,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu:/pod\n",
                "sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/pod/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
    ],
)
def test_the_quota_of_a_container(files: dict[str, str], quota: float | None, tmp_path: Path) -> None:
    found = processors(str(machine(cpus(tmp_path, 8), files)))
    assert found.quota == quota


def test_usable_is_what_affinity_and_quota_leave() -> None:
    def usable(logical: int | None, allowed: int | None, quota: float | None) -> int:
        return host.Processors(logical, None, None, None, allowed, quota).usable

    assert [usable(64, 8, None), usable(64, 8, 2.5), usable(64, None, None), usable(None, None, None), usable(64, 8, 0.2)] == [
        8,
        2,
        64,
        1,
        1,
    ]


def test_a_system_without_sys_tells_what_it_can(tmp_path: Path) -> None:
    found = processors(str(tmp_path))
    assert found.cores is None and found.quota is None and found.usable >= 1


def test_text_of_what_is_no_file(tmp_path: Path) -> None:
    assert host.text(tmp_path) == "" == host.text(tmp_path / "none") and host.text(Path("/dev/zero")) == ""
    assert host.text(Path("a\0b")) == ""
