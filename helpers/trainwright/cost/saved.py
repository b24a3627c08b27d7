"""What the reference Llama (train/models.py) keeps between forward and backward, tensor by tensor.

Legend: T tokens of one micro batch (b micro batch x t sequence), h hidden, q query width, k key/value width, f feed-forward,
a query heads, d head width, V vocabulary, L blocks. Bytes an element: 4 where fp32 is written, else the compute type's.

The list is eager PyTorch's, read from the live tensors of real steps (torch 2.13, CPU): RMSNorm unfused, attention by the
flash kernel (no T x t scores), cross entropy in fp32 over all tokens at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainwright.model import ModelSpec

FP32 = 4
INT64 = 8

Numerics = Literal["fp32", "autocast", "cast"]
"""fp32 throughout; autocast: weights and residual stream fp32, matmuls bf16; cast: every weight bf16 while gathered (FSDP)."""


@dataclass(frozen=True, slots=True)
class Item:
    """One line of a ledger: bytes on one rank, and the formula they come from."""

    name: str
    kind: str
    bytes: int
    formula: str

    def to_json(self) -> dict[str, str | int]:
        return {"name": self.name, "kind": self.kind, "bytes": self.bytes, "formula": self.formula}


@dataclass(frozen=True, slots=True)
class Activations:
    """The saved tensors of one micro batch on one rank."""

    model: ModelSpec
    tokens: int
    seq_len: int
    numerics: Numerics

    @property
    def element(self) -> int:
        """Bytes an element of what matmuls read and write."""
        return FP32 if self.numerics == "fp32" else 2

    @property
    def residual(self) -> int:
        """Bytes an element of the residual stream and its gradient."""
        return 2 if self.numerics == "cast" else FP32

    def block(self) -> tuple[Item, ...]:
        """What one block keeps, its own output included and its input left to the block before."""
        t, m, e = self.tokens, self.model, self.element
        return (
            *self._residual_stream(),
            *self._norm(2),
            *self._norm_outputs(2, readers=5),
            _item("query", t * m.query_size * e, f"T q x {e} B"),
            _item("key and value", 2 * t * m.kv_size * e, f"2 T k x {e} B"),
            _item("attention output", t * m.query_size * e, f"T q x {e} B"),
            _item("attention log-sum-exp", t * m.num_heads * FP32, "T a x 4 B"),
            _item("gate, up, silu(gate) and their product", 4 * t * m.intermediate_size * e, f"4 T f x {e} B"),
            *self._cast_copies(),
        )

    def _residual_stream(self) -> tuple[Item, ...]:
        if self.numerics == "cast":  # the norms keep an fp32 copy instead
            return ()
        return (_item("residual stream after attention and after the MLP", 2 * self._wide(FP32), "2 T h x 4 B"),)

    def _norm(self, norms: int) -> tuple[Item, ...]:
        wide, formula = norms * self._wide(FP32), f"{norms} T h x 4 B"
        copies = (_item("fp32 copies of norm inputs", wide, formula),) if self.numerics == "cast" else ()
        return (_item("normalised inputs", wide, formula), _item("1 / rms", norms * self.tokens * FP32, f"{norms} T x 4 B"), *copies)

    def _norm_outputs(self, norms: int, readers: int) -> tuple[Item, ...]:
        """Each norm's output; under autocast a bf16 copy for every linear that reads one (q, k, v; gate, up)."""
        copies = readers if self.numerics == "autocast" else norms
        return (_item("norm outputs, read by the linears", copies * self._wide(self.element), f"{copies} T h x {self.element} B"),)

    def _cast_copies(self) -> tuple[Item, ...]:
        if self.numerics != "autocast":
            return ()
        m = self.model
        table = self.seq_len * m.head_dim
        return (
            _item("bf16 copies of the weights", self._matrix_weights() * 2, "block weights without norms x 2 B"),
            _item("bf16 copies of the rotary tables", 4 * table * 2, "4 t d x 2 B"),
        )

    def _wide(self, element: int) -> int:
        return self.tokens * self.model.hidden_size * element

    def block_bytes(self) -> int:
        return sum(item.bytes for item in self.block())

    def running(self) -> Item:
        """What a block still keeps when the backward of its MLP has passed the down projection."""
        output = 0 if self.numerics == "cast" else self._wide(FP32)
        down = self.model.hidden_size * self.model.intermediate_size * 2 if self.numerics == "autocast" else 0
        return _item("saved in the block", self.block_bytes() - output - down, "a block's list but its output and used copies")

    def running_attention(self) -> Item:
        """What a block still keeps when the backward of its MLP is done."""
        m = self.model
        used = 4 * self.tokens * m.intermediate_size * self.element
        copies = 2 * m.hidden_size * m.intermediate_size * 2 if self.numerics == "autocast" else 0
        return _item("saved in the block's attention", self.running().bytes - used - copies, "a block's list but its MLP's tensors")

    def kept_by_checkpoint(self) -> tuple[Item, ...]:
        """What a checkpointed block keeps: its output, which is the next block's input."""
        return (_item("block output", self._wide(self.residual), f"T h x {self.residual} B"),)

    def before_blocks(self, first: bool, some: bool) -> tuple[Item, ...]:
        """The embedding's output and the rotary tables, where the blocks keep no copies of them instead; whether the first block
        is checkpointed, and whether some are."""
        width = 0 if self.numerics == "cast" and not first else self._wide(self.residual)
        tables = () if self.numerics == "autocast" and not some else (self._rotary_tables(),)
        return (_item("embedding output", width, f"T h x {self.residual} B"), *tables)

    def _rotary_tables(self) -> Item:
        e = self.residual
        return _item("rotary tables", 2 * self.seq_len * self.model.head_dim * e, f"2 t d x {e} B")

    def final_norm(self) -> tuple[Item, ...]:
        return (*self._norm(1), *self._norm_outputs(1, readers=1))

    def head(self) -> tuple[Item, ...]:
        copy = self.model.embedding_parameters * 2 if self.numerics == "autocast" else 0
        return (_item("bf16 copy of the head", copy, "V h x 2 B"),)

    def batch(self, rounds: int) -> Item:
        """Where the batches of all `rounds` lie in the rank's own memory they are there from the start of the step."""
        said = f"{rounds} x 2 T x 8 B" if rounds > 1 else "2 T x 8 B"
        return _item("token ids and labels", rounds * 2 * self.tokens * INT64, said, "batch")

    def loss_forward(self, checkpointed: int) -> tuple[Item, ...]:
        """Logits as the head writes them, their fp32 copy where that is another type, the log-softmax; under autocast also
        what the forward still names: the head's input, and every cast weight that no block has kept."""
        each = self.element + FP32 + (FP32 if self.element != FP32 else 0)
        logits = _item("logits and log-softmax", self.tokens * self.model.vocab_size * each, f"T V x {each} B", "loss")
        if self.numerics != "autocast":
            return (logits,)
        cached = checkpointed * self._matrix_weights() * 2
        return (
            logits,
            _item("final norm's output before its cast", self._wide(FP32), "T h x 4 B", "workspace"),
            *(() if checkpointed else (self._rotary_tables(),)),
            _item("autocast's cache of bf16 weights", cached, f"{checkpointed} x block weights without norms x 2 B", "workspace"),
        )

    def _matrix_weights(self) -> int:
        return self.model.layer_parameters - 2 * self.model.hidden_size

    def loss_backward(self) -> Item:
        """The log-softmax and the gradients of nll_loss and of log_softmax."""
        return _item("log-softmax and its gradients", self.tokens * self.model.vocab_size * 3 * FP32, "T V x 12 B", "loss")

    def loss_kept(self) -> Item:
        return _item("log-softmax", self.tokens * self.model.vocab_size * FP32, "T V x 4 B", "loss")


def _item(name: str, size: int, formula: str, kind: str = "activation") -> Item:
    return Item(name, kind, size, formula)
