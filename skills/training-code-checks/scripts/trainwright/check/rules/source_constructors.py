# check/rules/source_constructors.py without its comments
from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Iterator
from typing import Any

from trainwright.check.facts import table
from trainwright.check.source.module import Call
from trainwright.check.source.program import Program, text_of
from trainwright.check.source.values import UNKNOWN, Symbol
from trainwright.report import Severity
from trainwright.rules import Hit, rule

MOVED: dict[str, dict[str, tuple[str, str]]] = {
    "Accelerator": {
        "dispatch_batches": ("1.0", "dataloader_config=DataLoaderConfiguration(dispatch_batches=...)"),
        "even_batches": ("1.0", "dataloader_config=DataLoaderConfiguration(even_batches=...)"),
        "use_seedable_sampler": ("1.0", "dataloader_config=DataLoaderConfiguration(use_seedable_sampler=...)"),
        "logging_dir": ("0.21", "project_dir, or ProjectConfiguration(logging_dir=...)"),
        "fp16": ("0.21", "mixed_precision='fp16'"),
        "deepspeed_config": ("0.21", "deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=...)"),
    },
    "FullyShardedDataParallelPlugin": {"ignored_parameters": ("0.27", "ignored_modules")},
    "MegatronLMPlugin": {"recompute_activation": ("0.27", "recompute_activations")},
    "TrainingArguments": {
        "evaluation_strategy": ("4.46", "eval_strategy"),
        "per_gpu_train_batch_size": ("5.0", "per_device_train_batch_size"),
        "per_gpu_eval_batch_size": ("5.0", "per_device_eval_batch_size"),
        "no_cuda": ("5.0", "use_cpu"),
    },
}


@rule("SRC015", Severity.ERROR, Program, fails_at="plugin", checked="run", source="accelerate-1.15.0-dataclasses")
def argument_the_class_lacks(program: Program) -> Iterator[Hit]:
    """A keyword that a class of Accelerate's, torch's wrappers or TrainingArguments does not have: TypeError on every rank.

    Arguments move between releases: `dispatch_batches` and its like from Accelerator to DataLoaderConfiguration in 1.0, `logging_dir` to
    ProjectConfiguration, `evaluation_strategy` of TrainingArguments became `eval_strategy`. Judged by the release of the job where it
    is known (`--accelerate`, `--transformers`, `--torch`), else by the newest.

    Bad `train.py`:

        from accelerate import Accelerator

        accelerator = Accelerator(mixed_precision="bf16", dispatch_batches=False)

    Good `train.py`:

        from accelerate import Accelerator, DataLoaderConfiguration

        accelerator = Accelerator(mixed_precision="bf16", dataloader_config=DataLoaderConfiguration(dispatch_batches=False))
    """
    for call in program.calls:
        package = call.name.split(".")[0]
        found = _parameters(program, package, call)
        if found is None:
            continue
        names, release = found
        for argument, node in call.keywords.items():
            since, instead = MOVED.get(call.last, {}).get(argument, ("", ""))
            if argument in names or (since and program.context.older(package, since)):
                continue
            near = difflib.get_close_matches(argument, names, 1, 0.8)
            hint = f"; use {instead}" if instead else f"; it has {near[0]}" if near else ""
            yield Hit(f"{call.last}() of {package} {release} has no {argument}{hint}", program.at(node), argument)


def _parameters(program: Program, package: str, call: Call) -> tuple[list[str], str] | None:
    if package == "transformers" and call.of("transformers", "TrainingArguments"):
        known, version = [*table("arguments")["arguments"]], str(table("arguments")["version"])
        if "transformers" in program.context.versions:
            moved = MOVED["TrainingArguments"]
            return [n for n in [*known, *call.keywords] if n not in moved], program.context.versions["transformers"]
        return known, version
    rows = table("constructors").get(package)
    if rows is None or call.last not in rows["parameters"] or not call.of(package, call.last):
        return None
    if program.context.older(package, rows["version"]):
        moved = MOVED.get(call.last, {})
        return [n for n in call.keywords if n not in moved], program.context.versions[package]
    names = list(rows["parameters"][call.last])
    return None if "**" in names else (names, str(rows["version"]))


@rule(
    "SRC016",
    Severity.ERROR,
    Program,
    fails_at="plugin",
    checked="run",
    source="accelerate-1.15.0-dataclasses",
    covers=("BNB-DTYPE-NAME", "FSDP-MP-DICT"),
)
def value_the_class_refuses(program: Program) -> Iterator[Hit]:
    """A literal argument at which a plugin, a handler or the Accelerator itself stops.

    Names of enumerations (`sharding_strategy="FULL"`, `mixed_precision="fp32"`), text where a torch dtype is wanted,
    `bnb_4bit_compute_dtype` by its long name (Accelerate wants bf16, Transformers bfloat16), mixed-precision policies with the keys of
    the other FSDP version, sizes of a ParallelismConfig that do not go together, two handlers of one kind, two sources for one setting.

    Bad `train.py`:

        from accelerate.utils import BnbQuantizationConfig

        quantization = BnbQuantizationConfig(load_in_4bit=True, bnb_4bit_compute_dtype="bfloat16")

    Good `train.py`:

        from accelerate.utils import BnbQuantizationConfig

        quantization = BnbQuantizationConfig(load_in_4bit=True, bnb_4bit_compute_dtype="bf16")
    """
    for call in program.calls:
        if not call.name.startswith("accelerate.") or "()" in call.name:
            continue
        for argument, allowed in _CHOICES.get(call.last, {}).items():
            yield from _choice(program, call, argument, allowed)
        if call.last in _JUDGES:
            for argument, message in _JUDGES[call.last](program, call):
                yield Hit(message, program.at(call.argument(argument) or call.node), argument)


_BACKENDS = (
    "no",
    "eager",
    "aot_eager",
    "inductor",
    "aot_ts_nvfuser",
    "nvprims_nvfuser",
    "cudagraphs",
    "ofi",
    "fx2trt",
    "onnxrt",
    "tensorrt",
)
_DYNAMO = (*_BACKENDS, "aot_torchxla_trace_once", "torchxla_trace_once", "tvm", "hpu_backend", "neuron")
_CHOICES: dict[str, dict[str, tuple[Any, ...]]] = {
    "Accelerator": {"mixed_precision": ("no", "fp8", "fp16", "bf16"), "dynamo_backend": _DYNAMO},
    "TorchDynamoPlugin": {"backend": _DYNAMO},
    "FullyShardedDataParallelPlugin": {
        "backward_prefetch": ("backward_pre", "backward_post", "no_prefetch"),
        "state_dict_type": ("full_state_dict", "local_state_dict", "sharded_state_dict"),
        "auto_wrap_policy": ("transformer_based_wrap", "size_based_wrap", "no_wrap"),
        "sharding_strategy": ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2", "1", "2", "3", "4", "5"),
    },
    "BnbQuantizationConfig": {
        "bnb_4bit_quant_type": ("fp4", "nf4"),
        "bnb_4bit_compute_dtype": ("fp32", "fp16", "bf16"),
        "torch_dtype": ("fp32", "fp16", "bf16"),
    },
    "FP8RecipeKwargs": {"backend": ("te", "msamp")},
    "TERecipeKwargs": {"fp8_format": ("e4m3", "e5m2", "hybrid"), "amax_compute_algo": ("max", "most_recent")},
    "MSAMPRecipeKwargs": {"opt_level": ("O1", "O2")},
    "TorchContextParallelConfig": {"cp_comm_strategy": ("allgather", "alltoall")},
    "ParallelismConfig": {"cp_backend": ("torch",), "sp_backend": ("deepspeed",)},
    "DeepSpeedSequenceParallelConfig": {"sp_attn_implementation": ("sdpa", "flash_attention_2", "flash_attention_3")},
}
_ANY_CASE = (
    "dynamo_backend",
    "backend",
    "backward_prefetch",
    "state_dict_type",
    "auto_wrap_policy",
    "sharding_strategy",
    "fp8_format",
    "amax_compute_algo",
)


def _choice(program: Program, call: Call, argument: str, allowed: tuple[Any, ...]) -> Iterator[Hit]:
    value = program.given(call, argument)
    if not isinstance(value, str) or value == "":
        return
    written = value.lower() if argument in _ANY_CASE else value
    if written not in allowed:
        shown = [name.upper() if argument in _ANY_CASE[2:] else name for name in allowed if not name.isdigit()]
        shown = [*shown[:8], *(["..."] if len(shown) > 8 else [])]
        yield Hit(
            f"{argument} {value!r} is none of {', '.join(shown)}: {call.last}() stops",
            program.at(call.argument(argument) or call.node),
            argument,
        )


_Judged = Iterator[tuple[str, str]]


def _fsdp(program: Program, call: Call) -> _Judged:
    version = program.given(call, "fsdp_version")
    version = version if isinstance(version, int) else int(program.sharding[4]) if program.sharding in ("fsdp1", "fsdp2") else None
    yield from _policy(program, call, version)
    reshard, strategy = program.value(call.argument("reshard_after_forward")), call.argument("sharding_strategy")
    if (
        version == 2
        and isinstance(reshard, str)
        and reshard.lower() not in ("true", "false", "yes", "no", "1", "0", "y", "n", "t", "f", "on", "off")
    ):
        yield "reshard_after_forward", f"reshard_after_forward {reshard!r}: FSDP2 takes True or False"
    elif version == 1 and isinstance(reshard, bool):
        yield "reshard_after_forward", f"reshard_after_forward {reshard} is FSDP2's: with version 1 it names a sharding strategy"
    if version == 2 and strategy is not None and call.argument("reshard_after_forward") is None and program.value(strategy) is not None:
        yield "sharding_strategy", "sharding_strategy is FSDP1's: with version 2 give reshard_after_forward True or False"
    if version == 2 and program.value(call.argument("forward_prefetch")) is True:
        yield "forward_prefetch", "forward_prefetch is not there in FSDP2"
    if version == 2 and text_of(program.value(call.argument("state_dict_type"))).upper() == "LOCAL_STATE_DICT":
        yield "state_dict_type", "LOCAL_STATE_DICT is not there in FSDP2"
    offload = program.value(call.argument("activation_checkpointing_offload"))
    if (
        offload is True
        and program.value(call.argument("activation_checkpointing")) in (None, False)
        and call.argument("activation_checkpointing")
    ):
        yield "activation_checkpointing_offload", "activation_checkpointing_offload without activation_checkpointing"


def _policy(program: Program, call: Call, version: int | None) -> _Judged:
    policy = program.value(call.argument("mixed_precision_policy"))
    if isinstance(policy, str) and policy not in ("fp8", "fp16", "bf16", "fp32"):
        yield "mixed_precision_policy", f"mixed_precision_policy {policy!r} is none of fp8, fp16, bf16, fp32"
    elif isinstance(policy, dict) and version is not None:
        wanted = ("param_dtype", "reduce_dtype", "output_dtype" if version == 2 else "buffer_dtype")
        extra, missing = [str(key) for key in policy if key not in wanted], [key for key in wanted if key not in policy]
        dtypes = ("bfloat16", "float16", "float32", "half", "float")
        wrong = [str(k) for k, v in policy.items() if v is not UNKNOWN and not (isinstance(v, Symbol) and v.last in dtypes)]
        if extra or missing:
            held = f"has {', '.join(extra)}" if extra else f"lacks {', '.join(missing)}"
            yield "mixed_precision_policy", f"mixed_precision_policy {held}: FSDP{version} takes {', '.join(wanted)}, all three"
        elif wrong:
            message = f"mixed_precision_policy gives no torch dtype for {', '.join(wrong)}: torch.bfloat16, float16 or float32 are wanted"
            yield "mixed_precision_policy", message


def _quantized(program: Program, call: Call) -> _Judged:
    four, eight = (program.given(call, name) for name in ("load_in_4bit", "load_in_8bit"))
    if four is True and eight is True:
        yield "load_in_8bit", "load_in_4bit and load_in_8bit: one of them"
    elif not call.spread and four in (None, False) and eight in (None, False) and UNKNOWN not in (four, eight):
        yield "load_in_4bit", "neither load_in_4bit nor load_in_8bit: BnbQuantizationConfig stops"
    for name in ("skip_modules", "keep_in_fp32_modules"):
        if isinstance(value := program.value(call.argument(name)), str):
            yield name, f"{name} {value!r} is text: a list is wanted"


def _parallel(program: Program, call: Call) -> _Judged:
    sizes = {axis: program.given(call, f"{axis}_size") for axis in ("dp_replicate", "dp_shard", "tp", "cp", "sp")}
    known = {axis: 1 if size is None else size for axis, size in sizes.items()}
    for axis, size in known.items():
        if isinstance(size, int) and size < 1:
            yield f"{axis}_size", f"{axis}_size {size}: 1 is the least, and nothing is worked out from the rest"
    if not all(type(size) is int for size in known.values()) or call.spread:
        return
    if known["cp"] > 1 and known["sp"] > 1:
        yield "cp_size", "cp_size and sp_size: one of them"
    if (known["tp"] > 1 or known["cp"] > 1) and known["dp_replicate"] > 1 and known["dp_shard"] == 1:
        yield "dp_replicate_size", "tp_size or cp_size above 1 with dp_replicate_size and no dp_shard_size: shard too, or replicate once"
    product, world = known["dp_replicate"] * known["dp_shard"] * known["tp"] * known["cp"] * known["sp"], program.context.world_size
    if world is None and program.config is not None:
        world = program.config.whole("num_processes")
    if world and product != world and min(known.values()) > 0 and known["sp"] == 1:
        yield "dp_shard_size", f"the axes make {product} ranks, and the job has {world}"


def _accelerator(program: Program, call: Call) -> _Judged:
    steps = program.given(call, "gradient_accumulation_steps")
    if isinstance(steps, int) and steps > 1 and call.argument("gradient_accumulation_plugin") is not None:
        yield "gradient_accumulation_steps", "gradient_accumulation_steps beside gradient_accumulation_plugin: one of them"
    if call.argument("dynamo_plugin") is not None and isinstance(program.value(call.argument("dynamo_backend")), (str, Symbol)):
        yield "dynamo_backend", "dynamo_backend beside dynamo_plugin: one of them"
    if call.argument("deepspeed_plugin") is not None and call.argument("deepspeed_plugins") is not None:
        yield "deepspeed_plugin", "deepspeed_plugin beside deepspeed_plugins: one of them"
    kinds = [name.rpartition(".")[2] for name in _handlers(program, call)]
    for kind in sorted({kind for kind in kinds if kinds.count(kind) > 1}):
        yield "kwargs_handlers", f"two {kind} in kwargs_handlers: one of each kind"
    precision = program.given(call, "mixed_precision")
    if precision is None and program.config is not None:
        precision = str(program.config.value("mixed_precision")).lower()
    recipes = [kind for kind in kinds if kind in ("FP8RecipeKwargs", "TERecipeKwargs", "MSAMPRecipeKwargs", "AORecipeKwargs")]
    if recipes and isinstance(precision, str) and precision != "fp8":
        yield "kwargs_handlers", f"{recipes[0]} with mixed_precision {precision}: it has to be fp8"


def _handlers(program: Program, call: Call) -> list[str]:
    node = call.argument("kwargs_handlers")
    if isinstance(node, ast.Name) and len(values := program.module.bindings.get(node.id, [])) == 1:
        node = values[0]
    items = node.elts if isinstance(node, (ast.List, ast.Tuple)) else []
    found = []
    for item in items:
        name = program.module.name_of(item)
        if name.startswith("accelerate.") and "()" in name:
            found.append(name.removesuffix("()"))
    return found


def _scaler(program: Program, call: Call) -> _Judged:
    growth, backoff = program.value(call.argument("growth_factor")), program.value(call.argument("backoff_factor"))
    if isinstance(growth, (int, float)) and growth <= 1:
        yield "growth_factor", f"growth_factor {growth}: it has to be above 1"
    if isinstance(backoff, (int, float)) and backoff >= 1:
        yield "backoff_factor", f"backoff_factor {backoff}: it has to be below 1"


_JUDGES: dict[str, Callable[[Program, Call], _Judged]] = {
    "FullyShardedDataParallelPlugin": _fsdp,
    "BnbQuantizationConfig": _quantized,
    "ParallelismConfig": _parallel,
    "Accelerator": _accelerator,
    "GradScalerKwargs": _scaler,
}
