# families/llama.py without its comments
from __future__ import annotations

from dataclasses import replace

from trainwright.families.assemble import alternating, attending, attention, decoder, rms, rotary, uniform
from trainwright.fields import Fields
from trainwright.parts import POST, PRE, SANDWICH, Block, Decoder, Embedding, Head, Mlp, Norm, Place, Run


def mlp(f: Fields, activation: str = "hidden_act", bias: bool = False, fused: bool = False) -> Mlp:
    return Mlp(f.size("intermediate_size"), bias=bias, activation=f.activation(activation), fused=fused)


def llama(f: Fields) -> Decoder:
    width, bias = f.size("hidden_size"), f.flag("attention_bias")
    heads = attention(f, width, qkv_bias=bias, out_bias=bias, rotary=rotary(f))
    block = Block(width, heads, mlp(f, bias=f.flag("mlp_bias")), rms(f))
    return decoder(f, "LlamaDecoderLayer", uniform(f, block))


def mistral(f: Fields) -> Decoder:
    width = f.size("hidden_size")
    heads = attention(f, width, rotary=rotary(f), window=f.optional_size("sliding_window"))
    return decoder(f, "MistralDecoderLayer", uniform(f, Block(width, heads, mlp(f), rms(f))))


def qwen2(f: Fields, block_class: str = "Qwen2DecoderLayer") -> Decoder:
    width = f.size("hidden_size")
    heads = attention(f, width, qkv_bias=True, rotary=rotary(f))
    return decoder(f, block_class, qwen_runs(f, Block(width, heads, mlp(f), rms(f))))


def qwen2_vl_text(f: Fields) -> Decoder:
    return qwen2(f, "Qwen2VLDecoderLayer")


def qwen3(f: Fields) -> Decoder:
    width, bias, norm = f.size("hidden_size"), f.flag("attention_bias"), rms(f)
    heads = attention(f, width, qkv_bias=bias, out_bias=bias, qk_norm=norm, rotary=rotary(f))
    return decoder(f, "Qwen3DecoderLayer", qwen_runs(f, Block(width, heads, mlp(f), norm)))


def qwen_runs(f: Fields, block: Block) -> tuple[Run, ...]:
    if not f.flag("use_sliding_window"):
        return uniform(f, block)
    window, first = f.optional_size("sliding_window"), f.size_or("max_window_layers", 0, least=0)
    return alternating(f, block, attending(block, window=window), lambda layer: layer >= first)


def gemma(f: Fields) -> Decoder:
    width, bias = f.size("hidden_size"), f.flag("attention_bias")
    heads = attention(f, width, qkv_bias=bias, out_bias=bias, rotary=rotary(f))
    inner = mlp(f)
    inner = replace(inner, activation="gelu_pytorch_tanh") if inner.activation == "gelu" else inner
    return decoder(f, "GemmaDecoderLayer", uniform(f, Block(width, heads, inner, shifted(f))), embedding=scaled(f, width))


def gemma2(f: Fields) -> Decoder:
    block = gemma_block(f)
    block = attending(block, softcap=f.optional_number("attn_logit_softcapping"), rotary=rotary(f))
    runs = alternating(f, block, attending(block, window=f.optional_size("sliding_window")), lambda layer: layer % 2 == 0)
    return decoder(f, "Gemma2DecoderLayer", runs, embedding=scaled(f, block.width), head=capped(f))


def gemma3(f: Fields) -> Decoder:
    block = gemma_block(f)
    softcap, local = f.optional_number("attn_logit_softcapping"), rotary(f, "sliding_attention", "rope_local_base_freq")
    full = attending(block, qk_norm=block.norm, softcap=softcap, rotary=rotary(f, "full_attention"))
    narrow = attending(full, rotary=local, window=f.optional_size("sliding_window"))
    pattern = f.size_or("sliding_window_pattern", 6)
    runs = alternating(f, full, narrow, lambda layer: (layer + 1) % pattern != 0)
    return decoder(f, "Gemma3DecoderLayer", runs, embedding=scaled(f, block.width), head=capped(f))


def gemma_block(f: Fields) -> Block:
    width, bias = f.size("hidden_size"), f.flag("attention_bias")
    heads = attention(f, width, qkv_bias=bias, out_bias=bias, scale=f.number("query_pre_attn_scalar") ** -0.5)
    return Block(width, heads, mlp(f, "hidden_activation"), shifted(f), SANDWICH)


def shifted(f: Fields) -> Norm:
    return replace(rms(f), shifted=True)


def scaled(f: Fields, width: int) -> Embedding:
    return Embedding(f.size("vocab_size"), width, scale=width**0.5)


def capped(f: Fields) -> Head:
    return Head(f.flag("tie_word_embeddings"), softcap=f.optional_number("final_logit_softcapping"))


def olmo(f: Fields) -> Decoder:
    block = olmo_block(f, Norm("layer", 1e-5, weight=False), PRE)
    return decoder(f, "OlmoDecoderLayer", uniform(f, attending(block, clip=f.optional_number("clip_qkv"), rotary=rotary(f))))


def olmo2(f: Fields) -> Decoder:
    block = olmo_block(f, rms(f), POST)
    return decoder(f, "Olmo2DecoderLayer", uniform(f, attending(block, qk_norm=block.norm, qk_norm_per_head=False, rotary=rotary(f))))


def olmo3(f: Fields) -> Decoder:
    block = olmo_block(f, rms(f), POST)
    full = attending(block, qk_norm=block.norm, qk_norm_per_head=False, rotary=rotary(f, "full_attention"))
    narrow = attending(full, rotary=rotary(f, "sliding_attention"), window=f.optional_size("sliding_window"))
    runs = alternating(f, full, narrow, lambda layer: (layer + 1) % 4 != 0)
    return decoder(f, "Olmo3DecoderLayer", runs)


def olmo_block(f: Fields, norm: Norm, places: tuple[Place, ...]) -> Block:
    width, bias = f.size("hidden_size"), f.flag("attention_bias")
    return Block(width, attention(f, width, qkv_bias=bias, out_bias=bias), mlp(f), norm, places)


def phi3(f: Fields) -> Decoder:
    width = f.size("hidden_size")
    heads = attention(f, width, fused=True, rotary=rotary(f), window=f.optional_size("sliding_window"))
    return decoder(f, "Phi3DecoderLayer", uniform(f, Block(width, heads, mlp(f, fused=True), rms(f))))


READERS = {
    "llama": llama,
    "mistral": mistral,
    "qwen2": qwen2,
    "qwen2_vl_text": qwen2_vl_text,
    "qwen3": qwen3,
    "gemma": gemma,
    "gemma2": gemma2,
    "gemma3_text": gemma3,
    "olmo": olmo,
    "olmo2": olmo2,
    "olmo3": olmo3,
    "phi3": phi3,
}
