"""What cannot be done together is refused before anything starts."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from trainwright.errors import UserError
from trainwright.job import Job
from trainwright.model import load_model
from trainwright.possible import _experts, possible
from trainwright.presets import preset_path
from trainwright.strategy import Strategy

FSDP = Strategy("fsdp", wrap_classes=("LlamaDecoderLayer",))
TINY = load_model(preset_path("tiny"))
IMPOSSIBLE: dict[str, tuple[Strategy, dict[str, Any], str]] = {
    "single on several ranks": (Strategy("single"), {"world_size": 4}, "unconnected models"),
    "rows that do not divide": (dataclasses.replace(FSDP, replicas=2), {"world_size": 3}, "3 ranks cannot be divided by 2"),
    "DDP's hook under FSDP": (FSDP, {"world_size": 2, "comm_hook": "fp16"}, "comm_hook is an option of DDP, .* asks for fsdp_full_shard"),
    "DDP's graph under Local SGD": (Strategy("local_sgd"), {"world_size": 2, "bucket_mb": 1.0}, "bucket_mb is an option of DDP"),
    "a hook that gloo has not": (Strategy("ddp"), {"world_size": 2, "comm_hook": "bf16"}, "ranks on CPU speak gloo"),
    "two groups under ZeRO": (Strategy("zero", zero_stage=1), {"world_size": 2, "decay": "matrices"}, "take decay all"),
    "compiled ZeRO 3": (Strategy("zero", zero_stage=3), {"world_size": 2, "compile": "eager"}, "compile with ZeRO stage 3"),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_cannot_be_done_together_is_refused_in_one_line(name: str) -> None:
    strategy, fields, words = IMPOSSIBLE[name]
    with pytest.raises(UserError, match=words) as caught:
        possible(TINY, strategy, Job("/m", "/c", **fields))
    assert "\n" not in str(caught.value)


def test_experts_have_to_divide_among_the_ranks_that_share_them() -> None:
    mixture = load_model(preset_path("tiny-moe"))
    experts = next(iter(_experts(mixture)))
    possible(mixture, FSDP, Job("/m", "/c", 2))
    with pytest.raises(UserError, match=f"has {experts} experts in a layer, and they cannot be divided by 3 ranks"):
        possible(mixture, FSDP, Job("/m", "/c", 3))
    possible(mixture, Strategy("ddp"), Job("/m", "/c", 3))
    possible(mixture, dataclasses.replace(FSDP, replicas=3), Job("/m", "/c", 6))


@pytest.mark.parametrize("field", ["static_graph", "find_unused_parameters"])
def test_ddp_has_its_own_options(field: str) -> None:
    job = dataclasses.replace(Job("/m", "/c", 2), **{field: True})  # type: ignore[arg-type]
    possible(TINY, Strategy("ddp"), job)
    with pytest.raises(UserError, match=f"{field} is an option of DDP"):
        possible(TINY, Strategy("zero", zero_stage=2), job)
