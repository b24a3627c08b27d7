"""Operations per token by each rule: closed forms worked out by hand, and laws between the rules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from trainwright.errors import UserError
from trainwright.flops import RULES, flops_per_token, record
from trainwright.model import ModelSpec, load_model

PUBLISHED = Path(__file__).parent / "families" / "published"
NAMES = sorted(path.stem for path in PUBLISHED.glob("*.json"))


def published(name: str) -> ModelSpec:
    return load_model(str(PUBLISHED / f"{name}.json"))


def test_the_textbook_form_where_heads_share_the_width() -> None:
    """Llama 2 7B: 6 N without the table and norms, and 12 L h T."""
    spec = published("llama-2-7b")
    matrices = spec.total_parameters - 32000 * 4096 - 65 * 4096
    assert spec.matmul_parameters == matrices
    assert flops_per_token(spec, 4096) == 6 * matrices + 12 * 32 * 4096 * 4096
    assert flops_per_token(spec, 4096, "matmul-causal") == 6 * matrices + 6 * 32 * 4096 * 4096
    assert flops_per_token(spec, 4096, "matmul-causal-flash") == 6 * matrices + 7 * 32 * 4096 * 4096


def test_a_tied_head_multiplies_all_the_same() -> None:
    """GPT-2: blocks of 12 h^2, the head counted, both tables not."""
    assert published("gpt2").matmul_parameters == 12 * 12 * 768**2 + 50257 * 768
    assert flops_per_token(published("gpt2"), 1024, "kaplan") == 6 * 12 * 12 * 768**2


def test_heads_wider_than_the_stream_count_by_their_own_width() -> None:
    """Gemma 7B: 16 heads of 256 on a stream of 3072; by h the attention would be a quarter short."""
    spec = published("gemma-7b")
    assert flops_per_token(spec, 100) - 6 * spec.matmul_parameters == 12 * 28 * 16 * 256 * 100


def test_latent_attention_has_wider_keys_than_values() -> None:
    spec = published("deepseek-v3")
    assert flops_per_token(spec, 100) - 6 * spec.matmul_parameters == 6 * 61 * 128 * (192 + 128) * 100


def test_experts_count_as_those_a_token_passes() -> None:
    """Mixtral 8x7B: two of eight, and the router."""
    h, f, kv = 4096, 14336, 1024
    assert published("mixtral-8x7b").matmul_parameters == 32 * (2 * h * h + 2 * kv * h + 8 * h + 2 * 3 * f * h) + 32000 * h


def test_a_window_bounds_what_a_causal_token_sees() -> None:
    """Mistral: w - w^2 / 2 T of a window of 4096; shorter sequences see half of themselves."""
    spec = published("mistral-7b-v0.1")
    scores = 12 * 32 * 32 * 128
    assert flops_per_token(spec, 16384, "matmul-causal") - 6 * spec.matmul_parameters == scores * (4096 - 4096**2 / 32768)
    assert flops_per_token(spec, 2048, "matmul-causal") - 6 * spec.matmul_parameters == scores * 1024
    wide = load_model("7b")
    narrow = replace(wide, decoder=replace(wide.decoder, runs=spec.runs))
    assert flops_per_token(narrow, 16384) == flops_per_token(narrow, 16384, "matmul")  # the full rule sees no mask


def test_chinchilla_counts_the_table_and_the_softmax() -> None:
    spec = published("gpt2")
    more = 6 * 50257 * 768 + 9 * 12 * 12 * 1024
    assert flops_per_token(spec, 1024, "chinchilla") == flops_per_token(spec, 1024) + more


@pytest.mark.parametrize("name", NAMES)
def test_rules_keep_their_order(name: str) -> None:
    spec, tokens = published(name), 4096
    found = {rule: flops_per_token(spec, tokens, rule) for rule in RULES}
    assert found["kaplan"] < found["matmul-causal"] < found["matmul-causal-flash"] < found["chinchilla"]
    assert found["matmul-causal"] < found["matmul"] < found["chinchilla"]
    assert found["6n"] == 6 * spec.active_parameters
    assert all(flops_per_token(spec, 2 * tokens, rule) >= value for rule, value in found.items())


def test_a_record_holds_what_any_other_rule_needs() -> None:
    spec = published("gpt2")
    found = record(spec, 1024, "6n")
    assert found["params_total"] == found["params_embedding"] + found["params_head"] + found["params_nonembed"] == 124_439_808
    assert found["params_embedding"] == (50257 + 1024) * 768
    assert (found["flops_per_token"], found["rule"], found["seq_len"]) == (6 * 124_439_808, "6n", 1024)


def test_an_unknown_rule_and_an_empty_sequence_are_refused() -> None:
    with pytest.raises(UserError, match="rule 'palm' is not one of matmul, matmul-causal, "):
        flops_per_token(published("gpt2"), 8, "palm")
    with pytest.raises(UserError, match="give seq_len from 1"):
        flops_per_token(published("gpt2"), 0)
