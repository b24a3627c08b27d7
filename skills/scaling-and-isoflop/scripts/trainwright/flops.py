# flops.py without its comments
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainwright.errors import UserError
from trainwright.model import ModelSpec
from trainwright.parts import Attention


@dataclass(frozen=True, slots=True)
class Rule:

    says: str
    users: str
    per_token: Callable[[ModelSpec, int], float]


def _all(attention: Attention, tokens: int) -> float:
    return float(tokens)


def _seen(attention: Attention, tokens: int) -> float:
    window = min(attention.window or tokens, tokens)
    return window - window**2 / (2 * tokens)


def _scores(model: ModelSpec, tokens: int, context: Callable[[Attention, int], float], passes: float) -> float:
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
    if rule not in RULES:
        raise UserError(f"rule {rule!r} is not one of {', '.join(RULES)}")
    if seq_len < 1:
        raise UserError(f"a sequence of {seq_len} tokens has no operations; give seq_len from 1")
    return RULES[rule].per_token(model, seq_len)


def record(model: ModelSpec, seq_len: int, rule: str = DEFAULT) -> dict[str, Any]:
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
