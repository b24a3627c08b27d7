# helpers/trainwright/check/rules/fsdp.py without its comments
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainwright.check.facts import table
from trainwright.check.rules.accelerate_sharding import of_bitsandbytes
from trainwright.check.subject import FsdpBlock
from trainwright.emit.accelerate_file import nearest, shown
from trainwright.report import Fix, Severity
from trainwright.rules import Hit, rule

_POLICIES = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
_STATE_DICTS = ("FULL_STATE_DICT", "SHARDED_STATE_DICT", "LOCAL_STATE_DICT")
_TRUTH = ("y", "yes", "t", "true", "on", "1", "n", "no", "f", "false", "off", "0")
_SWITCHES = ("cpu_ram_efficient_loading", "activation_checkpointing", "use_orig_params", "sync_module_states", "limit_all_gathers")
_SHARED = ("version", "min_num_params", "transformer_layer_cls_to_wrap", "auto_wrap_policy", "state_dict_type", "reshard_after_forward")
READ: dict[str, tuple[str, ...]] = {
    "transformers": (
        *_SHARED,
        *_SWITCHES,
        "cpu_offload",
        "forward_prefetch",
        "backward_prefetch",
        "xla",
        "xla_fsdp_v2",
        "xla_fsdp_grad_ckpt",
        "xla_fsdp_settings",
    ),
    "axolotl": (
        *_SHARED,
        *_SWITCHES[:-1],
        "offload_params",
        "cpu_offload_pin_memory",
        "final_state_dict_type",
        "mixed_precision_policy",
    ),
    "verl": (
        "wrap_policy",
        "param_offload",
        "optimizer_offload",
        "offload_policy",
        "reshard_after_forward",
        "fsdp_size",
        "forward_prefetch",
        "model_dtype",
        "use_orig_params",
        "full_determinism",
        "mixed_precision",
        "ulysses_sequence_parallel_size",
        "entropy_checkpointing",
        "use_torch_compile",
        "strategy",
    ),
}
_HARMLESS = {
    "sharding_strategy": ("full_shard", "1"),
    "limit_all_gathers": ("true",),
    "backward_prefetch": ("none", "no_prefetch", "backward_pre"),
    "backward_prefetch_policy": ("none", "no_prefetch", "backward_pre"),
    "forward_prefetch": ("false",),
    "offload_params": ("false",),
    "cpu_offload_pin_memory": ("true",),
}


def hit(block: FsdpBlock, name: str, message: str, **more: Any) -> Hit:
    """A finding at a key of the block, named as it is written."""
    return Hit(f"{block.key(name)} {message}", block.at(name), block.key(name), **more)


@rule(
    "FSD001",
    Severity.ERROR,
    FsdpBlock,
    fails_at="plugin",
    checked="run",
    source="transformers-5.23.0-trainer",
    covers=("FSDP-POLICY-VALUE", "FSDP-ENUM-KEYERROR", "FSDP-VERSION-RANGE", "FSDP-LOCALSD-V2", "FSDP-RESHARD-V2-STR", "FSDP-RAM-SYNC"),
)
def fsdp_block_refused(block: FsdpBlock) -> Iterator[Hit]:
    """A value of an FSDP block that its reader, or the plugin that it makes, refuses."""
    if block.reader == "verl":
        return
    given = block.values
    if block.version is None:
        yield hit(block, "version", f"{shown(given.get('version'))} is neither 1 nor 2", fix=Fix({block.key("version"): 2}))
        return
    for name, choices in (("auto_wrap_policy", _POLICIES), ("state_dict_type", _STATE_DICTS)):
        value = given.get(name)
        if value is not None and (not isinstance(value, str) or value.upper() not in choices):
            near = nearest(value, choices, 0.5)
            message = f"{shown(value)} is not one of {', '.join(choices)}"
            yield hit(block, name, message, fix=Fix({block.key(name): near}) if near else None)
    if block.version == 2 and str(given.get("state_dict_type")).upper() == "LOCAL_STATE_DICT":
        fix = Fix({block.key("state_dict_type"): "SHARDED_STATE_DICT"})
        yield hit(block, "state_dict_type", "LOCAL_STATE_DICT: FSDP2 has none", fix=fix)
    switches = [*_SWITCHES, *(["reshard_after_forward"] if block.version == 2 else [])]
    for name in switches:
        value = given.get(name)
        if value is not None and str(value).lower() not in _TRUTH and name in READ[block.reader]:
            yield hit(block, name, f"{shown(value)} is no word of truth", fix=Fix({block.key(name): True}))
    if block.version == 1 and _true(given.get("cpu_ram_efficient_loading")) and _false(given.get("sync_module_states")):
        fix = Fix({block.key("sync_module_states"): True})
        yield hit(block, "sync_module_states", "has to be true with cpu_ram_efficient_loading", fix=fix)


def _true(value: Any) -> bool:
    return str(value).lower() in _TRUTH[:6]


def _false(value: Any) -> bool:
    return value is not None and str(value).lower() in _TRUTH[6:]


@rule(
    "FSD002",
    Severity.WARNING,
    FsdpBlock,
    fails_at="never",
    checked="source",
    source="transformers-5.23.0-trainer",
    covers=("FSDP-OLDKEY-PREFETCH", "FSDP-OLDKEY-CLS", "FSDP-STRATEGY-V2"),
)
def key_of_the_block_unread(block: FsdpBlock) -> Iterator[Hit]:
    """A key of an FSDP block that its reader never asks for."""
    for name, value in block.values.items():
        if name in READ[block.reader] or name.startswith("_"):
            continue
        near = nearest(name, READ[block.reader], 0.75)
        if block.reader == "verl" and near is None:
            continue
        harmless = str(value).lower() in _HARMLESS.get(name, ()) or value is None
        meant = {"offload_params": "cpu_offload", "sharding_strategy": "reshard_after_forward"}.get(name, near)
        fix = Fix({block.key(name): None, **({".".join(map(str, (*block.prefix, meant))): value} if meant and not harmless else {})})
        message = f"is not read by {block.reader}" + (f"; did you mean {meant}?" if meant and not harmless else "")
        yield hit(block, name, message, fix=fix, severity=Severity.INFO if harmless else None)


@rule(
    "FSD003",
    Severity.ERROR,
    FsdpBlock,
    fails_at="first step",
    checked="source",
    source="transformers-5.23.0-trainer",
    covers=("FSDP-CLS-WRONG", "FSDP-CLS-EMPTY", "FSDP-AC-BOTH", "FSDP-SAVEONLY-SHARDED", "FSDP-8BITOPT", "FSDP-CLS-LIST"),
)
def block_against_its_job(block: FsdpBlock) -> Iterator[Hit]:
    """An FSDP block against the model and the other arguments of the job."""
    if block.reader == "verl":
        yield from _verl(block)
        return
    yield from _classes(block)
    given, beside = block.values, block.context.training_args or block.document.value
    if _true(given.get("activation_checkpointing")) and beside.get("gradient_checkpointing"):
        own = block.reader == "transformers"
        message = "with gradient_checkpointing: " + (
            "the Trainer stops, one of them is wanted" if own else "each layer is computed again twice"
        )
        more = {} if own else {"severity": Severity.WARNING}
        yield hit(block, "activation_checkpointing", message, fix=Fix({"gradient_checkpointing": False}), fails_at="engine start", **more)
    if beside.get("save_only_model") is True and str(given.get("state_dict_type")).upper() == "SHARDED_STATE_DICT":
        fix = Fix({block.key("state_dict_type"): "FULL_STATE_DICT"})
        yield hit(block, "state_dict_type", "SHARDED_STATE_DICT with save_only_model: the Trainer stops", fix=fix, fails_at="engine start")
    optimizer = str(beside.get("optim") or beside.get("optimizer") or "").lower()
    offload = _true(given.get("offload_params")) or _true(given.get("cpu_offload"))
    if of_bitsandbytes(optimizer) and (block.version == 2 or offload):
        yield hit(block, "version", f"{optimizer} does not work under {'FSDP2' if block.version == 2 else 'FSDP with offload'}")


def _classes(block: FsdpBlock) -> Iterator[Hit]:
    from trainwright.check.rules.accelerate_fsdp import family_of, misspelt, of_another_family

    name, value = "transformer_layer_cls_to_wrap", block.values.get("transformer_layer_cls_to_wrap")
    if value is None:
        return
    if isinstance(value, list) and block.reader == "axolotl":
        yield hit(block, name, "is a list: axolotl takes one text", fix=Fix({block.key(name): ",".join(map(str, value))}))
        return
    names = [str(item) for item in value] if isinstance(value, list) else str(value).split(",")
    if "" in names:
        yield hit(block, name, "is empty: a class without a name is looked for", fix=Fix({block.key(name): None}))
    family = family_of(block.context.model_class or "")
    for each in names if family else ():
        if of_another_family(each, family) or misspelt(each, family):
            fix = Fix({block.key(name): ",".join(table("arguments")["layers"][family])})
            yield hit(block, name, f"{each} is no layer of {block.context.model_class}", fix=fix)


def _verl(block: FsdpBlock) -> Iterator[Hit]:
    size, document = block.values.get("size"), block.document
    counts = [document.get("trainer", "n_gpus_per_node"), document.get("trainer", "nnodes")]
    if type(size) is not int or size == -1 or not all(type(count) is int and count > 0 for count in counts):
        return
    ranks = counts[0] * counts[1]
    if size < 1 or ranks % size:
        yield hit(block, "size", f"{size} does not divide {counts[1]} x {counts[0]} = {ranks} ranks", fix=Fix({block.key("size"): -1}))
