# train/tiny.py without its comments
from __future__ import annotations

from dataclasses import replace

from trainwright.model import ModelSpec
from trainwright.parts import Attention, Block, Experts, Mlp, Run

WIDTH, HEAD, SIZE, LAYERS = 64, 16, 64, 2


def tiny(spec: ModelSpec) -> ModelSpec:
    blocks = list(dict.fromkeys(_block(run.block) for run in spec.runs))[:LAYERS]
    old = spec.decoder
    embedding = replace(old.embedding, width=WIDTH, vocab_size=min(old.embedding.vocab_size, 256))
    decoder = replace(old, embedding=embedding, runs=tuple(Run(1, block) for block in blocks))
    between = replace(spec.projector, output_size=WIDTH, hidden_size=WIDTH) if spec.projector else None
    return replace(spec, decoder=decoder, projector=between)


def _block(block: Block) -> Block:
    return replace(block, width=WIDTH, attention=_attention(block.attention), mlp=_mlp(block.mlp))


def _attention(old: Attention) -> Attention:
    rotary = old.rotary
    if rotary:
        even = int(HEAD * rotary.fraction) // 2 * 2
        rotary = replace(rotary, scaling="", stretch=None, fraction=max(even, 2) / HEAD)
    latent = replace(old.latent, kv_rank=8, rope_dim=8, query_rank=8 if old.latent.query_rank else None) if old.latent else None
    kv_heads = 1 if old.num_kv_heads < old.num_heads else 2
    return replace(old, num_heads=2, num_kv_heads=kv_heads, head_dim=HEAD, value_dim=HEAD, rotary=rotary, latent=latent)


def _mlp(old: Mlp | Experts) -> Mlp | Experts:
    if isinstance(old, Mlp):
        return replace(old, size=SIZE)
    num = min(old.num, 4)
    router = replace(old.router, groups=1, kept_groups=1)
    shared = replace(old.shared, size=SIZE) if old.shared else None
    return replace(old, num=num, per_token=min(old.per_token, num), size=SIZE, router=router, shared=shared)
