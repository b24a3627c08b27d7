# cost/compute.py without its comments
from __future__ import annotations

import math
from dataclasses import dataclass

from trainwright.cost.constants import Constants
from trainwright.cost.layers import Ends, Layer, Matrix
from trainwright.cost.machine import Device
from trainwright.parallel import Plan

NORM_BYTES, RESIDUAL_BYTES, RESHAPE_BYTES = 2 * 4, 2 * 6, 8
INNER_BYTES, GATED_BYTES = 4, 6
FUSED = 0.5
SCORE_BYTES = 12
KERNELS = 14
BACKWARD_TRAFFIC, BACKWARD_FLASH, BACKWARD_SCORES = 2.0, 2.5, 2.0
HEAD_EAGER_BYTES, HEAD_COMPILED_BYTES = 24, 8
OPTIMIZER_BYTES = 28
TILES = (((256, 128), 1.0), ((128, 256), 1.0), ((128, 128), 0.95), ((128, 64), 0.8), ((64, 64), 0.6))
VECTOR = 1 / 16


@dataclass(frozen=True, slots=True)
class Passes:

    forward: float
    backward: float
    repeated: float
    products: float
    attention: float


class Compute:

    def __init__(self, device: Device, constants: Constants) -> None:
        self.device = device
        self.constants = constants
        self.raw_hbm = device.hbm.value or math.nan
        self.hbm = self.raw_hbm * constants.hbm_share
        self._waves: dict[tuple[float, float], float] = {}

    def rate(self, precision: str) -> float:
        return (self.device.matmul(precision) or math.nan) * self.constants.sustained * (self.device.sustained.value or 1.0)

    def product(self, m: float, n: float, k: float, precision: str, aligned: bool = True) -> float:
        size = 1 if precision == "fp8" else 4 if precision == "fp32" else 2
        moved = (m * n * 2 + (n * k + m * k) * size) / self.raw_hbm
        work = 2 * (m + self.constants.ramp) * n * k / self.rate(precision)
        return work / self.waves(m, n) / (1.0 if aligned else VECTOR) + self.constants.traffic * moved

    def waves(self, m: float, n: float) -> float:
        found = self._waves.get((m, n))
        if found is None:
            units = self.device.units
            found = self._waves[(m, n)] = max(_filled(m, n, tile, units) * share for tile, share in TILES)
        return found

    def passes(self, m: float, n: float, k: float, precision: str) -> tuple[float, float, float]:
        aligned = n % 8 == 0 and k % 8 == 0
        shapes = ((m, n, k), (m, k, n), (n, k, m))
        forward, by_input, by_weight = (self.product(*shape, precision, aligned) for shape in shapes)
        return forward, by_input, by_weight

    def matrix(self, matrix: Matrix, layer: Layer, tokens: float, plan: Plan) -> tuple[float, float, float]:
        if not matrix.expert:
            return self.passes(tokens, *matrix.local(plan.tp), plan.precision)
        here = max(layer.experts // plan.ep, 1)
        rows = max(math.ceil(tokens * layer.per_token / here), 1)
        one = self.passes(rows, matrix.out, matrix.into, plan.precision)
        return here * one[0], here * one[1], here * one[2]

    def attention(self, layer: Layer, tokens: float, seq: float, plan: Plan) -> float:
        seen = min(layer.window or seq, seq)
        heads = layer.heads / min(plan.tp, layer.heads)
        work = 2 * tokens * seen * heads * (layer.head_dim + layer.value_dim) / self.rate("bf16")
        if plan.flash_attention:
            share = (self.device.attention.value or math.nan) * self.constants.attention
            return work * (0.5 if layer.causal and not layer.window else 1.0) / share
        moved = SCORE_BYTES * tokens * seen * heads * self.constants.elementwise / self.hbm
        return work / (1.0 if layer.head_dim % 8 == 0 else VECTOR) + moved

    def elementwise(self, layer: Layer, tokens: float, plan: Plan) -> float:
        along = plan.tp if plan.sequence_parallel else 1
        stream = layer.width * ((NORM_BYTES + RESIDUAL_BYTES) / along + RESHAPE_BYTES / plan.tp)
        inner = layer.inner * (GATED_BYTES if layer.gated else INNER_BYTES) / plan.tp
        fused = FUSED if plan.compiled else 1.0
        return tokens * (stream + inner) * fused * self.constants.elementwise / self.hbm

    def layer(self, layer: Layer, micro_tokens: float, seq: float, plan: Plan) -> Passes:
        each = [self.matrix(m, layer, micro_tokens, plan) for m in layer.matrices]
        products = sum(one[0] for one in each)
        again = sum(one[1] + (one[2] if layer.trainable else 0.0) for one in each)
        attention = self.attention(layer, micro_tokens, seq, plan)
        moved = self.elementwise(layer, micro_tokens, plan)
        launches = 0.0 if plan.compiled else KERNELS * self.constants.launch_s
        forward = max(products + attention + moved, launches)
        scores = BACKWARD_FLASH if plan.flash_attention else BACKWARD_SCORES
        backward = max(again + scores * attention + BACKWARD_TRAFFIC * moved, 2 * launches)
        if not layer.backward:
            return Passes(forward, 0.0, 0.0, products, attention)
        repeated = _repeated(plan, products, attention, moved) * self.constants.repeated
        return Passes(forward, backward, repeated, products + again, (1 + scores) * attention)

    def head(self, ends: Ends, tokens: float, plan: Plan) -> tuple[float, float]:
        precision = "bf16" if plan.precision == "fp8" else plan.precision
        product, by_input, by_weight = self.passes(tokens, -(-ends.vocab // plan.tp), ends.width, precision)
        each = HEAD_EAGER_BYTES if plan.loss == "eager" else HEAD_COMPILED_BYTES
        moved = tokens * ends.vocab / plan.tp * each / self.hbm
        again = product if plan.loss == "chunked" else 0.0
        return product + moved / 2, by_input + by_weight * ends.trainable + moved / 2 + again

    def optimizer(self, parameters: float) -> float:
        return parameters * OPTIMIZER_BYTES / self.hbm


def _repeated(plan: Plan, products: float, attention: float, moved: float) -> float:
    if plan.recompute == "full":
        return products + attention + moved
    if plan.recompute == "selective":
        return 0.0 if plan.flash_attention else attention
    if plan.recompute == "selective_op":
        return 0.35 * products + moved
    if plan.recompute == "budget":
        return (1 - plan.activation_budget) * (0.5 * products + moved)
    return 0.0


def _filled(m: float, n: float, tile: tuple[int, int], units: int) -> float:
    tiles = -(-m // tile[0]) * -(-n // tile[1])
    return m * n / (-(-tiles // units) * units * tile[0] * tile[1])
