# isoflop/one_run.py without its comments
from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainwright import probe
from trainwright.errors import Exit, UserError
from trainwright.output import write_text
from trainwright.report import printable

OUTCOME = "trainer.json"
_GRACE_S = 10.0
_LOOK_S = 0.1


def main() -> int:
    request: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    threading.Thread(target=_follow, args=(os.getppid(),), daemon=True).start()
    try:
        if request["kind"] == "trainer":
            return _trainer(request)
        if probe.importable("trainwright.isoflop.by_reference"):
            from trainwright.isoflop import by_reference

            return by_reference.run(request)
        raise UserError("the reference trainer is not in this copy")
    except UserError as problem:
        print(printable(str(problem)), file=sys.stderr)
        return int(problem.exit)


def _follow(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)


def _trainer(request: dict[str, Any]) -> int:
    place, argv = Path(request["run_dir"]), request["argv"]
    place.mkdir(parents=True, exist_ok=True)
    for old in (place / OUTCOME, Path(request["results"])):
        old.unlink(missing_ok=True)
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, frame: asked.append(received))
    started = time.time()
    try:
        with open(place / "trainer.log", "wb") as log:
            child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    except OSError as problem:
        raise UserError(f"{argv[0]} cannot be started: {problem.strerror or problem}") from None
    status = _await(child, asked, started + request["timeout_s"])
    facts = {"argv": argv, "returncode": child.returncode, "status": status, "started": started, "ended": time.time()}
    write_text(place / OUTCOME, json.dumps(facts, indent=1) + "\n")
    return {"completed": 0, "interrupted": int(Exit.INTERRUPTED)}.get(status, int(Exit.FAILED))


def _await(child: subprocess.Popen[bytes], asked: list[int], deadline: float) -> str:
    status = ""
    while child.poll() is None:
        if asked or time.time() > deadline:
            status = "interrupted" if asked else "timeout"
            _end(child)
        time.sleep(_LOOK_S)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGTERM)
    return status or ("completed" if child.returncode == 0 else "failed")


def _end(child: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE_S)
            return


if __name__ == "__main__":
    sys.exit(main())
