"""The reference model: its size, its initialisation, what it computes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from trainwright.errors import UserError
from trainwright.model import ModelSpec, load_model
from trainwright.train.models import build, materialize, rotary_table, rotate

CPU = torch.device("cpu")
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


def made(spec: ModelSpec, seed: int = 0) -> torch.nn.Module:
    model = build(spec)
    materialize(model, CPU, seed)
    return model


def tokens(spec: ModelSpec, count: int = 16) -> torch.Tensor:
    return torch.randint(0, spec.vocab_size, (2, count), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_parameters_are_as_many_as_the_spec_says(small: ModelSpec, changes: dict[str, object]) -> None:
    spec = small.resized(**changes)
    assert sum(p.numel() for p in build(spec).parameters()) == spec.total_parameters


def test_demo_model_has_18_880_896_parameters(demo: ModelSpec) -> None:
    assert sum(p.numel() for p in build(demo).parameters()) == demo.total_parameters == 18_880_896


PUBLISHED = Path(__file__).resolve().parents[1] / "families" / "published"


@pytest.mark.parametrize(
    ("name", "said"),
    [("gpt2", "learned positions, q, k and v in one matrix"), ("mixtral-8x7b", "8 experts"), ("mistral-nemo-12b", "MistralDecoderLayer")],
)
def test_a_model_that_the_trainer_does_not_build_is_refused_by_what_differs(name: str, said: str) -> None:
    with pytest.raises(UserError, match=f"the reference trainer builds Llama's blocks, and .* has .*{said}"):
        build(load_model(str(PUBLISHED / f"{name}.json")))


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_untrained_loss_is_that_of_a_guess_and_every_parameter_has_a_gradient(small: ModelSpec, changes: dict[str, object]) -> None:
    spec = small.resized(**changes)
    model = made(spec)
    ids = tokens(spec)
    loss = model(ids, ids.roll(-1, 1))
    loss.backward()
    assert loss.item() == pytest.approx(math.log(spec.vocab_size), rel=0.05)
    assert all(p.grad is not None and torch.isfinite(p.grad).all() and p.grad.abs().sum() > 0 for p in model.parameters())


def test_a_model_on_meta_takes_no_memory(demo: ModelSpec) -> None:
    assert all(p.is_meta for p in build(demo).parameters())


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


def test_no_token_sees_a_later_one(small: ModelSpec) -> None:
    """The loss at position 7 alone (-100 is ignored) does not change with the ids after it, and does with those before."""
    model = made(small)
    ids = tokens(small)
    labels = torch.full_like(ids, -100)
    labels[:, 7] = 5
    later, earlier = ids.clone(), ids.clone()
    later[:, 8:] = 0
    earlier[:, 3] = (ids[:, 3] + 1) % small.vocab_size
    with torch.no_grad():
        assert float(model(later, labels)) == float(model(ids, labels)) != float(model(earlier, labels))


def test_rotary_scores_depend_on_the_distance_alone() -> None:
    x = torch.randn(1, 1, 1, 8, generator=torch.Generator().manual_seed(0)).expand(1, 1, 12, 8)
    turned = rotate(x, *rotary_table(12, 8, 10000.0, x))[0, 0]
    scores = turned @ turned.T
    torch.testing.assert_close(scores[3, 1], scores[9, 7])
    torch.testing.assert_close(turned.norm(dim=-1), x[0, 0].norm(dim=-1))
    assert not torch.isclose(scores[3, 1], scores[3, 2])


@pytest.mark.long
@pytest.mark.parametrize("changes", [{}, {"attention_bias": True, "tied_embeddings": True}, {"num_kv_heads": 4, "head_dim": 24}], ids=str)
def test_loss_and_gradients_are_those_of_transformers(small: ModelSpec, changes: dict[str, object]) -> None:
    transformers = pytest.importorskip("transformers")
    spec = small.resized(**changes)
    config = transformers.LlamaConfig(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        max_position_embeddings=spec.max_positions,
        rms_norm_eps=spec.rms_norm_eps,
        tie_word_embeddings=spec.tied_embeddings,
        attention_bias=spec.attention_bias,
    )
    theirs, ours = transformers.LlamaForCausalLM(config), made(spec)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)), alpha=0.05)
    names = {name if name.startswith("lm_head") else f"model.{name}": p for name, p in ours.named_parameters()}
    assert not theirs.load_state_dict({name: p.detach() for name, p in names.items()}, strict=False).unexpected_keys
    if spec.tied_embeddings:
        theirs.tie_weights()
    ids = tokens(spec, 33)
    loss = ours(ids[:, :-1], ids[:, 1:])
    loss.backward()
    expected = theirs(input_ids=ids, labels=ids).loss
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(names[name].grad, parameter.grad, rtol=1e-3, atol=1e-5)
