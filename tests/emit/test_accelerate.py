"""Strategies written as Accelerate files and read back; every key of a file gets one answer; what cannot run is refused."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainwright.document import Document, load, parse
from trainwright.emit.accelerate import read, write
from trainwright.emit.accelerate_file import accelerate_file, table
from trainwright.emit.reading import Reading
from trainwright.errors import UserError
from trainwright.model import load_model
from trainwright.strategy import Precision, Strategy

ROOT = Path(__file__).resolve().parents[2]
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True) | st.sampled_from(["No", "null", "True", "Ünit"])
PRECISIONS = st.sampled_from(get_args(Precision))
FSDP = st.builds(
    Strategy,
    st.just("fsdp"),
    reshard_after_forward=st.booleans(),
    wrap_classes=st.lists(NAMES, min_size=1, max_size=3).map(tuple),
    precision=PRECISIONS,
    activation_checkpointing=st.booleans(),
    cpu_offload=st.booleans(),
)
HSDP = st.builds(lambda strategy, copies: replace(strategy, replicas=copies), FSDP, st.integers(2, 64))
UNWRAPPED = st.builds(Strategy, st.just("fsdp"), reshard_after_forward=st.booleans(), precision=PRECISIONS, cpu_offload=st.booleans())
PLAIN = st.builds(Strategy, st.just("ddp"), precision=PRECISIONS)
SINGLE = st.builds(Strategy, st.just("single"), precision=PRECISIONS)
DEVICES = st.sampled_from(["cpu", "cuda", "xpu"])


def document(text: str) -> Document:
    return parse(text, "a.yaml", "yaml")


def reading(text: str) -> Reading:
    return read(document(text))


def uses(text: str) -> dict[str, str]:
    """key -> "+ what it becomes" or "- why it does nothing"."""
    found = reading(text)
    return {u.key: f"+ {u.meaning}" for u in found.applied} | {u.key: f"- {u.meaning}" for u in found.not_applied}


# --- write, and read of it ------------------------------------------------------------------------------------------


@given(FSDP | UNWRAPPED | PLAIN, st.integers(1, 4096), DEVICES)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_read_of_write_is_the_strategy(strategy: Strategy, world_size: int, device: str) -> None:
    found = reading(write(strategy, world_size, device))
    assert (found.strategy, found.num_processes) == (strategy, world_size)


@given(HSDP, st.integers(2, 64), DEVICES)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_copies_in_shards_are_read_back(strategy: Strategy, shards: int, device: str) -> None:
    found = reading(write(strategy, strategy.replicas * shards, device))
    assert (found.strategy, found.num_processes) == (strategy, strategy.replicas * shards)
    assert found.strategy.name.startswith("hsdp_")


@given(SINGLE, DEVICES)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_one_process(strategy: Strategy, device: str) -> None:
    text = write(strategy, 1, device)
    assert (reading(text).strategy, reading(text).num_processes) == (strategy, 1)
    assert yaml.safe_load(text)["distributed_type"] == "NO", "quoted, or YAML reads it as false"


def test_the_written_file() -> None:
    strategy = Strategy("fsdp", False, ("LlamaDecoderLayer", "Embedding"), "bf16", True)
    text = write(strategy, 4, "cpu")
    assert text.startswith("# Written by trainwright")
    assert yaml.safe_load(text) == {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "num_processes": 4,
        "mixed_precision": "bf16",
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": False,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer,Embedding",
            "fsdp_activation_checkpointing": True,
            "fsdp_offload_params": False,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        },
    }
    assert yaml.safe_load(write(Strategy("ddp"), 2, "xpu"))["distributed_type"] == "MULTI_XPU"
    assert yaml.safe_load(write(Strategy("ddp"), 2, "cuda"))["mixed_precision"] == "no"
    assert yaml.safe_load(write(Strategy("ddp"), 2, "cpu"))["use_cpu"] is True


@pytest.mark.parametrize(
    ("strategy", "world_size", "device", "word"),
    [
        (Strategy("ddp", activation_checkpointing=True), 4, "cuda", "activation checkpointing without FSDP"),
        (Strategy("ddp", cpu_offload=True), 4, "cuda", "CPU offload without FSDP"),
        (Strategy("single", wrap_classes=("A",)), 1, "cuda", "wrap classes without FSDP"),
        (Strategy("ddp", reshard_after_forward=False), 4, "cuda", "reshard_after_forward false without FSDP"),
        (Strategy("single"), 4, "cuda", "single on 4 ranks"),
        (Strategy("fsdp", wrap_classes=("A,B",)), 4, "cuda", "class name 'A,B'"),
        (Strategy("fsdp", wrap_classes=("A' #",)), 4, "cuda", "class name"),
        (Strategy("fsdp", activation_checkpointing=True), 4, "cuda", "without a class to wrap"),
        (Strategy("ddp"), 0, "cuda", "on 0 ranks"),
        (Strategy("ddp", replicas=2), 4, "cuda", "replicas without FSDP"),
        (Strategy("fsdp", replicas=3), 4, "cuda", "3 replicas in shards on 4 ranks"),
        (Strategy("fsdp", replicas=4), 4, "cuda", "4 replicas in shards on 4 ranks"),
        (Strategy("zero", zero_stage=2), 4, "cuda", "DeepSpeed's ZeRO"),
        (Strategy("local_sgd"), 4, "cuda", "Local SGD"),
        (Strategy("fsdp", True, ("A",), activation_checkpointing=True, checkpoint_every=2), 4, "cuda", "every 2th block"),
        (Strategy("ddp"), 4, "tpu", "device 'tpu'"),
    ],
)
def test_what_the_file_cannot_express_is_not_written(strategy: Strategy, world_size: int, device: str, word: str) -> None:
    with pytest.raises(UserError, match=word):
        write(strategy, world_size, device)


# --- read -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "strategy", "ranks"),
    [
        ("distributed_type: 'NO'\n", Strategy("single"), 1),
        ("distributed_type: 'NO'\nnum_processes: 8\n", Strategy("single"), 1),
        ("distributed_type: NO\nnum_processes: 1\n", Strategy("single"), 1),
        ("distributed_type: MULTI_CPU\nnum_processes: 4\nmixed_precision: bf16\n", Strategy("ddp", precision="bf16"), 4),
        ("distributed_type: MULTI_XPU\nnum_processes: '12'\nfp16: true\n", Strategy("ddp", precision="fp16"), 12),
        ("distributed_type: MULTI_GPU\nmixed_precision: BF16\n", Strategy("ddp", precision="bf16"), None),
        ("distributed_type: FSDP\nnum_processes: 2\n", Strategy("fsdp"), 2),
        ("distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: 2}\n", Strategy("fsdp", False), None),
        ("distributed_type: FSDP\nfsdp_config: {sharding_strategy: no_shard}\n", Strategy("ddp"), None),
        ("distributed_type: FSDP\nfsdp_config: {fsdp_reshard_after_forward: false}\n", Strategy("fsdp", True), None),
        ("distributed_type: FSDP\nfsdp_config: {version: '2', reshard_after_forward: 'off'}\n", Strategy("fsdp", False), None),
        ("distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_sharding_strategy: HYBRID_SHARD}\n", Strategy("fsdp", True), None),
        ("distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_offload_params: 'True'}\n", Strategy("fsdp", cpu_offload=True), None),
        (
            "distributed_type: FSDP\nfsdp_config: {auto_wrap_policy: transformer_based_wrap, transformer_layer_cls_to_wrap: 'A,B'}\n",
            Strategy("fsdp", wrap_classes=("A", "B")),
            None,
        ),
    ],
)
def test_read(text: str, strategy: Strategy, ranks: int | None) -> None:
    found = reading(text)
    assert (found.strategy, found.num_processes) == (strategy, ranks)


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("distributed_type: DEEPSPEED\n", "distributed_type", "MULTI_GPU, MULTI_XPU, FSDP are"),
        ("distributed_type: MEGATRON_LM\n", "distributed_type", "not supported by the reference trainer yet"),
        ("distributed_type: XLA\n", "distributed_type", "not supported by the reference trainer yet"),
        ("distributed_type: MULTI_NPU\n", "distributed_type", "not supported by the reference trainer yet"),
        ("distributed_type: fsdp\n", "distributed_type", "is not one of .*; write FSDP"),
        ("num_processes: 4\nmixed_precision: bf16\n", "distributed_type", "needs a distributed_type"),
        ("distributed_type: FSDP\nnum_gpus: 4\n", "num_gpus", "refuses the whole file"),
        ("distributed_type: MULTI_GPU\nmixed_precision: no\n", "mixed_precision", "calls .lower"),
        ("distributed_type: MULTI_GPU\nmixed_precision: fp8\n", "mixed_precision", "no, bf16, fp16 are"),
        ("compute_environment: AMAZON_SAGEMAKER\ndistributed_type: 'NO'\n", "compute_environment", "LOCAL_MACHINE is"),
        (
            "distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD}\n",
            "fsdp_config.fsdp_sharding_strategy",
            "refused by FSDP1 without an fsdp_auto_wrap_policy",
        ),
        (
            "distributed_type: FSDP\nfsdp_config: {fsdp_auto_wrap_policy: SIZE_BASED_WRAP}\n",
            "fsdp_config.fsdp_auto_wrap_policy",
            "TRANSFORMER_BASED_WRAP and",
        ),
        ("distributed_type: FSDP\nfsdp_config: {fsdp_version: 3}\n", "fsdp_config.fsdp_version", "neither 1 nor 2"),
        (
            "distributed_type: FSDP\nfsdp_config: {fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP}\n",
            "fsdp_config.fsdp_transformer_layer",
            "name it",
        ),
        (
            "distributed_type: FSDP\nparallelism_config: {parallelism_config_dp_replicate_size: 2}\n",
            "parallelism_config",
            "write fsdp_version: 2",
        ),
        (
            "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_activation_checkpointing: true}\n",
            "checkpointing",
            "no layer to checkpoint",
        ),
        (
            "distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: NO_SHARD, fsdp_offload_params: true}\n",
            "fsdp_offload_params",
            "plain DDP",
        ),
        (
            "distributed_type: FSDP\nfsdp_config: {auto_wrap_policy: TRANSFORMER_BASED_WRAP, fsdp_transformer_layer_cls_to_wrap: [A]}\n",
            "fsdp_transformer_layer_cls_to_wrap",
            "is no class name",
        ),
        ("- 1\n", "a.yaml", "a mapping of keys to values, not a list"),
    ],
)
def test_what_cannot_run_is_refused_by_key(text: str, key: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        reading(text)
    assert key in str(caught.value) and str(caught.value).startswith("a.yaml") and "\n" not in str(caught.value)


def test_the_model_names_the_class_that_the_file_leaves_to_it() -> None:
    text = "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP}\n"
    model = load_model(str(ROOT / "helpers/trainwright/models/llama-demo/config.json"))
    assert read(document(text), model).strategy.wrap_classes == ("LlamaDecoderLayer",)


def test_every_key_says_what_becomes_of_it() -> None:
    found = uses(
        """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_processes: 4
same_network: true
main_process_port: null
use_cpu: false
dynamo_config: {}
deepspeed_config: {zero_stage: 3}
fsdp_config:
  fsdp_version: 1
  version: 2
  fsdp_reshard_after_forward: true
  sharding_strategy: SHARD_GRAD_OP
  fsdp_auto_wrap_policy: NO_WRAP
  transformer_layer_cls_to_wrap: A
  fsdp_state_dict_type: FULL_STATE_DICT
  fsdp_use_orig_params: true
  fsdp_limit_all_gathers: true
"""
    )
    assert found == {
        "compute_environment": "- launcher's own: the job's launcher decides",
        "distributed_type": "+ FSDP2 (fully_shard)",
        "mixed_precision": "+ compute in bf16",
        "num_processes": "- launcher's own: the job's launcher decides",
        "same_network": "- launcher's own: the job's launcher decides",
        "main_process_port": "- empty: nothing is asked",
        "use_cpu": "- the job's device decides",
        "dynamo_config": "- empty: nothing is asked",
        "deepspeed_config.zero_stage": "- distributed_type is FSDP: Accelerate does not read this block",
        "fsdp_config.fsdp_version": "- overridden by fsdp_config.version",
        "fsdp_config.version": "+ FSDP2 (fully_shard)",
        "fsdp_config.fsdp_reshard_after_forward": "+ reshard_after_forward=True",
        "fsdp_config.sharding_strategy": "- FSDP1 only: Accelerate does not read it under fsdp_version 2",
        "fsdp_config.fsdp_auto_wrap_policy": "+ the whole model is one unit",
        "fsdp_config.transformer_layer_cls_to_wrap": "- fsdp_auto_wrap_policy is not TRANSFORMER_BASED_WRAP, so Accelerate wraps no class",
        "fsdp_config.fsdp_state_dict_type": "- the reference trainer saves its checkpoints in shards, always",
        "fsdp_config.fsdp_use_orig_params": "- FSDP1 only: Accelerate does not read it under fsdp_version 2",
        "fsdp_config.fsdp_limit_all_gathers": "- not read by Accelerate 1.15.0: it has no such key",
    }


def test_no_shard_is_plain_ddp() -> None:
    found = uses(
        "distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: NO_SHARD, fsdp_auto_wrap_policy: NO_WRAP, fsdp_version: 1}\n"
    )
    assert (
        found["distributed_type"] == "+ DistributedDataParallel"
        and found["fsdp_config.fsdp_sharding_strategy"] == "+ DistributedDataParallel"
    )
    assert found["fsdp_config.fsdp_auto_wrap_policy"].startswith("-") and found["fsdp_config.fsdp_version"].startswith("-")


KNOWN = [key for block in ("fsdp_config", "deepspeed_config", "dynamo_config") for key in table()["blocks"][block]]
ODD: list[Any] = [
    None,
    True,
    False,
    "true",
    "no",
    0,
    1,
    2,
    "2",
    "A",
    "FULL_SHARD",
    "NO_WRAP",
    "TRANSFORMER_BASED_WRAP",
    [],
    {},
    1.5,
    "bf16",
    "NO",
]
ANY = st.sampled_from(ODD)
BLOCK = st.dictionaries(st.sampled_from([*KNOWN, *(k.removeprefix("fsdp_") for k in KNOWN), "foo"]) | st.integers(0, 2), ANY, max_size=8)
TOP = st.sampled_from(
    ["mixed_precision", "num_processes", "use_cpu", "debug", "gpu_ids", "fp16", "dynamo_backend", "main_process_ip", "tpu_env", "foo"]
)
FILES = st.tuples(
    st.fixed_dictionaries(
        {"distributed_type": st.sampled_from(["FSDP", "FSDP", "MULTI_GPU", "MULTI_CPU", "NO", False, None, "DEEPSPEED"])}
    ),
    st.dictionaries(TOP, ANY, max_size=5),
    st.dictionaries(
        st.sampled_from(["fsdp_config", "deepspeed_config", "dynamo_config", "fp8_config", "mpirun_config"]), BLOCK | ANY, max_size=3
    ),
).map(lambda parts: {**parts[0], **parts[1], **parts[2]})


@given(FILES)
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_each_key_has_exactly_one_answer_or_the_file_is_refused(value: dict[str, Any]) -> None:
    text = yaml.safe_dump(value, sort_keys=False)
    try:
        found = reading(text)
    except UserError as problem:
        assert str(problem).startswith("a.yaml")
        return
    keys = [".".join(map(str, s.path)) for s in accelerate_file(document(text)).settings]
    assert sorted(u.key for u in (*found.applied, *found.not_applied)) == sorted(keys)
    assert {key.split(".")[0] for key in keys} == set(value)
    assert all(u.meaning for u in (*found.applied, *found.not_applied))


# --- against the real Accelerate --------------------------------------------------------------------------------------

with_accelerate = pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed")


def oracle(paths: list[Path]) -> dict[str, dict[str, Any]]:
    """What the real accelerate makes of each file (see accelerate_oracle.py)."""
    argv = [sys.executable, str(Path(__file__).parent / "accelerate_oracle.py"), *map(str, paths)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return {row["path"]: row for row in map(json.loads, done.stdout.splitlines())}


def believed(path: Path) -> dict[str, Any]:
    """The same, as our reading has it."""
    file = accelerate_file(load(str(path)))
    version = file.version
    named = file.wrap_classes if file.value("fsdp_auto_wrap_policy") == "TRANSFORMER_BASED_WRAP" else None
    policy = {"TRANSFORMER_BASED_WRAP": "transformer_auto_wrap_policy", "SIZE_BASED_WRAP": "size_based_auto_wrap_policy"}
    return {
        "version": version,
        "reshard": file.value("fsdp_reshard_after_forward") if version == 2 else None,
        "strategy": file.value("fsdp_sharding_strategy") if version == 1 else None,
        "policy": policy.get(file.value("fsdp_auto_wrap_policy")),
        "classes": list(named) if named is not None else None,
        "offload": file.value("fsdp_offload_params"),
        "checkpointing": file.value("fsdp_activation_checkpointing"),
        "state_dict": file.value("fsdp_state_dict_type") or {1: "FULL_STATE_DICT", 2: "SHARDED_STATE_DICT"}[version],
        "param_dtype": {"no": "None", "bf16": "torch.bfloat16", "fp16": "torch.float16"}[file.precision],
    }


@pytest.mark.long
@with_accelerate
def test_accelerate_reads_what_was_written(tmp_path: Path) -> None:
    strategies = [
        Strategy("fsdp", reshard, classes, precision, checkpointing, offload)
        for reshard in (True, False)
        for classes in ((), ("LlamaDecoderLayer",), ("A", "B"))
        for precision in get_args(Precision)
        for checkpointing in ((True, False) if classes else (False,))
        for offload in (True, False)
    ]
    wanted = {str(tmp_path / f"{n}.yaml"): strategy for n, strategy in enumerate(strategies)}
    for path, strategy in wanted.items():
        Path(path).write_text(write(strategy, 4, "cuda"))
    for path, row in oracle([Path(p) for p in wanted]).items():
        strategy, seen = wanted[path], row["fsdp"]
        assert row["error"] == "" and row["num_processes"] == 4
        assert (seen["version"], seen["reshard"], seen["offload"]) == (2, strategy.reshard_after_forward, strategy.cpu_offload)
        assert (tuple(seen["classes"] or ()), seen["checkpointing"]) == (strategy.wrap_classes, strategy.activation_checkpointing)
        assert seen == believed(Path(path))


@pytest.mark.long
@with_accelerate
@pytest.mark.parametrize(("kind", "device"), [("ddp", "cpu"), ("ddp", "cuda"), ("ddp", "xpu"), ("single", "cpu"), ("single", "cuda")])
def test_accelerate_takes_plain_files(kind: Any, device: str, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(write(Strategy(kind, precision="bf16"), 4 if kind == "ddp" else 1, device))
    row = oracle([path])[str(path)]
    assert (row["error"], row["fsdp"], row["mixed_precision"]) == ("", None, "bf16")


BOOLEANS = [True, False, "true", "False", "no", "on", 0, 1, None, "cpu", 2]
DRAWN: dict[str, list[Any]] = {
    "fsdp_version": [1, 2, "1", "2", 2, 1, 3, None, "two", 2.0],
    "fsdp_sharding_strategy": ["FULL_SHARD", "SHARD_GRAD_OP", "no_shard", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2", 1, 5, 6, "FULL", None],
    "fsdp_auto_wrap_policy": ["TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "no_wrap", None, "TRANSFORMER", 1],
    "fsdp_transformer_layer_cls_to_wrap": ["A", "A,B", "A, B", ["A"], "", None],
    "fsdp_backward_prefetch": ["BACKWARD_PRE", "backward_post", "NO_PREFETCH", 1, 3, None, "X"],
    "fsdp_state_dict_type": ["FULL_STATE_DICT", "sharded_state_dict", "LOCAL_STATE_DICT", 3, 4, None, "FULL"],
    "fsdp_min_num_params": [0, "1000", "1e8", 1e8, None],
}
for _flag in (
    "offload_params",
    "reshard_after_forward",
    "use_orig_params",
    "sync_module_states",
    "forward_prefetch",
    "cpu_ram_efficient_loading",
):
    DRAWN[f"fsdp_{_flag}"] = BOOLEANS
for _flag in ("activation_checkpointing", "activation_checkpointing_offload"):
    DRAWN[f"fsdp_{_flag}"] = BOOLEANS


def drawn(rng: random.Random) -> dict[str, Any]:
    """A random file: half of them of sound values, the others with one or more that may be refused."""
    sound = rng.random() < 0.5
    chosen = [flag for flag in DRAWN if rng.random() < 0.35]
    block: dict[Any, Any] = {flag: rng.choice(DRAWN[flag][: 5 if sound else None]) for flag in chosen}
    block = {key.removeprefix("fsdp_") if rng.random() < 0.1 else key: value for key, value in block.items()}
    top: dict[str, Any] = {
        "distributed_type": rng.choice(["FSDP"] * 12 + ["MULTI_GPU", "NO", False, None, "fsdp", "XLA"]),
        "num_processes": 2,
    }
    odd = {
        "mixed_precision": ["no", "BF16", "fp16", False, "fp32"],
        "dynamo_backend": ["NO", False, "INDUCTOR"],
        "gpu_ids": ["all", [0], 0],
    }
    top |= {key: rng.choice(values) for key, values in odd.items() if rng.random() < 0.2}
    return top | ({"num_gpus": 2} if rng.random() < 0.03 else {}) | {"fsdp_config": block}


@pytest.mark.long
@with_accelerate
def test_random_files_are_read_and_refused_as_accelerate_does(tmp_path: Path) -> None:
    """The stage at which Accelerate stops, or every value of its plugin, for 600 random files."""
    rng = random.Random(int(os.environ.get("TRAINWRIGHT_SEED", "15")))
    paths = [tmp_path / f"{number}.yaml" for number in range(600)]
    for path in paths:
        path.write_text(yaml.safe_dump(drawn(rng), sort_keys=False))
    outcomes = set()
    for path, row in zip(paths, oracle(paths).values(), strict=True):
        file = accelerate_file(load(str(path)))
        stages = ["parse"] * len(list(file.unknown())) + [problem.fails_at for _, problem in file.refused()]
        expected = min(stages, key=("parse", "launcher", "plugin").index, default="")
        assert row["stage"] == expected, (path.read_text(), row)
        if row.get("fsdp"):
            assert row["fsdp"] == believed(path), path.read_text()
        outcomes.add((row["stage"], bool(row.get("fsdp"))))
    assert len(outcomes) == 5, "every stage is reached"
