"""Groups on nodes, their bandwidth, and the time of collectives."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from trainwright.cost.collectives import Network, place
from trainwright.cost.constants import Constants
from trainwright.cost.machine import Level, machine
from trainwright.errors import UserError

PLAIN = Constants(intra=1.0, inter=1.0)


def links(name: str = "a100", devices: int = 64, per_node: int = 8, rate: float = 25e9) -> Network:
    return Network(machine(name, devices, per_node, rate), PLAIN)


@pytest.mark.parametrize(
    ("size", "stride", "node", "devices", "per_node", "nodes"),
    [
        (8, 1, 8, 64, 8, 1),  # tensor parallelism over a node
        (8, 8, 8, 64, 1, 8),  # data parallelism across nodes, one rank each
        (64, 1, 8, 64, 8, 8),  # all ranks
        (16, 4, 8, 64, 2, 8),  # two ranks a node
        (4, 1, 12, 48, 4, 1),  # four of twelve tiles
        (8, 1, 12, 48, 4, 2),  # eight do not divide twelve: some groups straddle two nodes, four and four
        (2, 1, 12, 3072, 2, 1),
        (256, 12, 12, 3072, 1, 256),
    ],
)
def test_places(size: int, stride: int, node: int, devices: int, per_node: int, nodes: int) -> None:
    group = place(size, stride, node, devices)
    assert (group.per_node, group.nodes) == (per_node, nodes)


@pytest.mark.parametrize("seed", range(20))
def test_nodes_may_change_places(seed: int) -> None:
    """Of a homogeneous machine: whatever the order of its nodes, no group is worse off than the one that is priced."""
    rng = random.Random(seed)
    node, nodes = rng.choice([4, 6, 8, 12]), rng.choice([2, 3, 4, 6])
    devices = node * nodes
    size, stride = rng.choice([(a, b) for a in range(2, devices + 1) for b in range(1, devices) if devices % (a * b) == 0])
    order = list(range(nodes))
    rng.shuffle(order)
    starts = [block + offset for block in range(0, devices, size * stride) for offset in range(stride)]
    groups = [Counter(order[(start + i * stride) // node] for i in range(size)) for start in starts]
    across = [group for group in groups if len(group) > 1]
    worst = (min(min(group.values()) for group in across), max(map(len, across))) if across else (size, 1)
    group = place(size, stride, node, devices)
    assert (group.per_node, group.nodes) == worst


def test_every_rail_of_a_node_counts() -> None:
    """A ring over all ranks uses eight links of the network a node; one rank a node uses its own."""
    net = links()
    assert net.bandwidth(net.group(64, 1)) == pytest.approx(8 * 25e9)
    assert net.bandwidth(net.group(8, 8)) == pytest.approx(25e9)
    fast = links(rate=100e9)
    assert fast.bandwidth(fast.group(64, 1)) == pytest.approx(235e9), "never faster than the links inside"


def test_one_rail_where_a_stack_uses_one() -> None:
    net = links()
    assert net.time("all_gather", 1e9, 64, 1, one_rail=True) > 5 * net.time("all_gather", 1e9, 64, 1)


def test_ring_terms() -> None:
    net = links()
    hop = net.machine.levels[0].latency_s
    assert net.time("all_reduce", 1e9, 8, 1) == pytest.approx(2 * 7 / 8 * 1e9 / 235e9 + 2 * 7 * hop)
    assert net.time("all_gather", 1e9, 8, 1) == pytest.approx(7 / 8 * 1e9 / 235e9 + 7 * hop)
    assert net.time("all_reduce", 1e9, 1, 1) == 0.0


def test_two_ranks_of_a_point_to_point_mesh_have_one_link() -> None:
    """MI300X: 47.7 GB/s between two, 312.9 over eight (measured)."""
    net = links("mi300x", 8)
    assert net.bandwidth(net.group(2, 1)) == pytest.approx(47.7e9)
    assert net.bandwidth(net.group(8, 1)) == pytest.approx(312.9e9)
    assert net.time("all_reduce", 1e8, 2, 1) > 3 * net.time("all_reduce", 1e8, 8, 1)


def test_the_pair_of_tiles_is_the_only_fast_group_of_an_aurora_node() -> None:
    net = links("max-1550-tile", 12, 12)
    assert net.bandwidth(net.group(2, 1)) == pytest.approx(185e9)
    assert net.bandwidth(net.group(4, 1)) == pytest.approx(25e9)
    assert net.bandwidth(net.group(2, 2)) == pytest.approx(25e9), "two tiles of different devices"


def test_bandwidth_between_known_sizes_grows() -> None:
    level = Level("node", 8, ((2, 38.6e9), (4, 72.3e9), (8, 120.0e9)), 1e-6)
    assert [level.bandwidth(n) for n in (2, 4, 8)] == [38.6e9, 72.3e9, 120.0e9]
    assert 38.6e9 < level.bandwidth(3) < 72.3e9 < level.bandwidth(6) < 120e9


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p"])
def test_more_bytes_and_slower_links_never_take_less(kind: str) -> None:
    net, slow = links(), links(rate=12.5e9)
    for size, stride in ((2, 1), (8, 1), (8, 8), (64, 1), (16, 4)):
        times = [net.time(kind, n, size, stride) for n in (1e3, 1e6, 1e9)]  # type: ignore[arg-type]
        assert times == sorted(times) and times[0] > 0
        assert slow.time(kind, 1e9, size, stride) >= times[-1]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("a100", 64, 8, None), "no network is given"),
        (("a100", 64, 8, -1.0), "carries nothing"),
        (("a100", 64, 8, float("nan")), "carries nothing"),
        (("a100", 0, 8, 1e9), "give 1 or more"),
        (("zx81", 8, 8, 1e9), "known are"),
    ],
)
def test_a_machine_that_is_none_is_refused(arguments: tuple[str, int, int, float | None], said: str) -> None:
    with pytest.raises(UserError, match=said):
        machine(*arguments)
