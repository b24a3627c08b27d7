"""What one rank holds of a model: shards, units, and the states that live from step to step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from trainwright.cost.saved import FP32, Activations, Item
from trainwright.model import ModelSpec, Shape, elements
from trainwright.strategy import Strategy


@dataclass(frozen=True)  # no slots: cached_property needs a place to write
class Rank:
    """Rank 0, the one that holds most: its shards are never the short ones. Counts are elements unless they say bytes."""

    model: ModelSpec
    strategy: Strategy
    world_size: int
    accumulation: int
    gloo: bool
    saved: Activations

    @property
    def sharded(self) -> bool:
        return self.strategy.kind == "fsdp"

    @property
    def ranks(self) -> int:
        """How many ranks share a tensor: with replicas, those of one of them."""
        return self.world_size // self.strategy.replicas if self.sharded else 1

    @property
    def layers(self) -> int:
        return self.model.num_layers

    @property
    def reshard(self) -> bool:
        """Whether a gathered unit is freed between its forward and its backward."""
        return self.sharded and self.strategy.reshard_after_forward

    def recomputes(self, block: int) -> bool:
        """Whether a block (from 0) runs its forward again in the backward: every n-th does."""
        strategy = self.strategy
        return strategy.activation_checkpointing and (block + 1) % strategy.checkpoint_every == 0

    def recomputed(self, blocks: int) -> int:
        """How many of the first `blocks` blocks do."""
        return sum(map(self.recomputes, range(blocks)))

    @property
    def blocks_are_units(self) -> bool:
        """Whether every block is gathered on its own; else the root unit is the whole model."""
        return self.model.block_class in self.strategy.wrap_classes

    @property
    def element(self) -> int:
        """Bytes an element of a gathered unit, of its gradient, and of what is reduced."""
        return 2 if self.saved.numerics == "cast" else FP32

    @cached_property
    def block(self) -> int:
        return self.model.layer_parameters

    @cached_property
    def root(self) -> int:
        """The root unit, whole."""
        return self.model.total_parameters - (self.layers * self.block if self.blocks_are_units else 0)

    @cached_property
    def block_shard(self) -> int:
        return shard(self.model.layer_shapes, self.ranks)

    @property
    def block_unit(self) -> int:
        """A block's shard where the block is a unit, else 0: it is part of the root's then."""
        return self.block_shard if self.blocks_are_units else 0

    @property
    def root_unit(self) -> int:
        """The root unit's shard."""
        return self.local_parameters - self.layers * self.block_unit

    @cached_property
    def local_parameters(self) -> int:
        return shard(self.model.root_shapes, self.ranks) + self.layers * self.block_shard

    @property
    def gradients_stay(self) -> bool:
        """Whether gradients are alive from the start of a step: DDP's buckets, or the sums of earlier micro batches."""
        return self.strategy.kind == "ddp" or self.accumulation > 1

    def states(self) -> tuple[Item, ...]:
        """Parameters, gradients and optimizer states (AdamW: exp_avg, exp_avg_sq and a step number per tensor)."""
        count, share = self.local_parameters, "P/W" if self.sharded else "P"
        tensors = self.layers * len(self.model.layer_shapes) + len(self.model.root_shapes)
        bucket = " in buckets" if self.strategy.kind == "ddp" else ""
        return (
            Item("parameters", "state", count * FP32, f"{share} x 4 B"),
            Item(f"gradients{bucket}", "state", count * FP32, f"{share} x 4 B"),
            Item("optimizer states", "state", 2 * count * FP32 + tensors * FP32, f"{share} x 8 B + 4 B a tensor"),
        )

    def resident(self) -> tuple[Item, ...]:
        """What is alive at every moment of a step."""
        parameters, gradients, optimizer = self.states()
        return (
            parameters,
            *((gradients,) if self.gradients_stay else ()),
            optimizer,
            self.saved.batch(self.accumulation if self.gloo else 1),
        )


def shard(shapes: Iterable[Shape], ranks: int) -> int:
    """Elements of rank 0's part of tensors cut along their first axis into ceil(n / ranks) rows."""
    return sum(-(-shape[0] // ranks) * elements(shape[1:]) for shape in shapes)
