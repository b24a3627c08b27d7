"""The loop: what a step's record holds, and that loss and gradient norm are right."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trainwright.job import Job
from trainwright.model import ModelSpec
from trainwright.strategy import Strategy
from trainwright.train.data import Batch, Settings, open_data
from trainwright.train.loop import Clock, NonFinite, Training, evaluate, run_step, train
from trainwright.train.optimizer import clip, gradient_norm
from trainwright.train.parallelize import prepare
from trainwright.train.records import Records
from trainwright.train.tracker import Tracker

CPU = torch.device("cpu")
FSDP = Strategy("fsdp", wrap_classes=("LlamaDecoderLayer",))


def training(spec: ModelSpec, strategy: Strategy = FSDP, **fields: Any) -> Training:
    job = Job(**{"model": "/m", "backend_config": "/c", "world_size": 1, "micro_batch": 2, "seq_len": 16, "learning_rate": 1e-2, **fields})
    tracker = Tracker(CPU, 0)
    model, optimizer = prepare(spec, job.placed(strategy), job, CPU, {})
    return Training(model, optimizer, strategy, job, open_data(Settings(), spec, job.seq_len), CPU, Clock(CPU), tracker)


@pytest.mark.parametrize("strategy", [Strategy("single"), Strategy("ddp"), FSDP], ids=lambda s: s.name)
def test_steps_learn_and_their_phases_make_up_the_step(small: ModelSpec, group: None, strategy: Strategy) -> None:
    ready = training(small, strategy)
    rows = [run_step(ready, number)[0] for number in range(1, 9)]
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.5
    for row in rows:
        parts = sum(row[name] for name in ("forward_s", "backward_s", "optimizer_s", "data_s"))
        assert 0 < parts <= row["step_time_s"]
        assert row["tokens"] == 32 and row["memory_bytes"] is None and row["grad_norm"] > 0


def test_loss_and_norm_are_those_of_a_plain_step(small: ModelSpec, group: None) -> None:
    ready = training(small, Strategy("single"))
    loss = ready.model(ready.data.batch(0, 2))
    gradients = torch.autograd.grad(loss, list(ready.model.parameters()))
    expected = torch.cat([g.double().flatten() for g in gradients]).norm().item()
    row, _ = run_step(ready, 1)
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


def test_rounds_are_summed_to_the_step_of_one_batch(small: ModelSpec, group: None) -> None:
    once = run_step(training(small, micro_batch=4), 1)[0]
    for strategy in (Strategy("single"), Strategy("ddp"), FSDP):
        row = run_step(training(small, strategy, micro_batch=1, accumulation=4), 1)[0]
        assert (row["loss"], row["grad_norm"]) == pytest.approx((once["loss"], once["grad_norm"]), rel=1e-6)
        assert row["tokens"] == once["tokens"] == 64


def test_clipping_scales_the_whole_gradient_to_the_limit() -> None:
    parameters = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(1))]
    parameters[0].grad, parameters[1].grad = torch.tensor([3.0, 0.0, 0.0]), torch.full((2, 2), 2.0)
    norm = gradient_norm(parameters)
    clip(parameters, norm, None)
    clip(parameters, norm, 5.0)
    assert norm == pytest.approx(5.0) and gradient_norm(parameters) == norm
    clip(parameters, norm, 1.0)
    assert gradient_norm(parameters) == pytest.approx(1.0, rel=1e-6)
    assert torch.equal(parameters[0].grad / parameters[0].grad.norm(), torch.tensor([1.0, 0.0, 0.0]))


class Broken:
    """Data in which one step's labels are such that the loss is no number."""

    def __init__(self, inner: Any, at: int) -> None:
        self.inner, self.at = inner, at

    def batch(self, first: int, count: int) -> Batch:
        found: Batch = self.inner.batch(first, count)
        return found._replace(labels=torch.full_like(found.labels, -100)) if first == self.at else found

    def targets(self, first: int, count: int) -> int:
        return int(self.inner.targets(first, count))

    def eval_batches(self, size: int = 32) -> Iterator[Batch]:
        yield from self.inner.eval_batches(size)


def test_a_loss_that_is_no_number_stops_the_run_with_its_record_and_without_an_update(
    small: ModelSpec, group: None, tmp_path: Path
) -> None:
    ready = training(small, Strategy("single"), steps=5)
    ready = dataclasses.replace(ready, data=Broken(ready.data, at=4))
    before: list[torch.Tensor] = []
    ready.model.register_forward_pre_hook(lambda *_: before.append(next(ready.model.parameters()).detach().clone()))
    records = Records(str(tmp_path), 0, {})
    with pytest.raises(NonFinite, match=r"the loss is nan in step 3, on every rank; the job stops with the weights of step 2"):
        train(ready, records)
    records.end("failed")
    rows = [json.loads(line) for line in (tmp_path / "perf" / "rank0.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["kind"] == "step"]
    assert [row["step"] for row in rows] == [1, 2, 3] and rows[2]["loss"] is None
    assert torch.equal(before[2], next(ready.model.parameters())) and not torch.equal(before[1], before[2])


def test_a_gradient_that_is_no_number_is_not_applied(small: ModelSpec, group: None, tmp_path: Path) -> None:
    ready = training(small, Strategy("single"))
    weight = next(ready.model.parameters())
    weight.register_hook(lambda gradient: gradient * torch.inf)  # type: ignore[no-untyped-call]
    before = weight.detach().clone()
    records = Records(str(tmp_path), 0, {})
    with pytest.raises(NonFinite, match=r"the gradient norm is (nan|inf) in step 1 though the loss is 5\."):
        train(ready, records)
    records.end("failed")
    assert torch.equal(before, weight)


def test_evaluation_is_the_mean_of_its_windows_and_trains_nothing(small: ModelSpec, group: None) -> None:
    ready = training(small, order="study", eval_windows=5)
    ready = dataclasses.replace(ready, data=open_data(Settings(order="study", eval_windows=5), small, 16))
    batches = list(ready.data.eval_batches(1))
    expected = sum(ready.model(batch).item() for batch in batches) / len(batches)
    assert len(batches) == 5 and evaluate(ready) == pytest.approx(expected, rel=1e-6) and ready.model.training
    assert all(parameter.grad is None for parameter in ready.model.parameters())
