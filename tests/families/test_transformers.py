"""Every family against the real models of Transformers on the meta device: no weight is allocated, nothing is fetched.

Equality is exact: every count, and the shape of every tensor, layer by layer. `python tests/families/test_transformers.py`
writes goldens.json anew.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import sys
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainwright.families import vision
from trainwright.fields import defaults
from trainwright.flops import flops_per_token
from trainwright.model import ModelSpec, load_model

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers", reason="Transformers is not installed; the goldens of test_families.py stand in for it")
torch = pytest.importorskip("torch")
transformers.logging.set_verbosity_error()

TABLES = defaults()["transformers"]
OLDER = tuple(map(int, transformers.__version__.split(".")[:2])) < tuple(map(int, TABLES.split(".")[:2]))
pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(OLDER, reason=f"the tables are those of Transformers {TABLES}, and {transformers.__version__} is older"),
]
HERE = Path(__file__).parent
FILES = sorted(path for folder in ("published", "cases") for path in (HERE / folder).glob("*.json"))
GOLDENS = HERE / "goldens.json"
TOKENS = 16


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def named(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def build(config: dict[str, Any], device: str = "meta") -> Any:
    """The model that Transformers builds from a config.json's content."""
    made = transformers.AutoConfig.for_model(**copy.deepcopy(config))
    kind = transformers.AutoModelForImageTextToText if hasattr(made, "vision_config") else transformers.AutoModelForCausalLM
    with torch.device(device):
        return kind.from_config(made)


def shapes(parameters: Any) -> Counter[tuple[int, ...]]:
    return Counter(tuple(parameter.shape) for parameter in parameters)


def size(module: Any) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def layers(model: Any, name: str) -> list[Any]:
    """The model's blocks of one class, in order."""
    return [module for module in model.modules() if type(module).__name__ == name]


def idle(module: Any, config: Any) -> int:
    """Weights of `module` that a token does not meet: in each set of experts, those beyond the chosen ones."""
    found = [inner for name, inner in module.named_modules() if name.endswith("experts") and hasattr(inner, "num_experts")]
    return sum(size(inner) * (inner.num_experts - config.get_text_config().num_experts_per_tok) // inner.num_experts for inner in found)


def measured(model: Any, block_class: str) -> dict[str, Any]:
    """The counts of a real model, in the form of ModelSpec.to_json()["parameters"]."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    each = [(size(layer), size(layer) - idle(layer, model.config)) for layer in layers(model, block_class)]
    inner = model.model if hasattr(model, "model") else model
    tower = getattr(inner, "vision_tower", getattr(inner, "visual", None))
    between = getattr(inner, "multi_modal_projector", getattr(tower, "merger", None))
    return {
        "total": size(model),
        "active": size(model) - idle(model, model.config),
        "embedding": embedding.weight.numel(),
        "head": sum(parameter.numel() for parameter in head.parameters() if parameter is not embedding.weight),
        "tower": (size(tower) if tower else 0) - (size(between) if hasattr(tower, "merger") else 0),
        "projector": size(between) if between else 0,
        "layers": [{"count": len(list(same)), "parameters": one[0], "active": one[1]} for one, same in groupby(each)],
    }


def counted(spec: ModelSpec) -> dict[str, Any]:
    """The spec's counts; runs of layers that differ in no count are one, as `measured` sees them."""
    found: dict[str, Any] = spec.to_json()["parameters"]
    each = [(run["parameters"], run["active"]) for run in found["layers"] for _ in range(run["count"])]
    found["layers"] = [{"count": len(list(same)), "parameters": one[0], "active": one[1]} for one, same in groupby(each)]
    return found


def compare(spec: ModelSpec, model: Any) -> None:
    """Every count, and every tensor's shape: of each block, and of what is outside the blocks."""
    assert counted(spec) == measured(model, spec.block_class)
    inside = layers(model, spec.block_class)
    assert [shapes(layer.parameters()) for layer in inside] == [Counter(block.shapes) for block in spec.blocks]
    if spec.tower:
        seen = layers(model, spec.tower.block_class)
        blocks = [run.block for run in spec.tower.runs for _ in range(run.count)]
        assert [shapes(layer.parameters()) for layer in seen] == [Counter(block.shapes) for block in blocks]
        inside += seen
    held = {id(parameter) for layer in inside for parameter in layer.parameters()}
    assert shapes(parameter for parameter in model.parameters() if id(parameter) not in held) == Counter(spec.root_shapes)


@pytest.mark.parametrize("path", FILES, ids=named)
def test_every_count_and_shape_is_that_of_the_real_model(path: Path) -> None:
    compare(load_model(str(path)), build(read(path)))


@pytest.mark.parametrize("path", FILES, ids=named)
def test_goldens_are_the_real_counts(path: Path) -> None:
    goldens = read(GOLDENS)
    spec = load_model(str(path))
    assert goldens["parameters"][named(path)] == measured(build(read(path)), spec.block_class)


@pytest.mark.parametrize("path", FILES, ids=named)
def test_a_config_as_transformers_writes_it_today_is_read_alike(path: Path, tmp_path: Path) -> None:
    """Its newer form: rope_parameters in place of rope_theta, sections in place of flat fields, every default written out."""
    transformers.AutoConfig.for_model(**copy.deepcopy(read(path))).save_pretrained(tmp_path)
    old, new = load_model(str(path)), load_model(str(tmp_path))
    assert new.to_json()["parameters"] == old.to_json()["parameters"]
    assert new.decoder == old.decoder and new.tower == old.tower and new.projector == old.projector


SAVED = ["llama-grouped-tied", "gpt2-plain", "mixtral-plain", "gemma3-plain", "qwen2-vl-flat", "phi-plain"]


@pytest.mark.parametrize("name", SAVED)
def test_weights_as_transformers_saves_them_hold_as_much_as_the_config_says(name: str, tmp_path: Path) -> None:
    build(read(HERE / "cases" / f"{name}.json"), "cpu").save_pretrained(tmp_path, max_shard_size="30KB")
    index = tmp_path / "model.safetensors.index.json"
    spec = load_model(str(index if index.exists() else tmp_path / "model.safetensors"))
    assert index.exists() and spec.notes[-1].endswith("as many as the config's")


def test_every_family_has_published_sizes_and_cases() -> None:
    for folder in ("published", "cases"):
        families = [read(path)["model_type"] for path in FILES if path.parent.name == folder]
        assert set(families) == set(vision.FAMILIES)


# --- defaults -------------------------------------------------------------------------------------------------------

CLASSES = {"qwen2_vl_text": "Qwen2VLTextConfig", "qwen2_vl_vision": "Qwen2VLVisionConfig"}
DERIVED = {"rope_theta", "rope_local_base_freq", "rotary_emb_base", "rotary_pct", "partial_rotary_factor"}  # set while a config is built


def config_class(family: str) -> Any:
    if family in CLASSES:
        return getattr(sys.modules["transformers.models.qwen2_vl.configuration_qwen2_vl"], CLASSES[family])
    return transformers.CONFIG_MAPPING[family]


@pytest.mark.parametrize("family", [name for name in defaults() if name != "transformers"])
def test_defaults_are_those_of_the_config_classes(family: str) -> None:
    from transformers.models.qwen2_vl import configuration_qwen2_vl  # noqa: F401  (the module is looked up by name)

    theirs = {field.name: field.default for field in dataclasses.fields(config_class(family))}
    ours = {name: value for name, value in defaults()[family].items() if name not in DERIVED}
    assert ours == {name: theirs[name] for name in ours}


@pytest.mark.parametrize("family", [name for name, row in defaults().items() if name != "transformers" and DERIVED & set(row)])
def test_rotary_defaults_are_those_of_a_built_config(family: str) -> None:
    from transformers.models.qwen2_vl import configuration_qwen2_vl  # noqa: F401

    row, built = defaults()[family], config_class(family)().rope_parameters
    full = built.get("full_attention", built)
    assert full["rope_theta"] == row.get("rope_theta", row.get("rotary_emb_base"))
    assert full.get("partial_rotary_factor", 1.0) == row.get("partial_rotary_factor", row.get("rotary_pct", 1.0))
    if "rope_local_base_freq" in row:
        assert built["sliding_attention"]["rope_theta"] == row["rope_local_base_freq"]


# --- drawn configs --------------------------------------------------------------------------------------------------

BASE = {"intermediate_size": st.integers(1, 70), "num_hidden_layers": st.integers(1, 5), "vocab_size": st.integers(2, 120)}
TIED = {"tie_word_embeddings": st.booleans()}
BIAS = {"attention_bias": st.booleans()}
DIM = {"head_dim": st.sampled_from([2, 6, 10, 16])}
WINDOW = {"sliding_window": st.one_of(st.none(), st.integers(1, 40))}
ROUTED = {"num_experts_per_tok": st.integers(1, 3), "moe_intermediate_size": st.integers(1, 20)}
SPARSE = {"decoder_sparse_step": st.integers(1, 3), "mlp_only_layers": st.lists(st.just(0), max_size=1)}
QWEN = {"use_sliding_window": st.booleans(), "max_window_layers": st.integers(0, 5)}
RANKS = {"kv_lora_rank": st.integers(1, 20), "qk_nope_head_dim": st.integers(1, 10), "qk_rope_head_dim": st.sampled_from([2, 4, 8])}
RANKS |= {"v_head_dim": st.integers(1, 12), "n_routed_experts": st.integers(4, 7), "q_lora_rank": st.one_of(st.none(), st.integers(1, 20))}
RANKS |= {"first_k_dense_replace": st.integers(0, 5), "n_shared_experts": st.integers(1, 3)}
NEEDED = set(BASE) | set(ROUTED) | {"num_local_experts", "num_experts", "shared_expert_intermediate_size"}
NEEDED |= {"n_group", "topk_group", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "n_routed_experts"}
DRAWN: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "llama": BASE | TIED | BIAS | DIM | {"mlp_bias": st.booleans()},
    "mistral": BASE | TIED | DIM | WINDOW,
    "qwen2": BASE | TIED | QWEN,
    "qwen3": BASE | TIED | BIAS | DIM | QWEN,
    "gemma": BASE | TIED | BIAS | DIM,
    "gemma2": BASE | TIED | BIAS | DIM | {"sliding_window": st.integers(1, 40)},
    "gemma3_text": BASE | TIED | BIAS | DIM | {"sliding_window_pattern": st.integers(1, 4)},
    "olmo": BASE | TIED | BIAS | {"clip_qkv": st.one_of(st.none(), st.floats(0.5, 8))},
    "olmo2": BASE | TIED | BIAS,
    "olmo3": BASE | TIED | BIAS | {"sliding_window": st.integers(1, 40)},
    "phi": BASE | TIED | {"qk_layernorm": st.booleans()},
    "phi3": BASE | TIED | WINDOW,
    "gpt_neox": BASE | TIED | BIAS | {"use_parallel_residual": st.booleans()},
    "mixtral": BASE | TIED | DIM | WINDOW | {"num_local_experts": st.integers(3, 6), "num_experts_per_tok": st.integers(1, 3)},
    "qwen2_moe": BASE
    | TIED
    | QWEN
    | ROUTED
    | SPARSE
    | {"num_experts": st.integers(3, 6), "shared_expert_intermediate_size": st.integers(1, 20), "qkv_bias": st.booleans()},
    "qwen3_moe": BASE | TIED | BIAS | DIM | ROUTED | SPARSE | {"num_experts": st.integers(3, 6)},
    "deepseek_v2": BASE | TIED | BIAS | RANKS | ROUTED | {"mlp_bias": st.booleans()},
    "deepseek_v3": BASE | TIED | BIAS | RANKS | ROUTED | {"n_group": st.just(1), "topk_group": st.just(1)},
}
OWN_NAMES: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "gpt2": TIED | {"n_layer": st.integers(1, 5), "n_positions": st.integers(1, 40), "n_inner": st.one_of(st.none(), st.integers(1, 70))},
    "bloom": TIED | {"n_layer": st.integers(1, 5)},
    "mpt": TIED | {"n_layers": st.integers(1, 5), "no_bias": st.booleans(), "expansion_ratio": st.integers(1, 5)},
    "falcon": TIED
    | {"num_hidden_layers": st.integers(1, 5), "bias": st.booleans(), "alibi": st.booleans(), "multi_query": st.booleans()}
    | {"ffn_hidden_size": st.integers(1, 70)},
}
WIDTHS = {"gpt2": ("n_embd", "n_head"), "mpt": ("d_model", "n_heads"), "bloom": ("hidden_size", "n_head")}
GROUPED = set(DRAWN) - {"gpt_neox", "deepseek_v2", "deepseek_v3"}


@st.composite
def configs(draw: st.DrawFn, family: str) -> dict[str, Any]:
    """A small config of a family: what it needs, and any part of the rest, so that defaults are drawn too."""
    heads, dim = draw(st.sampled_from([1, 2, 4, 6])), draw(st.sampled_from([8, 16, 24]))
    table = DRAWN.get(family) or OWN_NAMES[family]
    fields = {
        name: draw(drawn)
        for name, drawn in sorted(table.items())
        if name in NEEDED or name in ("n_layer", "n_layers") or draw(st.booleans())
    }
    width, count = WIDTHS.get(family, ("hidden_size", "num_attention_heads"))
    fields |= {"model_type": family, width: heads * dim, count: heads, "vocab_size": fields.get("vocab_size", 50), "pad_token_id": 0}
    if family in GROUPED:
        fields["num_key_value_heads"] = draw(st.sampled_from([k for k in (1, 2, 3, 6) if heads % k == 0]))
    if family == "deepseek_v3":
        fields["num_key_value_heads"] = heads
    if family == "falcon":
        fields |= draw(falcon_shapes(heads))
    return fields


@st.composite
def falcon_shapes(draw: st.DrawFn, heads: int) -> dict[str, Any]:
    if draw(st.booleans()):
        return {"parallel_attn": draw(st.booleans())}
    groups = draw(st.sampled_from([k for k in (1, 2, 3, 6) if heads % k == 0]))
    return {"new_decoder_architecture": True, "num_kv_heads": groups, "num_ln_in_parallel_attn": draw(st.sampled_from([None, 1, 2]))}


@pytest.mark.parametrize("family", [*DRAWN, *OWN_NAMES])
def test_drawn_configs_are_counted_exactly(family: str, tmp_path: Path) -> None:
    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(configs(family))
    def law(config: dict[str, Any]) -> None:
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config), encoding="utf-8")
        compare(load_model(str(path)), build(config))

    law()


def test_every_text_family_is_drawn() -> None:
    assert {*DRAWN, *OWN_NAMES} == set(vision.FAMILIES) - set(vision.READERS)


# --- operations -----------------------------------------------------------------------------------------------------


EXPERTS = {"num_experts", "num_local_experts", "n_routed_experts"}


def counter(model: Any, device: str, tokens: int, mask: Any = None) -> int:
    """What torch's counter sees in a forward and backward of one sequence of text, attention by plain matmuls."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    ids = torch.ones(1, tokens, dtype=torch.long, device=device)
    with FlopCounterMode(display=False) as found, sdpa_kernel(SDPBackend.MATH):
        model(input_ids=ids, attention_mask=mask, position_ids=ids.cumsum(1) - 1, use_cache=False).logits.sum().backward()
    total: int = found.get_total_flops()
    return total


@pytest.mark.parametrize("path", [path for path in FILES if path.parent.name == "cases"], ids=named)
def test_operations_of_small_models_are_those_of_torch(path: Path) -> None:
    config = read(path)
    model = build(config, "cpu")
    if EXPERTS & set(config):
        model.set_experts_implementation("batched_mm")  # the others want strides of 16 bytes, or look at values
    if config["model_type"] == "gemma2":
        model.set_attn_implementation("eager")  # the only one it has
    assert flops_per_token(load_model(str(path)), TOKENS) * TOKENS == counter(model, "cpu", TOKENS)


BIG = [
    "llama-3-8b",
    "llama-3.1-405b",
    "qwen3-8b",
    "olmo-2-32b",
    "phi-2",
    "pythia-6.9b",
    "gemma-3-27b",
    "mixtral-8x7b",
    "qwen3-30b-a3b",
    "deepseek-v3",
]


@pytest.mark.parametrize("name", BIG)
def test_operations_of_published_models_are_those_of_torch_on_meta(name: str) -> None:
    """Experts as batched matmuls: their loop looks at values, which meta tensors have not. The mask is given for the same reason."""
    path, tokens = HERE / "published" / f"{name}.json", 128
    model = build(read(path))
    if EXPERTS & set(read(path)):
        model.set_experts_implementation("batched_mm")
    mask = torch.zeros(1, 1, tokens, tokens, device="meta")
    assert flops_per_token(load_model(str(path)), tokens) * tokens == counter(model, "meta", tokens, mask)


if __name__ == "__main__":
    found = {named(path): measured(build(read(path)), load_model(str(path)).block_class) for path in FILES}
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in found.items())
    text = f'{{\n "transformers": {json.dumps(transformers.__version__)},\n "parameters": {{\n{rows}\n }}\n}}\n'
    GOLDENS.write_text(text, encoding="utf-8")
