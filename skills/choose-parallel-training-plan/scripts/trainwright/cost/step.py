# cost/step.py without its comments
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trainwright.cost.collectives import Network as Links
from trainwright.cost.compute import OPTIMIZER_BYTES, Compute
from trainwright.cost.constants import Constants
from trainwright.cost.layers import Layer, Network
from trainwright.cost.machine import Machine
from trainwright.cost.pipeline import step_seconds
from trainwright.cost.split import equal
from trainwright.errors import UserError
from trainwright.parallel import Plan, PlanError

ASYNC_TP_HIDDEN = 0.6
PARTS = (
    "products",
    "attention",
    "elementwise",
    "head",
    "repeated",
    "tp",
    "cp",
    "ep",
    "fsdp",
    "transfer",
    "bubble",
    "sync",
    "optimizer",
    "slowest",
)


@dataclass(frozen=True, slots=True)
class Pass:

    forward: float
    backward: float
    parts: dict[str, float] = field(default_factory=dict)

    @property
    def both(self) -> float:
        return self.forward + self.backward

    def times(self, factor: float) -> Pass:
        if factor == 1.0:
            return self
        return Pass(self.forward * factor, self.backward * factor, {name: value * factor for name, value in self.parts.items()})


@dataclass(frozen=True, slots=True)
class StepTime:

    seconds: float
    parts: dict[str, float]
    stages: tuple[float, ...]
    microbatches: int
    split: tuple[int, ...]

    @property
    def bubble(self) -> float:
        return self.parts["bubble"] / self.seconds

    def to_json(self) -> dict[str, Any]:
        return {
            "seconds": float(f"{self.seconds:.7g}"),
            "parts": {name: float(f"{self.parts.get(name, 0.0):.7g}") for name in PARTS},
            "stage_seconds": [float(f"{value:.7g}") for value in self.stages],
            "microbatches": self.microbatches,
            "layer_split": list(self.split),
        }


class StepModel:

    def __init__(self, network: Network, machine: Machine, seq_len: int, global_batch: int, constants: Constants | None = None) -> None:
        if not network.order:
            raise UserError(f"{network.name} has no layers; there is nothing to place")
        for said, value in (("sequence length", seq_len), ("global batch", global_batch)):
            if value < 1:
                raise UserError(f"the {said} is {value}; give 1 or more")
        self.network, self.machine = network, machine
        self.seq_len, self.global_batch = seq_len, global_batch
        self.constants = constants or Constants()
        self.compute = Compute(machine.device, self.constants)
        self.links = Links(machine, self.constants)
        self.measured: dict[tuple[int, int], float] = {}
        self._passes: dict[Any, Pass] = {}


    def tokens(self, plan: Plan, layer: Layer | None = None) -> float:
        each = self.seq_len if layer is None or layer.tokens is None else layer.tokens
        return plan.micro_batch * each / plan.cp

    def layer_pass(self, kind: int, plan: Plan) -> Pass:
        key = (kind, *_features(plan))
        found = self._passes.get(key)
        if found is None:
            found = self._passes[key] = self._pass(self.network.kinds[kind], plan).times(self.factor(plan))
        return found

    def forget(self) -> None:
        self._passes.clear()

    def factor(self, plan: Plan) -> float:
        if not self.measured:
            return 1.0
        mean = math.exp(math.fsum(map(math.log, self.measured.values())) / len(self.measured))
        return self.measured.get((plan.micro_batch, plan.tp), mean)

    def _pass(self, layer: Layer, plan: Plan) -> Pass:
        tokens = self.tokens(plan, layer)
        seq = self.seq_len if layer.tokens is None else layer.tokens
        one = self.compute.layer(layer, tokens, seq, plan)
        tp = self._tp(layer, tokens, plan)
        cp = self._cp(layer, tokens, plan, self.compute.attention(layer, tokens, seq, plan))
        ep = self._ep(layer, tokens, plan)
        again = plan.recompute == "full" and layer.backward
        forward = one.forward + tp + ep + cp[0]
        backward = one.backward + one.repeated + tp + ep + cp[1] + again * (tp + ep + cp[0]) if layer.backward else 0.0
        hidden = self._fsdp(layer, plan, forward, backward)
        times = 1 + layer.backward + again
        parts = {
            "products": one.products,
            "attention": one.attention,
            "elementwise": one.forward + one.backward - one.products - one.attention,
            "repeated": one.repeated,
            "tp": times * tp,
            "ep": times * ep,
            "cp": cp[0] + layer.backward * cp[1] + again * cp[0],
            "fsdp": sum(hidden),
        }
        return Pass(forward + hidden[0], backward + hidden[1], parts)

    def _tp(self, layer: Layer, tokens: float, plan: Plan) -> float:
        if plan.tp == 1:
            return 0.0
        whole = 2 * self.links.time("all_reduce", tokens * layer.width * 2, plan.tp, 1)
        return whole * (1 - ASYNC_TP_HIDDEN if plan.async_tp else 1)

    def _cp(self, layer: Layer, tokens: float, plan: Plan, attention: float) -> tuple[float, float]:
        if plan.cp == 1:
            return 0.0, 0.0
        if plan.context == "ulysses":
            moved = tokens * (2 * layer.heads + 2 * layer.kv_heads) * layer.head_dim * 2 / plan.tp
            each = self.links.time("all_to_all", moved, plan.cp, plan.tp)
            return each, each
        held = 2 * tokens * max(layer.kv_heads / plan.tp, 1) * layer.head_dim * 2
        ring = (plan.cp - 1) * self.links.time("p2p", held, plan.cp, plan.tp)
        slow = self.constants.overlap_cost
        forward = max(ring - attention, 0.0) + slow * min(ring, attention)
        return forward, max(2 * ring - 2.5 * attention, 0.0) + slow * min(2 * ring, 2.5 * attention)

    def _ep(self, layer: Layer, tokens: float, plan: Plan) -> float:
        if plan.ep == 1 or not layer.experts:
            return 0.0
        moved = tokens * layer.per_token * layer.width * 2 / (plan.tp if plan.sequence_parallel else 1)
        return 2 * self.links.time("all_to_all", moved, plan.ep, 1 if plan.ep > plan.cp * plan.dp_shard else plan.tp)

    def _fsdp(self, layer: Layer, plan: Plan, forward: float, backward: float) -> tuple[float, float]:
        if not plan.fully_sharded or plan.pp > 1:
            return 0.0, 0.0
        weights = layer.local_parameters(plan.tp, plan.ep)
        gather, scatter = self._gather(weights, plan), self._scatter(weights if layer.trainable else 0, plan)
        again = gather if plan.reshard_after_forward else 0.0
        return self._exposed(gather, forward), self._exposed(again + scatter, backward)

    def _gather(self, weights: float, plan: Plan) -> float:
        return self.links.time(
            "all_gather", weights * (1 if plan.precision == "fp8" else 2), plan.dp_shard * plan.cp, plan.tp, plan.one_rail
        )

    def _scatter(self, weights: float, plan: Plan) -> float:
        return self.links.time("reduce_scatter", weights * plan.gradient_bytes, plan.dp_shard * plan.cp, plan.tp, plan.one_rail)

    def _exposed(self, communication: float, compute: float) -> float:
        return max(communication - compute, 0.0) + self.constants.overlap_cost * min(communication, compute)


    def split(self, plan: Plan) -> tuple[int, ...]:
        if plan.layer_split is not None:
            if sum(plan.layer_split) != self.network.num_layers:
                raise UserError(f"layer_split places {sum(plan.layer_split)} layers; {self.network.name} has {self.network.num_layers}")
            return plan.layer_split
        if plan.chunks > self.network.num_layers:
            raise PlanError(
                f"{plan.chunks} stages are more than the {self.network.num_layers} layers; name a layer_split to leave stages empty"
            )
        return equal(self.network.num_layers, plan.chunks)

    def chunks(self, plan: Plan, split: Sequence[int]) -> list[tuple[int, ...]]:
        found, at = [], 0
        for size in split:
            found.append(self.network.counts(at, at + size))
            at += size
        return found

    def head(self, plan: Plan) -> Pass:
        key = ("head", plan.loss, *_features(plan))
        found = self._passes.get(key)
        if found is None:
            found = self._passes[key] = self._head(plan).times(self.factor(plan))
        return found

    def _head(self, plan: Plan) -> Pass:
        forward, backward = self.compute.head(self.network.ends, self.tokens(plan), plan)
        sync = self.links.time("all_reduce", self.tokens(plan) * self.network.ends.width * 2, plan.tp, 1)
        hidden = (0.0, 0.0)
        if plan.fully_sharded and plan.pp == 1:
            weights = self.network.ends.vocab * self.network.ends.width / plan.tp
            hidden = (self._exposed(self._gather(weights, plan), forward), self._exposed(self._scatter(weights, plan), backward))
        parts = {"head": forward + backward, "tp": 2 * sync, "fsdp": sum(hidden)}
        return Pass(forward + sync + hidden[0], backward + sync + hidden[1], parts)

    def stage_seconds(self, plan: Plan, split: Sequence[int]) -> list[float]:
        found = [0.0] * plan.pp
        for number, chunk in enumerate(self.chunks(plan, split)):
            found[plan.stage_of(number)] += sum(count * self.layer_pass(kind, plan).both for kind, count in enumerate(chunk) if count)
        found[-1] += self.head(plan).both
        return found

    def seconds(self, plan: Plan, split: Sequence[int]) -> float:
        return self._total(plan, self.stage_seconds(plan, split), plan.microbatches(self.global_batch))[0]

    def _total(self, plan: Plan, stages: list[float], microbatches: int) -> tuple[float, float, list[float], tuple[float, float]]:
        sending = 2 * self.transfer(plan) if plan.pp > 1 else 0.0
        shown = self.constants.overlap_cost * sending * plan.virtual_stages
        exposed = [seconds + shown for seconds in stages]
        work = step_seconds(exposed, sending, microbatches, plan.schedule, plan.virtual_stages)
        after = self.after(plan)
        return (work + sum(after)) * self.machine.slowest * self.jitter(plan), work, exposed, after

    def step(self, plan: Plan) -> StepTime:
        if plan.world_size != self.machine.devices:
            raise UserError(f"the plan needs {plan.world_size} devices, the machine has {self.machine.devices}")
        microbatches, split = plan.microbatches(self.global_batch), self.split(plan)
        stages = self.stage_seconds(plan, split)
        total, work, exposed, after = self._total(plan, stages, microbatches)
        slowest = max(range(plan.pp), key=lambda i: stages[i])
        parts = {name: microbatches * value for name, value in self._stage_parts(plan, split, slowest).items()}
        parts["transfer"] = microbatches * (exposed[slowest] - stages[slowest])
        parts["bubble"] = work - microbatches * exposed[slowest]
        parts["sync"], parts["optimizer"] = after
        parts["slowest"] = total - work - sum(after)
        return StepTime(total, parts, tuple(exposed), microbatches, split)

    def _stage_parts(self, plan: Plan, split: Sequence[int], stage: int) -> dict[str, float]:
        parts: dict[str, float] = {}
        for chunk in self.chunks(plan, split)[stage :: plan.pp]:
            for kind, count in enumerate(chunk):
                if count:
                    _add(parts, self.layer_pass(kind, plan).parts, count)
        if stage == plan.pp - 1:
            _add(parts, self.head(plan).parts, 1)
        return parts

    def jitter(self, plan: Plan) -> float:
        nodes = self.machine.devices / self.machine.node
        if not plan.fully_sharded or plan.pp > 1 or nodes <= 1:
            return 1.0
        return 1 + self.constants.jitter * math.log2(nodes)

    def transfer(self, plan: Plan) -> float:
        if plan.pp == 1:
            return 0.0
        layer = self.network.kinds[self.network.order[-1]]
        moved = self.tokens(plan, layer) * layer.width * 2 / plan.tp
        return self.links.send(moved, plan.tp * plan.cp * plan.dp)

    def stage_weights(self, plan: Plan, stage: int, split: Sequence[int]) -> float:
        ends, kinds = self.network.ends, self.network.kinds
        if len(kinds) == 1:
            found = sum(split[stage :: plan.pp]) * kinds[0].local_parameters(plan.tp, plan.ep)
        else:
            mine = self.chunks(plan, split)[stage :: plan.pp]
            found = sum(n * kinds[kind].local_parameters(plan.tp, plan.ep) for chunk in mine for kind, n in enumerate(chunk))
        return found + (ends.first(plan.tp) if stage == 0 else 0) + (ends.last(plan.tp, plan.pp > 1) if stage == plan.pp - 1 else 0)

    def after(self, plan: Plan) -> tuple[float, float]:
        network = self.network
        counts = network.counts(0, network.num_layers)
        weights = sum(n * kind.local_parameters(plan.tp, plan.ep) for n, kind in zip(counts, network.kinds, strict=True)) / plan.pp
        weights += network.ends.first(plan.tp) + (network.ends.last(plan.tp, False) if plan.pp == 1 else 0)
        shards = plan.dp_shard * plan.cp if plan.zero_stage else 1
        sync = self._sync(plan, weights, shards)
        if plan.overlap_gradients and plan.pp == 1 and sync:
            sync = self._exposed(sync, self._backward(plan))
        return sync, self._update(plan, weights / shards)

    def _update(self, plan: Plan, weights: float) -> float:
        if plan.offload == "none":
            return self.compute.optimizer(weights)
        moved = weights * (plan.gradient_bytes + 2) / self.constants.host_link
        return moved + weights * OPTIMIZER_BYTES / self.constants.host_memory

    def _backward(self, plan: Plan) -> float:
        counts = self.network.counts(0, self.network.num_layers)
        return sum(n * self.layer_pass(kind, plan).backward for kind, n in enumerate(counts)) + self.head(plan).backward

    def _sync(self, plan: Plan, weights: float, shards: int) -> float:
        links, size = self.links, plan.dp * plan.cp
        if plan.zero_stage == 0:
            return links.time("all_reduce", weights * plan.gradient_bytes, size, plan.tp)
        copies = links.time("all_reduce", weights / shards * plan.gradient_bytes, plan.dp_replicate, plan.tp * shards)
        if plan.zero_stage == 3:
            once = self._gather(weights, plan) + self._scatter(weights, plan) if plan.pp > 1 and shards > 1 else 0.0
            return copies + once
        return copies + self._scatter(weights, plan) + self._gather(weights, plan)


def _add(into: dict[str, float], parts: dict[str, float], times: float) -> None:
    for name, value in parts.items():
        into[name] = into.get(name, 0.0) + times * value


def _features(plan: Plan) -> tuple[Any, ...]:
    sharded = (plan.dp_shard, plan.pp == 1, plan.reshard_after_forward, plan.one_rail, plan.gradient_bytes) if plan.zero_stage == 3 else ()
    batch = (plan.micro_batch, plan.tp, plan.cp, plan.ep, plan.sequence_parallel, plan.precision)
    return (*batch, plan.recompute, plan.activation_budget, plan.async_tp, plan.compiled, plan.flash_attention, plan.context, sharded)
