# check/rules/source_accelerate.py without its comments
from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from trainwright.check.facts import SCHEDULER
from trainwright.check.source.module import Call
from trainwright.check.source.program import Program, text_of
from trainwright.check.source.values import UNKNOWN, Symbol
from trainwright.check.subject import AccelerateConfig
from trainwright.report import Severity
from trainwright.rules import Hit, rule

SHARDED = ("fsdp1", "fsdp2", "deepspeed")
NAMES = {"fsdp1": "FSDP", "fsdp2": "FSDP", "deepspeed": "DeepSpeed", "megatron": "Megatron-LM", "tpu": "XLA", "ddp": "DDP"}
_KIND = {"FullyShardedDataParallelPlugin": "fsdp", "DeepSpeedPlugin": "deepspeed", "MegatronLMPlugin": "megatron"}
_FIELDS: dict[str, dict[str, str]] = {
    "FullyShardedDataParallelPlugin": {
        "fsdp_version": "fsdp_version",
        "cpu_offload": "fsdp_offload_params",
        "transformer_cls_names_to_wrap": "fsdp_transformer_layer_cls_to_wrap",
    },
    "DeepSpeedPlugin": {"hf_ds_config": "deepspeed_config_file"},
    "TorchDynamoPlugin": {"fullgraph": "dynamo_use_fullgraph", "dynamic": "dynamo_use_dynamic"},
}
_PREFIX = {
    "FullyShardedDataParallelPlugin": "fsdp_",
    "DeepSpeedPlugin": "",
    "MegatronLMPlugin": "megatron_lm_",
    "ParallelismConfig": "parallelism_config_",
    "TorchDynamoPlugin": "dynamo_",
}


@rule(
    "SRC017",
    Severity.WARNING,
    Program,
    fails_at="never",
    checked="source",
    source="accelerate-1.15.0-dataclasses",
    covers=("PLUGIN-MERGE", "MP-PREC-ORDER"),
)
def code_against_config_file(program: Program) -> Iterator[Hit]:
    """The code says otherwise than the config file, or leaves to the file what it seems to fix.

    In each worker a constructor's argument stands over the environment, which the launcher fills from the file, field by field. So
    `Accelerator(mixed_precision="fp16")` makes the file's bf16 void, a plugin's `sharding_strategy` the file's; and every field that a
    plugin leaves out still comes from the file (information: a plugin alone does not make a run reproducible). With DeepSpeed the
    precision of its JSON decides, and another one in the code stops the run.

    Bad `job.sh`:

        accelerate launch --config_file acc.yaml train.py
    Bad `acc.yaml`:

        distributed_type: FSDP
        num_processes: 4
        mixed_precision: bf16
        fsdp_config: {fsdp_version: 2, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, fsdp_transformer_layer_cls_to_wrap: GPT2Block}
    Bad `train.py`:

        from accelerate import Accelerator

        accelerator = Accelerator(mixed_precision="fp16")

    Good `job.sh`:

        accelerate launch --config_file acc.yaml train.py
    Good `acc.yaml`:

        distributed_type: FSDP
        num_processes: 4
        mixed_precision: bf16
        fsdp_config: {fsdp_version: 2, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, fsdp_transformer_layer_cls_to_wrap: GPT2Block}
    Good `train.py`:

        from accelerate import Accelerator

        accelerator = Accelerator()
    """
    config = program.config
    if config is None:
        return
    for call in program.module.called("accelerate", "Accelerator", *_PREFIX):
        if call.place.guards:
            continue
        if call.last == "Accelerator":
            yield from _precision(program, config, call)
        elif call.last in _KIND and _KIND[call.last] != config.kind:
            yield from _other_kind(program, config, call)
        else:
            yield from _fields(program, config, call)


def _precision(program: Program, config: AccelerateConfig, call: Call) -> Iterator[Hit]:
    given = program.given(call, "mixed_precision")
    if not isinstance(given, str):
        return
    at = program.at(call.argument("mixed_precision") or call.node)
    for deepspeed in program.job.deepspeed if config.kind == "deepspeed" else ():
        other = {"bf16": "fp16", "fp16": "bf16"}.get(given, "")
        if other and deepspeed.get(other, "enabled") is True:
            message = f"mixed_precision {given} in the code, {other} in {deepspeed.document.path}: Accelerator() stops"
            yield Hit(message, at, "mixed_precision", severity=Severity.ERROR, fails_at="plugin")
            return
    written = str(config.value("mixed_precision")).lower()
    if config.written("mixed_precision") and written != given and config.kind != "deepspeed":
        message = f"mixed_precision {given} in the code, {written} in {config.document.path}: the code's counts"
        yield Hit(message, at, "mixed_precision")


def _other_kind(program: Program, config: AccelerateConfig, call: Call) -> Iterator[Hit]:
    kind = config.file.kind
    if config.kind in ("fsdp", "deepspeed", "megatron"):
        message = f"{call.last}() in the code, and {config.document.path} starts {kind}: only one of them is run"
        yield Hit(message, program.at(call.node), call.last)
    elif config.kind in ("multi_gpu", "simple") and call.last != "MegatronLMPlugin":
        message = f"{call.last}() in the code turns it on, though {config.document.path} says {kind}"
        yield Hit(message, program.at(call.node), call.last, severity=Severity.INFO)


def _fields(program: Program, config: AccelerateConfig, call: Call) -> Iterator[Hit]:
    given = set()
    for name, node in call.keywords.items():
        argument = _FIELDS.get(call.last, {}).get(name) or f"{_PREFIX[call.last]}{name}"
        given.add(argument)
        value = program.given(call, name)
        if value is None or value is UNKNOWN or not config.written(argument):
            continue
        mine, theirs = _same(value), _same(config.value(argument))
        if mine and theirs and mine != theirs:
            message = f"{name} {text_of(value)} in the code, {config.key(argument)} {config.value(argument)} in {config.document.path}"
            yield Hit(f"{message}: the code's counts", program.at(node), name)
    prefix = _PREFIX[call.last]
    blocks = {"fsdp_config", "deepspeed_config", "megatron_lm_config", "parallelism_config", "dynamo_config"}
    rest = [
        s.flag
        for s in config.file.settings
        if len(s.path) > 1 and s.path[0] in blocks and _belongs(s.flag, prefix, call) and s.flag not in given
    ]
    if rest and not call.spread:
        message = f"{call.last}() leaves {', '.join(rest[:6])}{' ...' if len(rest) > 6 else ''} to {config.document.path}"
        yield Hit(message, program.at(call.node), call.last, severity=Severity.INFO, data={"fields": rest})


def _belongs(flag: str, prefix: str, call: Call) -> bool:
    return flag.startswith(prefix) if prefix else not flag.startswith(tuple(p for p in _PREFIX.values() if p))


def _same(value: Any) -> str:
    if isinstance(value, (list, dict)):
        return ""
    text = (value.last if isinstance(value, Symbol) else str(value)).upper()
    strategies = {"1": "FULL_SHARD", "2": "SHARD_GRAD_OP", "3": "NO_SHARD", "4": "HYBRID_SHARD", "5": "HYBRID_SHARD_ZERO2"}
    text = {"YES": "TRUE", "NO": "FALSE"}.get(text, text)
    try:
        return str(float(text)) if text not in strategies else text
    except ValueError:
        return text


@rule(
    "SRC018",
    Severity.ERROR,
    Program,
    fails_at="first step",
    checked="source",
    source="accelerate-1.15.0-accelerator",
    covers=("CLIP-VALUE", "FSDP2-PREPARE"),
)
def call_the_strategy_refuses(program: Program) -> Iterator[Hit]:
    """A method of Accelerator that the job's strategy does not take.

    `clip_grad_value_` stops under FSDP and DeepSpeed (`clip_grad_norm_` is there). Under FSDP2 a model and its optimizer go through one
    `prepare()` together, one model only, and `prepare_model()` alone stops.

    Bad `acc.yaml` with `--context job.json`:

        distributed_type: DEEPSPEED
        num_processes: 4
        deepspeed_config: {zero_stage: 2, gradient_clipping: 1.0}
    Bad `job.json`:

        {"call": "accelerator.clip_grad_value_(model.parameters(), 1.0)"}

    Good `acc.yaml` with `--context job.json`:

        distributed_type: DEEPSPEED
        num_processes: 4
        deepspeed_config: {zero_stage: 2, gradient_clipping: 1.0}
    Good `job.json`:

        {"call": "accelerator.clip_grad_norm_(model.parameters(), 1.0)"}
    """
    sharding = program.sharding
    for call in program.methods("clip_grad_value_"):
        if sharding in SHARDED:
            yield Hit(
                f"clip_grad_value_() under {NAMES[sharding]}: Accelerate stops; clip_grad_norm_() is there",
                program.at(call.node),
                "clip_grad_value_",
            )
    if sharding == "fsdp2" and not program.module.called("torch", "fully_shard"):
        for call in program.methods("prepare", "prepare_model"):
            why = (
                "it stops: a model goes through prepare(), with its optimizer" if call.last == "prepare_model" else _prepared(program, call)
            )
            if why:
                yield Hit(f"{call.last}() under FSDP2: {why}", program.at(call.node), call.last)


_MODEL = re.compile(r"(^|_)(model|net|unet|transformer|policy|encoder|decoder|discriminator|generator|critic|actor)\d*$", re.IGNORECASE)
_OPTIMIZER = re.compile(r"optim|(^|_)opt(_|\d*$)", re.IGNORECASE)
_OTHER = re.compile(r"load|sched|data|(^|_)dl(_|$)|train_set|iter|(^|_)lr(_|$)", re.IGNORECASE)


def _prepared(program: Program, call: Call) -> str:
    kinds = [_kind(program, node) for node in call.node.args]
    if call.spread or call.node.keywords or "" in kinds:
        return ""
    if kinds.count("model") > 1:
        return "only one model is taken in one call"
    if "model" in kinds and "optimizer" not in kinds:
        return "the optimizer has to come in the same call as the model"
    return "the model has to come in the same call as its optimizer" if "optimizer" in kinds and "model" not in kinds else ""


def _kind(program: Program, node: ast.expr) -> str:
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    made = {program.module.name_of(v.func) for v in program.module.bindings.get(name, []) if isinstance(v, ast.Call)}
    if any(m.startswith("torch.optim.lr_scheduler") or m.endswith("DataLoader") for m in made) or _OTHER.search(name):
        return "other"
    if any(m.startswith("torch.optim.") or m.endswith("DummyOptim") for m in made) or _OPTIMIZER.search(name):
        return "optimizer"
    return "model" if any(m.endswith(".from_pretrained") and "Tokenizer" not in m for m in made) or _MODEL.search(name) else ""


@rule(
    "SRC021",
    Severity.ERROR,
    Program,
    fails_at="plugin",
    checked="source",
    source="accelerate-1.15.0-accelerator",
    covers=("MEG-SCHED", "TPU-MAINFN", "PAR-CP-ATTN", "PAR-CP-MASK", "ADS-SCHED-BOTH"),
)
def code_the_launched_strategy_refuses(program: Program) -> Iterator[Hit]:
    """Code that does not fit the strategy its config file starts: DeepSpeed, Megatron-LM, TPUs, context parallelism.

    A scheduler of the code beside one in the DeepSpeed file stops prepare() (a DummyScheduler stands for the file's). Megatron-LM
    makes its own scheduler (MegatronLMDummyScheduler stands for it) and knows Adam and SGD. On a TPU the launcher imports the
    script and calls its `main_training_function`. Context parallelism in the Trainer takes SDPA attention and causal masks alone.

    Bad `job.sh`:

        accelerate launch --config_file acc.yaml train.py
    Bad `acc.yaml`:

        distributed_type: XLA
        num_processes: 8
        main_training_function: train
    Bad `train.py`:

        from accelerate import Accelerator

        def main():
            accelerator = Accelerator()

    Good `job.sh`:

        accelerate launch --config_file acc.yaml train.py
    Good `acc.yaml`:

        distributed_type: XLA
        num_processes: 8
        main_training_function: main
    Good `train.py`:

        from accelerate import Accelerator

        def main():
            accelerator = Accelerator()
    """
    config = program.config
    if program.sharding == "megatron":
        yield from _megatron(program)
    for deepspeed in program.job.deepspeed if program.sharding == "deepspeed" else ():
        if deepspeed.has("scheduler") and not SCHEDULER.search(program.context.call or ""):
            for node, made in _schedulers(program):
                message = f"{made}() in the code, and a scheduler in {deepspeed.document.path}: prepare() stops; use a DummyScheduler"
                yield Hit(message, program.at(node), "scheduler", fails_at="first step")
    if config is not None and config.kind == "tpu" and not config.true("tpu_use_cluster") and program.stand_in is None:
        wanted = str(config.value("main_training_function") or "main")
        if wanted not in {*program.module.functions, *program.module.names, *program.module.bindings}:
            message = f"main_training_function {wanted}: {program.source.path} has no such function, and the launcher stops"
            yield Hit(message, config.at("main_training_function"), "main_training_function", fails_at="launcher")
    yield from _context_parallel(program)


def _prepared_objects(program: Program) -> Iterator[tuple[ast.expr, str]]:
    for call in program.methods("prepare"):
        for node in call.node.args:
            for value in program.module.bindings.get(node.id if isinstance(node, ast.Name) else "", []):
                if isinstance(value, ast.Call) and not (isinstance(value.func, ast.Attribute) and value.func.attr == "prepare"):
                    yield node, program.module.name_of(value.func)


def _schedulers(program: Program) -> Iterator[tuple[ast.expr, str]]:
    for node, made in _prepared_objects(program):
        last = made.rpartition(".")[2]
        if made.startswith("torch.optim.lr_scheduler.") or (made.startswith(("transformers.", "diffusers.")) and "sched" in last):
            yield node, last


def _megatron(program: Program) -> Iterator[Hit]:
    for node, last in _schedulers(program):
        yield Hit(f"{last}() under Megatron-LM: hand prepare() a MegatronLMDummyScheduler", program.at(node), last)
    if program.config is not None and program.config.context.optimizer:
        return
    for node, made in _prepared_objects(program):
        last = made.rpartition(".")[2]
        if made.startswith("torch.optim.") and "lr_scheduler" not in made and not re.search("adam|sgd", last, re.IGNORECASE):
            yield Hit(f"{last}() under Megatron-LM: it knows Adam and SGD", program.at(node), last)


def _context_parallel(program: Program) -> Iterator[Hit]:
    config = program.config
    sizes = config.launch.sizes if config is not None else None
    size = sizes["cp"] if sizes else 1
    for call in program.module.called("accelerate", "ParallelismConfig"):
        value = program.given(call, "cp_size")
        size = value if type(value) is int else size
    if size <= 1 or program.context.trainer is False:
        return
    arguments = program.context.training_args
    found: list[tuple[Any, Call | None]] = [(arguments.get("attn_implementation"), None)]
    found += [(program.value(call.argument("attn_implementation")), call) for call in program.calls if call.last == "from_pretrained"]
    for value, loads in found:
        if isinstance(value, str) and value != "sdpa":
            at = program.at(loads.node if loads else program.module.tree)
            yield Hit(
                f"attn_implementation {value} with cp_size {size}: context parallelism takes sdpa alone",
                at,
                "attn_implementation",
                fails_at="first step",
            )
    packed = [c for c in program.module.called("trl", "SFTConfig") if program.value(c.argument("packing")) is True]
    if packed or arguments.get("packing") is True:
        at = program.at(packed[0].node) if packed else program.at(program.module.tree)
        yield Hit(f"packing with cp_size {size}: context parallelism takes causal masks alone", at, "packing", fails_at="first step")


@rule(
    "SRC022",
    Severity.ERROR,
    Program,
    fails_at="first step",
    checked="source",
    source="accelerate-1.15.0-accelerator",
    covers=("BNB-DEVICEMAP",),
)
def model_spread_by_device_map(program: Program) -> Iterator[Hit]:
    """A model is spread over all devices of a machine by its device_map, and trained by several ranks, of which each wants it whole.

    With `device_map="auto"` every rank puts parts of the model on every device, and prepare() stops ("You can't train a model that has
    been loaded with `device_map='auto'` in any distributed mode"). Give each rank its own device, or leave `device_map` out. Under
    one rank, and without training, it is right.

    Bad `acc.yaml` with `--context job.json`:

        distributed_type: MULTI_GPU
        num_processes: 4
    Bad `job.json`:

        {"device_map": "auto"}

    Good `acc.yaml` with `--context job.json`:

        distributed_type: MULTI_GPU
        num_processes: 4
    Good `job.json`:

        {"device_map": "cpu"}
    """
    config, placed = program.config, program.context.device_map
    ranks = program.context.world_size or (config.whole("num_processes") if config is not None else None)
    stage3 = any(deepspeed.stage == 3 for deepspeed in program.job.deepspeed)
    stage3 = stage3 or (config is not None and config.kind == "deepspeed" and config.whole("zero_stage") == 3)
    if placed not in ("auto", "balanced", "balanced_low_0", "sequential") or not ranks or ranks < 2 or stage3:
        return
    loads = [c for c in program.calls if c.last == "from_pretrained" and program.value(c.argument("device_map")) == placed]
    trains = program.methods("prepare", "prepare_model") or program.context.trainer
    if program.stand_in is not None or (loads and trains):
        at = program.at(loads[0].node if loads else program.module.tree)
        yield Hit(f"device_map {placed} with {ranks} ranks: each spreads its model over all devices, and prepare() stops", at, "device_map")
