"""Read what a run left: its manifest, the perf lines and logs of each rank, torchrun's own output. Nothing in it is trusted."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from trainwright.diagnose.lines import HEAD_BYTES, TAIL_BYTES, Line, Log, read_log
from trainwright.errors import UserError
from trainwright.report import finite

_PERF = re.compile(r"rank(\d{1,6})\.jsonl")
_FAILURE = re.compile(r"rank\s+: (\d{1,6}) \(local_rank: \d+\)\n\s*exitcode\s+: (-?\d{1,5}) \(pid: (\d{1,10})\)")
_EXIT = re.compile(r"exitcode\s*: (-?\d{1,5})\b.{0,200}\(pid: (\d{1,10})\)")
_FIRST_FAILURE = re.compile(r"failed \(exitcode: (-?\d{1,5})\) local_rank: (\d{1,6}) \(pid: (\d{1,10})\)")
_MARKED = re.compile(r"^\s?(?:\[default\d+\]:)?\[rank(\d{1,6})\]:")
_MOST_RANKS = 20_000


@dataclass(frozen=True, slots=True)
class StepRow:
    """One training step of one rank: seconds, tokens of this rank, loss (NaN and infinities stay), bytes; None where not given."""

    step: int
    line: Line
    step_time_s: float | None = None
    forward_s: float | None = None
    backward_s: float | None = None
    optimizer_s: float | None = None
    data_s: float | None = None
    tokens: float | None = None
    loss: float | None = None
    grad_norm: float | None = None
    memory_bytes: float | None = None
    rss_bytes: float | None = None
    communication_s: float | None = None
    first: bool = False  # of its process: it pays for allocation, buffers and connections, after a resume too

    @property
    def tracked(self) -> bool:
        """Whether the tensor tracker ran, which slows a step: such a step is no throughput."""
        return self.memory_bytes is not None


NUMBERS = tuple(name for name in StepRow.__dataclass_fields__ if name not in ("step", "line", "first"))


@dataclass(slots=True)
class Rank:
    """What is known of one rank. `header` and `end` are empty where it left none."""

    number: int
    header: dict[str, Any] = field(default_factory=dict)
    header_line: Line | None = None
    steps: list[StepRow] = field(default_factory=list)
    end: dict[str, Any] = field(default_factory=dict)
    end_line: Line | None = None
    log: Log | None = None
    exitcode: int | None = None
    exit_line: Line | None = None
    pid: int | None = None
    changed: float = 0.0

    @property
    def last_step(self) -> int:
        return self.steps[-1].step if self.steps else 0

    @property
    def completed(self) -> bool:
        return self.end.get("status") == "completed"


@dataclass(slots=True, eq=False)
class Run:
    """One run as its files tell it. `notes` are (what, why) for whatever could not be read."""

    path: str
    manifest: dict[str, Any] = field(default_factory=dict)
    manifest_log: Log | None = None
    job: dict[str, Any] = field(default_factory=dict)
    ranks: dict[int, Rank] = field(default_factory=dict)
    launcher: Log | None = None
    notes: list[tuple[str, str]] = field(default_factory=list)
    budget: int = 32 * 2**20  # bytes that its files may still take; a share of each is read all the same

    def rank(self, number: int) -> Rank:
        return self.ranks.setdefault(number, Rank(number))

    @property
    def in_order(self) -> list[Rank]:
        return [self.ranks[number] for number in sorted(self.ranks)]

    @property
    def outcome(self) -> dict[str, Any]:
        outcome = self.manifest.get("outcome")
        return outcome if isinstance(outcome, dict) else {}

    @property
    def status(self) -> str:
        """The launcher's word on the end; from the ranks' end lines where there is no manifest; "" where neither says."""
        if isinstance(self.outcome.get("status"), str):
            return str(self.outcome["status"])
        ends = [rank.end.get("status") for rank in self.in_order]
        if "failed" in ends or any(rank.exitcode for rank in self.in_order):
            return "failed"
        return "completed" if ends and all(end == "completed" for end in ends) else ""

    @property
    def world_size(self) -> int | None:
        """The number of ranks that was asked for; where nothing tells it, the world that the headers name."""
        asked = whole(self.job.get("world_size")) or whole(self.asked.get("world_size"))
        asked = asked or max((whole(rank.header.get("world_size")) or 0 for rank in self.ranks.values()), default=0)
        return asked if 0 < asked < _MOST_RANKS else None

    @property
    def asked(self) -> dict[str, Any]:
        asked = self.manifest.get("asked")
        return asked if isinstance(asked, dict) else {}

    @property
    def asked_strategy(self) -> str:
        """The name of the strategy that the checked file asks for; "" where it is not recorded."""
        return str(self.asked.get("strategy") or "")

    @property
    def effective(self) -> dict[str, Any] | None:
        """What the workers read back from the live model, by the lowest rank that has it: name, wrapper, world size, share."""
        return next((s for rank in self.in_order if isinstance(s := rank.header.get("strategy"), dict)), None)

    @property
    def peak_memory_bytes(self) -> int | None:
        """The largest tracked peak of any rank; None where no rank tracked it."""
        return max((peak for rank in self.in_order if (peak := whole(rank.end.get("peak_memory_bytes"))) is not None), default=None)

    @property
    def last_step(self) -> int:
        """The last step that any rank recorded; 0 where none did."""
        return max((rank.last_step for rank in self.in_order), default=0)

    @property
    def with_header(self) -> list[Rank]:
        return [rank for rank in self.in_order if rank.header]


def read_run(path: str) -> Run:
    """The Run of a run folder, or of single perf and log files' folder; raises UserError where it is none."""
    if not os.path.isdir(path):
        raise UserError(f"{path} is not a run folder; name the folder that launch made, or perf and log files")
    run = Run(path)
    folder = Path(path)
    run.manifest, run.manifest_log = _json(run, folder / "manifest.json", "manifest.json")
    run.job, _ = _json(run, folder / "job.json", "job.json")
    for file in _listing(run, folder / "perf"):
        if _PERF.fullmatch(file.name):
            add_perf(run, file, f"perf/{file.name}")
    _add_logs(run, folder)
    if not (run.manifest or run.ranks or run.launcher):
        raise UserError(f"{path} holds no manifest.json, perf/rank*.jsonl or logs of a run; name the folder that launch made")
    settle(run)
    return run


def read_files(paths: Iterable[str]) -> Run:
    """The Run that single files tell of: perf files, a rank's stderr.log, torchrun's output; raises UserError."""
    paths = list(paths)
    run = Run(", ".join(paths))
    for path in paths:
        _add_file(run, Path(path))
    if not (run.ranks or run.launcher):
        said = "; ".join(f"{name} {reason}" for name, reason in run.notes[:3])
        raise UserError(f"nothing to diagnose: {said}; name a run folder, or perf and log files of one run")
    settle(run)
    return run


def _add_file(run: Run, path: Path) -> None:
    if not os.path.exists(path):
        raise UserError(f"{path} does not exist; name a run folder, or perf and log files")
    if path.suffix == ".jsonl":
        add_perf(run, path, str(path))
        return
    log = _log(run, path, str(path))
    if log is None:
        return
    rank = re.search(r"attempt_\d+/(\d{1,6})/std(?:err|out)\.log$", path.as_posix())
    if rank:
        run.rank(int(rank[1])).log = log
    elif log.find(re.compile(r"torch[./]distributed[./]|exitcode\s*: ")):
        run.launcher = log
    else:
        blank = not any(line.text.strip() for line in log.lines)
        run.notes.append((str(path), "is empty" if blank else "is no perf or log file of a run; other formats are not judged yet"))


def settle(run: Run) -> None:
    """Fill in what one file knows of another: the job from a header, exit codes from torchrun's output."""
    if not run.job:
        jobs = [rank.header.get("job") for rank in run.in_order]
        run.job = next((job for job in jobs if isinstance(job, dict)), {})
    _add_exits(run)
    _share_out(run)
    for number in range(run.world_size or 0):
        run.rank(number)


# --- perf files -----------------------------------------------------------------------------------------------------


def add_perf(run: Run, path: Path, name: str) -> None:
    """Take in one rank's perf file; lines that are no record are counted and left out."""
    log = _log(run, path, name)
    if log is None:
        return
    rows = [(line, row) for line in log.lines if (row := _row(line.text)) is not None]
    rank = run.rank(_number_of(path, [row for _, row in rows]))
    for line, row in rows:
        _add_row(rank, line, row)
    rank.pid = whole(rank.header.get("pid"))
    rank.changed = path.stat().st_mtime
    broken = sum(1 for line in log.lines if line.text.strip()) - len(rows)
    if broken:
        last = " (the last one was cut short)" if log.cut_short and broken == 1 and _row(log.lines[-1].text) is None else ""
        run.notes.append((name, f"{broken} of {len(log.lines)} lines are no record and were left out{last}"))


def _number_of(path: Path, rows: list[dict[str, Any]]) -> int:
    """The rank by the header; by the file's name where the header is lost."""
    by_header = next((whole(row.get("rank")) for row in rows if row.get("kind") == "header"), None)
    by_name = _PERF.fullmatch(path.name)
    if by_header is not None and by_header < _MOST_RANKS:
        return by_header
    return int(by_name[1]) if by_name else 0


def _row(text: str) -> dict[str, Any] | None:
    row = mapping(text)
    return row if row is not None and row.get("kind") in ("header", "step", "checkpoint", "end") else None


def mapping(text: str) -> dict[str, Any] | None:
    """The JSON mapping that `text` is, None where it is none or is nested deeper than any record."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and not _deeper(value, 20) else None


def _deeper(value: Any, levels: int) -> bool:
    """Whether containers stand more than `levels` deep; iterative, for what json.loads took may still be very deep."""
    row = [value]
    for _ in range(levels):
        children = [child for item in row for child in (item.values() if isinstance(item, dict) else item)]
        row = [child for child in children if isinstance(child, (dict, list))]
        if not row:
            return False
    return True


def _add_row(rank: Rank, line: Line, row: dict[str, Any]) -> None:
    if row["kind"] == "header":  # a second one is a new start in the same file: what stood before is not this run
        rank.header, rank.header_line, rank.steps, rank.end, rank.end_line = finite(row), line, [], {}, None
    elif row["kind"] == "end":
        rank.end, rank.end_line = finite(row), line
    elif row["kind"] == "step" and (step := whole(row.get("step"))) is not None and step > rank.last_step:
        rank.steps.append(StepRow(step, line, **{name: _measured(row, name) for name in NUMBERS}, first=row.get("first") is True))


def _measured(row: dict[str, Any], name: str) -> float | None:
    """A number of a step. JSON has no word for NaN: a loss or norm that stands there as null was not finite."""
    if name in ("loss", "grad_norm") and name in row and row[name] is None:
        return math.nan
    return number(row.get(name))


def number(value: Any) -> float | None:
    """A JSON number as float (NaN and infinities too, and as the words that some writers use for them), else None."""
    if isinstance(value, str) and value.lower() in ("nan", "inf", "-inf", "infinity", "-infinity"):
        return float(value)
    if type(value) not in (int, float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def whole(value: Any) -> int | None:
    """A JSON integer that a count, a rank or an id can have, else None."""
    return value if type(value) is int and 0 <= value < 2**53 else None


# --- logs -----------------------------------------------------------------------------------------------------------


def _add_logs(run: Run, folder: Path) -> None:
    if (folder / "logs" / "launcher.log").exists():
        run.launcher = _log(run, folder / "logs" / "launcher.log", "logs/launcher.log")
    for attempt in sorted(folder.glob("logs/*/attempt_*")):  # a later attempt stands for its rank
        for place in _listing(run, attempt):
            file = place / "stderr.log"
            if re.fullmatch(r"\d{1,6}", place.name) and int(place.name) < _MOST_RANKS and file.exists():
                run.rank(int(place.name)).log = _log(run, file, file.relative_to(folder).as_posix())


def _add_exits(run: Run) -> None:
    """Exit codes as torchrun's summary lists them (negative: the signal), else the one failure that it logged."""
    if run.launcher is None:
        return
    text = run.launcher.text
    listed = [(int(m[1]), int(m[2]), int(m[3])) for m in _FAILURE.finditer(text)]
    first = [(int(m[2]), int(m[1]), int(m[3])) for m in _FIRST_FAILURE.finditer(text)]
    lines: dict[tuple[str, str], Line] = {}
    for line in run.launcher.lines:
        if exit_ := _EXIT.search(line.text):
            lines.setdefault((exit_[1], exit_[2]), line)
    for number_, exitcode, pid in listed or first:
        if number_ >= _MOST_RANKS:
            continue
        rank = run.rank(number_)
        rank.exitcode, rank.pid = exitcode, pid
        rank.exit_line = lines.get((str(exitcode), str(pid)))


def _share_out(run: Run) -> None:
    """Give each rank without a log of its own the lines that torch marked as its: "[rank1]: ..." in torchrun's output."""
    lines: dict[int, list[Line]] = {}
    for line in run.launcher.lines if run.launcher else ():
        if (marked := _MARKED.match(line.text)) and int(marked[1]) < _MOST_RANKS:
            lines.setdefault(int(marked[1]), []).append(line)
    for rank, found in lines.items():
        if run.rank(rank).log is None and run.launcher:
            run.rank(rank).log = Log(run.launcher.file, tuple(found))


def _log(run: Run, path: Path, name: str) -> Log | None:
    try:
        if os.path.isdir(run.path) and not path.resolve().is_relative_to(Path(run.path).resolve()):
            raise OSError("it is a link out of the run's folder")
        share = max(run.budget, 2**17)
        log = read_log(path, name, min(HEAD_BYTES, share // 8), min(TAIL_BYTES, share))
    except (OSError, RuntimeError) as problem:
        run.notes.append((name, f"cannot be read: {getattr(problem, 'strerror', None) or problem}"))
        return None
    run.budget -= sum(len(line.text) + 40 for line in log.lines)
    if log.skipped_bytes:
        run.notes.append((name, f"is large: {log.skipped_bytes:,} bytes of its middle were not read"))
    return log


def _json(run: Run, path: Path, name: str) -> tuple[dict[str, Any], Log | None]:
    if not os.path.exists(path):
        run.notes.append((name, "is missing"))
        return {}, None
    log = _log(run, path, name)
    value = mapping(log.text) if log else None
    if log and value is None:
        run.notes.append((name, "is no JSON mapping"))
    return cast(dict[str, Any], finite(value or {})), log


def _listing(run: Run, folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as problem:
        run.notes.append((folder.name, f"cannot be listed: {problem.strerror or problem}"))
        return []
