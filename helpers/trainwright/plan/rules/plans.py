"""Rules on plans: what no machine of this size can run."""

from __future__ import annotations

from collections.abc import Iterator

from trainwright.plan.search import Found, Misfit
from trainwright.report import Severity
from trainwright.rules import Hit, rule


@rule("PLN001", Severity.ERROR, Found, fails_at="first step", checked="derived", source="zero-paper")
def model_fits_in_no_plan(found: Found) -> Iterator[Hit]:
    """No plan of the space fits in the memory of a device.

    Every combination of the axes was looked at with the layers split as the memory of its stages allows; why they fell out is counted in
    the answer. More devices, a shorter sequence, a smaller micro batch, full recompute or a looser space may make room.

    Bad `config.json` with `--accelerator a100 --devices 2 --memory 16GiB --global-batch 8 --seq-len 2048`:
        {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
         "num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 4096}

    Good `config.json` with `--accelerator a100 --devices 8 --memory 80GiB --global-batch 8 --seq-len 2048`:
        {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
         "num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 4096}
    """
    if found.best is None:
        yield Hit(f"no plan of {found.size:,} fits in the memory of a device")


@rule("PLN002", Severity.WARNING, Misfit, fails_at="first step", checked="derived", source="zero-paper")
def named_plan_does_not_fit(misfit: Misfit) -> Iterator[Hit]:
    """A plan that was named needs more memory on its fullest rank than a device has.

    The ledger of each stage says what fills it: states where too little is sharded, activations on the first stages of a pipeline,
    logits on its last. The job would end with an out-of-memory error in its first steps.

    Bad `config.json` with `--accelerator a100 --devices 2 --memory 80GiB --global-batch 8 --plan dp_replicate=2`:
        {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 26,
         "num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 2048}

    Good `config.json` with `--accelerator a100 --devices 8 --memory 80GiB --global-batch 8 --plan dp_shard=8,zero_stage=3`:
        {"model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
         "num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 2048}
    """
    yield Hit(f"plan {misfit.number} ({misfit.name}) needs {misfit.needed} on its fullest rank, and a device has {misfit.capacity}")
