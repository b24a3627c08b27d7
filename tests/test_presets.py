"""Models by name, and configs written by hand on top of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainwright.document import DocumentError
from trainwright.model import load_model
from trainwright.parts import LADDER, projector
from trainwright.presets import preset_path, presets

SIZES = {"1b": 1_235_814_400, "7b": 6_738_415_616, "70b": 70_553_706_496, "405b": 405_853_388_800, "tiny": 803_968}


@pytest.mark.parametrize("name", SIZES)
def test_presets_have_the_size_of_their_name(name: str) -> None:
    spec = load_model(name)
    assert spec.total_parameters == SIZES[name] and not spec.unlike_llama


@pytest.mark.parametrize("name", presets())
def test_presets_leave_nothing_to_defaults(name: str) -> None:
    spec = load_model(name)
    assert [one.field for one in spec.assumed] in ([], ["head_dim"]) and not spec.notes
    assert os.path.isfile(preset_path(name))


def test_the_ladder_stands_before_the_tiny_decoder() -> None:
    tiny = load_model("tiny")
    for variant in LADDER:
        spec = load_model(f"projector-{variant.lower()}")
        assert spec.projector == projector(variant, 64, tiny.hidden_size) and spec.decoder == tiny.decoder


def test_a_file_comes_before_a_preset_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("7b").mkdir()
    Path("7b/config.json").write_text(Path(preset_path("tiny")).read_text(encoding="utf-8"), encoding="utf-8")
    assert load_model("7b").total_parameters == SIZES["tiny"]


def test_an_unknown_name_says_which_there_are() -> None:
    with pytest.raises(DocumentError, match=r"13b: cannot be read: .*; presets are 1b, 405b, .*tiny-moe"):
        load_model("13b")


def test_a_yaml_starts_from_a_preset(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("preset: 7b\nnum_hidden_layers: 2\nprojector: {variant: W2X, input_size: 512}\n", encoding="utf-8")
    spec = load_model(str(path))
    assert (spec.num_layers, spec.hidden_size, spec.name) == (2, 4096, "7b, changed")
    assert spec.projector == projector("W2X", 512, 4096)


def test_a_yaml_alone(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    sizes = "hidden_size: 64\nintermediate_size: 96\nnum_hidden_layers: 2\nnum_attention_heads: 4\nvocab_size: 9\n"
    path.write_text(f"model_type: llama\nname: mine\n{sizes}", encoding="utf-8")
    assert load_model(str(path)).name == "mine"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("preset: 8b\n", "mine.yaml:1:1: preset '8b' is not one of 1b, "),
        ("preset: [7b]\n", r"preset \['7b'\] is not one of"),
        ("preset: 7b\nmodel_type: gpt2\n", "mine.yaml:2:1: model_type 'gpt2' is not that of the preset 7b, llama"),
        (
            "preset: 7b\nnum_hidden_layer: 2\n",
            "mine.yaml:2:1: .*'num_hidden_layer' is no field of a llama model; did you mean num_hidden_layers?",
        ),
        ("preset: 7b\nprojector: 3\n", "projector is 3, not a mapping"),
        ("preset: 7b\nprojector: {}\n", "projector.input_size is missing"),
        ("preset: 7b\nprojector: {variant: W8X, input_size: 4}\n", "projector.variant is 'W8X', not one of BASE, W2X, W4X, D2X, D4X"),
        ("preset: 7b\nhidden_size:\n", "hidden_size is missing"),
    ],
)
def test_a_slip_in_a_yaml_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DocumentError, match=said) as caught:
        load_model(str(path))
    assert "\n" not in str(caught.value)


def test_what_a_yaml_says_in_vain_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("preset: tiny\nlearning_rate: 1\n", encoding="utf-8")
    assert load_model(str(path)).notes == ("'learning_rate' is not read: it is no field that changes the shape of a llama model",)
