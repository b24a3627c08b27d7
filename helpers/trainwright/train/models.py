"""The reference models: a plain eager decoder for every family of ModelSpec, and its initialisation.

Shape suffixes: b micro batch, t tokens, h hidden, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from trainwright.errors import UserError
from trainwright.model import ModelSpec
from trainwright.parts import UNSHOWN, Block, Decoder, Experts
from trainwright.train import positions, projected
from trainwright.train.decoder import CausalLM
from trainwright.train.layers import NORMS, ShiftedRMSNorm, named
from trainwright.train.signals import MODALITIES

INIT_STD = 0.02


def build(spec: ModelSpec, modality: str = "text", regime: str = "e2e") -> nn.Module:
    """The model on the meta device: no memory until `materialize`, so that it can be sharded first.

    modality: text, or a family of signals, for which `spec` needs a projector; regime: what of encoder, projector and backbone trains.
    Raises UserError with one line for a model that these modules are not.
    """
    judge(spec, modality)
    with torch.device("meta"):
        if modality == "text":
            model: nn.Module = named(CausalLM, f"{_prefix(spec)}ForCausalLM")(spec.decoder)
        else:
            model = projected.make_projected(spec, modality, regime)
    _set_scales(model, spec.decoder)
    return model


def _prefix(spec: ModelSpec) -> str:
    return spec.block_class.removesuffix("DecoderLayer").removesuffix("Layer").removesuffix("Block")


def judge(spec: ModelSpec, modality: str) -> None:
    """Raise UserError for what a config asks and these modules do not do: nothing is replaced by something alike."""
    if spec.tower:
        raise UserError(f"the reference trainer builds decoders of text, and {spec.name} has an image encoder ({spec.tower.family})")
    if spec.projector and modality == "text":
        raise UserError(f"{spec.name} has a projector, and family text has no signal for it; take one of {', '.join(MODALITIES)}")
    if unshown := [note for note in spec.notes if note.endswith(UNSHOWN)]:
        raise UserError(f"the reference trainer cannot build {spec.name}: {unshown[0].removesuffix(', ' + UNSHOWN)}")
    for run in spec.runs:
        _judge_block(spec, run.block)


def _judge_block(spec: ModelSpec, block: Block) -> None:
    attention, mlp = block.attention, block.mlp
    if attention.rotary:
        positions.judge(attention.rotary, attention.rotary_dim)
    if attention.softcap is not None and attention.alibi:
        raise UserError(f"the reference trainer does not cap scores that ALiBi is added to, as {spec.name} asks")
    if isinstance(mlp, Experts) and mlp.num // mlp.router.groups * mlp.router.kept_groups < mlp.per_token:
        kept = mlp.router.kept_groups
        raise UserError(f"{spec.name}: a token takes {mlp.per_token} experts, and the {kept} groups that it may choose have fewer")


def _set_scales(model: nn.Module, decoder: Decoder) -> None:
    """Write on each module the standard deviation of its matrices (`init_std`), so that it survives wrapping and sharding.

    0.02 as in GPT-2, whose projections into the residual stream have 0.02 / sqrt(2 layers) besides. The study's decoder has torch's own
    scales, 1 for tables and 1 / sqrt(3 inputs) for matrices (at widths 12 and 24 0.02 was 0.05 to 0.1 nats worse); its head starts at 0.
    """
    layers = sum(run.count for run in decoder.runs)
    for name, module in model.named_modules():
        std = INIT_STD
        if decoder.family == "gpt2" and name.endswith(("o_proj", "down_proj")):
            std = INIT_STD / (2 * layers) ** 0.5
        if decoder.family == "plain":
            std = plain_scale(name, module)
        if name.startswith(("encoder", "projector")):
            std = projected.initial_scale(module) or INIT_STD
        module.init_std = std


def plain_scale(name: str, module: nn.Module) -> float:
    if name.endswith("lm_head"):
        return 0.0
    return float((3 * module.in_features) ** -0.5) if isinstance(module, nn.Linear) else 1.0


def materialize(model: nn.Module, device: torch.device, seed: int) -> None:
    """Allocate every parameter (its local shard only, where sharded) on `device` and initialise it; these models have no buffers.

    Each parameter is drawn whole on the CPU from its own generator, then cut: the values do not depend on strategy or world size.
    At most one whole parameter lives beside the shards.
    """
    model.to_empty(device=device)
    with torch.no_grad():
        for index, (module, name, parameter) in enumerate(_parameters(model)):
            _fill(parameter, _initial(module, name, parameter.shape, torch.Generator().manual_seed((seed * 1_000_003 + index) % 2**63)))


def _parameters(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Parameter]]:
    """Every parameter once, in the order of `named_parameters`, with the module that holds it."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            yield module, name, parameter


def _initial(module: nn.Module, name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
    if name.endswith("bias") or isinstance(module, ShiftedRMSNorm):
        return torch.zeros(shape)
    if isinstance(module, NORMS):
        return torch.ones(shape)
    std = float(getattr(module, "init_std", INIT_STD))
    return torch.empty(shape).normal_(0.0, std, generator=generator) if std else torch.zeros(shape)


def _fill(parameter: Tensor, whole: Tensor) -> None:
    if isinstance(parameter, DTensor):  # src_data_rank None: every rank holds the whole already, nothing is sent
        whole = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None).to_local()
        parameter = parameter.to_local()
    parameter.copy_(whole)


def counts(model: nn.Module) -> dict[str, int]:
    """Whole sizes, sharded or not: total, trainable, and those of encoder, projector and backbone."""
    found = {"total": 0, "trainable": 0, "encoder": 0, "projector": 0, "backbone": 0}
    for part, parameter in projected.parts_of(model):
        for name in ("total", part, *(("trainable",) if parameter.requires_grad else ())):
            found[name] += parameter.numel()
    return found
