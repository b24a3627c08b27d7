# helpers/trainwright/check/rules/deepspeed_batch.py without its comments
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainwright.check.deepspeed_file import BATCH, Problem, batch_problem
from trainwright.check.rules.deepspeed import hit, says
from trainwright.check.subject import DeepSpeedConfig
from trainwright.emit.accelerate_file import shown
from trainwright.report import Fix, Severity
from trainwright.rules import Hit, rule


@rule(
    "DS007",
    Severity.ERROR,
    DeepSpeedConfig,
    fails_at="engine start",
    checked="run",
    source="deepspeed-0.19.8-config",
    covers=(
        "DS-BATCH-TRIANGLE",
        "DS-BATCH-NONE",
        "DS-BATCH-DIV",
        "DS-BATCH-STR",
        "DS-BATCH-AUTO-RAW",
        "ADS-BATCH-NONE",
        "DS-SP-DIV",
        "DS-SP-PATH",
    ),
)
def batch_sizes_disagree(config: DeepSpeedConfig) -> Iterator[Hit]:
    """train_batch_size, the micro batch and the accumulation steps do not multiply on the job's ranks, or are no numbers."""
    sizes = {key: config.values.get(key) for key in BATCH}
    if config.fills_auto:
        given = {key: value for key, value in sizes.items() if value is not None}
        missing = "auto" not in given.values() or "auto" not in [given.get(key) for key in BATCH[:2]]
        sizes = {key: None if value == "auto" else value for key, value in sizes.items()}
        if not missing and sizes[BATCH[0]] is None and sizes[BATCH[1]] is None:
            sizes[BATCH[1]] = 1
    yield from _sequence(config)
    problem = batch_problem(sizes, _ranks(config))
    if problem is None:
        return
    if problem.kind == "batch_text" and sizes[str(problem.path[0])] == "auto":
        problem = Problem("batch_auto", problem.path, '"auto" is filled by Accelerate and Transformers, not by DeepSpeed itself')
    value = config.get(*problem.path)
    words = (
        f"{problem.path[0]}: {problem.why}"
        if problem.kind == "batch"
        else f"{shown(value) if value is not None else 'is missing'} {problem.why}"
    )
    quoted = problem.kind == "batch_text" and says(value, problem.instead)
    note = "" if quoted else "this changes the global batch"
    fix = Fix({str(problem.path[0]): problem.instead}, quoted, note) if problem.instead else None
    message = words if problem.kind == "batch" else f"{problem.path[0]} {words}"
    severity = Severity.WARNING if problem.kind == "batch_auto" and _for_hugging_face(config.values) else None
    yield Hit(message, config.at(*problem.path), str(problem.path[0]), fix, severity)


def _for_hugging_face(values: dict[str, Any]) -> bool:
    """Whether "auto" stands in blocks too: a file for the Trainer, whose batch sizes another program has to fill before it hands it on."""
    blocks = [value for value in values.values() if isinstance(value, dict)]
    return any("auto" in [v for v in block.values() if isinstance(v, str)] or _for_hugging_face(block) for block in blocks)


def _ranks(config: DeepSpeedConfig) -> int | None:
    """The ranks that the batch is divided over: those of the job, by the size of sequence parallelism where the config is a dict."""
    size = config.get("sequence_parallel_size")
    if config.world is None or type(size) is not int or size < 1 or config.reader == "deepspeed":
        return config.world
    return config.world // size if config.fills_auto and config.world % size == 0 else None


def _sequence(config: DeepSpeedConfig) -> Iterator[Hit]:
    size, key = config.get("sequence_parallel_size"), "sequence_parallel_size"
    if size is None:
        return
    if not config.prefix and config.reader in ("", "deepspeed"):
        message = "in a JSON file is looked up in the file's name, not in its content: the ranks stay undivided"
        yield hit(config, (key,), message, severity=Severity.WARNING, fails_at="never")
    if type(size) is int and size > 0 and config.world and config.world % size:
        yield hit(config, (key,), f"{size} does not divide {config.world} ranks: the batch becomes a fraction", fails_at="never")
