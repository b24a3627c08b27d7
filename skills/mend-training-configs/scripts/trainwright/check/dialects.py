# check/dialects.py without its comments
from __future__ import annotations

import re
from typing import Any

from trainwright.check.facts import table
from trainwright.document import Document
from trainwright.emit.accelerate_file import table as accelerate_keys

_SIGNS: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...] = (
    (
        "gpt-neox",
        (("pipe_parallel_size",), ("model_parallel_size", "num_layers"), ("pipe-parallel-size",), ("model-parallel-size", "num-layers")),
    ),
    ("nanotron", (("parallelism", "tokens"), ("parallelism", "data_stages"), ("general", "parallelism"))),
    ("verl", (("actor_rollout_ref",),)),
    ("axolotl", (("base_model", "datasets"), ("base_model", "micro_batch_size"), ("base_model", "sequence_len"))),
    (
        "llama-factory",
        (("model_name_or_path", "finetuning_type"), ("model_name_or_path", "stage", "dataset"), ("model_name_or_path", "template")),
    ),
    ("torchtitan", (("training", "parallelism"), ("model", "training", "optimizer"), ("job", "model"), ("parallelism", "metrics"))),
    ("openrlhf", (("pretrain", "zero_stage"), ("actor_num_nodes",), ("ref_num_nodes",))),
    ("megatron", (("tensor_model_parallel_size",), ("tensor-model-parallel-size",), ("pipeline-model-parallel-size",))),
)
_FSDP_KEYS = (
    "fsdp",
    "transformer_layer_cls_to_wrap",
    "fsdp_transformer_layer_cls_to_wrap",
    "backward_prefetch",
    "forward_prefetch",
    "cpu_ram_efficient_loading",
    "sync_module_states",
    "use_orig_params",
    "limit_all_gathers",
    "activation_checkpointing",
    "xla",
    "xla_fsdp_v2",
    "xla_fsdp_settings",
    "min_num_params",
    "fsdp_min_num_params",
    "reshard_after_forward",
    "auto_wrap_policy",
    "state_dict_type",
)
_BACKEND_WORDS = re.compile(
    r"zero_optimization|train_micro_batch_size_per_gpu|distributed_type|fsdp_config|deepspeed_config|per_device_train_batch_size|"
    r"tensor_model_parallel_size|compute_environment|import\s+(?:torch|accelerate|deepspeed)|from\s+(?:torch|accelerate|deepspeed)\b"
)
_QUANTIZATION = ("load_in_", "bnb_", "llm_int8_", "quant_", "torch_dtype")
_DEEPSPEED_SIGNS = ("zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu")
_TRAINER_SIGNS = ("per_device_train_batch_size", "output_dir", "num_train_epochs", "per_device_eval_batch_size")
NOT_JUDGED = {
    "model": "a model's config.json: give it with --model beside the config that trains it",
    "unknown": "its keys are not those of a config that check knows",
    "gpt-neox": "a GPT-NeoX config, whose DeepSpeed keys stand among the model's",
    "nanotron": "a nanotron config: there are no rules for it",
    "axolotl": "an axolotl config: only its DeepSpeed and FSDP blocks are judged",
    "llama-factory": "a LLaMA-Factory config: only its DeepSpeed and FSDP blocks are judged",
    "verl": "a verl config: only its FSDP blocks are judged",
    "openrlhf": "an OpenRLHF config: only its DeepSpeed block is judged",
    "torchtitan": "a torchtitan config: there are no rules for it yet",
}


def speaks_of_backends(text: str) -> bool:
    return _BACKEND_WORDS.search(text) is not None


def dialect_of(document: Document) -> str:
    keys = {key for key in document.value if isinstance(key, str)}
    if document.get("compute_environment") == "AMAZON_SAGEMAKER":
        return "sagemaker"
    if "distributed_type" in keys or "compute_environment" in keys:
        return "accelerate"
    if "base_model" not in keys and ("model_type" in keys or ("architectures" in keys and "zero_optimization" not in keys)):
        return "model"
    for name, rows in _SIGNS:
        if any(keys >= set(row) for row in rows) and not (name == "nanotron" and document.dialect == "toml"):
            return name
    if _is_deepspeed(document, keys):
        return "deepspeed"
    if {"load_in_4bit", "load_in_8bit"} & keys and all(
        key.startswith(("load_in_", "bnb_", "llm_int8_", "quant_", "torch_dtype")) for key in keys
    ):
        return "quantization"
    if len(keys & {*_TRAINER_SIGNS}) >= 1 and len(keys & {*table("arguments")["arguments"]}) >= 2:
        return "training-arguments"
    return _by_share(keys)


def _is_deepspeed(document: Document, keys: set[str]) -> bool:
    names = _deepspeed_names()
    if document.dialect != "json" or not keys & names:
        return False
    return bool(keys & {*_DEEPSPEED_SIGNS}) or len(keys & names) * 2 > len(keys)


def _deepspeed_names() -> set[str]:
    lookups = {key.split(".")[0] for key in table("deepspeed")["lookups"]}
    return lookups | {*table("deepspeed")["removed_top"]} | {name.split(".")[0] for name in table("deepspeed")["blocks"]}


def _by_share(keys: set[str]) -> str:
    known = keys & {*accelerate_keys()["cluster"]}
    if len(known) >= 2 and len(known) > len(keys) / 2:
        return "accelerate"
    if keys and len(keys & {*_FSDP_KEYS}) * 2 > len(keys) and len(keys & {*_FSDP_KEYS}) >= (2 if "fsdp_config" not in keys else 1):
        return "fsdp-config"
    return "unknown"


_JINJA = re.compile(r"\{\{.{0,300}?\}\}|\{%.{0,300}?%\}")
_SHELL = re.compile(r"(?:[:=\s\[,-]|^)\"?(\$\{[A-Za-z_]\w*(?::-[^}]{0,300})?\}|\$[A-Za-z_]\w*|\$\([^)]{0,300}\))")
_PLACE = re.compile(r"<[A-Z][A-Z0-9_]{2,}>|\b__[A-Z][A-Z0-9_]+__\b|@[A-Z][A-Z0-9_]+@")
_CAPITALS = re.compile(r":\s*(?!(?:TRUE|FALSE|NULL|NONE)\b)([A-Z][A-Z0-9_]+)\s*(?:[,}\n]|$)")


def template_mark(text: str, dialect: str, refused: bool = False) -> tuple[str, int] | None:
    bare = "\n".join(line if not line.lstrip().startswith("#") else "" for line in text.split("\n")) if dialect != "json" else text
    patterns = [_JINJA, _SHELL, _PLACE, *([_CAPITALS] if refused and dialect == "json" else [])]
    found = [(match.start(match.lastindex or 0), match[match.lastindex or 0]) for p in patterns if (match := p.search(bare))]
    if not found:
        return None
    place = min(found)[1]
    return place, text.find(place)


def is_shell(mark: str) -> bool:
    return mark.startswith("$")


def foreign_blocks(document: Document, dialect: str) -> list[tuple[str, tuple[Any, ...], Any]]:
    places: dict[str, list[tuple[str, tuple[Any, ...]]]] = {
        "axolotl": [("deepspeed", ("deepspeed",)), ("fsdp", ("fsdp_config",))],
        "llama-factory": [("deepspeed", ("deepspeed",)), ("fsdp", ("fsdp_config",))],
        "training-arguments": [("deepspeed", ("deepspeed",)), ("fsdp", ("fsdp_config",))],
        "verl": [
            ("fsdp", ("actor_rollout_ref", "actor", "fsdp_config")),
            ("fsdp", ("actor_rollout_ref", "ref", "fsdp_config")),
            ("fsdp", ("critic", "model", "fsdp_config")),
        ],
        "openrlhf": [("deepspeed", ("deepspeed",)), ("deepspeed", ("ds_config",))],
    }
    rows = places.get(dialect, [("deepspeed", ("deepspeed_config",)), ("deepspeed", ("deepspeed",)), ("fsdp", ("fsdp_config",))])
    return [(kind, path, value) for kind, path in rows if (value := document.get(*path)) not in (None, "", False, {})]
