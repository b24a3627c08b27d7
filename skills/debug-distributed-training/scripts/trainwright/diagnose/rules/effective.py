"""Rules on a run that may well have completed: did it run what was asked, and did it train anything."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from trainwright.diagnose.cause import Cause
from trainwright.diagnose.events import ranks_word
from trainwright.diagnose.run_folder import Rank, Run, StepRow, number, whole
from trainwright.report import Severity
from trainwright.rules import Hit, rule


@rule("RUN005", Severity.ERROR, Run, fails_at="never", checked="run", source="accelerate-1.15.0-state")
def effective_job_differs(run: Run) -> Iterator[Hit]:
    """The ranks ran another strategy, or another number of ranks, than was asked for.

    Nothing fails then: the job trains something else, or each rank trains alone. What counts is what the worker read
    back from the live model (wrapper class, world size, share of the parameters), not what the file said. Accelerate
    1.15 lets every rank train alone for `distributed_type: FSDP` where it sees no accelerator, without a word.

    Bad `manifest.json`:
        {"schema": "trainwright/manifest/1", "asked": {"strategy": "fsdp_full_shard"}, "outcome": {"status": "completed"}}
    Bad `perf/rank0.jsonl`:
        {"kind": "header", "rank": 0, "world_size": 1, "strategy": {"name": "ddp", "wrapper": "DistributedDataParallel", "world_size": 1}}
        {"kind": "end", "status": "completed", "steps": 1, "error": null}

    Good `manifest.json`:
        {"schema": "trainwright/manifest/1", "asked": {"strategy": "ddp"}, "outcome": {"status": "completed"}}
    Good `perf/rank0.jsonl`:
        {"kind": "header", "rank": 0, "world_size": 1, "strategy": {"name": "ddp", "wrapper": "DistributedDataParallel", "world_size": 1}}
        {"kind": "end", "status": "completed", "steps": 1, "error": null}
    """
    differing: dict[tuple[str, str], list[Rank]] = {}
    for rank in run.in_order:
        for found in _differences(run, rank):
            differing.setdefault(found, []).append(rank)
    for (name, message), ranks in differing.items():
        evidence = tuple(rank.header_line for rank in ranks if rank.header_line)
        said = f"{ranks_word(rank.number for rank in ranks)}: {message}"
        yield Cause(name, said, "high", evidence, None, "the wrapper class and world size that the worker read back").hit()


_ON_RANK = re.compile(r"in step \d+, on rank (\d{1,6});")
_WRAPPERS = {
    **{"single": "none", "ddp": "DistributedDataParallel", "local_sgd": "LocalSGD"},
    **{f"{kind}_{when}": "FSDPModule" for kind in ("fsdp", "hsdp") for when in ("full_shard", "shard_grad_op")},
    **{f"zero_{stage}": "DeepSpeedEngine" for stage in (1, 2, 3)},
}
_CUT = ("fsdp_", "hsdp_", "zero_3")  # strategies under which a rank holds a share of the parameters


def _differences(run: Run, rank: Rank) -> Iterator[tuple[str, str]]:
    """(class, what differs) of one rank's live model from what was asked."""
    live = rank.header.get("strategy")
    if not isinstance(live, dict):
        return
    asked, wrapper = run.asked_strategy, str(live.get("wrapper") or "")
    world = whole(live.get("world_size"))
    if world is not None and run.world_size and world != run.world_size:
        name = "silent_single_process" if run.world_size == 1 or len(run.with_header) < 2 else "silent_independent_processes"
        yield name, f"runs in a world of {world} where {run.world_size} ranks were asked for"
    name = str(live.get("name") or "")
    if asked and name and name != asked:
        yield "silent_strategy_downgrade", f"runs {name} ({wrapper}) where {asked} was asked for"
    elif (expected := _WRAPPERS.get(asked or name)) and wrapper and wrapper != expected:
        yield "silent_strategy_downgrade", f"the model is wrapped in {wrapper}, and {asked or name} is {expected}"
    share, copies = number(live.get("shard_ratio")), whole(live.get("replicas")) or 1
    shards = (world or 1) // copies if (asked or name).startswith("hsdp_") else world or 1
    if (asked or name).startswith(_CUT) and shards > 1 and share is not None and share > 1.5 / shards:
        yield (
            "silent_strategy_downgrade",
            f"a rank holds {share:.0%} of the parameters where sharding over {shards} ranks leaves {1 / shards:.0%}",
        )


@rule("RUN006", Severity.ERROR, Run, fails_at="end of run", checked="run", source="torch-2.13.0-elastic")
def nonfinite_loss(run: Run) -> Iterator[Hit]:
    """The loss or the gradient norm became NaN or infinite.

    From that step on the run trains nothing. The first rank to show it holds the batch or the weights where it began;
    where every rank shows it in the same step, the cause is common: the learning rate, the precision, the loss.

    Bad `perf/rank0.jsonl`:
        {"kind": "header", "rank": 0, "world_size": 1}
        {"kind": "step", "step": 1, "loss": 6.9}
        {"kind": "step", "step": 2, "loss": NaN}

    Good `perf/rank0.jsonl`:
        {"kind": "header", "rank": 0, "world_size": 1}
        {"kind": "step", "step": 1, "loss": 6.9}
        {"kind": "step", "step": 2, "loss": 6.8}
        {"kind": "end", "status": "completed", "steps": 2, "error": null}
    """
    firsts = [(row, rank) for rank in run.in_order if (row := next(filter(_nonfinite, rank.steps), None))]
    if not firsts:
        return
    step = min(row.step for row, _ in firsts)
    ranks = [rank for row, rank in firsts if row.step == step]
    row = next(row for row, _ in firsts if row.step == step)
    what = "loss" if row.loss is not None and not math.isfinite(row.loss) else "gradient norm"
    message = f"the {what} of {ranks_word(rank.number for rank in ranks)} is not finite from step {step} on"
    culprit = ranks[0].number if len(ranks) == 1 and len(run.with_header) > 1 else _named(run)
    message += f"; it began on rank {culprit}" if culprit is not None and len(ranks) > 1 else ""
    confirm = "the same steps with a lower learning rate, and in fp32; the batch of that step"
    yield Cause("nonfinite_loss", message, "high", tuple(row.line for row, _ in firsts if row.step == step), culprit, confirm).hit()


def _named(run: Run) -> int | None:
    """The one rank that the trainer itself named when it stopped: the loss in its records is that of all ranks together."""
    for rank in run.in_order:
        error = rank.end.get("error")
        said = _ON_RANK.search(str(error.get("message"))[:500]) if isinstance(error, dict) and error.get("type") == "nonfinite" else None
        if said and len(run.with_header) > 1:
            return int(said[1])
    return None


def _nonfinite(row: StepRow) -> bool:
    return any(value is not None and not math.isfinite(value) for value in (row.loss, row.grad_norm))
