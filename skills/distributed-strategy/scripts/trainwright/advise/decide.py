"""Which strategy for this model on these ranks: the simplest that fits with room to spare, with what speaks against it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from trainwright.advise import remedies
from trainwright.cost.memory import Ledger, Workload, ledger, max_micro_batch
from trainwright.errors import UserError
from trainwright.evidence import Evidence, evidence
from trainwright.model import ModelSpec
from trainwright.report import Finding
from trainwright.rules import check_all, load_all
from trainwright.strategy import Precision, Strategy
from trainwright.units import format_bytes

# Kept free before a choice counts as safe: 5 % is the bar that tests/cost holds the ledger to against torch's memory tracker, and
# as much again stands for what an allocator rounds up and cannot reuse. On CPU ranks under an enforced cap the demo's jobs failed at
# 1.00 and ran at 1.05 times the ledger; for the allocators of accelerators it is an assumption.
LEDGER_ERROR = 0.05
MARGIN = 0.10
SAFE = f"the {MARGIN:.0%} kept free for the ledger's own error and for fragmentation"


@dataclass(frozen=True, slots=True)
class Asked:
    """The job that a ledger or an advice is asked for."""

    model: ModelSpec
    workload: Workload


@dataclass(frozen=True, slots=True)
class Candidate:
    """One strategy on this model and workload; `headroom_bytes` is what the limit leaves (negative: what is missing).

    `fits` is about the limit itself, `safe` about the limit less MARGIN. None stands where no limit is known.
    """

    strategy: Strategy
    ledger: Ledger
    fits: bool | None
    safe: bool | None
    headroom_bytes: int | None
    max_micro_batch: int | None

    def to_json(self) -> dict[str, Any]:
        return {
            "strategy": self.strategy.name,
            "fits": self.fits,
            "safe": self.safe,
            "headroom_bytes": self.headroom_bytes,
            "max_micro_batch": self.max_micro_batch,
            "ledger": self.ledger.to_json(),
        }


@dataclass(slots=True)
class Advice:
    """The decision. `choice` is None where nothing fits; `fallback` is the simplest strategy, what one would run unadvised;
    `alternative` is the next one to try beside the choice."""

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
        lines += [self._fallback_line()] if self.choice else []
        lines += [f"confidence: {self.confidence}"] if self.confidence else []
        lines += [f"against it: {signal}" for signal in self.counter_signals]
        return lines + [f"evidence {row.id}: {row.quote} ({row.workload}; {row.hardware}; {row.scope})" for row in self.evidence]

    def _fallback_line(self) -> str:
        if self.choice != self.fallback:
            return f"fallback: {self.fallback.name}, the simplest"
        beside = f"; the next alternative is {self.alternative.name}" if self.alternative else "; there is no other on one rank"
        return f"fallback: {self.fallback.name} too, the choice is the simplest already{beside}"

    def to_json(self) -> dict[str, Any]:
        return {
            "choice": self.choice.name if self.choice else None,
            "fallback": self.fallback.name,
            "alternative": self.alternative.name if self.alternative else None,
            "memory_bytes": self.memory_bytes,
            "margin": MARGIN,
            "candidates": [candidate.to_json() for candidate in self.candidates],
            "reasons": self.reasons,
            "remedies": self.remedies,
            "confidence": self.confidence,
            "counter_signals": self.counter_signals,
            "evidence": [row.to_json() for row in self.evidence],
        }


def strategies(model: ModelSpec, world_size: int, precision: Precision = "fp32", checkpointing: bool = False) -> tuple[Strategy, ...]:
    """What a job of this size can run, simplest first: each next one holds less or sends more."""
    if world_size == 1:
        return (Strategy("single", precision=precision),)
    shard = Strategy("fsdp", wrap_classes=(model.block_class,), precision=precision, activation_checkpointing=checkpointing)
    return (Strategy("ddp", precision=precision), replace(shard, reshard_after_forward=False), shard)


def weigh(model: ModelSpec, strategy: Strategy, workload: Workload, memory_bytes: int | None) -> Candidate:
    """The strategy's ledger against a limit; raises UserError for what the ledger does not know."""
    found = ledger(model, strategy, workload)
    if memory_bytes is None:
        return Candidate(strategy, found, None, None, None, None)
    headroom = memory_bytes - found.peak_bytes
    ceiling = max_micro_batch(model, strategy, workload, memory_bytes)
    return Candidate(strategy, found, headroom >= 0, headroom >= MARGIN * memory_bytes, headroom, ceiling)


def decide(model: ModelSpec, workload: Workload, memory_bytes: int, precision: Precision = "fp32") -> Advice:
    """The Advice for `model` on `workload.world_size` ranks whose tensors may take `memory_bytes` each.

    Raises UserError for a limit that is no memory, and for what the ledger does not know.
    """
    if memory_bytes < 1:
        raise UserError(f"a memory of {memory_bytes} bytes holds nothing; give what each rank has, such as 40GiB")
    candidates = tuple(weigh(model, s, workload, memory_bytes) for s in strategies(model, workload.world_size, precision))
    choice = _choose(candidates)
    advice = Advice(model, workload, memory_bytes, candidates, choice, candidates[0].strategy, _alternative(candidates, choice))
    if choice:
        _explain(advice, advice.of(choice))
    else:
        _explain_nothing(advice, precision)
    advice.findings = [*judge(Asked(model, workload)), *judge(advice)]
    return advice


def judge(subject: Asked | Advice) -> list[Finding]:
    load_all("advise")  # here, not at the top: the rules import this module
    return check_all(subject)


def _choose(candidates: tuple[Candidate, ...]) -> Strategy | None:
    """The simplest that is safe; where none is, of those that fit at all the one with the lowest peak."""
    safe = [candidate for candidate in candidates if candidate.safe]
    if safe:
        return safe[0].strategy
    fitting = [candidate for candidate in candidates if candidate.fits]
    return min(fitting, key=lambda candidate: candidate.ledger.peak_bytes).strategy if fitting else None


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
    room = f"{format_bytes(_room(chosen))} of {limit} left"
    if chosen.safe:
        advice.reasons.append(f"the simplest whose peak ({peak}) leaves {SAFE}: {room}")
    else:
        advice.reasons.append(f"the one with the lowest peak ({peak}); none leaves {SAFE}: {room}")
    advice.reasons += [_rejected(candidate) for candidate in advice.candidates if candidate != chosen and not candidate.safe]
    advice.reasons += [*_traffic(chosen.strategy), *_given_up(advice, chosen)]
    advice.confidence = _confidence(_room(chosen) / advice.memory_bytes)
    advice.counter_signals = _counter_signals(advice, chosen)
    advice.evidence = _quoted(chosen.strategy)


def _rejected(candidate: Candidate) -> str:
    peak, room = format_bytes(candidate.ledger.peak_bytes), format_bytes(abs(_room(candidate)))
    if candidate.fits:
        return f"{candidate.strategy.name} peaks at {peak} and leaves {room}, less than the {MARGIN:.0%} kept free"
    return f"{candidate.strategy.name} peaks at {peak}, {room} more than there is"


def _traffic(strategy: Strategy) -> list[str]:
    """What each step sends, P the bytes of all parameters and W the ranks (ring algorithms; Rajbhandari et al., ZeRO, 2020, section 7)."""
    said = {
        "ddp": "each step all-reduces the gradients: 2P(W-1)/W bytes a rank, mostly behind the backward",
        "fsdp_shard_grad_op": "each step gathers units once, reduce-scatters gradients: 2P(W-1)/W bytes a rank, as much as ddp",
        "fsdp_full_shard": "each step gathers units twice, reduce-scatters gradients: 3P(W-1)/W bytes a rank, half again as much as ddp",
    }
    return [said[strategy.name]] if strategy.name in said else []


def _given_up(advice: Advice, chosen: Candidate) -> list[str]:
    """What shard_grad_op, taken before full_shard because it sends a third less, costs in memory."""
    if chosen.strategy.name != "fsdp_shard_grad_op":
        return []
    full = advice.candidates[-1]
    saved = chosen.ledger.peak_bytes - full.ledger.peak_bytes
    if saved <= 0:
        return [f"{full.strategy.name} would save no memory here"]
    same = full.max_micro_batch == chosen.max_micro_batch
    ceilings = (
        "for the same largest micro batch" if same else f"micro batch up to {full.max_micro_batch} instead of {chosen.max_micro_batch}"
    )
    return [f"given up: {full.strategy.name} would peak {format_bytes(saved)} lower ({ceilings})"]


def _confidence(share: float) -> str:
    if share < LEDGER_ERROR:
        return f"low: {share:.1%} of the memory is left, less than the {LEDGER_ERROR:.0%} that the ledger may be off"
    if share < MARGIN:
        return f"medium: {share:.1%} of the memory is left, which covers the ledger's error and hardly the allocator's fragmentation"
    return f"high that it fits: {share:.0%} of the memory is left; which is fastest is not predicted, only what each step sends"


def _counter_signals(advice: Advice, chosen: Candidate) -> list[str]:
    signals, batch = [], advice.workload.micro_batch
    if chosen.max_micro_batch is not None and chosen.max_micro_batch <= batch and advice.alternative:
        other = advice.of(advice.alternative)
        more = f"; {other.strategy.name} takes {other.max_micro_batch}" if (other.max_micro_batch or 0) > batch else ""
        signals.append(f"micro batch {batch} is the ceiling of {chosen.strategy.name}{more}")
    if chosen.strategy.kind == "fsdp" and advice.model.total_parameters < 1e9:
        signals.append("a model below 1 B parameters computes little per gathered byte: measure before scaling over nodes")
    return signals


def _quoted(strategy: Strategy) -> list[Evidence]:
    """The rows on the strategy; for either form of FSDP also those on the other, which is what it is weighed against."""
    return [row for row in evidence() if row.strategy == strategy.name or (strategy.kind == "fsdp" and row.strategy.startswith("fsdp"))]


def _explain_nothing(advice: Advice, precision: Precision) -> None:
    least = min(advice.candidates, key=lambda candidate: candidate.ledger.peak_bytes)
    short = format_bytes(-_room(least))
    advice.reasons.append(f"even {least.strategy.name} peaks at {format_bytes(least.ledger.peak_bytes)}, {short} more than there is")
    limits = remedies.Limits(advice.model, advice.workload, advice.memory_bytes, precision)
    advice.remedies = remedies.all_that_help(limits, least.strategy, least.max_micro_batch or 0)
    advice.confidence = "high that it does not fit: the ledger counts tensors only, and a real job needs more"
