"""Runs a job through the launcher in a process of its own, for tests that signal the launcher: drive.py JOB RUN_DIR WORKER."""

from __future__ import annotations

import sys

from trainwright.job import read
from trainwright.launch.torchrun import run

if __name__ == "__main__":
    outcome = run(read(sys.argv[1]), sys.argv[2], worker=sys.argv[3])
    print(outcome.status, flush=True)
