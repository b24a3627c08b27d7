# isoflop/calibration.py without its comments
from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright import probe
from trainwright.errors import UserError
from trainwright.flops import DEFAULT, flops_per_token, record
from trainwright.isoflop import shapes
from trainwright.isoflop.ladder import Member
from trainwright.isoflop.projected_flops import POSITIONS, flops_per_sample
from trainwright.model import ModelSpec

SCHEMA = "trainwright/isoflop-calibration/1"
AGREE = 1e-9
_SECONDS_PER_MEMBER = 120.0
_WARM = 3


@dataclass(frozen=True, slots=True)
class Measurement:

    steps: int = 12
    micro_batch: int = 2
    seq_len: int = 128
    device: str = "cpu"
    timeout_s: float = 300.0
    threads: int = 1


def describe(member: Member, spec: ModelSpec, seq_len: int, rule: str = DEFAULT) -> dict[str, Any]:
    counts = record(spec, seq_len, rule)
    text = member.modality == "text"
    per_sample = flops_per_token(spec, seq_len, rule) * seq_len if text else flops_per_sample(spec, member.modality, member.regime, seq_len)
    total = counts["params_total"]
    params = {
        "total": total,
        "embedding": counts["params_embedding"],
        "head": counts["params_head"],
        "nonembedding": counts["params_nonembed"],
        "matmul": spec.matmul_parameters,
        "projector": spec.projector_parameters,
        "trainable": total if text else None,
    }
    return {
        **member.to_json(),
        "width": spec.hidden_size,
        "layers": spec.num_layers,
        "seq_len": seq_len,
        "positions": seq_len + (0 if text else POSITIONS[member.modality]),
        "params": params,
        "flops_rule": rule,
        "flops_per_sample": per_sample,
        "flops_per_token": per_sample / seq_len,
        "counted": {"flops_per_token": None, "agrees": None, "reason": "not asked"},
        "measured": None,
        "measured_reason": "not asked",
    }


def count(rows: Sequence[dict[str, Any]], paths: Sequence[str]) -> None:
    if not (probe.importable("torch") and probe.importable("trainwright.train.flops")):
        for row in rows:
            row["counted"]["reason"] = "torch or the reference trainer is not in this copy"
        return
    keys = ("name", "modality", "regime", "variant", "seq_len")
    request = {"members": [{**{key: row[key] for key in keys}, "model": path} for row, path in zip(rows, paths, strict=True)]}
    found = _ask(request, _SECONDS_PER_MEMBER * (1 + len(rows)))
    for row in rows:
        _add(row, found.get(row["name"], {"error": "no answer"}))


def _ask(request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    argv = [sys.executable, "-m", "trainwright.train.flops"]
    try:
        with probe.environment(probe.python_variables()):
            done = subprocess.run(
                argv, input=json.dumps(request).encode(), capture_output=True, timeout=timeout_s, cwd=probe.library_root()
            )
        answer: dict[str, Any] = json.loads(done.stdout.decode("utf-8", "replace").strip().splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired) as problem:
        answer = {member["name"]: {"error": type(problem).__name__} for member in request["members"]}
    except (ValueError, IndexError):
        said = (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no answer"])[-1][:200]
        answer = {member["name"]: {"error": said} for member in request["members"]}
    return answer


def _add(row: dict[str, Any], found: dict[str, Any]) -> None:
    if "error" in found:
        row["counted"]["reason"] = str(found["error"])
        return
    whole, mine = float(found["flops_per_sample"]), float(row["flops_per_sample"])
    agrees = abs(whole - mine) <= AGREE * mine if row["flops_rule"] == DEFAULT else None
    reason = "" if agrees is not None else f"the counter counts by rule {DEFAULT}, not {row['flops_rule']}"
    row["counted"] = {"flops_per_token": whole / row["seq_len"], "agrees": agrees, "reason": reason}
    parts = found["params"]
    if row["modality"] != "text":
        row["params"]["total"] = parts["total"]
        row["params"]["nonembedding"] = parts["total"] - row["params"]["embedding"] - row["params"]["head"]
        row["params"]["encoder"] = parts["encoder"]
    row["params"]["trainable"] = parts["trainable"]


def read_calibration(path: str) -> list[dict[str, Any]]:
    from trainwright.document import load_mapping

    place = os.path.join(path, "calibration.json") if Path(path).is_dir() else path
    value = load_mapping(place, "json").value
    rows = value.get("members")
    if value.get("schema") != SCHEMA or not isinstance(rows, list) or not rows:
        raise UserError(f"{place}: is no calibration; `isoflop calibrate --output-json FILE` writes one")
    for number, row in enumerate(rows, 1):
        if problem := shapes.wrong(row, shapes.MEMBER, shapes.MEMBER_MAY):
            raise UserError(f"{place}: member {number}: {problem}")
    return rows
