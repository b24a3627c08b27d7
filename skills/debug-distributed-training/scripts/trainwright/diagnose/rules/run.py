"""Rules on a run: what failed it, and whether it ran what was asked."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from typing import Any

from trainwright.diagnose.cause import Cause, Confidence, gathered
from trainwright.diagnose.events import Event, events, initiated, of_kind, ranks_word, signal_name
from trainwright.diagnose.run_folder import Rank, Run, whole
from trainwright.report import Severity
from trainwright.rules import Hit, rule
from trainwright.units import format_bytes

SOURCE = "torch-2.13.0-elastic"
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)


@rule("RUN001", Severity.ERROR, Run, fails_at="first step", checked="run", source=SOURCE)
def out_of_memory(run: Run) -> Iterator[Hit]:
    """A rank ran out of memory.

    Said only where an allocator said so: in the rank's own end line, or in its stderr. A rank that was killed without
    a word is RUN003. Where the error reached several ranks the job is too large for each of them, and no rank is to
    blame. What helps is a strategy with a lower peak (`advise`), a smaller micro batch, or more memory.

    Bad `perf/rank0.jsonl`:
        {"kind": "header", "rank": 0, "world_size": 1, "device": "cpu"}
        {"kind": "end", "status": "failed", "error": {"type": "out_of_memory", "message": "", "phase": "forward"}}

    Good `perf/rank0.jsonl`:
        {"kind": "header", "rank": 0, "world_size": 1, "device": "cpu"}
        {"kind": "end", "status": "completed", "steps": 1, "peak_memory_bytes": 1048576, "error": null}
    """
    found = of_kind(run, "out_of_memory")
    if not found:
        return
    first = found[0]
    cap = whole(run.job.get("memory_cap_bytes"))
    message = (
        f"{ranks_word(event.rank.number for event in found)} ran out of memory{_phase(first)}{_tried(first)}"
        f"{f', under a cap of {format_bytes(cap)} a rank' if cap else ''}"
    )
    name = {"cuda": "cuda_oom", "xpu": "xpu_oom"}.get(_device(run, first), "host_oom_alloc")
    confirm = "the memory ledger of this strategy (trainwright estimate) beside what the rank may use"
    yield Cause(name, message, "high", gathered(e.evidence for e in found), _only(found), confirm).hit()


def _phase(event: Event) -> str:
    return f" in {event.phase}" if event.phase else ""


def _tried(event: Event) -> str:
    if found := re.search(r"tried to allocate (\d{1,18}) bytes", event.text):
        return f": it tried to allocate {format_bytes(int(found[1]))} ({found[1]} bytes)"
    found = re.search(r"Tried to allocate ([\d.]+ ?[KMGT]?i?B)", event.text)
    return f": it tried to allocate {found[1]}" if found else ""


def _device(run: Run, event: Event) -> str:
    said = re.search(r"\b(CUDA|XPU)\b", event.text)
    return said[1].lower() if said else str(event.rank.header.get("device") or run.job.get("device") or "cpu").partition(":")[0]


def _only(found: list[Event]) -> int | None:
    """The rank of the only event; several ranks that fail alike have a common cause, and no culprit among them."""
    return found[0].rank.number if len(found) == 1 else None


@rule("RUN002", Severity.ERROR, Run, fails_at="first step", checked="run", source=SOURCE)
def rank_raised_exception(run: Run) -> Iterator[Hit]:
    """A rank ended with an exception, or with an exit code, of its own.

    An error that a collective raises because a peer is gone ("Connection closed by peer", a timeout) is not meant: it
    is told by the victims. The culprit is the rank whose exception has another reason, whatever torchrun calls the
    root cause.

    Bad `perf/rank0.jsonl`:
        {"kind": "header", "rank": 0, "world_size": 2}
        {"kind": "end", "status": "failed", "error": {"type": "exception", "message": "Connection closed by peer"}}
    Bad `perf/rank1.jsonl`:
        {"kind": "header", "rank": 1, "world_size": 2}
        {"kind": "end", "status": "failed", "error": {"type": "exception", "exception": "ValueError", "message": "bad shard"}}

    Good `perf/rank0.jsonl`:
        {"kind": "header", "rank": 0, "world_size": 1}
        {"kind": "end", "status": "completed", "steps": 1, "error": null}
    """
    found = of_kind(run, "exception", "exit")
    alike: dict[str, list[Event]] = {}
    for event in found:
        alike.setdefault(event.text, []).append(event)
    for text, group in alike.items():
        ranks, evidence = ranks_word(event.rank.number for event in group), gathered(e.evidence for e in group)
        if group[0].kind == "exit":
            said = f"; its last word: {_one_line(evidence[0].text)}" if len(group[0].evidence) > 1 else ""
            message = f"{ranks} ended with {text} and left no exception in the files read{said}"
            confirm = "the rank's own stdout and stderr, or the program's meaning of that exit code"
            # Without its log nothing tells whether the rank initiated the failure or lost a peer.
            culprit = _only(group) if group[0].rank.log else None
            sure: Confidence = "low" if culprit is None else "medium"
            yield Cause("insufficient_evidence_need_rank_log", message, sure, evidence, culprit, confirm).hit()
        else:
            message = f"{ranks} raised {_one_line(text)}{_phase(group[0])}"
            yield Cause("user_exception", message, "high", evidence, _only(group)).hit()


def _one_line(text: str) -> str:
    first = text.strip().partition("\n")[0]
    return first if len(first) <= 300 else f"{first[:297]}..."


@rule("RUN003", Severity.ERROR, Run, fails_at="first step", checked="run", source=SOURCE)
def rank_killed_by_signal(run: Run) -> Iterator[Hit]:
    """A rank was ended by a signal that neither torchrun nor the launcher sent.

    SIGKILL leaves no trace in the rank's own log. The kernel's memory killer is the usual sender and not the only one
    (a scheduler, an administrator, a container limit): it is named here only where the control group counted such a
    kill while the job ran. A rank that ended with SIGTERM was ended because another had failed.

    Bad `logs/launcher.log`:
        failed (exitcode: -9) local_rank: 1 (pid: 4242) of binary: python

    Good `logs/launcher.log`:
        failed (exitcode: -15) local_rank: 1 (pid: 4242) of binary: python
    Good `manifest.json`:
        {"schema": "trainwright/manifest/1", "outcome": {"status": "interrupted", "returncode": -15}}
    """
    alike: dict[int, list[Event]] = {}
    for event in of_kind(run, "signal"):
        alike.setdefault(event.signal, []).append(event)
    for group in alike.values():
        yield _killed(run, group).hit()


def _killed(run: Run, group: list[Event]) -> Cause:
    """The cause that ranks ended by one and the same signal have."""
    number_, rank, evidence = group[0].signal, _only(group), gathered(event.evidence for event in group)
    names = ranks_word(event.rank.number for event in group)
    done = max(event.rank.last_step for event in group)
    said = f"{names} {'was' if rank is not None else 'were'} ended by {group[0].text}{f' after step {done}' if done else ''}"
    if number_ in _CRASHES:
        confirm = "the Python stack in the rank's stderr, then the native one (gdb, or a core file)"
        return Cause("segfault", said, "high", evidence, rank, confirm)
    if number_ != signal.SIGKILL:
        confirm = "who sends that signal here: the scheduler, a limit, an abort in native code"
        return Cause("insufficient_evidence", said, "medium", evidence, rank, confirm)
    if kills := whole(run.outcome.get("oom_kills")):
        message = f"{said}; the kernel's memory killer ended {kills} processes of this control group meanwhile"
        return Cause("sigkill_probably_host_oom", message, "high", evidence, rank, "dmesg: the process id it names")
    pids = ", ".join(str(event.rank.pid) for event in group if event.rank.pid)
    confirm = f"dmesg for a memory kill of process {pids or '?'}; oom_kill in its control group's memory.events; the scheduler's log"
    return Cause("rank_killed_sigkill", f"{said}; the files do not say who sent it", "high", evidence, rank, confirm)


@rule("RUN007", Severity.ERROR, Run, fails_at="launcher", checked="run", source=SOURCE)
def failed_without_cause(run: Run) -> Iterator[Hit]:
    """The job failed, often before its first step, and its files do not say why.

    No rank recorded an error of its own: none began, or those that speak only lost a peer. Nothing is guessed then;
    the log of the rank that is missing, or torchrun's own output, holds the answer.

    Bad `manifest.json`:
        {"schema": "trainwright/manifest/1", "outcome": {"status": "failed", "returncode": 1}}

    Good `manifest.json`:
        {"schema": "trainwright/manifest/1", "outcome": {"status": "completed", "returncode": 0}}
    Good `perf/rank0.jsonl`:
        {"kind": "header", "rank": 0, "world_size": 1}
        {"kind": "end", "status": "completed", "steps": 1, "error": null}
    """
    found = events(run)
    if run.status != "failed" or initiated(run) or any(e.kind == "timeout" for e in found) or left_early(run):
        return
    peers = [event for event in found if event.kind == "peer"]
    silent = [rank.number for rank in run.in_order if not rank.end and not any(rank is e.rank for e in peers)]
    last = _launcher_line(run)
    evidence = gathered([*(e.evidence for e in peers), (last,) if last else ()])
    when = f"after step {run.last_step}" if run.last_step else "before its first step"
    code = run.outcome.get("returncode")
    told = f"; torchrun itself was ended by {signal_name(-code)}" if type(code) is int and code < 0 else ""
    told += f"; {ranks_word(e.rank.number for e in peers)} only lost a peer" if peers else ""
    lost = f"; {ranks_word(silent)} left no word" if silent else ""
    name = "insufficient_evidence_need_rank_log" if peers or silent else "insufficient_evidence"
    confirm = f"the log of {ranks_word(silent)}" if silent else "torchrun's own output"
    message = f"the job failed {when}, and its files do not say why{told}{lost}{f': torchrun says {_one_line(last.text)}' if last else ''}"
    yield Cause(name, message, "low", evidence, None, confirm).hit()


def _launcher_line(run: Run) -> Any:
    """torchrun's own last error line, where it failed itself."""
    own = re.compile(r"^(?!.*ChildFailedError)[\w.]*(?:Error|Exception)\b.*: |error: ")
    return run.launcher.find_last(own) if run.launcher else None


@rule("RUN008", Severity.ERROR, Run, fails_at="end of run", checked="run", source=SOURCE)
def rank_left_early(run: Run) -> Iterator[Hit]:
    """A rank ended without an error while its peers were still in the middle of the job.

    The peers then fail with a lost connection, and torchrun blames one of them. The rank that left ran out of
    batches, took another branch, or returned early; in gloo the steps before may already have mixed gradients of
    different batches.

    Bad `perf/rank0.jsonl`:
        {"kind": "header", "rank": 0, "world_size": 2}
        {"kind": "end", "status": "failed", "steps": 4, "error": {"type": "exception", "message": "Connection closed by peer"}}
    Bad `perf/rank1.jsonl`:
        {"kind": "header", "rank": 1, "world_size": 2}
        {"kind": "end", "status": "completed", "steps": 4, "error": null}

    Good `perf/rank0.jsonl`:
        {"kind": "header", "rank": 0, "world_size": 1}
        {"kind": "end", "status": "completed", "steps": 5, "error": null}
    """
    if initiated(run):
        return
    peers = of_kind(run, "peer")
    for rank in left_early(run):
        done = whole(rank.end.get("steps"))
        said = f"after step {done if done is not None else rank.last_step}"
        message = f"rank {rank.number} ended without an error {said} while {ranks_word(e.rank.number for e in peers)} went on"
        name = "rank_skipped_iteration_desync" if rank.completed else "rank_divergent_control_flow"
        evidence = gathered([(rank.end_line,) if rank.end_line else (), *(e.evidence for e in peers)])
        confirm = "the number of batches of each rank, and every branch that only some ranks take around a collective"
        yield Cause(name, message, "medium", evidence, rank.number, confirm).hit()


def left_early(run: Run) -> list[Rank]:
    """The minority of ranks that ended well while others lost a peer: by their end line, or by torchrun's list of failures."""
    found = events(run)
    peers = [event for event in found if event.kind == "peer"]
    listed = any(rank.exitcode is not None for rank in run.in_order) and bool(run.launcher and "Failures:" in run.launcher.text)
    well = [e.rank for e in found if e.kind == "completed" or (e.kind == "silent" and listed)]
    return well if peers and len(well) <= len(peers) else []
