"""Every family's counts against goldens of the real models, what a wrong config says, and that any config says something clear."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.check.judge import judge
from trainwright.check.subject import Context
from trainwright.cost.memory import Workload, ledger
from trainwright.cost.rank import shard
from trainwright.document import DocumentError, load
from trainwright.emit import accelerate
from trainwright.errors import UserError
from trainwright.families import vision
from trainwright.fields import Assumed, defaults
from trainwright.model import ModelSpec, load_model
from trainwright.parts import Attention, Block, Experts, Mlp, Norm, Projector, Run, fold, projector
from trainwright.report import Severity
from trainwright.rotary import Rotary, Stretch
from trainwright.strategy import Strategy

HERE = Path(__file__).parent / "families"
FILES = sorted(path for folder in ("published", "cases") for path in (HERE / folder).glob("*.json"))
GOLDENS: dict[str, Any] = json.loads((HERE / "goldens.json").read_text(encoding="utf-8"))
Make = Callable[..., ModelSpec]


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def named(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def published(name: str) -> ModelSpec:
    return load_model(str(HERE / "published" / f"{name}.json"))


def case(name: str) -> dict[str, Any]:
    return read(HERE / "cases" / f"{name}.json")


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """The spec of a case with some fields changed; one that is `...` is left out."""

    def spec(name: str, **changes: Any) -> ModelSpec:
        config = {key: value for key, value in (case(name) | changes).items() if value is not ...}
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return load_model(str(tmp_path / "config.json"))

    return spec


# --- goldens --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES, ids=named)
def test_counts_are_those_of_transformers(path: Path) -> None:
    """Goldens are counted on the real models (tests/families/test_transformers.py); runs that differ in no count are one there."""
    found = load_model(str(path)).to_json()["parameters"]
    each = [(run["parameters"], run["active"]) for run in found["layers"] for _ in range(run["count"])]
    found["layers"] = [{"count": len(list(same)), "parameters": one[0], "active": one[1]} for one, same in groupby(each)]
    assert found == GOLDENS["parameters"][named(path)]


def test_every_family_has_goldens_and_defaults_of_one_version() -> None:
    assert {read(path)["model_type"] for path in FILES} == set(vision.FAMILIES)
    assert GOLDENS["transformers"] == defaults()["transformers"]
    assert set(vision.FAMILIES) < set(defaults())


@pytest.mark.parametrize("path", FILES, ids=named)
def test_parts_add_up(path: Path) -> None:
    spec = load_model(str(path))
    assert sum(block.parameters for block in spec.blocks) + shard(spec.decoder.root_shapes, 1) == spec.decoder_parameters
    assert spec.decoder_parameters + spec.tower_parameters + spec.projector_parameters == spec.total_parameters
    assert spec.matmul_parameters <= spec.active_parameters + (spec.embedding_parameters if spec.tied_embeddings else 0)
    assert len(spec.blocks) == spec.num_layers
    assert hash(spec) == hash(load_model(str(path)))


def test_a_shard_is_cut_along_the_first_axis_of_the_real_tensors() -> None:
    """GPT-2 stores [in, out], and Mixtral keeps 8 experts on the first axis: what 16 ranks hold follows from that."""
    assert (768, 2304) in published("gpt2").layer_shapes
    experts = (8, 2 * 14336, 4096)
    assert experts in published("mixtral-8x7b").layer_shapes
    assert shard([experts], 16) == 2 * 14336 * 4096


def test_active_is_what_a_token_meets() -> None:
    """Mixtral: 2 of 8 experts of 3 x 14336 x 4096 in 32 layers; DeepSeek V3 is known as 671B with 37B active."""
    spec = published("mixtral-8x7b")
    assert spec.total_parameters - spec.active_parameters == 32 * 6 * 3 * 14336 * 4096
    assert round(published("deepseek-v3").active_parameters / 1e9, 1) == 37.6


# --- the properties that Llama's users read -------------------------------------------------------------------------


def test_llama_is_read_as_before() -> None:
    spec = published("llama-3.2-1b")
    assert (spec.num_layers, spec.hidden_size, spec.intermediate_size, spec.num_heads, spec.num_kv_heads) == (16, 2048, 8192, 32, 8)
    assert (spec.head_dim, spec.query_size, spec.kv_size, spec.vocab_size, spec.max_positions) == (64, 2048, 512, 128256, 131072)
    assert (spec.tied_embeddings, spec.attention_bias, spec.mlp_bias, spec.rms_norm_eps, spec.rope_theta) == (True, False, False, 1e-5, 5e5)
    assert (spec.family, spec.block_class, spec.block_classes) == ("llama", "LlamaDecoderLayer", ("LlamaDecoderLayer",))
    h, f, kv = 2048, 8192, 512
    assert spec.layer_shapes == ((h,), (h, h), (kv, h), (kv, h), (h, h), (h,), (f, h), (f, h), (h, f))
    assert spec.root_shapes == ((128256, h), (h,))
    assert spec.head_parameters == 0 and spec.embedding_parameters == 128256 * h
    assert not spec.unlike_llama and not spec.notes


def test_biases_stand_after_their_weights(make: Make) -> None:
    spec = make("llama-biases-wide-heads")
    assert spec.layer_shapes[:9] == ((24,), (40, 24), (40,), (20, 24), (20,), (20, 24), (20,), (24, 40), (24,))


def test_what_blocks_share_can_be_asked_and_what_they_do_not_cannot() -> None:
    gemma, deepseek = published("gemma-2-9b"), published("deepseek-v3")
    assert (gemma.num_heads, gemma.head_dim, gemma.layer_parameters) == (16, 256, gemma.blocks[7].parameters)
    with pytest.raises(UserError, match="the layers differ in their tensors"):
        _ = deepseek.layer_shapes
    with pytest.raises(UserError, match="the layers differ in MLP"):
        _ = deepseek.intermediate_size
    with pytest.raises(UserError, match="8 experts in place of an MLP"):
        _ = published("mixtral-8x7b").intermediate_size
    with pytest.raises(UserError, match="has no rotary positions"):
        _ = published("gpt2").rope_theta
    with pytest.raises(UserError, match="q, k and v have bias, and the output projection differs"):
        _ = published("qwen2-7b").attention_bias


def test_resized_changes_what_is_named_alone() -> None:
    spec = published("llama-3-8b")
    assert spec.resized() == spec
    sizes: dict[str, Any] = {"num_layers": 3, "hidden_size": 96, "intermediate_size": 50, "num_heads": 6, "num_kv_heads": 3, "head_dim": 20}
    sizes |= {"vocab_size": 70, "max_positions": 9, "tied_embeddings": True, "attention_bias": True, "mlp_bias": True, "name": "small"}
    small = spec.resized(**sizes)
    assert {name: getattr(small, name) for name in sizes} == sizes
    assert small.total_parameters == 3 * (2 * 96 + 96 * (120 + 2 * 60) + 240 + 120 * 96 + 96 + 3 * 50 * 96 + 100 + 96) + 70 * 96 + 96
    assert small.rope_theta == spec.rope_theta


def test_resized_refuses_what_it_cannot_do() -> None:
    with pytest.raises(TypeError, match="no size of a model: depth"):
        published("llama-3-8b").resized(depth=2)
    with pytest.raises(UserError, match="only a decoder of equal blocks"):
        published("llava-1.5-7b").resized(num_layers=2)
    with pytest.raises(UserError, match="only a decoder of equal blocks"):
        published("deepseek-v3").resized(num_layers=2)


def test_layers_cost_no_memory_each() -> None:
    assert published("llama-3-8b").resized(num_layers=10**9).num_layers == 10**9


# --- what each family is --------------------------------------------------------------------------------------------

UNLIKE = {
    "llama-3-8b": (),
    "mistral-nemo-12b": (),
    "mistral-7b-v0.1": ("a sliding window of 4096",),
    "qwen2-7b": ("a bias on q, k and v alone",),
    "qwen3-8b": ("norms of q and k",),
    "olmo-7b": ("another norm than RMSNorm",),
    "olmo-2-7b": ("norms of q and k", "norms in other places"),
    "gemma-2b": ("a scaled embedding", "activation gelu_pytorch_tanh"),
    "phi-4": ("q, k and v in one matrix", "gate and up in one matrix"),
    "mixtral-8x7b": ("8 experts",),
    "deepseek-v2-lite": ("layers that differ", "latent attention", "64 experts"),
    "llava-1.5-7b": ("an image encoder", "a projector"),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_what_differs_from_llama_is_named(name: str) -> None:
    assert published(name).unlike_llama == UNLIKE[name]


def test_the_ledger_refuses_what_it_would_be_wrong_about() -> None:
    workload, strategy = Workload(1, 128), Strategy("single")
    with pytest.raises(UserError, match=r"blocks like Llama's, and mixtral has 8 experts \(46.70 B parameters, 12.88 B active\)") as caught:
        ledger(published("mixtral-8x7b"), strategy, workload)
    assert "\n" not in str(caught.value)
    nemo = published("mistral-nemo-12b")
    assert ledger(nemo, strategy, workload).states_bytes > 16 * nemo.total_parameters


@pytest.mark.parametrize("name", ["gpt2", "deepseek-v3", "llava-1.5-7b"])
def test_a_config_is_checked_beside_any_model(name: str, tmp_path: Path) -> None:
    """The rules that know Llama's classes alone stay silent, and what the config leaves to the model is the model's own classes."""
    spec, path = published(name), tmp_path / "fsdp.yaml"
    path.write_text(accelerate.write(Strategy("fsdp", wrap_classes=spec.block_classes), 4, "cuda"), encoding="utf-8")
    report = judge([str(path)], Context(4, spec, "cuda"))
    assert not [finding for finding in report.findings if finding.severity > Severity.INFO]
    assert accelerate.read(load(str(path)), spec).strategy.wrap_classes == spec.block_classes


def test_windows_and_thetas_alternate_in_gemma_3() -> None:
    blocks = published("gemma-3-1b").blocks
    assert [block.attention.window for block in blocks[:7]] == [512] * 5 + [None, 512]
    assert [block.attention.rotary for block in blocks[4:6]] == [Rotary(10000.0), Rotary(1e6)]
    assert {block.attention.scale for block in blocks} == {256**-0.5}


def test_deepseek_v3_starts_with_plain_layers() -> None:
    runs = published("deepseek-v3").runs
    assert [run.count for run in runs] == [3, 58]
    dense, sparse = runs[0].block.mlp, runs[1].block.mlp
    assert dense == Mlp(18432)
    assert isinstance(sparse, Experts) and sparse.shared == Mlp(2048)
    assert (sparse.router.score, sparse.router.groups, sparse.router.kept_groups) == ("sigmoid", 8, 4)
    attention = runs[0].block.attention
    assert (attention.head_dim, attention.value_dim) == (192, 128)
    assert attention.latent and (attention.latent.kv_rank, attention.latent.query_rank, attention.latent.rope_dim) == (512, 1536, 64)


def test_phi_and_neox_turn_a_part_of_each_head() -> None:
    assert published("phi-2").blocks[0].attention.rotary == Rotary(10000.0, 0.4)
    assert published("pythia-70m").blocks[0].attention.rotary == Rotary(10000.0, 0.25)
    block = published("phi-2").blocks[0]
    assert (block.parallel, block.norms) == (True, ("attention_in",))


def test_rotary_scaling_is_kept_by_name_with_its_numbers() -> None:
    assert published("llama-3.1-405b").blocks[0].attention.rotary == Rotary(500000.0, 1.0, "llama3", Stretch(8.0, 8192))
    yarn = published("olmo-3-7b").blocks[-1].attention.rotary
    assert yarn and yarn.stretch == Stretch(8.0, 8192, attention=0.1 * math.log(8) + 1)
    assert published("qwen2-vl-7b").blocks[0].attention.rotary == Rotary(1000000.0)


def test_deepseek_scales_its_scores_with_stretched_positions() -> None:
    """192 ** -0.5 * (0.1 * 1.0 * ln 40 + 1) ** 2, as mscale_all_dim asks."""
    attention = published("deepseek-v3").blocks[0].attention
    assert attention.scale == pytest.approx(192**-0.5 * (0.1 * math.log(40) + 1) ** 2)
    assert attention.rotary and attention.rotary.stretch and attention.rotary.stretch.attention == 1.0, "mscale / mscale_all_dim"


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "llama3", "factor": 8.0},
        {"rope_type": "linear"},
        {"rope_type": "yarn", "factor": "8"},
        {"rope_type": "linear", "factor": 2.0, "attention_factor": []},
        {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 1},
        {"rope_type": "longrope", "factor": 2.0, "short_factor": [1.0, "x"]},
    ],
    ids=str,
)
def test_stretched_positions_without_their_numbers_are_named_only(scaling: dict[str, object], tmp_path: Path) -> None:
    """The counts do not need them; whoever computes with them has to refuse."""
    base = json.loads((HERE / "cases/llama-plain.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(base | {"rope_scaling": scaling}), encoding="utf-8")
    rotary = load_model(str(tmp_path)).blocks[0].attention.rotary
    assert rotary and rotary.scaling == scaling["rope_type"] and rotary.stretch is None


def test_the_studys_family_is_read_and_is_none_of_transformers(tmp_path: Path) -> None:
    config = {"model_type": "plain", "vocab_size": 97, "hidden_size": 48, "num_hidden_layers": 2, "max_position_embeddings": 64}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    spec = load_model(str(tmp_path))
    assert (spec.num_heads, spec.head_dim, spec.matmul_parameters) == (3, 16, 24 * 48**2 + 97 * 48)
    assert spec.root_shapes == ((97, 48), (64, 48), (97, 48)) and "plain" not in vision.FAMILIES


def test_towers_and_projectors() -> None:
    llava, qwen, gemma = published("llava-1.5-7b"), published("qwen2-vl-7b"), published("gemma-3-4b")
    assert llava.block_classes == ("LlamaDecoderLayer", "CLIPEncoderLayer")
    assert llava.projector == Projector(1024, 4096, 4096)
    assert llava.tower and llava.tower.positions == 577 and llava.tower.class_token
    assert qwen.projector and qwen.projector.shapes[2:] == ((5120, 5120), (5120,), (3584, 5120), (3584,))
    assert gemma.projector and gemma.projector.shapes == ((1152,), (1152, 2560))
    assert gemma.blocks[0].norm.shifted and not llava.blocks[0].norm.shifted
    assert (qwen.family, qwen.decoder.family) == ("qwen2_vl", "qwen2_vl_text")
    assert (gemma.family, gemma.decoder.family) == ("gemma3", "gemma3_text")


# --- what a config leaves out ---------------------------------------------------------------------------------------


def test_defaults_are_named(make: Make) -> None:
    spec = make("mistral-heads-left-out")
    assert spec.num_kv_heads == 8
    assert {Assumed("num_key_value_heads", 8), Assumed("sliding_window", 4096), Assumed("tie_word_embeddings", False)} <= set(spec.assumed)


def test_missing_and_null_are_not_the_same(make: Make) -> None:
    assert make("mistral-window-tied", sliding_window=None).blocks[0].attention.window is None
    assert make("mistral-window-tied", sliding_window=...).blocks[0].attention.window == 4096
    assert make("llama-plain", num_key_value_heads=None).num_kv_heads == 4
    assert (
        make("deepseek-v2-biases-groups", q_lora_rank=None).blocks[0].attention.latent
        != make("deepseek-v2-biases-groups").blocks[0].attention.latent
    )
    assert not make("gemma-head-dim-left-out", tie_word_embeddings=None).tied_embeddings
    assert make("gemma-head-dim-left-out").tied_embeddings


def test_a_section_may_leave_out_sizes_and_says_so() -> None:
    """Published LLaVA-1.5 files say of Llama only what differs from LlamaConfig."""
    spec = published("llava-1.5-7b")
    assert {Assumed("text_config.hidden_size", 4096), Assumed("text_config.num_hidden_layers", 32)} <= set(spec.assumed)
    assert Assumed("text_config.tie_word_embeddings", True) not in published("gemma-3-4b").assumed


def test_what_transformers_does_not_heed_is_noted(make: Make) -> None:
    spec = make("mpt-what-is-not-built")
    assert len(spec.notes) == 5 and any("expansion_ratio is 3, and Transformers builds 4 all the same" in note for note in spec.notes)
    assert any("num_nextn_predict_layers is 1" in note for note in published("deepseek-v3").notes)


# --- bad input ------------------------------------------------------------------------------------------------------

BAD: list[tuple[str, dict[str, Any], str]] = [
    ("llama-plain", {"hidden_size": ..., "vocab_size": ...}, "hidden_size is missing; vocab_size is missing"),
    ("llama-plain", {"num_hidden_layers": 0}, "num_hidden_layers is 0, not a whole number from 1 to 1,000,000,000"),
    ("llama-plain", {"num_hidden_layers": 10**10}, "num_hidden_layers is 10000000000, not a whole number"),
    ("llama-plain", {"num_hidden_layers": True}, "num_hidden_layers is True, not a whole number"),
    ("llama-plain", {"hidden_size": 24.0}, "hidden_size is 24.0, not a whole number"),
    ("llama-plain", {"hidden_size": "24"}, "hidden_size is '24', not a whole number"),
    ("llama-plain", {"hidden_size": 26}, "hidden_size 26 is not a multiple of num_attention_heads 4, and there is no head_dim"),
    ("llama-plain", {"num_key_value_heads": 3}, "num_attention_heads 4 is not a multiple of num_key_value_heads 3"),
    ("llama-plain", {"head_dim": 5}, "head_dim 5 is odd, and rotary positions turn pairs"),
    ("llama-plain", {"hidden_size": 28, "num_key_value_heads": 3}, "num_key_value_heads 3; head_dim 7 is odd"),
    ("llama-plain", {"hidden_act": "swoosh"}, "hidden_act is 'swoosh', not one of gelu, "),
    ("llama-plain", {"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes', not true or false"),
    ("llama-plain", {"rope_theta": -1}, "rope_theta is -1, not a positive number"),
    ("llama-plain", {"rope_parameters": {"rope_theta": "big"}}, "rope_parameters.rope_theta is 'big', not a positive number"),
    ("llama-plain", {"rope_scaling": 3}, "rope_scaling is 3, not a mapping"),
    ("llama-plain", {"rms_norm_eps": 0}, "rms_norm_eps is 0, not a positive number"),
    ("llama-plain", {"model_type": "bert"}, "model_type 'bert'; the families read today are llama, mistral, qwen2, "),
    ("llama-plain", {"model_type": ...}, "no model_type; the families"),
    ("llama-plain", {"model_type": ["llama"]}, r"model_type \['llama'\]; the families"),
    ("qwen2-layer-types", {"layer_types": ["full_attention"]}, "layer_types has 1 entries for 3 layers"),
    ("qwen2-layer-types", {"layer_types": ["chunked"] * 3}, "layer_types has 'chunked', neither sliding_attention nor full_attention"),
    ("qwen2-layer-types", {"layer_types": "full"}, "layer_types is 'full', not a list"),
    ("gemma2-plain", {"head_dim": 9}, "head_dim 9 is odd, and rotary positions turn pairs"),
    ("olmo3-plain", {"hidden_size": 20}, "head_dim 5 is odd, and rotary positions turn pairs"),
    ("gemma2-plain", {"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; of layers that differ at most 10,000 are read"),
    ("gpt2-plain", {"n_head": 5}, "n_embd 24 is not a multiple of n_head 5"),
    ("gpt2-plain", {"add_cross_attention": True}, "add_cross_attention is true, and models with an encoder are not read"),
    ("gpt-neox-plain", {"rotary_pct": 0.2}, "1 of a head's 8 are odd, and rotary positions turn pairs"),
    ("gpt-neox-plain", {"rotary_pct": 1.5}, "rotary_pct is 1.5, more than the whole head"),
    ("mpt-plain", {"attn_config": [1]}, r"attn_config is \[1\], not a mapping"),
    ("mpt-plain", {"attn_config": {"clip_qkv": -2}}, "attn_config.clip_qkv is -2, not a positive number"),
    ("mpt-plain", {"attn_config": {"attn_type": "grouped_query_attention"}}, "attn_type is 'grouped_query_attention', which Transformers'"),
    ("falcon-groups", {"num_kv_heads": 3}, "num_attention_heads 4 is not a multiple of num_kv_heads 3"),
    ("falcon-groups", {"parallel_attn": False}, "parallel_attn is false, and new_decoder_architecture is always parallel"),
    ("falcon-multi-query", {"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn is 2; it is 1, or 2 with new_decoder_architecture"),
    ("mixtral-plain", {"num_experts_per_tok": 6}, "num_experts_per_tok is 6, and num_local_experts only 5"),
    ("qwen3-moe-plain", {"mlp_only_layers": [3]}, "mlp_only_layers has 3, and the layers are 0 to 2"),
    ("qwen2-moe-plain", {"moe_intermediate_size": ...}, "moe_intermediate_size is missing"),
    ("deepseek-v3-plain", {"n_group": 4}, "n_routed_experts 6 is not a multiple of n_group 4"),
    ("deepseek-v3-plain", {"topk_group": 3}, "topk_group is 3, and n_group only 2"),
    ("deepseek-v3-plain", {"num_key_value_heads": 2}, "num_key_value_heads 2 is not num_attention_heads 4, as latent attention has it"),
    ("deepseek-v3-plain", {"qk_rope_head_dim": 3}, "3 of a head's 9 are odd, and rotary positions turn pairs"),
    ("deepseek-v2-no-query-rank", {"topk_method": "random"}, "topk_method is 'random', not one of greedy, group_limited_greedy"),
    ("llava-clip-llama", {"text_config": ...}, "text_config is missing"),
    ("llava-clip-llama", {"text_config": 3}, "text_config is 3, not a mapping"),
    ("llava-clip-llama", {"text_config": {"model_type": "t5"}}, "text_config.model_type is 't5'; the decoders read are llama, "),
    ("llava-clip-llama", {"text_config": {"model_type": ["llama"]}}, r"text_config.model_type is \['llama'\], not a name"),
    ("llava-clip-llama", {"vision_config": {"model_type": "pixtral"}}, "vision_config.model_type is 'pixtral'; the encoders read are"),
    (
        "llava-clip-llama",
        {"vision_config": {"hidden_size": 10, "num_attention_heads": 3}},
        "vision_config.hidden_size 10 is not a multiple",
    ),
    (
        "llava-clip-llama",
        {"vision_config": {"image_size": 8, "patch_size": 16}},
        "vision_config.patch_size 16 is more than vision_config.image_size 8",
    ),
    ("qwen2-vl-flat", {"hidden_size": 48}, "vision_config.hidden_size 24 is not the decoder's hidden_size 48"),
    ("qwen2-vl-flat", {"vocab_size": ...}, "vocab_size is missing"),
]


@pytest.mark.parametrize(
    ("name", "changes", "said"), BAD, ids=[f"{name}-{'-'.join(changes)}-{n}" for n, (name, changes, _) in enumerate(BAD)]
)
def test_a_wrong_config_is_named_on_one_line(make: Make, name: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DocumentError, match=said) as caught:
        make(name, **changes)
    assert "\n" not in str(caught.value) and str(caught.value).count("this model cannot be built") <= 1


def test_the_place_of_the_first_problem_is_told(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(case("llava-clip-llama") | {"text_config": {"vocab_size": -1}}, indent=1), encoding="utf-8")
    with pytest.raises(DocumentError) as caught:
        load_model(str(path))
    line = caught.value.where.line
    assert line and '"vocab_size": -1' in path.read_text(encoding="utf-8").splitlines()[line - 1]


def test_fields_alone_are_told_before_contradictions(make: Make) -> None:
    with pytest.raises(DocumentError) as caught:
        make("llama-plain", hidden_size="x", num_key_value_heads=3)
    assert "multiple" not in str(caught.value)


VALUES = st.one_of(
    st.sampled_from([None, True, False, 0, 1, 2, 3, -1, 7, 10**9, 10**30, 1.5, -2.0, 1e-300, "", "silu", "full_attention", "a\nb"]),
    st.sampled_from(
        [[], [0], [None], ["sliding_attention"], {}, {"a": 1}, {"model_type": "gemma"}, {"full_attention": 3}, {"rope_type": ["x"]}]
    ),
    st.recursive(st.integers() | st.text(max_size=5) | st.none(), lambda inner: st.lists(inner, max_size=3), max_leaves=4),
)
EXTRA = [
    "head_dim",
    "rope_scaling",
    "rope_parameters",
    "layer_types",
    "mlp_only_layers",
    "sliding_window",
    "n_embed",
    "vision_feature_layer",
]
EXTRA += ["num_key_value_heads", "partial_rotary_factor", "attn_config", "projector", "preset", "use_sliding_window", "name", "model_type"]


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_value_in_any_field_gives_a_model_or_one_line(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    config = copy.deepcopy(read(data.draw(st.sampled_from(FILES), "file")))
    inside = [config, *(value for value in config.values() if isinstance(value, dict))]
    for _ in range(data.draw(st.integers(1, 3))):
        section = data.draw(st.sampled_from(inside))
        section[data.draw(st.sampled_from([*section, *EXTRA]))] = data.draw(VALUES)
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    try:
        spec = load_model(str(path))
    except UserError as problem:
        assert "\n" not in str(problem)
    else:
        assert spec.to_json()["parameters"]["total"] == spec.total_parameters > 0
        assert isinstance(spec.unlike_llama, tuple)


# --- parts ----------------------------------------------------------------------------------------------------------


def test_equal_neighbours_fold_into_runs() -> None:
    one = Block(8, Attention(2, 2, 4, 4), Mlp(16), Norm())
    other = replace(one, parallel=True)
    assert fold([one, one, other, one]) == (Run(2, one), Run(1, other), Run(1, one))
    assert fold([]) == ()


@pytest.mark.parametrize(
    ("variant", "parameters"), [("BASE", 4 * 8 + 8 + 8 * 8 + 8), ("W2X", 4 * 16 + 16 + 16 * 8 + 8), ("D2X", 4 * 8 + 8 + 2 * 72)]
)
def test_rungs_of_the_ladder(variant: str, parameters: int) -> None:
    assert projector(variant, 4, 8).parameters == parameters


def test_a_projector_has_to_meet_the_decoder() -> None:
    spec = published("llama-3-8b")
    assert spec.with_projector(projector("BASE", 1024, 4096)).projector_parameters == 1024 * 4096 + 4096 + 4096 * 4096 + 4096
    with pytest.raises(UserError, match="the projector's output 8 is not the hidden_size 4096"):
        spec.with_projector(projector("BASE", 4, 8))
