"""What SRC011, SRC015 and SRC016 say of a call against what the real accelerate, torch and transformers do with it."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from trainwright.cli import main

HEAD = (
    "import torch\nimport torch.distributed as dist\nfrom datetime import timedelta\n"
    "from accelerate import Accelerator, DataLoaderConfiguration, DeepSpeedPlugin, FullyShardedDataParallelPlugin\n"
    "from accelerate.parallelism_config import ParallelismConfig\n"
    "from accelerate.utils import *\nfrom accelerate.utils import BnbQuantizationConfig, DistributedDataParallelKwargs, FP8RecipeKwargs\n"
    "from accelerate.utils import GradientAccumulationPlugin, InitProcessGroupKwargs, MSAMPRecipeKwargs, TorchDynamoPlugin\n"
    "from accelerate.utils import MegatronLMPlugin, ProjectConfiguration, TorchContextParallelConfig\n"
    "from transformers import TrainingArguments\nB = torch.bfloat16\nHALF = {'param_dtype': B, 'reduce_dtype': B}\n"
)
RIGHT = (
    'Accelerator(mixed_precision="no", gradient_accumulation_steps=4)',
    "Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=False, even_batches=True))",
    "Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(), InitProcessGroupKwargs(timeout=timedelta(seconds=60))])",
    'Accelerator(dynamo_backend="inductor")',
    "Accelerator(project_config=ProjectConfiguration(project_dir='x', logging_dir='y', total_limit=3))",
    'FullyShardedDataParallelPlugin(sharding_strategy="full_shard", backward_prefetch="BACKWARD_PRE", auto_wrap_policy="no_wrap")',
    'FullyShardedDataParallelPlugin(fsdp_version=1, state_dict_type="FULL_STATE_DICT", cpu_offload=True)',
    'FullyShardedDataParallelPlugin(fsdp_version=2, reshard_after_forward=True, state_dict_type="SHARDED_STATE_DICT")',
    "FullyShardedDataParallelPlugin(fsdp_version=2, mixed_precision_policy={**HALF, 'output_dtype': torch.float32})",
    "FullyShardedDataParallelPlugin(fsdp_version=2, mixed_precision_policy=dict(param_dtype=B, reduce_dtype=B, output_dtype=B))",
    "FullyShardedDataParallelPlugin(mixed_precision_policy=dict(param_dtype=B, reduce_dtype=torch.float32, buffer_dtype=B))",
    'FullyShardedDataParallelPlugin(mixed_precision_policy="bf16")',
    "ParallelismConfig(dp_replicate_size=2, dp_shard_size=2, tp_size=2)",
    'BnbQuantizationConfig(load_in_4bit=True, bnb_4bit_compute_dtype="bf16", bnb_4bit_quant_type="nf4")',
    "BnbQuantizationConfig(load_in_8bit=True, torch_dtype=torch.float16)",
    "InitProcessGroupKwargs(backend='gloo', timeout=timedelta(hours=1))",
    'TorchDynamoPlugin(backend="EAGER", mode="default")',
    "TorchContextParallelConfig(cp_comm_strategy='alltoall')",
    'torch.compile(torch.nn.Linear(2, 2), mode="max-autotune")',
    'TrainingArguments("out", eval_strategy="no", per_device_train_batch_size=2, use_cpu=True)',
    "torch.amp.GradScaler('cpu', growth_factor=1.5)",
)
WRONG = (
    'Accelerator(mixed_precision="fp32")',
    'Accelerator(mixed_precision="BF16")',
    "Accelerator(fp16=True)",
    "Accelerator(dispatch_batches=False)",
    "Accelerator(logging_dir='x')",
    "Accelerator(gradient_accumulation_step=4)",
    "Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(), DistributedDataParallelKwargs(static_graph=True)])",
    "Accelerator(gradient_accumulation_steps=4, gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=2))",
    'Accelerator(dynamo_backend="inductor", dynamo_plugin=TorchDynamoPlugin(backend="eager"))',
    'Accelerator(dynamo_backend="induct")',
    'FullyShardedDataParallelPlugin(sharding_strategy="FULL")',
    'FullyShardedDataParallelPlugin(auto_wrap_policy="transformer")',
    'FullyShardedDataParallelPlugin(backward_prefetch="PRE")',
    'FullyShardedDataParallelPlugin(state_dict_type="FULL")',
    'FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type="LOCAL_STATE_DICT")',
    'FullyShardedDataParallelPlugin(fsdp_version=2, reshard_after_forward="FULL_SHARD")',
    "FullyShardedDataParallelPlugin(fsdp_version=2, forward_prefetch=True)",
    'FullyShardedDataParallelPlugin(fsdp_version=2, sharding_strategy="FULL_SHARD")',
    "FullyShardedDataParallelPlugin(fsdp_version=1, reshard_after_forward=True)",
    'FullyShardedDataParallelPlugin(fsdp_version=2, mixed_precision_policy={"buffer_dtype": torch.bfloat16})',
    "FullyShardedDataParallelPlugin(fsdp_version=2, mixed_precision_policy=dict(param_dtype=B, reduce_dtype=B))",
    "FullyShardedDataParallelPlugin(fsdp_version=1, mixed_precision_policy=dict(param_dtype=B, reduce_dtype=B, buffer_dtype=True))",
    'FullyShardedDataParallelPlugin(fsdp_version=1, mixed_precision_policy={"param_dtype": "bf16"})',
    'FullyShardedDataParallelPlugin(mixed_precision_policy="bfloat16")',
    "FullyShardedDataParallelPlugin(limit_all_gather=True)",
    "DeepSpeedPlugin(stage=2)",
    "MegatronLMPlugin(tensor_parallel=2)",
    "ParallelismConfig(dp_shard_size=-1)",
    "ParallelismConfig(dp_shard=2)",
    "ParallelismConfig(cp_size=2, sp_size=2)",
    "ParallelismConfig(tp_size=2, dp_replicate_size=2)",
    'TorchContextParallelConfig(cp_comm_strategy="ring")',
    'BnbQuantizationConfig(load_in_4bit=True, bnb_4bit_compute_dtype="bfloat16")',
    'BnbQuantizationConfig(load_in_4bit=True, bnb_4bit_quant_type="nf8")',
    "BnbQuantizationConfig(load_in_4bit=True, load_in_8bit=True)",
    "BnbQuantizationConfig()",
    'BnbQuantizationConfig(load_in_8bit=True, skip_modules="lm_head")',
    "DistributedDataParallelKwargs(find_unused=True)",
    'FP8RecipeKwargs(backend="TRANSFORMER_ENGINE")',
    'MSAMPRecipeKwargs(opt_level="O5")',
    'TorchDynamoPlugin(backend="induct")',
    'dist.init_process_group("gloo", timeout=60)',
    'torch.compile(torch.nn.Linear(2, 2), mode="max_autotune")',
    'TrainingArguments("out", evaluation_strategy="no")',
)
SAID = ("SRC011", "SRC015", "SRC016")


def errors(tmp_path: Path, call: str) -> list[str]:
    file = tmp_path / "train.py"
    file.write_text(f"{HEAD}made = {call}\n")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        main(["check", str(file), "--format", "json", "--limit", "0"])
    return [f["rule"] for f in json.loads(out.getvalue())["findings"] if f["severity"] == "error" and f["rule"] in SAID]


@pytest.mark.parametrize("call", RIGHT)
def test_a_right_call_is_left_alone(tmp_path: Path, call: str) -> None:
    assert errors(tmp_path, call) == []


@pytest.mark.parametrize("call", WRONG)
def test_a_wrong_call_is_told_once(tmp_path: Path, call: str) -> None:
    assert len(errors(tmp_path, call)) == 1


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed")
def test_the_real_libraries_agree(tmp_path: Path) -> None:
    """Each call, made by the real libraries on one CPU rank: the wrong ones raise, the right ones do not."""
    lines = [HEAD, "import json, os\nos.environ['ACCELERATE_USE_CPU'] = 'true'\nfrom accelerate.state import AcceleratorState\nrows = []\n"]
    for call in (*RIGHT, *WRONG):
        lines.append(f"AcceleratorState._reset_state(True)\ntry:\n    {call}\n    rows.append('')\n")
        lines.append("except Exception as problem:\n    rows.append(f'{type(problem).__name__}: {problem}')\n")
    script = tmp_path / "oracle.py"
    script.write_text("".join(lines) + "print(json.dumps(rows))\n")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads(done.stdout.splitlines()[-1])
    wrong = [(call, why) for call, why in zip((*RIGHT, *WRONG), rows, strict=True) if bool(why) is (call in RIGHT)]
    assert wrong == []
