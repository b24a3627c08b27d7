"""Floating point operations of training on one token, by rules that have names: two papers' numbers compare only under one rule.

A multiply and an add are 2 operations; a backward takes twice its forward. Legend: N weights, T tokens of a sequence, per layer a
query heads, d width of a query, e width of a value, c tokens that attention sees on average (T; about T / 2 under a causal mask,
less in a window). Only the decoder is counted: an encoder and a projector work per image, not per token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainwright.errors import UserError
from trainwright.model import ModelSpec
from trainwright.parts import Attention


@dataclass(frozen=True, slots=True)
class Rule:
    """One way to count: `says` in words, `users` who counts so, `per_token(model, T)`."""

    says: str
    users: str
    per_token: Callable[[ModelSpec, int], float]


def _all(attention: Attention, tokens: int) -> float:
    """Every token sees every token: what a matmul without regard to the mask computes."""
    return float(tokens)


def _seen(attention: Attention, tokens: int) -> float:
    """What the causal mask and the window leave on average: T / 2, with a window w < T: w - w^2 / 2 T."""
    window = min(attention.window or tokens, tokens)
    return window - window**2 / (2 * tokens)


def _scores(model: ModelSpec, tokens: int, context: Callable[[Attention, int], float], passes: float) -> float:
    """Of q k' and of the weighted values: `passes` x 2 a (d + e) c in every layer."""
    attentions = ((run.count, run.block.attention) for run in model.runs)
    return sum(n * passes * 2 * a.num_heads * (a.head_dim + a.value_dim) * context(a, tokens) for n, a in attentions)


def _softmax(model: ModelSpec, tokens: int) -> float:
    return sum(3 * run.count * run.block.attention.num_heads * tokens for run in model.runs)


RULES = {
    "matmul": Rule(
        "6 N of every weight that multiplies (head in, tables, norms and biases out; experts: those a token passes) + 6 a (d + e) T",
        "torch's FlopCounterMode with the math kernel, PaLM (arXiv 2204.02311, appendix B), nanoGPT, torchtitan",
        lambda model, tokens: 6 * model.matmul_parameters + _scores(model, tokens, _all, 3),
    ),
    "matmul-causal": Rule(
        "as matmul, with attention over what the causal mask and the window leave",
        "Megatron-LM; what a kernel that skips masked blocks computes",
        lambda model, tokens: 6 * model.matmul_parameters + _scores(model, tokens, _seen, 3),
    ),
    "matmul-causal-flash": Rule(
        "as matmul-causal, with the scores computed once more in the backward (7 passes for 6)",
        "FlashAttention's own benchmark",
        lambda model, tokens: 6 * model.matmul_parameters + _scores(model, tokens, _seen, 3.5),
    ),
    "6n": Rule(
        "6 N of every weight a token meets, no attention",
        "the usual shorthand",
        lambda model, tokens: 6.0 * model.active_parameters,
    ),
    "kaplan": Rule(
        "6 N of the weights that multiply in the blocks: no embedding, no head, no attention",
        "Kaplan et al. (arXiv 2001.08361), C = 6 N",
        lambda model, tokens: 6.0 * model.block_matmul_parameters,
    ),
    "chinchilla": Rule(
        "as matmul, with the token table counted as a matrix too and 9 a T for the softmax",
        "Hoffmann et al. (arXiv 2203.15556), appendix F",
        lambda model, tokens: (
            6 * (model.matmul_parameters + model.embedding_parameters) + _scores(model, tokens, _all, 3) + 3 * _softmax(model, tokens)
        ),
    ),
}
DEFAULT = "matmul"


def flops_per_token(model: ModelSpec, seq_len: int, rule: str = DEFAULT) -> float:
    """Forward and backward of one token in a sequence of `seq_len`; raises UserError for an unknown rule or no tokens."""
    if rule not in RULES:
        raise UserError(f"rule {rule!r} is not one of {', '.join(RULES)}")
    if seq_len < 1:
        raise UserError(f"a sequence of {seq_len} tokens has no operations; give seq_len from 1")
    return RULES[rule].per_token(model, seq_len)


def record(model: ModelSpec, seq_len: int, rule: str = DEFAULT) -> dict[str, Any]:
    """What a study stores beside C, so that any other rule can be applied later."""
    return {
        "params_total": model.total_parameters,
        "params_active": model.active_parameters,
        "params_embedding": model.lookup_parameters,
        "params_head": model.head_parameters,
        "params_nonembed": model.total_parameters - model.lookup_parameters - model.head_parameters,
        "flops_per_token": flops_per_token(model, seq_len, rule),
        "seq_len": seq_len,
        "rule": rule,
    }
