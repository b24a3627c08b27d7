"""DeepSpeed JSONs read as strategies: each key has one answer, what cannot run is refused, and the engine gets the job's numbers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.document import DocumentError, load, parse
from trainwright.emit import backend, deepspeed
from trainwright.emit.reading import Reading
from trainwright.errors import UserError
from trainwright.job import Job
from trainwright.strategy import Strategy

PLAIN: dict[str, Any] = {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 4}


def read(**keys: Any) -> Reading:
    return deepspeed.read(parse(json.dumps(PLAIN | keys), "ds.json", "json"))


def test_stage_precision_and_offload() -> None:
    assert read().strategy == Strategy("zero", zero_stage=2)
    assert read(zero_optimization={"stage": 3}, bf16={"enabled": True}).strategy == Strategy("zero", precision="bf16", zero_stage=3)
    assert read(fp16={"enabled": True}).strategy.precision == "fp16"
    assert read(fp16={"enabled": "auto"}, bf16={"enabled": "auto"}).strategy.precision == "fp32", "raw DeepSpeed takes auto for false"
    assert read(torch_autocast={"enabled": True, "dtype": "bfloat16"}).strategy.precision == "bf16"
    assert read(zero_optimization={"stage": 2, "offload_optimizer": {"device": "cpu"}}).strategy.cpu_offload


def test_what_the_file_settles_of_the_job() -> None:
    optimizer = {"type": "Adam", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "weight_decay": "auto"}}
    found = read(gradient_accumulation_steps=8, train_batch_size="auto", gradient_clipping=0.5, optimizer=optimizer).job
    assert found == {
        **{"micro_batch": 4, "accumulation": 8, "clip_norm": 0.5, "learning_rate": 3e-4},
        **{"beta1": 0.9, "beta2": 0.95, "eps": 1e-8},
    }
    assert read().job == {"micro_batch": 4, "clip_norm": 1.0}, "DeepSpeed clips by default since 0.19.4"
    assert read(gradient_clipping=0).job["clip_norm"] is None and "clip_norm" not in read(gradient_clipping="auto").job
    assert read(scheduler={"type": "WarmupLR", "params": {}}).job["schedule"] == "constant"


def test_every_key_has_one_answer() -> None:
    keys = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}, "wandb": {"enabled": True}, "steps_per_print": 5}
    found = read(zero_optimisation={}, tensor_parallel={"autotp_size": 1}, activation_checkpointing={}, **keys)
    applied, left = {use.key: use.meaning for use in found.applied}, {use.key: use.meaning for use in found.not_applied}
    assert applied.keys() == {
        *("zero_optimization.stage", "train_micro_batch_size_per_gpu", "optimizer.type", "optimizer.params.lr", "steps_per_print"),
    }
    assert left.keys() == {"optimizer.params.torch_adam", "wandb", "zero_optimisation", "tensor_parallel", "activation_checkpointing"}
    assert "zero_optimization is what it reads" in left["zero_optimisation"]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"zero_optimization": {"stage": 0}}, "ZeRO stage 0 shards nothing"),
    ({"zero_optimization": {}}, "shards nothing"),
    ({"zero_optimization": {"stage": "2"}}, "shards nothing"),
    ({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}, "nvme is not supported"),
    ({"amp": {"enabled": False}}, "refuses the key, whatever its value"),
    ({"optimizer": {"type": "Lamb"}}, '"Lamb" is not supported'),
    ({"optimizer": {"type": "AdamW", "params": {"max_grad_norm": 1}}}, "write gradient_clipping"),
    ({"optimizer": {"type": "AdamW", "params": {"lr": "1e-4"}}}, '"1e-4" is no number'),
    ({"optimizer": {"type": "AdamW", "params": {"betas": 0.9}}}, "no pair of numbers"),
    ({"gradient_clipping": "one"}, "no norm"),
    ({"train_batch_size": 2.5}, "no number of samples"),
    ({"tensor_parallel": {"autotp_size": 2}}, "plain data parallelism"),
    ({"sequence_parallel_size": 2}, "plain data parallelism"),
    ({"gradient_allreduce_op": "sum"}, "plain data parallelism"),
    ({"bf16": {"enabled": True}, "fp16": {"enabled": True}}, "takes one of them"),
    ({"bf16": True}, "no block of keys"),
]


@pytest.mark.parametrize(("keys", "words"), REFUSED, ids=lambda value: str(value)[:50])
def test_what_cannot_run_is_one_line_with_its_place(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        read(**keys)
    assert str(caught.value).startswith("ds.json:1:") and "\n" not in str(caught.value)


def job(**fields: Any) -> Job:
    return Job(**{"model": "/m", "backend_config": "/c", "world_size": 2, "micro_batch": 3, "accumulation": 2, **fields})


def test_the_engine_gets_the_jobs_numbers_and_not_the_optimizer() -> None:
    zero = {"stage": 3, "reduce_bucket_size": "auto", "stage3_param_persistence_threshold": "auto", "offload_param": {"device": "cpu"}}
    keys = {"train_batch_size": "auto", "optimizer": {"type": "AdamW"}, "wandb": {"enabled": True}, "bf16": {"enabled": True}, "x": 1}
    scheduler = {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto", "warmup_num_steps": "auto", "warmup_max_lr": "auto"}}
    given = {"zero_optimization": zero, "scheduler": scheduler, **keys}
    found = deepspeed.engine_config(given, job(steps=50, clip_norm=0.7), hidden_size=100, offload=False)
    assert found.pop("zero_optimization") == {"stage": 3, "reduce_bucket_size": 10_000, "stage3_param_persistence_threshold": 1000}
    assert found.pop("scheduler")["params"] == {"total_num_steps": 50, "warmup_num_steps": 1, "warmup_max_lr": 1e-3}
    assert found == {
        **{"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 2, "gradient_clipping": 0.7, "bf16": {"enabled": True}},
        **{"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False},
    }
    assert "offload_param" in deepspeed.engine_config(given, job(), 100, offload=True)["zero_optimization"]
    assert deepspeed.engine_config(given, job(), 100, False)["gradient_clipping"] == 0.0


def test_a_document_is_told_from_an_accelerate_file() -> None:
    ours = parse(json.dumps(PLAIN), "a.json", "json")
    assert backend.read(ours).strategy.name == "zero_2"
    assert backend.read(parse("distributed_type: MULTI_GPU\n", "a.yaml", "yaml")).strategy.name == "ddp"
    assert not deepspeed.is_deepspeed(parse("[1]", "a.json", "json")) and not deepspeed.is_deepspeed(parse("{}", "a.json", "json"))


VALUES = st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=5) | st.just("auto") | st.just([0.9, 1])
BLOCKS = st.dictionaries(
    st.sampled_from(["stage", "enabled", "device", "type", "params", "offload_param", "lr"]) | st.text(max_size=4), VALUES
)


@given(st.dictionaries(st.sampled_from(deepspeed.TOP), VALUES | BLOCKS, max_size=6))
def test_any_mapping_is_read_or_refused(config: dict[str, Any]) -> None:
    try:
        found = deepspeed.read(parse(json.dumps(config), "ds.json", "json"))
    except UserError as problem:
        assert "\n" not in str(problem)
        return
    deepspeed.engine_config(config, job(), 64, found.strategy.cpu_offload)


@pytest.mark.skipif("TRAINWRIGHT_DATA" not in os.environ, reason="TRAINWRIGHT_DATA is not set: no real config files here")
def test_real_files_are_read_or_refused_in_one_line() -> None:
    read_, refused = 0, 0
    for path in sorted(Path(os.environ["TRAINWRIGHT_DATA"], "configs").glob("*.json")):
        try:
            document = load(str(path))
            if not deepspeed.is_deepspeed(document):
                continue
            found = deepspeed.read(document)
            assert len({use.key for use in (*found.applied, *found.not_applied)}) == len(found.applied) + len(found.not_applied)
            read_ += 1
        except (UserError, DocumentError) as problem:
            assert "\n" not in str(problem)
            refused += 1
    assert read_ > 60 and read_ > refused, (read_, refused)
