"""HSDP in an Accelerate file: what it becomes, what is refused, and that the real Accelerate says the same."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from trainwright.document import parse
from trainwright.emit.accelerate import read
from trainwright.errors import UserError
from trainwright.strategy import Strategy

V2 = "fsdp_config: {fsdp_version: 2}\n"
R, S, T, C = (f"parallelism_config_{name}" for name in ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_backend"))


def fsdp(block: str, ranks: int = 8, rest: str = V2) -> str:
    return f"distributed_type: FSDP\nnum_processes: {ranks}\n{rest}parallelism_config: {{{block}}}\n"


def ddp(block: str, ranks: int = 8) -> str:
    return f"distributed_type: MULTI_GPU\nnum_processes: {ranks}\nparallelism_config: {{{block}}}\n"


READ: dict[str, tuple[str, Strategy]] = {
    "two copies": (fsdp(f"{R}: 2, {S}: 4"), Strategy("fsdp", replicas=2)),
    "quoted sizes": (fsdp(f"{R}: '4', {S}: '2'"), Strategy("fsdp", replicas=4)),
    "one copy": (fsdp(f"{S}: 8"), Strategy("fsdp")),
    "keys without their prefix are not read": (fsdp("dp_replicate_size: 2, " + f"{S}: 8"), Strategy("fsdp")),
    "copies without shards": (ddp(f"{R}: 8"), Strategy("ddp")),
    "an empty block": (fsdp(""), Strategy("fsdp")),
}
REFUSED: dict[str, tuple[str, str]] = {
    "a product that is not the ranks": (fsdp(f"{R}: 2, {S}: 2"), "dp_replicate_size 2 x dp_shard_size 2 = 4 is not num_processes 8"),
    "nothing to shard over": (fsdp(f"{R}: 8"), "nothing to shard over"),
    "FSDP1": (fsdp(f"{R}: 2, {S}: 4", rest=""), "Accelerate refuses it with fsdp_version 1"),
    "minus one": (fsdp(f"{S}: -1"), "-1 is no number of ranks"),
    "no number": (fsdp(f"{R}: two, {S}: 4"), '"two" is no number of ranks'),
    "null": (fsdp(f"{R}: null, {S}: 8"), "null is no number of ranks"),
    "another backend": (fsdp(f"{S}: 8, {C}: ring"), "write torch"),
    "a product under DDP": (ddp(f"{R}: 4"), "= 4 is not num_processes 8"),
}
OURS_ALONE: dict[str, tuple[str, str]] = {  # Accelerate runs it, the reference trainer does not
    "tensor parallel": (fsdp(f"{T}: 2, {S}: 4"), "2 is not supported by the reference trainer yet"),
    "shards under DDP": (ddp(f"{S}: 8"), "needs distributed_type FSDP"),
}


@pytest.mark.parametrize("name", READ)
def test_what_a_mesh_becomes(name: str) -> None:
    text, strategy = READ[name]
    found = read(parse(text, "a.yaml", "yaml"))
    assert found.strategy == strategy
    keys = {use.key for use in (*found.applied, *found.not_applied)}
    assert len(keys) == len(found.applied) + len(found.not_applied), "each key has one answer"


@pytest.mark.parametrize("name", REFUSED | OURS_ALONE)
def test_what_is_refused_names_its_key(name: str) -> None:
    text, words = (REFUSED | OURS_ALONE)[name]
    with pytest.raises(UserError, match=words) as caught:
        read(parse(text, "a.yaml", "yaml"))
    assert "parallelism_config" in str(caught.value) and str(caught.value).startswith("a.yaml:")


def test_fsdp1_hybrid_sharding_copies_over_machines() -> None:
    wrap = "fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, fsdp_transformer_layer_cls_to_wrap: A"
    for name, reshard in (("HYBRID_SHARD", True), ("HYBRID_SHARD_ZERO2", False), ("_HYBRID_SHARD_ZERO2", False)):
        text = f"distributed_type: FSDP\nnum_processes: 8\nnum_machines: 2\nfsdp_config: {{fsdp_sharding_strategy: {name}, {wrap}}}\n"
        assert read(parse(text, "a.yaml", "yaml")).strategy == Strategy("fsdp", reshard, ("A",), replicas=2)
        alone = read(parse(text.replace("num_machines: 2", "num_machines: 1"), "a.yaml", "yaml"))
        assert alone.strategy.name == ("fsdp_full_shard" if reshard else "fsdp_shard_grad_op")
    with pytest.raises(UserError, match="num_machines: 8 ranks cannot be divided by 3"):
        read(parse(text.replace("num_machines: 2", "num_machines: 3"), "a.yaml", "yaml"))


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed")
def test_accelerate_itself_says_the_same(tmp_path: Path) -> None:
    wanted: dict[Path, tuple[str, Strategy | None]] = {}
    for index, (name, text, strategy) in enumerate(
        [(n, t, s) for n, (t, s) in READ.items()]
        + [(n, t, None) for n, (t, _) in REFUSED.items()]
        + [(n, t, Strategy("ddp")) for n, (t, _) in OURS_ALONE.items()]
    ):
        path = tmp_path / f"{index}.yaml"
        path.write_text(text)
        wanted[path] = (name, strategy)
    argv = [sys.executable, str(Path(__file__).parent / "accelerate_oracle.py"), *map(str, wanted)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == len(wanted), done.stderr
    for row in rows:
        name, strategy = wanted[Path(row["path"])]
        assert bool(row["error"]) == (strategy is None), (name, row)
        if name in READ and strategy and row["parallelism"] and strategy.kind == "fsdp":
            assert row["parallelism"]["replicate"] == strategy.replicas, (name, row)
            assert row["parallelism"]["shard"] * strategy.replicas == 8
