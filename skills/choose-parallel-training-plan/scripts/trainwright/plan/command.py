# plan/command.py without its comments
from __future__ import annotations

import argparse
import dataclasses
import importlib.util
from typing import Any

from trainwright.cost.layers import network
from trainwright.document import load_mapping
from trainwright.emit.backends import BACKENDS
from trainwright.emit.planned import Planned
from trainwright.errors import UserError
from trainwright.hardware import from_table
from trainwright.model import load_model
from trainwright.output import write_text
from trainwright.parallel import Plan
from trainwright.plan import answer, emitting, inputs, page, profiles, score, signals
from trainwright.plan.calibrate import SHIPPED, Fit, calibrate, has_memory, has_time
from trainwright.plan.predict import predict, table
from trainwright.plan.rows import Row, read_rows
from trainwright.plan.score import Errors
from trainwright.plan.search import Adapt, Found, Misfit, Objective, Priced, search
from trainwright.plan.space import Space, possible
from trainwright.progress import progress
from trainwright.report import Finding, Report
from trainwright.rules import check_all, load_all
from trainwright.units import format_bytes

EXAMPLES = """examples:
  trainwright plan search --model 70b --accelerator h100 --devices 64 --network 400Gbps --memory 80GiB --global-batch 512
  trainwright plan search --model 7b --node aurora --devices 24 --global-batch 48 --emit torchtitan-toml --emit-file plan.toml
  trainwright plan emit --plan tp=8,dp_shard=8,zero_stage=1 --model 70b --global-batch 512 --emit megatron
  trainwright plan calibrate runs.csv --save fit.json
  trainwright plan predict rows.csv --calibration fit.json --output predicted.csv
  (also --splits, --other-sources, --svg, --tokens, --slowest, --max-tp, --max-pp, --max-cp, --max-ep)"""
MOST_FITTED = 500
ACTIONS = ("search", "compare", "emit", "predict", "calibrate", "score")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "trainwright plan ACTION [ROWS.csv] [options]"
    parser.add_argument("action", choices=ACTIONS, metavar="ACTION", help="search, compare, emit, predict, calibrate or score")
    parser.add_argument("file", nargs="?", metavar="ROWS.csv", help="measured runs; calibrate: or a profile")
    inputs.add_arguments(parser)
    parser.add_argument("--plan", action="append", default=[], metavar="PLAN", help="key=value,... or JSON; search: these alone")
    parser.add_argument("--emit", choices=tuple(BACKENDS), metavar="BACKEND", help=f"search, emit: {', '.join(BACKENDS)}")
    parser.add_argument("--emit-file", metavar="FILE", help="where to write it")
    parser.add_argument("--html", metavar="FILE", help="search, compare: a page with its pictures")
    parser.add_argument("--svg", metavar="FILE", help=argparse.SUPPRESS)
    rows = parser.add_argument_group("calibrate, score")
    rows.add_argument("--save", metavar="FIT", help="calibrate: write the fit to FIT")
    if importlib.util.find_spec("trainwright.plan.accuracy"):
        rows.add_argument("--table", metavar="FILE.md", help=argparse.SUPPRESS)
    rows.add_argument("--held-out", type=float, metavar="SHARE", help="score: fit this share of each source")
    rows.add_argument("--splits", type=int, default=20, metavar="N", help=argparse.SUPPRESS)
    rows.add_argument("--other-sources", action="store_true", help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> Report:
    report = Report("plan")
    if options.emit_file and not options.emit:
        raise UserError("--emit-file needs --emit BACKEND: what is to be written?")
    faces = {"search": _search, "compare": _compare, "emit": _emit, "predict": _predict, "calibrate": _calibrate, "score": _score}
    faces[options.action](options, report)
    return report


def _search(options: argparse.Namespace, report: Report) -> None:
    given = inputs.read(options, report)
    candidates = [plan_of(text, given) for text in options.plan] or None
    adapt = emitting.adapter(given, options.emit) if options.emit else None
    found = searched(given, candidates, adapt, options.objective)
    report.data = answer.search_data(given, found, _steps(options, given))
    answer.search_text(report, report.data)
    taken = report.data["decision"]["take"]
    if options.emit and taken:
        chosen = found.best if taken == "best" else found.fallback
        assert chosen is not None
        report.data["emitted"] = emitting.write(given, chosen.plan, options.emit, options.emit_file, report)
    _show(options, given, found, report)
    answer.refuse_nothing_fits(report, given, found)
    load_all("plan")
    report.findings = [*check_all(found), *_misfits(given, _left(candidates or [], found))]
    _say_unprofiled(given, report)


def searched(given: inputs.Inputs, candidates: list[Plan] | None, adapt: Adapt | None, objective: Objective) -> Found:

    def within(space: Space) -> Found:
        return search(given.job, given.steps, given.footprint, given.capacity, space, candidates, adapt, objective)

    found = within(given.space)
    if found.best is not None or candidates is not None:
        return found
    hosted = within(dataclasses.replace(given.space, offloads=("optimizer",)))
    if hosted.best is None:
        return found
    hosted.notes.append(f"none of {found.size:,} plans fits with the optimizer's states on the device: these keep them in host memory")
    return hosted


def _steps(options: argparse.Namespace, given: inputs.Inputs) -> int | None:
    if options.steps is None and options.tokens is not None:
        return max(int(options.tokens) // (given.job.global_batch * given.job.seq_len), 1)
    found: int | None = options.steps
    return found


def _show(options: argparse.Namespace, given: inputs.Inputs, found: Found, report: Report) -> None:
    if found.best is None or not (options.html or options.svg):
        return
    if options.html:
        report.page = page.document(given, found, report.data)
        report.text.append(f"wrote {options.html}")
    if options.svg:
        write_text(options.svg, page.timeline_svg(given, found.best.plan))
        report.text.append(f"wrote {options.svg}")


def _say_unprofiled(given: inputs.Inputs, report: Report) -> None:
    if missing := given.machine.device.missing():
        report.skip(
            "step time", f"{given.machine.device.name} was never profiled here; measure first: {missing}. Plans are ordered all the same"
        )


def _compare(options: argparse.Namespace, report: Report) -> None:
    if len(options.plan) < 2:
        raise UserError("plan compare needs --plan twice or more")
    given = inputs.read(options, report)
    plans = [plan_of(text, given) for text in options.plan]
    entries = [answer.entry(given, plan) for plan in plans]
    report.data = {"action": "compare", "job": answer.job_data(given), "plans": entries, "figures": answer.figures(given)}
    order = sorted(range(len(plans)), key=lambda i: given.steps.step(plans[i]).seconds)
    report.text = [answer.line(f"plan {i + 1}", entries[i]) for i in order]
    load_all("plan")
    report.findings = _misfits(given, [(i + 1, plans[i]) for i in order if not entries[i]["fits"]])
    if not any(one["fits"] for one in entries):
        report.findings = [*check_all(Found([], {}, len(plans), len(plans), given.space, True)), *report.findings]
    _say_unprofiled(given, report)
    if options.html or options.svg:
        priced = [Priced(plan, given.steps.seconds(plan, given.steps.split(plan)), given.footprint.peak(plan).total) for plan in plans]
        _show(options, given, Found(sorted(priced, key=lambda one: one.seconds), {}, len(plans), len(plans), given.space, True), report)


def _emit(options: argparse.Namespace, report: Report) -> None:
    if len(options.plan) != 1 or not options.emit or not options.model or not options.global_batch:
        raise UserError(f"plan emit needs --plan, --emit BACKEND ({', '.join(BACKENDS)}), --model and --global-batch")
    model = load_model(options.model)
    plan = _fields(options.plan[0], options.precision, options.compiled)
    if options.devices is not None and options.devices != plan.world_size:
        raise UserError(f"the plan needs {plan.world_size} devices; --devices says {options.devices}")
    if options.seq_len is None:
        options.seq_len = min(model.max_positions, 4096)
        report.infer("sequence length", options.seq_len, "max_position_embeddings of the model, at most 4096")
    layers = network(model)
    possible(plan, layers)
    plan.microbatches(options.global_batch)
    job = Planned(plan, options.global_batch, options.seq_len, layers.num_layers, model)
    report.data = {"action": "emit", "plan": job.normal().plan.to_json(), "emitted": emitting.written(job, options.emit, options.emit_file)}
    if options.emit_file:
        report.text = [f"wrote {options.emit_file}"]
        return
    report.text = report.data["emitted"]["text"].splitlines()
    if options.format == "text":
        report.notes = [f"inferred: {one['name']} = {one['value']} ({one['source']})" for one in report.inferred]
        report.inferred = []


def plan_of(text: str, given: inputs.Inputs) -> Plan:
    plan = _fields(text, given.job.precision, given.job.compiled)
    possible(plan, given.job.network)
    given.steps.step(plan)
    return plan


def _fields(text: str, precision: str, compiled: bool) -> Plan:
    values = inputs.plan_text(text)
    known = {field.name for field in dataclasses.fields(Plan)}
    if unknown := sorted(set(values) - known - {"dp", "world_size", "name"}):
        raise UserError(f"--plan {text[:80]!r}: {unknown[0]!r} is no field of a plan; they are {', '.join(sorted(known))}")
    values = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items() if key in known}
    try:
        return Plan(**{"precision": precision, "compiled": compiled, **values})
    except TypeError as problem:
        raise UserError(f"--plan {text[:80]!r}: {problem}") from None


def _left(candidates: list[Plan], found: Found) -> list[tuple[int, Plan]]:
    kept = {dataclasses.replace(one.plan, layer_split=None) for one in found.fitting}
    return [(i, plan) for i, plan in enumerate(candidates, start=1) if dataclasses.replace(plan, layer_split=None) not in kept]


def _misfits(given: inputs.Inputs, plans: list[tuple[int, Plan]]) -> list[Finding]:
    found = []
    for number, plan in plans:
        needed = given.footprint.peak(plan).total
        found += check_all(Misfit(number, plan.name, format_bytes(round(needed)), format_bytes(round(given.capacity))))
    return found


def _regret(name: str, found: dict[str, Any]) -> str:
    words = ", ".join(f"{rule.replace('_', ' ')} {value:.1%}" for rule, value in found["mean"].items())
    return f"regret over {found['workloads']} workloads, {name[:60]}: {words}; {found['within_5_percent']} within 5 %"


def _rows(options: argparse.Namespace, report: Report) -> tuple[list[str], list[Row]]:
    if not options.file:
        raise UserError(f"plan {options.action} needs a file of rows: plan {options.action} ROWS.csv")
    columns, rows = read_rows(options.file)
    for row in rows:
        if row.plan is None:
            report.skip(row.name, row.reason)
    return columns, rows


def _few(rows: list[Row], report: Report) -> list[Row]:
    told = [row for row in rows if has_time(row) or has_memory(row) or (row.oom and row.plan)]
    if len(told) <= MOST_FITTED:
        return rows
    drawn = score.draw(told, MOST_FITTED / len(told), 0)[0]
    report.skip(f"{len(told) - len(drawn):,} of {len(told):,} measured rows", f"a fit takes {MOST_FITTED}, drawn by a fixed seed")
    return drawn


def _fit(options: argparse.Namespace) -> Fit:
    return inputs.read_fit(options.calibration) if options.calibration else SHIPPED


def _predict(options: argparse.Namespace, report: Report) -> None:
    csv = options.output if options.output.endswith(".csv") else None
    if csv:
        options.output = "-"
    columns, rows = _rows(options, report)
    fit = _fit(options)
    found = [predict(row, fit) for row in rows]
    timed = sum(one.seconds is not None for one in found)
    report.data = {"action": "predict", "fit": fit.to_json(), "rows": [one.to_json() for one in found], "output": None}
    report.text = [f"{len(found)} rows: {timed} with a step time, {sum(one.memory_gib is not None for one in found)} with memory"]
    if csv:
        write_text(csv, table(columns, found))
        report.data["output"] = csv
        report.text.append(f"wrote {csv}")


def _calibrate(options: argparse.Namespace, report: Report) -> None:
    if str(options.file).endswith((".yaml", ".yml", ".json")):
        _calibrate_profile(options, report)
        return
    rows = _few(_rows(options, report)[1], report)
    with progress("plan calibrate", options.quiet) as step:
        step(f"{len(rows)} rows")
        fit = calibrate(rows, profile=_fit(options).profile)
        left = {kind: score.left_out(rows, kind, step=step) for kind in ("time", "memory")}
    before = {"time": score.time_errors(rows, lambda row: SHIPPED), "memory": score.memory_errors(rows, lambda row: SHIPPED)}
    inside = {"time": score.time_errors(rows, lambda row: fit), "memory": score.memory_errors(rows, lambda row: fit)}
    groups = {"shipped": before, "fitted": inside, "left_out": left}
    report.data = {"action": "calibrate", "fit": fit.to_json(), "errors": {name: _errors_json(group) for name, group in groups.items()}}
    _mind(rows, report)
    for kind in ("time", "memory"):
        report.text += [_said(f"{kind}, {words}", group[kind][0]) for words, group in _named(groups) if group[kind]]
    report.text += [f"  {name} x {factor:g}" for name, factor in sorted({**fit.time, **fit.memory}.items())]
    if options.save:
        write_text(options.save, inputs.fit_text(fit))
        report.text.append(f"wrote {options.save}")


def _calibrate_profile(options: argparse.Namespace, report: Report) -> None:
    profile = load_mapping(options.file).value
    fit = dataclasses.replace(_fit(options), profile=profile)
    report.data = {
        "action": "calibrate",
        "fit": fit.to_json(),
        "errors": {},
        "figures": profiles.changes(from_table(profile, options.file)),
    }
    report.text = profiles.said(report.data["figures"])
    report.skip("how far the error falls", "a profile has no runs to compare with; plan calibrate RUNS.csv says it")
    if options.save:
        write_text(options.save, inputs.fit_text(fit))
        report.text.append(f"wrote {options.save}")


def _mind(rows: list[Row], report: Report) -> None:
    report.data["counter_signals"] = signals.of_rows(rows)
    report.text += [f"mind: {text}" for text in report.data["counter_signals"]]


def _named(groups: dict[str, dict[str, list[Errors]]]) -> list[tuple[str, dict[str, list[Errors]]]]:
    words = {"shipped": "as shipped", "fitted": "fitted, on the same rows", "left_out": "fitted without the rows tested"}
    return [(words[name], group) for name, group in groups.items()]


def _errors_json(group: dict[str, list[Errors]]) -> dict[str, Any]:
    return {kind: [one.to_json() for one in found] for kind, found in group.items()}


def _said(name: str, one: Errors) -> str:
    return (
        f"{name}: {one.count} predictions, median error {one.median:.1%}, p90 {one.p90:.1%}, worst {one.worst:.1%}, bias x {one.bias:.3f}"
    )


def _score(options: argparse.Namespace, report: Report) -> None:
    _, rows = _rows(options, report)
    fit, ooms = _fit(options), []
    few = rows if options.held_out is None and not options.other_sources else _few(rows, report)
    groups: dict[str, dict[str, list[Errors]]] = {
        "fit": {"time": score.time_errors(rows, lambda row: fit), "memory": score.memory_errors(rows, lambda row: fit)}
    }
    if options.held_out is not None:
        if not 0 < options.held_out < 1 or not 0 < options.splits <= 1000:
            raise UserError("--held-out is a share between 0 and 1, and --splits from 1 to 1000")
        with progress("plan score", options.quiet) as step:
            groups["held_out"] = {kind: score.held_out(few, options.held_out, options.splits, kind, step) for kind in ("time", "memory")}
            ooms = score.held_out_oom(few, options.held_out, options.splits, step)
        if not any(groups["held_out"].values()):
            report.skip(
                "a fit of a share", f"no source has {score.LEAST_ROWS} rows with a measurement; plan calibrate leaves rows out one by one"
            )
    if options.other_sources:
        with progress("plan score", options.quiet) as step:
            groups["other_sources"] = {kind: score.other_sources(few, kind, step) for kind in ("time", "memory")}
    report.data = {"action": "score", "fit": fit.to_json(), "errors": {name: _errors_json(group) for name, group in groups.items()}}
    for name, group in groups.items():
        for kind, found in group.items():
            report.text += [_said(f"{name.replace('_', ' ')}, {kind}, {one.name[:60]}", one) for one in found]
    report.data["held_out_oom"] = ooms
    report.text += [_out_of_memory(one) for one in ooms]
    _ranked(rows, fit, report)
    _mind(rows, report)
    if importlib.util.find_spec("trainwright.plan.accuracy") and options.table:
        from trainwright.plan.accuracy import markdown

        write_text(options.table, markdown(report.data, options))
        report.text.append(f"wrote {options.table}")


def _out_of_memory(one: dict[str, Any]) -> str:
    names = ", ".join(f"{name} {times} times" for name, times in one["missed"].items()) or "none"
    start = f"held out, out of memory, {one['name'][:60]}: of {one['oom']} in {one['splits']} splits missed {names}"
    return f"{start}, at most {one['most_missed']} in a split; {one['false']} of {one['fit']} that fitted called in vain"


def _ranked(rows: list[Row], fit: Fit, report: Report) -> None:
    chosen, gaps = score.choices(rows, lambda row: fit), score.pairs(rows, lambda row: fit)
    report.data |= {
        "oom": score.oom_counts(rows, lambda row: fit),
        "pairs": gaps,
        "choices": [one.to_json() for one in chosen],
        "regret": score.regrets(chosen),
    }
    if chosen:
        regret = report.data["regret"]
        report.text += [_regret("all", regret), *(_regret(name, one) for name, one in regret["by_source"].items())]
    report.text += [f"pairs {one['gap']} apart: {one['right']} of {one['pairs']} ordered right" for one in gaps if one["pairs"]]
