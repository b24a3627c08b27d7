"""Generated configs, judged by us and by the installed accelerate and deepspeed: what one refuses the other refuses, and so on."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainwright.check import hjson
from trainwright.check.deepspeed_file import batch_problem, problems
from trainwright.check.judge import judge
from trainwright.check.launcher import environment, merge, torchrun
from trainwright.check.subject import Context
from trainwright.document import parse
from trainwright.emit.accelerate_file import accelerate_file

HERE = Path(__file__).parent
PREFIXES = ("ACCELERATE_", "FSDP_", "MEGATRON_LM_", "PARALLELISM_CONFIG_", "XLA_", "MASTER_")
STAGES = ("parse", "launcher", "plugin", "engine start")
NEEDED = ("accelerate", "deepspeed")

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(any(importlib.util.find_spec(name) is None for name in NEEDED), reason="accelerate or deepspeed is not installed"),
]


@pytest.fixture(scope="module")
def generated() -> Any:
    spec = importlib.util.spec_from_file_location("generated", HERE / "generated.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def oracle(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The verdicts of the real libraries, from one warm process."""
    text = "".join(json.dumps(line) + "\n" for line in lines)
    done = subprocess.run([sys.executable, str(HERE / "backend_oracle.py")], input=text, capture_output=True, text=True, timeout=900)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == len(lines), done.stderr[-2000:]
    return rows


def test_deepspeed(generated: Any) -> None:
    """DeepSpeedConfig accepts a config exactly where we find no problem in it."""
    rng = random.Random(20)
    lines = [{"deepspeed": generated.deepspeed(rng), "world": rng.choice([1, 2, 4, 8]), "how": "raw"} for _ in range(1000)]
    wrong, refused = [], 0
    for line, row in zip(lines, oracle(lines), strict=True):
        found = [*problems(line["deepspeed"]), *filter(None, [batch_problem(line["deepspeed"], line["world"])])]
        refused += bool(row["stage"])
        if bool(found) != bool(row["stage"]):
            wrong.append((line, row, found))
    assert not wrong[:3], len(wrong)
    assert 200 < refused < 900, "both verdicts are tried"


def test_accelerate(generated: Any, tmp_path: Path) -> None:
    """Accelerate stops at the stage that our errors name, and where it does not the workers get the environment that we work out."""
    rng = random.Random(21)
    lines: list[dict[str, Any]] = []
    for number in range(1000):
        path = tmp_path / f"{number}.yaml"
        path.write_text(yaml.safe_dump(generated.accelerate(rng), sort_keys=False))
        lines.append({"accelerate": str(path), "cli": rng.choice([[], [], ["--num_processes", "4"], ["--mixed_precision", "bf16"]])})
    wrong: list[Any] = []
    stages = set()
    for line, row in zip(lines, oracle(lines), strict=True):
        context = Context(cli=tuple(line["cli"]))
        stage = stage_of(line["accelerate"], context)
        stages.add(row["stage"])
        if stage != row["stage"]:
            wrong.append((Path(line["accelerate"]).read_text(), line["cli"], row["stage"], row["error"], stage))
        elif not stage and (difference := environment_differs(line, row)):
            wrong.append((Path(line["accelerate"]).read_text(), line["cli"], difference))
    assert not wrong[:3], len(wrong)
    assert stages == {"", *STAGES}


def stage_of(path: str, context: Context) -> str:
    """The first stage at which our findings say that the job stops."""
    findings = judge([path], context).findings
    # Right where the command line gives the count, which our own rule tells as information.
    stops = {f.fails_at for f in findings if f.severity.word == "error" or f.message.startswith("num_processes is missing")}
    return next((stage for stage in STAGES if stage in stops), "")


def environment_differs(line: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    text = Path(line["accelerate"]).read_text()
    flag = line["cli"]
    typed = {flag[0][2:]: int(flag[1]) if flag[1].isdecimal() else flag[1]} if flag else {}
    launch = merge(accelerate_file(parse(text, "x.yaml", "yaml")), typed)
    ours = {name: value for name, (value, _) in environment(launch).items() if name.startswith(PREFIXES)}
    theirs = row["env"] | {f"torchrun.{k}": str(v) for k, v in row.get("torchrun", {}).items() if k not in ("rdzv_backend", "node_rank")}
    ours |= {f"torchrun.{k}": v for k, v in torchrun(launch).items() if k not in ("rdzv_backend", "node_rank")}
    return {name: (ours.get(name), theirs.get(name)) for name in {*ours, *theirs} if ours.get(name) != theirs.get(name)}


def test_hjson(generated: Any) -> None:
    """Our reader of DeepSpeed's format takes what hjson takes, as the same values."""
    real = pytest.importorskip("hjson")
    rng = random.Random(22)
    accepted = 0
    for text in [generated.hjson_text(rng) for _ in range(3000)]:
        try:
            theirs = real.loads(text, object_pairs_hook=dict)
        except real.HjsonDecodeError:
            with pytest.raises(hjson.HjsonError):
                hjson.loads(text)
            continue
        accepted += 1
        assert hjson.loads(text)[0] == theirs, text
    assert 500 < accepted < 3000
