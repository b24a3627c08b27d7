"""The HTML page of `trainwright demo`: one story from the model to the measured run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright import page as p
from trainwright.diagnose.run_folder import StepRow
from trainwright.page import Bar, Html
from trainwright.units import format_bytes, format_count, format_seconds, signed_percent

if TYPE_CHECKING:
    from trainwright.demo import Story, Trial

_KINDS = {
    "state": "parameters, gradients, optimizer",
    "gathered": "gathered units",
    "communication": "communication buffers",
    "activation": "activations",
    "loss": "logits and loss",
    "batch": "batch",
    "workspace": "workspace",
}


def page(story: Story) -> str:
    """The whole page as text."""
    cap, ranks = format_bytes(story.cap_bytes), story.workload.world_size
    size = format_count(story.model.total_parameters)
    lead = f"{story.model.name}, {size} parameters, on {ranks} CPU ranks of {cap} each: predicted, run and measured."
    parts = (_headline(story), _ledgers(story), _accuracy(story), _runs(story), _speed(story), _configs(story), _honesty(story))
    return p.document("trainwright demo", lead, *parts)


def _headline(story: Story) -> Html:
    held = [trial for trial in story.trials if trial.as_predicted]
    errors = [abs(trial.error) for trial in story.trials if trial.error is not None]
    choice = story.advice.choice.name if story.advice.choice else "none fits"
    tone = "good" if len(held) == len(story.trials) else "bad"
    return p.cards(
        (
            (choice, "chosen strategy", "good" if story.advice.choice else "bad"),
            (f"{len(held)} of {len(story.trials)}", "runs under the cap ended as the ledger predicted", tone),
            (f"{max(errors):.1%}" if errors else "not measured", "largest error of the ledger against torch's memory tracker", ""),
            (format_bytes(story.cap_bytes), "memory cap of each rank, enforced by the kernel", ""),
        )
    )


def _ledgers(story: Story) -> Html:
    bars = []
    for candidate in story.advice.candidates:
        segments = tuple((words, float(size)) for kind, words in _KINDS.items() if (size := candidate.ledger.bytes_of(kind)))
        note = f"{format_bytes(candidate.ledger.peak_bytes)}, {'fits' if candidate.fits else 'does not fit'}"
        bars.append(Bar(candidate.strategy.name, segments, note))
    chart = p.stacked_bars(bars, float(story.cap_bytes), f"cap {format_bytes(story.cap_bytes)}")
    choice = story.advice.choice.name if story.advice.choice else "nothing fits"
    said = [
        f"{choice}: {story.advice.reasons[0]}",
        *story.advice.reasons[1:],
        *story.advice.remedies,
        f"Confidence: {story.advice.confidence}",
    ]
    reasons = p.element("ul", *(p.element("li", reason) for reason in said))
    return p.section("What the ledger predicts: peak tensor memory of the fullest rank", chart, reasons)


def _accuracy(story: Story) -> Html:
    rows = []
    for trial in story.trials:
        if trial.measured_bytes is None or trial.error is None:
            rows.append((trial.strategy.name, format_bytes(trial.predicted.peak_bytes), "not measured", ""))
            continue
        tone = "good" if abs(trial.error) <= 0.05 else "bad"
        error = p.element("span", signed_percent(trial.error), class_=tone)
        rows.append((trial.strategy.name, format_bytes(trial.predicted.peak_bytes), format_bytes(trial.measured_bytes), error))
    note = p.paragraph(
        "Measured by torch's own memory tracker over two steps without a cap; the tracker slows them, so they count for no speed.",
        tone="soft",
    )
    return p.section("Predicted and measured", p.table(("strategy", "ledger", "torch's tracker", "error"), rows, (1, 2, 3)), note)


def _runs(story: Story) -> Html:
    return p.section(
        "What happened under the cap",
        p.table(("strategy", "predicted", "outcome", "as predicted", "diagnosis"), map(_run_row, story.trials)),
    )


def _run_row(trial: Trial) -> tuple[p.Child, ...]:
    expected = "fits" if trial.fits else "does not fit"
    if trial.capped is None or trial.diagnosis is None:
        return trial.strategy.name, expected, "not run", p.element("span", "no", class_="bad"), "its config has errors"
    said = "; ".join(finding.message for finding in trial.diagnosis.findings) or "nothing wrong seen"
    tone, word = ("good", "yes") if trial.as_predicted else ("bad", "no")
    return trial.strategy.name, expected, trial.capped.status, p.element("span", word, class_=tone), said


def _speed(story: Story) -> Html:
    ran = [trial for trial in story.trials if trial.capped and trial.capped.completed and trial.diagnosis]
    parts: list[Html] = []
    for trial in ran:
        parts.append(_measures(trial))
    loss = [(trial.strategy.name, _points(trial)) for trial in ran if _points(trial)]
    if loss:
        parts.append(p.line_chart(loss, "step", "training loss"))
    return p.section("What the run that fits measured", *(parts or [p.paragraph("no run completed", tone="bad")]))


def _measures(trial: Trial) -> Html:
    assert trial.diagnosis is not None
    m = trial.diagnosis.measures
    figures = (
        ("first step", m.first_step_time_s and format_seconds(m.first_step_time_s)),
        ("median step", m.median_step_time_s and format_seconds(m.median_step_time_s)),
        ("tokens/s, all ranks", m.tokens_per_s and f"{m.tokens_per_s:,.0f}"),
        *((phase.removesuffix("_s"), seconds and format_seconds(seconds)) for phase, seconds in m.phases.items()),
    )
    return p.table((trial.strategy.name, *(name for name, _ in figures)), [("", *(value or "unknown" for _, value in figures))])


def _points(trial: Trial) -> list[tuple[float, float]]:
    rows: list[StepRow] = trial.run.in_order[0].steps if trial.run and trial.run.ranks else []
    return [(float(row.step), row.loss) for row in rows if row.loss is not None and row.loss == row.loss]


def _configs(story: Story) -> Html:
    return p.section(
        "The config files, and what the running job made of them", *(part for trial in story.trials for part in _config(trial))
    )


def _config(trial: Trial) -> tuple[Html, ...]:
    verdict = "; ".join(f"{finding.rule}: {finding.message}" for finding in trial.findings) or "check finds nothing"
    return (
        p.paragraph(p.element("b", trial.strategy.name), f": {verdict}. {_live(trial)}"),
        p.code(trial.config_text),
        p.table(("key", "value", "", "meaning"), _keys(trial)),
    )


def _keys(trial: Trial) -> list[tuple[p.Child, ...]]:
    if trial.reading is None:
        return []
    applied = p.element("span", "applied", class_="good")
    rows: list[tuple[p.Child, ...]] = [(use.key, str(use.value), applied, use.meaning) for use in trial.reading.applied]
    return rows + [(use.key, str(use.value), "not applied", use.meaning) for use in trial.reading.not_applied]


def _live(trial: Trial) -> str:
    live = (trial.run and trial.run.effective) or (trial.measured and trial.measured.effective)
    if not live:
        return "Nothing was read back: the job ended before its model was built."
    ratio = live.get("shard_ratio")
    share = f"{ratio:.0%} of the parameters on each rank" if isinstance(ratio, float) else "share of the parameters unknown"
    return f"Read back from the running job: {live.get('wrapper')}, world size {live.get('world_size')}, {share}."


def _honesty(story: Story) -> Html:
    left_out = [(name, reason) for name, reason in story.not_counted]
    commands = (
        f"trainwright estimate --model {story.model_path} --devices {story.workload.world_size} --device-memory {story.cap_bytes}\n"
        f"trainwright diagnose {story.folder / 'runs'}/*-capped"
    )
    return p.section("What is not counted, and how to repeat a step", p.table(("not in the ledger", "why"), left_out), p.code(commands))
