# isoflop/columns.py without its comments
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainwright.errors import UserError

NUMBERS: dict[str, tuple[str, ...]] = {
    "params": ("params", "params_total", "N", "n", "model size", "model_size", "param_count", "num_params", "n_params", "parameters",
               "params_active_precise", "params_nonembed", "N_all"),
    "tokens": ("tokens", "D", "t", "tokens_trained", "num_tokens", "n_tokens", "training_tokens", "train_tokens", "total_tokens"),
    "flops": ("flops", "C", "training flop", "training_flops", "train_flops", "total_flops", "FLOPs", "flop", "compute"),
    "loss": ("loss", "val_loss", "final_loss", "eval_loss", "eval/loss", "val/loss", "validation_loss", "loss_val", "test_loss"),
    "budget": ("budget", "flops_budget", "flop_budget", "compute_budget"),
    "flops_per_token": ("flops_per_token", "flop_tok", "flops_per_tok"),
    "steps": ("steps", "num_steps", "num_iterations", "step", "_step", "global_step"),
    "planned_steps": ("planned_steps", "horizon", "decay_steps", "total_steps", "max_steps", "train_iters"),
    "batch_tokens": ("batch_tokens", "tokens_per_step", "global_batch_tokens", "batch_size_tokens"),
    "lr": ("lr", "learning_rate", "max_lr", "peak_lr"),
    "warmup": ("warmup", "warmup_steps", "warmup_tokens"),
    "epochs": ("epochs", "epoch"),
    "unique_tokens": ("unique_tokens", "data_budget"),
    "loss_std": ("loss_std", "loss_sd"),
    "wall_sec": ("wall_sec", "train_time_sec", "runtime", "wall"),
    "tokens_per_sec": ("tokens_per_sec", "tps"),
    "mfu": ("mfu",),
    "params_nonembed": ("params_nonembed", "params_no_embed", "N_nonemb"),
    "params_embed": ("params_embed", "params_embedding"),
    "params_head": ("params_head", "N_head", "params_lm_head"),
    "eval_tokens": ("eval_tokens",),
}
WORDS: dict[str, tuple[str, ...]] = {
    "experiment": ("experiment", "study", "dataset", "group"),
    "labels": (),
    "run_id": ("run_id", "run", "run_name", "name", "id"),
    "seed": ("seed", "random_seed"),
    "schedule": ("schedule", "lr_schedule", "lr_scheduler", "scheduler"),
    "state": ("state", "status"),
    "flops_rule": ("flops_rule",),
    "family": ("family",),
    "backbone": ("backbone",),
    "regime": ("regime",),
    "git_sha": ("git_sha",),
    "data_sha": ("data_sha",),
}
INCIDENTAL = frozenset(
    ("name", "run", "run_id", "id", "notes", "note", "created", "created_at", "updated", "timestamp", "date", "time", "host", "hostname",
     "user", "url", "tags", "path", "color", "colour", "hex_color", "comment", "error")
)
SCHEMA = (
    "experiment", "run_id", "flops", "tokens", "loss", "params", "params_nonembed", "params_head", "params_embed", "flops_per_token",
    "flops_rule", "budget", "seed", "lr", "batch_tokens", "steps", "planned_steps", "schedule", "warmup", "epochs", "unique_tokens",
    "state", "loss_std", "eval_tokens", "wall_sec", "tokens_per_sec", "mfu", "family", "backbone", "regime", "git_sha", "data_sha",
)


@dataclass(frozen=True, slots=True)
class Mapping:

    columns: dict[str, str]
    where: dict[str, str]
    constants: dict[str, str]


def mapping(columns: Sequence[str], where: Sequence[str], constants: Sequence[str]) -> Mapping:
    parsed = Mapping(_pairs("--columns", columns), _pairs("--where", where), _pairs("--set", constants))
    known = [*NUMBERS, *(name for name in WORDS if name != "labels")]
    for option, names in (("--columns", parsed.columns), ("--set", parsed.constants)):
        for name in names:
            if name not in known:
                raise UserError(f"{option} {name}=...: there is no field {name!r}; the fields are {', '.join(known)}")
    return parsed


def _pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UserError(f"{option} {text[:80]!r} is not NAME=VALUE")
        if name in pairs:
            raise UserError(f"{option} names {name!r} twice")
        pairs[name] = value
    return pairs


def resolve(header: Sequence[str], chosen: dict[str, str], source: str) -> dict[str, str]:
    counts: dict[str, int] = {}
    for name in header:
        counts[name] = counts.get(name, 0) + 1
    fields: dict[str, str] = {}
    for field, names in (*NUMBERS.items(), *WORDS.items()):
        column = chosen.get(field) or _known(names, header, chosen.values())
        if column is None:
            continue
        if column not in counts:
            raise UserError(f"{source}: there is no column {column!r} for {field}; the columns are {listed(header)}")
        if counts[column] > 1:
            raise UserError(
                f"{source}: the column {column!r} stands {counts[column]} times; which one is {field} cannot be told, rename one"
            )
        fields[field] = column
    return fields


def _known(names: Iterable[str], header: Sequence[str], taken: Iterable[str]) -> str | None:
    used = set(taken)
    for name in names:
        if name in header and name not in used:
            return name
    lower = {column.lower(): column for column in reversed(header)}
    for name in names:
        column = lower.get(name.lower())
        if column and column not in used and len(name) > 1:
            return column
    return None


def listed(header: Sequence[str]) -> str:
    shown = ", ".join(repr(name[:40]) for name in header[:20])
    return shown + (f" and {len(header) - 20} more" if len(header) > 20 else "")
