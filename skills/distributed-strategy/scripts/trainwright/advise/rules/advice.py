"""Rules on a decision: what a user has to know before acting on it."""

from __future__ import annotations

from collections.abc import Iterator

from trainwright.advise.decide import SAFE, Advice, Asked
from trainwright.report import Severity
from trainwright.rules import Hit, rule


@rule("ADV001", Severity.ERROR, Advice, fails_at="first step", checked="derived", source="zero-paper")
def model_fits_nowhere(advice: Advice) -> Iterator[Hit]:
    """No strategy holds this model in the memory that each rank has.

    The ledger counts parameters, gradients, optimizer states, gathered units, activations and logits of the fullest rank; where even
    full sharding exceeds the memory the job ends with an out-of-memory error in its first steps. The advice names what would fit.

    Bad `config.json` with `--devices 2 --memory 1GiB --seq-len 512`:
        {"model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
         "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 32000, "max_position_embeddings": 2048}

    Good `config.json` with `--devices 2 --memory 40GiB --seq-len 512`:
        {"model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
         "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 32000, "max_position_embeddings": 2048}
    """
    if advice.choice is None:
        yield Hit(advice.reasons[0], data={"remedies": advice.remedies})


@rule("ADV002", Severity.WARNING, Asked, fails_at="never", checked="source", source="hf-llama-config")
def sequence_beyond_positions(asked: Asked) -> Iterator[Hit]:
    """The sequence is longer than the positions the model was made for.

    `max_position_embeddings` is the longest sequence of the model's own training. A rotary model computes on longer ones without an
    error, and without having learned them; the ledger is right all the same. `launch` refuses such a job.

    Bad `config.json` with `--devices 1 --memory 40GiB --seq-len 4096`:
        {"model_type": "llama", "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 2,
         "num_attention_heads": 4, "vocab_size": 1000, "max_position_embeddings": 2048}

    Good `config.json` with `--devices 1 --memory 40GiB --seq-len 2048`:
        {"model_type": "llama", "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 2,
         "num_attention_heads": 4, "vocab_size": 1000, "max_position_embeddings": 2048}
    """
    seq_len, positions = asked.workload.seq_len, asked.model.max_positions
    if seq_len > positions:
        yield Hit(f"sequence length {seq_len} exceeds max_position_embeddings {positions}", path="max_position_embeddings")


@rule("ADV003", Severity.WARNING, Advice, fails_at="first step", checked="derived", source="zero-paper")
def choice_without_margin(advice: Advice) -> Iterator[Hit]:
    """The chosen strategy fits, and leaves less than 10 % of the memory free.

    The ledger is held to 5 % of what torch's memory tracker counts, and an allocator cannot reuse every hole it makes. Less room than
    both may end in an out-of-memory error, at the first step or when a later one allocates in another order. A smaller micro batch,
    a shorter sequence or more ranks give room; so does a run that measures the peak before the long one starts.

    Bad `config.json` with `--devices 1 --memory 205MiB --seq-len 1024`:
        {"model_type": "llama", "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 2,
         "num_attention_heads": 4, "vocab_size": 8000, "max_position_embeddings": 2048}

    Good `config.json` with `--devices 1 --memory 400MiB --seq-len 1024`:
        {"model_type": "llama", "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 2,
         "num_attention_heads": 4, "vocab_size": 8000, "max_position_embeddings": 2048}
    """
    if advice.choice and not advice.of(advice.choice).safe:
        yield Hit(f"{advice.choice.name} fits without {SAFE}", data={"headroom_bytes": advice.of(advice.choice).headroom_bytes})
