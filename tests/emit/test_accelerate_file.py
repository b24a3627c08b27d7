"""What Accelerate makes of a file: prefixes, winners, conversions; and the key table against the installed Accelerate."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import Any

import pytest

from trainwright.document import parse
from trainwright.emit.accelerate_file import AccelerateFile, accelerate_file, flags, nearest, table


def file(text: str) -> AccelerateFile:
    return accelerate_file(parse(text, "a.yaml", "yaml"))


def fsdp(**values: Any) -> AccelerateFile:
    return file(json.dumps({"distributed_type": "FSDP", "fsdp_config": values}))


def why(found: AccelerateFile) -> dict[str, str]:
    return {setting.key: f"{problem.why} [{problem.fails_at}] {problem.instead}" for setting, problem in found.refused()}


def test_keys_get_the_prefix_of_their_block() -> None:
    blocks = "fsdp_config: {version: 2, fsdpx: 1}\nfp8_config: {margin: 1}\ndynamo_config: {mode: x}\nmegatron_lm_config: {tp_degree: 2}\n"
    found = file(f"distributed_type: FSDP\n{blocks}")
    assert [(s.key, s.flag, s.is_read) for s in found.settings[1:]] == [
        ("fsdp_config.version", "fsdp_version", True),
        ("fsdp_config.fsdpx", "fsdpx", False),
        ("fp8_config.margin", "fp8_margin", True),
        ("dynamo_config.mode", "dynamo_mode", True),
        ("megatron_lm_config.tp_degree", "tp_degree", False),
    ]


def test_the_last_of_two_names_for_one_flag_wins() -> None:
    assert fsdp(fsdp_version=1, version=2).version == 2 and fsdp(version=2, fsdp_version=1).version == 1


def test_defaults_are_those_of_the_launcher() -> None:
    found = file("distributed_type: FSDP\n")
    assert (found.version, found.precision, found.wrap_classes) == (1, "no", None)
    assert found.value("fsdp_sharding_strategy") == "FULL_SHARD" and found.value("fsdp_reshard_after_forward") is True
    assert found.value("fsdp_auto_wrap_policy") == "NO_WRAP" and found.value("fsdp_min_num_params") == 100_000_000
    assert not list(found.refused()) and not list(found.unknown())


@pytest.mark.parametrize(
    ("value", "truth"), [(True, True), (False, False), ("True", True), ("no", False), (1, True), ("on", True), ("0", False)]
)
def test_truth_is_that_of_the_text(value: Any, truth: bool) -> None:
    assert fsdp(fsdp_offload_params=value).value("fsdp_offload_params") is truth


@pytest.mark.parametrize("value", ["cpu", None, 2, 1.0, "", [], "yes please"])
def test_what_is_neither_true_nor_false_is_refused(value: Any) -> None:
    assert why(fsdp(fsdp_offload_params=value)) == {"fsdp_config.fsdp_offload_params": "is neither true nor false [plugin] None"}


def test_enumerations_go_by_name_or_number() -> None:
    assert fsdp(fsdp_sharding_strategy="hybrid_shard_zero2").value("fsdp_sharding_strategy") == "HYBRID_SHARD_ZERO2"
    assert fsdp(fsdp_sharding_strategy=2).value("fsdp_sharding_strategy") == "SHARD_GRAD_OP"
    assert fsdp(fsdp_state_dict_type="3").value("fsdp_state_dict_type") == "SHARDED_STATE_DICT"
    assert fsdp(fsdp_backward_prefetch="no_prefetch").value("fsdp_backward_prefetch") == "NO_PREFETCH"
    for flag, value in (
        ("fsdp_sharding_strategy", 6),
        ("fsdp_state_dict_type", 0),
        ("fsdp_backward_prefetch", 3),
        ("fsdp_sharding_strategy", "²"),
    ):
        assert list(why(fsdp(**{flag: value}))) == [f"fsdp_config.{flag}"]


def test_what_to_write_instead() -> None:
    assert why(file("distributed_type: multi_gpu\n"))["distributed_type"].endswith("[parse] MULTI_GPU")
    assert why(file("distributed_type: TPU\n"))["distributed_type"].endswith("[parse] XLA")
    assert why(file("distributed_type: MULTI_GPU\nmixed_precision: no\n"))["mixed_precision"].endswith("[launcher] no")
    assert why(file("distributed_type: MULTI_GPU\nmixed_precision: bfloat16\n"))["mixed_precision"].endswith("[launcher] bf16")
    assert why(file("distributed_type: MULTI_GPU\ngpu_ids: [0, 1]\n"))["gpu_ids"].endswith("[launcher] 0,1")
    assert why(fsdp(fsdp_auto_wrap_policy="TRANSFORMER"))["fsdp_config.fsdp_auto_wrap_policy"].endswith("[plugin] TRANSFORMER_BASED_WRAP")
    scientific = fsdp(fsdp_auto_wrap_policy="SIZE_BASED_WRAP", fsdp_min_num_params="1e8")
    assert why(scientific)["fsdp_config.fsdp_min_num_params"].endswith("[plugin] 100000000")


def test_a_value_that_no_conversion_reaches_is_not_refused() -> None:
    assert not why(fsdp(fsdp_version=1, fsdp_reshard_after_forward="cpu"))
    assert not why(fsdp(fsdp_version=2, fsdp_sharding_strategy="cpu"))
    assert not why(fsdp(fsdp_min_num_params="1e8"))
    assert not why(file("distributed_type: XLA\nmixed_precision: no\n"))
    assert not why(file("distributed_type: MULTI_GPU\nfsdp_config: {fsdp_version: 3}\n"))


def test_keys_that_contradict_each_other() -> None:
    assert list(why(fsdp(fsdp_version=2, fsdp_sync_module_states=False))) == ["fsdp_config.fsdp_sync_module_states"]
    assert not why(fsdp(fsdp_sync_module_states=False, fsdp_cpu_ram_efficient_loading=False))
    assert not why(fsdp(fsdp_sync_module_states="false")), "the launcher tests the text, which is true"
    assert list(why(fsdp(fsdp_version=2, fsdp_state_dict_type="local_state_dict"))) == ["fsdp_config.fsdp_state_dict_type"]
    offload = {"fsdp_activation_checkpointing_offload": True}
    assert "needs fsdp_version: 2" in str(why(fsdp(**offload, fsdp_activation_checkpointing=True)))
    assert "needs fsdp_activation_checkpointing" in str(why(fsdp(**offload, fsdp_version=2)))
    assert not why(fsdp(**offload, fsdp_activation_checkpointing=True, fsdp_version=2))


def test_a_block_key_that_is_no_text_is_refused() -> None:
    assert why(file("distributed_type: FSDP\nfsdp_config: {1: 2}\n")) == {"fsdp_config.1": "is a key that is no text but 1 [launcher] None"}


def test_nearest_ignores_case() -> None:
    assert nearest("fsdp", table()["distributed_types"]) == "FSDP" and nearest("qqqq", ["FSDP"]) is None


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed")
def test_the_table_is_that_of_the_installed_accelerate() -> None:
    code = """
import dataclasses, json, accelerate
from accelerate.commands import launch
from accelerate.commands.config.config_args import ClusterConfig
from accelerate.utils import DistributedType, DynamoBackend, PrecisionType, constants
actions = {a.dest: a.default for a in launch.launch_command_parser()._actions if a.dest != "help"}
print(json.dumps({
    "accelerate": accelerate.__version__, "cluster": [f.name for f in dataclasses.fields(ClusterConfig)],
    "flags": sorted(actions), "fsdp_defaults": {k: v for k, v in actions.items() if k.startswith("fsdp_")},
    "distributed_types": [t.value for t in DistributedType], "precisions": PrecisionType.list(),
    "dynamo_backends": DynamoBackend.list(), "wrap_policies": constants.FSDP_AUTO_WRAP_POLICY,
    "sharding_strategies": [*constants.FSDP_SHARDING_STRATEGY, "_HYBRID_SHARD_ZERO2"],
    "backward_prefetch": constants.FSDP_BACKWARD_PREFETCH, "state_dict_types": constants.FSDP_STATE_DICT_TYPE}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    real = json.loads(done.stdout)
    if real["accelerate"] != table()["accelerate"]:
        pytest.skip(f"the table is of accelerate {table()['accelerate']}, and {real['accelerate']} is installed")
    read_without_a_flag = {"fsdp_ignored_modules", "bind-to"}
    assert flags() - read_without_a_flag == set(real.pop("flags"))
    assert {name: table()[name] for name in real} == real
