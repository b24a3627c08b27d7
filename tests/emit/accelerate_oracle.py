"""What the installed accelerate makes of config files, up to and not including the launch: a JSON object a line.

Run as `python accelerate_oracle.py FILE...` in an environment with accelerate and torch. Devices are faked, so that only
what the file says can fail. The stages are those of a rule's `fails_at`: parse, launcher, plugin.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import sys
import types
import warnings
from typing import Any

PREFIXES = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_", "XLA_")


def fake_devices() -> None:
    fakes: dict[str, dict[str, Any]] = {
        "accelerate.utils.launch": {
            "is_fp8_available": lambda: True,
            "is_port_in_use": lambda port=None: False,
            "_get_mpirun_args": lambda: ("mpirun", "-f", "-n", "-ppn", ""),
        },
        "accelerate.commands.launch": {"is_bf16_available": lambda *a, **k: True},
        "accelerate.utils.dataclasses": {"is_cuda_available": lambda: True},
        "torch.cuda": {"current_device": lambda: 0},
    }
    for module, functions in fakes.items():
        vars(importlib.import_module(module)).update(functions)


def plugin_values() -> dict[str, Any]:
    """What FullyShardedDataParallelPlugin holds once it has read the environment."""
    plugin = importlib.import_module("accelerate.utils").FullyShardedDataParallelPlugin()
    precision = os.environ["ACCELERATE_MIXED_PRECISION"]
    if precision != "no":
        plugin.set_mixed_precision(precision)
    policy = plugin.auto_wrap_policy
    offload = plugin.cpu_offload
    return {
        "version": plugin.fsdp_version,
        "reshard": plugin.reshard_after_forward,
        "strategy": getattr(plugin.sharding_strategy, "name", "").lstrip("_") or None,
        "policy": getattr(policy, "__name__", None),
        "classes": plugin.transformer_cls_names_to_wrap,
        "offload": type(offload).__name__ == "CPUOffloadPolicy" or bool(getattr(offload, "offload_params", False)),
        "checkpointing": plugin.activation_checkpointing,
        "state_dict": plugin.state_dict_type.name,
        "param_dtype": str(getattr(plugin.mixed_precision_policy, "param_dtype", None)),
    }


def parallelism(arguments: Any) -> dict[str, int]:
    """The sizes of ParallelismConfig from the environment, after its checks against the job that the launcher would start."""
    config = importlib.import_module("accelerate.parallelism_config").ParallelismConfig()
    kinds = importlib.import_module("accelerate.utils").DistributedType
    version = os.environ.get("FSDP_VERSION", "1")
    kind = kinds.FSDP if arguments.use_fsdp else kinds.MULTI_GPU if arguments.multi_gpu else kinds.NO
    job = types.SimpleNamespace(
        num_processes=arguments.num_processes,
        multi_device=kind == kinds.MULTI_GPU,
        is_fsdp2=bool(arguments.use_fsdp) and version == "2",
        distributed_type=kind,
        is_main_process=True,
    )
    config._validate_accelerator(job)
    return {"replicate": config.dp_replicate_size, "shard": config.dp_shard_size}


def judge(path: str) -> dict[str, Any]:
    launch = importlib.import_module("accelerate.commands.launch")
    environment = importlib.import_module("accelerate.utils.launch")
    answer: dict[str, Any] = {"path": path, "stage": "parse", "error": ""}
    try:
        launch.load_config_from_file(path)
        answer["stage"] = "launcher"
        arguments = launch.launch_command_parser().parse_args(["--config_file", path, "train.py"])
        arguments, _, _ = launch._validate_launch_command(arguments)
        answer["num_processes"] = arguments.num_processes
        if arguments.use_fsdp or arguments.multi_gpu:
            variables = environment.prepare_multi_gpu_env(arguments)
        elif arguments.use_deepspeed:
            arguments.deepspeed_fields_from_accelerate_config = ""
            _, variables = environment.prepare_deepspeed_cmd_env(arguments)
        elif arguments.tpu:
            arguments, variables = environment.prepare_tpu(arguments, {})
        else:
            _, variables = environment.prepare_simple_launcher_cmd_env(arguments)
        answer["stage"] = "plugin"
        os.environ.update({key: value for key, value in variables.items() if key.startswith(PREFIXES)})
        answer["mixed_precision"] = os.environ.get("ACCELERATE_MIXED_PRECISION")
        answer["fsdp"] = plugin_values() if os.environ.get("ACCELERATE_USE_FSDP") == "true" else None
        answer["parallelism"] = parallelism(arguments) if os.environ.get("ACCELERATE_USE_PARALLELISM_CONFIG") == "true" else None
        answer["stage"] = ""
    except Exception as problem:
        answer["error"] = f"{type(problem).__name__}: {problem}"
    for key in [key for key in os.environ if key.startswith(PREFIXES)]:
        del os.environ[key]
    return answer


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    fake_devices()
    for name in sys.argv[1:]:
        with contextlib.redirect_stdout(io.StringIO()):
            row = judge(name)
        print(json.dumps(row), flush=True)
