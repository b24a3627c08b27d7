"""Intel's extension: its pairing with torch, tried in another process. The package is a stand-in here: `stub`."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from trainwright.errors import UserError  # noqa: E402
from trainwright.train import ipex  # noqa: E402

SERIES = ".".join(version("torch").split(".")[:2])
GOOD = "__version__ = 'stand-in'\ndef optimize(model, optimizer, **options):\n    model.options = options\n    return model, optimizer\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paths: None) -> Path:
    """A folder on the path of this process and of those it starts, for the stand-in."""
    import os

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]]))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def install(folder: Path, text: str, number: str = f"{SERIES}.10+xpu") -> None:
    (folder / "intel_extension_for_pytorch.py").write_text(text)
    about = folder / "intel_extension_for_pytorch-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: intel-extension-for-pytorch\nVersion: {number}\n")


def test_it_is_not_installed(package: Path) -> None:
    assert ipex.find() == ipex.Ipex(None, "is not installed")


def test_another_torch_is_seen_without_an_import(package: Path) -> None:
    install(package, "raise SystemExit('was imported')", "1.13.120+xpu")
    assert ipex.find().why == f"1.13.120+xpu works with torch 1.13 only, and torch {version('torch')} is here"


@pytest.mark.long
def test_one_that_pairs_and_loads_is_used(package: Path) -> None:
    install(package, GOOD)
    assert ipex.find() == ipex.Ipex(f"{SERIES}.10+xpu", "")
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    assert ipex.optimize(model, optimizer) == (model, optimizer)
    assert model.options == {"inplace": True, "weights_prepack": False, "split_master_weight_for_bf16": False}
    sys.modules.pop(ipex.MODULE)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "used"), [("single", True), ("ddp", True), ("fsdp", False), ("zero", False)])
def test_it_is_applied_where_nothing_is_sharded(package: Path, group: None, kind: str, used: bool) -> None:
    install(package, GOOD)
    inner = nn.Linear(2, 2)
    model = nn.parallel.DistributedDataParallel(inner) if kind == "ddp" else inner
    optimizer, told = ipex.apply(model, torch.optim.AdamW(inner.parameters()), kind)
    assert told == {"version": f"{SERIES}.10+xpu", "not_used": "" if used else f"it does not know the shards of {kind}", "checked": "stub"}
    assert hasattr(inner, "options") is used and optimizer.param_groups
    sys.modules.pop(ipex.MODULE, None)


@pytest.mark.long
def test_one_that_replaces_parameters_is_refused(package: Path) -> None:
    install(package, GOOD.replace("    return model", "    model.weight = type(model.weight)(model.weight.detach())\n    return model"))
    model = nn.Linear(2, 2)
    with pytest.raises(UserError, match="replaced parameters"):
        ipex.apply(model, torch.optim.AdamW(model.parameters()), "single")
    sys.modules.pop(ipex.MODULE, None)


def test_without_it_nothing_changes(package: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    assert ipex.apply(model, optimizer, "single") == (optimizer, None)


ENDINGS = {
    "exits": ("import os\nos._exit(127)", "ended the interpreter with exit code 127"),
    "exits without a word": ("import os\nos._exit(0)", "ended the interpreter with exit code 0"),
    "crashes": ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "ended the interpreter by SIGSEGV"),
    "raises": ("import os\nos.exit(1)", "exit code 1: AttributeError: module 'os' has no attribute 'exit'"),
}


@pytest.mark.long
@pytest.mark.parametrize("how", ENDINGS)
def test_one_that_ends_the_interpreter_ends_another_one(package: Path, how: str) -> None:
    text, words = ENDINGS[how]
    install(package, text)
    assert words in ipex.find().why


def test_one_that_hangs_is_given_up(package: Path) -> None:
    install(package, "import time\ntime.sleep(60)")
    assert ipex.find(timeout_s=0.5).why == "its import did not end within 0.5 s"
