"""The decision: the simplest that fits with room to spare, and what is said where nothing does."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.advise import decide as decide_module
from trainwright.advise import remedies
from trainwright.advise.decide import MARGIN, Advice, decide, strategies
from trainwright.cost.memory import Workload, ledger
from trainwright.errors import UserError
from trainwright.evidence import evidence
from trainwright.model import ModelSpec, load_model
from trainwright.report import Severity
from trainwright.strategy import Precision, Strategy
from trainwright.units import format_bytes

ROOT = Path(__file__).resolve().parents[2]
DEMO = load_model(str(ROOT / "helpers/trainwright/models/llama-demo/config.json"))
JOB = Workload(2, 128, 4)
MIB = 2**20
# The ledger of the demo in fp32 (tests/cost): ddp 371.4 MiB, shard_grad_op 209.3, full_shard 169.3.
DDP, GRAD, FULL = strategies(DEMO, 4)


def advise(mebibytes: float, workload: Workload = JOB) -> Advice:
    return decide(DEMO, workload, int(mebibytes * MIB))


def names(found: Advice) -> tuple[str | None, str, str | None]:
    return found.choice.name if found.choice else None, found.fallback.name, found.alternative.name if found.alternative else None


@pytest.mark.parametrize(
    ("mebibytes", "expected"),
    [
        (1000, ("ddp", "ddp", "fsdp_shard_grad_op")),
        (420, ("ddp", "ddp", "fsdp_shard_grad_op")),  # 420 x 0.9 = 378
        (400, ("fsdp_shard_grad_op", "ddp", "fsdp_full_shard")),  # ddp fits, without 10 % to spare
        (270, ("fsdp_shard_grad_op", "ddp", "fsdp_full_shard")),
        (220, ("fsdp_full_shard", "ddp", "fsdp_shard_grad_op")),  # 220 x 0.9 = 198: shard_grad_op is too tight
        (180, ("fsdp_full_shard", "ddp", "fsdp_shard_grad_op")),  # 180 x 0.9 = 162: barely
        (160, (None, "ddp", "fsdp_full_shard")),
    ],
)
def test_the_simplest_that_leaves_room(mebibytes: float, expected: tuple[str | None, str, str | None]) -> None:
    assert names(advise(mebibytes)) == expected


def test_one_rank_has_nothing_to_share() -> None:
    found = advise(1000, Workload(2, 128, 1))
    assert names(found) == ("single", "single", None)
    assert "there is no other on one rank" in "\n".join(found.text)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 3000), st.integers(1, 4), st.integers(1, 8))
def test_the_choice_is_what_the_candidates_say(mebibytes: int, micro_batch: int, ranks: int) -> None:
    """Brute force over the candidates, by the words of the rule alone."""
    found = advise(mebibytes, Workload(micro_batch, 128, ranks))
    safe = [c.strategy for c in found.candidates if c.ledger.peak_bytes <= (1 - MARGIN) * found.memory_bytes]
    fitting = sorted((c for c in found.candidates if c.ledger.peak_bytes <= found.memory_bytes), key=lambda c: c.ledger.peak_bytes)
    expected = safe[0] if safe else fitting[0].strategy if fitting else None
    assert found.choice == expected
    assert found.fallback == found.candidates[0].strategy
    assert found.alternative != found.choice or found.choice is None
    assert (found.choice is None) == any(f.rule == "ADV001" for f in found.findings)
    assert (expected is not None and not safe) == any(f.rule == "ADV003" for f in found.findings)
    assert found.reasons and found.confidence and (found.choice is not None or found.remedies)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 1000), st.integers(1, 1000))
def test_more_memory_never_takes_a_strategy_away(few: int, more: int) -> None:
    order = [None, FULL, GRAD, DDP]  # what each amount of memory allows, from least to most
    less, much = advise(few), advise(few + more)
    if much.choice in (FULL, GRAD):  # a barely fitting choice falls back to the lowest peak, which is full_shard
        assert order.index(less.choice) <= order.index(much.choice) or not less.of(less.choice or FULL).safe
    assert less.choice is None or much.choice is not None


def test_reasons_name_the_margin_the_rejected_and_the_traffic() -> None:
    found = advise(270)
    said = "\n".join(found.reasons)
    assert "leaves the 10% kept free for the ledger's own error and for fragmentation: 60.7 MiB of 270.0 MiB left" in said
    assert "ddp peaks at 371.4 MiB, 101.4 MiB more than there is" in said
    # N = 18,880,896 weights on 4 ranks in fp32: 2 N 3/4 elements of 4 bytes
    assert "each step sends 108.0 MiB a rank: it gathers units once and reduce-scatters gradients in fp32" in said
    assert "given up: fsdp_full_shard would peak 40.0 MiB lower (micro batch up to 4 instead of 3)" in said
    assert "which is fastest is not predicted" in found.confidence


def test_traffic_follows_the_precision_and_the_strategy() -> None:
    """Bytes a rank and step, N (W-1)/W elements each time: ddp reduces fp32 under autocast too, fsdp gathers and reduces bf16."""
    unit = 18_880_896 * 3 / 4
    for precision, name, size in (
        ("fp32", "ddp", 8 * unit),
        ("bf16", "ddp", 8 * unit),
        ("fp32", "fsdp_full_shard", 12 * unit),
        ("bf16", "fsdp_full_shard", 6 * unit),
        ("bf16", "fsdp_shard_grad_op", 4 * unit),
    ):
        found = decide(DEMO, JOB, 2**40, precision)  # type: ignore[arg-type]
        strategy = next(c.strategy for c in found.candidates if c.strategy.name == name)
        assert decide_module._traffic(found, strategy)[0].startswith(f"each step sends {format_bytes(size)} a rank"), (precision, name)


def test_a_tight_choice_is_a_warning_with_low_confidence() -> None:
    found = advise(175)
    assert names(found)[0] == "fsdp_full_shard" and found.confidence.startswith("low: 3.3% of the memory is left")
    assert [(f.rule, f.severity) for f in found.findings] == [("ADV003", Severity.WARNING)]
    assert "the one with the lowest peak (169.3 MiB); none leaves" in found.reasons[0]


def test_the_ceiling_speaks_against_a_choice() -> None:
    found = advise(270, Workload(3, 128, 4))
    signals = "\n".join(found.counter_signals)
    assert names(found)[0] == "fsdp_full_shard" or "micro batch 3 is the ceiling of fsdp_shard_grad_op" in signals
    assert "below 1 B parameters" in signals


def test_evidence_is_on_the_choice_and_what_it_is_weighed_against() -> None:
    job = replace(JOB, device="xpu")
    assert {row.strategy for row in advise(1000, job).evidence} == {"ddp"}
    found = advise(270, job)
    quoted = {row.id for row in found.evidence}
    assert quoted == {row.id for row in evidence() if row.strategy.startswith("fsdp")} >= {"AURORA-HSDP-06B", "AURORA-FULLSHARD-2B"}
    lines = [line for line in found.text if line.startswith("evidence ")]
    assert len(lines) == len(quoted) and all("Aurora" in line for line in lines), "never without its scope"
    assert advise(270).evidence == [], "measured on accelerators: nothing on CPU ranks"


def test_nothing_fits_names_what_would() -> None:
    found = advise(110)
    assert names(found)[0] is None and "even fsdp_full_shard peaks at 169.3 MiB, 59.3 MiB more than there is" in found.reasons[0]
    assert [f.rule for f in found.findings] == ["ADV001"]
    (said,) = found.remedies
    assert said.startswith("together: 6 ranks of this memory, activation checkpointing: "), "neither is enough alone here"
    assert found.confidence.startswith("high that it does not fit")


@pytest.mark.parametrize("mebibytes", [60, 90, 110, 130, 150, 165])
def test_every_remedy_holds_on_the_ledger(mebibytes: int) -> None:
    found = advise(mebibytes)
    assert found.choice is None
    limit = mebibytes * MIB
    for remedy in found.remedies:
        if remedy.startswith("micro batch"):
            batch = int(remedy.split()[2])
            assert min(ledger(DEMO, s, replace(JOB, micro_batch=batch)).peak_bytes for s in (GRAD, FULL)) <= limit
        elif remedy.startswith("bf16"):
            assert ledger(DEMO, replace(FULL, precision="bf16"), JOB).peak_bytes <= limit
        elif remedy.startswith("activation checkpointing"):
            assert ledger(DEMO, replace(FULL, activation_checkpointing=True), JOB).peak_bytes <= limit
        elif remedy.startswith("together: "):
            _holds_together(remedy, limit)
        elif " ranks of this memory" in remedy:
            assert ledger(DEMO, FULL, replace(JOB, world_size=int(remedy.split()[0]))).peak_bytes <= limit
        else:
            pytest.fail(f"a remedy that no ledger was asked for: {remedy}")


@settings(max_examples=15, deadline=None)
@given(st.integers(100, 169))
def test_the_fewest_ranks_by_brute_force(mebibytes: int) -> None:
    limits = remedies.Limits(DEMO, JOB, mebibytes * MIB, "fp32")
    fitting = (w for w in range(JOB.world_size + 1, 33) if ledger(DEMO, FULL, replace(JOB, world_size=w)).peak_bytes <= limits.memory_bytes)
    least, found = next(fitting, None), remedies.fewest_ranks(limits, FULL)
    if least is not None:
        assert found is not None
        # Padding makes a few counts cost more than the one below; the search may then stop one power of two short, never wrong.
        assert ledger(DEMO, FULL, replace(JOB, world_size=found)).peak_bytes <= limits.memory_bytes
        assert least <= found <= least + 2
    else:
        assert found is None or found > 32


def test_a_model_too_large_for_any_number_of_ranks() -> None:
    found = decide(DEMO.resized(vocab_size=10**9), JOB, 40 * 2**30)
    (said,) = found.remedies
    assert found.choice is None and said.startswith(remedies.ONE_UNIT)


def _holds_together(remedy: str, limit: int, model: ModelSpec = DEMO, job: Workload = JOB) -> None:
    """The words of a combination, read back and asked of the ledger."""

    def number(pattern: str, default: int) -> int:
        found = re.search(pattern, remedy)
        return int(found[1]) if found else default

    sizes = number(r"micro batch (\d+)", job.micro_batch), number(r"sequences of (\d+) tokens", job.seq_len)
    workload = replace(job, micro_batch=sizes[0], seq_len=sizes[1], world_size=number(r"(\d+) ranks of", job.world_size))
    precision: Precision = "bf16" if "bf16 mixed precision" in remedy else "fp32"
    peak = ledger(model, remedies.full_shard(model, precision, "activation checkpointing" in remedy), workload).peak_bytes
    assert peak <= limit and remedy.endswith(f"fsdp_full_shard then peaks at {format_bytes(peak)}"), remedy


def test_what_only_helps_together_is_named() -> None:
    """7B on 4 ranks of 24 GiB: neither more ranks nor recomputation is enough alone, both are."""
    model, job = load_model("7b"), Workload(1, 4096, 4)
    (remedy,) = decide(model, job, 24 * 2**30).remedies
    assert "ranks of this memory, activation checkpointing" in remedy and remedies.ONE_UNIT not in remedy
    _holds_together(remedy, 24 * 2**30, model, job)


@settings(max_examples=25, deadline=None)
@given(st.integers(20, 170), st.integers(1, 8), st.sampled_from([128, 512]))
def test_one_unit_is_too_large_only_where_nothing_fits(mebibytes: int, batch: int, seq_len: int) -> None:
    job = Workload(batch, seq_len, 4)
    found = advise(mebibytes, job)
    for remedy in found.remedies:
        if remedy.startswith("together: "):
            _holds_together(remedy, mebibytes * MIB, DEMO, job)
        elif remedy.startswith(remedies.ONE_UNIT):
            least = remedies.full_shard(DEMO, "bf16", checkpointing=True)
            peaks = [ledger(DEMO, least, Workload(1, 1, ranks)).peak_bytes for ranks in (2, 8, 64, 512)]
            assert min(peaks) > mebibytes * MIB


def test_what_was_tried_is_said_where_a_unit_would_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remedies, "_together", lambda limits: iter(()))
    limits = remedies.Limits(load_model("7b"), Workload(1, 4096, 4), 24 * 2**30, "fp32")
    (said,) = remedies.all_that_help(limits, FULL, 0)
    assert said.startswith("nothing that was tried: micro batch 1, bf16") and "down to 128 tokens" in said


def test_no_more_ranks_than_are_asked_of_the_ledger() -> None:
    assert remedies.fewest_ranks(remedies.Limits(DEMO, Workload(1, 128, 10**7), 1, "fp32"), FULL) is None


def test_a_sequence_beyond_the_positions_is_a_finding() -> None:
    found = advise(10**6, Workload(1, 1024, 4))
    assert [(f.rule, f.severity) for f in found.findings] == [("ADV002", Severity.WARNING)]


@pytest.mark.parametrize("memory", [0, -1])
def test_no_memory_is_a_mistake(memory: int) -> None:
    with pytest.raises(UserError, match="holds nothing"):
        decide(DEMO, JOB, memory)


def test_absurd_memory_is_just_a_lot() -> None:
    assert decide(DEMO, JOB, 10**30).choice == DDP


def test_strategies_can_be_written_and_are_ordered_from_simple() -> None:
    assert [s.name for s in strategies(DEMO, 2)] == ["ddp", "fsdp_shard_grad_op", "fsdp_full_shard"]
    assert strategies(DEMO, 1, "bf16") == (Strategy("single", precision="bf16"),)
