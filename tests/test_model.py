"""ModelSpec: published parameter counts, Transformers as an oracle, and every way a config can be wrong."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.document import DocumentError
from trainwright.model import ModelSpec, elements, load_model

DEMO = Path(__file__).resolve().parents[1] / "helpers/trainwright/models/llama-demo/config.json"
BASE: dict[str, Any] = json.loads(DEMO.read_text(encoding="utf-8"))


def llama(layers: int, hidden: int, ffn: int, heads: int, kv: int, vocab: int, tied: bool = False, **more: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "vocab_size": vocab,
        "tie_word_embeddings": tied,
        **more,
    }


# Shapes from the models' published config.json; counts as their model cards or checkpoints state them.
PUBLISHED = {
    "Llama-2-7B": (llama(32, 4096, 11008, 32, 32, 32000), 6_738_415_616),
    "Llama-2-13B": (llama(40, 5120, 13824, 40, 40, 32000), 13_015_864_320),
    "Llama-2-70B": (llama(80, 8192, 28672, 64, 8, 32000), 68_976_648_192),
    "Llama-3-8B": (llama(32, 4096, 14336, 32, 8, 128256), 8_030_261_248),
    "Llama-3-70B": (llama(80, 8192, 28672, 64, 8, 128256), 70_553_706_496),
    "Llama-3.1-405B": (llama(126, 16384, 53248, 128, 8, 128256), 405_853_388_800),
    "Llama-3.2-1B": (llama(16, 2048, 8192, 32, 8, 128256, tied=True, head_dim=64), 1_235_814_400),
    "TinyLlama-1.1B": (llama(22, 2048, 5632, 32, 4, 32000), 1_100_048_384),
    "SmolLM-135M": (llama(30, 576, 1536, 9, 3, 49152, tied=True), 134_515_008),
}


@pytest.fixture
def load(tmp_path: Path) -> Any:
    def write(config: object, name: str = "config.json") -> ModelSpec:
        (tmp_path / name).write_text(config if isinstance(config, str) else json.dumps(config))
        return load_model(str(tmp_path / name))

    return write


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_parameter_counts(name: str, load: Any) -> None:
    config, count = PUBLISHED[name]
    assert load(config).total_parameters == count


def test_the_demo_by_hand() -> None:
    """8 blocks of 2 x 384^2 + 2 x 384 x 128 + 3 x 384 x 1024 + 2 x 384, two tables of 8192 x 384, one norm."""
    model = load_model(str(DEMO))
    block = 2 * 384**2 + 2 * 384 * 128 + 3 * 384 * 1024 + 2 * 384
    assert model.layer_parameters == block == 1_573_632
    assert model.total_parameters == 8 * block + 2 * 8192 * 384 + 384 == 18_880_896
    assert (model.embedding_parameters, model.head_parameters, model.query_size, model.kv_size) == (3_145_728, 3_145_728, 384, 128)


def test_shapes_are_the_parameters(load: Any) -> None:
    model = load(BASE | {"attention_bias": True, "mlp_bias": True})
    assert model.layer_shapes[1:9] == ((384, 384), (384,), (128, 384), (128,), (128, 384), (128,), (384, 384), (384,))
    assert model.layer_shapes[10:] == ((1024, 384), (1024,), (1024, 384), (1024,), (384, 1024), (384,))
    assert sum(map(elements, model.layer_shapes)) == model.layer_parameters
    assert load(BASE | {"tie_word_embeddings": True}).root_shapes == ((8192, 384), (384,))


CONFIGS = st.fixed_dictionaries(
    {
        "num_hidden_layers": st.integers(1, 3),
        "hidden_size": st.sampled_from([16, 48, 64]),
        "intermediate_size": st.integers(1, 200),
        "vocab_size": st.integers(1, 500),
        "num_attention_heads": st.sampled_from([4, 8]),
        "num_key_value_heads": st.sampled_from([1, 2, 4]),
        "head_dim": st.sampled_from([2, 6, 16]),
        "tie_word_embeddings": st.booleans(),
        "attention_bias": st.booleans(),
        "mlp_bias": st.booleans(),
    }
)


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_transformers_builds_the_same_tensors(tmp_path: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    def agree(config: dict[str, Any]) -> None:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
        model = load_model(str(tmp_path / "config.json"))
        with torch.device("meta"):
            theirs = LlamaForCausalLM(LlamaConfig(**config))
        assert sum(p.numel() for p in theirs.parameters()) == model.total_parameters
        named = {name: tuple(p.shape) for name, p in theirs.named_parameters()}
        block = sorted(shape for name, shape in named.items() if name.startswith("model.layers.0."))
        assert block == sorted(model.layer_shapes)
        assert sorted(shape for name, shape in named.items() if ".layers." not in name) == sorted(model.root_shapes)

    given(CONFIGS)(agree)()
    for config, _ in PUBLISHED.values():
        agree({key: value for key, value in config.items() if key != "model_type"} | {"num_hidden_layers": 1})


# --- what is left out or null ---------------------------------------------------------------------------------------


def test_defaults_are_those_of_transformers(load: Any) -> None:
    config = {
        key: BASE[key]
        for key in ("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    }
    null = ("num_key_value_heads", "head_dim", "rope_theta", "tie_word_embeddings", "attention_bias", "rms_norm_eps")
    nulls = dict.fromkeys(null)
    for model in (load(config), load(config | nulls)):
        assert (model.num_kv_heads, model.head_dim, model.max_positions) == (6, 64, 2048)
        assert (model.tied_embeddings, model.attention_bias, model.mlp_bias) == (False, False, False)
        assert (model.rms_norm_eps, model.rope_theta, model.name) == (1e-6, 10000.0, "llama")


def test_rope_theta_of_transformers_5(load: Any) -> None:
    config = {key: value for key, value in BASE.items() if key != "rope_theta"}
    assert load(config | {"rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}}).rope_theta == 500000.0
    assert load(config | {"rope_parameters": None}).rope_theta == 10000.0


def test_the_name_is_text(load: Any) -> None:
    assert load(BASE | {"_name_or_path": "org/model"}).name == "org/model"
    assert load(BASE | {"_name_or_path": {"a": 1}}).name == "llama-demo-19m"
    assert len(load(BASE | {"name": "x" * 10**5}).name) == 80


# --- what is wrong --------------------------------------------------------------------------------------------------

SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
)
NO_SIZES: tuple[Any, ...] = (0, -1, True, 384.0, "384", [384], {}, float("nan"), float("inf"), 10**9 + 1, 10**40)


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("value", NO_SIZES, ids=repr)
def test_a_size_is_a_whole_number(name: str, value: object, load: Any) -> None:
    with pytest.raises(DocumentError, match=f"{name} is .*not a whole number from 1 to 1,000,000,000"):
        load(BASE | {name: value})


@pytest.mark.parametrize("name", SIZES[:5])
def test_a_size_that_is_missing(name: str, load: Any) -> None:
    for config in ({key: value for key, value in BASE.items() if key != name}, BASE | {name: None}):
        with pytest.raises(DocumentError, match=f"{name} is missing"):
            load(config)


@pytest.mark.parametrize("name", ["tie_word_embeddings", "attention_bias", "mlp_bias"])
@pytest.mark.parametrize("value", [0, 1, "true", "no", [], float("nan")], ids=repr)
def test_a_flag_is_true_or_false(name: str, value: object, load: Any) -> None:
    with pytest.raises(DocumentError, match=f"{name} is .*not true or false"):
        load(BASE | {name: value})


@pytest.mark.parametrize("name", ["rms_norm_eps", "rope_theta"])
@pytest.mark.parametrize("value", [0, -1e-5, True, "1e-5", float("nan"), float("inf"), 10**400, []], ids=lambda value: repr(value)[:12])
def test_a_number_is_positive_and_finite(name: str, value: object, load: Any) -> None:
    with pytest.raises(DocumentError, match=f"{name} is .*not a positive number"):
        load(BASE | {name: value})


def test_a_nested_number_is_checked_too(load: Any) -> None:
    with pytest.raises(DocumentError, match=r"rope_parameters\.rope_theta is 'big'"):
        load(BASE | {"rope_parameters": {"rope_theta": "big"}})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_attention_heads": 7}, "hidden_size 384 is not a multiple of num_attention_heads 7, and there is no head_dim"),
        ({"num_attention_heads": 7, "head_dim": None}, "there is no head_dim"),
        ({"num_key_value_heads": 4}, "num_attention_heads 6 is not a multiple of num_key_value_heads 4"),
        ({"num_key_value_heads": 12}, "not a multiple of num_key_value_heads 12"),
        ({"head_dim": 65}, "head_dim 65 is odd"),
        ({"hidden_act": "swoosh"}, "hidden_act is 'swoosh'"),
        ({"model_type": "bert"}, "model_type 'bert'; the families read today are llama"),
        ({"model_type": ["llama"]}, "model_type"),
        ({"model_type": None}, "model_type None"),
    ],
)
def test_contradictions(change: dict[str, Any], said: str, load: Any) -> None:
    with pytest.raises(DocumentError, match=said):
        load(BASE | change)


def test_every_wrong_field_is_named_at_once_with_the_place_of_the_first(load: Any) -> None:
    text = '{"model_type": "llama",\n  "hidden_size": 0,\n  "vocab_size": true, "num_attention_heads": 2}'
    with pytest.raises(DocumentError) as caught:
        load(text)
    assert caught.value.where.line == 2 and "\n" not in str(caught.value)
    for name in ("hidden_size", "vocab_size", "intermediate_size", "num_hidden_layers"):
        assert name in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "3", "null", "{", "{}", "\0", '"llama"'])
def test_what_is_no_config(text: str, load: Any) -> None:
    with pytest.raises(DocumentError):
        load(text)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["rope_theta", "x"]), inner, max_size=2),
    max_leaves=4,
)
FIELDS = (*SIZES, "head_dim", "tie_word_embeddings", "rms_norm_eps", "rope_theta", "rope_parameters", "hidden_act", "name", "model_type")


@given(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=5))
def test_any_config_is_a_model_or_one_line(change: dict[str, Any]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.json")
        path.write_text(json.dumps(BASE | change))
        try:
            assert load_model(str(path)).total_parameters > 0
        except DocumentError as problem:
            assert "\n" not in str(problem)
