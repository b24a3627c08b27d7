"""The ledger: goldens derived by hand or counted by torch, laws that hold for any model, and a brute-force oracle."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, settings
from hypothesis import given as hypothesis_given
from hypothesis import strategies as st

from trainwright.cost import phases
from trainwright.cost.memory import LARGEST_COUNT, NOT_COUNTED, Ledger, Workload, ledger, max_micro_batch
from trainwright.cost.rank import shard
from trainwright.errors import UserError
from trainwright.model import ModelSpec, load_model
from trainwright.strategy import Precision, Strategy

ROOT = Path(__file__).resolve().parents[2]
DEMO = load_model(str(ROOT / "helpers/trainwright/models/llama-demo/config.json"))
BLOCK = (DEMO.block_class,)
DDP, FULL, GRAD = Strategy("ddp"), Strategy("fsdp", True, BLOCK), Strategy("fsdp", False, BLOCK)
KINDS = {"state", "gathered", "communication", "activation", "loss", "batch", "workspace"}
MIB = 2**20


def given(*drawn: Any, examples: int = 60) -> Callable[[Any], Any]:
    """Hypothesis without its clock: this machine may be busy."""
    return lambda law: settings(max_examples=examples, deadline=None)(hypothesis_given(*drawn)(law))  # type: ignore[no-untyped-call]


@st.composite
def models(draw: st.DrawFn) -> ModelSpec:
    heads = draw(st.sampled_from([1, 2, 4, 8]))
    return DEMO.resized(
        num_layers=draw(st.integers(1, 12)),
        hidden_size=draw(st.integers(1, 64)) * 8,
        intermediate_size=draw(st.integers(1, 2000)),
        num_heads=heads,
        num_kv_heads=draw(st.sampled_from([k for k in (1, 2, 4, 8) if heads % k == 0])),
        head_dim=draw(st.sampled_from([16, 48, 64, 128])),
        vocab_size=draw(st.integers(1, 50000)),
        tied_embeddings=draw(st.booleans()),
        attention_bias=draw(st.booleans()),
        mlp_bias=draw(st.booleans()),
    )


@st.composite
def placements(draw: st.DrawFn) -> Strategy:
    kind = draw(st.sampled_from(["ddp", "fsdp"]))
    precisions: tuple[Precision, ...] = ("fp32", "bf16")
    precision = draw(st.sampled_from(precisions))
    again, every = draw(st.booleans()), draw(st.integers(1, 5))
    if kind == "ddp":
        return Strategy("ddp", precision=precision, activation_checkpointing=again, checkpoint_every=every)
    wrapped = draw(st.sampled_from([BLOCK, ()]))
    return Strategy("fsdp", draw(st.booleans()), wrapped, precision, again, checkpoint_every=every)


WORKLOADS = st.builds(
    Workload,
    micro_batch=st.integers(1, 16),
    seq_len=st.integers(1, 600),
    world_size=st.integers(1, 17),
    accumulation=st.sampled_from([1, 3]),
    device=st.sampled_from(["cpu", "cuda"]),
)


# --- goldens --------------------------------------------------------------------------------------------------------


def test_the_states_of_the_demo_are_sixteen_bytes_a_parameter() -> None:
    """18,880,896 parameters (see test_model): 4 B weights, 4 B gradients, 8 B of AdamW, and 4 B of a step number for 75 tensors."""
    assert ledger(DEMO, DDP, Workload(2, 128, 4)).states_bytes == 18_880_896 * 16 + 4 * (8 * 9 + 3)


def test_shards_are_cut_along_the_first_axis_and_padded() -> None:
    assert shard([(8192, 384)], 4) == 2048 * 384
    assert shard([(10, 3)], 4) == 3 * 3, "10 rows on 4 ranks: 3, 3, 3, 1"
    assert shard([(2,)], 8) == 1, "more ranks than rows: one row each, and most of them are padding"
    sharded = ledger(DEMO, FULL, Workload(2, 128, 4)).states_bytes
    assert sharded == 18_880_896 * 4 + 4 * 75, "every row count of the demo is a multiple of 4"


def test_the_peak_of_the_demo_under_ddp_by_hand() -> None:
    """fp32, 256 tokens, at the gradient of the loss: states, saved activations, and the log-softmax with two gradients of its size."""
    tokens, h, q, k, f, v, layers = 256, 384, 384, 128, 1024, 8192, 8
    residual, norms = 2 * tokens * h, 4 * tokens * h + 2 * tokens
    attention = 2 * tokens * q + 2 * tokens * k + tokens * 6
    block = residual + norms + attention + 4 * tokens * f
    outside = tokens * h + 2 * 128 * 64 + 2 * tokens * h + tokens  # embedding, cos and sin, final norm
    states = 18_880_896 * 16 + 4 * 75
    expected = states + 2 * tokens * 8 + 4 * (layers * block + outside) + 3 * tokens * v * 4
    found = ledger(DEMO, DDP, Workload(2, 128, 4))
    assert (found.peak_bytes, found.peak_phase) == (expected, "gradient of the loss")


@pytest.mark.parametrize(
    ("strategy", "tracked"),
    [
        (DDP, 389_393_716),
        (GRAD, 219_465_652),
        (FULL, 177_499_576),
        (replace(FULL, precision="bf16"), 135_326_388),
    ],
)
def test_the_demo_is_what_torch_counted(strategy: Strategy, tracked: int) -> None:
    """Peak of rank 0 by torch 2.13's trackers in a real run of 4 gloo ranks, micro batch 2, sequence 128 (2026-11-29).

    The ledger leaves out the loss, its weight and the first gradient: scalars.
    """
    assert 0 <= tracked - ledger(DEMO, strategy, Workload(2, 128, 4)).peak_bytes <= 16


@pytest.mark.parametrize(
    ("name", "shape", "states_gib"),
    [
        # 16 B x 6,738,415,616 and 16 B x 70,553,706,496 parameters, 2^30 B a GiB
        (
            "7b",
            {"num_layers": 32, "hidden_size": 4096, "intermediate_size": 11008, "num_heads": 32, "num_kv_heads": 32, "head_dim": 128},
            100.4,
        ),
        (
            "70b",
            {"num_layers": 80, "hidden_size": 8192, "intermediate_size": 28672, "num_heads": 64, "num_kv_heads": 8, "head_dim": 128},
            1051.3,
        ),
    ],
)
def test_states_of_published_models(name: str, shape: dict[str, int], states_gib: float) -> None:
    model = DEMO.resized(vocab_size=32000 if name == "7b" else 128256, **shape)
    found = ledger(model, Strategy("ddp", precision="bf16"), Workload(1, 4096, 8))
    assert found.states_bytes / 2**30 == pytest.approx(states_gib, abs=0.1)
    assert ledger(model, replace(FULL, precision="bf16"), Workload(1, 4096, 8)).states_bytes == pytest.approx(
        found.states_bytes / 8, rel=1e-4
    )


def test_one_rank_under_fsdp_gathers_copies_and_needs_no_buffer() -> None:
    """fully_shard copies parameters into their unsharded form on one rank too, and has nothing to gather into a flat buffer."""
    found = ledger(DEMO, FULL, Workload(2, 128, 1))
    assert found.bytes_of("gathered") > 0 and not [i for p in found.phases for i in p.items if "all-gather" in i.name]
    assert found.peak_bytes > ledger(DEMO, Strategy("single"), Workload(2, 128, 1)).peak_bytes


# --- laws -----------------------------------------------------------------------------------------------------------


@given(models(), placements(), WORKLOADS)
def test_a_ledger_adds_up(model: ModelSpec, strategy: Strategy, workload: Workload) -> None:
    found = ledger(model, strategy, workload)
    assert sum(item.bytes for item in found.items) == found.peak_bytes == max(phase.bytes for phase in found.phases)
    assert sum(found.bytes_of(kind) for kind in KINDS) == found.peak_bytes
    assert all(type(item.bytes) is int and item.bytes > 0 and item.formula and item.kind in KINDS for p in found.phases for item in p.items)
    assert found.peak_bytes >= found.states_bytes - 4 * model.total_parameters, "parameters and optimizer states are always alive"
    assert found.activations_bytes <= found.peak_bytes
    as_json = json.loads(json.dumps(found.to_json()))
    assert as_json["peak_bytes"] == found.peak_bytes and len(as_json["not_counted"]) == len(NOT_COUNTED)
    assert len({phase.name for phase in found.phases}) == len(found.phases)


@given(models(), st.booleans(), st.integers(1, 64), st.integers(1, 64))
def test_more_ranks_never_hold_more_states(model: ModelSpec, reshard: bool, ranks: int, more: int) -> None:
    strategy = replace(FULL, reshard_after_forward=reshard)
    few, many = (ledger(model, strategy, Workload(1, 64, w)).states_bytes for w in (ranks, ranks + more))
    assert many <= few


@given(models(), st.sampled_from(["fp32", "bf16"]), WORKLOADS, st.integers(2, 1000))
def test_ddp_is_the_same_on_any_number_of_ranks(model: ModelSpec, precision: Precision, workload: Workload, ranks: int) -> None:
    strategy = Strategy("ddp", precision=precision)
    sizes = {ledger(model, strategy, replace(workload, world_size=w)).peak_bytes for w in (1, ranks)}
    assert len(sizes) == 1


@given(models(), placements(), WORKLOADS)
def test_a_larger_job_never_needs_less(model: ModelSpec, strategy: Strategy, workload: Workload) -> None:
    peak = ledger(model, strategy, workload).peak_bytes
    assert ledger(model, strategy, replace(workload, micro_batch=workload.micro_batch + 1)).peak_bytes >= peak
    assert ledger(model, strategy, replace(workload, seq_len=workload.seq_len + 1)).peak_bytes >= peak
    assert (
        ledger(model, strategy, replace(workload, accumulation=2)).peak_bytes
        >= ledger(model, strategy, replace(workload, accumulation=1)).peak_bytes
    )
    deeper = model.resized(num_layers=model.num_layers + 1)
    assert ledger(deeper, strategy, workload).peak_bytes >= peak


@given(models(), WORKLOADS)
def test_twice_the_batch_keeps_twice_the_activations(model: ModelSpec, workload: Workload) -> None:
    """In fp32 a block keeps nothing but tensors of T rows."""
    one = ledger(model, DDP, workload)
    two = ledger(model, DDP, replace(workload, micro_batch=2 * workload.micro_batch))
    assert [2 * item.bytes for item in one.block] == [item.bytes for item in two.block]


@given(models(), WORKLOADS)
def test_sharding_holds_less_where_units_are_small(model: ModelSpec, workload: Workload) -> None:
    model = model.resized(num_layers=12 * model.num_layers, vocab_size=model.vocab_size % 1000 + 1)
    assume(workload.world_size > 1 and model.layer_parameters > 8 * model.embedding_parameters)
    assume(min(shape[0] for shape in model.layer_shapes) >= 4 * workload.world_size)  # else padding is most of a shard
    full, grad, ddp = (ledger(model, strategy, workload).peak_bytes for strategy in (FULL, GRAD, DDP))
    assert full <= grad <= ddp


@given(models(), WORKLOADS, st.booleans())
def test_checkpointing_keeps_less(model: ModelSpec, workload: Workload, reshard: bool) -> None:
    """Of two blocks or more: one block's list is alive again while it runs backward."""
    model = model.resized(num_layers=model.num_layers + 1)
    plain = replace(FULL, reshard_after_forward=reshard)
    assert (
        ledger(model, replace(plain, activation_checkpointing=True), workload).activations_bytes
        <= ledger(model, plain, workload).activations_bytes
    )


@given(models(), placements(), WORKLOADS)
def test_no_block_between_the_turning_points_is_higher(model: ModelSpec, strategy: Strategy, workload: Workload) -> None:
    """The ledger looks at the first two and last two blocks only; this looks at all."""
    quick = ledger(model, strategy, workload)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(phases, "_turning_points", lambda rank: list(range(rank.layers - 1, -1, -1)))
        assert ledger(model, strategy, workload).peak_bytes == quick.peak_bytes


def test_a_thousand_million_layers_take_no_time() -> None:
    assert ledger(DEMO.resized(num_layers=10**9), FULL, Workload(1, 1, 2)).peak_bytes > 10**15


# --- the batch ceiling ----------------------------------------------------------------------------------------------


@given(models(), placements(), WORKLOADS, st.integers(0, 3 * 2**30))
def test_the_ceiling_fits_and_one_more_does_not(model: ModelSpec, strategy: Strategy, workload: Workload, memory: int) -> None:
    ceiling = max_micro_batch(model, strategy, workload, memory)

    def peak(batch: int) -> int:
        return ledger(model, strategy, replace(workload, micro_batch=batch)).peak_bytes

    assert ceiling == 0 or peak(ceiling) <= memory
    assert ceiling == LARGEST_COUNT or peak(ceiling + 1) > memory


@given(placements(), st.integers(100, 600), examples=10)
def test_the_ceiling_by_brute_force(strategy: Strategy, mebibytes: int) -> None:
    workload, memory = Workload(1, 256, 4), mebibytes * MIB
    fitting = [b for b in range(1, 31) if ledger(DEMO, strategy, replace(workload, micro_batch=b)).peak_bytes <= memory]
    assert len(fitting) < 30 and max_micro_batch(DEMO, strategy, workload, memory) == max(fitting, default=0)


def test_the_ceiling_is_bounded() -> None:
    tiny = DEMO.resized(num_layers=1, hidden_size=8, intermediate_size=1, num_heads=1, num_kv_heads=1, head_dim=2, vocab_size=1)
    assert max_micro_batch(tiny, Strategy("single"), Workload(1, 1), 2**60) == LARGEST_COUNT


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["micro_batch", "seq_len", "world_size", "accumulation"])
@pytest.mark.parametrize("value", [0, -1, True, 1.0, float("nan"), LARGEST_COUNT + 1, 10**30, None, "2"])
def test_a_workload_is_made_of_counts(name: str, value: object) -> None:
    counts: dict[str, object] = {"micro_batch": 1, "seq_len": 1, "world_size": 1, "accumulation": 1}
    with pytest.raises(UserError, match=name):
        Workload(**{**counts, name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("strategy", "ranks", "said"),
    [
        (replace(FULL, cpu_offload=True), 2, "CPU offload"),
        (replace(FULL, precision="fp16"), 2, "fp16"),
        (Strategy("single"), 2, "one rank, not 2"),
        (replace(FULL, wrap_classes=("LlamaMLP", DEMO.block_class)), 2, "not LlamaMLP"),
    ],
)
def test_what_the_ledger_does_not_know_is_said(strategy: Strategy, ranks: int, said: str) -> None:
    with pytest.raises(UserError, match=said):
        ledger(DEMO, strategy, Workload(1, 16, ranks))


def test_an_unknown_optimizer_is_refused() -> None:
    with pytest.raises(UserError, match="sgd"):
        Workload(1, 1, optimizer="sgd")


def test_the_whole_model_as_one_unit_gathers_everything_at_once() -> None:
    whole: Ledger = ledger(DEMO, replace(FULL, wrap_classes=()), Workload(2, 128, 4))
    assert whole.bytes_of("gathered") == 18_880_896 * 4
    assert whole.peak_bytes > ledger(DEMO, FULL, Workload(2, 128, 4)).peak_bytes


def test_gloo_copies_what_it_scatters() -> None:
    """A vocabulary this large makes the reduce-scatter of the root the peak."""
    model = DEMO.resized(vocab_size=50000, num_layers=1)
    cpu, cuda = (ledger(model, FULL, Workload(1, 16, 2, device=device)) for device in ("cpu", "cuda"))
    assert cpu.peak_phase == "reduce-scatter of the root" and cpu.peak_bytes > cuda.peak_bytes
