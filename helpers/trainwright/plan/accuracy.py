"""The table of docs/plan-accuracy.md: what `plan score` found, as Markdown."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

TITLES = {
    "fit": "As given (without --calibration: the shipped constants, which were chosen knowing these publications)",
    "held_out": "A seeded share of each source fitted, tested on its rest",
    "other_sources": "Each source predicted with a fit of all others",
}


def markdown(data: dict[str, Any], options: argparse.Namespace) -> str:
    """The page, the command that made it first."""
    lines = [
        "# How far the plan model is from measured runs",
        "",
        f"Made by `{_command(options)}`.",
        "Errors are |predicted / measured - 1|.",
        "",
    ]
    for name, group in data["errors"].items():
        for kind, found in group.items():
            if found:
                lines += [f"## {TITLES.get(name, name)}: {'step time' if kind == 'time' else 'memory'}", "", *_errors(found), ""]
    return "\n".join([*lines, *_ordering(data), *_oom(data)]) + "\n"


def _command(options: argparse.Namespace) -> str:
    """The command that makes the table again, files by their names."""
    words = ["trainwright plan score", Path(options.file).name]
    if options.held_out is not None:
        words.append(f"--held-out {options.held_out:g} --splits {options.splits}")
    if options.other_sources:
        words.append("--other-sources")
    return " ".join([*words, f"--table {Path(options.table).name}"])


def _errors(found: list[dict[str, Any]]) -> list[str]:
    head = ["| source | predictions | median | p90 | worst | bias |", "|---|---|---|---|---|---|"]
    rows = [
        f"| {one['name']} | {one['count']} | {one['median']:.1%} | {one['p90']:.1%} | {one['worst']:.1%} | x {one['bias']:.3f} |"
        for one in found
    ]
    return head + rows


def _ordering(data: dict[str, Any]) -> list[str]:
    head = ["## Ordering pairs of plans of one workload", "", "| predicted gap | pairs | ordered right |", "|---|---|---|"]
    rows = [f"| {one['gap']} | {one['pairs']} | {one['right']} |" for one in data["pairs"] if one["pairs"]]
    text = ["", "## Choosing by the model: how much slower than the best measured plan", ""]
    chosen = [
        "| workload | plans | the model's | TP 8, fewest stages | at random |",
        "|---|---|---|---|---|",
        *map(_choice, data["choices"]),
    ]
    for name, some in data["regret"]["by_source"].items():
        chosen.append(f"| {name}: mean of {some['workloads']}; {some['within_5_percent']} within 5 % | | {_means(some['mean'])} |")
    means = data["regret"]["mean"]
    if means:
        words = _means(means)
        chosen.append(f"| mean of {len(data['choices'])}; {data['regret']['within_5_percent']} within 5 % | | {words} |")
    return [*head, *rows, *text, *chosen, ""]


def _means(means: dict[str, float]) -> str:
    return f"{means['model']:.1%} | {means['tp8_least_pp']:.1%} | {means['random']:.1%}"


def _choice(one: dict[str, Any]) -> str:
    source, hardware, _, layers, hidden, heads, *_, seq, batch, devices = one["workload"]
    name = f"{source[:28]}, {hardware}, {layers} x {hidden}, {heads} heads, {seq} tokens, batch {batch}, {devices} devices"
    regret = one["regret"]
    return f"| {name} | {one['plans']} | {regret['model']:.1%} | {regret['tp8_least_pp']:.1%} | {regret['random']:.1%} |"


def _oom(data: dict[str, Any]) -> list[str]:
    oom = data["oom"]
    lines = [
        "## Out of memory, as given",
        "",
        f"Of {oom['oom']} runs that ran out of memory {len(oom['missed'])} were not called: {', '.join(oom['missed']) or 'none'}.",
        f"Of {oom['fit']} that fitted {len(oom['false'])} were called so: {', '.join(oom['false']) or 'none'}.",
        "",
    ]
    for one in data["held_out_oom"]:
        missed = ", ".join(f"{name} in {times}" for name, times in one["missed"].items()) or "none"
        lines += [
            f"## Out of memory, memory fitted on a share: {one['name']}",
            "",
            f"In {one['splits']} splits {one['oom']} tests of runs that ran out; missed: {missed}; at most {one['most_missed']} a split.",
            f"Of {one['fit']} that fitted {one['false']} were called so.",
            "",
        ]
    return lines
