"""Every backend: what it writes reads back as the same plan, over the declared space and beyond it; what it cannot say it refuses."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.check.judge import judge
from trainwright.check.subject import Context
from trainwright.cost.layers import network
from trainwright.emit import megatron, nanotron
from trainwright.emit.backends import BACKENDS, adapted, backend, emit, expressible
from trainwright.emit.planned import NotExpressibleError, Planned
from trainwright.errors import UserError
from trainwright.model import load_model
from trainwright.parallel import LOSSES, RECOMPUTES, SCHEDULES, Plan
from trainwright.plan.space import Job, Space, Tally, plans
from trainwright.report import Severity

SEVEN = load_model("7b")


@cache
def space(name: str = "7b", devices: int = 16, batch: int = 64) -> tuple[Planned, ...]:
    """All plans of the declared space of a small job, with every recompute, schedule, offload and both kinds of tp."""
    model = load_model(name)
    wide = Space(
        micro_batches=(1, 2),
        schedules=SCHEDULES[1:],
        recomputes=RECOMPUTES,
        losses=LOSSES,
        offloads=("none", "optimizer"),
        sequence_parallel=(True, False),
        virtual_stages=(1, 2),
    )
    found = plans(Job(network(model), devices, 8, 2048, batch), wide, Tally())
    return tuple(Planned(plan, batch, 2048, model.num_layers, model) for plan in found)


@pytest.mark.parametrize("name", BACKENDS)
def test_the_declared_space_reads_back(name: str) -> None:
    """Each plan is written and read back as itself, or refused with reasons; neither is the whole space."""
    written, refused = 0, 0
    for number, job in enumerate(space()):
        if number % 7:  # a seventh keeps the test short; the drawn plans below go everywhere
            continue
        for one in (job, adapted(name, job)):
            try:
                text = backend(name).write(one)
            except NotExpressibleError as problem:
                assert problem.reasons
                refused += 1
                continue
            assert backend(name).read(text) == one.normal()
            written += 1
    assert written > 5 and refused > 10


@st.composite
def drawn(draw: Any) -> Planned:
    """Any plan that Plan itself takes."""
    size = st.sampled_from([1, 1, 2, 3, 4])
    pp, virtual = draw(st.sampled_from([1, 2, 3, 4])), 1
    schedule: Any = "none" if pp == 1 else draw(st.sampled_from(SCHEDULES[1:]))
    if schedule == "interleaved":
        virtual = draw(st.sampled_from([2, 3]))
    cuts = sorted(draw(st.lists(st.integers(0, 32), min_size=pp * virtual - 1, max_size=pp * virtual - 1)))
    split = tuple(b - a for a, b in zip([0, *cuts], [*cuts, 32], strict=True))
    stage = draw(st.sampled_from([0, 1, 2, 3]))
    plan = Plan(
        dp_replicate=draw(size),
        dp_shard=draw(size) if stage else 1,
        tp=draw(size),
        sequence_parallel=draw(st.booleans()),
        pp=pp,
        cp=draw(size),
        virtual_stages=virtual,
        micro_batch=draw(size),
        schedule=schedule,
        recompute=draw(st.sampled_from(RECOMPUTES)),
        activation_budget=draw(st.sampled_from([0.25, 0.5, 1.0])),
        zero_stage=stage,
        reshard_after_forward=draw(st.booleans()),
        offload=draw(st.sampled_from(["none", "none", "none", "optimizer"])),
        loss=draw(st.sampled_from(LOSSES)),
        layer_split=split if pp > 1 else None,
        precision=draw(st.sampled_from(["bf16", "bf16", "fp16", "fp8", "fp32"])),
        gradient_bytes=draw(st.sampled_from([2, 4])),
        compiled=draw(st.booleans()),
        flash_attention=draw(st.booleans()),
        async_tp=draw(st.booleans()),
        overlap_gradients=draw(st.booleans()),
        one_rail=draw(st.booleans()),
        context=draw(st.sampled_from(["ring", "ulysses"])),
    )
    return Planned(plan, plan.dp * plan.micro_batch * draw(st.integers(1, 9)), 4096, 32, SEVEN)


@settings(max_examples=300)
@given(job=drawn(), name=st.sampled_from(sorted(BACKENDS)))
def test_any_plan_reads_back_or_is_refused(job: Planned, name: str) -> None:
    try:
        text = backend(name).write(job)
    except NotExpressibleError as problem:
        assert str(problem).count("cannot express") == 1 and "\n" not in str(problem)
        return
    assert backend(name).read(text) == job.normal()


@settings(max_examples=200)
@given(job=drawn(), name=st.sampled_from(sorted(BACKENDS)), field=st.sampled_from(["micro_batch", "tp", "recompute", "cp", "precision"]))
def test_a_plan_that_differs_is_written_differently(job: Planned, name: str, field: str) -> None:
    """No field that matters is lost on the way."""
    other: dict[str, Any] = {"micro_batch": job.plan.micro_batch + 1, "tp": job.plan.tp + 1, "cp": job.plan.cp + 1}
    words = {
        "recompute": "full" if job.plan.recompute != "full" else "none",
        "precision": "fp32" if job.plan.precision == "bf16" else "bf16",
    }
    changed = replace(job.plan, **{field: {**other, **words}[field]})
    second = replace(job, plan=changed, global_batch=changed.dp * changed.micro_batch * 2)
    first = replace(job, global_batch=job.plan.dp * job.plan.micro_batch * 2)
    try:
        texts = backend(name).write(first), backend(name).write(second)
    except NotExpressibleError:
        return
    assert texts[0] != texts[1]


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("text", ["", "{}", "a: 1", "[training]\n", "x = 1\n", "--num-layers 3", "\x00", "TrainingConfig(", "- 1", "[]"])
def test_another_file_is_refused_in_one_line(name: str, text: str) -> None:
    with pytest.raises(UserError) as caught:
        backend(name).read(text)
    assert "\n" not in str(caught.value)


def test_a_backend_that_is_none() -> None:
    with pytest.raises(UserError, match="there is no backend 'jax'; known are megatron"):
        emit("jax", space()[0])


# --- Megatron's layout ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("split", "text"),
    [
        ((24, 24), "Et*24|t*24L"),
        ((3, *(2,) * 29, 1, 0), "Et*3|(t*2|)*29t|L"),
        ((1, 0, 1), "Et||tL"),
        ((0, 2), "E|t*2L"),
    ],
)
def test_layout(split: tuple[int, ...], text: str) -> None:
    assert megatron.layout(split) == text
    assert megatron.layers_of(text) == split


def test_layouts_of_others_are_read() -> None:
    """Megatron-Bridge's own for 80 layers on 8 stages of 5 chunks, commas and all."""
    read = megatron.layers_of("Et*2|(t*2|)*34,t*3|(t*2|)*3,tL")
    assert sum(read) == 80 and len(read) == 40 and read[0] == 2 and read[-1] == 1


@given(split=st.lists(st.integers(0, 9), min_size=1, max_size=40))
def test_any_layout_reads_back(split: list[int]) -> None:
    assert megatron.layers_of(megatron.layout(split)) == tuple(split)


@pytest.mark.parametrize("text", ["", "Et", "tL", "Etm|L", "E(t*9999|)*99999L", "EtLt"])
def test_no_layout(text: str) -> None:
    with pytest.raises(UserError):
        megatron.layers_of(text)


# --- the backends themselves ------------------------------------------------------------------------------------------


def some(name: str, count: int, **kept: Any) -> list[Planned]:
    """A few plans that a backend can express."""
    found = []
    for job in space():
        one = adapted(name, job)
        if all(getattr(one.plan, key) == value for key, value in kept.items()) and not expressible(name, one):
            found.append(one)
    assert found
    return found[:: max(len(found) // count, 1)]


def test_check_passes_what_is_written_for_accelerate(tmp_path: Path) -> None:
    path = tmp_path / "accelerate.yaml"
    for job in [*some("accelerate", 6, zero_stage=3), *some("accelerate", 2, zero_stage=0)]:
        path.write_text(emit("accelerate", job))
        report = judge([str(path)], Context(world_size=16, model=job.model, device="cuda"))
        assert {finding.rule for finding in report.findings} <= {"ACC028"}, "only that a sharded checkpoint holds no whole model"
        assert all(finding.severity is Severity.INFO for finding in report.findings)


@pytest.mark.long
def test_accelerate_itself_reads_what_is_written(tmp_path: Path) -> None:
    """The real launcher's parser and the real ParallelismConfig."""
    pytest.importorskip("accelerate")
    from accelerate.commands.config.config_args import load_config_from_file  # type: ignore[import-untyped]
    from accelerate.parallelism_config import ParallelismConfig  # type: ignore[import-untyped]

    path = tmp_path / "accelerate.yaml"
    for job in some("accelerate", 5, zero_stage=3):
        path.write_text(emit("accelerate", job))
        config = load_config_from_file(str(path))
        prefix = "parallelism_config_"
        sizes = {key[len(prefix) :]: value for key, value in config.parallelism_config.items() if key.endswith("_size")}
        built = ParallelismConfig(**sizes)
        assert built.total_size == job.plan.world_size == config.num_processes
        assert config.fsdp_config["fsdp_version"] == 2


@pytest.mark.long
def test_deepspeed_itself_reads_what_is_written() -> None:
    """The real DeepSpeedConfig, told the world that the plan has."""
    pytest.importorskip("deepspeed")
    code = (
        "import json, sys\n"
        "from types import SimpleNamespace as S\n"
        "from deepspeed.runtime import config\n"
        "for line in sys.stdin:\n"
        "    text, dp = json.loads(line)\n"
        "    mpu = S(get_data_parallel_world_size=lambda: dp)\n"
        "    config.dist = S(get_rank=lambda: 0, get_world_size=lambda group=None: dp)\n"
        "    made = config.DeepSpeedConfig(json.loads(text), mpu=mpu)\n"
        "    print(json.dumps(['read', made.zero_config.stage, made.train_batch_size, made.gradient_accumulation_steps]))\n"
    )
    jobs = some("deepspeed", 8)
    lines = "".join(json.dumps([emit("deepspeed", job), job.plan.dp]) + "\n" for job in jobs)
    ran = subprocess.run([sys.executable, "-c", code], input=lines, capture_output=True, text=True, timeout=300, check=False)
    found = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('["read"')]
    assert len(found) == len(jobs), ran.stderr[-2000:]
    for job, (_, stage, batch, passes) in zip(jobs, found, strict=True):
        assert (stage, batch, passes) == (job.plan.zero_stage, job.global_batch, job.microbatches)


def test_nanotron_s_own_split() -> None:
    """Every layer once; the stage of the head has fewer, for the head counts as the layers that it weighs."""
    model = load_model("7b")
    for pp in (1, 2, 4, 8):
        assert sum(nanotron.own_split(model, pp)) == 32
    text = emit("nanotron", some("nanotron", 1, pp=4)[0])
    assert yaml.safe_load(text)["parallelism"]["pp"] == 4


def test_what_dtensor_writes_is_python() -> None:
    for job in some("dtensor", 6):
        compile(emit("dtensor", job), "plan.py", "exec")


RANK = """
import sys
import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM
sys.path.insert(0, sys.argv[1])
import plan_dtensor as plan

dist.init_process_group("gloo")
mesh = plan.build_mesh("cpu")
assert mesh.mesh_dim_names == ("pp", "dp_replicate", "dp_shard", "cp", "tp"), mesh
shape = dict(zip(mesh.mesh_dim_names, mesh.mesh.shape))
torch.manual_seed(0)
sizes = dict(vocab_size=96, hidden_size=64, intermediate_size=128)
config = LlamaConfig(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, **sizes)
model = LlamaForCausalLM(config)
tokens = torch.randint(0, 96, (2, 16), generator=torch.Generator().manual_seed(1))
before = model(input_ids=tokens, use_cache=False).logits
wanted = plan.loss_function()(before.flatten(0, 1), tokens.flatten())
if shape["pp"] == 1 and shape["cp"] == 1:
    made = plan.parallelize(model, mesh)
    after = made(input_ids=tokens, use_cache=False).logits
    loss = plan.loss_function()(after.flatten(0, 1), tokens.flatten())
    loss.backward()
    assert abs(loss.item() - wanted.item()) < 1e-4, (loss.item(), wanted.item())
    assert all(p.grad is not None for p in made.parameters())
layers = [one for stage in range(shape["pp"]) for chunk in plan.chunks_of(stage) for one in chunk]
assert sorted(layers) == list(range(plan.LAYERS)), layers
print("BUILT", dist.get_rank(), shape)
dist.destroy_process_group()
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "plan",
    [
        Plan(dp_shard=2, tp=2, sequence_parallel=True, zero_stage=3, precision="fp32", recompute="full"),
        Plan(dp_replicate=2, dp_shard=2, zero_stage=3, precision="fp32", reshard_after_forward=False),
        Plan(dp_shard=2, tp=2, zero_stage=3, precision="fp32", recompute="selective_op"),
        Plan(dp_replicate=4, precision="fp32"),
        Plan(dp_shard=2, cp=2, zero_stage=3, precision="fp32"),
        Plan(pp=2, dp_shard=2, zero_stage=3, schedule="interleaved", virtual_stages=2, precision="fp32", layer_split=(8, 8, 8, 8)),
    ],
    ids=lambda plan: plan.name,
)
def test_what_dtensor_writes_runs_on_four_ranks(plan: Plan, tmp_path: Path) -> None:
    """The mesh is built, and where model and mesh fit the loss is the one that a single process has."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    (tmp_path / "plan_dtensor.py").write_text(emit("dtensor", Planned(plan, plan.dp * 4, 128, 32, SEVEN)))
    (tmp_path / "rank.py").write_text(RANK)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    argv = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "4",
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        str(port),
    ]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    ran = subprocess.run([*argv, str(tmp_path / "rank.py"), str(tmp_path)], capture_output=True, text=True, timeout=240, check=False)
    assert ran.stdout.count("BUILT") == 4, (ran.stdout + ran.stderr)[-3000:]
