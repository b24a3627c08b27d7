"""The time of a step: what must hold whatever the constants are (metamorphic), and cases that choosers get wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trainwright.cost.constants import Constants, changed
from trainwright.cost.layers import Network, network
from trainwright.cost.machine import Machine, Number, machine
from trainwright.cost.pipeline import in_flight, step_seconds
from trainwright.cost.step import StepModel
from trainwright.errors import UserError
from trainwright.model import ModelSpec
from trainwright.parallel import Plan, PlanError
from trainwright.parts import Attention, Block, Decoder, Embedding, Experts, Head, Mlp, Norm, Patches, Projector, Run, Tower

PLANS = [
    Plan(dp_replicate=64, micro_batch=1),
    Plan(dp_shard=64, zero_stage=3, micro_batch=1),
    Plan(dp_shard=64, zero_stage=1),
    Plan(dp_replicate=8, dp_shard=8, zero_stage=3),
    Plan(dp_shard=8, zero_stage=1, tp=8, sequence_parallel=True),
    Plan(dp_shard=4, zero_stage=1, tp=4, pp=4, schedule="1f1b", recompute="full"),
    Plan(dp_shard=2, zero_stage=3, tp=4, pp=4, cp=2, schedule="interleaved", virtual_stages=2),
    Plan(dp_shard=8, zero_stage=1, tp=2, pp=4, schedule="zero-bubble"),
    Plan(dp_shard=4, zero_stage=1, tp=2, pp=8, schedule="gpipe"),
]


def spec(layers: int = 8, width: int = 1024, heads: int = 16, vocab: int = 32000, **parts: Any) -> ModelSpec:
    """A Llama-like decoder."""
    dim = width // heads
    block = Block(width, Attention(heads, parts.get("kv", heads), dim, dim), Mlp(4 * width), Norm())
    runs: tuple[Run, ...] = (Run(layers, block),)
    if num := parts.get("experts"):
        mixed = replace(block, mlp=Experts(num, 2, 2 * width))
        runs = tuple(Run(1, mixed if i % 2 else block) for i in range(layers))
    return ModelSpec("test", "test", Decoder("test", "Block", Embedding(vocab, width), runs, Norm(), Head(), 4096))


def steps(net: Network, found: Machine, batch: int = 128, seq: int = 1024, **factors: float) -> StepModel:
    return StepModel(net, found, seq, batch, changed(Constants(), factors))


def a100(devices: int = 64, **rest: Any) -> Machine:
    return machine("a100", devices, 8, 25e9, **rest)


def faster(found: Machine, times: float) -> Machine:
    """Every rate times `times`, every latency divided by it."""

    def more(number: Number) -> Number:
        return replace(number, value=None if number.value is None else number.value * times)

    device = found.device
    device = replace(device, peak_flops=more(device.peak_flops), hbm=more(device.hbm))
    device = replace(device, matmul_flops=more(device.matmul_flops), matmul_flops_fp8=more(device.matmul_flops_fp8))
    levels = tuple(
        replace(level, bus=tuple((n, rate * times) for n, rate in level.bus), latency_s=level.latency_s / times) for level in found.levels
    )
    return replace(found, device=device, levels=levels)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_twice_as_fast_a_machine_halves_every_term(plan: Plan) -> None:
    net = network(spec())
    one = steps(net, a100(), launch_s=1.0).step(plan)
    two = steps(net, faster(a100(), 2), launch_s=0.5).step(plan)
    assert two.seconds == pytest.approx(one.seconds / 2)
    for name, value in one.parts.items():
        assert two.parts[name] == pytest.approx(value / 2, abs=1e-15), name


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_parts_add_up_to_the_step(plan: Plan) -> None:
    model = steps(network(spec()), a100(slowest=1.25))
    step = model.step(plan)
    assert sum(step.parts.values()) == pytest.approx(step.seconds)
    assert all(value >= -1e-12 for value in step.parts.values())
    assert model.seconds(plan, model.split(plan)) == step.seconds


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_a_slower_network_or_device_is_never_faster(plan: Plan) -> None:
    net = network(spec())
    usual = steps(net, a100()).step(plan).seconds
    assert steps(net, machine("a100", 64, 8, 5e9)).step(plan).seconds >= usual
    assert steps(net, a100(slowest=1.5)).step(plan).seconds == pytest.approx(1.5 * usual)


def test_no_transfer_leaves_the_objective_of_alpa() -> None:
    """sum of stages + (B - 1) x the slowest."""
    stages = [1.0, 3.0, 2.0, 2.5]
    for m in (1, 4, 64):
        assert step_seconds(stages, 0.0, m, "1f1b") == pytest.approx(sum(stages) + (m - 1) * max(stages))
    assert step_seconds(stages, 0.1, 8, "1f1b") == pytest.approx(sum(stages) + 7 * 3.0 + 3 * 0.1), "transfers are in the objective"


def test_one_microbatch_asks_for_the_least_sum_and_many_for_the_least_maximum() -> None:
    least_sum, least_max = [1.0, 4.0], [3.0, 3.0]
    assert step_seconds(least_sum, 0, 1, "1f1b") < step_seconds(least_max, 0, 1, "1f1b")
    assert step_seconds(least_sum, 0, 1000, "1f1b") > step_seconds(least_max, 0, 1000, "1f1b")


def test_schedules_fill_less_and_hold_more() -> None:
    stages = [1.0] * 4
    times = [
        step_seconds(stages, 0.0, 8, "1f1b"),
        step_seconds(stages, 0.0, 8, "interleaved", 2),
        step_seconds(stages, 0.0, 8, "zero-bubble"),
    ]
    assert times == sorted(times, reverse=True)
    plain = Plan(pp=4, schedule="1f1b")
    assert [in_flight(plain, stage, 8) for stage in range(4)] == [4, 3, 2, 1]
    assert in_flight(Plan(pp=4, schedule="gpipe"), 0, 8) == 8
    # Narayanan et al. 2021: the first stage holds 1 + (p - 1) / (p v) of what plain 1F1B holds.
    woven = in_flight(Plan(pp=4, schedule="interleaved", virtual_stages=2), 0, 8)
    assert woven == pytest.approx(4 * (1 + 3 / 8))


def test_fewer_microbatches_than_stages_waste_half() -> None:
    model = steps(network(spec()), a100(8), batch=2)
    step = model.step(Plan(pp=8, schedule="1f1b"))
    assert step.bubble > 0.5


def test_a_batch_that_does_not_divide_is_refused() -> None:
    model = steps(network(spec()), a100(), batch=100)
    with pytest.raises(PlanError, match="no multiple"):
        model.step(Plan(dp_shard=64, zero_stage=3))


def test_devices_that_the_plan_does_not_use_are_refused() -> None:
    with pytest.raises(UserError, match="needs 8 devices, the machine has 64"):
        steps(network(spec()), a100()).step(Plan(dp_shard=8, zero_stage=3))


def test_nothing_to_place_is_refused() -> None:
    net = network(spec())
    with pytest.raises(UserError, match="no layers"):
        StepModel(replace(net, order=()), a100(), 1024, 64)
    with pytest.raises(UserError, match="global batch"):
        StepModel(net, a100(), 1024, 0)


# --- shapes that cost more than their operations ---------------------------------------------------------------------


def test_a_head_width_off_the_tensor_cores_is_slow() -> None:
    """BLOOM with 96 heads of 150 in 14,400 ran a third slower than its neighbours."""
    plan = Plan(tp=8, flash_attention=False)
    odd, even = (network(spec(4, width, heads=96)) for width in (14400, 13824 // 96 * 96))
    slow, fast = (steps(net, a100(8), batch=8, seq=2048).step(plan).parts["attention"] for net in (odd, even))
    assert slow > 3 * fast


def test_few_key_value_heads_are_copied() -> None:
    net = network(spec(kv=2))
    values = [m for m in net.kinds[0].matrices if m.groups == 2]
    assert values[0].local(8) == (128, 1024), "key and value of one of two heads on each of eight devices"
    block = net.kinds[0]
    assert block.local_parameters(8, 1) - block.weights_whole == -(-block.weights_cut // 8) + block.weights_kv // 2


def test_thin_products_are_slow() -> None:
    """The same operations cut in eight take more than an eighth."""
    net = network(spec(width=1024))
    whole = steps(net, a100(8), batch=8).step(Plan(tp=8, micro_batch=8))
    alone = steps(net, a100(1), batch=8).step(Plan(micro_batch=8))
    assert whole.parts["products"] > alone.parts["products"] / 8 * 1.2


def test_gathering_is_per_microbatch_without_a_pipeline() -> None:
    slow = machine("a100", 64, 8, 1e9)
    net = network(spec(width=4096, heads=32))
    few, many = (StepModel(net, slow, 1024, 256).step(Plan(dp_shard=64, zero_stage=3, micro_batch=size)).parts["fsdp"] for size in (4, 1))
    assert many > 3 * few


# --- unequal layers ---------------------------------------------------------------------------------------------------


def test_experts_in_every_second_layer() -> None:
    net = network(spec(layers=8, experts=8))
    assert len(net.kinds) == 2 and net.counts(0, 8) == (4, 4)
    model = steps(net, a100(8))
    flat = model.step(Plan(dp_shard=8, zero_stage=1))
    spread = model.step(Plan(dp_shard=8, zero_stage=1, ep=8))
    assert spread.parts["ep"] > 0 and flat.parts["ep"] == 0
    assert (
        model.stage_weights(Plan(dp_shard=8, zero_stage=1, ep=8), 0, (8,))
        < model.stage_weights(Plan(dp_shard=8, zero_stage=1), 0, (8,)) / 2
    )


def test_a_frozen_tower_costs_a_forward_and_no_gradients() -> None:
    tower_block = Block(512, Attention(8, 8, 64, 64), Mlp(2048, gated=False), Norm("layer"))
    tower = Tower("siglip", "Layer", 512, Patches(14), (Run(6, tower_block),), positions=576)
    seeing = replace(spec(), tower=tower, projector=Projector(512, 1024, 1024))
    trained, frozen = network(seeing), network(seeing, ("tower",))
    assert len(trained.order) == 14 and trained.counts(0, 6) == (6, 0)
    plan = Plan(dp_shard=8, zero_stage=1)
    assert steps(frozen, a100(8)).step(plan).seconds < steps(trained, a100(8)).step(plan).seconds
    assert frozen.trainable_parameters < trained.trainable_parameters


# --- plans that are none ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tp": 0}, "tp is 0"),
        ({"pp": 2}, "come together"),
        ({"schedule": "1f1b"}, "come together"),
        ({"pp": 2, "schedule": "1f1b", "virtual_stages": 2}, "need the schedule interleaved"),
        ({"pp": 2, "schedule": "1f1b", "layer_split": (1, 2, 3)}, "2 are needed"),
        ({"ep": 3, "dp_shard": 4}, "ep 3 does not divide"),
        ({"zero_stage": 4}, "zero_stage is 4"),
        ({"activation_budget": 0.0}, "activation_budget"),
        ({"micro_batch": 10**9}, "micro_batch is 1000000000"),
    ],
)
def test_an_impossible_plan_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        Plan(**fields)
