"""Nineteen configs that another public checker was tried on: the fourteen defects are errors, the five good ones have none."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import pytest

from trainwright.cli import main

FSDP = "distributed_type: FSDP\nnum_processes: {ranks}\nmixed_precision: bf16\nfsdp_config:\n  fsdp_version: 2\n"
GOOD = FSDP.format(ranks=8) + (
    "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer\n"
    "  fsdp_state_dict_type: SHARDED_STATE_DICT\n"
)
AXES = "parallelism_config:\n  parallelism_config_{}_size: {}\n  parallelism_config_{}_size: {}\n"
# name -> (file, text, how many errors at least; 0: none at all)
CONFIGS: dict[str, tuple[str, str, int]] = {
    "01 good FSDP2": ("a.yaml", GOOD, 0),
    "02 unknown key": ("a.yaml", GOOD + "num_procs: 8\n", 1),
    "03 FSDP2 LOCAL_STATE_DICT": ("a.yaml", GOOD.replace("SHARDED_STATE_DICT", "LOCAL_STATE_DICT"), 1),
    "04 product 16 on 8": ("a.yaml", GOOD + AXES.format("dp_shard", 8, "tp", 2), 1),
    "05 cp and sp": ("a.yaml", GOOD + AXES.format("cp", 2, "sp", 4), 1),
    "06 DEEPSPEED and sp 4": (
        "a.yaml",
        "distributed_type: DEEPSPEED\nnum_processes: 8\nmixed_precision: bf16\ndeepspeed_config:\n  zero_stage: 3\n"
        "  zero3_save_16bit_model: true\nparallelism_config:\n  parallelism_config_sp_size: 4\n  parallelism_config_sp_backend: deepspeed\n"
        "  parallelism_config_dp_replicate_size: 2\n  parallelism_config_sp_seq_length_is_variable: true\n",
        0,
    ),
    "07 DeepSpeed, three errors": (
        "ds.json",
        '{"train_batch_size": 100, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 3, "fp16": {"enabled": true},'
        ' "bf16": {"enabled": true}, "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}',
        3,
    ),
    "08 misspelt zero keys": ("ds.json", '{"train_batch_size": 8, "zero_optimization": {"stage": 2, "overlap_com": true}}', 1),
    "09 Megatron": (
        "a.yaml",
        "distributed_type: MEGATRON_LM\nnum_processes: 8\nmixed_precision: bf16\nmegatron_lm_config:\n  megatron_lm_tp_degree: 3\n"
        "  megatron_lm_num_micro_batches: 0\n  megatron_lm_context_parallel_size: 1\n",
        1,
    ),
    "10 dynamo": (
        "a.yaml",
        "distributed_type: MULTI_GPU\nnum_processes: 8\nmixed_precision: bf16\n"
        "dynamo_config:\n  dynamo_backend: INDUCTORR\n  dynamo_mode: turbo\n",
        1,
    ),
    "11 TPU": ("a.yaml", "distributed_type: TPU\nnum_processes: 8\nmixed_precision: bf16\n", 1),
    "12 two machines": (
        "a.yaml",
        "distributed_type: MULTI_GPU\nnum_processes: 8\nnum_machines: 2\nmachine_rank: 5\nmixed_precision: bf16\n",
        2,
    ),
    "13 a list for a scalar": ("a.yaml", "distributed_type: MULTI_GPU\nnum_processes: 8\nmixed_precision: [bf16]\n", 1),
    "14 without zero_optimization": ("ds.json", '{"train_batch_size": 8, "bf16": {"enabled": true}, "gradient_clipping": 1.0}', 0),
    "15 stage true": ("ds.json", '{"train_batch_size": 8, "zero_optimization": {"stage": true}}', 1),
    "16 8 and 4 bits": ("q.yaml", "load_in_8bit: true\nload_in_4bit: true\n", 1),
    "17 file and key": (
        "a.yaml",
        "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n  offload_param_device: cpu\n",
        1,
    ),
    "18 FSDP2 forward prefetch": ("a.yaml", GOOD + "  fsdp_forward_prefetch: true\n", 0),
    "19 empty": ("a.yaml", "", 1),
}
MORE_GOOD = {
    "MULTI_GPU with axes": (
        "a.yaml",
        "distributed_type: MULTI_GPU\nnum_processes: 8\nmixed_precision: bf16\nparallelism_config:\n  parallelism_config_tp_size: 8\n",
    ),
    "a switch in quotes": ("a.yaml", GOOD + '  fsdp_reshard_after_forward: "true"\n'),
}


def errors(folder: Path, file: str, text: str) -> list[str]:
    (folder / "ds.json").write_text(
        '{"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}'
    )
    (folder / file).write_text(text)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        main(["check", str(folder / file), "--format", "json", "--limit", "0", "--world-size", "8"])
    findings = json.loads(out.getvalue())["findings"]
    return [
        f"{f['rule']} {f['message']}" for f in findings if f["severity"] == "error" and f.get("where", "").startswith(str(folder / file))
    ]


@pytest.mark.parametrize("name", CONFIGS)
def test_defects_are_errors_and_good_files_have_none(name: str, tmp_path: Path) -> None:
    file, text, least = CONFIGS[name]
    found = errors(tmp_path, file, text)
    assert len(found) >= least and (least or not found), found


@pytest.mark.parametrize("name", MORE_GOOD)
def test_what_it_wrongly_refused(name: str, tmp_path: Path) -> None:
    assert errors(tmp_path, *MORE_GOOD[name]) == []


def test_a_dead_key_of_fsdp2_is_told(tmp_path: Path) -> None:
    """From a file Accelerate ignores it; only a plugin made in code refuses it."""
    (tmp_path / "a.yaml").write_text(CONFIGS["18 FSDP2 forward prefetch"][1])
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        main(["check", str(tmp_path / "a.yaml")])
    assert "fsdp_forward_prefetch" in out.getvalue() and "warning" in out.getvalue()
