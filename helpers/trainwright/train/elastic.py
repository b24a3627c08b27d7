"""torchrun that ends when its launcher does.

    python -m trainwright.train.elastic --standalone --nproc-per-node 4 -m trainwright.train.run --job RUN/job.json

torchrun itself does not look whether the process that started it still lives: one that is killed while torch is being
imported would leave torchrun to start all ranks first.
"""

from __future__ import annotations

import os
import signal
import threading
import time

from trainwright.train import watchdog

GRACE_S = 10.0  # torchrun has to end its ranks meanwhile


def follow(pid: int, interval_s: float = 0.25) -> None:
    """Ask this process to end once process `pid` is gone, and end it where it does not within GRACE_S.

    SIGTERM ends it at once while torch is being imported, and through torchrun's own handler, ranks first, later.
    """
    while watchdog.alive(pid):
        time.sleep(interval_s)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os._exit(watchdog.GONE)


def main() -> None:
    """Run torchrun's own main with this process's arguments, under the watch."""
    launcher = watchdog.launcher()
    if launcher is not None:
        threading.Thread(target=follow, args=(launcher,), name="launcher-watch", daemon=True).start()
    from torch.distributed.run import main as torchrun

    torchrun()


if __name__ == "__main__":
    main()
