# families/gpt.py without its comments
from __future__ import annotations

from typing import Any

from trainwright.families.assemble import attention, decoder, layer_norm, rotary, uniform
from trainwright.fields import Fields, shown
from trainwright.parts import PRE, UNSHOWN, Attention, Block, Decoder, Embedding, Head, Mlp, Norm, Place


def whole_heads(f: Fields, width: int, heads: int, name: str = "hidden_size", said: str = "num_attention_heads", **rest: Any) -> Attention:
    f.multiple(name, width, said, heads)
    dim = max(width // heads, 1)
    return Attention(heads, rest.pop("kv_heads", heads), dim, dim, **rest)


def gpt2(f: Fields) -> Decoder:
    width, heads = f.size("n_embd", "hidden_size"), f.size("n_head", "num_attention_heads")
    positions = f.size_or("n_positions", 1024, "max_position_embeddings")
    if f.flag("add_cross_attention"):
        f.wrong("add_cross_attention", "add_cross_attention is true, and models with an encoder are not read")
    scale = None if f.flag("scale_attn_weights") else 1.0
    if f.flag("scale_attn_by_inverse_layer_idx"):
        f.note(f"scores are also divided by the layer's number (scale_attn_by_inverse_layer_idx), {UNSHOWN}")
    found = whole_heads(f, width, heads, "n_embd", "n_head", qkv_bias=True, out_bias=True, fused=True, scale=scale)
    inner = Mlp(f.size_or("n_inner", 4 * width), gated=False, bias=True, activation=f.activation("activation_function"))
    block = Block(width, found, inner, layer_norm(f), transposed=True)
    embedding = Embedding(f.size("vocab_size"), width, positions)
    return decoder(f, "GPT2Block", uniform(f, block, "n_layer", "num_hidden_layers"), embedding=embedding, max_positions=positions)


def gpt_neox(f: Fields) -> Decoder:
    width, heads, bias = f.size("hidden_size"), f.size("num_attention_heads"), f.flag("attention_bias")
    turned = rotary(f, theta="rotary_emb_base", fraction="rotary_pct")
    found = whole_heads(f, width, heads, qkv_bias=bias, out_bias=bias, fused=True, rotary=turned)
    inner = Mlp(f.size("intermediate_size"), gated=False, bias=True, activation=f.activation("hidden_act"))
    block = Block(width, found, inner, layer_norm(f, "layer_norm_eps"), parallel=f.flag("use_parallel_residual"))
    return decoder(f, "GPTNeoXLayer", uniform(f, block))


def bloom(f: Fields) -> Decoder:
    width, heads, norm = f.size("n_embed" if f.has("n_embed") else "hidden_size"), f.size("n_head", "num_attention_heads"), layer_norm(f)
    if f.flag("apply_residual_connection_post_layernorm"):
        f.note(f"residuals start after the norm (apply_residual_connection_post_layernorm), {UNSHOWN}")
    found = whole_heads(f, width, heads, said="n_head", qkv_bias=True, out_bias=True, fused=True, alibi=True)
    block = Block(width, found, Mlp(4 * width, gated=False, bias=True, activation="gelu_pytorch_tanh"), norm)
    embedding = Embedding(f.size("vocab_size"), width, norm=norm)
    runs = uniform(f, block, "n_layer", "num_hidden_layers")
    return decoder(f, "BloomBlock", runs, embedding=embedding, max_positions=f.size_or("seq_length", 2048))


def mpt(f: Fields) -> Decoder:
    width, heads = f.size("d_model", "hidden_size"), f.size("n_heads", "num_attention_heads")
    inside = mpt_attention(f)
    clip, scale = inside.get("clip_qkv"), inside.get("softmax_scale")
    found = whole_heads(
        f,
        width,
        heads,
        "d_model",
        "n_heads",
        fused=True,
        alibi=True,
        clip=None if clip is None else f.positive("attn_config", clip, "clip_qkv"),
        scale=None if scale is None else f.positive("attn_config", scale, "softmax_scale"),
    )
    block = Block(width, found, Mlp(4 * width, gated=False, activation="gelu"), layer_norm(f, bias=False))
    positions = f.size_or("max_seq_len", 2048)
    return decoder(f, "MptBlock", uniform(f, block, "n_layers", "num_hidden_layers"), max_positions=positions)


MPT_BUILT: dict[str, Any] = {"expansion_ratio": 4, "no_bias": True}
MPT_ATTENTION_BUILT: dict[str, Any] = {"attn_type": "multihead_attention", "alibi": True, "qk_ln": False, "prefix_lm": False}


def mpt_attention(f: Fields) -> dict[str, Any]:
    inside = f.mapping("attn_config")
    kind = inside.get("attn_type", "multihead_attention")
    if kind not in ("multihead_attention", "multiquery_attention"):
        f.wrong("attn_config", f"attn_config.attn_type is {shown(kind)}, which Transformers' own MPT is not; its heads cannot be told")
    said = {name: (f.document.get(*f.path, name, default=built), built) for name, built in MPT_BUILT.items()}
    said |= {f"attn_config.{name}": (inside.get(name, built), built) for name, built in MPT_ATTENTION_BUILT.items()}
    f.read.update(MPT_BUILT)
    for name, (value, built) in said.items():
        if value != built:
            f.note(f"{name} is {shown(value)}, and Transformers builds {built!r} all the same: counted so")
    return inside


def falcon(f: Fields) -> Decoder:
    width, heads = f.size("n_embed" if f.has("n_embed") else "hidden_size"), f.size("num_attention_heads")
    bias, alibi, new = f.flag("bias"), f.flag("alibi"), f.flag("new_decoder_architecture")
    kv_heads = falcon_kv_heads(f, heads, new)
    turned = None if alibi else rotary(f)
    found = whole_heads(f, width, heads, kv_heads=kv_heads, qkv_bias=bias, out_bias=bias, fused=True, alibi=alibi, rotary=turned)
    inner = Mlp(f.size_or("ffn_hidden_size", 4 * width), gated=False, bias=bias, activation=f.activation("activation"))
    places, parallel = falcon_norms(f, new)
    block = Block(width, found, inner, layer_norm(f), places, parallel)
    return decoder(f, "FalconDecoderLayer", uniform(f, block))


def falcon_kv_heads(f: Fields, heads: int, new: bool) -> int:
    if not new:
        return 1 if f.flag("multi_query") else heads
    kv_heads = f.size_or("num_kv_heads", heads)
    f.multiple("num_attention_heads", heads, "num_kv_heads", kv_heads)
    return kv_heads


def falcon_norms(f: Fields, new: bool) -> tuple[tuple[Place, ...], bool]:
    parallel, norms = f.flag("parallel_attn"), f.optional_size("num_ln_in_parallel_attn")
    if new and not parallel:
        f.clash("parallel_attn", "parallel_attn is false, and new_decoder_architecture is always parallel")
    if norms not in (None, 1, 2) or (norms == 2 and not new):
        f.clash("num_ln_in_parallel_attn", f"num_ln_in_parallel_attn is {norms}; it is 1, or 2 with new_decoder_architecture")
    one = parallel and (norms == 1 or not new)
    return (("attention_in",) if one else PRE), parallel


def phi(f: Fields) -> Decoder:
    width = f.size("hidden_size")
    norm = layer_norm(f, "layer_norm_eps")
    qk_norm: Norm | None = norm if f.flag("qk_layernorm") else None
    found = attention(f, width, qkv_bias=True, out_bias=True, qk_norm=qk_norm, rotary=rotary(f))
    inner = Mlp(f.size("intermediate_size"), gated=False, bias=True, activation=f.activation("hidden_act"))
    block = Block(width, found, inner, norm, ("attention_in",), parallel=True)
    return decoder(f, "PhiDecoderLayer", uniform(f, block), head=Head(f.flag("tie_word_embeddings"), bias=True))


def plain(f: Fields) -> Decoder:
    width = f.size("hidden_size")
    heads = f.size_or("num_attention_heads", max(width // 16, 1))
    positions = f.size_or("max_position_embeddings", 64)
    norm = Norm("rms", 1e-6, weight=False)
    block = Block(width, whole_heads(f, width, heads), Mlp(f.size_or("intermediate_size", 4 * width), gated=False, activation="gelu"), norm)
    runs = uniform(f, block)
    return decoder(f, "PlainLayer", runs, embedding=Embedding(f.size("vocab_size"), width, positions), head=Head(), max_positions=positions)


READERS = {
    "gpt2": gpt2,
    "gpt_neox": gpt_neox,
    "bloom": bloom,
    "mpt": mpt,
    "falcon": falcon,
    "phi": phi,
    "plain": plain,
}
