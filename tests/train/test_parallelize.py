"""A strategy applied to a model in a group of one rank, and what the live model says of itself."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from trainwright.errors import UserError
from trainwright.model import ModelSpec
from trainwright.strategy import Strategy
from trainwright.train import parallelize
from trainwright.train.loop import gradient_norm
from trainwright.train.parallelize import applicable, confirm, distribute, effective

CPU = torch.device("cpu")
FSDP = Strategy("fsdp", wrap_classes=("LlamaDecoderLayer",))
STRATEGIES = {
    "single": Strategy("single"),
    "ddp": Strategy("ddp"),
    "fsdp": FSDP,
    "one unit": Strategy("fsdp"),
    "kept": dataclasses.replace(FSDP, reshard_after_forward=False),
    "checkpointed": dataclasses.replace(FSDP, activation_checkpointing=True),
    "checkpointed ddp": Strategy("ddp", activation_checkpointing=True),
    "nested": dataclasses.replace(FSDP, wrap_classes=("LlamaDecoderLayer", "LlamaMLP")),
}


def results(spec: ModelSpec, strategy: Strategy) -> tuple[float, float]:
    """Loss and gradient norm of the first step."""
    model = distribute(spec, strategy, CPU, 1, seed=0)
    ids = torch.randint(0, spec.vocab_size, (2, 16), generator=torch.Generator().manual_seed(1))
    with parallelize.precision(strategy, CPU):
        loss = model(ids, ids.roll(-1, 1))
    loss.backward()
    return loss.item(), gradient_norm(list(model.parameters()))


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_trains_the_same_model(small: ModelSpec, group: None, name: str) -> None:
    assert results(small, STRATEGIES[name]) == pytest.approx(results(small, Strategy("single")), rel=1e-6)


@pytest.mark.parametrize("kind", ["single", "ddp", "fsdp"])
def test_bf16_is_close_to_fp32_and_not_equal(small: ModelSpec, group: None, kind: str) -> None:
    strategy = dataclasses.replace(STRATEGIES[kind], precision="bf16")
    model = distribute(small, strategy, CPU, 1, seed=0)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    low, full = results(small, strategy), results(small, STRATEGIES[kind])
    assert low == pytest.approx(full, rel=0.03) and low[1] != full[1]


def test_effective_reads_the_live_model(small: ModelSpec, group: None) -> None:
    assert effective(distribute(small, Strategy("single"), CPU, 1, 0)).to_json() == {
        "name": "single",
        "wrapper": "none",
        "world_size": 1,
        "shard_ratio": 1.0,
        "units": 0,
    }
    ddp = distribute(small, Strategy("ddp"), CPU, 1, 0)
    assert isinstance(ddp, DistributedDataParallel) and effective(ddp).wrapper == "DistributedDataParallel"
    full = effective(distribute(small, FSDP, CPU, 1, 0))
    assert (full.name, full.wrapper, full.units) == ("fsdp_full_shard", "FSDPModule", small.num_layers + 1)
    assert effective(distribute(small, STRATEGIES["one unit"], CPU, 1, 0)).units == 1
    assert effective(distribute(small, STRATEGIES["kept"], CPU, 1, 0)).name == "fsdp_shard_grad_op"
    assert effective(distribute(small, STRATEGIES["checkpointed"], CPU, 1, 0)).units == small.num_layers + 1
    assert effective(distribute(small, STRATEGIES["nested"], CPU, 1, 0)).units == 2 * small.num_layers + 1


def test_a_model_that_is_not_what_was_asked_is_refused(small: ModelSpec, group: None) -> None:
    model = distribute(small, FSDP, CPU, 1, 0)
    assert confirm(model, FSDP, 1, 0) == effective(model)
    with pytest.raises(UserError, match="strategy fsdp_full_shard instead of ddp"):
        confirm(model, Strategy("ddp"), 1, 0)
    with pytest.raises(UserError, match=r"world size 1 instead of 4; share of the parameters on this rank 1\.0 instead of 0\.2"):
        confirm(model, FSDP, 4, 0)
    with pytest.raises(UserError, match="strategy fsdp_full_shard instead of fsdp_shard_grad_op"):
        confirm(model, STRATEGIES["kept"], 1, 0)


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 64])
def test_expected_shares_are_those_of_chunked_rows(ranks: int) -> None:
    shapes = [torch.Size(s) for s in ((8, 3), (5,), (2, 2, 2), (7, 1))]
    whole = sum(s.numel() for s in shapes)
    for rank in range(ranks):
        pieces = [torch.empty(s).chunk(ranks) for s in shapes]
        local = sum(piece[rank].numel() for piece in pieces if rank < len(piece))
        assert parallelize._ratio(shapes, ranks, rank) == pytest.approx(local / whole)


def test_a_class_that_the_model_has_not_is_named_with_those_it_has(small: ModelSpec, group: None) -> None:
    with pytest.raises(UserError, match=r"BertLayer.*LlamaAttention, LlamaDecoderLayer, .*LlamaMLP") as caught:
        distribute(small, Strategy("fsdp", wrap_classes=("BertLayer",)), CPU, 1, 0)
    assert "ModuleList" not in str(caught.value) and "\n" not in str(caught.value)


def test_a_tied_embedding_cannot_be_a_unit(small: ModelSpec, group: None) -> None:
    tied = small.resized(tied_embeddings=True)
    with pytest.raises(UserError, match="tied"):
        distribute(tied, Strategy("fsdp", wrap_classes=("LlamaDecoderLayer", "Embedding")), CPU, 1, 0)
    assert results(tied, FSDP) == pytest.approx(results(tied, Strategy("single")), rel=1e-6)


def test_single_on_several_ranks_is_refused(small: ModelSpec) -> None:
    with pytest.raises(UserError, match="unconnected models"):
        distribute(small, Strategy("single"), CPU, 4, 0)


def test_what_cannot_be_applied_is_given_back_with_a_reason() -> None:
    strategy = dataclasses.replace(FSDP, cpu_offload=True, precision="fp16")
    possible, refused = applicable(strategy, CPU)
    assert possible == FSDP
    assert set(refused) == {"cpu_offload", "precision"} and "host memory already" in refused["cpu_offload"]
    assert applicable(strategy, torch.device("cuda"))[1].keys() == {"precision"}
    assert applicable(FSDP, CPU) == (FSDP, {})


def test_gathered_parameters_are_freed_only_where_asked(small: ModelSpec, group: None) -> None:
    """torch keeps full_shard or shard_grad_op in a private place: this shows that the name read there is the behaviour."""
    ids = torch.zeros(1, 8, dtype=torch.int64)
    for name, freed in (("fsdp", True), ("kept", False)):
        model = distribute(small, STRATEGIES[name], CPU, 1, 0)
        model(ids, ids)
        blocks = [module for module in model.modules() if isinstance(module, FSDPModule)][1:]
        groups = [block._get_fsdp_state()._fsdp_param_group for block in blocks]
        assert {group.is_sharded for group in groups if group} == {freed}
