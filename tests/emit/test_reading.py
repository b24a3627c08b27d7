"""A job that decides what the backend's file says too: its keys are told as not applied, with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from trainwright.document import parse
from trainwright.emit import backend
from trainwright.errors import UserError
from trainwright.job import Job

FSDP = "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, "
FSDP += "fsdp_transformer_layer_cls_to_wrap: A, fsdp_activation_checkpointing: true}\n"
DDP = "distributed_type: MULTI_GPU\n"


def under(text: str, **fields: Any) -> Any:
    return backend.read(parse(text, "a.yaml", "yaml")).under(Job("/m", "/c", 2, **fields))


def test_a_job_that_adds_nothing_changes_nothing() -> None:
    for text in (FSDP, DDP):
        assert under(text) == backend.read(parse(text, "a.yaml", "yaml"))


def test_recomputation_is_the_jobs_where_it_names_it() -> None:
    found = under(FSDP, activation_checkpoint_every=0)
    assert not found.strategy.activation_checkpointing
    (told,) = [use for use in found.not_applied if use.key == "fsdp_config.fsdp_activation_checkpointing"]
    assert told.meaning == "the job's activation_checkpoint_every 0 decides" and told.key not in {use.key for use in found.applied}
    third = under(FSDP, activation_checkpoint_every=3).strategy
    assert third.activation_checkpointing and third.checkpoint_every == 3


def test_local_sgd_is_no_ddp() -> None:
    found = under(DDP, local_sgd_steps=4)
    assert found.strategy.name == "local_sgd"
    assert {use.key: use.meaning for use in found.not_applied} == {"distributed_type": "the job's local_sgd_steps 4: no gradient is shared"}
    with pytest.raises(UserError, match="averages whole models, and the backend config asks for fsdp_full_shard"):
        under(FSDP, local_sgd_steps=4)
