"""The generated tables: they agree with each other and, where the same releases are installed, with what the script writes today."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from trainwright.check.facts import before, release, table
from trainwright.emit.accelerate_file import table as keys

TOOL = Path(__file__).resolve().parents[2] / "tools" / "backend_tables.py"
PACKAGES = {"accelerate": "accelerate", "deepspeed": "deepspeed", "arguments": "transformers"}


def test_every_key_of_a_block_is_an_argument_of_the_launcher() -> None:
    known = {*table("accelerate")["flags"], "fsdp_ignored_modules", "bind-to"}
    assert not {key for block in keys()["blocks"].values() for key in block} - known
    assert table("accelerate")["version"] == keys()["accelerate"]


def test_every_variable_of_the_launcher_has_a_reader() -> None:
    readers = table("accelerate")["readers"]
    written = {
        row[0] for rows in table("accelerate")["environment"].values() for row in rows if not row[0].startswith(("CUDA_", "MASTER_"))
    }
    assert written - {*readers} == set()


def test_defaults_are_values_of_their_own_types() -> None:
    kinds: dict[str, tuple[type, ...]] = {"bool": (bool,), "int": (int, str), "float": (int, float), "str": (str,)}
    for block, rows in table("deepspeed")["blocks"].items():
        for key, row in rows.items():
            if row[0] in kinds:
                assert isinstance(row[1], kinds[row[0]]), (block, key, row)


def test_releases_are_compared_by_number() -> None:
    assert before("1.9.0", "1.10") and not before("1.10.0", "1.10") and before("4.34.0.dev0", "4.34") and not before("0.16", "0.9.5")
    assert release("v1.2rc1") == (1, 2, -1) and release("") == (-1,)


@pytest.mark.long
@pytest.mark.skipif(any(importlib.util.find_spec(name) is None for name in PACKAGES.values()), reason="a backend is not installed")
def test_the_script_writes_what_is_committed() -> None:
    same = {name for name, package in PACKAGES.items() if table(name)["version"] == importlib.metadata.version(package)}
    done = subprocess.run([sys.executable, str(TOOL), "--check"], capture_output=True, text=True, timeout=300)
    changed = set(done.stdout.strip().splitlines()[-1].removeprefix("changed:").split()) if done.returncode else set()
    assert not changed & same, done.stdout
