"""`check --convert`: the same job as another config, what is refused by name, and the real libraries on both sides."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainwright.check.convert import Converted, convert
from trainwright.check.gather import Gatherer
from trainwright.check.judge import judge
from trainwright.check.subject import Context
from trainwright.cli import main
from trainwright.errors import Exit, UserError
from trainwright.report import Report

HERE = Path(__file__).parent
FSDP1 = """# our cluster
distributed_type: FSDP  # sharded
num_processes: 8
mixed_precision: bf16
fsdp_config:
  fsdp_version: 1
  fsdp_sharding_strategy: SHARD_GRAD_OP  # ZeRO-2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_use_orig_params: true
  fsdp_sync_module_states: true
  fsdp_state_dict_type: FULL_STATE_DICT
"""


def converted(path: Path, target: str, world_size: int | None = None) -> Converted:
    gathered = Gatherer(Context(), Report("check")).gather([str(path)])
    return convert(target, [subject for _, subjects in gathered.jobs for subject in subjects], world_size)


def make(folder: Path, text: Any, name: str = "a.yaml") -> Path:
    path = folder / name
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    return path


def test_fsdp2_keeps_comments_and_layout(tmp_path: Path) -> None:
    made = converted(make(tmp_path, FSDP1), "fsdp2")
    gone = ("  fsdp_backward_prefetch: BACKWARD_PRE\n", "  fsdp_use_orig_params: true\n", "  fsdp_sync_module_states: true\n")
    expected = FSDP1.replace("fsdp_version: 1", "fsdp_version: 2").replace("  fsdp_sharding_strategy: SHARD_GRAD_OP  # ZeRO-2\n", "")
    for line in gone:
        expected = expected.replace(line, "")
    assert made.text == f"{expected}  fsdp_reshard_after_forward: false\n" and len(made.notes) == 1
    assert converted(make(tmp_path, made.text), "fsdp2").text == made.text, "a second time changes nothing"
    assert not [f for f in judge([str(make(tmp_path, made.text))], Context()).findings if f.severity.word != "info"]


@pytest.mark.parametrize(
    ("old", "new", "lost"),
    [
        ("SHARD_GRAD_OP", "NO_SHARD", "NO_SHARD"),
        ("SHARD_GRAD_OP", "3", "NO_SHARD"),
        ("SHARD_GRAD_OP", "HYBRID_SHARD", "HYBRID_SHARD: FSDP2 wants its sizes"),
        ("SHARD_GRAD_OP", "5", "HYBRID_SHARD_ZERO2"),
        ("FULL_STATE_DICT", "LOCAL_STATE_DICT", "LOCAL_STATE_DICT"),
        (
            "fsdp_sync_module_states: true",
            "fsdp_cpu_ram_efficient_loading: false\n  fsdp_sync_module_states: true",
            "broadcasts from rank 0",
        ),
    ],
)
def test_fsdp2_names_what_would_be_lost(tmp_path: Path, old: str, new: str, lost: str) -> None:
    with pytest.raises(UserError, match="this would be lost") as problem:
        converted(make(tmp_path, FSDP1.replace(old, new)), "fsdp2")
    assert lost in str(problem.value)


def test_hybrid_sharding_becomes_a_parallelism_config(tmp_path: Path) -> None:
    text = FSDP1.replace("SHARD_GRAD_OP", "HYBRID_SHARD").replace(
        "num_processes: 8", "num_processes: 8\nnum_machines: 2\nmain_process_ip: n1"
    )
    value = yaml.safe_load(converted(make(tmp_path, text), "fsdp2").text)
    assert value["parallelism_config"] == {"parallelism_config_dp_replicate_size": 2, "parallelism_config_dp_shard_size": 4}
    assert value["fsdp_config"]["fsdp_reshard_after_forward"] is True


def test_only_what_can_be_converted_is(tmp_path: Path) -> None:
    ddp = make(tmp_path, "distributed_type: MULTI_GPU\nnum_processes: 4\n")
    for target, words in (("fsdp2", "starts multi_gpu"), ("deepspeed", "no DeepSpeed settings"), ("accelerate", "name one file")):
        with pytest.raises(UserError, match=words):
            converted(ddp, target)
    with pytest.raises(UserError, match="first"):
        converted(make(tmp_path, FSDP1.replace("SHARD_GRAD_OP", "SHARD")), "fsdp2")
    named = make(tmp_path, "distributed_type: DEEPSPEED\nnum_processes: 4\ndeepspeed_config: {deepspeed_config_file: ds.json}\n")
    with pytest.raises(UserError, match="already"):
        converted(named, "deepspeed")


INLINE = "distributed_type: DEEPSPEED\nnum_processes: 4\nmixed_precision: bf16\ndeepspeed_config:\n  zero_stage: 3\n"
MORE = "  offload_optimizer_device: cpu\n  gradient_accumulation_steps: 4\n  gradient_clipping: 0.5\n  zero3_save_16bit_model: true\n"


def test_deepspeed_and_back(tmp_path: Path) -> None:
    made = converted(make(tmp_path, INLINE + MORE + "  zero3_init_flag: true\n"), "deepspeed")
    value = json.loads(made.text)
    assert (
        value["zero_optimization"]["offload_optimizer"] == {"device": "cpu"}
        and value["zero_optimization"]["offload_param"] == {"device": "none"}
        and value["bf16"] == {"enabled": True}
    )
    assert "zero3_init_flag" in made.notes[-1] and "delete" in made.notes[0]
    back = yaml.safe_load(converted(make(tmp_path, made.text, "ds.json"), "accelerate", 4).text)
    assert back["deepspeed_config"] == {**yaml.safe_load(INLINE + MORE)["deepspeed_config"], "offload_param_device": "none"}
    assert back["mixed_precision"] == "bf16" and back["num_processes"] == 4


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        ({"optimizer": {"type": "AdamW"}}, "optimizer"),
        ({"train_micro_batch_size_per_gpu": 4}, "train_micro_batch_size_per_gpu 4"),
        ({"zero_optimization": {"stage": 2, "reduce_bucket_size": 1000}}, "zero_optimization.reduce_bucket_size"),
        ({"zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}}, "zero_optimization.reduce_bucket_size"),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu", "pin_memory": False}}}, "offload_param.pin_memory"),
        ({"bf16": {"enabled": "auto"}}, "bf16.enabled auto"),
        ({"fp16": {"enabled": True, "loss_scale": 128}}, "fp16.loss_scale"),
        ({"gradient_clipping": 0}, "gradient_clipping 0"),
        ({"activation_checkpointing": {"partition_activations": True}}, "activation_checkpointing"),
    ],
)
def test_accelerate_names_what_it_has_no_key_for(tmp_path: Path, change: Any, lost: str) -> None:
    value = {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2, "reduce_scatter": True}} | change
    with pytest.raises(UserError, match="this would be lost") as problem:
        converted(make(tmp_path, value, "ds.json"), "accelerate")
    assert lost in str(problem.value) and "can name this one instead" in str(problem.value)


def test_defaults_that_are_written_are_not_lost(tmp_path: Path) -> None:
    value = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "wall_clock_breakdown": False,
        "prescale_gradients": False,
    }
    value |= {"zero_optimization": {"stage": 1, "reduce_scatter": True, "allgather_partitions": True}, "comms_logger": {"enabled": False}}
    assert yaml.safe_load(converted(make(tmp_path, value, "ds.json"), "accelerate").text)["deepspeed_config"]["zero_stage"] == 1


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, new = make(tmp_path, FSDP1), tmp_path / "b.yaml"
    assert main(["check", str(path), "--convert", "fsdp2"]) == Exit.OK
    streams = capsys.readouterr()
    assert yaml.safe_load(streams.out)["fsdp_config"]["fsdp_version"] == 2 and "fsdp_reshard_after_forward false" in streams.err
    assert main(["check", str(path), "--convert", "fsdp2", "--emit", str(new)]) == Exit.OK
    assert new.read_text() == streams.out and path.read_text() == FSDP1
    capsys.readouterr()
    assert main(["check", str(path), "--convert", "fsdp2", "--format", "json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["data"]["convert"]["to"] == "fsdp2"
    assert main(["check", str(path), "--emit", str(new)]) == Exit.USAGE


needs = pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="accelerate or deepspeed is not installed")


def oracle(paths: list[Path]) -> list[dict[str, Any]]:
    lines = "".join(json.dumps({"accelerate": str(path)}) + "\n" for path in paths)
    argv = [sys.executable, str(HERE / "backend_oracle.py")]
    done = subprocess.run(argv, input=lines, capture_output=True, text=True, timeout=300)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.long
@needs
def test_real_files_of_fsdp1(data: Path, tmp_path: Path) -> None:
    """Each that is converted starts under the real Accelerate, and says what its own converter says where that loses nothing."""
    theirs: Any = importlib.import_module("accelerate.commands.to_fsdp2").convert_config_to_fsdp2
    made, refused = [], 0
    with open(data / "configs" / "index.csv", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] == "accelerate" and row["verdict"].startswith("loads")]
    for number, row in enumerate(rows):
        value = yaml.safe_load((data / "configs" / row["file"]).read_text())
        if value.get("distributed_type") != "FSDP" or str((value.get("fsdp_config") or {}).get("fsdp_version", 1)) == "2":
            continue
        try:
            text = converted(data / "configs" / row["file"], "fsdp2").text
        except UserError as problem:
            assert "HYBRID" in str(problem) or "NO_SHARD" in str(problem), problem
            refused += 1
            continue
        made.append(make(tmp_path, text, f"{number}.yaml"))
        ours, real = yaml.safe_load(text), theirs(value)
        if not real.get("fsdp_config"):
            continue
        strip = {"fsdp_reshard_after_forward", "fsdp_version"}
        assert {k: v for k, v in ours["fsdp_config"].items() if k not in strip} == {
            k: v for k, v in real["fsdp_config"].items() if k not in strip
        }, row["file"]
        if str(value["fsdp_config"].get("fsdp_sharding_strategy", "FULL_SHARD")) in ("FULL_SHARD", "SHARD_GRAD_OP"):
            assert ours["fsdp_config"].get("fsdp_reshard_after_forward", True) == real["fsdp_config"].get(
                "fsdp_reshard_after_forward", True
            )
    answers = oracle(made)
    assert len(made) >= 8 and [row["stage"] for row in answers] == [""] * len(made), answers
    assert all(row["env"]["FSDP_VERSION"] == "2" for row in answers)


@pytest.mark.long
@needs
def test_the_plugin_builds_the_same_of_both(data: Path, tmp_path: Path) -> None:
    """Accelerate's own plugin on the inline keys and on the file that is made of them, and back again."""
    with open(data / "configs" / "index.csv", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] == "accelerate" and row["verdict"].startswith("loads")]
    pairs: list[tuple[Path, Path]] = []
    for number, row in enumerate(rows):
        path = data / "configs" / row["file"]
        value = yaml.safe_load(path.read_text())
        if value.get("distributed_type") != "DEEPSPEED" or "deepspeed_config_file" in (value.get("deepspeed_config") or {}):
            continue
        try:
            text = converted(path, "deepspeed").text
            inner = converted(make(tmp_path, text, "back.json"), "accelerate", value.get("num_processes")).text
        except UserError as problem:
            assert "lost" in str(problem), problem
            continue
        pairs.append((path, make(tmp_path, inner, f"{number}.yaml")))
        config = make(tmp_path, text, f"{number}.json")
        outer = {k: v for k, v in value.items() if k not in ("deepspeed_config", "mixed_precision")}
        pairs.append((path, make(tmp_path, outer | {"deepspeed_config": {"deepspeed_config_file": str(config)}}, f"{number}f.yaml")))
    assert len(pairs) >= 16
    answers = oracle([path for pair in pairs for path in pair])
    for (old, new), one, other in zip(pairs, answers[::2], answers[1::2], strict=True):
        assert one["stage"] == other["stage"] == "", (old, new, one, other)
        assert one["deepspeed"] == other["deepspeed"], (old, new)
