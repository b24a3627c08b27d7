"""Coverage of intervals and of the verdict on simulated studies whose answer is known: writes the tables of docs/isoflop-coverage.md.

usage: PYTHONPATH=helpers python3 tools/study_isoflop_coverage.py --studies 2000 --seed 1 [--kinds] [--resume FILE] [--output FILE]

A study draws a surface, three to six budgets, five to nine sizes a budget around the true optimum (shifted by up to 1.65x, spread 1.03x
to 30x) and log-normal noise. `--kinds` also covers every kind of bootstrap where an approach is `identified`, three times the work. Results
are kept in FILE, one JSON line a study, so that an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from trainwright.isoflop.actions import fit, rows_options
from trainwright.isoflop.analysis import settings_of
from trainwright.isoflop.bootstrap import KINDS
from trainwright.isoflop.estimates import DEFAULT_KIND, Settings, estimate_all
from trainwright.isoflop.forecast import leave_largest_out
from trainwright.isoflop.identify import judge, overall
from trainwright.isoflop.power import around_optimum
from trainwright.isoflop.rows import Study
from trainwright.isoflop.surface import Surface
from trainwright.isoflop.table import Table

SURFACES = {
    "chinchilla": Surface(1.82, 478.0, 2143.0, 0.347, 0.367),
    "symmetric": Surface(1.8, 400.0, 400.0, 0.35, 0.35),
    "asymmetric": Surface(1.8, 400.0, 600.0, 0.465, 0.155),
}


def draw(seed: int, number: int) -> tuple[Study, dict[str, Any]]:
    """One random study and its truth."""
    rng = np.random.default_rng([seed, number])
    name = str(rng.choice(list(SURFACES)))
    spread, sigma = float(rng.choice([1.03, 1.2, 2, 4, 10, 30])), float(rng.choice([0.002, 0.005, 0.012]))
    budgets = 10.0 ** np.linspace(17, 19 + 2 * rng.random(), int(rng.integers(3, 7)))
    points, offset = int(rng.integers(5, 10)), float(np.exp(rng.uniform(-0.5, 0.5)))
    plan = around_optimum(SURFACES[name], budgets, points, spread, sigma, relative=True, offset=offset)
    loss = SURFACES[name].loss(plan.params, plan.tokens) * np.exp(rng.normal(0, sigma, len(plan.params)))
    table = Table(files=["simulated"], file=np.zeros(len(loss), np.int32), lines=np.arange(len(loss)))
    truth = {"surface": name, "a": SURFACES[name].exponent, "n_spread": spread, "sigma": sigma, "budgets": len(budgets), "points": points}
    return Study(table, plan.params, plan.tokens, plan.flops, loss, plan.flops), truth


def default_settings(replicates: int) -> Settings:
    parser = argparse.ArgumentParser()
    rows_options.add(parser)
    fit.add_fit_arguments(parser)
    options = parser.parse_args(["--csv", "x", "--approach", "2", "3", "vpnls", "--bootstrap", str(replicates)])
    study, _ = draw(0, 0)
    return settings_of(study, options)


def examine(seed: int, number: int, replicates: int, kinds: bool) -> dict[str, Any]:
    """Fit one study by the defaults; with `kinds` the approaches that are identified also by every bootstrap."""
    study, truth = draw(seed, number)
    settings = default_settings(replicates)
    answers = estimate_all(study, settings)
    left_out = leave_largest_out(study, settings)
    verdicts = {a.approach: judge(study, a, answers, left_out) for a in answers}
    trusted, verdict = overall(verdicts)
    row: dict[str, Any] = {"number": number, **truth, "trusted": trusted, "verdict": verdict, "fits": {}}
    for answer in answers:
        keys = [d.key for d in verdicts[answer.approach].diagnostics if d.level != "identified"]
        row["fits"][answer.approach] = {
            "a": answer.exponent,
            "interval": answer.intervals.get("a"),
            "verdict": verdicts[answer.approach].verdict,
            "doubts": keys,
        }
    if kinds:
        sure = tuple(name for name, found in row["fits"].items() if found["verdict"] == "identified")
        row["kinds"] = {kind: _intervals(study, replace(settings, approaches=sure), kind) for kind in KINDS} if sure else {}
    return row


def _intervals(study: Study, settings: Settings, kind: str) -> dict[str, Any]:
    return {a.approach: a.intervals.get("a") for a in estimate_all(study, replace(settings, kind=kind))}


def hopeless(row: dict[str, Any]) -> bool:
    return bool(row["n_spread"] <= 1.2 and row["sigma"] >= 0.005)


def good(row: dict[str, Any]) -> bool:
    return bool(row["n_spread"] >= 10 and row["sigma"] <= 0.005 and row["budgets"] >= 4)


def neither(row: dict[str, Any]) -> bool:
    return not hopeless(row) and not good(row)


def covers(pair: Any, a: float) -> bool:
    return bool(pair and pair[0] is not None and pair[0] <= a <= pair[1])


def tables(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    parts = [
        f"{len(rows)} studies.",
        "",
        "| approach | studies `identified` | 95 % intervals that cover | median width | rms error of a |",
        "|---|---|---|---|---|",
    ]
    for name in ("2", "3", "vpnls", "trusted"):
        chosen = [(row["a"], row["fits"][row["trusted"] if name == "trusted" else name], row) for row in rows]
        sure = [(a, f) for a, f, row in chosen if (row["verdict"] if name == "trusted" else f["verdict"]) == "identified"]
        parts.append(_line(name, sure))
    groups: dict[str, Callable[[dict[str, Any]], bool]] = {"hopeless": hopeless, "good": good, "other": neither}
    parts += ["", "| designs | studies | identified | weak | underdetermined |", "|---|---|---|---|---|"]
    for name, test in groups.items():
        here = [row["verdict"] for row in rows if test(row)]
        shares = [f"{here.count(v) / max(len(here), 1):.1%}" for v in ("identified", "weak", "underdetermined")]
        parts.append(f"| {name} | {len(here)} | {' | '.join(shares)} |")
    return "\n".join(parts + _kind_table([row for row in rows if "kinds" in row])) + "\n"


def _line(name: str, sure: list[tuple[float, dict[str, Any]]]) -> str:
    if not sure:
        return f"| {name} | 0 | | | |"
    covered = np.mean([covers(f["interval"], a) for a, f in sure])
    width = np.median([f["interval"][1] - f["interval"][0] for _, f in sure])
    rms = np.sqrt(np.mean([(f["a"] - a) ** 2 for a, f in sure]))
    return f"| {name} | {len(sure)} | {covered:.1%} | {width:.3f} | {rms:.4f} |"


def _kind_table(rows: list[dict[str, Any]]) -> list[str]:
    """Coverage of each kind of bootstrap on the studies that each approach calls identified by its default."""
    if not rows:
        return []
    parts = [
        "",
        f"Kinds of bootstrap, on {len(rows)} of the studies; 95 % intervals that cover, where the approach's verdict is `identified`:",
        "",
    ]
    sure = [sum(row["fits"][name]["verdict"] == "identified" for row in rows) for name in ("2", "3", "vpnls")]
    parts += [f"| kind | 2 ({sure[0]}) | 3 ({sure[1]}) | vpnls ({sure[2]}) |", "|---|---|---|---|"]
    counts: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for row in rows:
        for kind, answers in row["kinds"].items():
            for name, pair in answers.items():
                if row["fits"][name]["verdict"] == "identified":
                    counts[kind, name].append(covers(pair, row["a"]))
    for kind in KINDS:
        cells = [
            f"{np.mean(counts[kind, name]):.1%}{' (default)' if DEFAULT_KIND[name] == kind else ''}" if counts[kind, name] else ""
            for name in ("2", "3", "vpnls")
        ]
        parts.append(f"| {kind} | {' | '.join(cells)} |")
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--studies", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--replicates", type=int, default=500)
    parser.add_argument("--kinds", type=int, default=0, metavar="N", help="cover every kind of bootstrap on the first N studies")
    parser.add_argument("--resume", default="coverage.jsonl", metavar="FILE")
    parser.add_argument("--output", metavar="FILE")
    options = parser.parse_args()
    rows = _kept(options.resume)
    done = {row["number"] for row in rows}
    started = time.process_time()
    with open(options.resume, "a", encoding="utf-8") as file:
        for number in (n for n in range(options.studies) if n not in done):
            row: dict[str, Any] = examine(options.seed, number, options.replicates, number < options.kinds)
            file.write(json.dumps(row) + "\n")
            file.flush()
            rows.append(row)
    sys.stderr.write(f"{time.process_time() - started:.0f} CPU seconds\n")
    text = tables([row for row in rows if row["number"] < options.studies])
    if options.output:
        with open(options.output, "w", encoding="utf-8") as file:
            file.write(text)
    sys.stdout.write(text)


def _kept(path: str) -> list[dict[str, Any]]:
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.endswith("}\n")]


if __name__ == "__main__":
    main()
