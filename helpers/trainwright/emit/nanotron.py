"""A plan as the parts of a nanotron YAML that hold one, and such a file read back.

Keys: nanotron/config/parallelism_config.py and config.py (2025). nanotron spreads blocks over stages by a rule of its own
(models/base.py): only a plan with that very split can be written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from trainwright.document import parse
from trainwright.emit.planned import Planned, never, refuse, unread
from trainwright.model import ModelSpec
from trainwright.parallel import Plan, Precision, Schedule

NAME = "nanotron"
VERSION = "nanotron YAML of 2025"
_ENGINES: dict[Schedule, str] = {"none": "1f1b", "1f1b": "1f1b", "gpipe": "afab"}
_TYPES: dict[Precision, str] = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_SPLIT = "# nanotron itself spreads the layers over the stages as: "


def own_split(model: ModelSpec, pp: int) -> tuple[int, ...]:
    """Layers per stage by nanotron's rule: a block goes to the first stage whose share of all cost its predecessors have not passed.

    Costs are weights that multiply (attention with as many key and value heads as queries, three matrices of the MLP, the head).
    """
    h = model.hidden_size
    costs = [0]  # the table
    for block in model.blocks:
        inner = getattr(block.mlp, "size", 0)
        costs.append(4 * block.attention.num_heads * block.attention.head_dim * h + 3 * inner * h)
    costs.append(0)  # the last norm
    total = sum(costs) + model.vocab_size * h
    found, at, passed = [0] * pp, 0, 0
    for number, cost in enumerate(costs):
        found[at] += 0 < number <= model.num_layers
        passed += cost
        if passed > total * (at + 1) / pp and at < pp - 1:
            at += 1
    return tuple(found)


def adapt(plan: Plan, model: ModelSpec | None) -> Plan:
    """The layers of a pipeline where nanotron puts them."""
    if model is None or plan.pp == 1 or plan.virtual_stages > 1:
        return plan
    return replace(plan, layer_split=own_split(model, plan.pp))


def write(job: Planned) -> str:
    """The YAML text; raises NotExpressibleError."""
    job = job.normal()
    _expressible(job)
    plan = job.plan
    lines = [f"# {VERSION}: {plan.name}", f"# {job.layers} layers; put these into your config", *_split_line(plan)]
    for name, fields in _sections(job).items():
        lines += [f"{name}:", *(f"  {key}: {_word(value)}" for key, value in fields.items())]
    return "".join(f"{line}\n" for line in lines)


def _split_line(plan: Plan) -> Iterator[str]:
    if plan.layer_split is not None:
        yield _SPLIT + " ".join(map(str, plan.layer_split))


def _sections(job: Planned) -> dict[str, dict[str, Any]]:
    plan = job.plan
    return {
        "parallelism": {
            "dp": plan.dp,
            "tp": plan.tp,
            "pp": plan.pp,
            "pp_engine": _ENGINES[plan.schedule],
            "tp_mode": "REDUCE_SCATTER" if plan.sequence_parallel else "ALL_REDUCE",
            "tp_linear_async_communication": plan.async_tp,
            "recompute_layer": plan.recompute == "full",
            "context_parallel_size": plan.cp,
            "expert_parallel_size": plan.ep,
        },
        "tokens": {
            "micro_batch_size": plan.micro_batch,
            "batch_accumulation_per_replica": job.microbatches,
            "sequence_length": job.seq_len,
        },
        "optimizer": {"zero_stage": plan.zero_stage, "accumulate_grad_in_fp32": plan.gradient_bytes == 4},
        "model": {"dtype": _TYPES[plan.precision]},
    }


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _expressible(job: Planned) -> None:
    plan = job.plan
    own = own_split(job.model, plan.pp) if job.model is not None and plan.pp > 1 else None
    problems = [
        (plan.schedule not in _ENGINES, f"the schedule {plan.schedule}"),
        (plan.zero_stage > 1, f"zero_stage {plan.zero_stage}"),
        (plan.zero_stage == 1 and plan.dp_replicate > 1, "copies beside zero_stage 1"),
        (plan.recompute not in ("none", "full"), f"recompute {plan.recompute}"),
        (plan.loss != "eager", f"a {plan.loss} loss"),
        (plan.compiled, "compiled layers"),
        (plan.precision == "fp8", "fp8"),
        (plan.precision == "fp32" and plan.gradient_bytes == 2, "gradients of 16 bits in fp32"),
        (plan.offload != "none", "offloaded optimizer states"),
        (plan.async_tp and not plan.sequence_parallel, "asynchronous tp without sequence_parallel"),
        (plan.context == "ulysses", "context parallelism by heads (ulysses)"),
        (not plan.flash_attention, "attention that is not fused"),
        (not plan.overlap_gradients, "gradients reduced after the backward"),
        (plan.pp > 1 and own is None, "a pipeline without the model's shape (its own rule places the layers)"),
        (own is not None and own != plan.layer_split, "layers placed by anything but its own rule"),
        *never(plan),
    ]
    refuse(NAME, problems)


def read(text: str) -> Planned:
    """The job that `write` wrote; raises UserError for other text."""
    value = parse(text, "nanotron.yaml", "yaml").value
    try:
        axes, tokens, optimizer = value["parallelism"], value["tokens"], value["optimizer"]
        plan = _plan(value, axes, tokens, optimizer, _read_split(text))
        batch = plan.dp * plan.micro_batch * tokens["batch_accumulation_per_replica"]
        layers = int(re.findall(r"^# (\d+) layers", text, re.MULTILINE)[0])
        return Planned(plan, batch, tokens["sequence_length"], layers)
    except (KeyError, TypeError, ValueError, IndexError, StopIteration, AttributeError) as problem:
        raise unread(NAME, f"{type(problem).__name__}: {problem}") from None


def _read_split(text: str) -> tuple[int, ...] | None:
    line = next((line for line in text.splitlines() if line.startswith(_SPLIT)), None)
    return tuple(map(int, line[len(_SPLIT) :].split())) if line else None


def _plan(
    value: dict[str, Any], axes: dict[str, Any], tokens: dict[str, Any], optimizer: dict[str, Any], split: tuple[int, ...] | None
) -> Plan:
    stage, dp = optimizer["zero_stage"], axes["dp"]
    return Plan(
        dp_replicate=1 if stage else dp,
        dp_shard=dp if stage else 1,
        tp=axes["tp"],
        sequence_parallel=axes["tp_mode"] == "REDUCE_SCATTER",
        pp=axes["pp"],
        cp=axes["context_parallel_size"],
        ep=axes["expert_parallel_size"],
        micro_batch=tokens["micro_batch_size"],
        schedule="none" if axes["pp"] == 1 else "gpipe" if axes["pp_engine"] == "afab" else "1f1b",
        recompute="full" if axes["recompute_layer"] else "none",
        zero_stage=stage,
        layer_split=split,
        precision=next(name for name, word in _TYPES.items() if word == value["model"]["dtype"]),
        gradient_bytes=4 if optimizer["accumulate_grad_in_fp32"] else 2,
        async_tp=axes["tp_linear_async_communication"],
    )
