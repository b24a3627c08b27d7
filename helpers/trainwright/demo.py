"""`trainwright demo`: the main job, end to end, on this machine, with nothing but CPU ranks.

A model and four ranks with a memory cap -> the ledger of each strategy -> a choice -> its config file -> check ->
real runs from that very file, under the cap -> their logs -> predicted beside measured.
"""

from __future__ import annotations

import argparse
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trainwright
from trainwright import probe
from trainwright.advise.decide import Advice, decide
from trainwright.check.judge import judge
from trainwright.check.subject import Context
from trainwright.cost.memory import NOT_COUNTED, Ledger, Workload, host_bytes, ledger
from trainwright.demo_page import page
from trainwright.diagnose.run_folder import Run, read_run
from trainwright.diagnose.verdict import Diagnosis, diagnose
from trainwright.document import load_mapping
from trainwright.emit import accelerate
from trainwright.emit.reading import Reading
from trainwright.errors import Exit, MissingPackageError, UserError
from trainwright.job import Job
from trainwright.launch.torchrun import Outcome
from trainwright.launch.torchrun import run as torchrun
from trainwright.model import ModelSpec, load_model
from trainwright.output import write_text
from trainwright.progress import Step, progress
from trainwright.report import Finding, Report, Severity
from trainwright.strategy import Strategy
from trainwright.units import format_bytes, format_seconds, parse_bytes, parse_count, signed_percent

EXAMPLES = """examples:
  trainwright demo
  trainwright demo --model config.json --memory-cap 600MiB --out out/mine"""

MODEL = Path("models", "llama-demo", "config.json")
MARK = "trainwright-demo.txt"
TRACKED_STEPS = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="FILE", help="a Llama-family config.json (default: a small one of our own)")
    parser.add_argument("--devices", type=int, default=4, metavar="N", help="CPU ranks (default 4)")
    parser.add_argument("--memory-cap", metavar="SIZE", help="memory of each rank, enforced (default: between the ledgers of ddp and fsdp)")
    parser.add_argument("--micro-batch", type=parse_count, default=2, metavar="N", help="sequences per rank and step (default 2)")
    parser.add_argument("--seq-len", type=parse_count, default=128, metavar="N", help="tokens per sequence (default 128)")
    parser.add_argument("--steps", type=parse_count, default=12, metavar="N", help="steps of the run that should fit (default 12)")
    parser.add_argument("--out", default="out/demo", metavar="DIR", help="where the report and the runs go (default out/demo)")
    parser.add_argument("--html", metavar="FILE", help="write the page to FILE too")


@dataclass(slots=True)
class Trial:
    """One strategy, asked and answered: its config, its run under the cap, and its measured memory."""

    strategy: Strategy
    predicted: Ledger
    fits: bool
    config: str = ""
    config_text: str = ""
    reading: Reading | None = None
    findings: list[Finding] = field(default_factory=list)
    capped: Outcome | None = None
    run: Run | None = None
    diagnosis: Diagnosis | None = None
    measured: Run | None = None
    measured_bytes: int | None = None

    @property
    def as_predicted(self) -> bool:
        """Whether the run under the cap ended as the ledger said: it fits and ran, or it does not and ran out of memory."""
        if self.capped is None or self.diagnosis is None:
            return False
        return self.capped.completed if self.fits else self.diagnosis.first_class == "host_oom_alloc"

    @property
    def error(self) -> float | None:
        """Relative error of the ledger's peak against torch's memory tracker."""
        return None if self.measured_bytes is None else self.predicted.peak_bytes / self.measured_bytes - 1


@dataclass(slots=True)
class Story:
    """Everything the report tells."""

    model: ModelSpec
    model_path: str
    folder: Path
    workload: Workload
    cap_bytes: int
    advice: Advice
    trials: list[Trial]
    not_counted: tuple[tuple[str, str], ...] = NOT_COUNTED


def run(options: argparse.Namespace) -> Report:
    report = Report("demo")
    if options.devices < 2:
        raise UserError(f"--devices {options.devices}: the demo shows how ranks share a model, so it needs 2 or more")
    if not probe.importable("torch"):
        raise MissingPackageError("torch", "the demo, which trains,")
    folder = Path(options.out).absolute()
    story = _prepare(options, folder, report)
    if any(_too_large(trial.strategy, story, story.cap_bytes) for trial in story.trials):
        raise UserError(
            "even under the cap the ranks need more memory than is free here; take a smaller --model, --memory-cap or --devices"
        )
    for trial in story.trials:
        if _too_large(trial.strategy, story, None):
            report.skip(f"the memory of {trial.strategy.name}", "it is measured without a cap, and so much is not free here")
    _claim(folder)
    with progress("demo", options.quiet) as step:
        for trial in story.trials:
            if not _try(trial, story, options, step):
                report.exit = Exit.INTERRUPTED
                report.text = [f"interrupted; the runs so far are in {folder / 'runs'}"]
                return report
    _conclude(story, report)
    return report


def _claim(folder: Path) -> None:
    """Make the folder ours and empty; raises UserError for one that holds anything else."""
    if any((folder / name).is_symlink() for name in (MARK, "configs", "runs")):
        raise UserError(f"{folder} holds links in the place of demo's own files; name another with --out")
    if folder.exists() and not (folder.is_dir() and ((folder / MARK).exists() or not any(folder.iterdir()))):
        raise UserError(f"{folder} exists and is not a folder that demo wrote; name another with --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / MARK, "`trainwright demo` wrote this folder and replaces its own files in it.\n")
        for name in ("report.html", "report.json"):
            (folder / name).unlink(missing_ok=True)
        for name in ("configs", "runs"):
            shutil.rmtree(folder / name, ignore_errors=True)
        (folder / "configs").mkdir()
    except OSError as problem:
        raise UserError(f"cannot write in {folder}: {problem.strerror}; name another with --out") from None


def _prepare(options: argparse.Namespace, folder: Path, report: Report) -> Story:
    path = os.path.abspath(options.model or Path(trainwright.__path__[0], MODEL))
    model = load_model(path)
    workload = Workload(micro_batch=options.micro_batch, seq_len=options.seq_len, world_size=options.devices)
    cap = _cap(options, model, workload, report)
    advice = decide(model, workload, cap)
    report.findings += advice.findings
    return Story(model, path, folder, workload, cap, advice, _trials(advice, report))


def _cap(options: argparse.Namespace, model: ModelSpec, workload: Workload, report: Report) -> int:
    """The cap asked for; else halfway between what full sharding and DDP need, so that the choice matters."""
    if options.memory_cap:
        return parse_bytes(options.memory_cap)
    both = Strategy("ddp"), Strategy("fsdp", wrap_classes=(model.block_class,))
    needs = [ledger(model, strategy, workload).peak_bytes for strategy in both]
    report.infer("memory cap", format_bytes(sum(needs) // 2), "halfway between the ledgers of ddp and fsdp_full_shard")
    return sum(needs) // 2


def _trials(advice: Advice, report: Report) -> list[Trial]:
    """The fallback first, then the choice; where they coincide, the choice and the next alternative."""
    wanted = [advice.fallback]
    if advice.choice not in (None, advice.fallback):
        wanted.append(advice.choice)
    elif advice.alternative:
        why = f"choice and fallback coincide ({advice.fallback.name})" if advice.choice else "nothing fits"
        report.text.append(f"{why}: the next alternative, {advice.alternative.name}, runs beside it")
        wanted.append(advice.alternative)
    return [Trial(s, advice.of(s).ledger, bool(advice.of(s).fits)) for s in wanted]


def _try(trial: Trial, story: Story, options: argparse.Namespace, step: Step) -> bool:
    """Write and check the trial's config, run it under the cap, then measure its memory; False when interrupted."""
    trial.config = str(story.folder / "configs" / f"{trial.strategy.name}.yaml")
    trial.config_text = accelerate.write(trial.strategy, story.workload.world_size, "cpu")
    write_text(trial.config, trial.config_text)
    trial.reading = accelerate.read(load_mapping(trial.config))
    checked = judge([trial.config], Context(world_size=story.workload.world_size, model=story.model, device="cpu"))
    trial.findings = checked.findings
    if any(finding.severity is Severity.ERROR for finding in checked.findings):
        return True
    trial.capped = _launch(trial, story, "capped", options.steps, story.cap_bytes, 0, step)
    trial.run = read_run(trial.capped.run_dir)
    trial.diagnosis = diagnose(trial.run)
    if trial.capped.status == "interrupted":
        return False
    if _too_large(trial.strategy, story, None):  # nothing limits this run: it would take the whole machine
        return True
    tracked = _launch(trial, story, "tracked", TRACKED_STEPS, None, TRACKED_STEPS, step)
    trial.measured = read_run(tracked.run_dir)
    trial.measured_bytes = trial.measured.peak_memory_bytes if tracked.completed else None
    return tracked.status != "interrupted"


def _too_large(strategy: Strategy, story: Story, cap: int | None) -> bool:
    """Whether the ranks would take more memory than this machine has free."""
    have = probe.free_memory_bytes()
    return have is not None and host_bytes(story.model, strategy, story.workload, cap) > have


def _launch(trial: Trial, story: Story, purpose: str, steps: int, cap: int | None, tracked: int, step: Step) -> Outcome:
    job = Job(
        model=story.model_path,
        backend_config=trial.config,
        world_size=story.workload.world_size,
        steps=steps,
        micro_batch=story.workload.micro_batch,
        seq_len=story.workload.seq_len,
        memory_cap_bytes=cap,
        track_memory_steps=tracked,
    )
    title = f"{trial.strategy.name}, {'under the cap' if cap else 'measuring memory'}"
    return torchrun(
        job,
        str(story.folder / "runs" / f"{trial.strategy.name}-{purpose}"),
        force=True,
        step=lambda what, fraction=None: step(f"{title}: {what}", fraction),
    )


def _conclude(story: Story, report: Report) -> None:
    for trial in story.trials:
        report.findings += trial.findings
        if not trial.as_predicted:
            report.findings += trial.diagnosis.findings if trial.diagnosis else []
    missed = [trial.strategy.name for trial in story.trials if not trial.as_predicted]
    report.data = to_json(story)
    report.text += _text(story, missed)
    report.page = page(story)
    report.exit = Exit.FAILED if missed else None
    write_text(story.folder / "report.html", report.page)
    write_text(story.folder / "report.json", report.to_json(Severity.ERROR))
    report.text.append(f"report: {story.folder / 'report.html'} and report.json")


def _text(story: Story, missed: list[str]) -> list[str]:
    machine = f"{story.workload.world_size} CPU ranks, {format_bytes(story.cap_bytes)} for the tensors of each, enforced"
    lines = [f"model {story.model.name}: {story.model.total_parameters:,} parameters; {machine}", *story.advice.text]
    for trial in story.trials:
        lines += _trial_text(trial)
    verdict = f"not as predicted: {', '.join(missed)}" if missed else "every run under the cap ended as the ledger predicted"
    return [*lines, verdict]


def _trial_text(trial: Trial) -> list[str]:
    name, predicted = trial.strategy.name, format_bytes(trial.predicted.peak_bytes)
    if trial.capped is None or trial.run is None or trial.diagnosis is None:
        return [f"{name}: not run, its config has errors"]
    ended = "ran" if trial.capped.completed else f"{trial.capped.status} ({trial.diagnosis.first_class or 'no cause seen'})"
    lines = [f"{name}: predicted {predicted} ({'fits' if trial.fits else 'does not fit'}); under the cap it {ended}"]
    if trial.measured_bytes is not None and trial.error is not None:
        measured = f"torch's tracker counted {format_bytes(trial.measured_bytes)}"
        lines.append(f"{name}: {measured}, the ledger is off by {signed_percent(trial.error)}")
    measures = trial.diagnosis.measures
    if trial.capped.completed and measures.median_step_time_s:
        rate = f", {measures.tokens_per_s:,.0f} tokens/s over all ranks" if measures.tokens_per_s else ""
        lines.append(f"{name}: median step {format_seconds(measures.median_step_time_s)}{rate}")
    return lines


def to_json(story: Story) -> dict[str, Any]:
    """The `data` of the report (demo.schema.json)."""
    return {
        "model": {"name": story.model.name, "parameters": story.model.total_parameters},
        "machine": {"devices": story.workload.world_size, "device": "cpu", "memory_cap_bytes": story.cap_bytes},
        "workload": story.workload.to_json(),
        "advice": story.advice.to_json(),
        "trials": [_trial_json(trial) for trial in story.trials],
    }


def _trial_json(trial: Trial) -> dict[str, Any]:
    reading = trial.reading
    return {
        "strategy": trial.strategy.name,
        "predicted_bytes": trial.predicted.peak_bytes,
        "fits": trial.fits,
        "measured_bytes": trial.measured_bytes,
        "relative_error": trial.error,
        "as_predicted": trial.as_predicted,
        "outcome": trial.capped.status if trial.capped else "not run",
        "diagnosis": trial.diagnosis.to_json() if trial.diagnosis else None,
        "config": trial.config,
        "applied": [{"key": u.key, "value": u.value, "becomes": u.meaning} for u in reading.applied] if reading else [],
        "not_applied": [{"key": u.key, "value": u.value, "reason": u.meaning} for u in reading.not_applied] if reading else [],
        "effective": trial.run.effective if trial.run else None,
        "measured_effective": trial.measured.effective if trial.measured else None,
    }
