"""The HTML page of one run: what went wrong, how fast it was, and each rank's steps."""

from __future__ import annotations

from trainwright import page as p
from trainwright.diagnose.measure import Measures
from trainwright.diagnose.run_folder import Rank, Run
from trainwright.diagnose.verdict import Diagnosis
from trainwright.page import Html
from trainwright.units import format_bytes, format_seconds

MOST_LINES = 8  # more ranks than colours make a chart unreadable: the fastest and the slowest stay


def page(run: Run, diagnosis: Diagnosis) -> str:
    """The whole page as text."""
    status = run.status or "no word on its end"
    parts = (_headline(status, diagnosis), _findings(diagnosis), _charts(run), _ranks(diagnosis.measures))
    return p.document(f"run {run.path}", f"{status}, {len(run.ranks)} ranks", *parts)


def _headline(status: str, diagnosis: Diagnosis) -> Html:
    m = diagnosis.measures
    strategy = str((m.strategy or {}).get("name") or "unknown")
    return p.cards(
        (
            (status, "outcome", "good" if status == "completed" else "bad"),
            (strategy, "strategy, read back from the running job", ""),
            (format_seconds(m.median_step_time_s) if m.median_step_time_s else "unknown", f"median of {m.steady_steps} steady steps", ""),
            (f"{m.tokens_per_s:,.0f}" if m.tokens_per_s else "unknown", "tokens/s over all ranks", ""),
        )
    )


def _findings(diagnosis: Diagnosis) -> Html:
    if not diagnosis.findings:
        return p.section("What went wrong", p.paragraph("Nothing that the files show.", tone="good"))
    parts: list[Html] = []
    for finding, stated in zip(diagnosis.findings, diagnosis.diagnoses, strict=True):
        culprit = f"rank {stated['culprit']['value']}" if stated["culprit"] else "no single rank"
        parts.append(p.paragraph(p.element("b", f"{finding.rule} {stated['class']}"), f": {finding.message}"))
        parts.append(
            p.paragraph(f"Culprit: {culprit}. Confidence: {stated['confidence']}. To confirm: {stated['confirm'] or 'nothing more'}.")
        )
        lines = "\n".join(f"{line['file']}:{line['line'] or '?'}: {line['text']}" for line in stated["evidence"])
        parts += [p.code(lines)] if lines else []
    return p.section("What went wrong", *parts)


def _charts(run: Run) -> Html:
    shown = _shown([rank for rank in run.in_order if rank.steps])
    times = [(f"rank {rank.number}", [(float(s.step), s.step_time_s) for s in rank.steps if s.step_time_s is not None]) for rank in shown]
    losses = [(float(s.step), s.loss) for rank in shown[:1] for s in rank.steps if s.loss is not None and abs(s.loss) < float("inf")]
    parts = [p.line_chart([line for line in times if line[1]], "step", "step time in seconds")]
    parts += [p.line_chart([("loss", losses)], "step", "training loss")] if losses else []
    return p.section("Step by step", *parts)


def _shown(ranks: list[Rank]) -> list[Rank]:
    if len(ranks) <= MOST_LINES:
        return ranks

    def total(rank: Rank) -> float:
        return sum(step.step_time_s or 0.0 for step in rank.steps)

    by_time = sorted(ranks, key=total)
    return sorted(by_time[: MOST_LINES // 2] + by_time[-MOST_LINES // 2 :], key=lambda rank: rank.number)


def _ranks(measures: Measures) -> Html:
    rows = [
        (
            rank.rank,
            rank.steps,
            rank.status,
            "unknown" if rank.exitcode is None else rank.exitcode,
            format_seconds(rank.median_step_time_s) if rank.median_step_time_s else "unknown",
            format_bytes(rank.peak_memory_bytes) if rank.peak_memory_bytes else "not tracked",
            format_bytes(rank.peak_rss_bytes) if rank.peak_rss_bytes else "unknown",
        )
        for rank in measures.ranks
    ]
    headers = ("rank", "steps", "status", "exit code", "median step", "peak tensors", "peak resident")
    return p.section("Ranks", p.table(headers, rows, (0, 1, 3, 4, 5, 6)))
