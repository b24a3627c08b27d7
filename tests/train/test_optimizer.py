"""The learning rate at each step, what AdamW is given, and the mean of Local SGD."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from trainwright.job import Job
from trainwright.train.local_sgd import LocalSGD
from trainwright.train.optimizer import learning_rate, make_optimizer


def job(**fields: object) -> Job:
    return Job(**{"model": "/m", "backend_config": "/c", "world_size": 1, "learning_rate": 0.1, "steps": 11, **fields})  # type: ignore[arg-type]


def rates(**fields: object) -> list[float]:
    ready = job(**fields)
    return [learning_rate(ready, step) for step in range(1, ready.last_step + 1)]


def test_a_constant_rate_and_its_warm_up() -> None:
    assert rates() == [0.1] * 11
    assert rates(warmup_steps=4) == pytest.approx([0.025, 0.05, 0.075, 0.1] + [0.1] * 7)


def test_a_line_and_a_cosine_end_with_the_run() -> None:
    assert rates(schedule="linear", warmup_steps=1) == pytest.approx([0.1 * (1 - n / 10) for n in range(11)])
    assert rates(schedule="linear", warmup_steps=1, min_lr_ratio=0.2)[-1] == pytest.approx(0.02)
    cosine = rates(schedule="cosine", warmup_steps=1)
    assert cosine[0] == 0.1 and cosine[5] == pytest.approx(0.05) and cosine[-1] == pytest.approx(0.0, abs=1e-18)


def test_the_horizon_is_the_runs_own_where_samples_end_it() -> None:
    short = rates(schedule="linear", steps=1000, samples=21, micro_batch=2)
    assert len(short) == 11 and short[-1] == pytest.approx(0.0, abs=1e-18)


@given(st.sampled_from(["constant", "linear", "cosine"]), st.integers(0, 20), st.integers(1, 60), st.floats(0, 1))
def test_rates_rise_in_the_warm_up_and_never_after(schedule: str, warmup: int, more: int, least: float) -> None:
    found = rates(schedule=schedule, warmup_steps=warmup, steps=warmup + more, min_lr_ratio=least)
    assert all(a < b for a, b in pairwise(found[:warmup]))
    assert all(a >= b - 1e-15 for a, b in pairwise(found[max(warmup - 1, 0) :]))
    assert max(found) <= 0.1 * (1 + 1e-12) and (schedule == "constant" or found[-1] == pytest.approx(0.1 * least, abs=1e-15))


def test_adamw_gets_what_trains_and_what_the_job_says() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    group = make_optimizer(model, job(beta1=0.8, beta2=0.95, eps=1e-6, weight_decay=0.1)).param_groups[0]
    assert len(group["params"]) == 2 and group["fused"] is True
    assert (group["lr"], group["betas"], group["eps"], group["weight_decay"]) == (0.1, (0.8, 0.95), 1e-6, 0.1)


def test_only_matrices_decay_where_asked() -> None:
    found = make_optimizer(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)), job(decay="matrices", weight_decay=0.1)).param_groups
    assert [(len(group["params"]), group["weight_decay"]) for group in found] == [(1, 0.1), (3, 0.0)]
    assert [group["weight_decay"] for group in make_optimizer(nn.Linear(2, 2, bias=False), job(decay="matrices")).param_groups] == [0.01]


def test_local_sgd_averages_when_its_period_is_full_or_the_run_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    model = LocalSGD(nn.Linear(2, 1), period=3)
    calls: list[int] = []

    def average() -> None:
        calls.append(model.apart)
        model.apart = 0

    monkeypatch.setattr(model, "average", average)
    assert [model.stepped(last=step == 8) for step in range(1, 9)] == [False, False, True, False, False, True, False, True]
    assert calls == [3, 3, 2]
    assert torch.equal(model(torch.ones(1, 2)), model.module(torch.ones(1, 2)))
