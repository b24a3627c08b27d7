"""The reference models: their shapes, their initialisation, what they compute, and what they refuse."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainwright.errors import UserError
from trainwright.model import ModelSpec, load_model
from trainwright.parts import Experts, Mlp, Router
from trainwright.train.data import Batch
from trainwright.train.layers import MixtureOfExperts, choose
from trainwright.train.models import build, counts, materialize
from trainwright.train.positions import alibi_slopes, rotary_table, rotate
from trainwright.train.tiny import tiny

CPU = torch.device("cpu")
FAMILIES = Path(__file__).resolve().parents[1] / "families"
CASES = {path.stem: path for path in sorted((FAMILIES / "cases").glob("*.json")) if "vision_config" not in path.read_text()}
PUBLISHED = {path.stem: path for path in sorted((FAMILIES / "published").glob("*.json")) if "vision_config" not in path.read_text()}
ONE_EACH = [
    *("llama-plain", "gpt2-plain", "bloom-plain", "falcon-groups", "gemma2-plain", "olmo2-plain", "phi-plain", "qwen2-moe-plain"),
    *("deepseek-v3-plain", "mistral-window-tied", "mpt-plain", "gpt-neox-plain"),
]
VARIANTS: list[dict[str, object]] = [
    {},
    {"tied_embeddings": True},
    {"attention_bias": True},
    {"mlp_bias": True},
    {"num_kv_heads": 4},
    {"num_kv_heads": 1},
    {"head_dim": 24},
    {"num_layers": 3, "vocab_size": 1000},
]
PLAIN = {"model_type": "plain", "vocab_size": 97, "hidden_size": 24, "num_hidden_layers": 2, "max_position_embeddings": 64}


def made(spec: ModelSpec, seed: int = 0) -> Any:
    model = build(spec)
    materialize(model, CPU, seed)
    return model


def tokens(spec: ModelSpec, count: int = 16) -> Tensor:
    return torch.randint(0, spec.vocab_size, (2, min(count, spec.max_positions)), generator=torch.Generator().manual_seed(1))


def batch(spec: ModelSpec, count: int = 16) -> Batch:
    ids = tokens(spec, count)
    return Batch(ids, ids.roll(-1, 1), (), ids.numel())


def written(folder: Path, **fields: object) -> ModelSpec:
    (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    return load_model(str(folder))


# --- shapes


@pytest.mark.parametrize("name", [*CASES, *PUBLISHED])
def test_every_tensor_has_the_shape_that_the_spec_says(name: str) -> None:
    """Whole published models: on the meta device they take no memory."""
    spec = load_model(str({**CASES, **PUBLISHED}[name]))
    model = build(spec)
    layers = [module for module in model.modules() if type(module).__name__ == spec.block_class]
    assert [Counter(tuple(p.shape) for p in layer.parameters()) for layer in layers] == [Counter(block.shapes) for block in spec.blocks]
    inside = {id(p) for layer in layers for p in layer.parameters()}
    assert Counter(tuple(p.shape) for p in model.parameters() if id(p) not in inside) == Counter(spec.root_shapes)
    assert counts(model) == {"total": spec.total_parameters, "trainable": spec.total_parameters, "backbone": spec.total_parameters} | {
        "encoder": 0,
        "projector": 0,
    }
    assert all(p.is_meta for p in model.parameters()) and not list(model.buffers())


def test_demo_model_has_18_880_896_parameters(demo: ModelSpec) -> None:
    assert sum(p.numel() for p in build(demo).parameters()) == demo.total_parameters == 18_880_896


def test_classes_are_named_as_wrap_policies_name_them() -> None:
    for name, classes in {
        "llama-plain": {"LlamaDecoderLayer", "LlamaAttention", "LlamaMLP"},
        "gpt2-plain": {"GPT2Block", "GPT2Attention", "GPT2MLP"},
        "gpt-neox-plain": {"GPTNeoXLayer", "GPTNeoXAttention", "GPTNeoXMLP"},
        "qwen2-moe-plain": {"Qwen2MoeDecoderLayer", "Qwen2MoeAttention", "Qwen2MoeSparseMoeBlock"},
    }.items():
        first, second = build(load_model(str(CASES[name]))), build(load_model(str(CASES[name])))
        assert classes <= {type(module).__name__ for module in first.modules()}
        assert [type(module) for module in first.modules()] == [type(module) for module in second.modules()], "one class per name"


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_tiny_model_is_of_the_same_kind_and_trains(name: str) -> None:
    real = load_model(str(PUBLISHED[name]))
    small = tiny(real)
    model = made(small)
    model(batch(small)).backward()
    assert small.block_class == real.block_class and small.total_parameters < 200_000
    assert {type(module).__name__ for module in model.modules()} == {type(module).__name__ for module in build(real).modules()}
    assert all(p.grad is not None for p in model.parameters())


# --- what is refused


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"rope_scaling": {"rope_type": "spiral", "factor": 2.0}}, "knows no rotary scaling 'spiral'; it knows linear, dynamic"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "names rotary scaling llama3 and lacks its numbers"),
        ({"rope_scaling": {"rope_type": "linear"}}, "lacks its numbers, factor"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0, "short_factor": [1.0], "long_factor": [1.0]}}, "of 4 numbers each"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_stretched_positions_that_cannot_be_computed_are_refused_by_name(fields: dict[str, object], said: str, tmp_path: Path) -> None:
    base = json.loads(CASES["llama-plain"].read_text())
    with pytest.raises(UserError, match=said):
        build(written(tmp_path, **base | {"head_dim": 8} | fields))


@pytest.mark.parametrize(
    ("name", "fields", "said"),
    [
        ("gpt2-plain", {"scale_attn_by_inverse_layer_idx": True}, "scores are also divided by the layer's number"),
        ("bloom-plain", {"apply_residual_connection_post_layernorm": True}, "residuals start after the norm"),
        ("deepseek-v3-plain", {"n_group": 6, "topk_group": 1, "num_experts_per_tok": 2}, "takes 2 experts, and the 1 groups"),
    ],
)
def test_what_the_parts_cannot_say_is_refused_and_not_replaced(name: str, fields: dict[str, object], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        build(written(tmp_path, **json.loads(CASES[name].read_text()) | fields))


def test_models_that_see_and_projectors_without_a_signal_are_refused() -> None:
    with pytest.raises(UserError, match=r"has an image encoder \(clip_vision_model\)"):
        build(load_model(str(FAMILIES / "published" / "llava-1.5-7b.json")))
    with pytest.raises(UserError, match="has a projector, and family text has no signal for it"):
        build(load_model("projector-base"))


# --- initialisation


def test_initial_values_depend_on_the_seed_alone(small: ModelSpec) -> None:
    torch.manual_seed(7)
    first = [p.clone() for p in made(small).parameters()]
    torch.manual_seed(8)
    again, other = list(made(small).parameters()), list(made(small, seed=1).parameters())
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    assert first[0].std().item() == pytest.approx(0.02, rel=0.05)


def test_layers_do_not_start_alike(small: ModelSpec) -> None:
    model = dict(made(small).named_parameters())
    assert not torch.equal(model["layers.0.mlp.up_proj.weight"], model["layers.1.mlp.up_proj.weight"])


def test_gpt2_starts_its_residual_projections_smaller() -> None:
    spec = load_model("tiny-gpt2")
    model = dict(made(spec).named_parameters())
    assert model["layers.1.mlp.down_proj.weight"].std().item() == pytest.approx(0.02 / math.sqrt(2 * spec.num_layers), rel=0.05)
    assert model["layers.1.mlp.up_proj.weight"].std().item() == pytest.approx(0.02, rel=0.05)


def test_gemmas_norms_start_at_zero_which_is_one(small: ModelSpec) -> None:
    model = made(load_model(str(CASES["gemma2-plain"])))
    assert all(not p.detach().any() for name, p in model.named_parameters() if "norm" in name)
    x = torch.randn(3, 24)
    torch.testing.assert_close(model.norm(x), nn.functional.rms_norm(x, (24,), eps=model.norm.eps))


def test_the_studys_model_starts_from_a_guess_and_has_its_counts(tmp_path: Path) -> None:
    """N = 24 d^2 + 97 d weights that multiply, 20,016 in all at d = 24 (tables of 97 and of 64 rows besides, norms without weights)."""
    spec = written(tmp_path, **PLAIN)
    model = made(spec)
    assert spec.matmul_parameters == 24 * 24**2 + 97 * 24 and spec.total_parameters == 20_016 == counts(model)["total"]
    assert model(batch(spec)).item() == pytest.approx(math.log(97), rel=1e-6)
    model(batch(spec)).backward()
    assert not model.lm_head.weight.detach().any() and model.lm_head.weight.grad.any()
    assert [written(tmp_path, **PLAIN | {"hidden_size": d}).num_heads for d in (6, 16, 24, 40, 48, 96)] == [1, 1, 1, 2, 3, 6]


# --- what is computed


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_untrained_loss_is_that_of_a_guess_and_every_parameter_has_a_gradient(small: ModelSpec, changes: dict[str, object]) -> None:
    spec = small.resized(**changes)
    model = made(spec)
    loss = model(batch(spec))
    loss.backward()
    assert loss.item() == pytest.approx(math.log(spec.vocab_size), rel=0.05)
    assert all(p.grad is not None and torch.isfinite(p.grad).all() and p.grad.abs().sum() > 0 for p in model.parameters())


def test_a_sum_weighs_uneven_batches_and_an_empty_one_weighs_nothing(small: ModelSpec) -> None:
    model, whole = made(small), batch(small)
    parts = [Batch(whole.ids[:1], whole.labels[:1]), Batch(whole.ids[1:], whole.labels[1:]), Batch(whole.ids[:0], whole.labels[:0])]
    sums = [model(part, "sum") for part in parts]
    assert sums[2].item() == 0
    assert sum(s.item() for s in sums) / whole.tokens == pytest.approx(model(whole).item(), rel=1e-6)
    sums[2].backward()
    assert all(p.grad is not None and not p.grad.abs().sum() for p in model.parameters())


@pytest.mark.parametrize("name", ONE_EACH)
def test_no_token_sees_a_later_one_and_each_sees_some_earlier(name: str) -> None:
    spec = load_model(str(CASES[name]))
    model = made(spec)
    ids = tokens(spec)
    later, earlier = ids.clone(), ids.clone()
    later[:, 8:] = (ids[:, 8:] + 1) % spec.vocab_size
    earlier[:, 6] = (ids[:, 6] + 1) % spec.vocab_size
    with torch.no_grad():
        found, same, other = (model.logits(model.embed(x)) for x in (ids, later, earlier))
    torch.testing.assert_close(found[:, :8], same[:, :8], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(found[:, 7], other[:, 7], rtol=1e-5, atol=1e-6)


def test_a_window_hides_what_is_further_back() -> None:
    spec = load_model(str(CASES["mistral-window-tied"]))
    window, layers = spec.blocks[0].attention.window, spec.num_layers
    assert window is not None
    model, ids = made(spec), tokens(spec, 64)
    reach = layers * (window - 1)
    assert reach < ids.shape[1] - 2
    changed = ids.clone()
    changed[:, 0] = (ids[:, 0] + 1) % spec.vocab_size
    with torch.no_grad():
        difference = (model.logits(model.embed(ids)) - model.logits(model.embed(changed))).abs().amax(dim=(0, 2))
    assert float(difference[reach + 1 :].max()) < 1e-6 < float(difference[: window - 1].min())


def test_rotary_scores_depend_on_the_distance_alone() -> None:
    from trainwright.rotary import Rotary

    x = torch.randn(1, 1, 1, 8, generator=torch.Generator().manual_seed(0)).expand(1, 1, 12, 8)
    turned = rotate(x, *rotary_table(12, Rotary(), 8, x))[0, 0]
    scores = turned @ turned.T
    torch.testing.assert_close(scores[3, 1], scores[9, 7])
    torch.testing.assert_close(turned.norm(dim=-1), x[0, 0].norm(dim=-1))
    assert not torch.isclose(scores[3, 1], scores[3, 2])


def test_alibi_slopes_are_the_papers_for_8_heads() -> None:
    assert alibi_slopes("bloom", 8, 64) == [2.0**-i for i in range(1, 9)]
    assert alibi_slopes("falcon", 8, 64) == [2.0**-i / 8 for i in range(1, 9)]
    assert len(alibi_slopes("bloom", 6, 64)) == len(alibi_slopes("mpt", 6, 64)) == 6


# --- experts

ROUTER = Router()


def mixture(router: Router = ROUTER, shared: Mlp | None = None) -> tuple[MixtureOfExperts, Tensor]:
    model = MixtureOfExperts(Experts(6, 2, 10, router=router, shared=shared, shared_gate=shared is not None), 8)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw) * 0.3)
    return model, torch.randn(3, 7, 8, generator=draw)


ROUTERS = [ROUTER, Router(normalised=False, scaling=2.5), Router("sigmoid", groups=3, kept_groups=2), Router("softmax", groups=2)]


@pytest.mark.parametrize("router", ROUTERS, ids=str)
@pytest.mark.parametrize("shared", [None, Mlp(5)], ids=["", "shared"])
def test_experts_are_what_a_loop_over_tokens_gives(router: Router, shared: Mlp | None) -> None:
    model, x = mixture(router, shared)
    weights, chosen = choose(router, model.gate(x.flatten(0, 1)), 2)
    rows = []
    for row, weight, numbers in zip(x.flatten(0, 1), weights, chosen, strict=True):
        out = torch.zeros(8)
        for share, number in zip(weight, numbers.tolist(), strict=True):
            gate, up = (model.gate_up_proj[number] @ row).chunk(2)
            out = out + share * (model.down_proj[number] @ (nn.functional.silu(gate) * up))
        if model.shared is not None and model.shared_gate is not None:
            out = out + torch.sigmoid(model.shared_gate(row)) * model.shared(row)
        rows.append(out)
    torch.testing.assert_close(model(x), torch.stack(rows).view_as(x), rtol=1e-5, atol=1e-6)


def test_groups_bound_the_choice() -> None:
    logits = torch.randn(50, 12, generator=torch.Generator().manual_seed(2))
    _, chosen = choose(Router("sigmoid", groups=4, kept_groups=1), logits, 3)
    assert all(len({number // 3 for number in row}) == 1 for row in chosen.tolist())
    _, free = choose(Router("sigmoid"), logits, 3)
    assert any(len({number // 3 for number in row}) > 1 for row in free.tolist())


@pytest.mark.parametrize("count", [0, 1, 21])
def test_experts_without_tokens_still_have_gradients_and_all_have_the_same_bits_each_time(count: int) -> None:
    """What DDP and FSDP need: on every rank each parameter takes part, also where the tokens chose other experts, or there are none."""
    gradients = []
    for _ in range(2):
        model, x = mixture()
        model(x.flatten(0, 1)[:count][None]).square().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    first, second = gradients
    assert all(a is not None and b is not None and torch.equal(a, b) for a, b in zip(first, second, strict=True))
    idle = {number for number in range(6) if not first[1][number].any()}  # type: ignore[index]
    assert (len(idle) == 6) if count == 0 else (len(idle) >= 4) if count == 1 else (len(idle) == 0)
