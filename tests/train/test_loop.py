"""The loop: what a step's record holds, and that loss and gradient norm are right."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

from trainwright.job import Job
from trainwright.model import ModelSpec
from trainwright.strategy import Strategy
from trainwright.train.data import Corpus
from trainwright.train.loop import Clock, Training, gradient_norm, make_optimizer, next_batch, run_step
from trainwright.train.parallelize import distribute
from trainwright.train.tracker import Tracker

CPU = torch.device("cpu")
FSDP = Strategy("fsdp", wrap_classes=("LlamaDecoderLayer",))


def training(spec: ModelSpec, strategy: Strategy = FSDP, tracked: int = 0) -> Training:
    job = Job(model="/m", backend_config="/c", world_size=1, micro_batch=2, seq_len=16, learning_rate=1e-2)
    tracker = Tracker(CPU, tracked)
    with tracker.construction():
        model = distribute(spec, strategy, CPU, 1, seed=0)
        optimizer = make_optimizer(model, job.learning_rate)
    tracker.follow(model, optimizer)
    corpus = Corpus(b"the quick brown fox jumps over the lazy dog. " * 40, 1)
    return Training(model, optimizer, spec, strategy, job, corpus, CPU, Clock(CPU), tracker)


@pytest.mark.parametrize("strategy", [Strategy("single"), Strategy("ddp"), FSDP], ids=lambda s: s.name)
def test_steps_learn_and_their_phases_make_up_the_step(small: ModelSpec, group: None, strategy: Strategy) -> None:
    ready = training(small, strategy)
    rows = [run_step(ready, number) for number in range(1, 9)]
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.5
    for row in rows:
        parts = sum(row[name] for name in ("forward_s", "backward_s", "optimizer_s", "data_s"))
        assert 0 < parts <= row["step_time_s"]
        assert row["tokens"] == 32 and row["memory_bytes"] is None and row["grad_norm"] > 0


def test_loss_and_norm_are_those_of_a_plain_step(small: ModelSpec, group: None) -> None:
    ready = training(small, Strategy("single"))
    ids, labels = next_batch(ready, 1)
    loss = ready.model(ids, labels)
    gradients = torch.autograd.grad(loss, list(ready.model.parameters()))
    expected = torch.cat([g.double().flatten() for g in gradients]).norm().item()
    row = run_step(ready, 1)
    assert row["loss"] == pytest.approx(loss.item(), rel=1e-7)
    assert row["grad_norm"] == pytest.approx(expected, rel=1e-7)


def test_the_norm_of_millions_of_elements_is_right_where_one_fp32_sum_is_not() -> None:
    parameter = nn.Parameter(torch.zeros(8192, 384))
    parameter.grad = torch.randn(8192, 384, generator=torch.Generator().manual_seed(0)) * 1e-3
    expected = parameter.grad.double().norm().item()
    assert gradient_norm([parameter]) == pytest.approx(expected, rel=1e-7)
    assert parameter.grad.norm().item() != pytest.approx(expected, rel=1e-6)


def test_parameters_without_a_gradient_and_empty_ones_count_nothing() -> None:
    empty, scalar = nn.Parameter(torch.zeros(0, 4)), nn.Parameter(torch.tensor(3.0))
    empty.grad, scalar.grad = torch.zeros(0, 4), torch.tensor(-2.0)
    assert gradient_norm([nn.Parameter(torch.ones(3)), empty, scalar]) == 2.0


def test_the_clock_still_names_the_phase_that_failed() -> None:
    clock = Clock(CPU)
    with clock.during("data"):
        time.sleep(0.001)
    with pytest.raises(ValueError, match="no"), clock.during("forward"):
        raise ValueError("no")
    assert clock.phase == "forward" and set(clock.seconds) == {"data"} and clock.seconds["data"] >= 0.001
