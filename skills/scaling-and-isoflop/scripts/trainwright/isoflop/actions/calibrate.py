# isoflop/actions/calibrate.py without its comments
from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from trainwright import probe
from trainwright.errors import Exit, MissingPackageError, UserError
from trainwright.flops import DEFAULT, RULES
from trainwright.isoflop import calibration, ladder, trainer
from trainwright.isoflop.actions.rows_options import count
from trainwright.isoflop.reference import need_reference
from trainwright.output import make_folder, write_text
from trainwright.parts import LADDER
from trainwright.progress import progress
from trainwright.report import Finding, Report, Severity, finite
from trainwright.units import format_bytes, format_count, parse_count, parse_seconds

SUMMARY = "weights, FLOPs per token, throughput and memory of each size, counted by closed form and by torch, measured here"
EXAMPLES = """examples:
  trainwright isoflop calibrate --model config.json --widths 128 256 512x8 --seq-len 256 --calibration-dir out/cal
  trainwright isoflop calibrate --model 7b --sizes 20M 50M 100M --no-measure
  trainwright isoflop calibrate --backbone tiny --projector-variant BASE W2X W4X D2X D4X --family text_image --regime projector_only
  trainwright isoflop calibrate --model a.json b.json --trainer trainer.yaml     # argv: [...] and results: FILE"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", nargs="+", action="extend", default=[], metavar="FILE", help="configs or presets; one with --widths, --sizes"
    )
    parser.add_argument("--widths", nargs="+", action="extend", default=[], metavar="WIDTH[xLAYERS]", help="the model in these widths")
    parser.add_argument("--sizes", nargs="+", action="extend", default=[], metavar="N", help="the model in widths nearest these totals")
    parser.add_argument("--backbone", metavar="FILE", help="the projector ladder: the language model behind the projector")
    parser.add_argument(
        "--projector-variant", nargs="+", action="extend", default=[], metavar="V", help="BASE W2X W4X D2X D4X (default: all)"
    )
    parser.add_argument("--family", choices=ladder.FAMILIES, default="text_image", help="what stands before the text (default text_image)")
    parser.add_argument("--regime", choices=ladder.REGIMES, default="projector_only", help="which parts train (default projector_only)")
    parser.add_argument("--seq-len", default="128", metavar="T", help="tokens of a sequence (default 128)")
    parser.add_argument("--flops-rule", choices=tuple(RULES), default=DEFAULT, help=f"how operations are counted (default {DEFAULT})")
    parser.add_argument("--steps", type=count, default=10, metavar="N", help="measured steps (default 10)")
    parser.add_argument("--micro-batch", type=count, default=2, metavar="B", help="sequences a step (default 2)")
    parser.add_argument("--device", choices=("cpu", "cuda", "xpu"), default="cpu")
    parser.add_argument("--threads", type=count, default=1, metavar="N", help="of a run on the processor (default 1, as in a plan)")
    parser.add_argument("--timeout", default="5min", metavar="TIME", help="of each run (default 5min)")
    parser.add_argument("--no-measure", action="store_true", help="count only, run nothing")
    parser.add_argument(
        "--trainer", metavar="FILE", help=f"measure this trainer: argv with {{{'} {'.join(trainer.PLACEHOLDERS[:4])}}} ..., results"
    )
    parser.add_argument("--calibration-dir", metavar="DIR", help="keep configs, runs and calibration.json here")
    parser.add_argument("--output-json", metavar="FILE", help="write the calibration")


def run(options: argparse.Namespace) -> Report:
    own = trainer.read_trainer(options.trainer) if options.trainer else None
    if not options.no_measure and own is None:
        need_reference("calibrate", "--no-measure counts without it, --trainer FILE measures a trainer of yours")
        if not probe.importable("torch"):
            raise MissingPackageError("torch", "isoflop calibrate")
    report = Report("isoflop")
    with tempfile.TemporaryDirectory(prefix="trainwright-") as scratch:
        folder = os.path.abspath(options.calibration_dir or scratch)
        make_folder(folder)
        rows = _rows(options, own, folder, report)
    data = {"schema": calibration.SCHEMA, "action": "calibrate", "machine": _machine(), "members": rows}
    for target in (options.output_json, os.path.join(folder, "calibration.json") if options.calibration_dir else None):
        if target:
            write_text(target, json.dumps(finite(data), indent=1) + "\n")
    report.data = data
    report.text = _lines(rows)
    report.findings += _findings(rows)
    report.summary = f"{len(rows)} members"
    return report


def _rows(options: argparse.Namespace, own: trainer.Trainer | None, folder: str, report: Report) -> list[dict[str, Any]]:
    members = _members(options, folder)
    seq_len = parse_count(options.seq_len)
    specs = [member.spec(folder) for member in members]
    for member, spec in zip(members, specs, strict=True):
        if seq_len > spec.max_positions:
            raise UserError(f"--seq-len {seq_len} is more than the {spec.max_positions} positions of {member.name}")
    rows = [calibration.describe(m, spec, seq_len, options.flops_rule) for m, spec in zip(members, specs, strict=True)]
    paths = [member.write(folder) for member in members]
    timeout_s, threads = parse_seconds(options.timeout), max(options.threads, 1)
    how = calibration.Measurement(max(options.steps, 3), max(options.micro_batch, 1), seq_len, options.device, timeout_s, threads)
    with progress("calibrate", options.quiet) as step:
        step("counting", 0.0)
        calibration.count(rows, paths)
        for number, (row, path) in enumerate(zip(rows, paths, strict=True)):
            if options.no_measure:
                continue
            step(row["name"], number / len(rows))
            try:
                _measure(own, row, path, folder, how)
            except KeyboardInterrupt:
                report.exit = Exit.INTERRUPTED
                break
    return rows


def _members(options: argparse.Namespace, folder: str) -> list[ladder.Member]:
    if bool(options.model) == bool(options.backbone):
        raise UserError("name a ladder: --model FILE [--widths ... | --sizes ...], or --backbone FILE [--projector-variant ...]")
    if options.backbone:
        return ladder.projector_members(options.backbone, options.projector_variant or list(LADDER), options.family, options.regime)
    return ladder.members(options.model, options.widths, [parse_count(size) for size in options.sizes], folder)


def _measure(own: trainer.Trainer | None, row: dict[str, Any], path: str, folder: str, how: calibration.Measurement) -> None:
    if own:
        _by_trainer(own, row, path, folder, how)
    elif probe.importable("trainwright.isoflop.by_reference"):
        from trainwright.isoflop import by_reference

        by_reference.measure(row, path, folder, how)


def _by_trainer(own: trainer.Trainer, row: dict[str, Any], path: str, folder: str, how: calibration.Measurement) -> None:
    run_dir = os.path.join(folder, "calibration", row["name"])
    tokens = how.steps * how.micro_batch * row["seq_len"]
    values = {"run_dir": run_dir, "model": path, "tokens": tokens, "steps": how.steps, "batch": how.micro_batch, "seq_len": row["seq_len"],
              "lr": 1e-3, "warmup": 0, "seed": 0, "budget": row["flops_per_token"] * tokens, "flops": row["flops_per_token"] * tokens,
              "params": row["params"]["total"], "run_id": row["name"], "modality": row["modality"], "regime": row["regime"],
              "variant": row["variant"]}
    results = trainer.results_path(own, values)
    request = {"kind": "trainer", "argv": [trainer.filled(word, values) for word in own.argv], "run_dir": run_dir,
               "results": results, "timeout_s": how.timeout_s}
    asked = os.path.join(folder, "calibration", f"{row['name']}.json")
    make_folder(os.path.dirname(asked))
    write_text(asked, json.dumps(request) + "\n")
    argv = [sys.executable, "-m", "trainwright.isoflop.one_run", asked]
    with probe.environment(probe.python_variables()):
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True)
    lines = trainer.results_of(results)
    if done.returncode or not lines:
        why = done.stderr.decode("utf-8", "replace").strip()[-200:] or f"no lines in {results}"
        row["measured_reason"] = f"the trainer ended with {done.returncode}: {why}; its words are in {run_dir}/trainer.log"
        return
    rate = trainer.throughput(lines)
    memory = [line["memory_bytes"] for line in lines if type(line.get("memory_bytes")) in (int, float)]
    row["measured"] = {
        "tokens_per_sec": rate,
        "flops_per_sec": None if rate is None else rate * row["flops_per_token"],
        "step_time_s": None, "steps": len(lines), "micro_batch": how.micro_batch, "device": "the trainer's", "rss_bytes": None,
        "peak_memory_bytes": max(memory, default=None), "run_dir": run_dir,
    }
    row["measured_reason"] = "" if rate is not None else "no line has tokens_per_sec"


def _machine() -> dict[str, Any]:
    return {"processors": probe.cpu_count(), "memory_bytes": probe.host_memory().total_bytes, "versions": probe.versions(("torch",))}


def _lines(rows: list[dict[str, Any]]) -> list[str]:
    columns = (("total", 9), ("embed", 9), ("head", 9), ("non-emb", 9), ("trains", 9), ("FLOP/token", 11), ("counter", 8), ("tok/s", 9))
    head = f"{'member':<16} {' '.join(f'{name:>{wide}}' for name, wide in columns)} {'memory':>10}"
    return [head, *(_line(row) for row in rows)]


def _line(row: dict[str, Any]) -> str:
    p, measured, counted = row["params"], row["measured"] or {}, row["counted"]
    agrees = {True: "agrees", False: "DIFFERS", None: "-"}[counted["agrees"]]
    weights = (p["total"], p["embedding"], p["head"], p["nonembedding"], p["trainable"])
    said = " ".join(f"{'-' if n is None else format_count(n):>9}" for n in weights)
    rate, memory = measured.get("tokens_per_sec"), measured.get("peak_memory_bytes")
    tail = f"{'-' if rate is None else format_count(rate):>9} {'-' if memory is None else format_bytes(memory):>10}"
    return f"{row['name']:<16} {said} {row['flops_per_token']:>11.5g} {agrees:>8} {tail}"


def _findings(rows: list[dict[str, Any]]) -> list[Finding]:
    found = []
    for row in rows:
        counted = row["counted"]
        if counted["agrees"] is False:
            mine, theirs = row["flops_per_token"], counted["flops_per_token"]
            words = f"{row['name']}: {mine:.6g} FLOP a token by closed form, {theirs:.6g} by torch's counter"
            found.append(Finding("iso-count", Severity.ERROR, f"{words}: one of them is wrong, use neither", checked="run"))
        elif counted["flops_per_token"] is None:
            found.append(Finding("iso-not-counted", Severity.INFO, f"{row['name']}: not counted by torch: {counted['reason']}"))
        if row["measured"] is None and row["measured_reason"] != "not asked":
            found.append(Finding("iso-not-measured", Severity.WARNING, f"{row['name']}: not measured: {row['measured_reason']}"))
    totals = [row["params"]["total"] for row in rows]
    if len(rows) > 1 and max(totals) / min(totals) < 1.2:
        words = f"all weights span {max(totals) / min(totals):.3g}x over the ladder: ask `isoflop power` whether any fit can be identified"
        found.append(Finding("iso-narrow", Severity.WARNING, words, checked="derived"))
    return found
