"""The fit in words: lines for a terminal, findings, Markdown, and the checklist of what a report of a power law has to state."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainwright.isoflop.analysis import Analysis, factor_of
from trainwright.report import Finding, Severity
from trainwright.units import format_count

_SHOWN = 12


def lines(result: Analysis) -> list[str]:
    """What a person reads first."""
    data, study = result.data, result.study
    rows = data["rows"]
    selected = f", {rows['not_selected']} not selected" if rows["not_selected"] else ""
    text = [f"{rows['used']} rows used, {rows['excluded']} excluded{selected}; {len(np.unique(study.budgets))} budgets"]
    text += [f"  excluded {row['row']}: {row['reason']}" for row in study.excluded[:_SHOWN]]
    if len(study.excluded) > _SHOWN:
        text.append(f"  ... {len(study.excluded) - _SHOWN} more excluded rows (--format json, --output-json and --output-md list them all)")
    for fit in data["fits"]:
        text += _fit_lines(fit)
    text += _extras(data)
    text.append(f"verdict: {data['verdict']} (approach {data['trusted']})")
    text += [f"  because {reason}" for reason in data["reasons"]]
    return text + _remedy_lines(data["remedy"])


def _fit_lines(fit: dict[str, Any]) -> list[str]:
    name = f"approach {fit['approach']}" if fit["approach"].isdigit() else fit["approach"]
    if fit["refused"]:
        return [f"{name}: refused: {fit['refused']}"]
    found = f"a = {fit['exponents']['a']:.4f}{_pair(fit['intervals'].get('a'))}, b = {fit['exponents']['b']:.4f}"
    told = fit["verdict"] != "underdetermined"
    text = [f"{name}: {found}: {fit['verdict']}" if told else f"{name}: underdetermined; where it ended tells nothing: {found}"]
    if fit["parameters"]:
        parts = [f"{key} {value:.6g}{_pair(fit['intervals'].get(key))}" for key, value in fit["parameters"].items()]
        text.append(f"  {', '.join(parts)}")
    text.append(f"  objective {fit['objective']:.12g} ({fit['objective_kind']})")
    if fit["bootstrap"]["replicates"]:
        text.append(f"  intervals: {fit['bootstrap']['kind']} bootstrap, {fit['bootstrap']['replicates']} replicates")
    text += [f"  {note}" for note in fit["notes"]]
    return text + [f"  {d['level']}: {d['reason']}" for d in fit["diagnostics"] if d["level"] != "identified"]


def _pair(pair: Any) -> str:
    return f" [{pair[0]:.4g}, {pair[1]:.4g}]" if pair and all(np.isfinite(pair)) else ""


def _extras(data: dict[str, Any]) -> list[str]:
    text = []
    for budget in data["budgets"]:
        if budget["refused"] and budget["points"] < 4:
            continue
        said = budget["refused"] or f"N* {format_count(budget['params'])}, D* {format_count(budget['tokens'])}, loss {budget['loss']:.4f}"
        flat = (
            ""
            if not budget["flat"] or budget["refused"]
            else f", flat from {format_count(budget['flat'][0])} to {format_count(budget['flat'][1])}"
        )
        text.append(f"budget {budget['flops']:.4g} FLOP ({budget['points']} rows, N spread {budget['n_spread']:.3g}x): {said}{flat}")
    if data["recipe"]:
        text.append(f"recipe {data['recipe']['name']}: a = {data['recipe']['exponents']['a']:.4f}{_pair(data['recipe']['interval'])}")
    if data["delta_sensitivity"]:
        text.append("delta sensitivity of a: " + ", ".join(f"{row['delta']}: {row['a']:.4f}" for row in data["delta_sensitivity"]))
    if data["profile"]:
        low, high = (f"{x:.3f}" if x is not None else "open" for x in data["profile"]["interval"])
        text.append(f"profile of the objective over a, 95 %: {low} to {high}")
    if data["repeated_data"]:
        found = data["repeated_data"]
        near = [m for m in found["minima"][1:] if m["objective"] < found["objective"] * 1.01]
        more = f"; {len(near)} other minima within 1 %: " + ", ".join(f"({m['R_D']:.3g}, {m['R_N']:.3g})" for m in near) if near else ""
        text.append(f"repeated data: R_D* = {found['R_D']:.4g}, R_N* = {found['R_N']:.4g}, objective {found['objective']:.8g}{more}")
    if data["compare"]:
        ratio = data["compare"].get("likelihood_ratio")
        said = f"; likelihood ratio to approach 3 {ratio['statistic']:.1f} (p {ratio['p']:.2g})" if ratio else ""
        text.append(f"compared parameters: objective {data['compare']['objective']:.12g}{said}")
    return text + [_forecast_line(row) for row in data["forecasts"]]


def _forecast_line(row: dict[str, Any]) -> str:
    intervals = row.get("intervals", {})
    loss = f"loss {row['loss']:.4f}{_pair(intervals.get('loss'))}" if row.get("loss") is not None else ""
    if "flops" not in row:
        return f"forecast by {row['approach']} at N {row['params']:.4g}, D {row['tokens']:.4g}: {loss}"
    doubt = "" if row["verdict"] == "identified" else f" ({row['verdict']})"
    best = f"N* {row['params']:.4g}{_pair(intervals.get('params'))}, D* {row['tokens']:.4g}" if row["params"] else "no optimum"
    return f"forecast by {row['approach']} at {row['flops']:.4g} FLOP{doubt}: {', '.join(part for part in (best, loss) if part)}"


def _remedy_lines(found: dict[str, Any] | None) -> list[str]:
    if not found or not found["runs"]:
        return [f"remedy: {found['reason']}"] if found else []
    head = (
        "the least set of runs found that would identify it" if found["reached"] else "runs that would help, though no set found is enough"
    )
    text = [f"{head}: {len(found['runs'])} runs, {found['cost_flops']:.3g} FLOP, predicted sd of a {found['sd_exponent']:.3f}"]
    return text + [f"  {run['flops']:.3g} FLOP: N {format_count(run['params'])}, D {format_count(run['tokens'])}" for run in found["runs"]]


def findings(result: Analysis) -> list[Finding]:
    """What is wrong with the rows and the verdict, for exit codes and programs."""
    data, found = result.data, []
    if data["excluded"]:
        reasons = list(dict.fromkeys(row["reason"].split(":")[0][:60] for row in data["excluded"]))
        found.append(Finding("iso-excluded", Severity.INFO, f"{len(data['excluded'])} rows are excluded: {'; '.join(reasons[:4])}"))
    for field in ("experiment", "labels", "family", "backbone", "regime"):
        codes = np.unique(result.study.table.code(field))
        if 1 < len(codes) <= 50 and not (field == "labels" and len(codes) > 10):
            names = ", ".join(repr(result.study.table.vocabulary[code][:40]) for code in codes[:4])
            found.append(
                Finding("iso-mixed", Severity.WARNING, f"rows of several studies are fitted as one: {field} is {names} (--where picks one)")
            )
    for fit in data["fits"]:
        if fit["refused"]:
            severity = Severity.ERROR if all(f["refused"] for f in data["fits"]) else Severity.WARNING
            found.append(Finding("iso-refused", severity, f"approach {fit['approach']} is refused: {fit['refused']}"))
    if data["verdict"] != "identified":
        message = f"the exponent is {data['verdict']}: {'; '.join(data['reasons'][:3]) or 'see the diagnostics'}"
        found.append(Finding(f"iso-{data['verdict']}", Severity.WARNING, message))
    found += [
        Finding(
            "iso-disagree",
            Severity.WARNING,
            f"approaches {row['approaches'][0]} and {row['approaches'][1]} differ by {row['difference']:.3f}: show both",
        )
        for row in data["agreement"]
        if not row["agree"]
    ]
    return found


def checklist(result: Analysis) -> list[tuple[str, str]]:
    """What a report of a fitted power law has to state (after "(Mis)fitting", 2025), answered from this fit; unknowns say so."""
    study, settings, data = result.study, result.settings, result.data
    table = study.table
    schedules = sorted({table.vocabulary[code] for code in np.unique(table.code("schedule"))} - {""})
    lr = table.number("lr")
    left = data["left_out"]
    errors = ", ".join(f"{row['approach']}: {row['loss_error_rms']:.2%}" for row in left["fits"] if "loss_error_rms" in row)
    intervals = ", ".join(
        f"{f['approach']}: {f['bootstrap']['kind']} x {f['bootstrap']['replicates']}" for f in data["fits"] if f["bootstrap"]["kind"]
    )
    return [
        ("form", "L = E + A / N^alpha + B / D^beta (3, vpnls); L a parabola in ln N per budget, ln N* a line in ln C (2)"),
        ("N", f"{_source(study, 'params')}, {study.params.min():.4g} to {study.params.max():.4g}"),
        ("D", f"{_source(study, 'tokens')}, {study.tokens.min():.4g} to {study.tokens.max():.4g}"),
        (
            "C",
            f"{_source(study, 'flops')}, {study.flops.min():.4g} to {study.flops.max():.4g}; C / (N D) {factor_of(study):.3g} (median)",
        ),
        ("loss", f"{_source(study, 'loss')}, {study.loss.min():.4g} to {study.loss.max():.4g}"),
        ("learning rate", f"{np.nanmin(lr):.3g} to {np.nanmax(lr):.3g}" if np.isfinite(lr).any() else "not in the rows"),
        ("schedule", ", ".join(schedules) or "not in the rows: whether each run ended its own schedule is not known"),
        ("checkpoints", "one row a run" if _one_row_a_run(study) else "several rows a run: not independent, use --bootstrap-kind cluster"),
        ("objective", f"approach 3: sum of Huber, delta {settings.delta:g}, on ln L; vpnls: squares of L; 2: squares of L per budget"),
        ("optimizer and starts", "damped Newton with exact derivatives; 64 cold starts (3), 36 (vpnls), none needed (2)"),
        ("excluded rows", f"{len(study.excluded)}, each listed with its reason"),
        ("intervals", f"{intervals or 'none'}; level {settings.level:g}"),
        ("held-out error", f"largest budget left out: {errors}" if errors else str(left.get("reason", "no approach forecasts losses"))),
    ]


def _source(study: Any, name: str) -> str:
    """The column a field was read from, or the rule it was derived by."""
    return next((str(value) for field, value, _ in study.inferred if field == name), name)


def _one_row_a_run(study: Any) -> bool:
    codes = study.table.code("run_id")
    named = codes[codes > 0]
    return len(np.unique(named)) == len(named)


def checklist_lines(result: Analysis) -> list[str]:
    return ["checklist:", *(f"  {item}: {answer}" for item, answer in checklist(result))]


def markdown(result: Analysis) -> str:
    """The whole fit as Markdown; tables for fits, budgets and excluded rows."""
    data = result.data
    parts = [f"# IsoFLOP fit: {data['verdict']}", "", f"Trusted: approach {data['trusted']}.", ""]
    parts += [f"- {reason}" for reason in data["reasons"]]
    parts += [
        "",
        "## Fits",
        "",
        "| approach | a | b | E | A | B | alpha | beta | objective | verdict |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for fit in data["fits"]:
        values = fit["parameters"] or {}
        a = _cell(fit["exponents"]["a"]) + _pair(fit["intervals"].get("a"))
        cells = [_cell(values.get(key)) for key in ("E", "A", "B", "alpha", "beta")]
        parts.append(
            f"| {' | '.join([fit['approach'], a, _cell(fit['exponents']['b']), *cells, _cell(fit['objective']), fit['verdict']])} |"
        )
        parts += [f"|  | refused: {_safe(fit['refused'])} |||||||||"] if fit["refused"] else []
    parts += ["", "## Diagnostics", "", "| approach | diagnostic | level | what was seen |", "|---|---|---|---|"]
    parts += [f"| {f['approach']} | {d['name']} | {d['level']} | {_safe(d['reason'])} |" for f in data["fits"] for d in f["diagnostics"]]
    parts += ["", "## Budgets", "", "| FLOP | rows | N spread | N* | D* | sd of ln N* | refused |", "|---|---|---|---|---|---|---|"]
    for row in data["budgets"]:
        cells = [_cell(row[key]) for key in ("flops", "points", "n_spread", "params", "tokens", "log_params_sd")]
        parts.append(f"| {' | '.join(cells)} | {_safe(row['refused'])} |")
    parts += ["", *[line if line.startswith("  ") else f"- {line}" for line in _remedy_lines(data["remedy"])]]
    parts += ["", "## Checklist", "", *(f"- **{item}**: {_safe(answer)}" for item, answer in checklist(result))]
    parts += ["", "## Excluded rows", "", *([f"- `{_safe(row['row'])}`: {_safe(row['reason'])}" for row in data["excluded"]] or ["None."])]
    return "\n".join(parts) + "\n"


def _cell(value: Any) -> str:
    return (
        ""
        if value is None
        else f"{value:.8g}"
        if isinstance(value, (int, float)) and np.isfinite(value)
        else ""
        if isinstance(value, float)
        else str(value)
    )


def _safe(text: str) -> str:
    """Cells hold no bars, no line breaks and no markup that a file's content could bring."""
    return text.replace("|", "\\|").replace("\n", " ").replace("`", "'").replace("<", "&lt;")
