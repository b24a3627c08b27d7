"""tools/setup_venv.py: what it installs, what it says first, and how it goes on after an interruption; nothing is installed here."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@dataclass
class World:
    """A machine that answers for the interpreters and records every command."""

    module: Any
    folder: Path
    pythons: dict[str, bool] = field(default_factory=dict)  # part of a probe -> whether it works
    events: list[str] = field(default_factory=list)
    failing: str = ""

    def call(self, argv: list[str], **settings: object) -> int:
        line = " ".join(argv)
        if argv[1] == "-c":
            return int(not next((works for part, works in self.pythons.items() if part in line), True))
        self.events.append(line)
        if "venv" in argv:
            (self.folder / "lib" / f"python{self.module.VERSION}" / "site-packages").mkdir(parents=True, exist_ok=True)
        if self.failing and self.failing in line:
            if self.failing == "torch==":
                raise KeyboardInterrupt
            return 1
        return 0

    def run(self, extras: str = "run,test") -> list[str]:
        self.events.clear()
        self.module.main(str(self.folder), extras)
        return self.events

    @property
    def stamp(self) -> str:
        return (self.folder / "installed").read_text()


@pytest.fixture
def world(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """No torch, no environment yet, a working ensurepip; what is said stands among the events."""
    spec = importlib.util.spec_from_file_location("setup_venv", root / "tools" / "setup_venv.py")
    assert spec and spec.loader
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = World(module, tmp_path / "env", {"fully_shard": False, "import pip": False, "import torch;": False})
    monkeypatch.delenv("TORCH_INDEX", raising=False)
    monkeypatch.setattr(module.subprocess, "call", made.call)
    monkeypatch.setattr(module, "say", lambda line: made.events.append(f"says {line}"))
    yield made


def test_a_fresh_machine(world: World) -> None:
    events = world.run()
    kinds = [
        word
        for event in events
        for word in ("-m venv", "says creating", "downloading torch==", "GB", "install torch==", "--editable")
        if word in event
    ]
    assert kinds[:2] == ["says creating", "-m venv"]
    assert kinds.index("downloading torch==") < kinds.index("install torch=="), "the size is said before it starts"
    assert kinds[-1] == "--editable" and "constraints.txt" in events[-1] and "[run,test]" in events[-1]
    assert world.stamp


def test_the_size_of_a_cuda_wheel_is_said_on_linux_only(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.module.sys, "platform", "darwin")
    assert not [event for event in world.run() if "CUDA" in event]
    monkeypatch.setattr(world.module.sys, "platform", "linux")
    monkeypatch.setattr(world.module.os, "uname", lambda: type("U", (), {"machine": "x86_64"}))
    (world.folder / "installed").unlink()
    assert [event for event in world.run() if "CUDA packages of several GB" in event]


def test_torch_index_is_for_torch_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_INDEX", "https://example.org/cpu")
    events = world.run()
    assert [("install torch==" in event) for event in events if "--index-url https://example.org/cpu" in event] == [True]
    assert not [event for event in events if "CUDA" in event]


def test_a_torch_that_imports_is_used(world: World) -> None:
    world.pythons = {"fully_shard": True, "import pip": False}
    events = world.run()
    assert "--system-site-packages" in next(event for event in events if "-m venv" in event)
    assert not [event for event in events if "install torch==" in event]
    copy = world.folder / "constraints.txt"
    assert f"--constraint {copy}" in events[-1] and "torch" not in copy.read_text().split("\n", 1)[1]


def test_twice_does_nothing_more(world: World) -> None:
    world.run()
    assert world.run() == []


@pytest.mark.parametrize("change", ["TORCH_INDEX", "extras"])
def test_another_wish_installs_again(world: World, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world.run()
    world.pythons = {"fully_shard": False}
    if change == "TORCH_INDEX":
        monkeypatch.setenv("TORCH_INDEX", "https://example.org/cpu")
    assert "--editable" in world.run("run" if change == "extras" else "run,test")[-1]


def test_the_gates_need_no_torch(world: World) -> None:
    assert not [event for event in world.run("gates") if "torch==" in event]


def test_an_interrupted_installation_begins_anew(world: World) -> None:
    world.failing = "torch=="
    with pytest.raises(KeyboardInterrupt):
        world.run()
    assert world.stamp == ""
    world.failing, world.pythons = "", {"fully_shard": False}
    events = world.run()
    assert "-m venv --clear" in " ".join(events) and world.stamp


def test_a_failing_pip_is_one_line_and_no_stamp(world: World) -> None:
    world.failing = "--editable"
    with pytest.raises(SystemExit, match=r"pip could not install \[run,test\]"):
        world.run()
    assert world.stamp == ""


def test_a_python_without_venv_is_told_what_to_install(world: World) -> None:
    world.pythons["ensurepip"] = False
    with pytest.raises(SystemExit, match=r"apt install python3\.\d+-venv"):
        world.run()


def test_an_old_python_is_told_which_to_name(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.module.sys, "version_info", (3, 9, 18))
    monkeypatch.setattr(world.module.shutil, "which", lambda name: "/x" if name == "python3.12" else None)
    with pytest.raises(SystemExit, match=r"make demo PYTHON=python3\.12$"):
        world.run()
    monkeypatch.setattr(world.module.shutil, "which", lambda name: None)
    with pytest.raises(SystemExit, match="install one"):
        world.run()
