# launch/settings.py without its comments
from __future__ import annotations

import argparse
import dataclasses
import os
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

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

    field: str
    says: str
    read: Callable[[str], Any] = parse_count
    shown: str = "N"
    choices: tuple[str, ...] = ()
    flag: str = ""
    rare: bool = False

    @property
    def name(self) -> str:
        return self.flag or f"--{self.field.replace('_', '-')}"


BATCH = ("micro_batch", "accumulation", "global_batch")
OPTIONS = (
    Option("device", "where the ranks compute", str, "KIND", DEVICES),
    Option("steps", "training steps"),
    Option("micro_batch", "sequences per rank and round"),
    Option("accumulation", "rounds in a step, whose gradients are summed", rare=True),
    Option("global_batch", "sequences per step on all ranks: micro batch x ranks x accumulation, of which it settles one"),
    Option("samples", "end when all ranks together read so many; the last step may be short", rare=True),
    Option("seq_len", "tokens per sequence"),
    Option("learning_rate", "of AdamW", _number, "X"),
    Option("schedule", "of the learning rate, down to the run's own last step", str, "NAME", SCHEDULES, rare=True),
    Option("warmup_steps", "steps in which the learning rate rises", rare=True),
    Option("min_lr_ratio", "the last step's share of the learning rate", _number, "X", rare=True),
    Option("weight_decay", "of AdamW", _number, "X", rare=True),
    Option("decay", "what of the weights decays", str, "NAME", DECAYS, rare=True),
    Option("clip_norm", "scale gradients down to this norm", _number, "X"),
    Option("seed", "of weights and data order"),
    Option("static_graph", "DDP: the graph is the same in every step", bool, rare=True),
    Option("find_unused_parameters", "DDP: parameters may be left out of a step", bool, rare=True),
    Option("bucket_mb", "DDP: MiB of gradients in one all-reduce", _number, "X", rare=True),
    Option("comm_hook", "DDP: how gradients are compressed on their way", str, "NAME", COMM_HOOKS, rare=True),
    Option("powersgd_rank", "rank of the approximation", rare=True),
    Option("powersgd_start", "first step that is compressed", rare=True),
    Option("local_sgd_steps", "share no gradients, average the parameters every N steps", rare=True),
    Option("whole_gradients", "FSDP: sum whole gradients over the rounds, cut them once: less traffic, more memory", bool, rare=True),
    Option("activation_checkpoint_every", "recompute every N-th block; 0 none (default: as the backend config says)", rare=True),
    Option("compile", "compile each block with this backend", str, "NAME", COMPILERS, rare=True),
    Option("checkpoint_every", "save every N steps"),
    Option("keep_checkpoints", "how many to keep, 0 all", rare=True),
    Option("resume", "go on from this run folder or checkpoint", os.path.abspath, "PATH"),
    Option("init_from", "start with the weights of this run or checkpoint", os.path.abspath, "PATH", rare=True),
    Option("data", "train on this file or folder (default: the standard library's sources)", os.path.abspath, "PATH"),
    Option("tokens", "what a token of it is", str, "NAME", TOKENS, rare=True),
    Option("order", "walk: files as they lie; study: shuffled, with a part kept for evaluation", str, "NAME", ORDERS, rare=True),
    Option("single_pass", "stop with an error rather than read a sample twice", bool, rare=True),
    Option("modality", "what stands before the text", str, "NAME", MODALITIES),
    Option("shards", "generated shards of a modality", rare=True),
    Option("regime", "which parts of a projector model train", str, "NAME", REGIMES, rare=True),
    Option("variant", "of the projector", str, "NAME", tuple(filter(None, VARIANTS)), "--projector-variant", rare=True),
    Option("eval_every", "evaluate every N steps and at the end", rare=True),
    Option("eval_at", "evaluate after these steps too, as 100,300", str, "STEPS", rare=True),
    Option("eval_windows", "windows of the text that is kept for evaluation", rare=True),
    Option("memory_cap_bytes", "enforced limit on what each rank may allocate, as 300MiB", parse_bytes, "SIZE", (), "--memory-cap"),
    Option("track_memory_steps", "count memory in the first N steps, slowly", rare=True),
    Option("timeout_s", "end the job after TIME", parse_seconds, "TIME", (), "--timeout"),
)
_DEFAULTS = {field.name: field.default for field in dataclasses.fields(Job)}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--help-all", nargs=0, action=_HelpAll, help="explain the rarer options too")
    for option in OPTIONS:
        says = argparse.SUPPRESS if option.rare else _says(option)
        if option.read is bool:
            parser.add_argument(option.name, dest=option.field, action="store_const", const="1", help=says)
        else:
            shown = None if option.choices else option.shown
            parser.add_argument(option.name, dest=option.field, metavar=shown, choices=option.choices or None, help=says)


def _says(option: Option) -> str:
    default = _DEFAULTS[option.field]
    if default in (None, "", False, 0) or "default" in option.says:
        return option.says
    return f"{option.says} (default {default:g})" if type(default) in (int, float) else f"{option.says} (default {default})"


class _HelpAll(argparse.Action):

    def __call__(self, parser: argparse.ArgumentParser, namespace: object, values: object, option_string: str | None = None) -> NoReturn:
        texts = {option.field: _says(option) for option in OPTIONS}
        for action in parser._actions:
            action.help = texts.get(action.dest, action.help)
        parser.print_help()
        parser.exit()


def rare_options() -> str:
    names = " ".join(option.name for option in OPTIONS if option.rare)
    return textwrap.fill(f"more, explained by --help-all: {names}", 100, subsequent_indent="  ", break_on_hyphens=False)


def job_fields(options: argparse.Namespace, reading: Reading, world_size: int, report: Report) -> dict[str, Any]:
    typed = {o.field: o.read(text) for o in OPTIONS if (text := getattr(options, o.field)) is not None}
    names = {option.field: option.name for option in OPTIONS}
    for field, value in reading.job.items():
        if typed.get(field, value) != value:
            raise UserError(f"{names.get(field, field)} {typed[field]} and {options.backend_config} ({value}) do not agree; change one")
        if field not in typed and value != _DEFAULTS[field]:
            report.infer(field, value, options.backend_config)
    fields = {**reading.job, **typed}
    for field in ("data", "resume", "init_from"):
        if fields.get(field) and not os.path.exists(fields[field]):
            raise UserError(f"{names[field]} {fields[field][:200]}: there is no such file or folder")
    return {**fields, **settle_batch(fields, world_size)}


def settle_batch(fields: Mapping[str, Any], world_size: int) -> dict[str, Any]:
    micro, rounds, whole = (fields.get(name) for name in BATCH)
    if whole is None:
        return {}
    if micro is not None and rounds is not None:
        return {}
    given, name = (rounds or 1, "accumulation") if micro is None else (micro, "micro_batch")
    if given < 1 or whole % (given * world_size):
        raise UserError(
            f"global batch {whole} cannot be divided by {world_size} ranks x {name} {given}; take a multiple of {given * world_size}"
        )
    other = whole // (given * world_size)
    return {"micro_batch": other, "accumulation": rounds or 1} if micro is None else {"accumulation": other}
