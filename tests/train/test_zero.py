"""What DeepSpeed refuses becomes one line that names the key; the package itself is not needed for that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from trainwright.errors import UserError
from trainwright.job import Job
from trainwright.strategy import Strategy
from trainwright.train import zero


class ValidationError(ValueError):
    """As pydantic's: one row for each value of the wrong kind."""

    def errors(self) -> list[dict[str, Any]]:
        return [{"loc": ("zero_optimization", "reduce_bucket_size"), "msg": "Input should be a valid integer", "input": "a\nb"}]


PROBLEMS: list[tuple[Exception, str]] = [
    (
        ValidationError("1 error\nFor further information visit a page"),
        r"zero_optimization.reduce_bucket_size: .* integer, and is 'a\\nb'$",
    ),
    (AssertionError("no such\nscheduler"), "no such scheduler$"),
    (NotImplementedError(), "NotImplementedError$"),
    (AttributeError("module has no attribute 'fp8'"), "no attribute 'fp8'$"),
]


@pytest.mark.parametrize(("problem", "words"), PROBLEMS, ids=lambda value: type(value).__name__)
def test_a_refusal_is_one_line(problem: Exception, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def initialize(**settings: Any) -> None:
        raise problem

    monkeypatch.setattr(zero, "_deepspeed", lambda device: SimpleNamespace(initialize=initialize))
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    job = Job(model="/m", backend_config="/ds.json", world_size=1)
    config = {"zero_optimization": {"stage": 2}}
    with pytest.raises(UserError, match=f"DeepSpeed does not start with /ds.json: .*{words}") as caught:
        zero.start(model, optimizer, Strategy("zero", zero_stage=2), job, 8, torch.device("cpu"), config)
    assert "\n" not in str(caught.value) and "http" not in str(caught.value)
