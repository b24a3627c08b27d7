"""A plan as flags of Megatron-LM's pretrain scripts, and such flags read back.

Flags: megatron/training/arguments.py (2026); the layout string: megatron/core/transformer/pipeline_parallel_layer_layout.py
(E embedding, t decoder layer, L loss, | between chunks, x*n and (x)*n repeat; chunks go around the stages).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from trainwright.emit.planned import Planned, never, refuse, unread
from trainwright.errors import UserError
from trainwright.parallel import Plan

NAME = "Megatron-LM"
VERSION = "megatron-lm flags of 2026"
_MAX_LAYOUT = 100_000
_SHARDINGS = {2: "optim_grads", 3: "optim_grads_params"}


def write(job: Planned) -> str:
    """The flags, one a line, for a shell's continuation; raises NotExpressibleError."""
    job = job.normal()
    _expressible(job)
    flags = [*_sizes(job), *_sharding(job.plan), *_compute(job.plan)]
    lines = [" ".join([f"--{name}", *(shlex.quote(str(value)) for value in values)]) for name, *values in flags]
    head = f"# {VERSION}: {job.plan.name}; the model's own sizes are yours to add\n"
    launched = f"# torchrun starts {job.plan.world_size} ranks: what the sizes below leave is data parallel\n"
    return head + launched + " \\\n".join(lines) + "\n"


def _expressible(job: Planned) -> None:
    plan = job.plan
    experts_along = plan.ep > 1 and plan.tp > 1 and not plan.sequence_parallel
    problems = [
        (plan.schedule in ("gpipe", "zero-bubble"), f"the schedule {plan.schedule}"),
        (plan.recompute in ("selective_op", "budget"), f"recompute {plan.recompute}"),
        (plan.loss == "chunked", "a loss in chunks"),
        (plan.compiled, "compiled layers (there is no switch for torch.compile)"),
        (plan.zero_stage in (2, 3) and plan.pp > 1, f"zero_stage {plan.zero_stage} with a pipeline"),
        (plan.zero_stage == 3 and not plan.reshard_after_forward, "weights kept between forward and backward under zero_stage 3"),
        (plan.offload != "none" and plan.zero_stage != 1, "offloaded optimizer states without the distributed optimizer"),
        (experts_along, "tp with ep without sequence_parallel"),
        (plan.zero_stage == 2 and plan.dp_replicate > 1, "zero_stage 2 with copies"),
        *never(plan),
    ]
    refuse(NAME, problems)


def _sizes(job: Planned) -> Iterator[tuple[Any, ...]]:
    plan = job.plan
    yield "num-layers", job.layers
    yield "seq-length", job.seq_len
    yield "micro-batch-size", plan.micro_batch
    yield "global-batch-size", job.global_batch
    yield "tensor-model-parallel-size", plan.tp
    yield "pipeline-model-parallel-size", plan.pp
    yield "context-parallel-size", plan.cp
    if plan.sequence_parallel:
        yield ("sequence-parallel",)
    if plan.cp > 1:
        yield "cp-comm-type", "a2a" if plan.context == "ulysses" else "p2p"
    if plan.ep > 1:
        yield "expert-model-parallel-size", plan.ep
        yield "expert-tensor-parallel-size", 1
    if plan.layer_split is not None:
        yield "pipeline-model-parallel-layout", layout(plan.layer_split)


def _sharding(plan: Plan) -> Iterator[tuple[Any, ...]]:
    if plan.zero_stage:
        yield ("use-distributed-optimizer",)
    if plan.zero_stage and plan.dp_replicate > 1:
        yield "num-distributed-optimizer-instances", plan.dp_replicate
    if plan.zero_stage in _SHARDINGS:
        yield ("use-megatron-fsdp",)
        yield "data-parallel-sharding-strategy", _SHARDINGS[plan.zero_stage]
    if plan.zero_stage == 3 and plan.dp_replicate > 1:
        yield "outer-dp-sharding-strategy", "no_shard"
    if plan.overlap_gradients:
        yield ("overlap-grad-reduce",)
        if plan.zero_stage:
            yield ("overlap-param-gather",)
    if plan.offload == "optimizer":
        yield ("optimizer-cpu-offload",)


def _compute(plan: Plan) -> Iterator[tuple[Any, ...]]:
    if plan.precision in ("bf16", "fp8"):
        yield ("bf16",)
    if plan.precision == "fp16":
        yield ("fp16",)
    if plan.precision == "fp8":
        yield "fp8-format", "hybrid"
    if plan.gradient_bytes == 4:
        yield ("accumulate-allreduce-grads-in-fp32",)
    yield "attention-backend", "flash" if plan.flash_attention else "unfused"
    if plan.async_tp:
        yield ("tp-comm-overlap",)
    if plan.loss == "compiled":
        yield ("cross-entropy-loss-fusion",)
    if plan.recompute == "selective":
        yield "recompute-granularity", "selective"
    if plan.recompute == "full":
        yield "recompute-granularity", "full"
        yield "recompute-method", "uniform"
        yield "recompute-num-layers", 1


# --- layouts --------------------------------------------------------------------------------------------------------


def layout(split: Sequence[int]) -> str:
    """The layout string of layers per chunk: (24, 24) is "Et*24|t*24L"."""
    last = len(split) - 1
    chunks = [f"{'E' * (i == 0)}{_layers(n)}{'L' * (i == last)}" for i, n in enumerate(split)]
    found, at = [], 0
    for chunk, same in groupby(chunks):
        times = len(list(same))
        at += times
        # A repeat takes the bar behind each chunk into its brackets, so the last chunk stays outside.
        found.append(f"({chunk}|)*{times}" if times > 1 and at <= last else "|".join([chunk] * times) + "|" * (at <= last))
    return "".join(found)


def _layers(count: int) -> str:
    return f"t*{count}" if count > 1 else "t" * count


def layers_of(text: str) -> tuple[int, ...]:
    """Layers per chunk of a layout string; raises UserError for what Megatron-LM would not take."""
    text = text.replace(",", "")
    for pattern in (r"\(([^)]+)\)\*(\d{1,5})", r"(.)\*(\d{1,5})"):
        if sum(len(inside) * int(times) for inside, times in re.findall(pattern, text)) > _MAX_LAYOUT:
            raise UserError(f"the layout {text[:60]!r} is longer than {_MAX_LAYOUT} layers")
        text = re.sub(pattern, lambda found: found.group(1) * int(found.group(2)), text)
    if not re.fullmatch(r"E[t|]*L", text):
        raise UserError(f"the layout {text[:60]!r} is not E, then layers (t) and bars, then L")
    return tuple(chunk.count("t") for chunk in text.split("|"))


# --- reading --------------------------------------------------------------------------------------------------------


def read(text: str) -> Planned:
    """The job that `write` wrote; raises UserError for other text."""
    flags = _flags(text)
    world = re.search(r"starts (\d+) ranks", text)
    try:
        sizes = {name: int(flags[name]) for name in ("num-layers", "seq-length", "micro-batch-size", "global-batch-size")}
        tp, pp = int(flags["tensor-model-parallel-size"]), int(flags["pipeline-model-parallel-size"])
        cp, stage = int(flags["context-parallel-size"]), _stage(flags)
        dp = int(world.group(1)) // (tp * pp * cp) if world else 1
        split = layers_of(flags["pipeline-model-parallel-layout"]) if pp > 1 else None
    except (KeyError, ValueError) as problem:
        raise unread(NAME, f"{type(problem).__name__}: {problem}") from None
    copies = int(flags.get("num-distributed-optimizer-instances", 1)) if stage else dp
    virtual = len(split) // pp if split else 1
    plan = Plan(
        dp_replicate=copies,
        dp_shard=dp // copies,
        tp=tp,
        sequence_parallel="sequence-parallel" in flags,
        pp=pp,
        cp=cp,
        ep=int(flags.get("expert-model-parallel-size", 1)),
        virtual_stages=virtual,
        micro_batch=sizes["micro-batch-size"],
        schedule="none" if pp == 1 else "interleaved" if virtual > 1 else "1f1b",
        recompute=flags.get("recompute-granularity", "none"),  # type: ignore[arg-type]
        zero_stage=stage,
        offload="optimizer" if "optimizer-cpu-offload" in flags else "none",
        loss="compiled" if "cross-entropy-loss-fusion" in flags else "eager",
        layer_split=split,
        precision="fp8" if "fp8-format" in flags else "bf16" if "bf16" in flags else "fp16" if "fp16" in flags else "fp32",
        gradient_bytes=4 if "accumulate-allreduce-grads-in-fp32" in flags else 2,
        flash_attention=flags.get("attention-backend") != "unfused",
        async_tp="tp-comm-overlap" in flags,
        overlap_gradients="overlap-grad-reduce" in flags,
        context="ulysses" if flags.get("cp-comm-type") == "a2a" else "ring",
    )
    return Planned(plan, sizes["global-batch-size"], sizes["seq-length"], sizes["num-layers"])


def _stage(flags: dict[str, str]) -> int:
    strategy = flags.get("data-parallel-sharding-strategy")
    if "use-megatron-fsdp" in flags:
        return next((stage for stage, word in _SHARDINGS.items() if word == strategy), 3)
    return int("use-distributed-optimizer" in flags)


def _flags(text: str) -> dict[str, str]:
    """Names without dashes and their values ("" for a switch)."""
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as problem:
        raise unread(NAME, str(problem)) from None
    found: dict[str, str] = {}
    for word in words:
        if word.startswith("--"):
            found[word[2:]] = ""
        elif found:
            found[next(reversed(found))] = word
    return found
