"""Launch lines as job scripts hold them: within shells, without a config file, with words of other tools; and what running alone tells."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainwright.check.judge import judge
from trainwright.check.overrides import deepspeed_of_openrlhf, overrides_of
from trainwright.check.script import read_script
from trainwright.check.subject import Context
from trainwright.cli import main
from trainwright.errors import Exit

Told = Callable[..., set[str]]
SOURCE = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr')\nargs = p.parse_args()\nprint(args.lr)\n"
FSDP = "distributed_type: FSDP\nnum_processes: 4\nmixed_precision: bf16\nfsdp_config:\n  fsdp_version: 2\n  fsdp_offload_param: true\n"


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    """The rules that fire on job.sh, or on a line, above information."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "none"))

    def run(script: str = "", line: str = "", world_size: int | None = None, **files: str) -> set[str]:
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/").replace("_", ".")
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_text(text)
        (tmp_path / "job.sh").write_text(script)
        report = judge(["job.sh"] if script else [], Context(world_size=world_size), line)
        return {f.rule for f in report.findings if f.severity.name != "INFO"}

    return run


LINES = {
    "accelerate launch --use_fsdp --fsdp_version 2 --num_processes 4 --fsdp_state_dict_type LOCAL_STATE_DICT t.py": {"ACC003"},
    "accelerate launch --use_fsdp --fsdp_version 2 --num_processes 4 --fsdp_sharding_strategy HYBRID_SHARD t.py": {"ACC004"},
    "accelerate launch --multi_gpu --num_machines 2 --num_processes 8 t.py": {"ACC009"},
    "accelerate launch --multi_gpu --num_machines $SLURM_NNODES --num_processes $N --main_process_ip $IP t.py": set(),
    "accelerate launch --num_processes 4 --mixed_precision bf16 t.py": set(),
    "accelerate launch t.py": set(),
    "accelerate launch --use_deepspeed --deepspeed_config_file ds.json --num_processes 4 --mixed_precision bf16 t.py": {"DS002", "DS007"},
    "accelerate launch --num_processes 4 --mixed_precision fp8 --fp8_backend te t.py": {"ACC030"},
}
JSON = '{"train_batch_size": 6, "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0, "zero_optimization": {"overlap_com": true}}'


@pytest.mark.parametrize("line", LINES)
def test_a_line_without_a_config_file_is_judged_by_its_flags(line: str, told: Told) -> None:
    assert told(line=line, ds_json=JSON) == LINES[line]


def test_typed_values_are_judged_over_those_of_the_file(told: Told) -> None:
    line = "accelerate launch --config_file a.yaml --fsdp_state_dict_type LOCAL_STATE_DICT t.py"
    assert told(line=line, a_yaml=FSDP) == {"ACC002", "ACC003"}


def test_findings_of_a_line_name_flags(told: Told, capsys: pytest.CaptureFixture[str]) -> None:
    told()
    assert (
        main(["check", "--cli", "accelerate launch --use_fsdp --num_processes 2 t.py", "--show-effective", "--format", "json"]) == Exit.OK
    )
    envelope = json.loads(capsys.readouterr().out)
    assert {f["path"] for f in envelope["findings"]} == {"--mixed_precision", "--fsdp_version"}
    assert {row["key"] for row in envelope["data"]["effective"] if row["written"] is not None} == {"--use_fsdp", "--num_processes"}


SHELLS = {
    'srun bash -c "accelerate launch --config_file a.yaml --machine_rank \\$SLURM_NODEID t.py"\n': True,
    "srun --jobid $J sh -c 'accelerate launch --config_file a.yaml t.py' 2>&1 | tee log\n": True,
    "CMD='accelerate launch --config_file a.yaml'\nCMD=\"$CMD t.py\"\neval $CMD\n": True,
    'export RUN="accelerate launch --config_file a.yaml t.py"\nsrun bash -lc "$RUN"\n': True,
    'srun singularity exec x.sif bash -c "\ncd .\naccelerate launch --config_file a.yaml t.py\n"\n': True,
    "docker run --rm image accelerate launch --config_file a.yaml t.py\n": True,
    "echo bash -c 'accelerate launch --config_file a.yaml t.py'\n": False,
    "bash -c\nbash -c ''\neval\n": False,
}


@pytest.mark.parametrize("script", SHELLS)
def test_shells_within_a_line(script: str, told: Told) -> None:
    assert ("ACC002" in told(script, a_yaml=FSDP)) is SHELLS[script]


def test_a_script_without_a_launch_line_says_so(told: Told) -> None:
    told("echo hello\n")
    assert [row["name"] for row in json.loads(judge(["job.sh"], Context()).to_json(None))["not_checked"]] == ["job.sh"]


def test_what_is_assigned_under_a_condition_is_known_by_running_alone() -> None:
    text = "N=4\nif [ $X ]; then N=8; export CUDA_VISIBLE_DEVICES=0; else\n export CUDA_VISIBLE_DEVICES=0,1\nfi\nA=2\n"
    text += "torchrun --nproc-per-node $N t.py $A\n"
    script = read_script("j.sh", text)
    assert script.commands[0].typed["nproc"] == "$N" and script.commands[0].script_words == ("2",)
    assert script.environment["CUDA_VISIBLE_DEVICES"] == "$CUDA_VISIBLE_DEVICES"


def test_products_and_what_slurm_sets_are_filled_in() -> None:
    text = "#SBATCH --nodes=2\nG=4\nW=$((G * $SLURM_NNODES))\nH=$(hostname -i | head)\ntorchrun --nproc-per-node $W --master_addr $H t.py\n"
    typed = read_script("j.sh", text).commands[0].typed
    assert typed["nproc"] == "8" and typed["master_addr"] == "$_"


def test_a_config_among_the_words_of_what_is_launched(told: Told) -> None:
    config = "base_model: x\ndatasets: [{path: a}]\nmicro_batch_size: 1\ndeepspeed: ds.json\n"
    data = '[{"text": "$y"}]'
    for line in ("axolotl train a.yml", "accelerate launch -m axolotl.cli.train a.yml", "python train.py --config=a.yml --data=d.json"):
        assert told(f"{line}\n", a_yml=config, ds_json=JSON, d_json=data) >= {"DS002"}


def test_flags_of_a_parser_of_its_own_are_not_the_trainers(told: Told) -> None:
    line = "torchrun --nproc_per_node 2 {} --output_dir o --learning_rate 1e-4 --fp16 --bf16\n"
    own = SOURCE.replace("'--lr'", "'--output_dir'").replace("lr", "output_dir")
    flags = "".join(f"p.add_argument('--{name}', nargs='?')\n" for name in ("learning_rate", "fp16", "bf16"))
    assert "TRN001" not in told(line.format("t.py"), t_py=own.replace("args =", flags + "args ="))
    assert "TRN001" in told(line.format("missing.py"))


def test_verl_overrides(told: Told) -> None:
    words = (
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.actor.fsdp_config.{} trainer.n_gpus_per_node=8 trainer.nnodes=1 +d.x=[1] $@\n"
    )
    assert told(words.format("fsdp_size=3")) == {"FSD003"}
    assert told(words.format("optimizer_ofload=True")) == {"FSD002"}
    assert told(words.format("fsdp_size=4")) == set()
    assert overrides_of(["+a.b=null", "a.b.c=1", "++a.d.e=x=y", "a.d.f=1e-6", "~g", "h=1"]) == {
        "a": {"b": None, "d": {"e": "x=y", "f": 1e-6}}
    }


def test_the_deepspeed_config_that_openrlhf_makes(told: Told) -> None:
    line = "deepspeed --module openrlhf.cli.train_sft --train_batch_size {} --micro_train_batch_size 2 --zero_stage {} --bf16 --lr 1e-6\n"
    assert told(line.format(256, 3), world_size=8) == set()
    assert told(line.format(256, 3), world_size=24) == {"DS007"}
    assert told(line.format(256, 5)) == {"DS004"}
    assert told("python -m openrlhf.cli.serve_rm --bf16 --output_dir o\n") == set()
    assert "train_batch_size" not in deepspeed_of_openrlhf({"train_batch_size": 8, "micro_train_batch_size": 1, "ring_attn_size": 2})


DEVICES = {
    "export CUDA_VISIBLE_DEVICES=0,1\ntorchrun --nproc_per_node 4 t.py\n": {"JOB022"},
    "CUDA_VISIBLE_DEVICES=0,1 accelerate launch --num_processes 4 t.py\n": {"JOB022"},
    "export CUDA_VISIBLE_DEVICES=0,1,2,3\ntorchrun --nproc_per_node 4 t.py\n": set(),
    "if [ $D ]; then export CUDA_VISIBLE_DEVICES=0; else export CUDA_VISIBLE_DEVICES=$1; fi\ntorchrun --nproc_per_node 4 t.py\n": set(),
    "CUDA_VISIBLE_DEVICES=0 python a.py\ntorchrun --nproc_per_node 4 t.py\n": set(),
    "export CUDA_VISIBLE_DEVICES=$LIST\ntorchrun --nproc_per_node 4 t.py\n": set(),
}


@pytest.mark.parametrize("script", DEVICES)
def test_devices_that_the_script_shows(script: str, told: Told) -> None:
    assert told(script) == DEVICES[script]


def test_training_programs_of_a_folder_are_judged(told: Told, tmp_path: Path) -> None:
    hang = "import torch.distributed as dist\nif dist.get_rank() == 0:\n    dist.barrier()\n"
    main_guard = "if __name__ == '__main__':\n    pass\n"
    told(f__train_py=hang + main_guard, f__module_py=hang, f__test_train_py=hang)
    (tmp_path / "f" / "test_train.py").write_text(hang + main_guard)
    report = judge(["f"], Context())
    assert [str(f.where).split(":")[0] for f in report.findings if f.rule == "SRC001"] == ["f/train.py"]
    assert {f.rule for f in judge(["f/mod*.py"], Context()).findings} == {"SRC001"}  # a pattern of sources asks for them


def test_one_rank_waits_for_nobody(told: Told) -> None:
    source = "import torch.distributed as dist\nif dist.get_rank() == 0:\n    dist.barrier()\n"
    assert told("torchrun --nproc_per_node 1 t.py\n", t_py=source) == set()
    assert told("torchrun --nproc_per_node 2 t.py\n", t_py=source) == {"SRC001"}


def test_megatron_deepspeed_cuts_its_pipeline_itself(told: Told) -> None:
    line = "torchrun --nproc_per_node 4 p.py --tensor-model-parallel-size 1 --pipeline-model-parallel-size 4 --num-layers 30 {}\n"
    assert told(line.format("")) == {"MEG001"}
    assert "MEG001" not in told(line.format("--deepspeed --zero-stage 1"))


def test_openings_without_an_end_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text in ("{{" * 40_000, "${A:-" * 30_000, "$(" * 40_000):
        Path("a.yaml").write_text(f'distributed_type: "{text}"\n')
        Path("j.sh").write_text(f"accelerate launch {text}\n")
        assert judge(["a.yaml", "j.sh"], Context()).data["files"]


def test_quantized_by_llama_factory(told: Told) -> None:
    """Its 4-bit weights are stored in the type that is computed in: FSDP can shard them."""
    config: dict[str, Any] = {"model_name_or_path": "x", "stage": "sft", "finetuning_type": "lora", "quantization_bit": 4}
    fsdp = FSDP.replace("fsdp_version: 2", "fsdp_version: 1").replace("  fsdp_offload_param: true\n", "")
    line = "accelerate launch --config_file a.yaml src/train.py l.json\n"
    told(line, a_yaml=fsdp, l_json=json.dumps(config))
    report = judge(["a.yaml", "l.json"], Context(), together=True)
    assert "ACC029" not in {f.rule for f in report.findings}
    bits = Context(quantization={"load_in_4bit": True})
    assert "ACC029" in {f.rule for f in judge(["a.yaml"], bits).findings}


def test_a_report_does_not_go_over_what_it_judges(told: Told, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told(a_yaml=FSDP)
    for option in ("--output", "--write-baseline"):
        assert main(["check", "a.yaml", option, "./a.yaml"]) == Exit.USAGE
        assert "name another" in capsys.readouterr().err
    assert (tmp_path / "a.yaml").read_text() == FSDP


def test_a_file_of_several_names_is_not_mended(told: Told, tmp_path: Path) -> None:
    told(a_yaml=FSDP.replace("bf16", "no"))
    (tmp_path / "b.yaml").hardlink_to(tmp_path / "a.yaml")
    before = (tmp_path / "a.yaml").read_text()
    assert main(["check", "a.yaml", "--fix"]) == Exit.USAGE
    assert (tmp_path / "a.yaml").read_text() == before and (tmp_path / "b.yaml").samefile(tmp_path / "a.yaml")


ASKED = {
    "#SBATCH --nodes=1 --gpus-per-node=4\ntorchrun --nproc_per_node 8 x.py\n": {"JOB022"},
    "#SBATCH --nodes=1 --gres=gpu:a100:4\naccelerate launch --config_file a.yaml x.py\n": {"JOB022"},
    "#SBATCH --nodes=1 --gpus-per-node=8\ntorchrun --nproc_per_node 8 x.py\n": set(),
    "#SBATCH --nodes=1 --gpus-per-node=4 --exclusive\ntorchrun --nproc_per_node 8 x.py\n": set(),
    "#SBATCH --nodes=1 --gpus-per-node=4\ntorchrun --nproc_per_node $N x.py\n": set(),
    "#SBATCH --nodes=1 --gpus-per-node=4\ntorchrun --nproc_per_node 8 x.py --backend gloo\n": set(),
    "#SBATCH --nodes=1\ntorchrun --nproc_per_node 8 x.py\n": set(),
    "#SBATCH --nodes=$N --gpus-per-node=4\naccelerate launch --config_file a.yaml --num_machines $SLURM_NNODES x.py\n": set(),
    "#PBS -l select=8:ngpus=1\ntorchrun --nproc_per_node 8 x.py\n": set(),
    "#SBATCH --nodes=4\nsrun torchrun --nproc_per_node 8 x.py\n": {"JOB022"},
    "#SBATCH --nodes=4\nsrun torchrun --nnodes 4 --nproc_per_node 8 --rdzv-endpoint h:1 x.py\n": set(),
    "#SBATCH --nodes=4\nsrun torchrun --rdzv_backend c10d --nproc_per_node 8 x.py\n": set(),
    "#SBATCH --nodes=4\nsrun torchrun $ARGS --nproc_per_node 8 x.py\n": set(),
    "#SBATCH --nodes=4\nexport PET_NNODES=4\nsrun torchrun --nproc_per_node 8 x.py\n": set(),
    "#SBATCH --nodes=4\nsrun --nodes=1 torchrun --nproc_per_node 8 x.py\n": set(),
    "#SBATCH --nodes=4\ntorchrun --nproc_per_node 8 x.py\n": set(),
    "#SBATCH --nodes=1\nsrun torchrun --nproc_per_node 8 x.py\n": set(),
}


@pytest.mark.parametrize("script", ASKED)
def test_the_resources_of_a_script_against_its_launch_line(script: str, told: Told) -> None:
    config = "distributed_type: MULTI_GPU\nnum_processes: 8\nmixed_precision: bf16\n"
    assert told(script, a_yaml=config) == ASKED[script]


def test_a_config_file_that_is_not_there_stops_a_typed_line(told: Told, capsys: pytest.CaptureFixture[str]) -> None:
    line = "accelerate launch --config_file {} x.py"
    assert told(line=line.format("nofile.yaml")) == {"JOB001"}
    assert told(line=line.format("$CONFIG")) == set() and told(line=line.format("~/nofile.yaml")) == set()
    assert told(line.format("nofile.yaml") + "\n") == set(), "what a script names may lie elsewhere"
    assert main(["check", "--cli", line.format("nofile.yaml")]) == Exit.FINDINGS
    assert "--config_file nofile.yaml is not there [launcher]" in capsys.readouterr().out
