"""A strategy applied to a model in a group of one rank, and what the live model says of itself."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from trainwright.errors import UserError
from trainwright.job import Job
from trainwright.model import ModelSpec, load_model
from trainwright.strategy import Strategy
from trainwright.train import effective as live
from trainwright.train import parallelize
from trainwright.train.data import Batch
from trainwright.train.effective import confirm, effective
from trainwright.train.local_sgd import LocalSGD
from trainwright.train.optimizer import gradient_norm
from trainwright.train.parallelize import applicable, possible

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


def distribute(spec: ModelSpec, strategy: Strategy, **fields: Any) -> nn.Module:
    job = Job("/m", "/c", **{"world_size": 1, **fields})
    return parallelize.distribute(spec, job.placed(strategy), job, CPU)


def some(spec: ModelSpec, rows: int = 2, tokens: int = 16) -> Batch:
    ids = torch.randint(0, spec.vocab_size, (rows, tokens), generator=torch.Generator().manual_seed(1))
    return Batch(ids, ids.roll(-1, 1), (), ids.numel())


def results(spec: ModelSpec, strategy: Strategy) -> tuple[float, float]:
    """Loss and gradient norm of the first step."""
    model = distribute(spec, strategy)
    with parallelize.precision(strategy, CPU):
        loss = model(some(spec))
    loss.backward()
    return loss.item(), gradient_norm(list(model.parameters()))


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_trains_the_same_model(small: ModelSpec, group: None, name: str) -> None:
    assert results(small, STRATEGIES[name]) == pytest.approx(results(small, Strategy("single")), rel=1e-6)


@pytest.mark.parametrize("kind", ["single", "ddp", "fsdp"])
def test_bf16_is_close_to_fp32_and_not_equal(small: ModelSpec, group: None, kind: str) -> None:
    strategy = dataclasses.replace(STRATEGIES[kind], precision="bf16")
    model = distribute(small, strategy)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    low, full = results(small, strategy), results(small, STRATEGIES[kind])
    assert low == pytest.approx(full, rel=0.03) and low[1] != full[1]


def test_effective_reads_the_live_model(small: ModelSpec, group: None) -> None:
    assert effective(distribute(small, Strategy("single"))).to_json() == {
        "name": "single",
        "wrapper": "none",
        "world_size": 1,
        "shard_ratio": 1.0,
        "units": 0,
        "replicas": 1,
        "checkpointed": 0,
        "period": None,
    }
    ddp = distribute(small, Strategy("ddp"))
    assert isinstance(ddp, DistributedDataParallel) and effective(ddp).wrapper == "DistributedDataParallel"
    full = effective(distribute(small, FSDP))
    assert (full.name, full.wrapper, full.units) == ("fsdp_full_shard", "FSDPModule", small.num_layers + 1)
    assert effective(distribute(small, STRATEGIES["one unit"])).units == 1
    assert effective(distribute(small, STRATEGIES["kept"])).name == "fsdp_shard_grad_op"
    assert effective(distribute(small, STRATEGIES["checkpointed"])).units == small.num_layers + 1
    assert effective(distribute(small, STRATEGIES["nested"])).units == 2 * small.num_layers + 1


def test_a_model_that_is_not_what_was_asked_is_refused(small: ModelSpec, group: None) -> None:
    model = distribute(small, FSDP)
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
        assert live._ratio(shapes, ranks, rank) == pytest.approx(local / whole)


def test_a_class_that_the_model_has_not_is_named_with_those_it_has(small: ModelSpec, group: None) -> None:
    with pytest.raises(UserError, match=r"BertLayer.*LlamaAttention, LlamaDecoderLayer, .*LlamaMLP") as caught:
        distribute(small, Strategy("fsdp", wrap_classes=("BertLayer",)))
    assert "ModuleList" not in str(caught.value) and "\n" not in str(caught.value)


def test_a_tied_embedding_cannot_be_a_unit(small: ModelSpec, group: None) -> None:
    tied = small.resized(tied_embeddings=True)
    with pytest.raises(UserError, match="tied"):
        distribute(tied, Strategy("fsdp", wrap_classes=("LlamaDecoderLayer", "Embedding")))
    assert results(tied, FSDP) == pytest.approx(results(tied, Strategy("single")), rel=1e-6)


IMPOSSIBLE: dict[str, tuple[Strategy, dict[str, Any], str]] = {
    "single on several ranks": (Strategy("single"), {"world_size": 4}, "unconnected models"),
    "rows that do not divide": (dataclasses.replace(FSDP, replicas=2), {"world_size": 3}, "3 ranks cannot be divided by 2"),
    "two groups under ZeRO": (Strategy("zero", zero_stage=1), {"world_size": 2, "decay": "matrices"}, "take decay all"),
    "compiled ZeRO 3": (Strategy("zero", zero_stage=3), {"world_size": 2, "compile": "eager"}, "compile with ZeRO stage 3"),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_cannot_be_done_together_is_refused_in_one_line(small: ModelSpec, name: str) -> None:
    strategy, fields, words = IMPOSSIBLE[name]
    with pytest.raises(UserError, match=words) as caught:
        possible(small, strategy, Job("/m", "/c", **fields))
    assert "\n" not in str(caught.value)


def test_experts_have_to_divide_among_the_ranks_that_share_them() -> None:
    mixture = load_model(str(Path(effective.__code__.co_filename).parents[1] / "models" / "tiny-moe" / "config.json"))
    experts = next(iter(parallelize._experts(mixture)))
    possible(mixture, FSDP, Job("/m", "/c", 2))
    with pytest.raises(UserError, match=f"has {experts} experts in a layer, and they cannot be divided by 3 ranks"):
        possible(mixture, FSDP, Job("/m", "/c", 3))
    possible(mixture, Strategy("ddp"), Job("/m", "/c", 3))
    possible(mixture, dataclasses.replace(FSDP, replicas=3), Job("/m", "/c", 6))


def test_local_sgd_is_read_from_its_wrapper(small: ModelSpec, group: None) -> None:
    model = distribute(small, Strategy("ddp"), local_sgd_steps=3)
    found = effective(model)
    assert isinstance(model, LocalSGD) and (found.name, found.wrapper, found.period, found.world_size) == ("local_sgd", "LocalSGD", 3, 1)
    with pytest.raises(UserError, match="strategy local_sgd instead of ddp"):
        confirm(model, Strategy("ddp"), 1, 0)


@pytest.mark.parametrize(("every", "layers"), [(0, 0), (1, 2), (2, 1), (3, 0)])
@pytest.mark.parametrize("name", ["single", "ddp", "fsdp"])
def test_every_nth_block_is_checkpointed(small: ModelSpec, group: None, name: str, every: int, layers: int) -> None:
    model = distribute(small, STRATEGIES[name], activation_checkpoint_every=every)
    assert effective(model).checkpointed == layers
    model(some(small)).backward()
    plain = results(small, STRATEGIES[name])
    assert gradient_norm(list(model.parameters())) == pytest.approx(plain[1], rel=1e-6)


def test_a_hook_that_gloo_has_not_is_refused(small: ModelSpec, group: None) -> None:
    with pytest.raises(UserError, match="comm_hook bf16 needs NCCL or XCCL"):
        distribute(small, Strategy("ddp"), comm_hook="bf16")


def test_what_cannot_be_applied_is_given_back_with_a_reason() -> None:
    strategy = dataclasses.replace(FSDP, cpu_offload=True, precision="fp16")
    possible, refused = applicable(strategy, CPU)
    assert possible == FSDP
    assert set(refused) == {"cpu_offload", "precision"} and "host memory already" in refused["cpu_offload"]
    assert applicable(strategy, torch.device("cuda"))[1].keys() == {"precision"}
    assert applicable(Strategy("zero", precision="fp16", zero_stage=2), CPU)[1] == {}  # DeepSpeed scales by itself
    assert applicable(FSDP, CPU) == (FSDP, {})


def test_gathered_parameters_are_freed_only_where_asked(small: ModelSpec, group: None) -> None:
    """torch keeps full_shard or shard_grad_op in a private place: this shows that the name read there is the behaviour."""
    for name, freed in (("fsdp", True), ("kept", False)):
        model = distribute(small, STRATEGIES[name])
        model(some(small, 1, 8))
        blocks = [module for module in model.modules() if isinstance(module, FSDPModule)][1:]
        groups = [block._get_fsdp_state()._fsdp_param_group for block in blocks]
        assert {group.is_sharded for group in groups if group} == {freed}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # the compiler warns of its own inner workings
def test_blocks_compiled_by_inductor_train_the_same(small: ModelSpec, group: None) -> None:
    """About a minute: the kernels are compiled by the system's C++ compiler."""
    one = small.resized(num_layers=1)
    model = distribute(one, FSDP, compile="inductor")
    loss = model(some(one))
    loss.backward()
    expected = results(one, FSDP)
    assert (loss.item(), gradient_norm(list(model.parameters()))) == pytest.approx(expected, rel=1e-5)
    compiled = [module for module in model.modules() if module._compiled_call_impl is not None]
    assert [type(module).__name__.removeprefix("FSDP") for module in compiled] == ["LlamaDecoderLayer"]
