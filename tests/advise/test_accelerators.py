"""Every accelerator of the table can be advised on, or is refused in one line: what is not known of it is not made up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from trainwright.cli import main
from trainwright.hardware import accelerator, bundled

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "helpers/trainwright/advise/advise.schema.json").read_text(encoding="utf-8"))
JOB = [
    "advise",
    "--model",
    str(ROOT / "helpers/trainwright/models/1b/config.json"),
    "--devices",
    "8",
    "--seq-len",
    "1024",
    "--format",
    "json",
]


@pytest.mark.parametrize("name", sorted(bundled().accelerators))
def test_advice_for_every_accelerator(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main([*JOB, "--accelerator", name])
    envelope = json.loads(capsys.readouterr().out)
    if accelerator(name).memory_bytes is None:
        assert code == 2 and "give --memory" in envelope["findings"][0]["message"]
        return
    assert code in (0, 1) and [e.message for e in Draft202012Validator(SCHEMA).iter_errors(envelope["data"])] == []
    assert envelope["data"]["accelerator"]["name"] == name
    assert envelope["data"]["memory_bytes"] < (accelerator(name).memory_bytes or 0)
