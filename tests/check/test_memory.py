"""Memory in `check`: the finding is the ledger's figure, and nothing is said where the ledger would not know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainwright.check.judge import judge
from trainwright.check.subject import Context
from trainwright.cost.memory import Workload, ledger
from trainwright.hardware import accelerator
from trainwright.model import ModelSpec, load_model
from trainwright.strategy import Strategy
from trainwright.units import format_bytes

DDP = "distributed_type: MULTI_GPU\nnum_processes: 8\nmixed_precision: bf16\n"


@pytest.fixture
def model(tmp_path: Path) -> ModelSpec:
    path = tmp_path / "config.json"
    path.write_text(
        '{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 2048, "intermediate_size": 5632,'
        ' "vocab_size": 32000, "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4, "tie_word_embeddings": false}'
    )
    return load_model(str(path))


def told(tmp_path: Path, text: str, **facts: Any) -> list[str]:
    (tmp_path / "a.yaml").write_text(text)
    return [f.message for f in judge([str(tmp_path / "a.yaml")], Context(**facts)).findings if f.rule == "ACC043"]


def test_the_figure_is_the_ledgers(tmp_path: Path, model: ModelSpec) -> None:
    args = {"per_device_train_batch_size": 16, "max_length": 4096}
    found = told(tmp_path, DDP, model=model, hardware="a100-40gb", training_args=args)
    assert len(found) == 1
    assert format_bytes(ledger(model, Strategy("ddp", precision="bf16"), Workload(16, 4096, 8)).peak_bytes) in found[0]
    assert told(tmp_path, DDP, model=model, hardware="a100-40gb", training_args={"per_device_train_batch_size": 1, "max_length": 128}) == []


def test_without_a_workload_the_states_alone_are_counted(tmp_path: Path, model: ModelSpec) -> None:
    states = ledger(model, Strategy("ddp", precision="bf16"), Workload(1, 1, 8)).states_bytes
    hardware = accelerator("a100-40gb")
    assert hardware.memory_bytes and states < hardware.memory_bytes - hardware.reserve_bytes
    assert told(tmp_path, DDP, model=model, hardware="a100-40gb") == []


@pytest.mark.parametrize(
    "facts",
    [
        {"quantization": {"load_in_4bit": True}},
        {"training_args": {"per_device_train_batch_size": 64, "max_length": 8192, "optim": "adafactor"}},
        {"training_args": {"per_device_train_batch_size": 64, "max_length": 8192, "lora_r": 8}},
        {"hardware": "some-new-device", "training_args": {"per_device_train_batch_size": 64, "max_length": 8192}},
    ],
)
def test_what_is_not_counted_is_not_judged(tmp_path: Path, model: ModelSpec, facts: dict[str, Any]) -> None:
    assert told(tmp_path, DDP, **{"model": model, "hardware": "a100-40gb", **facts}) == []
