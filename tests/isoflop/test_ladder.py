"""Ladders: sizes of one family, projectors before one backbone, and their operations by closed form and by torch's counter."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from trainwright.errors import UserError
from trainwright.flops import flops_per_token
from trainwright.isoflop import calibration, ladder
from trainwright.isoflop.projected_flops import flops_per_sample

Ask = Callable[..., tuple[int, dict[str, Any]]]
SCHEMA = json.loads((Path(__file__).resolve().parents[2] / "helpers/trainwright/isoflop/isoflop.schema.json").read_text())
# Operations of one sample of 64 tokens, as torch 2.13's counter found them on the meta device (backbone: the preset tiny).
COUNTED = {
    ("text_image", "projector_only", "BASE"): 289112064,
    ("text_image", "e2e", "D4X"): 422903808,
    ("text_ts", "encoder_projector", "W2X"): 298221568,
    ("text_graph", "projector_only", "D4X"): 274734080,
    ("text_graph", "e2e", "BASE"): 390838272,
}


@pytest.mark.parametrize(("family", "regime", "variant"), COUNTED)
def test_a_projector_family_costs_what_the_counter_found(family: str, regime: str, variant: str, tmp_path: Path) -> None:
    (member,) = ladder.projector_members("tiny", [variant], family, regime)
    assert flops_per_sample(member.spec(str(tmp_path)), family, regime, 64) == COUNTED[family, regime, variant]


def test_widths_keep_the_family(tmp_path: Path) -> None:
    wide, deep = ladder.members(["7b"], ["256", "512x4"], [], str(tmp_path))
    assert (wide.name, deep.name) == ("d256", "d512x4")
    spec = deep.spec(str(tmp_path))
    assert (spec.num_layers, spec.hidden_size, spec.num_heads, spec.head_dim, spec.intermediate_size) == (4, 512, 4, 128, 1376)
    assert flops_per_token(wide.spec(str(tmp_path)), 64) * 64 == 13262389248  # the counter's, as above


def test_key_value_heads_divide(tmp_path: Path) -> None:
    (member,) = ladder.members(["70b"], ["768x2"], [], str(tmp_path))
    spec = member.spec(str(tmp_path))
    assert spec.num_heads == 6 and spec.num_heads % spec.num_kv_heads == 0


@pytest.mark.parametrize("size", [3_000_000, 40_000_000, 300_000_000])
def test_a_size_is_the_nearest_in_whole_groups_of_heads(size: int, tmp_path: Path) -> None:
    (member,) = ladder.members(["tiny"], [], [size], str(tmp_path))
    spec = member.spec(str(tmp_path))
    off = abs(spec.total_parameters - size)
    step = spec.head_dim * spec.num_heads // spec.num_kv_heads
    for width in (spec.hidden_size - step, spec.hidden_size + step):
        other = ladder.Member("x", ladder.resized(ladder.read_config("tiny"), width)).spec(str(tmp_path))
        assert abs(other.total_parameters - size) >= off


@pytest.mark.parametrize(
    ("models", "widths", "words"),
    [
        (["tiny", "7b"], ["64"], "name one --model"),
        (["tiny"], ["wide"], "neither WIDTH nor"),
        (["tiny"], ["64", "64"], "each size once"),
        (["no-such-thing"], ["64"], "presets are"),
    ],
)
def test_what_is_no_ladder(models: list[str], widths: list[str], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        ladder.members(models, widths, [], str(tmp_path))


def test_a_calibration_without_a_run(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainwright.probe.importable", lambda name: False)
    target = tmp_path / "cal.json"
    code, said = ask("calibrate", "--model", "tiny", "--widths", "64", "128", "--no-measure", "--output-json", str(target))
    assert code == 0
    jsonschema.validate(said["data"], SCHEMA)
    first = said["data"]["members"][0]
    assert first["params"]["total"] == first["params"]["embedding"] + first["params"]["head"] + first["params"]["nonembedding"]
    assert first["counted"]["agrees"] is None and "not in this copy" in first["counted"]["reason"] and first["measured"] is None
    assert [row["name"] for row in calibration.read_calibration(str(target))] == ["d64", "d128"]


def test_a_narrow_ladder_is_told(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainwright.probe.importable", lambda name: False)
    _, said = ask("calibrate", "--backbone", "tiny", "--projector-variant", "BASE", "W2X", "W4X", "--no-measure")
    assert "iso-narrow" in {finding["rule"] for finding in said["findings"]}


def test_a_count_that_differs_is_an_error(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    params = {"total": 1, "trainable": 1, "encoder": 0, "projector": 0, "backbone": 1}
    monkeypatch.setattr(calibration, "_ask", lambda request, timeout: {"tiny": {"flops_per_sample": 7, "params": params}})
    code, said = ask("calibrate", "--model", "tiny", "--no-measure")
    assert code == 1 and [finding["rule"] for finding in said["findings"]] == ["iso-count"]


@pytest.mark.parametrize("text", ["{}", '{"schema": "trainwright/isoflop-calibration/1", "members": []}', '{"schema": "x"}'])
def test_what_is_no_calibration(text: str, tmp_path: Path) -> None:
    file = tmp_path / "cal.json"
    file.write_text(text)
    with pytest.raises(UserError, match="is no calibration"):
        calibration.read_calibration(str(file))


@pytest.mark.long
def test_the_counter_agrees_for_every_family_and_regime(ask: Ask, tmp_path: Path) -> None:
    code, said = ask("calibrate", "--model", "tiny", "tiny-gpt2", "llama-demo", "--no-measure", "--seq-len", "64")
    assert code == 0 and all(row["counted"]["agrees"] for row in said["data"]["members"])
    for family in ladder.FAMILIES:
        for regime in ladder.REGIMES:
            code, said = ask("calibrate", "--backbone", "tiny", "--family", family, "--regime", regime, "--no-measure", "--seq-len", "64")
            rows = said["data"]["members"]
            assert code == 0 and len(rows) == 5 and all(row["counted"]["agrees"] for row in rows)
            assert all(row["params"]["trainable"] <= row["params"]["total"] for row in rows)
            assert (rows[0]["params"]["trainable"] == rows[0]["params"]["projector"]) == (regime == "projector_only")


@pytest.mark.long
def test_throughput_and_memory_are_measured(ask: Ask, tmp_path: Path) -> None:
    code, said = ask("calibrate", "--model", "tiny", "--widths", "32", "64", "--steps", "6", "--calibration-dir", str(tmp_path))
    assert code == 0, said
    jsonschema.validate(said["data"], SCHEMA)
    for row in said["data"]["members"]:
        assert row["measured"]["tokens_per_sec"] > 0 and row["measured"]["peak_memory_bytes"] > 4 * row["params"]["total"]
        assert row["measured"]["steps"] >= 5
