"""The search against a nested-loop oracle that knows nothing of it, and the shapes that choosers get wrong."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import Any

import pytest

from trainwright.cost.footprint import Footprint
from trainwright.cost.layers import network
from trainwright.cost.machine import machine
from trainwright.cost.step import StepModel
from trainwright.errors import UserError
from trainwright.model import ModelSpec, load_model
from trainwright.parallel import Plan, PlanError
from trainwright.parts import Attention, Block, Decoder, Embedding, Experts, Head, Mlp, Norm, Run
from trainwright.plan import space as spaces
from trainwright.plan.search import Found, bounded, search
from trainwright.plan.space import Job, Space, Tally

GIB = 2**30
LLAVA = Path(__file__).resolve().parents[1] / "families" / "published" / "llava-1.5-7b.json"


def spec(layers: int = 8, width: int = 1024, heads: int = 16, vocab: int = 32000, experts: int = 0) -> ModelSpec:
    dim = width // heads
    block = Block(width, Attention(heads, heads, dim, dim), Mlp(4 * width), Norm())
    runs: tuple[Run, ...] = (Run(layers, block),)
    if experts:
        mixed = replace(block, mlp=Experts(experts, 2, 2 * width))
        runs = tuple(Run(1, mixed if i % 2 else block) for i in range(layers))
    return ModelSpec("test", "test", Decoder("test", "Block", Embedding(vocab, width), runs, Norm(), Head(), 4096))


class Setting:
    """One problem: a model on a machine, with a cap."""

    def __init__(self, model: ModelSpec, devices: int, batch: int, cap: float, node: int = 8, name: str = "a100", seq: int = 1024) -> None:
        self.cap = cap
        found = machine(name, devices, node, 25e9, cap)
        net = network(model)
        self.steps = StepModel(net, found, seq, batch)
        self.footprint = Footprint(self.steps)
        self.job = Job(net, devices, node, seq, batch)

    def search(self, space: Space | None = None) -> Found:
        return search(self.job, self.steps, self.footprint, self.cap, space)


# --- the oracle -------------------------------------------------------------------------------------------------------


def cuts(layers: int, parts: int) -> Iterator[tuple[int, ...]]:
    for bars in combinations(range(layers + parts - 1), parts - 1):
        ends = (-1, *bars, layers + parts - 1)
        yield tuple(b - a - 1 for a, b in pairwise(ends))


def oracle(at: Setting, space: Space) -> float | None:
    """The least step of all shapes, all options and all cuts, by loops over everything; None where nothing fits."""
    job, best = at.job, None
    layers, n = job.network.num_layers, job.devices
    sizes = range(1, n + 1)
    for tp, pp, ep in product(sizes, sizes, range(1, 9)):
        if n % (tp * pp) or pp > layers or tp > job.node or job.node % tp or any(kind.heads % tp for kind in job.network.kinds):
            continue
        dp = n // (tp * pp)
        experts = max(kind.experts for kind in job.network.kinds)
        if job.global_batch % dp or (ep > 1 and (not experts or experts % ep or (dp * tp) % ep)):
            continue
        for micro, recompute, loss in product(space.micro_batches or (), space.recomputes, space.losses):
            if (job.global_batch // dp) % micro:
                continue
            m = job.global_batch // dp // micro
            for stage, replicate, shard in shares(dp, pp, tp, job.node):
                for schedule, v in ways(pp, m, layers, space):
                    common: dict[str, Any] = {"tp": tp, "pp": pp, "ep": ep, "micro_batch": micro, "recompute": recompute, "loss": loss}
                    common |= {"dp_replicate": replicate, "dp_shard": shard, "zero_stage": stage, "sequence_parallel": tp > 1}
                    for cut in cuts(layers, pp) if v == 1 else [(layers // (pp * v),) * (pp * v)]:
                        plan = Plan(**common, schedule=schedule, virtual_stages=v, layer_split=cut)  # type: ignore[arg-type]
                        if at.footprint.peak(plan).total <= at.cap * (1 + 1e-12):
                            seconds = at.steps.step(plan).seconds
                            best = seconds if best is None else min(best, seconds)
    return best


def shares(dp: int, pp: int, tp: int, node: int) -> list[tuple[int, int, int]]:
    if dp == 1:
        return [(0, 1, 1)]
    found = [(0, dp, 1), (1, 1, dp), (3, 1, dp)] + ([(2, 1, dp)] if pp == 1 else [])
    inside = node // tp
    return found + ([(3, dp // inside, inside)] if pp == 1 and 1 < inside < dp and dp % inside == 0 else [])


def ways(pp: int, m: int, layers: int, space: Space) -> list[tuple[str, int]]:
    if pp == 1:
        return [("none", 1)]
    found: list[tuple[str, int]] = [(name, 1) for name in space.schedules if name != "interleaved"]
    if "interleaved" in space.schedules and m % pp == 0:
        found += [("interleaved", v) for v in (2, 3, 4) if layers % (pp * v) == 0]
    return found


def drawn(seed: int) -> tuple[Setting, Space]:
    rng = random.Random(seed)
    heads = rng.choice([4, 6, 8])
    model = spec(rng.randint(2, 6), 64 * heads, heads, rng.choice([1000, 32000, 128000]), rng.choice([0, 0, 0, 4]))
    devices, node = rng.choice([(1, 8), (2, 8), (3, 12), (4, 4), (4, 2), (6, 6), (6, 3), (8, 8), (8, 4), (12, 12), (16, 8)])
    batch = rng.choice([devices, 2 * devices, 12, 16])
    cap = rng.choice([4, 5, 6, 8, 16]) * GIB
    some = [("none", "full"), ("full",), ("none",), ("selective_op",)]
    schedules: list[tuple[Any, ...]] = [("1f1b",), ("1f1b", "interleaved"), ("gpipe", "zero-bubble")]
    losses: list[tuple[Any, ...]] = [("eager",), ("compiled",)]
    space = Space(
        micro_batches=rng.choice([(1,), (2,), (1, 4)]),
        schedules=rng.choice(schedules),
        recomputes=rng.choice(some),  # type: ignore[arg-type]
        losses=rng.choice(losses),
    )
    return Setting(model, devices, batch, cap, node, seq=rng.choice([512, 2048])), space


def agree(seeds: range) -> int:
    """How many of the problems had a plan that fits."""
    feasible = 0
    for seed in seeds:
        at, space = drawn(seed)
        expected, found = oracle(at, space), at.search(space).best
        assert (found is None) == (expected is None), seed
        if found is not None and expected is not None:
            assert found.seconds == pytest.approx(expected, rel=1e-7), (seed, found.plan.name)
            assert at.steps.step(found.plan).seconds == pytest.approx(found.seconds), "what is shown is what was priced"
            assert at.footprint.peak(found.plan).total == pytest.approx(found.bytes)
            feasible += 1
    return feasible


def test_no_mismatch_with_the_oracle() -> None:
    assert agree(range(24)) > 8


@pytest.mark.long
def test_no_mismatch_with_the_oracle_in_500() -> None:
    assert agree(range(100, 600)) > 200


# --- metamorphic ------------------------------------------------------------------------------------------------------


def test_more_memory_never_makes_the_best_worse() -> None:
    times = []
    for cap in (5, 6, 8, 12, 80):
        best = Setting(spec(8, 2048, 16), 4, 64, cap * GIB).search().best
        times.append(best.seconds if best else float("inf"))
    assert times == sorted(times, reverse=True) and times[-1] < times[0]


def test_removing_candidates_never_makes_the_best_better() -> None:
    at = Setting(spec(8, 2048, 16), 16, 64, 24 * GIB)
    whole = at.search().best
    assert whole is not None
    for narrower in (Space(max_tp=1), Space(max_pp=1), Space(losses=("eager",)), Space(recomputes=("full",)), Space(micro_batches=(1,))):
        best = at.search(narrower).best
        assert best is None or best.seconds >= whole.seconds


def test_the_same_every_time() -> None:
    first, second = (Setting(spec(), 16, 64, 24 * GIB).search() for _ in range(2))
    assert [one.plan for one in first.fitting] == [one.plan for one in second.fitting]
    assert first.rejected == second.rejected


def test_equal_times_go_to_the_simpler_plan() -> None:
    """On one device nothing is communicated: plain and sharded states would tie."""
    best = Setting(spec(), 1, 8, 80 * GIB).search(Space(recomputes=("none",), losses=("eager",), micro_batches=(8,))).best
    assert best is not None and best.plan.name == "single mbs8"
    assert Plan(tp=2).simplicity() < Plan(pp=2, schedule="1f1b").simplicity()
    assert Plan(dp_shard=2).simplicity() < Plan(dp_shard=2, tp=2).simplicity()


# --- machines that are no power of two, layers that do not divide -------------------------------------------------------


def test_twelve_tiles_are_first_class() -> None:
    at = Setting(spec(12, 1536, 12), 36, 72, 60 * GIB, node=12, name="max-1550-tile")
    found = at.search()
    sizes = {one.plan.tp for one in found.fitting}
    assert sizes == {1, 2, 3, 4, 6, 12} and found.best is not None
    assert all(one.plan.world_size == 36 for one in found.fitting)
    assert {one.plan.dp % 3 for one in found.fitting if one.plan.tp == 4 and one.plan.pp == 1} == {0}


def test_eight_do_not_divide_twelve() -> None:
    tally = Tally()
    at = Setting(spec(8, 1024, 16), 24, 24, 60 * GIB, node=12, name="max-1550-tile")
    assert all(mesh.tp in (1, 2, 4) for mesh in spaces.meshes(at.job, Space(), tally))
    assert "tp 8 does not divide a node of 12 devices: groups would straddle nodes" in tally.rejected
    assert "tp 3 does not divide the attention heads" in tally.rejected


def test_layers_that_do_not_divide_are_split_unevenly() -> None:
    """78 layers on 12 stages: Megatron-LM refuses equal stages; no interleaving is offered."""
    at = Setting(spec(78, 512, 8), 24, 48, 80 * GIB)
    plans = [one.plan for one in at.search(Space(max_tp=1)).fitting if one.plan.pp == 12]
    assert plans and all(plan.layer_split and sum(plan.layer_split) == 78 and plan.schedule == "1f1b" for plan in plans)


def test_126_layers_on_16_stages() -> None:
    """Llama 3 405B took a layer off its first and last stage; no stage of the best split is slower than what equal layers would make."""
    found = machine("h100", 128, 8, 50e9, 80 * GIB)
    steps = StepModel(network(load_model("405b")), found, 8192, 64)
    footprint = Footprint(steps)
    job = Job(steps.network, 128, 8, 8192, 64)
    plan = Plan(tp=8, sequence_parallel=True, pp=16, schedule="1f1b", recompute="full", loss="compiled")
    best = search(job, steps, footprint, 500 * GIB, candidates=[plan]).best
    assert best is not None and best.plan.layer_split is not None and sum(best.plan.layer_split) == 126
    assert best.plan.layer_split[-1] < max(best.plan.layer_split) == 8
    equal = replace(plan, layer_split=(8,) * 14 + (7, 7))
    assert best.seconds <= steps.step(equal).seconds


def test_rounds_that_do_not_come_out_even_are_not_interleaved() -> None:
    """Six microbatches on four stages: older Megatron-LM refuses them."""
    at = Setting(spec(16, 512, 8), 4, 6, 80 * GIB)
    assert {plan.schedule for plan in spaces.plans(at.job, Space(max_tp=1, micro_batches=(1,)), Tally()) if plan.pp == 4} == {"1f1b"}
    at = Setting(spec(16, 512, 8), 4, 8, 80 * GIB)
    wide = {plan.schedule for plan in spaces.plans(at.job, Space(max_tp=1, micro_batches=(1,)), Tally()) if plan.pp == 4}
    assert wide == {"1f1b", "interleaved"}


def test_a_tower_before_the_layers_is_split_by_what_it_costs() -> None:
    """LLaVA: 24 narrow layers of a vision tower before 32 wide ones: the first of four stages holds more than a quarter of the layers."""
    at = Setting(load_model(str(LLAVA)), 8, 32, 80 * GIB)
    space = Space(max_tp=1, micro_batches=(1,), schedules=("1f1b",))
    plans = [one.plan for one in at.search(space).fitting if one.plan.pp == 4]
    assert plans and all(plan.layer_split and sum(plan.layer_split) == 56 and plan.layer_split[0] > 24 for plan in plans)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tp": 3}, "tp 3 does not divide 16"),
        ({"tp": 32}, "tp 32 does not divide 16"),
        ({"ep": 2, "tp": 2}, "has no experts"),
        ({"pp": 9, "schedule": "1f1b"}, "9 stages are more than the 8 layers"),
    ],
)
def test_plans_that_the_model_cannot_be_cut_by(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        spaces.possible(Plan(**fields), network(spec()))


def test_experts_that_ep_does_not_divide() -> None:
    with pytest.raises(PlanError, match="ep 3 does not divide 4 experts"):
        spaces.possible(Plan(ep=3, dp_shard=3, zero_stage=1), network(spec(experts=4)))


def test_states_on_the_host_take_less_room_and_longer() -> None:
    at = Setting(spec(8, 2048, 16), 4, 16, 80 * GIB)
    here = Plan(dp_shard=4, zero_stage=1)
    there = replace(here, offload="optimizer")
    assert at.footprint.peak(there).total < at.footprint.peak(here).total
    assert at.footprint.host_bytes(there, 4) > at.footprint.host_bytes(here, 4)
    assert at.steps.step(there).parts["optimizer"] > 3 * at.steps.step(here).parts["optimizer"]


def test_what_to_turn_to_where_memory_runs_out() -> None:
    """The fewest settings changed, and enough of the bytes saved."""
    found = Setting(spec(8, 2048, 16), 16, 64, 40 * GIB).search()
    assert found.best is not None
    lighter = found.lighter(found.best)
    assert lighter is not None and lighter.bytes <= 0.85 * found.best.bytes
    changed = sum(getattr(lighter.plan, name) != getattr(found.best.plan, name) for name in Plan.__slots__)
    others = [one for one in found.fitting if one.bytes <= 0.85 * found.best.bytes]
    assert changed <= min(sum(getattr(one.plan, n) != getattr(found.best.plan, n) for n in Plan.__slots__) for one in others)


def test_a_large_vocabulary_leaves_the_head_alone() -> None:
    """Vocabulary 256k, 12 layers of 2,048: the head is six layers' work, so the last of four stages holds one or none."""
    at = Setting(spec(12, 2048, 16, 256000), 8, 64, 80 * GIB)
    plans = [one.plan for one in at.search(Space(max_tp=1, schedules=("1f1b",))).fitting if one.plan.pp == 4]
    assert plans and all(plan.layer_split is not None and plan.layer_split[-1] <= 1 for plan in plans)


def test_equal_stages_would_not_fit_and_uneven_ones_do() -> None:
    """At a cap between the fullest stage of equal layers and that of the best split."""
    at = Setting(spec(16, 2048, 16, 128000), 4, 32, 80 * GIB)
    plan = Plan(pp=4, schedule="1f1b", micro_batch=4)
    equal = at.footprint.peak(plan).total
    tight = Setting(spec(16, 2048, 16, 128000), 4, 32, equal * 0.97)
    space = Space(max_tp=1, micro_batches=(4,), schedules=("1f1b",), recomputes=("none",), losses=("eager",))
    fitting = [one.plan for one in tight.search(space).fitting if one.plan.pp == 4]
    assert fitting and fitting[0].layer_split != (4, 4, 4, 4)


def test_gradients_alone_are_not_sharded_through_a_pipeline() -> None:
    at = Setting(spec(), 16, 64, 80 * GIB)
    assert not [one for one in at.search().fitting if one.plan.zero_stage == 2 and one.plan.pp > 1]


def test_nothing_fits_is_an_answer() -> None:
    found = Setting(spec(8, 4096, 32), 2, 8, 4 * GIB).search()
    assert found.best is None and found.fallback is None and found.alternatives() == []
    assert sum(n for reason, n in found.rejected.items() if reason.startswith("memory")) == found.priced


def test_alternatives_are_on_the_front() -> None:
    found = Setting(spec(8, 2048, 16), 16, 64, 40 * GIB).search()
    assert found.best is not None
    seconds, used = found.best.seconds, found.best.bytes
    others = found.alternatives()
    assert 0 < len(others) <= 3
    for one in others:
        assert one.seconds >= seconds and one.bytes < used
        seconds, used = one.seconds, one.bytes


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_too_many_candidates_are_thinned_and_say_so() -> None:
    at = Setting(spec(96, 1024, 16), 4096, 2**20, 80 * GIB)
    wide = Space(micro_batches=tuple(2**n for n in range(12)), virtual_stages=tuple(range(1, 97)), offloads=("none", "optimizer") * 1000)
    assert spaces.size(at.job, wide) > 10**7
    space, notes, complete = bounded(at.job, wide)
    assert not complete and "no optimum is proven" in notes[0]
    assert 0 < spaces.size(at.job, space) <= spaces.LARGEST_SPACE


def test_a_pipeline_has_a_longest_length() -> None:
    at = Setting(spec(1024, 64, 1), 1024, 1024, 80 * GIB)
    assert max(mesh.pp for mesh in spaces.meshes(at.job, Space(), Tally())) == spaces.LONGEST_PIPELINE == Space().to_json()["max_pp"]


def test_the_size_is_the_count() -> None:
    for seed in range(12):
        at, space = drawn(seed)
        assert spaces.size(at.job, space) == sum(1 for _ in spaces.plans(at.job, space, Tally()))


@pytest.mark.parametrize(("devices", "batch", "said"), [(0, 8, "give 1 or more"), (8, 0, "global batch"), (8, 10**9, "global batch")])
def test_impossible_jobs_are_refused(devices: int, batch: int, said: str) -> None:
    with pytest.raises((UserError, PlanError), match=said):
        Setting(spec(), devices, batch, 80 * GIB).search()
