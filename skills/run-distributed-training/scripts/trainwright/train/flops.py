# train/flops.py without its comments
from __future__ import annotations

import json
import sys
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from trainwright.errors import UserError
from trainwright.model import load_model
from trainwright.train import models, projected, signals
from trainwright.train.data import Batch


def count(member: dict[str, Any]) -> dict[str, Any]:
    modality = str(member.get("modality") or "text")
    spec = load_model(member["model"])
    if modality != "text":
        spec = projected.with_variant(spec, str(member.get("variant") or ""))
    model = models.build(spec, modality, str(member.get("regime") or "e2e"))
    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH):
        loss: Tensor = model(sample(modality, int(member["seq_len"])))
        loss.backward()
    return {"flops_per_sample": counter.get_total_flops(), "params": models.counts(model)}


def sample(modality: str, seq_len: int) -> Batch:
    ids = torch.zeros(1, seq_len, dtype=torch.int64, device="meta")
    if modality == "text":
        return Batch(ids, ids, (), seq_len)
    shard = signals.make_shard(modality, 0, 0, seq_len)
    like = shard.ids[:1].to("meta")
    return Batch(like, shard.labels[:1].to("meta"), tuple(signal[:1].to("meta") for signal in shard.signals), seq_len)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for member in request["members"]:
        try:
            found[member["name"]] = count(member)
        except (UserError, NotImplementedError, RuntimeError) as problem:
            found[member["name"]] = {"error": f"{type(problem).__name__}: {' '.join(str(problem).split())[:300]}"}
    return found


if __name__ == "__main__":
    print(json.dumps(answer(json.load(sys.stdin))))
