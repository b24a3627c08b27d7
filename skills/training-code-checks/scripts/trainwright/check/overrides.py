# check/overrides.py without its comments
from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from trainwright.check.flags import scalar
from trainwright.check.subject import Command
from trainwright.document import Spoken
from trainwright.report import Location

_OVERRIDE = re.compile(r"^(?:\+\+?)?([A-Za-z_]\w*(?:\.\w+)+)=(.*)$", re.DOTALL)
_DEEPEST = 12
_MOST = 400


def document_of(values: dict[str, Any], origin: str, where: Location | None) -> Spoken:
    return Spoken(origin, "", "line", values, {}, [], where or Location(origin))


def overrides_of(words: Iterable[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _, match in zip(range(_MOST), filter(None, map(_OVERRIDE.match, words)), strict=False):
        *path, last = match[1].split(".")
        inner = found
        for part in path[:_DEEPEST]:
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                break
        else:
            inner[last] = None if match[2] in ("null", "None", "") else scalar(match[2])
    return found


def ranks_of_verl(values: Mapping[str, Any]) -> int | None:
    trainer = values.get("trainer")
    counts = [trainer.get(key) for key in ("n_gpus_per_node", "nnodes")] if isinstance(trainer, dict) else [None]
    numbers = [count for count in counts if isinstance(count, int) and 0 < count < 10**6]
    return numbers[0] * numbers[1] if len(numbers) == 2 else None


def is_openrlhf(command: Command) -> bool:
    return command.script.replace("/", ".").startswith("openrlhf.cli.train_")


def deepspeed_of_openrlhf(flags: Mapping[str, Any]) -> dict[str, Any]:
    stage = flags.get("zero_stage", 2)
    zero: dict[str, Any] = {"stage": stage, "overlap_comm": flags.get("overlap_comm") is True}
    zero["stage3_gather_16bit_weights_on_model_save"] = stage == 3
    if flags.get("adam_offload") is True:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if type(flags.get("zpg")) is int and flags["zpg"] > 1:
        zero["zero_hpz_partition_size"] = flags["zpg"]
    clip = flags.get("max_norm", 1.0)
    precision = flags.get("param_dtype", "bf16" if flags.get("bf16") is True else "")
    config: dict[str, Any] = {"zero_optimization": zero, "gradient_clipping": clip, "steps_per_print": 100}
    config["bf16"] = {"enabled": precision == "bf16", "check_grad_overflow": True}
    apart = any(flags.get(flag, 1) != 1 for flag in ("ring_attn_size", "ds_tensor_parallel_size"))
    if apart or not {"micro_train_batch_size", "train_batch_size"} <= {*flags}:
        return config | {"train_micro_batch_size_per_gpu": 1}
    return config | {"train_micro_batch_size_per_gpu": flags["micro_train_batch_size"], "train_batch_size": flags["train_batch_size"]}
