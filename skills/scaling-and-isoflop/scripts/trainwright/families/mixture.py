# families/mixture.py without its comments
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from trainwright.families.assemble import attending, attention, decoder, each, mscale, rms, rotary, sliding, uniform
from trainwright.families.llama import mlp
from trainwright.fields import Fields, shown
from trainwright.parts import Attention, Block, Decoder, Experts, Latent, Mlp, Norm, Router
from trainwright.rotary import Rotary


def mixtral(f: Fields) -> Decoder:
    width = f.size("hidden_size")
    heads = attention(f, width, rotary=rotary(f), window=f.optional_size("sliding_window"))
    num = f.size("num_local_experts", "num_experts")
    experts = Experts(num, chosen(f, "num_local_experts", num), f.size("intermediate_size"), f.activation("hidden_act"))
    return decoder(f, "MixtralDecoderLayer", uniform(f, Block(width, heads, experts, rms(f))))


def qwen2_moe(f: Fields) -> Decoder:
    width = f.size("hidden_size")
    heads = attention(f, width, qkv_bias=f.flag("qkv_bias"), rotary=rotary(f))
    shared = Mlp(f.size("shared_expert_intermediate_size"), activation=f.activation("hidden_act"))
    block = Block(width, heads, replace(qwen_experts(f), shared=shared, shared_gate=True), rms(f))
    if not f.flag("use_sliding_window"):
        return decoder(f, "Qwen2MoeDecoderLayer", each(f, sparse(f, block)))
    window, last = f.optional_size("sliding_window"), f.size_or("max_window_layers", 0, least=0)
    narrow = sparse(f, attending(block, window=window))
    full, is_narrow = sparse(f, block), sliding(f, lambda layer: layer % 2 == 0 and layer < last)
    return decoder(f, "Qwen2MoeDecoderLayer", each(f, lambda layer: narrow(layer) if is_narrow(layer) else full(layer)))


def qwen3_moe(f: Fields) -> Decoder:
    width, bias, norm = f.size("hidden_size"), f.flag("attention_bias"), rms(f)
    window = f.optional_size("sliding_window") if f.flag("use_sliding_window") else None
    heads = attention(f, width, qkv_bias=bias, out_bias=bias, qk_norm=norm, rotary=rotary(f), window=window)
    return decoder(f, "Qwen3MoeDecoderLayer", each(f, sparse(f, Block(width, heads, qwen_experts(f), norm))))


def qwen_experts(f: Fields) -> Experts:
    num = f.size("num_experts", "num_local_experts")
    router = Router(normalised=f.flag("norm_topk_prob"))
    return Experts(num, chosen(f, "num_experts", num), f.size("moe_intermediate_size"), f.activation("hidden_act"), router)


def sparse(f: Fields, block: Block) -> Callable[[int], Block]:
    step, plain = f.size_or("decoder_sparse_step", 1), set(layer_numbers(f, "mlp_only_layers"))
    if step == 1 and not plain:
        return lambda layer: block
    dense = replace(block, mlp=mlp(f))
    return lambda layer: dense if layer in plain or (layer + 1) % step else block


def layer_numbers(f: Fields, name: str) -> list[int]:
    found, layers = f.words(name) or [], f.size("num_hidden_layers")
    wrong = [number for number in found if type(number) is not int or not 0 <= number < layers]
    if wrong:
        f.clash(name, f"{f.named(name)} has {shown(wrong[0])}, and the layers are 0 to {layers - 1}")
    return [] if wrong else found


def chosen(f: Fields, name: str, num: int) -> int:
    found = f.size("num_experts_per_tok")
    if found > num:
        f.clash("num_experts_per_tok", f"{f.named('num_experts_per_tok')} is {found}, and {f.named(name)} only {num}")
    return min(found, num)


def deepseek_v2(f: Fields) -> Decoder:
    bias = f.flag("mlp_bias")
    limited = f.word("topk_method", ("greedy", "group_limited_greedy")) == "group_limited_greedy"
    scaling = f.number("routed_scaling_factor")
    router = Router("softmax", False, scaling, *(groups(f) if limited else (1, 1)))
    return deepseek(f, "DeepseekV2DecoderLayer", router, bias)


def deepseek_v3(f: Fields) -> Decoder:
    router = Router("sigmoid", f.flag("norm_topk_prob"), f.number("routed_scaling_factor"), *groups(f))
    further = f.document.get(*f.path, "num_nextn_predict_layers")
    if further:
        f.note(f"num_nextn_predict_layers is {shown(further)}: those layers are in the published weights, and not counted here")
    return deepseek(f, "DeepseekV3DecoderLayer", router, False)


def deepseek(f: Fields, block_class: str, router: Router, bias: bool) -> Decoder:
    width = f.size("hidden_size")
    num, size, act = (
        f.size("n_routed_experts", "num_experts", "num_local_experts"),
        f.size("moe_intermediate_size"),
        f.activation("hidden_act"),
    )
    shared = f.size_or("n_shared_experts", 1)
    f.multiple("n_routed_experts", num, "n_group", router.groups)
    joint = Mlp(size * shared, bias=bias, activation=act)
    block = Block(width, latent(f), Experts(num, chosen(f, "n_routed_experts", num), size, act, router, joint), rms(f))
    first = f.size_or("first_k_dense_replace", 0, least=0)
    dense = replace(block, mlp=Mlp(f.size("intermediate_size"), bias=bias, activation=act)) if first else block
    return decoder(f, block_class, each(f, lambda layer: dense if layer < first else block))


def latent(f: Fields) -> Attention:
    heads, bias = f.size("num_attention_heads"), f.flag("attention_bias")
    kv_heads = f.size_or("num_key_value_heads", heads)
    if kv_heads != heads:
        f.clash("num_key_value_heads", f"num_key_value_heads {kv_heads} is not num_attention_heads {heads}, as latent attention has it")
    plain, turned = f.size("qk_nope_head_dim"), f.size("qk_rope_head_dim")
    ranks = Latent(f.size("kv_lora_rank"), turned, f.optional_size("q_lora_rank"), Norm())
    dim = plain + turned
    positions = rotary(f)
    return Attention(
        heads,
        heads,
        dim,
        f.size("v_head_dim"),
        qkv_bias=bias,
        out_bias=bias,
        latent=ranks,
        rotary=replace(positions, fraction=turned / dim),
        scale=latent_scale(f, dim, positions),
    )


def latent_scale(f: Fields, dim: int, positions: Rotary) -> float | None:
    said: Any = f.mapping("rope_scaling" if f.has("rope_scaling") else "rope_parameters").get("mscale_all_dim")
    if positions.stretch is None or type(said) not in (int, float) or not said > 0:
        return None
    return float(dim**-0.5 * mscale(positions.stretch.factor, said) ** 2)


def groups(f: Fields) -> tuple[int, int]:
    num, kept = f.size_or("n_group", 1), f.size_or("topk_group", 1)
    if kept > num:
        f.clash("topk_group", f"topk_group is {kept}, and n_group only {num}")
    return num, kept


READERS = {
    "mixtral": mixtral,
    "qwen2_moe": qwen2_moe,
    "qwen3_moe": qwen3_moe,
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": deepseek_v3,
}
