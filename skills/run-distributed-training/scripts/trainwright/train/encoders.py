# train/encoders.py without its comments
from __future__ import annotations

import torch
from torch import Tensor, nn

from trainwright.parts import Attention, Block, Mlp, Norm
from trainwright.train import signals
from trainwright.train.blocks import make_layer

LAYERS, HEADS = 2, 4
LAYER_CLASS = "EncoderLayer"
NORM = Norm("layer", 1e-5, bias=True)


def block(width: int) -> Block:
    attention = Attention(HEADS, HEADS, width // HEADS, width // HEADS, qkv_bias=True, out_bias=True)
    return Block(width, attention, Mlp(4 * width, gated=False, bias=True, activation="gelu"), NORM)


class PatchEncoder(nn.Module):

    def __init__(self, width: int, dims: int) -> None:
        super().__init__()
        images = dims == 2
        self.patches = nn.Conv2d(3, width, signals.PATCH, signals.PATCH) if images else nn.Conv1d(1, width, signals.CHUNK, signals.CHUNK)
        self.positions = nn.Parameter(torch.empty(signals.PATCHES if images else signals.CHUNKS, width))
        self.layers = nn.ModuleList(make_layer(block(width), LAYER_CLASS, causal=False) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(width)

    def forward(self, signal: Tensor) -> Tensor:
        patches_bwp = self.patches(signal.to(self.patches.weight.dtype)).flatten(2)
        x_bpw = patches_bwp.transpose(1, 2) + self.positions
        for layer in self.layers:
            x_bpw = layer(x_bpw)
        out: Tensor = self.norm(x_bpw)
        return out


class GraphEncoder(nn.Module):

    def __init__(self, width: int) -> None:
        super().__init__()
        self.nodes = nn.Linear(signals.NODE_FEATURES, width)
        self.layers = nn.ModuleList(MessagePassing(width) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(width)

    def forward(self, nodes_bnf: Tensor, edges_bnn: Tensor) -> Tensor:
        dtype = self.nodes.weight.dtype
        x_bnw, edges_bnn = self.nodes(nodes_bnf.to(dtype)), edges_bnn.to(dtype)
        for layer in self.layers:
            x_bnw = layer(x_bnw, edges_bnn)
        out: Tensor = self.norm(x_bnw)
        return out


class MessagePassing(nn.Module):

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(3 * width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x_bnw: Tensor, edges_bnn: Tensor) -> Tensor:
        own_bnw = self.norm(x_bnw)
        sum_bnw = edges_bnn @ own_bnw
        mean_bnw = sum_bnw / edges_bnn.sum(dim=-1, keepdim=True).clamp_min(1)
        out: Tensor = x_bnw + self.down(torch.relu(self.up(torch.cat((own_bnw, sum_bnw, mean_bnw), dim=-1))))
        return out


class RobotEncoder(nn.Module):

    def __init__(self, width: int) -> None:
        super().__init__()
        self.camera = PatchEncoder(width, 2)
        self.state = nn.Linear(signals.STATE, width)

    def forward(self, image: Tensor, state: Tensor) -> Tensor:
        return torch.cat((self.camera(image), self.state(state.to(self.state.weight.dtype))[:, None]), dim=1)


def make_encoder(modality: str, width: int) -> nn.Module:
    if modality == "text_graph":
        return GraphEncoder(width)
    if modality == "text_vla":
        return RobotEncoder(width)
    return PatchEncoder(width, 2 if modality == "text_image" else 1)
