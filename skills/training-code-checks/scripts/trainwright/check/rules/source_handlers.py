# check/rules/source_handlers.py without its comments
from __future__ import annotations

from collections.abc import Iterator, Mapping

from trainwright.check.rules.source_accelerate import NAMES, SHARDED
from trainwright.check.source.module import Call
from trainwright.check.source.program import Program, text_of
from trainwright.check.source.values import Symbol
from trainwright.report import Severity
from trainwright.rules import Hit, rule


@rule(
    "SRC019",
    Severity.ERROR,
    Program,
    fails_at="first step",
    checked="source",
    source="accelerate-1.15.0-local-sgd",
    covers=("LSGD-BACKEND", "LSGD-SINGLE", "LSGD-ACCUM"),
)
def local_sgd_out_of_place(program: Program) -> Iterator[Hit]:
    """LocalSGD where it stops, does nothing, or does not do what it seems to.

    It runs under plain data parallelism alone: FSDP, DeepSpeed, Megatron-LM and XLA stop. In one process it is off (information).
    With gradient accumulation it counts calls of `step()`, not optimizer steps, and gradients are never reduced (a warning). Without a
    `step()` in the loop the ranks never meet.

    Bad `acc.yaml` with `--context job.json`:

        distributed_type: DEEPSPEED
        num_processes: 4
        deepspeed_config: {zero_stage: 2, gradient_clipping: 1.0}
    Bad `job.json`:

        {"call": "LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=8)"}

    Good `acc.yaml` with `--context job.json`:

        distributed_type: MULTI_GPU
        num_processes: 4
    Good `job.json`:

        {"call": "LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=8)"}
    """
    for call in program.module.called("accelerate", "LocalSGD"):
        enabled = program.given(call, "enabled", 3)
        if enabled is False:
            continue
        at, sharding = program.at(call.node), program.sharding
        if sharding in (*SHARDED, "megatron", "tpu"):
            yield Hit(f"LocalSGD under {NAMES[sharding]}: it stops; it is for plain data parallelism", at, "LocalSGD")
        elif sharding == "none":
            yield Hit("LocalSGD in one process: it is off", at, "LocalSGD", severity=Severity.INFO, fails_at="never")
        if (steps := accumulation(program)) and steps > 1:
            message = f"LocalSGD with gradient accumulation over {steps} steps: it counts calls, and gradients are not reduced"
            yield Hit(message, at, "LocalSGD", severity=Severity.WARNING, fails_at="never")
        every = program.given(call, "local_sgd_steps", 2)
        if isinstance(every, int) and every < 1:
            yield Hit(f"local_sgd_steps {every}: 1 is the least", at, "local_sgd_steps")
        if program.stand_in is None and not any(c.last == "step" and c.owner.endswith("LocalSGD()") for c in program.calls):
            yield Hit(
                "LocalSGD, and nothing calls its step(): the ranks never meet", at, "LocalSGD", severity=Severity.WARNING, fails_at="never"
            )


def accumulation(program: Program) -> int | None:
    for call in program.module.called("accelerate", "Accelerator"):
        value = program.given(call, "gradient_accumulation_steps")
        if type(value) is int:
            return value
    for call in program.module.called("accelerate", "GradientAccumulationPlugin"):
        value = program.given(call, "num_steps", 0)
        if type(value) is int:
            return value
    value = program.context.gradient_accumulation_steps or program.context.training_args.get("gradient_accumulation_steps")
    return value if type(value) is int else None


_STATE = (
    "matrix_approximation_rank",
    "start_powerSGD_iter",
    "min_compression_rate",
    "use_error_feedback",
    "warm_start",
    "orthogonalization_epsilon",
    "random_seed",
    "compression_stats_logging_frequency",
    "batch_tensors_with_same_shape",
)


@rule(
    "SRC020",
    Severity.ERROR,
    Program,
    fails_at="first step",
    checked="run",
    source="torch-2.13.0-ddp",
    covers=(
        "DDP-HOOK-BF16-GLOO",
        "DDP-HOOK-WRAPPER",
        "DDP-POWERSGD-START",
        "DDP-POWERSGD-KEY",
        "DDP-HOOK-FSDP",
        "DDP-STATIC-ACCUM",
    ),
)
def ddp_argument_out_of_place(program: Program) -> Iterator[Hit]:
    """Arguments of DistributedDataParallelKwargs that stop the first step, or that nothing reads.

    The bf16 hook wants NCCL or XCCL. PowerSGD's state takes its own names, and starts at iteration 2 or later while it keeps errors or
    a warm start. `static_graph` stops with gradient accumulation, which leaves out the first reduction. A wrapper wraps an fp16 or bf16
    hook and nothing else, and under FSDP or DeepSpeed the whole handler is unused (warnings).

    Bad `acc.yaml` with `--context job.json`:

        distributed_type: MULTI_GPU
        num_processes: 4
    Bad `job.json`:

        {"ddp_kwargs": {"comm_hook": "power_sgd", "comm_state_option": {"start_powerSGD_iter": 1}}}

    Good `acc.yaml` with `--context job.json`:

        distributed_type: MULTI_GPU
        num_processes: 4
    Good `job.json`:

        {"ddp_kwargs": {"comm_hook": "power_sgd", "comm_state_option": {"start_powerSGD_iter": 1000}}}
    """
    for call in program.module.called("accelerate", "DistributedDataParallelKwargs"):
        hook, wrapper = (_hook(program, call, name) for name in ("comm_hook", "comm_wrapper"))
        at = program.at(call.node)
        if hook == "bf16" and program.device == "cpu":
            yield Hit("comm_hook bf16 on CPUs: gloo does not reduce it; use fp16 or none", at, "comm_hook")
        if "power" in wrapper or (wrapper not in ("", "no") and hook == "no"):
            why = "wraps a hook, and there is none" if hook == "no" else "is no wrapper"
            yield Hit(f"comm_wrapper {wrapper} {why}: nothing is done", at, "comm_wrapper", severity=Severity.WARNING, fails_at="never")
        if "power_sgd" in hook:
            yield from _power(program, call)
        if hook not in ("", "no") and program.sharding in SHARDED:
            message = f"comm_hook {hook} under {NAMES[program.sharding]}: only DDP has hooks, and the handler is unused"
            yield Hit(message, at, "comm_hook", severity=Severity.WARNING, fails_at="never")
        if program.given(call, "static_graph") is True and (accumulation(program) or 1) > 1 and program.sharding not in SHARDED:
            yield Hit(f"static_graph with gradient accumulation over {accumulation(program)} steps: DDP stops", at, "static_graph")
    for call in program.module.called("torch", "DistributedDataParallel"):
        if program.given(call, "static_graph") is True and any(c.last == "no_sync" for c in program.calls):
            yield Hit("static_graph, and no_sync() in the loop: DDP stops", program.at(call.node), "static_graph")


def _hook(program: Program, call: Call, name: str) -> str:
    value = program.given(call, name)
    if value is None:
        return "no"
    return text_of(value).lower() if isinstance(value, (str, Symbol)) else ""


def _power(program: Program, call: Call) -> Iterator[Hit]:
    options, at = program.given(call, "comm_state_option"), program.at(call.node)
    if not isinstance(options, Mapping):
        return
    for key in options:
        if key not in _STATE:
            near = {"matrix_rank": "matrix_approximation_rank", "rank": "matrix_approximation_rank"}.get(str(key), "")
            yield Hit(f"comm_state_option has no {key}{f': it is {near}' if near else ''}", at, "comm_state_option")
    start = options.get("start_powerSGD_iter")
    loose = options.get("use_error_feedback") is False and options.get("warm_start") is False
    if isinstance(start, int) and start <= 1 and not loose:
        yield Hit(f"start_powerSGD_iter {start}: 2 is the least with error feedback or a warm start", at, "comm_state_option")
