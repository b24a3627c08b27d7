"""The options that become fields of the job, and who settles each: the command line, the backend's file, or the default."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trainwright.emit.reading import Reading
from trainwright.errors import UserError
from trainwright.job import COMM_HOOKS, COMPILERS, DECAYS, DEVICES, MODALITIES, ORDERS, REGIMES, SCHEDULES, TOKENS, VARIANTS, Job
from trainwright.report import Report
from trainwright.units import parse_bytes, parse_count, parse_seconds


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{text!r} is not a number") from None


@dataclass(frozen=True, slots=True)
class Option:
    """One option of launch: the field it sets, how its text is read, and what it says."""

    field: str
    says: str
    read: Callable[[str], Any] = parse_count
    shown: str = "N"
    choices: tuple[str, ...] = ()
    flag: str = ""

    @property
    def name(self) -> str:
        return self.flag or f"--{self.field.replace('_', '-')}"


BATCH = ("micro_batch", "accumulation", "global_batch")
OPTIONS = (
    Option("device", "where the ranks compute", str, "KIND", DEVICES),
    Option("steps", "training steps"),
    Option("micro_batch", "sequences per rank and round"),
    Option("accumulation", "rounds in a step, whose gradients are summed"),
    Option("global_batch", "sequences per step on all ranks: micro batch x ranks x accumulation, of which it settles one"),
    Option("samples", "end when all ranks together read so many; the last step may be short"),
    Option("seq_len", "tokens per sequence"),
    Option("learning_rate", "of AdamW", _number, "X"),
    Option("schedule", "of the learning rate, down to the run's own last step", str, "NAME", SCHEDULES),
    Option("warmup_steps", "steps in which the learning rate rises"),
    Option("min_lr_ratio", "the last step's share of the learning rate", _number, "X"),
    Option("weight_decay", "of AdamW", _number, "X"),
    Option("decay", "what of the weights decays", str, "NAME", DECAYS),
    Option("clip_norm", "scale gradients down to this norm", _number, "X"),
    Option("seed", "of weights and data order"),
    Option("static_graph", "DDP: the graph is the same in every step", bool),
    Option("find_unused_parameters", "DDP: parameters may be left out of a step", bool),
    Option("bucket_mb", "DDP: MiB of gradients in one all-reduce", _number, "X"),
    Option("comm_hook", "DDP: how gradients are compressed on their way", str, "NAME", COMM_HOOKS),
    Option("powersgd_rank", "rank of the approximation"),
    Option("powersgd_start", "first step that is compressed"),
    Option("local_sgd_steps", "share no gradients, average the parameters every N steps"),
    Option("whole_gradients", "FSDP: sum whole gradients over the rounds, cut them once: less traffic, more memory", bool),
    Option("activation_checkpoint_every", "recompute every N-th block in the backward; 0 none (default: as the backend config says)"),
    Option("compile", "compile each block with this backend", str, "NAME", COMPILERS),
    Option("checkpoint_every", "save every N steps"),
    Option("keep_checkpoints", "how many to keep, 0 all"),
    Option("resume", "go on from this run folder or checkpoint", os.path.abspath, "PATH"),
    Option("init_from", "start with the weights of this run or checkpoint", os.path.abspath, "PATH"),
    Option("data", "train on this file or folder (default: the standard library's sources)", os.path.abspath, "PATH"),
    Option("tokens", "what a token of it is", str, "NAME", TOKENS),
    Option("order", "walk: files as they lie; study: shuffled, with a part kept for evaluation", str, "NAME", ORDERS),
    Option("single_pass", "stop with an error rather than read a sample twice", bool),
    Option("modality", "what stands before the text", str, "NAME", MODALITIES),
    Option("shards", "generated shards of a modality"),
    Option("regime", "which parts of a projector model train", str, "NAME", REGIMES),
    Option("variant", "of the projector", str, "NAME", tuple(filter(None, VARIANTS)), "--projector-variant"),
    Option("eval_every", "evaluate every N steps and at the end"),
    Option("eval_windows", "windows of the text that is kept for evaluation"),
    Option("memory_cap_bytes", "enforced limit on what each rank may allocate, as 300MiB", parse_bytes, "SIZE", (), "--memory-cap"),
    Option("track_memory_steps", "count memory in the first N steps, slowly"),
    Option("timeout_s", "end the job after TIME", parse_seconds, "TIME", (), "--timeout"),
)
_DEFAULTS = {field.name: field.default for field in dataclasses.fields(Job)}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Every option of the job; None stands for one that was not typed."""
    for option in OPTIONS:
        default = _DEFAULTS[option.field]
        says = (
            option.says
            if default in (None, "", False, 0) or "default" in option.says
            else f"{option.says} (default {default:g})"
            if (type(default) in (int, float))
            else f"{option.says} (default {default})"
        )
        if option.read is bool:
            parser.add_argument(option.name, dest=option.field, action="store_const", const="1", help=says)
        else:
            parser.add_argument(
                option.name, dest=option.field, metavar=None if option.choices else option.shown, choices=option.choices or None, help=says
            )


def job_fields(options: argparse.Namespace, reading: Reading, world_size: int, report: Report) -> dict[str, Any]:
    """The fields of the Job that are settled by an option or by the backend's file; raises UserError where both do, and differ."""
    typed = {o.field: o.read(text) for o in OPTIONS if (text := getattr(options, o.field)) is not None}
    names = {option.field: option.name for option in OPTIONS}
    for field, value in reading.job.items():
        if typed.get(field, value) != value:
            raise UserError(f"{names.get(field, field)} {typed[field]} and {options.backend_config} ({value}) do not agree; change one")
        if field not in typed and value != _DEFAULTS[field]:
            report.infer(field, value, options.backend_config)
    fields = {**reading.job, **typed}
    return {**fields, **settle_batch(fields, world_size)}


def settle_batch(fields: Mapping[str, Any], world_size: int) -> dict[str, Any]:
    """micro_batch and accumulation, from whichever of them and of global_batch are there; raises UserError where they do not divide.

    With global_batch and one of the others the third follows; with it alone there is one round; without it there is too.
    """
    micro, rounds, whole = (fields.get(name) for name in BATCH)
    if whole is None:
        return {}
    if micro is not None and rounds is not None:
        return {}  # the job itself judges the product
    given, name = (rounds or 1, "accumulation") if micro is None else (micro, "micro_batch")
    if given < 1 or whole % (given * world_size):
        raise UserError(
            f"global batch {whole} cannot be divided by {world_size} ranks x {name} {given}; take a multiple of {given * world_size}"
        )
    other = whole // (given * world_size)
    return {"micro_batch": other, "accumulation": rounds or 1} if micro is None else {"accumulation": other}
