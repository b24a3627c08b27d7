"""Waits in collectives: counted where they are, once, and never where nothing waits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.distributed_c10d import Work  # noqa: E402

from trainwright.train.communication import Waits  # noqa: E402

RANKS = Path(__file__).parent / "ranks" / "waits.py"


@pytest.fixture
def waits() -> Any:
    waits = Waits(torch.device("cpu"))
    waits.install()
    yield waits
    waits.remove()


def test_each_wait_is_counted_and_the_original_comes_back(group: None) -> None:
    before = Work.wait
    waits = Waits(torch.device("cpu"))
    waits.install()
    waits.install()  # a second time changes nothing
    dist.all_reduce(torch.ones(3))
    work = dist.all_reduce(torch.ones(3), async_op=True)
    assert waits.count == 1
    work.wait()
    assert waits.count == 2 and waits.seconds is not None and 0 < waits.seconds < 60
    waits.clear()
    assert (waits.count, waits.seconds) == (0, 0.0)
    waits.remove()
    assert Work.wait is before


def test_nothing_is_measured_on_an_accelerator(group: None) -> None:
    before = Work.wait
    waits = Waits(torch.device("cuda", 0))
    waits.install()
    assert Work.wait is before and waits.seconds is None


def test_a_model_that_is_alone_waits_for_nobody(waits: Waits) -> None:
    model = nn.Linear(2, 2)
    loss = model(torch.ones(1, 2)).sum()
    with waits.backward(model, loss):
        loss.backward()
    assert waits.count == 0 and model.weight.grad is not None


def test_a_backward_without_sharing_waits_for_nobody(waits: Waits, group: None) -> None:
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
    waits.clear()
    with model.no_sync():
        loss = model(torch.ones(1, 2)).sum()
        with waits.backward(model, loss):
            loss.backward()
    assert waits.count == 0
    loss = model(torch.ones(1, 2)).sum()
    with waits.backward(model, loss):
        loss.backward()
    assert waits.count == 1


@pytest.mark.long
def test_the_rank_that_comes_late_waits_least(paths: None) -> None:
    """Rank 1 sleeps 0.6 s before its forward: rank 0 waits for it, in the backward under DDP, in the forward under FSDP."""
    argv = [sys.executable, "-W", "ignore", str(RANKS)]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["kind"] for row in rows} == {"ddp", "fsdp"} and len(rows) == 4
    for kind in ("ddp", "fsdp"):
        waited = {row["rank"]: row["seconds"] for row in rows if row["kind"] == kind}
        assert waited[0] > 0.5 and waited[1] < waited[0] - 0.3, rows
