"""Checkpoints: taken up to the bit on as many ranks, within rounding on others, and never half a one."""

from __future__ import annotations

import json
import math
import os
import pickle
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from trainwright.errors import UserError  # noqa: E402
from trainwright.train import checkpoint, stored  # noqa: E402

RANKS = Path(__file__).parent / "ranks" / "checkpoints.py"
ROUNDING = 2e-6  # of fp32 parameters below 1 after three updates


def made(width: int = 5) -> tuple[nn.Module, Any]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(width, 4), nn.Linear(4, 2, bias=False))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def trained(model: nn.Module, optimizer: Any, steps: int = 2) -> None:
    for _ in range(steps):
        model(torch.randn(3, model[0].in_features)).square().sum().backward()  # type: ignore[index]
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """The folder of a checkpoint of two trained layers, step 2."""
    model, optimizer = made()
    trained(model, optimizer)
    return checkpoint.save(str(tmp_path), 2, model, optimizer, {"position": 7}, strategy="single")


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    model, optimizer = made()
    random.seed(3)
    random.gauss(0, 1)  # leaves a second number behind
    trained(model, optimizer)
    optimizer.param_groups[0]["lr"] = 1 / 3
    checkpoint.save(str(tmp_path), 2, model, optimizer, {"position": 7})
    drawn = torch.rand(4), random.gauss(0, 1), random.random()
    other, fresh = made()
    trained(other, fresh, 1)
    found = checkpoint.resume(str(tmp_path), other, fresh)
    assert (found.step, found.exact, found.facts) == (2, True, {"position": 7})
    assert torch.equal(torch.rand(4), drawn[0]) and (random.gauss(0, 1), random.random()) == drawn[1:]
    assert fresh.param_groups[0]["lr"] == 1 / 3 and fresh.param_groups[0]["betas"] == (0.9, 0.999)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        for key, value in optimizer.state[mine].items():
            assert torch.equal(value, fresh.state[theirs][key]), key


def test_torch_itself_can_read_a_checkpoint(saved: Path) -> None:
    from torch.distributed.checkpoint.state_dict_loader import load

    with pytest.warns(UserWarning, match="single process"):
        wanted = {"model.0.weight": torch.zeros(4, 5)}
        load(wanted, checkpoint_id=saved)
    assert wanted["model.0.weight"].abs().sum() > 0


def test_a_first_checkpoint_has_no_optimizer_state(tmp_path: Path) -> None:
    checkpoint.save(str(tmp_path), 0, *made(), {})
    model, optimizer = made()
    assert checkpoint.resume(str(tmp_path), model, optimizer).step == 0 and not optimizer.state


# --- which checkpoint -----------------------------------------------------------------------------------------------


def test_the_newest_complete_one_is_taken_and_others_are_named(tmp_path: Path) -> None:
    model, optimizer = made()
    for step in (1, 2, 3, 4):
        trained(model, optimizer, 1)
        checkpoint.save(str(tmp_path), step, model, optimizer, {}, keep=4)
    folder = tmp_path / "checkpoints"
    (folder / "step_00000004" / "complete.json").unlink()
    (folder / "step_00000003" / "__0_0.distcp").write_bytes(b"short")
    (folder / "step_00000009").symlink_to(folder / "step_00000001")
    found = checkpoint.resume(str(tmp_path), model, optimizer)
    assert found.step == 2 and len(found.passed_over) == 2
    assert "has 5 bytes instead of" in found.passed_over[0] and "is incomplete: no complete.json" in found.passed_over[1]
    assert checkpoint.resume(str(folder / "step_00000001"), model, optimizer).step == 1
    with pytest.raises(UserError, match="step_00000004 is incomplete"):
        checkpoint.resume(str(folder / "step_00000004"), model, optimizer)


@pytest.mark.parametrize("place", ["", "checkpoints"])
def test_nothing_to_resume_from_is_a_users_mistake(tmp_path: Path, place: str) -> None:
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(UserError, match="holds no complete checkpoint"):
        checkpoint.resume(str(tmp_path / place), *made())


def test_old_ones_go_and_the_last_complete_one_never(tmp_path: Path) -> None:
    model, optimizer = made()
    for step in (1, 2, 3):
        checkpoint.save(str(tmp_path), step, model, optimizer, {}, keep=2)
    folder = tmp_path / "checkpoints"
    assert sorted(os.listdir(folder)) == ["step_00000002", "step_00000003"]
    (folder / "step_00000003" / "complete.json").unlink()
    assert stored.prune(folder, 0) == [] and (folder / "step_00000002" / "complete.json").exists()


def test_only_our_own_folders_are_removed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "step_00000001").symlink_to(tmp_path / "kept")
    for name in ("kept", "step_00000001"):
        stored.remove(tmp_path / name)
    assert (tmp_path / "kept").is_dir()


def test_a_step_is_saved_again_over_what_a_crash_left(tmp_path: Path) -> None:
    left = tmp_path / "checkpoints" / "step_00000002"
    left.mkdir(parents=True)
    (left / "__9_0.distcp").write_bytes(b"half")
    checkpoint.save(str(tmp_path), 2, *made(), {})
    assert not (left / "__9_0.distcp").exists() and checkpoint.resume(str(tmp_path), *made()).step == 2


# --- another model --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda: made(6), r"model.0.weight is \(4, 5\) there and \(4, 6\) here"),
        (
            lambda: (model := nn.Sequential(nn.Linear(5, 4)), torch.optim.AdamW(model.parameters())),
            r"model.1.weight is \(2, 4\) there and missing",
        ),
        (lambda: ((model := made()[0]), torch.optim.AdamW(model[1].parameters())), "trained other parameters than this run"),  # type: ignore[index]
    ],
    ids=["shape", "layer", "frozen"],
)
def test_another_model_is_named(saved: Path, change: Callable[[], Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        checkpoint.resume(str(saved), *change())


# --- hostile files --------------------------------------------------------------------------------------------------


class Planted:
    """A pickle that makes a folder where it is opened."""

    def __init__(self, place: str) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.place,)


def rewritten(saved: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """state.json changed, and the marker's hash and size made right again: by somebody who knows how."""
    state = json.loads((saved / "state.json").read_text())
    change(state)
    (saved / "state.json").write_text(json.dumps(state))
    marker = json.loads((saved / "complete.json").read_text())
    marker["state_sha256"] = stored._sha256(saved / "state.json")
    marker["files"] = {name: (saved / name).stat().st_size for name in marker["files"]}
    (saved / "complete.json").write_text(json.dumps(marker))


def test_torchs_pickled_metadata_is_never_opened(saved: Path, tmp_path: Path) -> None:
    (saved / ".metadata").write_bytes(pickle.dumps(Planted(str(tmp_path / "ran"))))
    assert checkpoint.resume(str(saved), *made()).step == 2
    assert not (tmp_path / "ran").exists()


def test_a_pickle_in_the_place_of_a_tensor_does_not_run(saved: Path, tmp_path: Path) -> None:
    data = saved / "__0_0.distcp"
    planted = tmp_path / "planted.pt"
    torch.save({"a": Planted(str(tmp_path / "ran"))}, planted)
    data.write_bytes(planted.read_bytes() + data.read_bytes())
    rows = {"first": 0, "length": planted.stat().st_size}
    rewritten(
        saved, lambda state: state["tensors"]["model.0.weight"]["chunks"][0].__setitem__(slice(3, 5), [rows["first"], rows["length"]])
    )
    with pytest.raises(UserError, match="cannot resume from .*load the tensors"):
        checkpoint.resume(str(saved), *made())
    assert not (tmp_path / "ran").exists()


WEIGHT = "model.0.weight"
LARGE = {"dtype": "float32", "size": [2**40], "chunks": [[[0], [2**40], "__0_0.distcp", 0, 9]]}
HOSTILE: dict[str, Callable[[dict[str, Any]], object]] = {
    "a path out": lambda s: s["tensors"][WEIGHT]["chunks"][0].__setitem__(2, "../../secret"),
    "an absolute path": lambda s: s["tensors"][WEIGHT]["chunks"][0].__setitem__(2, "/dev/zero"),
    "past the file's end": lambda s: s["tensors"][WEIGHT]["chunks"][0].__setitem__(4, 2**40),
    "before the file's start": lambda s: s["tensors"][WEIGHT]["chunks"][0].__setitem__(3, -8),
    "outside the tensor": lambda s: s["tensors"][WEIGHT]["chunks"][0].__setitem__(0, [4, 0]),
    "a size that is no number": lambda s: s["tensors"][WEIGHT].update(size=["4", 5]),
    "a size beyond numbers": lambda s: s["tensors"][WEIGHT].update(size=[10**30, 5]),
    "no such type": lambda s: s["tensors"][WEIGHT].update(dtype="object"),
    "a list for a tensor": lambda s: s["tensors"].update({WEIGHT: [1]}),
    "a number for chunks": lambda s: s["tensors"][WEIGHT].update(chunks=3),
    "no chunks": lambda s: s["tensors"][WEIGHT].update(chunks=[]),
    "no tensors": lambda s: s.update(tensors=[]),
    "another schema": lambda s: s.update(schema="other/1"),
    "no options": lambda s: s.pop("optimizer"),
    "options that are none": lambda s: s.update(optimizer=[{"lr": 1}]),
    "an option of another kind": lambda s: s["optimizer"][0].update(betas=3),
    "a state too large": lambda s: s["tensors"].update({"optimizer.0.weight.other": LARGE}),
    "facts that are none": lambda s: s.update(facts=[1]),
}


@pytest.mark.parametrize("how", HOSTILE)
def test_a_hostile_state_is_one_clear_line(saved: Path, how: str) -> None:
    rewritten(saved, HOSTILE[how])
    with pytest.raises(UserError) as caught:
        checkpoint.resume(str(saved), *made())
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 700 and str(saved) in str(caught.value)


MARKERS = {
    "empty": "",
    "a list": "[]",
    "half": "{",
    "deep": "[" * 10**5,
    "no step": '{"schema": "trainwright/checkpoint/1"}',
    "a path out": '{"schema":"trainwright/checkpoint/1","step":1,"world_size":1,"files":{"../x":1}}',
    "no state": '{"schema":"trainwright/checkpoint/1","step":1,"world_size":1,"files":{}}',
    "a step that is none": '{"schema":"trainwright/checkpoint/1","step":true,"world_size":1,"files":{}}',
    "a number too long": '{"schema":1,"step":' + "9" * 10**4 + "}",
}


@pytest.mark.parametrize("how", MARKERS)
def test_a_hostile_marker_is_not_complete(saved: Path, how: str) -> None:
    (saved / "complete.json").write_text(MARKERS[how])
    shelf = stored.look(saved.parent)
    assert shelf.complete == () and len(shelf.incomplete) == 1 and "\n" not in shelf.incomplete[0][1]


# --- a full disk ----------------------------------------------------------------------------------------------------


def test_a_disk_that_cannot_hold_it_is_named_before_anything_is_written(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Usage", (), {"free": 100})())
    with pytest.raises(
        UserError, match="No space left on device: it needs .*100 B are free; the checkpoint of step 2 stands; free some space"
    ):
        checkpoint.save(str(saved.parents[1]), 3, *made(), {})
    assert sorted(os.listdir(saved.parent)) == ["step_00000002"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(UserError, match="cannot save the checkpoint of step 1 in .*there is none before it"):
        checkpoint.save(str(tmp_path), 1, *made(), {})


# --- real ranks -----------------------------------------------------------------------------------------------------


def ranks(count: int, *jobs: str) -> list[dict[str, Any]]:
    argv = [sys.executable, "-W", "ignore", str(RANKS), str(count), *jobs]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def check_exact(rows: list[dict[str, Any]], kinds: list[str]) -> None:
    assert [row["kind"] for row in rows] == kinds
    for row in rows:
        assert (row["step"], row["exact"], row["facts"]) == (3, True, {"kind": row["kind"]})
        assert row["names"] and row["different"] == [] and row["losses"], row
        assert row["rates"] == [0.01 / 3, 0.01 / 3]


def check_close(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        assert row["names"] and 0 < row["gap"] < ROUNDING and not row["exact"] and "in another order" in row["why"], row


@pytest.mark.long
@pytest.mark.parametrize(
    ("count", "kinds"), [(1, ["single"]), (2, ["ddp", "full", "grad_op"]), (4, ["ddp", "full", "hsdp"])], ids=["1", "2", "4"]
)
def test_a_resumed_run_is_the_same_to_the_bit(tmp_path: Path, paths: None, count: int, kinds: list[str]) -> None:
    """6 steps against 3, a checkpoint and 3 more, with dropout: parameters, optimizer states and every rank's losses."""
    check_exact(ranks(count, *(f"{kind}:both:{tmp_path}/{kind}:0.1" for kind in kinds)), kinds)


@pytest.mark.long
def test_another_number_of_ranks_and_another_strategy_take_it_up(tmp_path: Path, paths: None) -> None:
    """2 ranks -> 4 and 1, 4 -> 1 and 2, DDP <-> FSDP2 <-> HSDP, to within rounding."""
    two, four = f"{tmp_path}/two", f"{tmp_path}/four"
    rows = ranks(2, f"ddp:both:{two}:0", f"ddp:resume:{two}", f"full:resume:{two}")
    assert rows[1]["exact"] and rows[1]["gap"] == 0
    assert rows[2]["why"] == "saved under ddp and resumed under full: sums are in another order" and rows[2]["gap"] < ROUNDING
    check_close(ranks(4, f"full:both:{four}:0", f"full:resume:{two}", f"hsdp:resume:{two}", f"ddp:resume:{two}")[1:])
    check_close(ranks(1, f"single:resume:{two}", f"single:resume:{four}"))
    check_close(ranks(2, f"ddp:resume:{four}", f"grad_op:resume:{four}"))


@pytest.mark.long
def test_a_disk_full_on_one_rank_ends_the_save_on_all(tmp_path: Path, paths: None) -> None:
    """The system's own refusal of a large file, ENOSPC at the end of the data, and ENOSPC in the last small file."""
    rows = ranks(2, *(f"{kind}:refuse:{tmp_path}/{how}:{how}" for kind, how in (("ddp", "limit"), ("full", "fsync"), ("full", "layout"))))
    for row, words in zip(
        rows, ("rank 1 could not write the tensors: File too large", "No space left on device", "No space left on device"), strict=True
    ):
        assert row["said"] == [True, True] and row["same"] and words in row["message"], row
        assert "cannot save the checkpoint of step 2" in row["message"] and "the checkpoint of step 1 stands" in row["message"]
        assert row["left"] == ["step_00000001"]
    assert all(math.isfinite(len(row["message"])) and len(row["message"]) < 500 for row in rows)
