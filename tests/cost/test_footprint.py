"""The memory of a stage against published formulas, and what no chooser may get wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainwright.cost.footprint import Footprint, MemoryConstants
from trainwright.cost.layers import network
from trainwright.cost.machine import machine
from trainwright.cost.step import StepModel
from trainwright.model import ModelSpec
from trainwright.parallel import Plan
from trainwright.parts import Attention, Block, Decoder, Embedding, Head, Mlp, Norm, Run

BARE = MemoryConstants(fixed_bytes=0.0, slack=0.0)
H, A, S, L, V = 2048, 16, 2048, 8, 51200


def gpt(layers: int = L, vocab: int = V, gated: bool = False) -> ModelSpec:
    block = Block(H, Attention(A, A, H // A, H // A), Mlp(4 * H, gated=gated), Norm("rms" if gated else "layer"))
    return ModelSpec("gpt", "test", Decoder("gpt", "Block", Embedding(vocab, H), (Run(layers, block),), Norm(), Head(tied=True), S))


def footprint(devices: int, batch: int = 64, model: ModelSpec | None = None) -> Footprint:
    found = machine("a100", devices, 8, 25e9, 80 * 2**30)
    return Footprint(StepModel(network(model or gpt()), found, S, batch), BARE)


def per_token(plan: Plan) -> float:
    """Bytes that one layer keeps, for each token."""
    return footprint(plan.world_size).layer(0, plan).kept / (plan.micro_batch * S / plan.cp)


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        # Korthikanti et al. 2022, table 2: 34 h + 5 a s; with t: 10 h + 24 h / t + 5 a s / t; with sequence parallelism all over t.
        (Plan(flash_attention=False), 34 * H + 5 * A * S),
        (Plan(tp=8, flash_attention=False), 10 * H + 24 * H / 8 + 5 * A * S / 8),
        (Plan(tp=8, sequence_parallel=True, flash_attention=False), (34 * H + 5 * A * S) / 8),
        (Plan(tp=8, sequence_parallel=True, flash_attention=False, recompute="selective"), 34 * H / 8),
        (Plan(flash_attention=False, recompute="full"), 2 * H),
        (Plan(cp=4, dp_shard=2, flash_attention=False, recompute="full"), 2 * H),
    ],
    ids=lambda value: value.name if isinstance(value, Plan) else f"{value:.0f}",
)
def test_activations_of_a_gpt_layer(plan: Plan, expected: float) -> None:
    assert per_token(plan) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("plan", "bytes_each"),
    [
        # ZeRO (Rajbhandari et al. 2020) with fp32 gradients, of which DeepSpeed and Megatron keep a 16-bit copy while they are made.
        (Plan(dp_replicate=8), 2 + 6 + 12),
        (Plan(dp_shard=8, zero_stage=1), 2 + 6 + 12 / 8),
        (Plan(dp_shard=8, zero_stage=2), 2 + (6 + 12) / 8),
        (Plan(dp_shard=8, zero_stage=3), 16 / 8),
        (Plan(dp_shard=4, dp_replicate=2, zero_stage=3), 16 / 4),
        (Plan(dp_replicate=8, precision="fp32"), 4 + 4 + 8),
        (Plan(dp_replicate=8, offload="optimizer"), 2 + 6),
        (Plan(dp_replicate=8, gradient_bytes=2), 2 + 2 + 16),
    ],
    ids=lambda value: value.name if isinstance(value, Plan) else str(value),
)
def test_states(plan: Plan, bytes_each: float) -> None:
    assert sum(footprint(8).states(plan, 1000, 1000)) == pytest.approx(1000 * bytes_each)


def test_fp32_gradients_take_more() -> None:
    """What pushed BLOOM's runs over the edge."""
    plan = Plan(dp_shard=8, zero_stage=1, gradient_bytes=2)
    kept = footprint(8)
    assert kept.peak(replace(plan, gradient_bytes=4)).total > kept.peak(plan).total


def test_the_first_and_the_last_stage_hold_more_than_the_mean() -> None:
    """A check of the mean would pass where one rank does not fit."""
    plan = Plan(pp=4, dp_shard=2, zero_stage=1, schedule="1f1b")
    stages = footprint(8).stages(plan)
    totals = [stage.total for stage in stages]
    assert [stage.in_flight for stage in stages] == [4, 3, 2, 1]
    assert totals[0] > sum(totals) / 4 and stages[-1].logits > 0 == stages[0].logits
    assert stages[0].parameters == stages[-1].parameters, "a tied head is a copy on its own stage"


def test_the_logits_of_a_large_vocabulary_bind_the_last_stage() -> None:
    plan = Plan(pp=4, dp_shard=2, zero_stage=1, schedule="1f1b", micro_batch=8, recompute="full")
    wide = footprint(8, model=gpt(vocab=256000))
    stages = wide.stages(plan)
    assert stages[-1].logits == pytest.approx(8 * S * 256000 * 14)
    assert max(stages, key=lambda stage: stage.total).stage == 3
    assert wide.stages(replace(plan, loss="chunked"))[-1].logits < stages[-1].logits / 10


def test_the_metric_has_a_name() -> None:
    found = Footprint(footprint(8).model, MemoryConstants()).peak(Plan(dp_shard=8, zero_stage=3))
    assert found.of("allocated") < found.of("reserved") < found.of("device") == found.total


@pytest.mark.parametrize("recompute", ["none", "selective_op", "full"])
def test_more_sharding_or_recompute_never_takes_more(recompute: str) -> None:
    kept = footprint(64)
    base = Plan(dp_replicate=64, recompute=recompute)  # type: ignore[arg-type]
    by_stage = [kept.peak(replace(base, dp_replicate=1, dp_shard=64, zero_stage=n)).total for n in (1, 2, 3)]
    assert [kept.peak(base).total, *by_stage] == sorted([kept.peak(base).total, *by_stage], reverse=True)


def test_room_and_ledger_say_the_same() -> None:
    """What the search splits by is what the ledger adds up, on every stage."""
    for plan in (
        Plan(pp=4, dp_shard=2, zero_stage=1, schedule="1f1b", layer_split=(1, 3, 3, 1)),
        Plan(pp=2, dp_shard=4, zero_stage=3, schedule="gpipe", layer_split=(5, 3), recompute="selective_op"),
        Plan(dp_shard=4, tp=2, zero_stage=3, sequence_parallel=True),
        Plan(dp_shard=8, zero_stage=3, reshard_after_forward=False),
    ):
        kept = Footprint(footprint(8).model, MemoryConstants())
        states, activations, stages = kept.room(plan, 0.0)
        split = plan.layer_split or (L,)
        for stage, entry, count in zip(kept.stages(plan, split), stages, split, strict=True):
            used = entry.bytes + count * (states[0] + entry.held * activations[0]) - entry.cap
            assert used == pytest.approx(stage.total)


def test_offload_moves_states_to_the_host() -> None:
    kept, plan = footprint(8), Plan(dp_shard=8, zero_stage=1)
    moved = replace(plan, offload="optimizer")
    assert kept.peak(moved).total < kept.peak(plan).total
    assert kept.host_bytes(moved, 8) > kept.host_bytes(plan, 8)
