"""The time of collectives: a group's ranks placed on nodes, its bandwidth by the multi-rail rule, ring or tree, by size.

Source of the ring's terms: nccl-tests' PERFORMANCE.md: all-reduce moves 2 (n - 1) / n of its bytes, the others (n - 1) / n.
The rule of several rails: a ring over nodes uses the network link of every rank that the group has on a node, and is never faster
than the links inside it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from trainwright.cost.constants import Constants
from trainwright.cost.machine import Level, Machine

LONG_GROUP = 4096
Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p"]


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that talk: `size` of them, `stride` devices apart; the fewest on one node, and how many nodes."""

    size: int
    stride: int
    per_node: int
    nodes: int


@lru_cache(maxsize=65536)
def place(size: int, stride: int, node: int, devices: int) -> Group:
    """The worst group of a regular axis: the one with the fewest ranks on one of the nodes that it spans.

    Groups start at every offset below `stride` in every block of size x stride devices; nodes hold `node` devices each, a power of
    two or not: eight ranks in a row on nodes of twelve straddle two of them, with four ranks on each.
    """
    span = size * stride
    if span <= node and (node % span == 0 or devices <= node):
        return Group(size, stride, size, 1)
    if stride % node == 0:
        return Group(size, stride, 1, size)
    if stride * size % node == 0 and node % stride == 0:
        return Group(size, stride, node // stride, span // node)
    if size > LONG_GROUP:  # counting ranks would take longer than a search may; so long a group has a node's share on all but two nodes
        return Group(size, stride, max(node // stride, 1), -(-span // node))
    blocks = min(node // math.gcd(span, node), max(devices // span, 1))
    groups = [_on_nodes(size, stride, block * span + offset, node) for block in range(blocks) for offset in {0, stride - 1}]
    fewest = min(least for count, least in groups if count > 1) if any(count > 1 for count, _ in groups) else size
    return Group(size, stride, fewest, max(count for count, _ in groups))


def _on_nodes(size: int, stride: int, start: int, node: int) -> tuple[int, int]:
    """How many nodes a group spans, and its fewest ranks on one of them."""
    counts: dict[int, int] = {}
    for rank in range(size):
        at = (start + rank * stride) // node
        counts[at] = counts.get(at, 0) + 1
    return len(counts), min(counts.values())


class Network:
    """Collectives on one machine, with the constants that hold there."""

    def __init__(self, machine: Machine, constants: Constants) -> None:
        self.machine = machine
        self.constants = constants

    def group(self, size: int, stride: int) -> Group:
        return place(size, stride, self.machine.node, self.machine.devices)

    def bandwidth(self, group: Group) -> float:
        """Bus bandwidth of the group in bytes/s."""
        inside = self._inside(group)
        if group.nodes == 1:
            return inside
        across = self.machine.levels[-1].bandwidth(group.size) * group.per_node * self.constants.inter
        return min(across, inside) if group.per_node > 1 else across

    def _inside(self, group: Group) -> float:
        """Of the narrowest domain that holds the group's ranks on one node."""
        ranks = min(group.size, group.per_node)
        return self._narrowest(ranks, group.stride).bandwidth(max(ranks, 2)) * self.constants.intra

    def _narrowest(self, ranks: int, stride: int) -> Level:
        for level in self.machine.inside:
            if ranks * stride <= level.size and level.size % (ranks * stride) == 0:
                return level
        return self.machine.inside[-1]

    def latency(self, group: Group) -> float:
        """Of one hop: over the network where the group leaves its node."""
        level = self.machine.levels[-1] if group.nodes > 1 else self.machine.levels[0]
        return level.latency_s * self.constants.latency

    def _ring(self, group: Group) -> float:
        """Of size - 1 steps, of which nodes - 1 cross the network: gathers and scatters know no tree."""
        inside = self.machine.levels[0].latency_s * self.constants.latency
        return (group.nodes - 1) * self.latency(group) + (group.size - group.nodes) * inside

    def time(self, kind: Kind, size_bytes: float, size: int, stride: int, one_rail: bool = False) -> float:
        """Seconds of one collective of `size` ranks on `size_bytes`: the whole result, or what one rank sends all-to-all or as p2p."""
        if size < 2 or size_bytes <= 0:
            return 0.0
        group = self.group(size, stride)
        if (one_rail or kind == "p2p") and group.nodes > 1:
            group = replace(group, per_node=1)
        rate, hop = self.bandwidth(group), self.latency(group)
        if kind == "p2p":
            return size_bytes / rate + hop
        share = (size - 1) / size
        if kind == "all_reduce":
            return 2 * share * size_bytes / rate + 2 * self._hops(group) * hop
        if kind == "all_to_all":
            return self._all_to_all(group, size_bytes, rate, hop)
        return share * size_bytes / rate + self._ring(group)

    def _hops(self, group: Group) -> float:
        """An all-reduce's: the ring's inside a node; a tree's over many nodes, where it is the shorter."""
        return min(group.size - 1, math.ceil(math.log2(group.nodes)) + group.per_node) if group.nodes > 1 else group.size - 1

    def _all_to_all(self, group: Group, size_bytes: float, rate: float, hop: float) -> float:
        """Every rank keeps 1 / size and sends the rest: to other nodes by its own link of the network."""
        inside = (group.per_node - 1) / group.size * size_bytes / self._inside(group) if group.per_node > 1 else 0.0
        if group.nodes == 1:
            return inside + hop
        out = (group.size - group.per_node) / group.size * size_bytes
        return max(inside, out / (self.machine.levels[-1].bandwidth(group.size) * self.constants.inter)) + hop * math.log2(group.size)

    def send(self, size_bytes: float, stride: int) -> float:
        """One message between neighbours of the outermost axis: over the network where there is more than one node."""
        if self.machine.devices <= self.machine.node:
            level, share = self._narrowest(2, stride), self.constants.intra
        else:
            level, share = self.machine.levels[-1], self.constants.inter
        return size_bytes / (level.bandwidth(2) * share) + level.latency_s * self.constants.latency
