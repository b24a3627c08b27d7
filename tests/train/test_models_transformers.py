"""Every family's decoder against the real model of Transformers: the same weights give the same logits, loss and gradients in fp32."""

from __future__ import annotations

import copy
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers", reason="Transformers is not installed; it is the oracle of these tests")
transformers.logging.set_verbosity_error()

from trainwright.model import ModelSpec, load_model  # noqa: E402
from trainwright.train import models  # noqa: E402
from trainwright.train.data import Batch  # noqa: E402

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]
CASES = Path(__file__).resolve().parents[1] / "families" / "cases"
FILES = [path for path in sorted(CASES.glob("*.json")) if "vision_config" not in path.read_text(encoding="utf-8")]
TOKENS = 24

NAMES = [
    (r"^(model|transformer|gpt_neox)\.", ""),
    (r"^(h|blocks)\.", "layers."),
    (r"^(wte|word_embeddings|embed_in)\.", "embed_tokens."),
    (r"^wpe\.", "embed_positions."),
    (r"^word_embeddings_layernorm\.", "embed_norm."),
    (r"^(ln_f|norm_f|final_layer_?norm)\.", "norm."),
    (r"^embed_out\.", "lm_head."),
    (r"\.(attn|attention|self_attention)\.", ".self_attn."),
    (r"\.ffn\.", ".mlp."),
    (r"\.(ln_1|norm_1|ln_attn)\.", ".input_layernorm."),
    (r"\.(ln_2|norm_2|ln_mlp)\.", ".post_attention_layernorm."),
    (r"self_attn\.(c_attn|query_key_value|Wqkv)\.", "self_attn.qkv_proj."),
    (r"self_attn\.(c_proj|dense|out_proj)\.", "self_attn.o_proj."),
    (r"self_attn\.(q|k)_layernorm\.", r"self_attn.\1_norm."),
    (r"mlp\.(c_fc|dense_h_to_4h|fc1|gate_up_proj)\.", "mlp.up_proj."),
    (r"mlp\.(c_proj|dense_4h_to_h|fc2)\.", "mlp.down_proj."),
    (r"mlp\.experts\.", "mlp."),
    (r"mlp\.shared_experts?\.", "mlp.shared."),
    (r"mlp\.shared_expert_gate\.", "mlp.shared_gate."),
    (r"kv_a_proj_with_mqa", "kv_a_proj"),
    (r"kv_a_layernorm", "kv_a_norm"),
    (r"q_a_layernorm", "q_a_norm"),
    (r"q_b_proj", "q_proj"),
]


def renamed(name: str) -> str:
    for pattern, ours in NAMES:
        name = re.sub(pattern, ours, name)
    return "head_bias" if name == "lm_head.bias" else name


def halves(rows: int) -> Any:
    """The order that turns neighbouring pairs (DeepSeek) into halves (Llama)."""
    return torch.cat((torch.arange(0, rows, 2), torch.arange(1, rows, 2)))


def laid_out(name: str, value: Any, spec: ModelSpec, config: dict[str, Any]) -> Any:
    """A tensor of Transformers in our order of rows: q, k, v one after another, rotary pairs in halves."""
    a = spec.blocks[0].attention
    if "qkv_proj" in name and spec.family in ("gpt_neox", "bloom", "falcon"):
        grouped = spec.family == "falcon" and config.get("new_decoder_architecture")
        if grouped or a.num_kv_heads == a.num_heads:
            split = value.view(a.num_kv_heads, a.num_heads // a.num_kv_heads + 2, a.head_dim, *value.shape[1:])
            return torch.cat([part.flatten(0, 2) for part in (split[:, :-2], split[:, -2:-1], split[:, -1:])])
    if a.latent and re.search(r"self_attn\.q_proj", name):
        heads = value.view(a.num_heads, a.head_dim, *value.shape[1:])
        plain = a.head_dim - a.latent.rope_dim
        return torch.cat((heads[:, :plain], heads[:, plain:][:, halves(a.latent.rope_dim)]), dim=1).flatten(0, 1)
    if a.latent and "kv_a_proj" in name:
        return torch.cat((value[: a.latent.kv_rank], value[a.latent.kv_rank :][halves(a.latent.rope_dim)]))
    return value


def theirs(config: dict[str, Any]) -> Any:
    """The real model, its weights large enough that every part of it matters."""
    made = transformers.AutoConfig.for_model(**copy.deepcopy(config))
    kind = "sdpa" if config["model_type"] == "falcon" else "eager"  # Falcon's eager path adds ALiBi twice; only eager caps scores
    model = transformers.AutoModelForCausalLM.from_config(made, attn_implementation=kind, experts_implementation="eager").train(False)
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            step = torch.randn(parameter.shape, generator=draw)
            parameter.add_(step, alpha=0.15) if parameter.dim() == 1 else parameter.copy_(step * 0.25)
    return model


def ours(spec: ModelSpec, real: Any, config: dict[str, Any]) -> Any:
    model = models.build(spec)
    models.materialize(model, torch.device("cpu"), 0)
    head = "lm_head.bias" if not spec.tied_embeddings else "head_bias"
    found = {renamed(name).replace("head_bias", head): value.detach() for name, value in real.named_parameters()}
    mine = dict(model.named_parameters())
    assert found.keys() == mine.keys()
    with torch.no_grad():
        for name, value in found.items():
            mine[name].copy_(laid_out(name, value, spec, config))
    return model


def compare(config: dict[str, Any], path: str, tokens: int = TOKENS) -> None:
    spec = load_model(path)
    real = theirs(config)
    model = ours(spec, real, config)
    ids = torch.randint(0, spec.vocab_size, (2, min(tokens, spec.max_positions)), generator=torch.Generator().manual_seed(1))
    expected = real(input_ids=ids, labels=ids, use_cache=False)
    found = model.logits(model.embed(ids))
    torch.testing.assert_close(found, expected.logits, rtol=1e-4, atol=1e-4 * expected.logits.abs().max().item())
    batch = Batch(ids[:, :-1], ids[:, 1:])
    loss = model(batch)
    assert loss.item() == pytest.approx(expected.loss.item(), rel=1e-4)
    assert model(batch, "sum").item() == pytest.approx(loss.item() * batch.labels.numel(), rel=1e-5)
    loss.backward()
    expected.loss.backward()
    head = "lm_head.bias" if not spec.tied_embeddings else "head_bias"
    mine = dict(model.named_parameters())
    for name, parameter in real.named_parameters():
        name = renamed(name).replace("head_bias", head)
        gradient = laid_out(name, parameter.grad, spec, config)
        allowed = 1e-3 * gradient.abs().max().item() + 1e-9
        torch.testing.assert_close(mine[name].grad, gradient, rtol=1e-3, atol=allowed, msg="{} {}".format(name, "{}").format)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_logits_loss_and_gradients_are_those_of_transformers(path: Path) -> None:
    compare(json.loads(path.read_text(encoding="utf-8")), str(path))


LLAMA = json.loads((CASES / "llama-plain.json").read_text(encoding="utf-8")) | {"max_position_embeddings": 64}
STRETCHED: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "yarn-attention": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "attention_factor": 1.3,
        "truncate": False,
    },
    "yarn-mscale": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "mscale": 0.7, "mscale_all_dim": 0.9},
}


@pytest.mark.parametrize("name", STRETCHED)
def test_stretched_positions_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    config = LLAMA | {"rope_scaling": STRETCHED[name]}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    compare(config, str(tmp_path), 60)


@pytest.mark.parametrize("tokens", [12, 40])
def test_longrope_takes_the_short_factors_up_to_the_original_length_and_the_long_ones_beyond(tokens: int, tmp_path: Path) -> None:
    config = json.loads((CASES / "phi3-plain.json").read_text(encoding="utf-8"))
    pairs = load_model(str(CASES / "phi3-plain.json")).blocks[0].attention.rotary_dim // 2
    config |= {"max_position_embeddings": 64, "original_max_position_embeddings": 16, "sliding_window": None}
    config["rope_scaling"] = {"type": "longrope", "short_factor": [1.1] * pairs, "long_factor": [1.5 + i for i in range(pairs)]}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    compare(config, str(tmp_path), tokens)


def test_latent_attention_with_yarn_scales_its_scores(tmp_path: Path) -> None:
    for family in ("deepseek-v2-no-query-rank", "deepseek-v3-plain"):
        config = json.loads((CASES / f"{family}.json").read_text(encoding="utf-8"))
        config["rope_scaling"] = {
            "type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "mscale": 0.7,
            "mscale_all_dim": 0.8,
        }
        config["max_position_embeddings"] = 64
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        compare(config, str(tmp_path), 60)


SEVERAL_HEADS = [("bloom-plain", {"n_head": 3}), ("mpt-plain", {"n_heads": 3})]


@pytest.mark.parametrize(("name", "changes"), SEVERAL_HEADS, ids=[name for name, _ in SEVERAL_HEADS])
def test_alibi_slopes_of_heads_that_are_no_power_of_two(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    config = json.loads((CASES / f"{name}.json").read_text(encoding="utf-8")) | changes
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    compare(config, str(tmp_path))
