# likeness.py without its comments
from __future__ import annotations

from trainwright.parts import PRE, Attention, Block, Decoder, Experts, Mlp

Check = tuple[bool, str]


def unlike_llama(decoder: Decoder, sees: bool, projects: bool) -> tuple[str, ...]:
    embedding, head = decoder.embedding, decoder.head
    whole: tuple[Check, ...] = (
        (sees, "an image encoder"),
        (projects, "a projector"),
        (len(decoder.runs) > 1, "layers that differ"),
        (embedding.positions > 0, "learned positions"),
        (embedding.norm is not None, "a norm after the embedding"),
        (embedding.scale != 1, "a scaled embedding"),
        (head.bias, "a bias in the head"),
        (head.softcap is not None, "capped logits"),
        (decoder.final_norm != decoder.runs[0].block.norm, "another final norm"),
    )
    checks = (*whole, *(check for run in decoder.runs for check in _of_block(run.block)))
    return tuple(dict.fromkeys(phrase for differs, phrase in checks if differs))


def _of_block(block: Block) -> tuple[Check, ...]:
    norm = block.norm
    return (
        *_of_attention(block.attention),
        *_of_mlp(block.mlp),
        (norm.kind != "rms" or norm.bias or not norm.weight, "another norm than RMSNorm"),
        (block.norms != PRE, "norms in other places"),
        (block.parallel, "attention and MLP in parallel"),
        (block.transposed, "transposed matrices"),
    )


def _of_attention(a: Attention) -> tuple[Check, ...]:
    plain = a.latent is None
    return (
        (not plain, "latent attention"),
        (a.fused, "q, k and v in one matrix"),
        (a.qkv_bias and not a.out_bias, "a bias on q, k and v alone"),
        (a.out_bias and not a.qkv_bias, "a bias on the output projection alone"),
        (a.qk_norm is not None, "norms of q and k"),
        (plain and a.value_dim != a.head_dim, "values of another width than keys"),
        (a.alibi, "ALiBi positions"),
        (a.rotary is None and not a.alibi, "no rotary positions"),
        (plain and a.rotary is not None and a.rotary.fraction != 1, "rotary positions on a part of each head"),
        (a.window is not None, f"a sliding window of {a.window}"),
        (plain and a.scale is not None, "scores scaled another way"),
        (a.softcap is not None, "capped scores"),
        (a.clip is not None, "clipped q, k and v"),
    )


def _of_mlp(mlp: Mlp | Experts) -> tuple[Check, ...]:
    activation = (mlp.activation != "silu", f"activation {mlp.activation}")
    if isinstance(mlp, Experts):
        return ((True, f"{mlp.num} experts"), activation)
    return ((not mlp.gated, "an MLP without a gate"), (mlp.fused, "gate and up in one matrix"), activation)
