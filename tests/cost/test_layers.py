"""The network of the cost model against the model: every published config keeps every weight, and prices."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainwright.cost.footprint import Footprint
from trainwright.cost.layers import network
from trainwright.cost.machine import machine
from trainwright.cost.step import StepModel
from trainwright.model import load_model
from trainwright.parallel import Plan

PUBLISHED = sorted((Path(__file__).resolve().parents[1] / "families" / "published").rglob("*.json"))
CONFIGS = [path for path in PUBLISHED if "golden" not in path.name]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_no_weight_is_lost(path: Path) -> None:
    model = load_model(str(path))
    net = network(model)
    outside = sum(kind.parameters * net.order.count(number) for number, kind in enumerate(net.kinds))
    rest = model.total_parameters - outside
    ends = net.ends.table + (0 if net.ends.tied else net.ends.head)
    assert (
        ends
        <= rest
        <= ends * 1.05 + (model.tower_parameters - sum(k.parameters * net.order.count(i) for i, k in enumerate(net.kinds) if k.tokens))
    )
    for kind in net.kinds:
        assert kind.parameters == kind.local_parameters(1, 1)
        assert all(m.local(1) == (m.out, m.into) for m in kind.matrices)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_published_model_has_a_price(path: Path) -> None:
    model = load_model(str(path))
    steps = StepModel(network(model), machine("h100", 8, 8, None, 80 * 2**30), 2048, 16)
    plan = Plan(dp_shard=8, zero_stage=3, recompute="full")
    work = 6 * model.matmul_parameters * 2048 * 16 / 8
    assert steps.step(plan).seconds > work / 989e12, "no faster than the peak"
    assert Footprint(steps).peak(plan).total > model.total_parameters * 16 / 8
