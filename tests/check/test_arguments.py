"""The rules on the Trainer's arguments against the real TrainingArguments: drawn arguments are refused by both or by none."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainwright.check.judge import judge
from trainwright.check.subject import Context
from trainwright.report import Severity

CHOICES: dict[str, list[Any]] = {
    "fp16": [True, False],
    "bf16": [True, False],
    "fp16_full_eval": [True, False],
    "bf16_full_eval": [True, False],
    "save_strategy": ["no", "steps", "epoch", "best", "stpes", False],
    "eval_strategy": ["no", "steps", "epoch", "epochs", False],
    "load_best_model_at_end": [True, False],
    "save_steps": [100, 200, 500, 0.1],
    "eval_steps": [100, 300, None, 0.1],
    "logging_steps": [10, 500, 100],
    "optim": ["adamw_torch", "adamw_tourch", "sgd", "adamw_hf"],
    "lr_scheduler_type": ["cosine", "linaer", "linear", "reduce_lr_on_plateau"],
    "dataloader_num_workers": [0, 4],
    "dataloader_prefetch_factor": [2],
    "warmup_steps": [0, 10, -1],
    "hub_strategy": ["end", "evry_save"],
}
ORACLE = """
import json, sys
from transformers import TrainingArguments
for line in sys.stdin:
    try:
        TrainingArguments(**json.loads(line))
        print("")
    except Exception as problem:
        print(str(problem).split("\\n")[0][:200])
"""


def drawn(count: int) -> list[dict[str, Any]]:
    numbers = random.Random(5)
    found = []
    for _ in range(count):
        values: dict[str, Any] = {"output_dir": "out", "per_device_train_batch_size": 1, "report_to": "none", "use_cpu": True}
        for name in numbers.sample(sorted(CHOICES), numbers.randint(1, 4)):
            values[name] = numbers.choice(CHOICES[name])
        found.append(values)
    return found


def refused(values: dict[str, Any], path: Path) -> list[str]:
    path.write_text(json.dumps(values))
    report = judge([str(path)], Context())
    return [f.message for f in report.findings if f.rule.startswith("TRN") and f.severity is not Severity.INFO]


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_the_real_training_arguments_agree(tmp_path: Path) -> None:
    cases = drawn(400)
    lines = "".join(json.dumps(values) + "\n" for values in cases)
    done = subprocess.run([sys.executable, "-c", ORACLE], input=lines, capture_output=True, text=True, timeout=300)
    answers = done.stdout.split("\n")[: len(cases)]
    assert sum(map(bool, answers)) > 50, done.stderr
    for values, answer in zip(cases, answers, strict=True):
        assert bool(refused(values, tmp_path / "args.json")) == bool(answer), (values, answer)
