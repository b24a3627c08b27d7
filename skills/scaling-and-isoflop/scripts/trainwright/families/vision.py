# families/vision.py without its comments
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from trainwright.families import gpt, llama, mixture
from trainwright.families.assemble import layer_norm, uniform
from trainwright.fields import Fields
from trainwright.parts import LADDER, Attention, Block, Decoder, Mlp, Norm, Patches, Projector, Run, Tower, projector

TEXT: dict[str, Callable[[Fields], Decoder]] = {**llama.READERS, **gpt.READERS, **mixture.READERS}
Vision = tuple[Decoder, Tower | None, Projector | None]


def read(f: Fields) -> Vision:
    if f.family in READERS:
        return READERS[f.family](f)
    decoder = TEXT[f.family](f)
    return decoder, None, in_front(f, decoder.embedding.width) if f.has("projector") else None


def in_front(f: Fields, width: int) -> Projector:
    inside = f.section("projector", "projector")
    variant = inside.word("variant", tuple(LADDER)) if inside.has("variant") else "BASE"
    return projector(variant, inside.size("input_size"), width)


def llava(f: Fields) -> Vision:
    decoder, tower = text(f.section("text_config", "llama"), f.flag("tie_word_embeddings")), vision(f, "clip_vision_model")
    layers = f.document.get("vision_feature_layer")
    f.read.add("vision_feature_layer")
    joined = len(layers) if isinstance(layers, list) and layers else 1
    h, bias, act = decoder.embedding.width, f.flag("multimodal_projector_bias"), f.activation("projector_hidden_act")
    return decoder, tower, Projector(tower.width, h, h, joined=joined, bias=bias, activation=act)


def gemma3(f: Fields) -> Vision:
    decoder = text(f.section("text_config", "gemma3_text"), False)
    f.assumed[:] = [one for one in f.assumed if one.field != "text_config.tie_word_embeddings"]
    decoder = replace(decoder, head=replace(decoder.head, tied=f.flag("tie_word_embeddings")))
    tower = vision(f, "siglip_vision_model")
    norm = Norm("rms", tower.after.eps if tower.after else 1e-6, shifted=True)
    h = decoder.embedding.width
    return decoder, tower, Projector(tower.width, h, h, depth=0, bias=False, norm=norm, transposed=True)


def qwen2_vl(f: Fields) -> Vision:
    flat = not f.has("text_config")
    own = f.section("text_config", "qwen2_vl_text") if not flat else replace(f, family="qwen2_vl_text")
    decoder = text(replace(own, family="qwen2_vl_text"), f.flag("tie_word_embeddings"))
    v = f.section("vision_config", "qwen2_vl_vision")
    v = replace(v, family="qwen2_vl_vision")
    width, out, merge = v.size("embed_dim"), v.size("hidden_size"), v.size_or("spatial_merge_size", 2)
    if out != decoder.embedding.width:
        v.clash("hidden_size", f"vision_config.hidden_size {out} is not the decoder's hidden_size {decoder.embedding.width}")
    patches = Patches(v.size_or("patch_size", 14), v.size_or("in_channels", 3), v.size_or("temporal_patch_size", 2))
    heads, norm = v.size("num_heads", "num_attention_heads"), Norm("layer", 1e-6, bias=True)
    inner = Mlp(int(width * v.number("mlp_ratio")), gated=False, bias=True, activation=v.activation("hidden_act"))
    block = encoder_block(v, width, heads, inner, norm, "embed_dim", "num_heads", fused=True)
    tower = Tower("qwen2_vl_vision", "Qwen2VLVisionBlock", width, patches, uniform(v, block, "depth", "num_hidden_layers"))
    joined = merge * merge
    return decoder, tower, Projector(width, width * joined, decoder.embedding.width, joined=joined, norm=norm)


def text(own: Fields, tied: bool) -> Decoder:
    if own.family not in TEXT:
        own.wrong("model_type", f"{own.named('model_type')} is {own.family!r}; the decoders read are {', '.join(TEXT)}")
        own = replace(own, family="llama")
    decoder = TEXT[own.family](own)
    return replace(decoder, head=replace(decoder.head, tied=decoder.head.tied or tied))


def vision(f: Fields, family: str) -> Tower:
    v = f.section("vision_config", family)
    if v.family not in TOWERS:
        v.wrong("model_type", f"{v.named('model_type')} is {v.family!r}; the encoders read are {', '.join(TOWERS)}")
        v = replace(v, family=family)
    return TOWERS[v.family](v)


def clip(v: Fields) -> Tower:
    width, runs, norm = encoder(v)
    side, patches = squares(v, bias=False)
    return Tower("clip_vision_model", "CLIPEncoderLayer", width, patches, runs, side**2 + 1, True, norm, norm)


def siglip(v: Fields) -> Tower:
    width, runs, norm = encoder(v)
    side, patches = squares(v, bias=True)
    block = runs[0].block
    pooler = replace(block, attention=replace(block.attention, fused=True), norms=("mlp_in",)) if v.flag("vision_use_head") else None
    return Tower("siglip_vision_model", "SiglipEncoderLayer", width, patches, runs, side**2, False, None, norm, pooler)


def encoder(v: Fields) -> tuple[int, tuple[Run, ...], Norm]:
    width, heads, norm = v.size("hidden_size"), v.size("num_attention_heads"), layer_norm(v, "layer_norm_eps")
    inner = Mlp(v.size("intermediate_size"), gated=False, bias=True, activation=v.activation("hidden_act"))
    return width, uniform(v, encoder_block(v, width, heads, inner, norm, "hidden_size", "num_attention_heads")), norm


def encoder_block(v: Fields, width: int, heads: int, inner: Mlp, norm: Norm, name: str, said: str, fused: bool = False) -> Block:
    v.multiple(name, width, said, heads)
    dim = max(width // heads, 1)
    return Block(width, Attention(heads, heads, dim, dim, qkv_bias=True, out_bias=True, fused=fused), inner, norm)


def squares(v: Fields, bias: bool) -> tuple[int, Patches]:
    image, patch, channels = v.size_or("image_size", 224), v.size_or("patch_size", 16), v.size_or("num_channels", 3)
    if patch > image:
        v.clash("patch_size", f"{v.named('patch_size')} {patch} is more than {v.named('image_size')} {image}")
    return max(image // patch, 1), Patches(patch, channels, bias=bias)


TOWERS = {"clip_vision_model": clip, "siglip_vision_model": siglip}
READERS = {"llava": llava, "gemma3": gemma3, "qwen2_vl": qwen2_vl}
FAMILIES = (*(name for name in TEXT if name not in ("qwen2_vl_text", "plain")), *READERS)
