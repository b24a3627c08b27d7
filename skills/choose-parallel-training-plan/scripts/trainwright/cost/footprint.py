# cost/footprint.py without its comments
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from trainwright.cost.layers import Layer
from trainwright.cost.pipeline import in_flight
from trainwright.cost.split import Stage
from trainwright.cost.step import StepModel
from trainwright.parallel import Plan

Metric = Literal["allocated", "reserved", "device"]
GIB = 2**30
MASTER, MOMENTS = 4, 8
LOGIT_BYTES = {"eager": 14, "compiled": 8, "chunked": 1}
BUCKET_BYTES = 1e9
MASK_BYTES = 1


@dataclass(frozen=True, slots=True)
class MemoryConstants:

    states: float = 1.0
    activations: float = 1.0
    logits: float = 1.0
    workspace: float = 1.0
    fixed_bytes: float = 3.0 * GIB
    slack: float = 0.02


MEMORY_CALIBRATED = {"states": 0.05, "activations": 0.15, "logits": 0.15, "workspace": 0.4, "fixed_bytes": 0.4, "slack": 0.7}


@dataclass(frozen=True, slots=True)
class StageMemory:

    stage: int
    parameters: float
    gradients: float
    optimizer: float
    gathered: float
    activations: float
    workspace: float
    logits: float
    buffers: float
    fixed: float
    slack: float
    in_flight: float
    layers: int

    @property
    def total(self) -> float:
        return self.allocated + self.slack + self.fixed

    @property
    def allocated(self) -> float:
        states = self.parameters + self.gradients + self.optimizer + self.gathered + self.buffers
        return states + self.activations + max(self.workspace, self.logits)

    def of(self, metric: Metric) -> float:
        return {"allocated": self.allocated, "reserved": self.allocated + self.slack, "device": self.total}[metric]

    def to_json(self) -> dict[str, Any]:
        names = ("parameters", "gradients", "optimizer", "gathered", "activations", "workspace", "logits", "buffers", "fixed", "slack")
        items = {name: round(getattr(self, name)) for name in names}
        return {"stage": self.stage, "layers": self.layers, "in_flight": self.in_flight, **items, "total": round(self.total)}


@dataclass(frozen=True, slots=True)
class LayerBytes:

    kept: float
    working: float


class Footprint:

    def __init__(self, model: StepModel, constants: MemoryConstants | None = None) -> None:
        self.model = model
        self.constants = constants or MemoryConstants()
        self.measured_workspace: float | None = None
        self._layers: dict[Any, LayerBytes] = {}

    def layer(self, kind: int, plan: Plan) -> LayerBytes:
        batch = (kind, plan.micro_batch, plan.tp, plan.cp, plan.sequence_parallel)
        key = (*batch, plan.recompute, plan.activation_budget, plan.compiled, plan.flash_attention)
        found = self._layers.get(key)
        if found is None:
            found = self._layers[key] = self._layer(self.model.network.kinds[kind], plan)
        return found

    def _layer(self, layer: Layer, plan: Plan) -> LayerBytes:
        if not layer.backward:
            return LayerBytes(0.0, 0.0)
        tokens, along = self.model.tokens(plan, layer), plan.tp if plan.sequence_parallel else 1
        stream, inner, scores = _stream(layer, plan), _inner(layer, plan), _scores(layer, self.model.seq_len, plan)
        whole = stream / along + inner / plan.tp + scores / min(plan.tp, layer.heads)
        input_bytes = 2 * layer.width / along
        kept = {
            "none": whole,
            "selective": whole - scores / min(plan.tp, layer.heads),
            "selective_op": input_bytes * (1 if plan.compiled else 2) + (2 * layer.heads * layer.value_dim + _outputs(layer)) / plan.tp,
            "budget": max(plan.activation_budget * whole, input_bytes),
            "full": input_bytes,
        }[plan.recompute]
        between = 2 * 2 * layer.width if plan.tp > 1 else 0
        working = inner / plan.tp / 2 + between + (whole if plan.recompute != "none" else 0)
        return LayerBytes(tokens * kept, tokens * working)

    def stages(self, plan: Plan, split: Sequence[int] | None = None) -> tuple[StageMemory, ...]:
        split = tuple(split) if split is not None else self.model.split(plan)
        chunks = self.model.chunks(plan, split)
        microbatches = max(self.model.global_batch // (plan.dp * plan.micro_batch), 1)
        return tuple(self._stage(plan, stage, chunks, microbatches) for stage in range(plan.pp))

    def peak(self, plan: Plan) -> StageMemory:
        return max(self.stages(plan), key=lambda stage: stage.total)

    def room(self, plan: Plan, capacity: float) -> tuple[list[float], list[float], list[Stage]]:
        c, kinds = self.constants, self.model.network.kinds
        grow = 1 + c.slack
        microbatches = max(self.model.global_batch // (plan.dp * plan.micro_batch), 1)
        states = [grow * c.states * (sum(self._layer_states(plan, kind)) + self._whole(plan) * _local(kind, plan)) for kind in kinds]
        kept = [grow * c.activations * self.layer(number, plan).kept for number in range(len(kinds))]
        ends = self.model.network.ends
        first, last = ends.first(plan.tp), ends.last(plan.tp, plan.pp > 1)
        alike, boundary = self._alike(plan), c.activations * self.boundary(plan)
        working = self._working(plan)
        loss = max(working, c.logits * self.logits(plan))
        found = []
        for stage in range(plan.pp):
            held = in_flight(plan, stage, microbatches)
            own = (first if stage == 0 else 0) + (last if stage == plan.pp - 1 else 0)
            whole = sum(self.states(plan, own, own * ends.trainable)) + self._whole(plan) * own
            base = c.states * (whole + self._unit(plan, stage)) + alike
            base += held * boundary + (loss if stage == plan.pp - 1 else working)
            found.append(Stage(bytes=grow * base, held=held, cap=capacity - c.fixed_bytes))
        return states, kept, found

    def _layer_states(self, plan: Plan, kind: Layer) -> tuple[float, float, float]:
        dense, experts = kind.local_dense(plan.tp), kind.local_experts(plan.ep)
        alike = max(plan.dp_shard * plan.cp * plan.tp // plan.ep, 1)
        first, second = self.states(plan, dense, dense * kind.trainable), self.states(plan, experts, experts * kind.trainable, alike)
        return first[0] + second[0], first[1] + second[1], first[2] + second[2]

    def _alike(self, plan: Plan) -> float:
        return BUCKET_BYTES if plan.dp > 1 and plan.zero_stage < 3 else 0.0

    def _working(self, plan: Plan) -> float:
        if self.measured_workspace is not None:
            return self.measured_workspace
        return self.constants.workspace * max(self.layer(kind, plan).working for kind in range(len(self.model.network.kinds)))

    def _stage(self, plan: Plan, stage: int, chunks: Sequence[tuple[int, ...]], microbatches: int) -> StageMemory:
        kinds, held, c = self.model.network.kinds, in_flight(plan, stage, microbatches), self.constants
        counts = [sum(column) for column in zip(*chunks[stage :: plan.pp], strict=True)]
        kept = sum(count * self.layer(kind, plan).kept for kind, count in enumerate(counts)) + self.boundary(plan)
        ends, last = self.model.network.ends, stage == plan.pp - 1
        own = (ends.first(plan.tp) if stage == 0 else 0) + (ends.last(plan.tp, plan.pp > 1) if last else 0)
        weights = own + sum(n * _local(kind, plan) for n, kind in zip(counts, kinds, strict=True))
        layers = [self._layer_states(plan, kind) for kind in kinds]
        roots = self.states(plan, own, own * ends.trainable)
        parameters, gradients, optimizer = (
            c.states * (roots[i] + sum(n * layer[i] for n, layer in zip(counts, layers, strict=True))) for i in range(3)
        )
        found = StageMemory(
            stage=stage,
            parameters=parameters,
            gradients=gradients,
            optimizer=optimizer,
            gathered=c.states * (self._whole(plan) * weights + self._unit(plan, stage)),
            activations=c.activations * held * kept,
            workspace=self._working(plan),
            logits=c.logits * self.logits(plan) if last else 0.0,
            buffers=self._alike(plan),
            fixed=c.fixed_bytes,
            slack=0.0,
            in_flight=held,
            layers=sum(counts),
        )
        return replace(found, slack=c.slack * found.allocated)

    def boundary(self, plan: Plan) -> float:
        if plan.pp == 1:
            return 0.0
        along = plan.tp if plan.sequence_parallel else 1
        return plan.virtual_stages * 2 * self.model.tokens(plan) * self.model.network.ends.width / along

    def states(self, plan: Plan, weights: float, trained: float, shards: int | None = None) -> tuple[float, float, float]:
        shards = shards or plan.dp_shard * plan.cp
        optimizer = trained * (MASTER + MOMENTS + (4 if plan.gradient_bytes == 2 else 0))
        if plan.precision == "fp32":
            optimizer = trained * MOMENTS
        size = 4 if plan.precision == "fp32" else 2
        offloaded = 0.0 if plan.offload == "optimizer" else 1.0
        if plan.zero_stage == 3:
            return weights * 4 / shards, trained * 4 / shards, trained * MOMENTS / shards * offloaded
        gradients = trained * (plan.gradient_bytes + (2 if plan.gradient_bytes == 4 and plan.precision != "fp32" else 0))
        if plan.zero_stage == 2:
            gradients /= shards
        return weights * size, gradients, optimizer / (shards if plan.zero_stage else 1) * offloaded

    def _whole(self, plan: Plan) -> float:
        if not plan.fully_sharded or (plan.pp == 1 and plan.reshard_after_forward):
            return 0.0
        return 2.0 + (4.0 if plan.pp > 1 else 2.0)

    def _unit(self, plan: Plan, stage: int) -> float:
        if not plan.fully_sharded or self._whole(plan):
            return 0.0
        network = self.model.network
        unit = max(_local(kind, plan) for kind in network.kinds)
        root = network.ends.vocab * network.ends.width / plan.tp if stage in (0, plan.pp - 1) else 0
        return max(2 * 2 * unit + 4 * unit, 2 * root + 4 * root + 2 * 2 * unit)

    def logits(self, plan: Plan) -> float:
        tokens, ends = self.model.tokens(plan), self.model.network.ends
        between = 2 * 2 * ends.width if plan.tp > 1 else 0
        return tokens * (ends.vocab / plan.tp * LOGIT_BYTES[plan.loss] + between)

    def host_bytes(self, plan: Plan, per_node: int) -> float:
        weights = max(self.model.stage_weights(plan, stage, self.model.split(plan)) for stage in range(plan.pp))
        shards = plan.dp_shard * plan.cp if plan.zero_stage else 1
        kept = weights * (MASTER + MOMENTS) / shards if plan.offload == "optimizer" else 0.0
        return per_node * (4 * weights / (shards if plan.zero_stage == 3 else 1) + kept)


def _local(layer: Layer, plan: Plan) -> int:
    return layer.local_parameters(plan.tp, plan.ep)


def _stream(layer: Layer, plan: Plan) -> float:
    norms = 2 * (2 + 2) * layer.width
    if not layer.gated:
        return norms + 2 * MASK_BYTES * layer.width
    return norms if plan.compiled else norms + 2 * 8 * layer.width


def _inner(layer: Layer, plan: Plan) -> float:
    q, k = layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim
    v, out = layer.kv_heads * layer.value_dim, layer.heads * layer.value_dim
    rotated = 2 * (q + k) if layer.gated and not plan.compiled else 0
    mlp = (8 if layer.gated and not plan.compiled else 6 if layer.gated else 4) * layer.inner
    return 2 * (q + k + v) + rotated + 2 * out + mlp


def _scores(layer: Layer, seq_len: int, plan: Plan) -> float:
    if plan.flash_attention:
        return 0.0
    return 5 * layer.heads * min(layer.window or seq_len, layer.tokens or seq_len)


def _outputs(layer: Layer) -> float:
    return sum(matrix.out * (layer.per_token if matrix.expert else 1) for matrix in layer.matrices)
