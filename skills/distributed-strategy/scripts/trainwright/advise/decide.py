"""Which strategy for this model on these ranks: the simplest that fits, from the ledger, with what speaks against it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from trainwright.cost.memory import LARGEST_COUNT, Ledger, Workload, ledger, max_micro_batch
from trainwright.errors import UserError
from trainwright.evidence import Evidence, evidence
from trainwright.model import ModelSpec
from trainwright.report import Finding
from trainwright.rules import check_all, load_all
from trainwright.strategy import Precision, Strategy
from trainwright.units import format_bytes

# The bar that the ledger is held to against torch's memory tracker (tests/cost): a peak this close to the limit is no certainty.
LEDGER_ERROR = 0.05
MOST_RANKS = 65536


@dataclass(frozen=True, slots=True)
class Candidate:
    """One strategy on this model and workload; `headroom_bytes` is what the limit leaves (negative: what is missing).

    None stands where no limit is known.
    """

    strategy: Strategy
    ledger: Ledger
    fits: bool | None
    headroom_bytes: int | None
    max_micro_batch: int | None

    def to_json(self) -> dict[str, Any]:
        return {
            "strategy": self.strategy.name,
            "fits": self.fits,
            "headroom_bytes": self.headroom_bytes,
            "max_micro_batch": self.max_micro_batch,
            "ledger": self.ledger.to_json(),
        }


@dataclass(slots=True)
class Advice:
    """The decision. `choice` is None where nothing fits; `fallback` is the simplest strategy, what one would run unadvised."""

    model: ModelSpec
    workload: Workload
    memory_bytes: int
    candidates: tuple[Candidate, ...]
    choice: Strategy | None
    fallback: Strategy
    alternative: Strategy | None
    reasons: list[str] = field(default_factory=list)
    remedies: list[str] = field(default_factory=list)
    confidence: str = ""
    counter_signals: list[str] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def of(self, strategy: Strategy) -> Candidate:
        return next(candidate for candidate in self.candidates if candidate.strategy == strategy)

    @property
    def text(self) -> list[str]:
        """What a person reads: the decision, why, how sure, what speaks against it."""
        head = f"choose {self.choice.name}" if self.choice else "nothing fits"
        lines = [f"{head}: {self.reasons[0]}", *(f"  {reason}" for reason in self.reasons[1:])]
        lines += [f"  instead: {remedy}" for remedy in self.remedies]
        lines += [f"confidence: {self.confidence}"] if self.confidence else []
        lines += [f"against it: {signal}" for signal in self.counter_signals]
        return lines + [f"evidence {row.id}: {row.quote} ({row.scope})" for row in self.evidence]

    def to_json(self) -> dict[str, Any]:
        return {
            "choice": self.choice.name if self.choice else None,
            "fallback": self.fallback.name,
            "alternative": self.alternative.name if self.alternative else None,
            "memory_bytes": self.memory_bytes,
            "candidates": [candidate.to_json() for candidate in self.candidates],
            "reasons": self.reasons,
            "remedies": self.remedies,
            "confidence": self.confidence,
            "counter_signals": self.counter_signals,
            "evidence": [row.to_json() for row in self.evidence],
        }


def strategies(model: ModelSpec, world_size: int, precision: Precision = "fp32", checkpointing: bool = False) -> tuple[Strategy, ...]:
    """What a job of this size can run, simplest first: each next one holds less and sends more."""
    if world_size == 1:
        return (Strategy("single", precision=precision),)
    shard = Strategy("fsdp", wrap_classes=(model.block_class,), precision=precision, activation_checkpointing=checkpointing)
    return (Strategy("ddp", precision=precision), replace(shard, reshard_after_forward=False), shard)


def decide(model: ModelSpec, workload: Workload, memory_bytes: int, precision: Precision = "fp32") -> Advice:
    """The Advice for `model` on `workload.world_size` ranks whose tensors may take `memory_bytes` each.

    Raises UserError for a limit that is no memory, and for what the ledger does not know.
    """
    if memory_bytes < 1:
        raise UserError(f"a memory of {memory_bytes} bytes holds nothing; give what each rank has, such as 40GiB")
    candidates = tuple(_candidate(model, s, workload, memory_bytes) for s in strategies(model, workload.world_size, precision))
    fitting = [candidate for candidate in candidates if candidate.fits]
    choice = fitting[0].strategy if fitting else None
    advice = Advice(model, workload, memory_bytes, candidates, choice, candidates[0].strategy, _alternative(candidates, choice))
    if choice:
        _explain(advice, advice.of(choice))
    else:
        _explain_nothing(advice, precision)
    load_all("advise")  # here, not at the top: the rules import this module
    advice.findings = check_all(advice)
    return advice


def _candidate(model: ModelSpec, strategy: Strategy, workload: Workload, memory_bytes: int) -> Candidate:
    found = ledger(model, strategy, workload)
    headroom = memory_bytes - found.peak_bytes
    return Candidate(strategy, found, headroom >= 0, headroom, max_micro_batch(model, strategy, workload, memory_bytes))


def _alternative(candidates: tuple[Candidate, ...], choice: Strategy | None) -> Strategy | None:
    """The next that holds less than the choice; the one before it where the choice is the last."""
    names = [candidate.strategy for candidate in candidates]
    others = [strategy for strategy in names if strategy != choice]
    if not others:
        return None
    after = names[names.index(choice) + 1 :] if choice else []
    return after[0] if after else others[-1]


def _room(candidate: Candidate) -> int:
    assert candidate.headroom_bytes is not None  # decide always has a limit
    return candidate.headroom_bytes


def _explain(advice: Advice, chosen: Candidate) -> None:
    limit, peak = format_bytes(advice.memory_bytes), format_bytes(chosen.ledger.peak_bytes)
    advice.reasons.append(f"its peak of {peak} fits {limit} and it is the simplest that does ({format_bytes(_room(chosen))} left)")
    for candidate in advice.candidates:
        if candidate.strategy == chosen.strategy:
            break
        peak = format_bytes(candidate.ledger.peak_bytes)
        advice.reasons.append(f"{candidate.strategy.name} needs {peak}, {format_bytes(-_room(candidate))} more than there is")
    advice.reasons += _traffic(chosen.strategy)
    share = _room(chosen) / advice.memory_bytes
    if share < LEDGER_ERROR:
        advice.confidence = f"low: {share:.1%} of the memory is left, less than the {LEDGER_ERROR:.0%} the ledger may be off"
    elif share < 0.15:
        advice.confidence = f"medium: {share:.0%} of the memory is left for what the ledger does not count (allocator, device context, communication)"
    else:
        advice.confidence = f"high that it fits: {share:.0%} of the memory is left; no speed is predicted here"
    advice.counter_signals = _counter_signals(advice, chosen)
    advice.evidence = evidence(chosen.strategy.name)


def _traffic(strategy: Strategy) -> list[str]:
    """What each step sends, P the bytes of all parameters and W the ranks (ring algorithms; Rajbhandari et al., ZeRO, 2020, section 7)."""
    said = {
        "ddp": "each step all-reduces the gradients: 2P(W-1)/W bytes a rank, mostly behind the backward",
        "fsdp_shard_grad_op": "each step gathers every unit once and reduce-scatters gradients: 2P(W-1)/W bytes a rank, as much as ddp",
        "fsdp_full_shard": "each step gathers every unit twice and reduce-scatters gradients: 3P(W-1)/W bytes a rank, half again as much as ddp",
    }
    return [said[strategy.name]] if strategy.name in said else []


def _counter_signals(advice: Advice, chosen: Candidate) -> list[str]:
    signals = []
    if chosen.strategy.kind == "fsdp" and (chosen.max_micro_batch or 0) <= advice.workload.micro_batch:
        signals.append(f"micro batch {advice.workload.micro_batch} is the ceiling: a longer sequence or a larger batch will not fit")
    if chosen.strategy.name == "fsdp_full_shard" and advice.model.total_parameters < 1e9:
        signals.append("a model below 1 B parameters computes little per gathered byte; measure before scaling over nodes")
    if chosen.strategy.kind == "ddp" and (chosen.max_micro_batch or 0) <= advice.workload.micro_batch:
        signals.append("ddp leaves no room for a larger micro batch; sharding would")
    return signals


def _explain_nothing(advice: Advice, precision: Precision) -> None:
    least = min(advice.candidates, key=lambda candidate: candidate.ledger.peak_bytes)
    short = format_bytes(-_room(least))
    advice.reasons.append(f"even {least.strategy.name} peaks at {format_bytes(least.ledger.peak_bytes)}, {short} more than there is")
    advice.remedies = [*_smaller_batch(least), *_checkpointing(advice, precision), *_more_ranks(advice, precision)]
    if not advice.remedies:
        advice.remedies = ["none of a smaller micro batch, activation checkpointing or more ranks helps: one block alone is too large; it needs tensor parallelism, offload or larger devices"]


def _smaller_batch(least: Candidate) -> list[str]:
    if not least.max_micro_batch:
        return []
    return [f"micro batch {least.max_micro_batch} fits under {least.strategy.name} (accumulate to keep the global batch)"]


def _checkpointing(advice: Advice, precision: Precision) -> list[str]:
    for strategy in strategies(advice.model, advice.workload.world_size, precision, checkpointing=True):
        if strategy.activation_checkpointing and (peak := ledger(advice.model, strategy, advice.workload).peak_bytes) <= advice.memory_bytes:
            return [f"activation checkpointing on every block: {strategy.name} then peaks at {format_bytes(peak)}, for about a third more compute"]
    return []


def _more_ranks(advice: Advice, precision: Precision) -> list[str]:
    """The fewest ranks, found by doubling and halving, on which full sharding fits at this micro batch."""

    def fits(ranks: int) -> bool:
        strategy = strategies(advice.model, max(ranks, 2), precision)[-1]
        return ledger(advice.model, strategy, replace(advice.workload, world_size=ranks)).peak_bytes <= advice.memory_bytes

    low = high = advice.workload.world_size
    while not fits(high := min(high * 2, MOST_RANKS)):
        if high >= MOST_RANKS:
            return []
        low = high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return [f"{high} ranks of this memory: the fewest on which fsdp_full_shard fits at this micro batch"]


assert MOST_RANKS <= LARGEST_COUNT
