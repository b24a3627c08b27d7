#!/usr/bin/env python3
"""What `check` costs beside the bare imports that it cannot do without, and beside the libraries that it stands for.

usage: PYTHONPATH=helpers python3 tools/bench_check.py [--repeats 15] [FOLDER]

All in CPU seconds of child processes (getrusage), in pairs that take turns, so that a busy machine disturbs both alike; the median of the
pairs counts. FOLDER is a collection of real configs as score_configs.py reads it; without one, as many small files are made. Bars stand
beside what was measured; the exit code is 1 where one is missed. Accelerate and DeepSpeed are compared where this interpreter has both.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from trainwright.probe import importable

ROOT = Path(__file__).resolve().parents[1]
CONFIG = """compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_processes: 8
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
  fsdp_state_dict_type: SHARDED_STATE_DICT
"""
DEEPSPEED = """{"train_micro_batch_size_per_gpu": "auto", "gradient_clipping": 1.0, "bf16": {"enabled": "auto"},
 "zero_optimization": {"stage": 3, "overlap_comm": true, "stage3_gather_16bit_weights_on_model_save": true}}
"""
FILES = 205
IMPORTS = [sys.executable, "-c", "import yaml, json, argparse"]
LIBRARIES = [sys.executable, "-c", "import accelerate, deepspeed"]


def cpu_of(argv: list[str]) -> float:
    """User and system seconds of one child."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode not in (0, 1, 2):
        sys.exit(f"{' '.join(argv)[:200]} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def in_pairs(one: list[str], other: list[str], repeats: int) -> tuple[float, float, float, float]:
    """Median seconds of both, and the median ratio and difference of `one` to `other` over pairs that take turns."""
    cpu_of(one), cpu_of(other)  # files into the cache, bytecode written
    pairs = [(cpu_of(one), cpu_of(other)) for _ in range(repeats)]
    ratio = statistics.median(a / b for a, b in pairs)
    difference = statistics.median(a - b for a, b in pairs)
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs), ratio, difference


def peak_mib(argv: list[str]) -> float:
    """The largest resident memory of one child, told by a parent that has no other."""
    code = (
        "import resource, subprocess, sys\n"
        "subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    told = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, check=True).stdout
    return int(told) / (1024 if sys.platform != "darwin" else 1024**2)


def tree(folder: str | None, scratch: Path) -> Path:
    """The folder to walk: the collection laid out, or as many small files as it holds."""
    target = scratch / "tree"
    target.mkdir()
    if folder:
        spec = importlib.util.spec_from_file_location("score_configs", ROOT / "tools" / "score_configs.py")
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.lay_out(Path(folder), target)
        return target
    for number in range(FILES):
        if number % 3:
            (target / f"ds_{number}.json").write_text(DEEPSPEED)
        else:
            (target / f"fsdp_{number}.yaml").write_text(CONFIG)
    return target


def main() -> int:
    parser = argparse.ArgumentParser(description="What check costs, in CPU seconds of its processes, beside its bars.")
    parser.add_argument("folder", nargs="?", help="a collection of configs with index.csv, such as the one that score_configs.py reads")
    parser.add_argument("--repeats", type=int, default=15, metavar="N", help="pairs of each comparison (default 15)")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    check = [sys.executable, str(ROOT / "scripts" / "check.py")]
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        (scratch / "fsdp.yaml").write_text(CONFIG)
        one = [*check, str(scratch / "fsdp.yaml")]
        whole = [*check, str(tree(options.folder, scratch))]
        missed = [
            _told("one file / importing yaml, json, argparse", in_pairs(one, IMPORTS, options.repeats), 3.0),
            _bar("peak memory of one file", peak_mib(one), 25.0, "MiB"),
            _more("the tree of files - one file", in_pairs(whole, one, max(options.repeats // 3, 3)), 0.5),
            *_libraries(one, max(options.repeats // 3, 3)),
        ]
    return int(any(missed))


def _libraries(one: list[str], repeats: int) -> list[bool]:
    if not (importable("accelerate") and importable("deepspeed")):
        print("importing accelerate and deepspeed   not compared: this interpreter does not have both")
        return []
    theirs, ours, ratio, _ = in_pairs(LIBRARIES, one, repeats)
    good = ratio >= 15
    print(f"{'importing accelerate and deepspeed / one file':46} {theirs:.3f} s / {ours:.3f} s = {ratio:6.1f}   at least 15 {_word(good)}")
    return [not good]


def _told(name: str, measured: tuple[float, float, float, float], bar: float) -> bool:
    one, other, ratio, _ = measured
    print(f"{name:46} {one:.3f} s / {other:.3f} s = {ratio:6.2f}   at most {bar:g} {_word(ratio <= bar)}")
    return ratio > bar


def _more(name: str, measured: tuple[float, float, float, float], bar: float) -> bool:
    whole, one, _, difference = measured
    print(f"{name:46} {whole:.3f} s - {one:.3f} s = {difference:6.2f} s at most {bar:g} {_word(difference <= bar)}")
    return difference > bar


def _bar(name: str, value: float, bar: float, unit: str) -> bool:
    print(f"{name:46} {value:19.1f} {unit}   at most {bar:g} {_word(value <= bar)}")
    return value > bar


def _word(good: bool) -> str:
    return "" if good else "MISSED"


if __name__ == "__main__":
    sys.exit(main())
