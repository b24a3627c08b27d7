"""A small real worker for tests: gloo ranks that all-reduce, write perf lines, and commit one fault on demand.

FAULT is "RANK:WHAT@STEP", as "1:raise@3"; STEPS and STEP_S say how long the job is. Started by torchrun.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FAULT = os.environ.get("FAULT", "")


def commit(what: str) -> None:
    """Do what the test asked this rank to do."""
    if what == "raise":
        raise ValueError("bad shard 7")
    if what == "exit":
        os._exit(3)
    if what == "return":
        sys.exit(0)
    if what == "hang":
        sleep_for_ever()
    if what == "allocate":
        allocate()
    if what in ("SIGKILL", "SIGSEGV", "SIGABRT"):
        os.kill(os.getpid(), getattr(signal, what))


def sleep_for_ever() -> None:
    while True:
        time.sleep(60)


def allocate() -> None:
    """A real host allocation that a real limit refuses."""
    import resource

    import torch

    resource.setrlimit(resource.RLIMIT_DATA, (2**30, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    torch.empty(2**32, dtype=torch.uint8)


def main() -> None:
    rank = int(os.environ["RANK"])
    who, _, rest = FAULT.partition(":")
    what, _, when = rest.partition("@")
    at = int(when or 0) if who == str(rank) else -1
    if at == 0:
        commit(what)
    import torch
    from torch import distributed as dist

    from trainwright.train import watchdog

    job = json.loads(Path(sys.argv[sys.argv.index("--job") + 1]).read_text(encoding="utf-8"))
    watchdog.start(lambda exception, message: None, interval_s=0.3)
    if os.environ.get("STUBBORN"):
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.environ.get("GRANDCHILD"):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    dist.init_process_group("gloo")
    with open(Path(job["run_dir"], "perf", f"rank{rank}.jsonl"), "w", encoding="utf-8") as file:
        write(file, kind="header", rank=rank, world_size=dist.get_world_size(), pid=os.getpid(), device="cpu", job=job)
        for step in range(1, job["steps"] + 1):
            if step == at:
                commit(what)
            start = time.perf_counter()
            dist.all_reduce(torch.ones(4))
            time.sleep(float(os.environ.get("STEP_S", "0.01")))
            loss = float("nan") if step == at and what == "nan" else 1.0 / step
            write(file, kind="step", step=step, step_time_s=time.perf_counter() - start, tokens=8, loss=loss, memory_bytes=None)
        dist.barrier()
        write(file, kind="end", status="completed", steps=job["steps"], error=None)
    dist.destroy_process_group()


def write(file: Any, **row: Any) -> None:
    file.write(json.dumps(row) + "\n")
    file.flush()


if __name__ == "__main__":
    main()
