"""The place of a rank and the order of calls. What is proven of XPU here is proven on a stand-in for torch.xpu: `stub`."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import distributed as dist  # noqa: E402

from trainwright.errors import UserError  # noqa: E402
from trainwright.train import world  # noqa: E402
from trainwright.train.world import Place  # noqa: E402

TRAIN = Path(world.__file__).parent


class StandIn(ModuleType):
    """A module in the place of torch.xpu that records what is called, in order."""

    def __init__(self, devices: int = 12, available: bool = True) -> None:
        super().__init__("torch.xpu")
        self.devices, self.available = devices, available
        self.calls: list[str] = []

    def is_available(self) -> bool:
        return self.available

    def device_count(self) -> int:
        self.calls.append("device_count")
        return self.devices

    def set_device(self, device: Any) -> None:
        self.calls.append(f"set_device {device}")

    def synchronize(self, device: Any) -> None:
        self.calls.append(f"synchronize {device}")

    def max_memory_allocated(self, device: Any) -> int:
        self.calls.append("max_memory_allocated")
        return 4096

    def reset_peak_memory_stats(self, device: Any) -> None:
        self.calls.append("reset_peak_memory_stats")

    def get_device_properties(self, device: Any) -> Any:
        return type("Properties", (), {"total_memory": 64 * 2**30, "name": "stand-in"})()

    def set_per_process_memory_fraction(self, share: float, device: Any) -> None:
        self.calls.append(f"set_per_process_memory_fraction {share:g}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments: None if name.startswith("_") else self.calls.append(name)


class Store(dict[str, bytes]):
    """A store whose neighbours have told their devices already."""

    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def get(self, key: str) -> bytes:  # type: ignore[override]
        return self[key]


@pytest.fixture
def xpu(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """The stand-in, with 12 devices; joining a group is recorded among its calls and joins nothing."""
    module = StandIn()
    monkeypatch.setattr(torch, "xpu", module)
    monkeypatch.setattr(dist, "is_xccl_available", lambda: True)
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", Store)

    def join(backend: str, **arguments: Any) -> None:
        module.calls.append(f"init_process_group {backend}")
        assert "device_id" not in arguments

    monkeypatch.setattr(dist, "init_process_group", join)
    for name in (*world.MASKS["xpu"], *world.MASKS["cuda"]):
        monkeypatch.delenv(name, raising=False)
    return module


def test_the_device_is_set_before_the_group_is_joined(xpu: StandIn) -> None:
    place = Place(15, 3, 24)
    device = world.choose_device("xpu", place)
    assert world.connect(device, place, 60) == "xccl"
    assert xpu.calls == ["device_count", "set_device xpu:3", "init_process_group xccl"]


def test_a_rank_that_sees_one_device_takes_it(xpu: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher that gives rank 7 the mask 7: torch then counts one device, number 0."""
    xpu.devices = 1
    monkeypatch.setenv("ZE_AFFINITY_MASK", "7")
    assert world.choose_device("xpu", Place(7, 7, 12, 12)) == torch.device("xpu", 0)


@pytest.mark.parametrize(("devices", "mask"), [(1, ""), (6, "0,1,2,3,4,5"), (6, "")])
def test_more_ranks_than_devices_are_a_mistake(xpu: StandIn, monkeypatch: pytest.MonkeyPatch, devices: int, mask: str) -> None:
    xpu.devices = devices
    monkeypatch.setenv("ZE_AFFINITY_MASK", mask)
    with pytest.raises(UserError, match=f"rank 7 is number 7 on this host, where torch sees {devices} xpu"):
        world.choose_device("xpu", Place(7, 7, 12, 12))


def test_no_device_is_a_mistake(xpu: StandIn) -> None:
    xpu.available = False
    with pytest.raises(UserError, match="wants device xpu, which torch"):
        world.choose_device("xpu", Place(0, 0, 1))


@pytest.mark.parametrize(("theirs", "fails"), [("7", True), ("8", False)], ids=["same", "another"])
def test_two_ranks_on_one_device_are_named(xpu: StandIn, monkeypatch: pytest.MonkeyPatch, theirs: str, fails: bool) -> None:
    store = Store()
    device = torch.device("xpu", 0)
    for rank, mask in ((0, theirs), (1, "7")):
        monkeypatch.setenv("ZE_AFFINITY_MASK", mask)
        if rank == 0:
            store[f"trainwright/device/{rank}"] = world.json.dumps([world.platform.node(), [mask, ""], 0]).encode()  # type: ignore[attr-defined]
    if fails:
        with pytest.raises(UserError, match="ranks 1 and 0 have the same device, xpu:0"):
            world._distinct(device, Place(1, 1, 2, 2), store)
    else:
        world._distinct(device, Place(1, 1, 2, 2), store)


@pytest.mark.parametrize(("kind", "backend"), [("cpu", "gloo"), ("cuda", "nccl"), ("xpu", "xccl")])
def test_the_backend_is_that_of_the_device(monkeypatch: pytest.MonkeyPatch, kind: str, backend: str) -> None:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(dist, "is_xccl_available", lambda: True)
    assert world.find_backend(kind) == backend == world.BACKENDS[kind]


BINDINGS: dict[str, tuple[str | None, str, str]] = {
    "loads": ("", "ccl", ""),
    "of another oneAPI": (
        "raise ImportError('libsycl.so.8:\\n undefined symbol: urDeviceWaitExp')",
        "",
        "does not load: libsycl.so.8: undefined symbol",
    ),
    "not installed": (None, "", "is built without xccl, and oneccl_bindings_for_pytorch is not installed"),
}


@pytest.mark.parametrize("how", BINDINGS)
def test_ccl_where_torch_has_no_xccl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str) -> None:
    text, backend, words = BINDINGS[how]
    monkeypatch.setattr(dist, "is_xccl_available", lambda: False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, world.BINDINGS, raising=False)
    if text is not None:
        (tmp_path / f"{world.BINDINGS}.py").write_text(text)
    if words:
        with pytest.raises(UserError, match=words):
            world.find_backend("xpu")
    else:
        assert world.find_backend("xpu") == backend
        monkeypatch.delitem(sys.modules, world.BINDINGS)


def test_no_nccl_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    with pytest.raises(UserError, match="built without NCCL"):
        world.find_backend("cuda")


def test_the_allocators_peak_is_read_for_every_step(xpu: StandIn) -> None:
    from trainwright.train.tracker import Tracker

    tracker = Tracker(torch.device("xpu", 1), 0)
    with tracker.step(1, []):
        pass
    assert tracker.step_bytes == tracker.peak_bytes == 4096
    assert xpu.calls == ["reset_peak_memory_stats", "max_memory_allocated"]


def test_a_cap_is_a_share_of_the_device(xpu: StandIn) -> None:
    from trainwright.train import memory

    assert memory.enforce(16 * 2**30, torch.device("xpu", 1)) == ""
    assert xpu.calls == ["set_per_process_memory_fraction 0.25"]


def test_a_clock_waits_for_the_device(xpu: StandIn) -> None:
    world.synchronize(torch.device("xpu", 1))
    world.synchronize(torch.device("cpu"))
    assert xpu.calls == ["synchronize xpu:1"]


def test_how_far_each_device_was_tried_is_said() -> None:
    assert world.CHECKED == {"cpu": "run", "cuda": "source", "xpu": "stub"}
    assert world.CHECKED.keys() == world.BACKENDS.keys()


def test_nothing_here_empties_a_cache_or_names_a_device_id() -> None:
    """empty_cache leaks under xccl, device_id hangs some stacks: neither stands in any worker's code."""
    for path in TRAIN.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        keywords = {node.arg for node in ast.walk(tree) if isinstance(node, ast.keyword)}
        assert "empty_cache" not in names and "device_id" not in keywords, path


PLACES: list[tuple[dict[str, str], Callable[[], Place]]] = [
    ({}, lambda: Place(0, 0, 1, 1)),
    ({"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}, lambda: Place(5, 1, 8, 4)),
    ({"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}, lambda: Place(1, 1, 2, 2)),
]


@pytest.mark.parametrize(("variables", "place"), PLACES, ids=["alone", "torchrun", "without LOCAL_WORLD_SIZE"])
def test_the_place_is_what_torchrun_says(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], place: Callable[[], Place]) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert world.read_place(place().world_size) == place()
    with pytest.raises(UserError, match=f"the job is for 77 ranks and {place().world_size} started"):
        world.read_place(77)
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(UserError, match="whole numbers"):
        world.read_place(place().world_size)
