"""manifest.json: enough to start the run again, and no secret."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from trainwright.errors import UserError
from trainwright.job import Job
from trainwright.launch import manifest, torchrun


def test_it_holds_what_was_started_and_no_secret(make_job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very secret")
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    job = make_job("fsdp")
    variables = torchrun.variables(job, "tok")
    facts = manifest.begin(job, torchrun.command(job, "/runs/a"), variables, "tok")
    manifest.write(tmp_path, facts)
    text = (tmp_path / "manifest.json").read_text(encoding="utf-8")
    read = json.loads(text)
    assert "secret" not in text
    assert read["inherited"]["TORCH_DISTRIBUTED_DEBUG"] == "DETAIL" and read["environment"] == variables
    assert read["asked"] == {"world_size": 3, "strategy": "fsdp_full_shard"}
    assert read["outcome"]["status"] == "running" and read["ended"] is None
    assert read["model"]["sha256"] == hashlib.sha256(Path(job.model).read_bytes()).hexdigest()
    assert set(read["versions"]) >= {"torch", "accelerate"}


def test_a_file_that_is_gone_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        manifest.sha256(str(tmp_path / "gone"))
