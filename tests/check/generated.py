"""Seeded random configs: files as people write them, with values that fit, nearly fit and do not fit."""

from __future__ import annotations

import random
from typing import Any

from trainwright.check.facts import table
from trainwright.emit.accelerate_file import table as accelerate_keys

ODD: list[Any] = [None, True, False, 0, 1, 2, 3, 8, -1, 0.5, 1e6, 2.5, "auto", "cpu", "none", "true", "no", "1e5", "5", "", [], ["a"], {}]


def deepspeed(rng: random.Random) -> dict[str, Any]:
    """A DeepSpeed config: mostly right, with one or two things changed."""
    micro, steps = rng.choice([1, 2, 4, 8]), rng.choice([1, 2, 4])
    world = rng.choice([1, 2, 4, 8])
    config: dict[str, Any] = {}
    for key, value in zip(
        ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size"),
        (micro, steps, micro * steps * world),
        strict=True,
    ):
        if rng.random() < 0.7:
            config[key] = value if rng.random() < 0.96 else rng.choice(["auto", value + 1, str(value), 0])
    config["zero_optimization"] = (
        {"stage": rng.choice([0, 1, 2, 3, 3, 3, "3", 4, 2.0])} if rng.random() < 0.95 else rng.choice([True, False])
    )
    if rng.random() < 0.6:
        config[rng.choice(["bf16", "fp16"])] = {"enabled": rng.choice([True, False, "auto"])}
    for _ in range(rng.randint(0, 4)):
        _add_row(rng, config)
    for _ in range(rng.randint(0, 2)):
        _add_top(rng, config)
    if rng.random() < 0.08:
        config[rng.choice(table("deepspeed")["removed_top"])] = rng.choice([False, {"enabled": False}])
    return config


def _add_row(rng: random.Random, config: dict[str, Any]) -> None:
    """One key of one strict block, with a value of its type or an odd one."""
    name = rng.choice(list(table("deepspeed")["blocks"]))
    block = config
    for part in name.split("."):
        inner = block.setdefault(part, {})
        if not isinstance(inner, dict):
            return
        block = inner
    rows = table("deepspeed")["blocks"][name]
    key = rng.choice([*rows]) if rng.random() < 0.95 else "no_such_key"
    kind = rows.get(key, ["any"])[0].lstrip("?")
    if kind in ("{}", "dtype", "path"):
        return
    right: dict[str, list[Any]] = {
        "bool": [True, False],
        "int": [1, 2, 64, 1e6],
        "float": [0.5, 1, 0.9],
        "str": ["x"],
        "list": [[]],
        "dict": [{}],
    }
    values = right.get(kind.split("/")[0], ODD) if rng.random() < 0.85 else ODD
    block[key] = rng.choice(kind[1:].split("|")) if kind[:1] in "=#" and rng.random() < 0.7 else rng.choice(values)


def _add_top(rng: random.Random, config: dict[str, Any]) -> None:
    choices: list[tuple[str, list[Any]]] = [
        ("gradient_clipping", [1.0, 0, "auto"]),
        ("communication_data_type", ["fp16", "BF16", "fp64", None]),
        ("gradient_allreduce_op", ["mean", "sum", "SUM", "max"]),
        ("wall_clock_breakdown", [True, False, "false", 1]),
        ("checkpoint", [{"tag_validation": t} for t in ("Warn", "strict", "FAIL")]),
        ("torch_autocast", [{"enabled": True, "dtype": d} for d in ("bf16", "torch.bfloat16", "bf32")]),
        ("steps_per_print", [10, "auto"]),
        ("timers", [{"throughput": {"enabled": True}}, {"throughput": {"on": True}}]),
        ("activation_checkpointing", [{"partition_activations": True}, {"partitioned_activations": True}]),
        ("optimizer", [{"type": "AdamW", "params": {"lr": 1e-4}}, {"type": "OneBitAdam"}]),
        ("no_such_key", [1]),
    ]
    key, values = rng.choice(choices)
    config[key] = rng.choice(values)


def accelerate(rng: random.Random) -> dict[str, Any]:
    """An Accelerate config: a kind of job, its block, and one or two things changed."""
    keys = accelerate_keys()
    kind = rng.choice(["FSDP", "FSDP", "FSDP", "DEEPSPEED", "DEEPSPEED", "MULTI_GPU", "MULTI_CPU", "NO", "MEGATRON_LM", "XLA", "MULTI_XPU"])
    config: dict[str, Any] = {"compute_environment": "LOCAL_MACHINE", "distributed_type": kind, "num_processes": rng.choice([1, 2, 4, 8])}
    config["mixed_precision"] = rng.choice(["no", "bf16", "fp16", "fp8"])
    block = {"FSDP": "fsdp_config", "DEEPSPEED": "deepspeed_config", "MEGATRON_LM": "megatron_lm_config"}.get(kind)
    if block:
        config[block] = {}
        for key in rng.sample(keys["blocks"][block], rng.randint(0, 6)):
            if key not in ("deepspeed_config_file", "deepspeed_hostfile"):
                config[block][key] = _launcher_value(rng, key)
    if rng.random() < 0.2:
        config["parallelism_config"] = {key: _launcher_value(rng, key) for key in rng.sample(keys["blocks"]["parallelism_config"], 3)}
    if rng.random() < 0.3:
        name = rng.choice(["dynamo_config", "fp8_config"])
        config[name] = {key: _launcher_value(rng, key) for key in rng.sample(keys["blocks"][name], 2)}
    if rng.random() < 0.25:
        config["num_machines"] = rng.choice([1, 2])
        config["main_process_ip"] = rng.choice([None, "10.0.0.1"])
    for _ in range(rng.choice([0, 0, 1, 2])):
        key = rng.choice(
            ["no_such_key", "num_processes", "mixed_precision", "gpu_ids", "distributed_type", "use_cpu", "rdzv_backend", "debug"]
        )
        counts = [1, 2, 3, 4, 8]
        config[key] = rng.choice(counts if key == "num_processes" else ["all", "0,1", "0", "c10d", "no", "bf16", "fsdp", 2, True, False])
    if rng.random() < 0.05:
        del config[rng.choice(list(config))]
    return config


CHOICES: dict[str, list[Any]] = {
    "fsdp_version": [1, 2, "1", "2", 3],
    "fsdp_sharding_strategy": ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "full_shard", 1, 2, "FULL"],
    "fsdp_auto_wrap_policy": ["TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP", "TRANSFORMER"],
    "fsdp_backward_prefetch": ["BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH", "X", None],
    "fsdp_state_dict_type": ["FULL_STATE_DICT", "SHARDED_STATE_DICT", "LOCAL_STATE_DICT", "FULL"],
    "fsdp_transformer_layer_cls_to_wrap": ["LlamaDecoderLayer", ["A", "B"], ""],
    "fsdp_min_num_params": [0, 100000000, "1e8", 2000],
    "zero_stage": [0, 1, 2, 3, "2", 4, "x"],
    "gradient_accumulation_steps": [1, 4, "auto", "4"],
    "gradient_clipping": [1.0, 0, "auto", "x"],
    "offload_optimizer_device": ["none", "cpu", "nvme", "disk"],
    "offload_param_device": ["none", "cpu", "nvme"],
    "offload_optimizer_nvme_path": ["/nvme"],
    "offload_param_nvme_path": ["/nvme"],
    "zero3_init_flag": [True, False, "true", "x"],
    "zero3_save_16bit_model": [True, False, "yes"],
    "deepspeed_multinode_launcher": ["standard", "pdsh", "openmpi"],
    "dynamo_backend": ["INDUCTOR", "no", "NO", "inductor", "X", False],
    "dynamo_mode": ["default", "max-autotune"],
    "fp8_override_linear_precision": [[False, False, True], "false,false,true"],
    "fp8_backend": ["TE", "AO", "MSAMP", "msamp"],
    "parallelism_config_cp_backend": ["torch", "deepspeed"],
    "parallelism_config_sp_backend": ["deepspeed", "ring"],
    "parallelism_config_cp_comm_strategy": ["allgather", "ring", "alltoall"],
    "parallelism_config_sp_attn_implementation": ["sdpa", "eager", "flash_attention_2"],
    "parallelism_config_sp_seq_length": [None, 1024, "x"],
    "parallelism_config_sp_seq_length_is_variable": [True, False],
    "megatron_lm_gradient_clipping": [1.0, "x"],
}


def _launcher_value(rng: random.Random, key: str) -> Any:
    if key in CHOICES:
        return rng.choice(CHOICES[key])
    if key.startswith("parallelism_config_"):
        return rng.choice([1, 1, 2, 4, -1])
    if key.startswith("megatron_lm_"):
        return rng.choice([1, 2, True, False, "x", None, "selective", 0.1])
    return rng.choice([True, False, "true", "false", "cpu", 1])


def hjson_text(rng: random.Random, depth: int = 0) -> str:
    """A text that is nearly JSON: comments, bare keys and words, commas too many or too few."""
    chance = rng.random()
    if depth == 0 or (depth < 4 and chance < 0.35):
        keys = ('"a"', '"b c"', "d", "zero_optimization", "f")
        rows = [f"{rng.choice(keys)}{rng.choice([':', ' : '])}{hjson_text(rng, depth + 1)}" for _ in range(rng.randint(0, 3))]
        return (
            "{"
            + rng.choice(["", " ", "\n"])
            + rng.choice([",", "\n", ", "]).join(rows)
            + rng.choice(["", ",", "\n", " // c\n", " # c\n"])
            + "}"
        )
    if depth < 4 and chance < 0.5:
        return "[" + ", ".join(hjson_text(rng, depth + 1) for _ in range(rng.randint(0, 3))) + rng.choice(["", ","]) + "]"
    words = ["1", "-2.5", "1e5", "true", "false", "null", '"a b"', '"x\\n"', "word\n", "TRUE\n", '"auto"', "1 // c\n", "1 /* c */", "0.5"]
    return rng.choice(words)
