# train/decoder.py without its comments
from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainwright.parts import Decoder
from trainwright.train import positions
from trainwright.train.blocks import make_layer, through
from trainwright.train.data import Batch
from trainwright.train.layers import make_norm

Reduction = Literal["mean", "sum"]


class CausalLM(nn.Module):

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder
        embedding, head = decoder.embedding, decoder.head
        self.embed_tokens = nn.Embedding(embedding.vocab_size, embedding.width)
        self.embed_positions = nn.Embedding(embedding.positions, embedding.width) if embedding.positions else None
        self.embed_norm = make_norm(embedding.norm, embedding.width) if embedding.norm else None
        blocks = [run.block for run in decoder.runs for _ in range(run.count)]
        kinds = positions.kinds(decoder)
        self.kinds = [kinds.index(block.attention) for block in blocks]
        self.layers = nn.ModuleList(make_layer(block, decoder.block_class) for block in blocks)
        self.norm = make_norm(decoder.final_norm, embedding.width)
        self.lm_head = None if head.tied else nn.Linear(embedding.width, embedding.vocab_size, bias=head.bias)
        self.head_bias = nn.Parameter(torch.empty(embedding.vocab_size)) if head.tied and head.bias else None

    def forward(self, batch: Batch, reduction: Reduction = "mean") -> Tensor:
        return cross_entropy(self.logits(self.embed(batch.ids)), batch.labels, reduction)

    def embed(self, ids_bt: Tensor) -> Tensor:
        x_bth: Tensor = self.embed_tokens(ids_bt)
        scale = self.decoder.embedding.scale
        return x_bth if scale == 1 else x_bth * scale

    def logits(self, x_bth: Tensor, skipped: int = 0) -> Tensor:
        tokens = x_bth.shape[1]
        if self.embed_positions is not None:
            x_bth = x_bth + self.embed_positions(torch.arange(tokens, device=x_bth.device))
        x_bth = through(self.embed_norm, x_bth)
        tables = positions.tables(self.decoder, tokens, x_bth)
        for layer, kind in zip(self.layers, self.kinds, strict=True):
            x_bth = layer(x_bth, tables[kind].cos, tables[kind].sin, tables[kind].mask)
        x_bth = through(self.norm, x_bth[:, skipped:] if skipped else x_bth)
        return self._head(x_bth)

    def _head(self, x_bth: Tensor) -> Tensor:
        head, own = self.decoder.head, self.lm_head
        logits_btv: Tensor = functional.linear(x_bth, self.embed_tokens.weight, self.head_bias) if own is None else own(x_bth)
        if head.scale is not None:
            logits_btv = logits_btv * head.scale
        return logits_btv if head.softcap is None else torch.tanh(logits_btv / head.softcap) * head.softcap


def cross_entropy(logits_btv: Tensor, labels_bt: Tensor, reduction: Reduction) -> Tensor:
    return functional.cross_entropy(logits_btv.float().flatten(0, 1), labels_bt.flatten(), reduction=reduction)
