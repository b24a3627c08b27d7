"""Whatever bytes a file holds, `check` ends with 0, 1 or 2, says one clear thing, and never shows a traceback."""

from __future__ import annotations

import contextlib
import io
import json
import random
from pathlib import Path

import pytest

from trainwright.cli import main

ENVELOPE = ["schema", "command", "version", "status", "counts", "findings", "inferred", "not_checked", "data", "truncated"]
FSDP = """\
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: FSDP
downcast_bf16: 'no'
fsdp_config:
  fsdp_activation_checkpointing: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_cpu_ram_efficient_loading: true
  fsdp_forward_prefetch: false
  fsdp_offload_params: false
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_sync_module_states: true
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
  fsdp_use_orig_params: true
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 8
rdzv_backend: static
same_network: true
use_cpu: false
"""
FSDP2 = """\
# two anchors, a merge and a flow mapping
x: &base {fsdp_version: 2, fsdp_reshard_after_forward: false}
distributed_type: FSDP
num_processes: 4
mixed_precision: 'no'
fsdp_config:
  <<: *base
  fsdp_auto_wrap_policy: NO_WRAP
"""
DDP = "distributed_type: MULTI_GPU\ngpu_ids: 0,1\nnum_processes: 2\nmixed_precision: no\ndynamo_config: {dynamo_backend: INDUCTOR}\n"
DEEPSPEED = json.dumps({"train_batch_size": "auto", "bf16": {"enabled": True}, "zero_optimization": {"stage": 3}}, indent=2)
ACCELERATE_JSON = json.dumps({"distributed_type": "FSDP", "num_processes": 2, "fsdp_config": {"fsdp_version": 2}})
MODEL = json.dumps({"model_type": "llama", "hidden_size": 384, "num_hidden_layers": 8, "rope_scaling": None})
TOML = '[model]\nname = "llama"\n[[stage]]\nsize = 1\n[training]\nsteps = 10\nprompt = """\na = 1\n"""\n'
SEEDS = [
    (".yaml", FSDP),
    (".yaml", FSDP2),
    (".yaml", DDP),
    (".json", DEEPSPEED),
    (".json", ACCELERATE_JSON),
    (".json", MODEL),
    (".toml", TOML),
]
ODD = [
    *("null", "~", "no", "true", "''", "'2'", "1e8", "0", "-1", "3.5", ".nan", "-.inf", "9" * 5000, "[]", "{}", "[a, b]", "{a: 1}"),
    *("2024-01-01", "2024-99-99", "1:60:99", "!!set {a}", "!!omap [a: 1]", "!!binary aGk=", "!!binary '@'", "!!int ''", "!!bool maybe"),
    *("!!timestamp x", "!!python/object:os.system {}", "&a [*a]", "*none", "'A, B'", "'\ud83d\ude00'", '"\\ud800"', '"\\e[31m"'),
    *("|\n  text", "=", "<<", "[[1]]", "FSDP", "fsdp", "DEEPSPEED", "MULTI_CPU", "XLA", "TPU", "HYBRID_SHARD", "SIZE_BASED_WRAP"),
    *("LOCAL_STATE_DICT", "fp8", "fp32", "2", "3", "[{2024-01-01: {.nan: 1}}]"),
]
SPLICES = [
    b"\x00",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\xc3",
    b"\t",
    b"\r\n",
    b"\x1b[2J",
    b"\x85",
    b"\xe2\x80\xa8",
    b": ",
    b"- ",
    b"{",
    b"[",
    b"]",
    b"}",
    b'"',
]
SPLICES += [
    b"'",
    b"#",
    b"&a ",
    b"*a",
    b"!!",
    b"%",
    b"---\n",
    b"...\n",
    b"? ",
    b"|\n",
    b">",
    b",",
    b"\\",
    b"\\u12",
    b"<<: ",
    b"@",
    b"`",
    b"[" * 100,
    b"a: {" * 70,
]
OPTIONS = [
    [],
    ["--world-size", "4"],
    ["--device", "cpu"],
    ["--device", "cuda", "--world-size", "1"],
    ["--limit", "1"],
    ["--fail-on", "info"],
]


def mutated(rng: random.Random) -> tuple[str, bytes]:
    """The suffix and the bytes of a real-ish config after a few changes: to values, to lines, or to bytes."""
    suffix, text = rng.choice(SEEDS)
    lines = text.split("\n")
    for _ in range(rng.randint(0, 3)):
        _change_line(lines, rng)
    raw = "\n".join(lines).encode("utf-8", "surrogatepass")
    for _ in range(rng.choice([0, 0, 0, 1, 2, 5])):
        raw = _change_bytes(raw, rng)
    return (rng.choice([".yaml", ".json", ".toml", ""]) if rng.random() < 0.1 else suffix), raw


def _change_line(lines: list[str], rng: random.Random) -> None:
    at = rng.randrange(len(lines))
    line = lines[at]
    kind = rng.randrange(5)
    if kind < 3 and ":" in line:
        lines[at] = f"{line.split(':')[0]}: {rng.choice(ODD)}"
    elif kind == 3:
        lines.insert(at, line)
    elif len(lines) > 1:
        lines.pop(at)


def _change_bytes(raw: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(raw) + 1)
    kind = rng.randrange(5)
    if kind == 0:
        return raw[:at]
    if kind == 1:
        return raw[:at] + raw[at + rng.randint(1, 20) :]
    if kind == 2:
        return raw[:at] + bytes([rng.randrange(256)]) + raw[at + 1 :]
    if kind == 3:
        return raw[:at] + raw[at : at + 40] * 2 + raw[at + 40 :]
    return raw[:at] + rng.choice(SPLICES) + raw[at:]


def judge(path: Path, options: list[str]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["check", str(path), *options])
    return code, out.getvalue(), err.getvalue()


def fuzz(folder: Path, seed: int, rounds: int) -> dict[int, int]:
    rng = random.Random(seed)
    codes: dict[int, int] = {}
    for number in range(rounds):
        suffix, raw = mutated(rng)
        path = folder / f"config{suffix}"
        path.write_bytes(raw)
        options = rng.choice(OPTIONS)
        code, out, err = judge(path, [*options, "--format", "json"] if number % 2 else options)
        assert code in (0, 1, 2), f"exit {code} for seed {seed}, round {number}: {raw!r} {err}"
        assert "Traceback" not in out + err and "fault of ours" not in err, raw
        assert not number % 2 or list(json.loads(out)) == ENVELOPE, raw
        codes[code] = codes.get(code, 0) + 1
    return codes


@pytest.mark.parametrize("seed", range(4))
def test_mutated_files_end_with_a_documented_exit(tmp_path: Path, seed: int) -> None:
    codes = fuzz(tmp_path, seed, 250)
    assert set(codes) == {0, 1, 2}, "the mutations reach every outcome"


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 110))
def test_many_more_mutated_files(tmp_path: Path, seed: int) -> None:
    assert sum(fuzz(tmp_path, seed, 3000).values()) == 3000


@pytest.mark.parametrize("seed", range(2))
def test_random_bytes_are_no_config(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    for number in range(150):
        path = tmp_path / rng.choice(["x.yaml", "x.json", "x.toml"])
        path.write_bytes(rng.randbytes(rng.randint(0, 200)))
        code, _, err = judge(path, [])
        assert code in (0, 1, 2), (number, path.read_bytes(), err)
