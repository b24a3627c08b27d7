"""What the installed accelerate and deepspeed make of configs, up to and not including the launch: JSON lines in, JSON lines out.

Run as `python backend_oracle.py` in an environment with both and torch. A line is {"deepspeed": {...}, "world": 8, "how": "raw" | "hf"} or
{"accelerate": PATH, "cli": [...]}. Devices are faked, so that only what the file says can fail.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
import json
import logging
import os
import sys
import warnings
from typing import Any

# What a DeepSpeedConfig makes of its file, for comparing two files
PARTS = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "zero_config",
    "float16_config",
    "bfloat16_config",
)
PREFIXES = ("ACCELERATE_", "FSDP_", "MEGATRON_LM_", "PARALLELISM_CONFIG_", "XLA_", "MASTER_")


class World:
    """The stand-in for torch.distributed that DeepSpeedConfig asks."""

    size = 1

    @staticmethod
    def get_rank(*args: Any, **kwargs: Any) -> int:
        return 0

    @classmethod
    def get_world_size(cls, *args: Any, **kwargs: Any) -> int:
        return cls.size


def fake_devices() -> None:
    fakes: dict[str, dict[str, Any]] = {
        "accelerate.utils.launch": {
            "is_fp8_available": lambda: True,
            "is_port_in_use": lambda port=None: False,
            "_get_mpirun_args": lambda: ("mpirun", "-f", "-n", "-ppn", ""),
        },
        "accelerate.commands.launch": {"is_bf16_available": lambda *a, **k: True},
        "accelerate.utils.dataclasses": {
            "is_cuda_available": lambda: True,
            "is_transformer_engine_available": lambda: True,
            "is_torchao_available": lambda: False,
        },
        "torch.cuda": {"current_device": lambda: 0},
    }
    for module, functions in fakes.items():
        vars(importlib.import_module(module)).update(functions)
    distributed: Any = importlib.import_module("deepspeed.runtime.config").dist
    distributed.get_rank, distributed.get_world_size = World.get_rank, World.get_world_size


def fill_auto(config: dict[str, Any], world: int) -> dict[str, Any]:
    """The "auto" values that Accelerate and Transformers fill in, on `world` ranks."""
    filled = copy.deepcopy(config)
    for key, value in (("train_micro_batch_size_per_gpu", 1), ("gradient_accumulation_steps", 1), ("gradient_clipping", 1.0)):
        if filled.get(key) == "auto":
            filled[key] = value
    if filled.get("train_batch_size") == "auto":
        filled["train_batch_size"] = filled.get("train_micro_batch_size_per_gpu", 1) * filled.get("gradient_accumulation_steps", 1) * world
    zero = filled.get("zero_optimization")
    if isinstance(zero, dict):
        sizes = {"reduce_bucket_size": 2**24, "stage3_prefetch_bucket_size": 2**24, "stage3_param_persistence_threshold": 40960}
        for key, size in sizes.items():
            if zero.get(key) == "auto":
                zero[key] = size
    return filled


def judge_deepspeed(line: dict[str, Any]) -> dict[str, Any]:
    config, world = line["deepspeed"], line.get("world", 1)
    World.size = world
    make = importlib.import_module("deepspeed.runtime.config").DeepSpeedConfig
    stage = "plugin"
    try:
        if line.get("how") == "hf":
            plugin = importlib.import_module("accelerate.utils").DeepSpeedPlugin(hf_ds_config=copy.deepcopy(config))
            fp16 = str(plugin.deepspeed_config.get("fp16", {}).get("enabled", "")).lower() == "true"
            plugin.set_mixed_precision("fp16" if fp16 else "bf16")
            config = fill_auto(plugin.deepspeed_config, world)
        stage = "engine start"
        make(copy.deepcopy(config))
        return {"stage": "", "error": ""}
    except Exception as problem:
        return {"stage": stage, "error": f"{type(problem).__name__}: {problem}"[:600]}


def judge_accelerate(line: dict[str, Any]) -> dict[str, Any]:
    path, cli = line["accelerate"], line.get("cli", [])
    launch = importlib.import_module("accelerate.commands.launch")
    answer: dict[str, Any] = {"stage": "parse", "error": "", "env": {}, "num_processes": None}
    try:
        launch.load_config_from_file(path)
        answer["stage"] = "launcher"
        arguments = launch.launch_command_parser().parse_args(["--config_file", path, *cli, "train.py"])
        arguments, defaults, from_file = launch._validate_launch_command(arguments)
        answer["num_processes"] = arguments.num_processes
        environment = environment_of(arguments, defaults, from_file)
        answer["env"] = {key: str(value) for key, value in environment.items() if key.startswith(PREFIXES)}
        answer["torchrun"] = {
            key: getattr(arguments, key)
            for key in ("nproc_per_node", "nnodes", "master_addr", "master_port", "rdzv_endpoint", "rdzv_backend", "node_rank")
            if getattr(arguments, key, None) is not None
        }
        answer["stage"] = "plugin"
        os.environ.update(answer["env"])
        plugins(arguments, answer)
        answer["stage"] = ""
    except (Exception, SystemExit) as problem:
        answer["error"] = f"{type(problem).__name__}: {problem}"[:600]
    for key in [key for key in os.environ if key.startswith(PREFIXES)]:
        del os.environ[key]
    return answer


def environment_of(arguments: Any, defaults: Any, from_file: bool) -> dict[str, Any]:
    """The environment that the launcher which `accelerate launch` picks would give its workers."""
    prepare: Any = importlib.import_module("accelerate.utils.launch")
    if arguments.use_deepspeed and not arguments.cpu:
        fields = list(defaults.deepspeed_config) if defaults else []
        arguments.deepspeed_fields_from_accelerate_config = ",".join([*fields, *(["mixed_precision"] if from_file else [])])
        return dict(prepare.prepare_deepspeed_cmd_env(arguments)[1])
    if (arguments.use_fsdp or arguments.use_megatron_lm or arguments.multi_gpu) and not arguments.cpu:
        return dict(prepare.prepare_multi_gpu_env(arguments))
    if arguments.tpu and not arguments.cpu:
        return dict(prepare.prepare_tpu(arguments, {}, bool(arguments.tpu_use_cluster))[1])
    return dict(prepare.prepare_simple_launcher_cmd_env(arguments)[1])


def plugins(arguments: Any, answer: dict[str, Any]) -> None:
    """Build the plugin objects that Accelerator builds from the environment, and DeepSpeedConfig on the plugin's dict."""
    classes: Any = importlib.import_module("accelerate.utils.dataclasses")
    environment = answer["env"]
    precision = environment.get("ACCELERATE_MIXED_PRECISION", "no")
    classes.TorchDynamoPlugin()
    if environment.get("ACCELERATE_USE_PARALLELISM_CONFIG") == "true":
        parallel = importlib.import_module("accelerate.parallelism_config").ParallelismConfig()
        if parallel.sp_size <= 1 and 1 < parallel.total_size != arguments.num_processes:
            raise ValueError(f"ParallelismConfig total_size ({parallel.total_size}) does not match num_processes")
    if environment.get("ACCELERATE_USE_FSDP") == "true":
        plugin = classes.FullyShardedDataParallelPlugin()
        if precision != "no":
            plugin.set_mixed_precision(precision)
    if environment.get("ACCELERATE_USE_MEGATRON_LM") == "true":
        classes.MegatronLMPlugin()
    if environment.get("ACCELERATE_USE_DEEPSPEED") == "true":
        plugin = classes.DeepSpeedPlugin()
        plugin.set_mixed_precision(precision)
        answer["stage"] = "engine start"
        World.size = int(arguments.num_processes or 1)
        config = importlib.import_module("deepspeed.runtime.config").DeepSpeedConfig(fill_auto(plugin.deepspeed_config, World.size))
        answer["deepspeed"] = {name: repr(getattr(config, name)) for name in PARTS}


def main() -> None:
    os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ["DS_SKIP_CUDA_CHECK"] = "1"
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        importlib.import_module("accelerate.commands.launch")
        importlib.import_module("deepspeed")
        fake_devices()
    for text in sys.stdin:
        line = json.loads(text)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            row = judge_deepspeed(line) if "deepspeed" in line else judge_accelerate(line)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
