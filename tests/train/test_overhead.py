"""What writing costs: counted, not timed; `ranks/overhead.py` prints the CPU time too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")


@pytest.mark.long
def test_a_step_is_one_line_and_a_beat_a_phase(paths: None) -> None:
    argv = [sys.executable, "-W", "ignore", str(Path(__file__).parent / "ranks" / "overhead.py"), "3"]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["lines_per_step"] == 1 and found["beats_per_step"] < 5 and found["waits_per_step"] < 5
    assert found["writing_cpu_s"] > 0 and found["step_cpu_s"] > 0
