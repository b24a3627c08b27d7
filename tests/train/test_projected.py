"""Models that read signals: the ladder, the regimes, and that the signal is what makes them better."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.optim import AdamW

from trainwright.errors import UserError
from trainwright.model import load_model
from trainwright.parts import LADDER
from trainwright.train.data import Batch, Settings, SignalData, open_data
from trainwright.train.models import build, counts, materialize
from trainwright.train.projected import REGIMES, with_variant
from trainwright.train.signals import MODALITIES, POSITIONS
from trainwright.train.tiny import tiny

CPU = torch.device("cpu")


def made(modality: str, regime: str, variant: str = "BASE", width: int = 64) -> Any:
    model = build(with_variant(tiny(load_model("tiny")), variant, width), modality, regime)
    materialize(model, CPU, 0)
    return model


def data(modality: str, seq_len: int = 40) -> SignalData:
    found = open_data(Settings(modality=modality, seed=1, eval_windows=128), load_model("tiny"), seq_len)
    assert isinstance(found, SignalData)
    return found


@pytest.mark.parametrize("variant", LADDER)
def test_the_ladder_widens_and_deepens_the_projector_alone(variant: str) -> None:
    width, depth = LADDER[variant]
    spec = with_variant(load_model("tiny"), variant)
    model = build(spec, "text_image", "projector_only")
    h, w = spec.hidden_size, width * spec.hidden_size
    weights = 64 * w + (depth - 1) * w * w + w * h
    biases = depth * w + h
    base = counts(build(with_variant(load_model("tiny"), "BASE"), "text_image", "e2e"))
    found = counts(model)
    assert found["projector"] == found["trainable"] == weights + biases == spec.projector_parameters
    assert (found["encoder"], found["backbone"]) == (base["encoder"], base["backbone"]) and found["backbone"] == spec.decoder_parameters
    assert load_model(f"projector-{variant.lower()}").projector == spec.projector, "the preset is the same rung"


@pytest.mark.parametrize("modality", MODALITIES)
@pytest.mark.parametrize("regime", REGIMES)
def test_a_regime_trains_its_parts_and_no_other(modality: str, regime: str) -> None:
    model, batch = made(modality, regime), data(modality).batch(0, 3)
    found = counts(model)
    assert found["trainable"] == sum(found[part] for part in REGIMES[regime]) and found["total"] == sum(
        found[part] for part in ("encoder", "projector", "backbone")
    )
    encoded: list[torch.Tensor] = []
    model.encoder.register_forward_hook(lambda *call: encoded.append(call[2]))
    model(batch).backward()
    assert encoded[0].shape == (3, POSITIONS[modality], 64) and encoded[0].requires_grad == ("encoder" in REGIMES[regime])
    for name, parameter in model.named_parameters():
        trains = name.split(".")[0] in REGIMES[regime]
        assert (parameter.grad is not None and bool(parameter.grad.abs().sum() > 0)) == trains == parameter.requires_grad, name


def test_what_does_not_fit_is_named() -> None:
    spec = load_model("tiny")
    with pytest.raises(UserError, match="variant 'W3X' is not one of BASE, W2X"):
        with_variant(spec, "W3X")
    with pytest.raises(UserError, match=r"has no projector for text_image; take a preset projector-\.\.\. or a variant"):
        build(spec, "text_image")
    with pytest.raises(UserError, match="regime 'half' is not one of"):
        build(with_variant(spec), "text_ts", "half")
    with pytest.raises(UserError, match="family 'text_smell' is not one of text, text_image"):
        build(with_variant(spec), "text_smell")
    with pytest.raises(UserError, match="input_size 30 is no multiple of the encoder's 4 heads"):
        build(with_variant(spec, "BASE", 30), "text_image")
    assert with_variant(load_model("projector-d4x")).projector == load_model("projector-d4x").projector, "its own projector is kept"


def shuffled(batch: Batch) -> Batch:
    """The same texts with the signals of other samples."""
    return batch._replace(signals=tuple(signal.roll(1, 0) for signal in batch.signals))


def train(model: Any, found: SignalData, steps: int, size: int = 32, change: Any = lambda batch: batch) -> Any:
    """`model` after `steps`, all batches as `change` makes them."""
    optimizer = AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    for step in range(steps):
        model(change(found.batch(step * size, size))).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def unseen(model: Any, found: SignalData, change: Any = lambda batch: batch) -> float:
    """Loss a label on samples that no training reads."""
    with torch.no_grad():
        pairs = [(model(change(batch), "sum").item(), batch.tokens) for batch in found.eval_batches(64)]
    return float(sum(loss for loss, _ in pairs) / sum(tokens for _, tokens in pairs))


def test_a_trained_model_misses_the_signal_that_belongs_to_the_text() -> None:
    found = data("text_ts")
    model = train(made("text_ts", "e2e"), found, 70, 16)
    assert unseen(model, found) < unseen(model, found, shuffled) - 0.02


@pytest.mark.long
@pytest.mark.parametrize("modality", MODALITIES)
def test_every_familys_signal_is_learned_and_others_signals_are_not(modality: str) -> None:
    found = data(modality)
    with_signal = unseen(train(made(modality, "e2e"), found, 250), found)
    without = unseen(train(made(modality, "e2e"), found, 250, change=shuffled), found, shuffled)
    print(f"{modality}: {with_signal:.4f} with the signal, {without:.4f} with others'")
    assert with_signal < without - 0.05


@pytest.mark.long
@pytest.mark.parametrize("regime", ["projector_only", "encoder_projector"])
def test_a_projector_teaches_a_frozen_backbone_that_knows_the_language(regime: str) -> None:
    """As the reference studies do: the language comes first. A backbone of random weights could not say anything."""
    found = data("text_ts")
    language = train(made("text_ts", "e2e"), found, 150, change=shuffled)
    model = made("text_ts", regime)
    model.load_state_dict(language.state_dict())
    frozen = {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}
    before = unseen(model, found)
    train(model, found, 200)
    print(f"{regime}: {before:.4f} before, {unseen(model, found):.4f} after")
    assert unseen(model, found) < before - 0.005
    assert all(torch.equal(frozen[name], p) for name, p in model.named_parameters() if name in frozen)


def test_batches_of_no_samples_pass() -> None:
    for modality in MODALITIES:
        model = made(modality, "e2e")
        loss = model(data(modality).batch(0, 0), "sum")
        loss.backward()
        assert loss.item() == 0


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
