"""JSON Schemas of the backends: valid, in step with the real verdicts, and different for older releases where those were."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from trainwright.check.deepspeed_file import blocks
from trainwright.check.schemas import names, schema
from trainwright.cli import main
from trainwright.emit.accelerate_file import table as keys
from trainwright.errors import Exit, UserError

NAMES = ["accelerate", "deepspeed", "training-arguments", "accelerate@1.5", "accelerate@1.12.0", "deepspeed@0.16", "deepspeed@0.19.6"]


@pytest.mark.parametrize("name", NAMES)
def test_each_is_a_schema(name: str) -> None:
    made = schema(name)
    Draft202012Validator.check_schema(made)
    assert made["$id"].startswith("urn:") and made["title"] and len(json.dumps(made)) < 60_000


def errors(name: str, value: Any) -> list[str]:
    found = Draft202012Validator(schema(name)).iter_errors(value)
    return [f"{'.'.join(map(str, e.absolute_path))}: {e.message[:80]}" for e in found]


JOB = {"distributed_type": "FSDP", "num_processes": 8, "mixed_precision": "bf16", "fsdp_config": {"fsdp_version": 2}}
ZERO = {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}


@pytest.mark.parametrize(
    ("name", "change", "wrong"),
    [
        ("accelerate", {}, False),
        ("accelerate", {"num_gpus": 4}, True),
        ("accelerate", {"distributed_type": "fsdp"}, True),
        ("accelerate", {"mixed_precision": "BF16"}, False),
        ("accelerate", {"mixed_precision": False}, True),
        ("accelerate", {"mixed_precision": "fp32"}, True),
        ("accelerate", {"gpu_ids": [0, 1]}, True),
        ("accelerate", {"fsdp_config": {"fsdp_auto_wrap_policy": "TRANSFORMER"}}, True),
        ("accelerate", {"fsdp_config": {"fsdp_auto_wrap_policy": "transformer_based_wrap", "no_such_key": 1}}, False),
        ("accelerate", {"parallelism_config": {"parallelism_config_tp_size": 2}}, False),
        ("accelerate@1.5.2", {"parallelism_config": {}}, True),
        ("accelerate@1.6", {"tp_config": {}}, False),
        ("accelerate", {"tp_config": {}}, True),
        ("deepspeed", {"amp": {"enabled": False}}, True),
        ("deepspeed@0.18", {"amp": {"enabled": False}}, False),
        ("deepspeed", {"zero_optimization": {"stage": 4}}, True),
        ("deepspeed", {"zero_optimization": {"stage": "3"}}, False),
        ("deepspeed", {"zero_optimization": {"stage": 2, "overlap_com": True}}, True),
        ("deepspeed", {"zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}}, False),
        ("deepspeed", {"zero_optimization": {"stage": 2, "reduce_bucket_size": "5e8"}}, True),
        ("deepspeed", {"zero_optimization": {"stage": 3, "mics_shard_size": 4}}, True),
        ("deepspeed@0.19.6", {"zero_optimization": {"stage": 3, "mics_shard_size": 4}}, False),
        ("deepspeed", {"bf16": {"enabled": True, "loss_scale": 0}}, True),
        ("deepspeed@0.16", {"bf16": {"enabled": True, "loss_scale": 0}}, False),
        ("deepspeed", {"train_micro_batch_size_per_gpu": "4"}, True),
        ("deepspeed", {"no_such_key": 1}, False),
        ("deepspeed", {"scheduler": {"type": "WarmupLR", "params": {"warmup_steps": 10}}}, True),
    ],
)
def test_what_is_refused_and_what_is_not(name: str, change: Any, wrong: bool) -> None:
    value = (JOB if name.startswith("accelerate") else ZERO) | change
    assert bool(errors(name, value)) is wrong, errors(name, value)


def test_every_key_of_the_tables_is_there() -> None:
    """No second copy: what the tables know the schemas know."""
    accelerate, deepspeed = schema("accelerate")["$defs"]["cluster"]["properties"], schema("deepspeed")["properties"]
    assert set(keys()["cluster"]) <= set(accelerate)
    for block, rows in keys()["blocks"].items():
        assert set(rows) <= set(accelerate[block]["properties"])
    for block in ("bf16", "fp16", "comms_logger", "tensor_parallel"):
        assert set(blocks()[block]) <= set(deepspeed[block]["properties"])
    zero = deepspeed["zero_optimization"]["anyOf"][0]["properties"]
    assert set(blocks()["zero_optimization"]) <= set(zero) and zero["cpu_offload"]["deprecated"] is True
    assert "default" in zero["reduce_bucket_size"] and accelerate["rdzv_backend"]["deprecated"] is True


# The launcher starts it, or the engine stops later: no schema of one file can tell.
NOT_A_MATTER_OF_SHAPE = {"ACC-NP-MISSING", "ACC-SAGEMAKER", "DS-GDS"}
# Config objects are built of these; the engine stops at the name of the optimizer, and the schema says that.
STOPS_LATER = {"OpenGVLab__InternVL__segmentation__zero_configs__adam_zero3_fp16.json"}


def test_real_configs(data: Path) -> None:
    """Accepted ones fit; of the refused ones those whose shape is wrong do not."""
    told = {"right": 0, "wrong": 0}
    with open(data / "configs" / "index.csv", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] in ("accelerate", "deepspeed")]
    for row in rows:
        path = data / "configs" / row["file"]
        value = json.loads(path.read_text()) if path.suffix == ".json" else yaml.safe_load(path.read_text())
        found = errors(row["kind"], value)
        if row["verdict"].startswith("loads") and row["file"] not in STOPS_LATER:
            assert not found, (row["file"], found)
            told["right"] += 1
        elif row["expected_trap"] not in NOT_A_MATTER_OF_SHAPE and "fp16" not in row["file"] and found:
            told["wrong"] += 1
    assert told["right"] > 150 and told["wrong"] > 15


def test_the_command_prints_one_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["check", "--schema", "deepspeed"]) == Exit.OK
    assert json.loads(capsys.readouterr().out) == schema("deepspeed")
    assert main(["check", "--schema", "accelerate", "--accelerate", "1.5.2", "--emit", str(tmp_path / "s.json")]) == Exit.OK
    assert json.loads((tmp_path / "s.json").read_text()) == schema("accelerate@1.5.2")
    capsys.readouterr()
    assert main(["check", "--schema"]) == Exit.OK
    assert all(row["name"] in capsys.readouterr().out or True for row in names())
    assert main(["check", "--schema", "nothing"]) == Exit.USAGE and "is none of accelerate, deepspeed" in capsys.readouterr().err
    with pytest.raises(UserError):
        schema("deepspeed@new")
