"""The moments of a training step at which memory can peak, each as the list of what is alive then.

A step runs forward, loss, its gradient, the head's backward, the blocks from last to first, the embedding, the optimizer.
FSDP cuts units (every block, and the root: embedding, final norm, head) over W ranks, gathers a unit before it computes,
gathers the next block while one runs backward, and keeps one reduce-scatter input alive until the next
(torch/distributed/fsdp/_fully_shard). Legend as in saved.py, and: B elements of a block, R of the root, P of the model;
B/W and R/W are shards, every tensor cut along its first axis into ceil(n / W) rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trainwright.cost.rank import Rank
from trainwright.cost.saved import FP32, Item
from trainwright.model import elements


@dataclass(frozen=True, slots=True)
class Phase:
    """A moment of the step and the tensors alive in it."""

    name: str
    items: tuple[Item, ...]

    @property
    def bytes(self) -> int:
        return sum(item.bytes for item in self.items)


def phases_of(rank: Rank) -> tuple[Phase, ...]:
    """Every moment that can be the peak, in the order of the step."""
    return (
        *([_first_gather(rank), _last_gather(rank)] if rank.sharded else []),
        _loss(rank),
        *([_second_gather(rank)] if rank.reshard else []),
        _loss_gradient(rank),
        _head_backward(rank),
        _final_norm_backward(rank),
        *(phase for block in _turning_points(rank) for phase in _block_backward(rank, block)),
        _embedding_backward(rank),
        *([_root_reduce(rank)] if rank.sharded else []),
        _optimizer_step(rank),
        *([_average(rank)] if rank.strategy.kind == "local_sgd" else []),
    )


def _turning_points(rank: Rank) -> list[int]:
    """The last two and the first two blocks: between them every block changes memory by the same amount, if all are alike."""
    layers = rank.layers
    if rank.strategy.activation_checkpointing and rank.strategy.checkpoint_every > 1:
        return list(range(layers - 1, -1, -1))
    return sorted({layers - 1, max(layers - 2, 0), min(1, layers - 1), 0}, reverse=True)


# --- what is alive beside the states -------------------------------------------------------------------------------


def _gathered(rank: Rank, blocks: int, coming: bool) -> list[Item]:
    """The root and `blocks` blocks gathered; `coming`: the flat buffer of an all-gather that is not copied out yet."""
    if not rank.sharded:
        return []
    e, w = rank.element, rank.ranks
    buffer = _buffer(rank, rank.block_unit) if coming else 0
    return [
        Item("gathered root", "gathered", rank.root_unit * w * e, f"R x {e} B"),
        Item("gathered blocks", "gathered", blocks * rank.block_unit * w * e, f"{blocks} B x {e} B"),
        Item("all-gather buffer of a block", "communication", buffer, f"B x {e} B"),
    ]


def _buffer(rank: Rank, elements_of_shard: int) -> int:
    """Bytes of an all-gather's flat output; one rank alone has none."""
    return elements_of_shard * rank.ranks * rank.element if rank.ranks > 1 else 0


def _gathered_at_turn(rank: Rank) -> list[Item]:
    """After the forward, while no block has run backward: the last block's buffer is filled again, or all blocks stayed."""
    return _gathered(rank, 0 if rank.reshard else rank.layers, coming=rank.reshard)


def _root_buffer(rank: Rank) -> Item:
    if not rank.sharded:
        return Item("all-gather buffer of the root", "communication", 0, "")
    return Item("all-gather buffer of the root", "communication", _buffer(rank, rank.root_unit), f"R x {rank.element} B")


def _kept(rank: Rank, blocks: int) -> list[Item]:
    """Activations of the embedding and of `blocks` blocks."""
    saved, again = rank.saved, rank.recomputed(blocks)
    kinds = (("checkpointed by", again, saved.kept_by_checkpoint()), ("saved in", blocks - again, saved.block()))
    counted = [(said, count, sum(item.bytes for item in each)) for said, count, each in kinds if count]
    return [
        *saved.before_blocks(rank.recomputes(0), rank.recomputed(rank.layers) > 0),
        *(Item(f"{said} {count} blocks", "activation", count * size, f"{count} x {size:,} B") for said, count, size in counted),
    ]


def _kept_by_all(rank: Rank) -> list[Item]:
    """Activations at the end of the forward, the loss apart."""
    return [*_kept_by_blocks(rank), *rank.saved.final_norm(), *rank.saved.head()]


def _kept_by_blocks(rank: Rank) -> list[Item]:
    """Of all blocks; where weights are cast the final norm keeps an fp32 copy in place of the last checkpoint."""
    replaced = rank.recomputes(rank.layers - 1) and rank.saved.numerics == "cast"
    return _kept(rank, rank.layers - 1 if replaced else rank.layers)


def _finished(rank: Rank, blocks: int) -> list[Item]:
    """Gradients of the head and of `blocks` blocks that have run backward, where nothing holds them from the start."""
    if not rank.sharded:
        # A tied head's gradient waits for the embedding's, even where a bucket waits for both.
        head = rank.model.embedding_parameters if rank.model.tied_embeddings or not rank.gradients_stay else 0
        count = 0 if rank.gradients_stay else blocks * rank.block
        return [
            Item("gradients so far", "state", count * FP32, f"{blocks} B x 4 B"),
            Item("gradient of the head", "state", head * FP32, "V h x 4 B"),
        ]
    held = 0 if rank.gradients_stay else blocks * rank.block_unit
    whole = 0 if rank.blocks_are_units else blocks * rank.block
    return [
        Item("gradient shards so far", "state", held * FP32, f"{blocks} B/W x 4 B"),
        Item("gradients of finished blocks", "state", whole * rank.element, f"{blocks} B x {rank.element} B"),
        Item("gradient of the head", "state", rank.model.embedding_parameters * rank.element, f"V h x {rank.element} B"),
    ]


def _scattering(rank: Rank, running: bool) -> list[Item]:
    size = rank.block_unit * rank.ranks * rank.element if rank.sharded and running else 0
    return [Item("reduce-scatter input of a block", "communication", size, f"B x {rank.element} B")]


def _stream(rank: Rank, copies: int = 1) -> Item:
    e = rank.saved.residual
    size = copies * rank.saved.tokens * rank.model.hidden_size * e
    return Item("gradient of the residual stream", "workspace", size, f"{copies} T h x {e} B")


# --- the phases ----------------------------------------------------------------------------------------------------


def _phase(name: str, *groups: Iterable[Item]) -> Phase:
    return Phase(name, tuple(item for group in groups for item in group if item.bytes))


def _first_gather(rank: Rank) -> Phase:
    return _phase("gather of the first block", rank.resident(), _gathered(rank, 1, coming=True), [_root_buffer(rank)])


def _last_gather(rank: Rank) -> Phase:
    """The last block is copied out of its buffer while the buffer of the unit before is still held."""
    if rank.layers == 1:
        held = _root_buffer(rank)
    else:
        held = Item("all-gather buffer of the block before", "communication", _buffer(rank, rank.block_unit), f"B x {rank.element} B")
    gathered = _gathered(rank, 1 if rank.reshard else rank.layers, coming=True)
    return _phase("gather of the last block", rank.resident(), gathered, [held], _kept(rank, rank.layers - 1))


def _loss(rank: Rank) -> Phase:
    gathered = _gathered(rank, 0 if rank.reshard else rank.layers, coming=True)
    held = [] if rank.blocks_are_units else [_root_buffer(rank)]
    loss = rank.saved.loss_forward(rank.recomputed(rank.layers))
    return _phase("loss", rank.resident(), gathered, held, _kept_by_all(rank), loss)


def _second_gather(rank: Rank) -> Phase:
    kept = [*_kept_by_all(rank), rank.saved.loss_kept()]
    return _phase("second gather", rank.resident(), _gathered(rank, 0, coming=False), [_root_buffer(rank)], kept)


def _loss_gradient(rank: Rank) -> Phase:
    kept = _kept_by_all(rank)
    return _phase("gradient of the loss", rank.resident(), _gathered_at_turn(rank), kept, [rank.saved.loss_backward()])


def _head_backward(rank: Rank) -> Phase:
    kept = [*_kept_by_blocks(rank), *rank.saved.final_norm()]
    return _phase("backward of the head", rank.resident(), _gathered_at_turn(rank), kept, _finished(rank, 0), _head_workspace(rank))


def _head_workspace(rank: Rank) -> list[Item]:
    """The gradient of the logits until the head's own is computed; under autocast that one is bf16 first, then copied to fp32."""
    m, saved, e = rank.model, rank.saved, rank.saved.element
    autocast = saved.numerics == "autocast"
    waits = rank.gradients_stay and not rank.sharded and not m.tied_embeddings
    extra = (2 if autocast else 0) + (FP32 if waits else 0)
    return [
        Item("gradient of the logits", "loss", 0 if autocast else saved.tokens * m.vocab_size * e, f"T V x {e} B"),
        Item("gradient of the hidden states", "workspace", saved.tokens * m.hidden_size * e, f"T h x {e} B"),
        Item("gradient of the head before it is added", "state", m.embedding_parameters * extra, f"V h x {extra} B"),
    ]


def _final_norm_backward(rank: Rank) -> Phase:
    kept = [*_kept_by_blocks(rank), *rank.saved.final_norm()]
    return _phase("backward of the final norm", rank.resident(), _gathered_at_turn(rank), kept, _finished(rank, 0), [_norm_workspace(rank)])


def _norm_workspace(rank: Rank) -> Item:
    """What the backward of a norm adds to what the norm has kept."""
    each = 12 if rank.saved.numerics == "fp32" else 14
    return Item("backward of the norm", "workspace", rank.saved.tokens * rank.model.hidden_size * each, f"T h x {each} B")


def _block_backward(rank: Rank, block: int) -> list[Phase]:
    gathered = _gathered(rank, 1 if rank.reshard else block + 1, coming=rank.reshard and block > 0)
    finished, sent = _finished(rank, rank.layers - 1 - block), _scattering(rank, running=block < rank.layers - 1)
    common = (rank.resident(), gathered, finished, sent)
    kept = _kept(rank, block)
    mlp = (kept, [rank.saved.running()], _mlp_workspace(rank))
    end = (kept, _end_workspace(rank))
    again = [_gather_again(rank, common, kept)] if rank.reshard and block == 0 else []
    return [
        *again,
        _phase(f"backward of block {block}, MLP", *common, *mlp),
        _phase(f"backward of block {block}, norm", *common, kept, [rank.saved.running_attention()], _after_mlp_workspace(rank)),
        _phase(f"backward of block {block}, end", *common, *end),
        *([_block_reduce(rank, block, finished, kept)] if rank.block_unit and rank.sharded else []),
    ]


def _block_reduce(rank: Rank, block: int, finished: Iterable[Item], kept: Iterable[Item]) -> Phase:
    gathered = _gathered(rank, 0 if rank.reshard else block, coming=rank.reshard and block > 0)
    reduced = _reduced(rank, rank.block_unit, rank.model.hidden_size * rank.model.intermediate_size)
    sent = [*_scattering(rank, running=True), reduced, _stream(rank)]
    return _phase(f"backward of block {block}, reduce", rank.resident(), gathered, finished, kept, sent)


def _gather_again(rank: Rank, common: tuple[Iterable[Item], ...], kept: Iterable[Item]) -> Phase:
    """The first block is copied out of its buffer; every other block has the next buffer beside it at its own backward."""
    buffer = Item("all-gather buffer of a block", "communication", _buffer(rank, rank.block_unit), f"B x {rank.element} B")
    saved = [] if rank.recomputes(0) else [rank.saved.running()]
    return _phase("backward of block 0, gather", *common, [buffer], kept, saved, [_stream(rank)])


def _mlp_workspace(rank: Rank) -> list[Item]:
    """Whichever is more: just after the down projection's own gradient, or when its input's has gone through the product."""
    m, saved, e = rank.model, rank.saved, rank.saved.element
    u = rank.element if rank.sharded else FP32
    first = (0, 2 + FP32) if saved.numerics == "autocast" else (1, u)  # T f tensors, bytes an element of h f
    later = (2, 0 if rank.gradients_stay and not rank.sharded else u)
    inside, down = saved.tokens * m.intermediate_size * e, m.hidden_size * m.intermediate_size
    copies, each = max(first, later, key=lambda moment: moment[0] * inside + moment[1] * down)
    return [
        _stream(rank),
        Item("gradients inside the MLP", "workspace", copies * inside, f"{copies} T f x {e} B"),
        Item("gradient of the down projection", "state", each * down, f"h f x {each} B"),
    ]


def _after_mlp_workspace(rank: Rank) -> list[Item]:
    u = rank.element if rank.sharded else 0 if rank.gradients_stay else FP32
    projections = 3 * rank.model.hidden_size * rank.model.intermediate_size
    return [_stream(rank), _norm_workspace(rank), Item("gradients of the MLP", "state", projections * u, f"3 h f x {u} B")]


def _end_workspace(rank: Rank) -> list[Item]:
    norm = Item("backward of the norm", "workspace", 5 * rank.saved.tokens * rank.model.hidden_size * FP32, "5 T h x 4 B")
    if rank.gradients_stay and not rank.sharded:
        return [norm, _stream(rank)]
    u = rank.element if rank.sharded else FP32
    return [norm, _stream(rank), Item("gradients of the block", "state", rank.block * u, f"B x {u} B")]


def _embedding_backward(rank: Rank) -> Phase:
    u = (2 if rank.model.tied_embeddings else 1) * (rank.element if rank.sharded else FP32)
    said = "gradient of the embedding, and its sum with the tied head's" if rank.model.tied_embeddings else "gradient of the embedding"
    table = Item(said, "state", rank.model.embedding_parameters * u, f"V h x {u} B")
    finished = [*_finished(rank, rank.layers), *_scattering(rank, True), table, _stream(rank)]
    return _phase("backward of the embedding", rank.resident(), _gathered(rank, 0, coming=False), finished)


def _root_reduce(rank: Rank) -> Phase:
    e = rank.element
    blocks = 0 if rank.gradients_stay else rank.layers * rank.block_unit
    before = Item("gradients of the root", "state", rank.root * e, f"R x {e} B")
    items = [
        Item("gradient shards so far", "state", blocks * FP32, f"{rank.layers} B/W x 4 B"),
        Item("reduce-scatter input of the root", "communication", rank.root_unit * rank.ranks * e, f"R x {e} B"),
        max(before, _reduced(rank, rank.root_unit, elements(rank.model.root_shapes[-1])), key=lambda item: item.bytes),
    ]
    return _phase("reduce-scatter of the root", rank.resident(), items)


def _reduced(rank: Rank, unit_shard: int, last: int) -> Item:
    """The most that lives beside a unit's reduce-scatter input after its gradients are copied into that.

    The output; gloo's copy of the input while it works, or the output's fp32 copy after it; and the gradient of the
    unit's last tensor, which a loop in foreach_reduce still names.
    """
    e, w = rank.element, rank.ranks
    copy = w * e if rank.gloo and w > 1 else 0
    each = e + max(copy, 0 if e == FP32 else FP32)
    named = last * e if w > 1 else 0
    return Item("reduced shard, copies, last gradient", "communication", unit_shard * each + named, f"shard x {each} B + last x {e} B")


def _optimizer_step(rank: Rank) -> Phase:
    """AdamW in its fused form works in place: the states and nothing else."""
    _, gradients, _ = rank.states()
    return _phase("optimizer step", rank.resident(), [] if rank.gradients_stay else [gradients])


def _average(rank: Rank) -> Phase:
    """Local SGD puts all parameters in one flat tensor, has that summed, and copies it back."""
    flat = Item("flat copy of the parameters", "communication", rank.local_parameters * FP32, "P x 4 B")
    return _phase("average of the copies", rank.resident(), [flat])
