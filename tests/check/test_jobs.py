"""Files that refer to each other, launch lines, scripts, templates and other tools' files: what is gathered, and into one job."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainwright.check import files
from trainwright.check.dialects import dialect_of
from trainwright.check.draft import Draft
from trainwright.check.facts import table
from trainwright.check.flags import command_of, ranks_of, script_arguments, split
from trainwright.check.gather import Gatherer
from trainwright.check.judge import findings_of
from trainwright.check.script import read_script
from trainwright.check.subject import Context
from trainwright.cli import main
from trainwright.document import parse
from trainwright.emit.accelerate_file import table as accelerate_keys
from trainwright.errors import Exit
from trainwright.report import Report

DEEPSPEED = '{"train_micro_batch_size_per_gpu": "auto", "gradient_clipping": 1.0, "zero_optimization": {"stage": 2, "overlap_com": true}}'
NAMES = "distributed_type: DEEPSPEED\nnum_processes: 4\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n"
Check = Callable[..., tuple[int, dict[str, Any]]]
LINE = "accelerate launch --config_file a.yaml train.py"
KEYS = sorted(
    {
        *accelerate_keys()["cluster"],
        *(key for keys in accelerate_keys()["blocks"].values() for key in keys),
        *(part for key in table("deepspeed")["lookups"] for part in key.split(".")),
        *(key for rows in table("deepspeed")["blocks"].values() for key in rows),
        *table("arguments")["arguments"],
    }
)


SCALARS = st.none() | st.booleans() | st.integers(-3, 10**6) | st.floats() | st.text(max_size=8) | st.just("auto")


def _grown(inner: Any) -> Any:
    return st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), inner, max_size=6)


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Check:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, dict[str, Any]]:
        code = main(["check", *arguments, "--format", "json", "--limit", "0"])
        return code, json.loads(capsys.readouterr().out)

    return run


def write(**files: str) -> None:
    for name, text in files.items():
        path = Path(name.replace("__", "/").replace("_json", ".json").replace("_yaml", ".yaml").replace("_sh", ".sh").replace("_py", ".py"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def rules_of(envelope: dict[str, Any]) -> set[str]:
    return {finding["rule"] for finding in envelope["findings"]}


def test_a_deepspeed_file_is_judged_with_the_accelerate_file_that_names_it(check: Check) -> None:
    write(a_yaml=NAMES, ds_json=DEEPSPEED)
    code, envelope = check("a.yaml")
    assert code == Exit.FINDINGS and "DS002" in rules_of(envelope)
    assert [row["path"] for row in envelope["data"]["files"]] == ["a.yaml", "ds.json"]
    both = check("a.yaml", "ds.json")[1]
    assert both["findings"] == envelope["findings"], "named and referred to, it is judged once"


def test_a_reference_is_followed_from_the_working_folder_first(check: Check) -> None:
    write(conf__a_yaml=NAMES, conf__ds_json=DEEPSPEED)
    envelope = check("conf/a.yaml")[1]
    assert "DS002" in rules_of(envelope) and envelope["inferred"][0]["value"] == "conf/ds.json"
    write(ds_json=DEEPSPEED.replace("overlap_com", "overlap_comm"))
    assert "DS002" not in rules_of(check("conf/a.yaml")[1])


def test_a_script_leads_to_everything_it_names(check: Check) -> None:
    write(
        job_sh="#!/bin/bash\n#SBATCH --nodes=2 --gpus-per-node=4\nexport OMP_NUM_THREADS=1\nCONF=a.yaml\n"
        'accelerate launch --config_file "$CONF" \\\n  --num_processes 8 \\\n  train.py --output_dir out --per_device_train_batch_size 2\n',
        a_yaml=NAMES,
        ds_json='{"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 1.0, "zero_optimization": {"stage": 2}}',
        train_py="import torch\n",
    )
    _code, envelope = check("job.sh")
    assert {row["dialect"] for row in envelope["data"]["files"]} == {"script", "accelerate", "deepspeed", "python"}
    assert {(i["name"], i["value"]) for i in envelope["inferred"]} >= {("world_size", 8), ("gpus_per_node", 4)}
    assert "DS024" in rules_of(envelope), "the micro batch of the script's arguments is 2, the file's 4"


def test_a_launch_line_as_typed(check: Check) -> None:
    write(a_yaml="distributed_type: FSDP\nnum_processes: 4\nmixed_precision: bf16\n")
    assert "ACC011" not in rules_of(check("--cli", "accelerate launch --config_file a.yaml train.py")[1])
    assert "JOB001" in rules_of(check("--cli", "accelerate launch --config_file a.yaml --use_fsdp true train.py")[1])
    assert main(["check", "--cli", "ls -l"]) == Exit.USAGE


def test_files_that_go_in_a_circle_end(check: Check) -> None:
    write(a_yaml=NAMES.replace("ds.json", "a.yaml"))
    code, _envelope = check("a.yaml")
    assert code in (Exit.OK, Exit.FINDINGS)
    os.symlink("loop.yaml", "loop.yaml")
    assert check("loop.yaml")[0] == Exit.USAGE


TEMPLATES = {
    "a.yaml": "distributed_type: MULTI_GPU\nnum_processes: {{ gpus }}\n",
    "b.yaml": "distributed_type: MULTI_GPU\nnum_processes: ${NUM_GPUS}\n",
    "c.json": '{"train_batch_size": GLOBAL_BATCH, "zero_optimization": {"stage": 2}}',
    "d.yaml": "distributed_type: MULTI_GPU\nmain_process_ip: <HEAD_NODE_IP>\n",
    "e.json": '{"train_batch_size": "{{ batch }}", "zero_optimization": {"stage": 9}}',
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_are_recognised_and_not_judged(name: str, check: Check) -> None:
    Path(name).write_text(TEMPLATES[name])
    code, envelope = check(name)
    assert code == Exit.OK and envelope["data"]["files"][0]["dialect"] == "template"
    assert rules_of(envelope) == {"DOC003"}


def test_what_only_deepspeed_reads_is_no_template(check: Check) -> None:
    write(ds_json='{\n  "train_batch_size": 8, // all ranks\n  "bf16": {"enabled": true,},\n  "zero_optimization": {"stage": 2}\n}\n')
    _, envelope = check("ds.json")
    assert envelope["data"]["files"][0]["dialect"] == "deepspeed" and "DS009" in rules_of(envelope)


def test_a_file_that_is_not_there_is_an_error_where_the_line_is_typed(check: Check) -> None:
    write(a_yaml=NAMES)
    severities = [[f["severity"] for f in check(*words)[1]["findings"] if f["rule"] == "ACC022"] for words in (["a.yaml"], ["--cli", LINE])]
    assert severities == [["warning"], ["error"]]


def test_auto_and_a_comment_are_no_template(check: Check) -> None:
    write(
        ds_json='{"train_batch_size": "auto", "zero_optimization": {"stage": 2}}', a_yaml="# set {{ this }}\ndistributed_type: MULTI_GPU\n"
    )
    assert [row["dialect"] for row in check("ds.json", "a.yaml")[1]["data"]["files"]] == ["deepspeed", "accelerate"]


FOREIGN = {
    "axolotl": "base_model: x\ndatasets: [{path: a}]\nmicro_batch_size: 1\ndeepspeed: ds.json\n",
    "llama-factory": "model_name_or_path: x\nstage: sft\nfinetuning_type: full\ndeepspeed: ds.json\noutput_dir: o\n",
    "gpt-neox": '"pipe_parallel_size": 1\n"num_layers": 2\n"zero_optimization": {"stage": 1}\n',
    "nanotron": "general: {project: p}\nparallelism: {dp: 2}\ntokens: {micro_batch_size: 1}\n",
    "verl": "actor_rollout_ref: {actor: {fsdp_config: {param_offload: false}}}\n",
    "openrlhf": "pretrain: x\nzero_stage: 3\n",
    "training-arguments": "output_dir: o\nper_device_train_batch_size: 2\nlearning_rate: 1.0e-5\ndeepspeed: ds.json\n",
    "megatron": "tensor_model_parallel_size: 2\nnum_layers: 4\n",
    "fsdp-config": "transformer_layer_cls_to_wrap: [A]\nbackward_prefetch: backward_pre\n",
}


@pytest.mark.parametrize("dialect", FOREIGN)
def test_other_tools_files_are_recognised_and_their_deepspeed_file_judged(dialect: str, check: Check) -> None:
    write(x_yaml=FOREIGN[dialect], ds_json=DEEPSPEED)
    _code, envelope = check("x.yaml")
    assert envelope["data"]["files"][0]["dialect"] == dialect
    assert ("DS002" in rules_of(envelope)) == ("ds.json" in FOREIGN[dialect])


def test_torchtitan_is_toml(check: Check) -> None:
    Path("t.toml").write_text(
        '[job]\ndump_folder = "o"\n[model]\nname = "llama3"\n[training]\nseq_len = 8\n[parallelism]\ntensor_parallel_degree = 2\n'
    )
    assert check("t.toml")[1]["data"]["files"][0]["dialect"] == "torchtitan"


def test_python_is_parsed_and_never_run(check: Check, tmp_path: Path) -> None:
    write(train_py=f"open({str(tmp_path / 'ran')!r}, 'w')\n", old_py="print 'python 2'\n")
    assert check("train.py")[0] == Exit.OK and not (tmp_path / "ran").exists()
    code, envelope = check("old.py")
    assert code == Exit.USAGE and rules_of(envelope) == {"DOC001"}


LINES = {
    "torchrun --nnodes 2 --nproc-per-node=4 train.py --lr 1": ("torchrun", "train.py", 8),
    "srun --ntasks 4 python -u train.py": ("python", "train.py", 4),
    "python -m torch.distributed.run --nproc_per_node 2 t.py": ("torchrun", "t.py", 2),
    "deepspeed --num_gpus 4 --hostfile h t.py --deepspeed ds.json": ("deepspeed", "t.py", 4),
    "CUDA_VISIBLE_DEVICES=0 accelerate launch --num_processes 2 -m pkg.train": ("accelerate", "pkg.train", 2),
    "accelerate config": None,
    "echo torchrun": None,
}


@pytest.mark.parametrize("line", LINES)
def test_launch_lines(line: str) -> None:
    command = command_of(split(line))
    assert (command and (command.launcher, command.script, ranks_of(command))) == LINES[line]


def test_the_arguments_of_a_script() -> None:
    assert script_arguments(split("--lr 1e-5 --bf16 --name=x --n -1 --flag false")) == {
        "lr": 1e-5,
        "bf16": True,
        "name": "x",
        "n": -1,
        "flag": False,
    }


def test_a_script_is_read_and_not_run() -> None:
    text = "#PBS -l select=2:ngpus=4\nN=4\nexport A=$N\nif true; then\n  mpiexec -n 8 python t.py # c\nfi\ncat <<EOF\ntorchrun x.py\nEOF\n"
    script = read_script("j.pbs", text)
    assert (script.nodes, script.gpus_per_node, script.environment["A"]) == (2, 4, "4")
    assert [command.script for command in script.commands] == ["t.py"]


def test_context_of_unknown_keys_is_no_error(check: Check) -> None:
    write(
        a_yaml="distributed_type: MULTI_GPU\nnum_processes: 4\n", c_json='{"world_size": 8, "nodes": 2, "hf": "x", "accelerate": "1.10.0"}'
    )
    code, envelope = check("a.yaml", "--context", "c.json")
    assert code == Exit.FINDINGS and envelope["data"]["context"]["versions"] == {"accelerate": "1.10.0"}
    assert {row["name"] for row in envelope["not_checked"]} >= {"context: nodes", "context: hf"}


def test_effective_tells_what_each_key_becomes(check: Check) -> None:
    write(
        a_yaml="distributed_type: FSDP\nnum_processes: 4\nrdzv_backend: c10d\nfsdp_config:\n  version: 2\n  offload_param: true\n"
        "dynamo_config:\n  backend: INDUCTOR\n"
    )
    rows = {row["key"]: row for row in check("a.yaml", "--show-effective")[1]["data"]["effective"]}
    assert rows["fsdp_config.version"] | {"file": ""} == {
        "file": "",
        "key": "fsdp_config.version",
        "written": 2,
        "source": "file",
        "reaches": "2",
        "via": "FSDP_VERSION",
        "read_by": "FullyShardedDataParallelPlugin.fsdp_version",
        "default": "1",
    }
    assert rows["rdzv_backend"]["reaches"] == "static" and rows["rdzv_backend"]["source"] == "default"
    assert rows["fsdp_config.offload_param"]["read_by"].startswith("nothing")
    typed = check("--cli", "accelerate launch --config_file a.yaml --fsdp_version 1 t.py", "--show-effective")[1]["data"]["effective"]
    assert next(row for row in typed if row["key"] == "fsdp_config.version")["source"] == "command line"


def test_together_makes_one_job_of_files_that_do_not_refer_to_each_other(check: Check) -> None:
    write(
        t_yaml="output_dir: o\nper_device_train_batch_size: 2\nlearning_rate: 1.0e-5\n",
        ds_json='{"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 1.0, "zero_optimization": {"stage": 2}}',
    )
    assert "DS024" not in rules_of(check("ds.json", "t.yaml")[1])
    assert "DS024" in rules_of(check("ds.json", "t.yaml", "--together")[1])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-3, 10**6) | st.floats() | st.text(max_size=8) | st.just("auto"), _grown, max_leaves=25
    )
)
def test_no_content_is_a_fault_of_ours(value: Any) -> None:
    """Whatever stands in a file of a known dialect, `check` and its explanation of each key answer."""
    for start in ({"distributed_type": "DEEPSPEED"}, {"zero_optimization": {"stage": 3}}, {"output_dir": "o", "learning_rate": 1}):
        text = json.dumps({**start, **(value if isinstance(value, dict) else {"fsdp_config": value, "optimizer": value})})
        document = files.Loaded("x.json", "", parse(text, "x.json", "json"), values=json.loads(text))
        document.dialect = dialect_of(document.document) if document.document else ""
        gatherer = Gatherer(Context(world_size=4), Report("check"))
        draft = Draft(gatherer, document, gatherer.context)
        draft.add(document, 0)
        for subject in draft.subjects:
            assert all(finding.to_json() and finding.to_text() for finding in findings_of(subject))


def test_files_that_refer_to_each_other_are_judged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for one, other in (("a.yaml", "b.yaml"), ("b.yaml", "a.yaml")):
        Path(one).write_text(f"distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n  deepspeed_config_file: {other}\n")
    from trainwright.check.judge import judge
    from trainwright.check.subject import Context

    told = judge(["a.yaml", "b.yaml"], Context()).findings
    assert {(f.rule, f.where.path) for f in told if f.rule == "ACC022" and f.where} == {("ACC022", "a.yaml"), ("ACC022", "b.yaml")}


def test_a_folder_is_not_refused_for_what_is_no_config(tmp_path: Path) -> None:
    from trainwright.check.judge import judge

    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "old.py").write_text("print 'x'\n")
    (tmp_path / "broken.yaml").write_text("distributed_type: MULTI_GPU\n num_processes: 2\n")
    report = judge([str(tmp_path)], Context())
    assert [f.rule for f in report.findings] == ["DOC001"] and report.exit is Exit.USAGE
    assert judge([str(tmp_path / "list.json")], Context()).exit is Exit.USAGE


def test_an_axolotl_file_with_a_model_type_is_no_model() -> None:
    text = "base_model: x\nmodel_type: LlamaForCausalLM\ndatasets: []\nfsdp_config:\n  fsdp_version: 2\n"
    assert dialect_of(parse(text, "a.yaml", "yaml")) == "axolotl"


def test_arrays_and_texts_over_several_lines_are_words() -> None:
    text = (
        "#SBATCH --gres=gpu:a100:8\nA=(\n  --num-layers 30  # layers\n  # --hidden-size 1\n)\nA+=(--bf16)\n"
        'B="\n  --seq-length 4096 \\\n  --fp16\n"\ntorchrun --nproc_per_node 8 pretrain.py ${A[@]} "${C[@]}" $B\n'
    )
    script = read_script("job.sh", text)
    assert script.gpu_type == "a100" and script.gpus_per_node == 8
    (command,) = script.commands
    assert script_arguments(command.script_words) == {"num_layers": 30, "bf16": True, "seq_length": 4096, "fp16": True}


def test_the_arguments_of_a_launch_line_stand_against_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainwright.check.judge import judge

    monkeypatch.chdir(tmp_path)
    block = "deepspeed_config:\n  gradient_accumulation_steps: 4\n  zero_stage: 2\n"
    Path("a.yml").write_text(f"distributed_type: DEEPSPEED\nnum_processes: 7\nmixed_precision: fp16\n{block}")
    Path("job.sh").write_text(
        "accelerate launch --config_file ./a.yml train.py \\\n  --output_dir out --per_device_train_batch_size 4 \\\n"
        "  --gradient_accumulation_steps 2 --learning_rate 5e-5\n"
    )
    told = judge(["job.sh"], Context()).findings
    assert [(f.rule, f.path) for f in told if f.severity.name == "ERROR"] == [("ACC038", "deepspeed_config.gradient_accumulation_steps")]


PREPARES = """import torch
from accelerate import Accelerator
accelerator = Accelerator()
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.Adagrad(model.parameters())
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
"""
SCHEDULED = '{"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0, "scheduler": {"type": "WarmupLR", "params": {}}}'
MEGATRON = "distributed_type: MEGATRON_LM\nnum_processes: 8\nmegatron_lm_config:\n  megatron_lm_context_parallel_size: 1\n"


@pytest.mark.parametrize(
    ("config", "facts", "rules"),
    [
        (NAMES, {}, ["SRC021"]),
        (NAMES, {"call": "scheduler = LambdaLR(optimizer, f)"}, ["DS026"]),
        (MEGATRON, {}, ["SRC021", "SRC021"]),
        (MEGATRON, {"optimizer": "torch.optim.Adagrad"}, ["ACC033", "SRC021"]),
    ],
)
def test_a_defect_that_file_and_code_both_show_is_told_once(
    check: Check, tmp_path: Path, config: str, facts: dict[str, str], rules: list[str]
) -> None:
    texts = {"a.yaml": config, "train.py": PREPARES, "ds.json": SCHEDULED, "facts.json": json.dumps(facts)}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    _, answer = check("a.yaml", "train.py", "--together", "--context", "facts.json")
    assert sorted(f["rule"] for f in answer["findings"] if f["rule"] in ("SRC021", "DS026", "ACC033")) == rules
