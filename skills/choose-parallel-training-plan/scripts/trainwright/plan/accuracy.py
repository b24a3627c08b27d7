# helpers/trainwright/plan/accuracy.py without its comments
from __future__ import annotations

from typing import Any

TITLES = {
    "fit": "As given (without --calibration: the shipped constants, which were chosen knowing these publications)",
    "held_out": "A seeded share of each source fitted, tested on its rest",
    "other_sources": "Each source predicted with a fit of all others",
}


def markdown(data: dict[str, Any], command: str) -> str:
    lines = ["# How far the plan model is from measured runs", "", f"Made by `{command}`.", "Errors are |predicted / measured - 1|.", ""]
    for name, group in data["errors"].items():
        for kind, found in group.items():
            if found:
                lines += [f"## {TITLES.get(name, name)}: {'step time' if kind == 'time' else 'memory'}", "", *_errors(found), ""]
    return "\n".join([*lines, *_ordering(data), *_oom(data)]) + "\n"


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
    means = data["regret"]["mean"]
    if means:
        words = f"{means['model']:.1%} | {means['tp8_least_pp']:.1%} | {means['random']:.1%}"
        chosen.append(f"| mean of {len(data['choices'])}; {data['regret']['within_5_percent']} within 5 % | | {words} |")
    return [*head, *rows, *text, *chosen, ""]


def _choice(one: dict[str, Any]) -> str:
    source, hardware, _, layers, hidden, heads, *_, seq, batch, devices = one["workload"]
    name = f"{source[:28]}, {hardware}, {layers} x {hidden}, {heads} heads, {seq} tokens, batch {batch}, {devices} devices"
    regret = one["regret"]
    return f"| {name} | {one['plans']} | {regret['model']:.1%} | {regret['tp8_least_pp']:.1%} | {regret['random']:.1%} |"


def _oom(data: dict[str, Any]) -> list[str]:
    oom = data["oom"]
    return [
        "## Out of memory, as given",
        "",
        f"Of {oom['oom']} runs that ran out of memory {len(oom['missed'])} were not called: {', '.join(oom['missed']) or 'none'}.",
        f"Of {oom['fit']} that fitted {len(oom['false'])} were called so: {', '.join(oom['false']) or 'none'}.",
        "",
    ]
