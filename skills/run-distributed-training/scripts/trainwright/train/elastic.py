# train/elastic.py without its comments
from __future__ import annotations

import os
import signal
import threading
import time

from trainwright.train import watchdog

GRACE_S = 10.0


def follow(pid: int, interval_s: float = 0.25) -> None:
    while watchdog.alive(pid):
        time.sleep(interval_s)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os._exit(watchdog.GONE)


def main() -> None:
    launcher = watchdog.launcher()
    if launcher is not None:
        threading.Thread(target=follow, args=(launcher,), name="launcher-watch", daemon=True).start()
    from torch.distributed.run import main as torchrun

    torchrun()


if __name__ == "__main__":
    main()
