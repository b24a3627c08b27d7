"""What each command loads: never torch and its like, and not even PyYAML before a YAML file is read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trainwright.cli import COMMANDS

HEAVY = ("torch", "numpy", "rich", "jsonschema", "accelerate", "deepspeed", "transformers", "psutil", "trainwright.train")
MODEL = "helpers/trainwright/models/llama-demo/config.json"
CALLS = {
    "check": ["MODEL"],
    "explain": ["ACC001"],
    "rules": [],
    "estimate": ["--model", "MODEL", "--devices", "4"],
    "advise": ["--model", "MODEL", "--devices", "4", "--memory", "1GiB"],
    "plan": ["--help"],
    "launch": ["--help"],
    "isoflop": ["--help"],
    "diagnose": ["."],
    "doctor": ["--from", "MODEL"],
    "demo": ["--help"],
    "skills": ["--help"],
}


def loaded(root: Path, command: str, *arguments: str) -> set[str]:
    """The top-level modules (and trainwright's own) in the process after a command has answered."""
    code = "import sys; from trainwright.cli import main; main(sys.argv[1:]); sys.stderr.write('\\nLOADED ' + ' '.join(sys.modules))"
    argv = [sys.executable, "-c", code, command, *(a.replace("MODEL", MODEL) for a in arguments)]
    done = subprocess.run(argv, cwd=root, env={"PYTHONPATH": "helpers"}, capture_output=True, text=True, timeout=60)
    assert "a fault of ours" not in done.stderr
    return set(done.stderr.rpartition("LOADED ")[2].split())


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_loads_heavy_packages(root: Path, command: str) -> None:
    modules = loaded(root, command, *CALLS[command])
    assert COMMANDS[command].face in modules
    assert not modules & set(HEAVY)


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - {"skills"}))
def test_json_needs_no_pyyaml(root: Path, command: str) -> None:
    assert "yaml" not in loaded(root, command, *CALLS[command])


def test_the_root_loads_no_face(root: Path) -> None:
    faces = {command.face for command in COMMANDS.values()}
    assert not loaded(root, "--version") & faces
