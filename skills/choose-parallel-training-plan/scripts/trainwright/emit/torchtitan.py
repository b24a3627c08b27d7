# emit/torchtitan.py without its comments
from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Literal

from trainwright.document import parse
from trainwright.emit.literals import calls
from trainwright.emit.planned import Planned, never, refuse, unread
from trainwright.model import ModelSpec
from trainwright.parallel import Loss, Plan, Recompute, Schedule

NAME = "torchtitan"
Generation = Literal["toml", "python"]
VERSIONS = {"toml": "torchtitan TOML generation (2024, 2025)", "python": "torchtitan Python generation (2026)"}
_SCHEDULES: dict[Schedule, str] = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B"}
_FLOAT8 = "quantize.linear.float8"
_AC = {"full": "FullAC", "selective_op": "SelectiveAC", "budget": "MemoryBudgetAC"}


def write(job: Planned, generation: Generation = "toml") -> str:
    job = job.normal()
    _expressible(job, generation)
    return _toml(job) if generation == "toml" else _python(job)


def adapt(plan: Plan, model: ModelSpec | None) -> Plan:
    return replace(plan, sequence_parallel=plan.tp > 1)


def _expressible(job: Planned, generation: Generation) -> None:
    plan = job.plan
    alone = plan.tp == plan.cp == plan.pp == 1
    problems = [
        (plan.zero_stage in (1, 2), f"zero_stage {plan.zero_stage} (states are whole, or sharded with the weights)"),
        (plan.zero_stage == 0 and plan.dp > 1 and not alone, "copies that are not sharded beside another axis"),
        (plan.zero_stage == 3 and plan.dp_shard * plan.cp == 1, "zero_stage 3 with nothing to shard over"),
        (plan.zero_stage == 0 and plan.cp > 1, "context parallelism without sharded weights"),
        (plan.schedule == "zero-bubble", "the schedule zero-bubble of one chunk a stage"),
        (plan.recompute == "selective", "recompute of attention scores alone"),
        (plan.recompute == "budget" and not plan.compiled, "a budget of activations without compiled layers"),
        (plan.loss == "chunked", "a loss in chunks"),
        (plan.offload != "none", "offloaded optimizer states alone (torchtitan offloads weights and gradients with them)"),
        (plan.precision == "fp16", "fp16"),
        (plan.precision == "fp8" and generation == "python", "fp8 in the Python generation (a transform of the model, no field)"),
        (plan.gradient_bytes == 2 and generation == "toml", "gradients reduced in 16 bits in the TOML generation"),
        (not plan.flash_attention, "attention that is not fused"),
        (plan.tp > 1 and not plan.sequence_parallel and generation == "toml", "tp without sequence_parallel in the TOML generation"),
        (plan.async_tp and not plan.compiled, "asynchronous tp without compiled layers"),
        (plan.context == "ulysses", "context parallelism by heads (ulysses)"),
        (not plan.overlap_gradients, "gradients reduced after the backward"),
        (0 in (plan.layer_split or ())[1:-1], "a stage without layers between others"),
        *never(plan),
    ]
    refuse(NAME, problems)


def parts(split: tuple[int, ...]) -> list[list[str]]:
    found, at = [], 0
    for number, size in enumerate(split):
        first = ["tok_embeddings"] if number == 0 else []
        last = ["norm", "output"] if number == len(split) - 1 else []
        found.append([*first, *(f"layers.{i}" for i in range(at, at + size)), *last])
        at += size
    return found


def _split(modules: list[list[str]]) -> tuple[int, ...]:
    return tuple(sum(name.startswith("layers.") for name in part) for part in modules)


def _parallelism(job: Planned) -> dict[str, Any]:
    plan = job.plan
    fields: dict[str, Any] = {
        "data_parallel_replicate_degree": plan.dp_replicate,
        "data_parallel_shard_degree": plan.dp_shard,
        "fsdp_reshard_after_forward": "default" if plan.reshard_after_forward else "never",
        "tensor_parallel_degree": plan.tp,
        "context_parallel_degree": plan.cp,
        "expert_parallel_degree": plan.ep,
        "pipeline_parallel_degree": plan.pp,
    }
    if plan.layer_split is not None:
        fields["pipeline_parallel_schedule"] = _SCHEDULES[plan.schedule]
        fields["module_fqns_per_model_part"] = parts(plan.layer_split)
    return fields


def _toml(job: Planned) -> str:
    plan = job.plan
    per_rank = job.global_batch // plan.dp
    sections: dict[str, dict[str, Any]] = {
        "training": {
            "local_batch_size": per_rank if plan.pp > 1 else plan.micro_batch,
            "global_batch_size": job.global_batch,
            "seq_len": job.seq_len,
            "mixed_precision_param": "float32" if plan.precision == "fp32" else "bfloat16",
            "mixed_precision_reduce": "float32",
        },
        "parallelism": {**_parallelism(job), "enable_async_tensor_parallel": plan.async_tp},
        "activation_checkpoint": _toml_checkpoint(plan),
        "compile": {"enable": bool(_components(plan)), "components": _components(plan)},
    }
    if plan.pp > 1:
        sections["parallelism"]["pipeline_parallel_microbatch_size"] = plan.micro_batch
    if plan.precision == "fp8":
        sections["model"] = {"converters": [_FLOAT8]}
    head = [f"# {VERSIONS['toml']}: {plan.name}", f"# {job.layers} layers; {plan.world_size} ranks"]
    body = [f"\n[{name}]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in one.items()) for name, one in sections.items()]
    return "\n".join([*head, *body]) + "\n"


def _toml_checkpoint(plan: Plan) -> dict[str, Any]:
    words: dict[Recompute, dict[str, Any]] = {
        "full": {"mode": "full"},
        "selective_op": {"mode": "selective", "selective_ac_option": "op"},
        "budget": {"mode": "memory_budget", "memory_budget": plan.activation_budget},
    }
    return words.get(plan.recompute, {"mode": "none"})


def _components(plan: Plan) -> list[str]:
    return ["model"] * plan.compiled + ["loss"] * (plan.loss == "compiled")


def _read_toml(text: str) -> Planned:
    value = parse(text, "torchtitan.toml", "toml").value
    training, axes, kept = value["training"], value["parallelism"], value["activation_checkpoint"]
    recompute, budget = _recompute_of(kept)
    pp = axes["pipeline_parallel_degree"]
    plan = _plan(
        axes,
        micro_batch=axes["pipeline_parallel_microbatch_size"] if pp > 1 else training["local_batch_size"],
        sequence_parallel=axes["tensor_parallel_degree"] > 1,
        recompute=recompute,
        activation_budget=budget,
        precision="fp8" if "model" in value else "fp32" if training["mixed_precision_param"] == "float32" else "bf16",
        async_tp=axes["enable_async_tensor_parallel"],
        components=value["compile"]["components"] if value["compile"]["enable"] else [],
    )
    return Planned(plan, training["global_batch_size"], training["seq_len"], _layers(text, plan))


def _recompute_of(kept: dict[str, Any]) -> tuple[Recompute, float]:
    if kept["mode"] == "memory_budget":
        return "budget", float(kept["memory_budget"])
    words: dict[str, Recompute] = {"none": "none", "full": "full", "selective": "selective_op"}
    return words[kept["mode"]], 1.0


def _plan(axes: dict[str, Any], components: list[str], **rest: Any) -> Plan:
    pp, modules = axes["pipeline_parallel_degree"], axes.get("module_fqns_per_model_part")
    shard, replicate, cp = axes["data_parallel_shard_degree"], axes["data_parallel_replicate_degree"], axes["context_parallel_degree"]
    split = _split(modules) if modules else None
    schedule: Schedule = "none"
    loss: Loss = "compiled" if "loss" in components else "eager"
    if pp > 1:
        schedule = next(name for name, word in _SCHEDULES.items() if word == axes["pipeline_parallel_schedule"])
    return Plan(
        dp_replicate=replicate,
        dp_shard=shard,
        tp=axes["tensor_parallel_degree"],
        pp=pp,
        cp=cp,
        ep=axes["expert_parallel_degree"],
        virtual_stages=len(split) // pp if split else 1,
        schedule=schedule,
        layer_split=split,
        zero_stage=3 if shard * cp > 1 else 0,
        reshard_after_forward=axes["fsdp_reshard_after_forward"] == "default",
        loss=loss,
        compiled="model" in components,
        **rest,
    )


def _layers(text: str, plan: Plan) -> int:
    if plan.layer_split is not None:
        return sum(plan.layer_split)
    line = next((line for line in text.splitlines() if " layers; " in line), "")
    return int(line.strip("# ").split()[0])


def _python(job: Planned) -> str:
    plan = job.plan
    passes = job.microbatches if plan.pp > 1 else 1
    training = {
        "num_tokens_per_microbatch_per_dp_rank": plan.micro_batch * job.seq_len,
        "num_tokens_per_train_step": job.global_batch * job.seq_len,
        "max_context_length": job.seq_len,
        "mixed_precision_param": "float32" if plan.precision == "fp32" else "bfloat16",
        "mixed_precision_reduce": "bfloat16" if plan.gradient_bytes == 2 else "float32",
    }
    axes = {**_parallelism(job), "enable_sequence_parallel": plan.sequence_parallel or plan.tp == 1, "num_pp_microbatches": passes}
    kept = _AC.get(plan.recompute)
    budget = f"memory_budget={plan.activation_budget!r}" if plan.recompute == "budget" else ""
    lines = [
        f'"""{VERSIONS["python"]}: {plan.name}',
        "",
        f'{job.layers} layers; {plan.world_size} ranks. Put these into your Trainer.Config."""',
        "",
        "from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig",
        *([f"from torchtitan.distributed.activation_checkpoint import {kept}"] if kept else []),
        "",
        f"training = TrainingConfig({_keywords(training)})",
        f"parallelism = ParallelismConfig({_keywords(axes)})",
        f"activation_checkpoint = {f'{kept}.Config({budget})' if kept else None}",
        f"compile = {_compile(plan)}",
    ]
    return "\n".join(lines) + "\n"


def _compile(plan: Plan) -> str:
    components = _components(plan)
    return (
        f"CompileConfig({_keywords({'components': components, 'enable_async_tensor_parallel': plan.async_tp})})" if components else "None"
    )


def _keywords(fields: dict[str, Any]) -> str:
    return "\n" + "".join(f"    {name}={value!r},\n" for name, value in fields.items())


def _read_python(text: str) -> Planned:
    found = calls(text)
    training, axes = found["training"][1], found["parallelism"][1]
    kept, compiled = found.get("activation_checkpoint", ("", {})), found.get("compile", ("", {}))[1]
    recompute = next((word for word, name in _AC.items() if name == kept[0]), "none")
    seq_len = training["max_context_length"]
    plan = _plan(
        axes,
        micro_batch=training["num_tokens_per_microbatch_per_dp_rank"] // seq_len,
        sequence_parallel=axes["enable_sequence_parallel"] and axes["tensor_parallel_degree"] > 1,
        recompute=recompute,
        activation_budget=kept[1].get("memory_budget", 1.0),
        precision="fp32" if training["mixed_precision_param"] == "float32" else "bf16",
        gradient_bytes=2 if training["mixed_precision_reduce"] == "bfloat16" else 4,
        async_tp=compiled.get("enable_async_tensor_parallel", False),
        components=compiled.get("components", []),
    )
    return Planned(plan, training["num_tokens_per_train_step"] // seq_len, seq_len, _layers(text, plan))


def read(text: str) -> Planned:
    try:
        return _read_python(text) if "TrainingConfig(" in text else _read_toml(text)
    except (KeyError, TypeError, ValueError, SyntaxError, StopIteration, RecursionError) as problem:
        raise unread(NAME, f"{type(problem).__name__}: {problem}") from None
