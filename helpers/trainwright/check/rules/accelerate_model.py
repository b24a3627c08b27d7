"""Rules on Accelerate files against the model: what does not divide, and what does not fit into a device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from trainwright.check.rules.accelerate_launch import hit
from trainwright.check.subject import AccelerateConfig
from trainwright.errors import UserError
from trainwright.report import Severity
from trainwright.rules import Hit, rule
from trainwright.units import format_bytes

if TYPE_CHECKING:
    from trainwright.model import ModelSpec

_LENGTHS = ("max_seq_length", "max_length", "cutoff_len", "sequence_len", "model_max_length", "block_size")
_ADAMW = ("adamw_torch", "adamw_torch_fused", "adamw", "adamw_hf")
_ADAPTERS = ("adapter", "lora_r", "lora_rank", "use_peft", "peft_config", "lora_alpha", "use_lora")


@rule(
    "ACC042",
    Severity.ERROR,
    AccelerateConfig,
    fails_at="first step",
    checked="source",
    source="accelerate-1.15.0-parallelism",
)
def axis_that_does_not_divide_the_model(config: AccelerateConfig) -> Iterator[Hit]:
    """A tensor or pipeline size that does not divide the model's heads or layers.

    Tensor parallelism gives each rank whole attention heads, a Megatron pipeline whole layers. Key and value heads below the tensor
    size have to be copied, which not every implementation does: a warning. `--model` gives the model.

    Bad `accelerate.yaml` with `--model config.json`:

        distributed_type: FSDP
        num_processes: 6
        mixed_precision: bf16
        fsdp_config:
          fsdp_version: 2
          fsdp_auto_wrap_policy: NO_WRAP
        parallelism_config:
          parallelism_config_dp_shard_size: 2
          parallelism_config_tp_size: 3
    Bad `config.json`:

        {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
         "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100, "tie_word_embeddings": false}

    Good `accelerate.yaml` with `--model config.json`:

        distributed_type: FSDP
        num_processes: 4
        mixed_precision: bf16
        fsdp_config:
          fsdp_version: 2
          fsdp_auto_wrap_policy: NO_WRAP
        parallelism_config:
          parallelism_config_dp_shard_size: 2
          parallelism_config_tp_size: 2
    Good `config.json`:

        {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
         "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100, "tie_word_embeddings": false}
    """
    model = config.context.model
    if model is None:
        return
    name = "megatron_lm_tp_degree" if config.kind == "megatron" else "parallelism_config_tp_size"
    size = config.whole(name) if config.kind == "megatron" or config.launch.sizes else None
    attentions = [block.attention for block in model.blocks if block.attention]
    for count in sorted({a.num_heads for a in attentions if size and a.num_heads % size}):
        yield hit(config, name, f"{size} does not divide the model's {count} attention heads")
    layers, stages = model.num_layers, config.whole("megatron_lm_pp_degree") if config.kind == "megatron" else None
    if stages and layers % stages and config.value("megatron_lm_decoder_last_pipeline_num_layers") is None:
        yield hit(config, "megatron_lm_pp_degree", f"{stages} does not divide the model's {layers} layers")


@rule(
    "ACC043",
    Severity.WARNING,
    AccelerateConfig,
    fails_at="first step",
    checked="derived",
    source="zero-paper",
)
def more_than_the_device_holds(config: AccelerateConfig) -> Iterator[Hit]:
    """The job's tensors need more memory than one device has.

    Parameters, gradients and AdamW's states are counted exactly; with the Trainer's batch size and a sequence length also what one
    step keeps. What no tensor shows (context, communication buffers, fragmentation) is kept free. `--model`, `--hardware` and the
    number of ranks are needed; adapters, quantized weights, offload, other optimizers and DeepSpeed are not counted, and then nothing
    is said. `trainwright advise` says what would fit.

    Bad `accelerate.yaml` with `--model config.json --hardware a100-40gb`:

        distributed_type: MULTI_GPU
        num_processes: 8
        mixed_precision: bf16
    Bad `config.json`:

        {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 11008,
         "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000, "tie_word_embeddings": false}

    Good `accelerate.yaml` with `--model config.json --hardware a100-40gb`:

        distributed_type: FSDP
        num_processes: 8
        mixed_precision: bf16
        fsdp_config:
          fsdp_version: 2
          fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
          fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
    Good `config.json`:

        {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 11008,
         "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000, "tie_word_embeddings": false}
    """
    context, given = config.context, config.context.training_args
    ranks = context.world_size or config.whole("num_processes")
    if context.model is None or not context.hardware or not ranks or ranks < 1 or _not_counted(config):
        return
    memory = _memory_of(context.hardware)
    counted = _bytes(config, context.model, ranks, given) if memory else None
    if not memory or counted is None or counted[0] <= memory:
        return
    needed, what = counted
    message = f"{what} take {format_bytes(needed)} a rank, and {context.hardware} holds {format_bytes(memory)} beside what no tensor shows"
    yield hit(config, "distributed_type", message)


def _not_counted(config: AccelerateConfig) -> bool:
    given, context = config.context.training_args, config.context
    optimizer = str(given.get("optim") or (context.optimizer or "adamw").rpartition(".")[2]).lower()
    adapted = any(given.get(key) for key in _ADAPTERS) or given.get("finetuning_type") in ("lora", "freeze", "oft")
    return bool(context.bits) or adapted or optimizer not in _ADAMW or bool(config.launch.sizes)


def _memory_of(name: str) -> int | None:
    """What tensors may take of one device; None where the device or its memory is not known."""
    from trainwright.hardware import accelerator

    try:
        found = accelerator(name)
    except UserError:
        return None
    return found.memory_bytes - found.reserve_bytes if found.memory_bytes else None


def _bytes(config: AccelerateConfig, model: ModelSpec, ranks: int, given: Mapping[str, Any]) -> tuple[int, str] | None:
    """(bytes, what they are) of the fullest rank; None where the ledger does not know the model or the strategy."""
    from trainwright.cost.memory import Workload, ledger
    from trainwright.emit.accelerate import read

    batch = given.get("per_device_train_batch_size") or given.get("micro_batch_size")
    length = next((given[key] for key in _LENGTHS if type(given.get(key)) is int), None)
    try:
        strategy = read(config.document, model).strategy
        if type(batch) is int and length is not None:
            found = ledger(model, strategy, Workload(batch, length, ranks))
            return found.peak_bytes, f"{strategy.name} with batches of {batch} x {length} tokens: tensors"
        found = ledger(model, strategy, Workload(1, 1, ranks))
    except UserError:
        return None
    return found.states_bytes, f"{strategy.name}: parameters, gradients and AdamW's states"
