# plan/answer.py without its comments
from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from trainwright.cost.constants import Constants
from trainwright.cost.footprint import GIB, MemoryConstants
from trainwright.cost.step import StepTime
from trainwright.parallel import Plan
from trainwright.plan import decide, signals
from trainwright.plan.calibrate import Basis
from trainwright.plan.inputs import Inputs
from trainwright.plan.predict import memory_half, spread, time_half
from trainwright.plan.search import Found, Priced
from trainwright.report import Report
from trainwright.units import format_bytes, format_seconds


def entry(given: Inputs, plan: Plan) -> dict[str, Any]:
    step = given.steps.step(plan)
    stages = given.footprint.stages(plan, step.split)
    peak = max(stages, key=lambda stage: stage.total)
    known = not given.machine.device.missing()
    of_time, of_memory = given.fit.time_of(given.machine.device.name), given.fit.memory_of(given.machine.device.name)
    host = given.footprint.host_bytes(
        replace(plan, layer_split=step.split) if plan.pp > 1 else plan, min(given.job.node, given.job.devices)
    )
    tag = "calibrated" if given.measured else of_time.tag
    memory = spread(peak.total, memory_half(of_memory))
    return {
        "plan": replace(plan, layer_split=step.split if plan.pp > 1 else plan.layer_split).to_json(),
        "step_time_s": {**spread(step.seconds, time_half(of_time)).to_json(), "tag": tag} if known else None,
        "tokens_per_s_per_device": _rate(given, step) if known else None,
        "time": step.to_json() if known else None,
        "memory_bytes": {**memory.to_json(), "tag": of_memory.tag},
        "memory": {
            "metric": "device",
            "stages": [stage.to_json() for stage in stages],
            "capacity": round(given.capacity),
            "host_bytes_per_node": round(host),
        },
        "fits": peak.total <= given.capacity,
        "invariants": signals.invariants(given, plan, step.split),
        "counter_signals": [*signals.counter_signals(given, plan, step), *signals.tight(peak.total, memory.high, given.capacity)],
    }


def _rate(given: Inputs, step: StepTime) -> float:
    return given.job.global_batch * given.job.seq_len / step.seconds / given.job.devices


def figures(given: Inputs) -> dict[str, Any]:
    device = given.machine.device
    names = ("peak_flops", "matmul_flops", "matmul_flops_fp8", "hbm", "attention", "sustained")
    levels = [
        {"name": level.name, "size": level.size, "bus_bytes_per_s": dict(level.bus), "tag": level.tag, "source": level.source}
        for level in given.machine.levels
    ]
    return {
        "device": {"name": device.name, **{name: getattr(device, name).to_json() for name in names}},
        "links": levels,
        "constants": _tagged(given.steps.constants, Constants(), given.fit.time, given.fit.time_of(device.name)),
        "memory_constants": _tagged(given.footprint.constants, MemoryConstants(), given.fit.memory, given.fit.memory_of(device.name)),
        "unprofiled": device.missing(),
    }


def _tagged(now: Any, shipped: Any, fitted: dict[str, float], basis: Basis) -> dict[str, Any]:
    moved = {name.partition(":")[0] for name in fitted if name.partition(":")[2] in ("", basis.device)}
    return {
        field.name: {"value": getattr(now, field.name), "tag": basis.tag if field.name in moved else "assumed"} for field in fields(shipped)
    }


def search_data(given: Inputs, found: Found, steps: int | None = None) -> dict[str, Any]:
    decided = decide.decision(given, found, steps)
    return {
        "action": "search",
        "job": job_data(given),
        "space": {**found.space.to_json(), "size": found.size, "priced": found.priced, "complete": found.complete, "notes": found.notes},
        "proven": found.complete,
        "fitting": len(found.fitting),
        "rejected": found.rejected,
        "decision": decided,
        "planning": decide.planning(given, found, decided),
        "counter_signals": signals.of_the_decision(given, decided),
        "missing_evidence": signals.missing(given, steps),
        "best": _entry(given, found.best),
        "fallback": _entry(given, found.fallback),
        "alternatives": [entry(given, one.plan) for one in found.alternatives()],
        "figures": figures(given),
    }


def _entry(given: Inputs, one: Priced | None) -> dict[str, Any] | None:
    return None if one is None else entry(given, one.plan)


def job_data(given: Inputs) -> dict[str, Any]:
    job = given.job
    return {
        "model": given.model.name,
        "parameters": given.model.total_parameters,
        "devices": job.devices,
        "per_node": job.node,
        "global_batch": job.global_batch,
        "seq_len": job.seq_len,
        "precision": job.precision,
        "capacity_bytes": round(given.capacity),
        "slowest": given.machine.slowest,
    }


def line(name: str, one: dict[str, Any]) -> str:
    time, memory = one["step_time_s"], one["memory_bytes"]
    step = "step time unknown" if time is None else f"{format_seconds(time['value'])} a step ({time['low']:.3g} to {time['high']:.3g} s)"
    split = one["plan"]["layer_split"]
    layers = f", layers {_folded(split)}" if split else ""
    return f"{name:12} {one['plan']['name']}: {step}, {memory['value'] / GIB:.1f} GiB on the fullest rank{layers}"


def _folded(split: list[int]) -> str:
    parts, at = [], 0
    while at < len(split):
        end = at
        while end < len(split) and split[end] == split[at]:
            end += 1
        parts.append(f"{end - at}x{split[at]}" if end - at > 1 else str(split[at]))
        at = end
    return " ".join(parts)


def search_text(report: Report, data: dict[str, Any]) -> None:
    if data["best"] is None:
        report.text.append(f"no plan of {data['space']['size']:,} fits")
    for name in ("best", "fallback"):
        if data[name]:
            report.text.append(line(name, data[name]))
    report.text += [line("or", one) for one in data["alternatives"]]
    if data["best"] and data["best"]["time"]:
        report.text += ledger(data["best"]["time"], data["best"]["step_time_s"]["value"])
    report.text += decide.said(data["decision"])
    space = data["space"]
    proven = "the best of the whole space" if space["complete"] else "not proven: the space was thinned"
    report.text.append(f"space: {space['size']:,} plans priced, {data['fitting']:,} fit; {proven}")
    report.text += [
        f"  {count:,} left out: {reason}" for reason, count in sorted(data["rejected"].items(), key=lambda item: (-item[1], item[0]))
    ]
    report.text += [f"note: {note}" for note in space["notes"]]
    taken = data[data["decision"]["take"] or "best"] or {"counter_signals": []}
    report.text += [f"mind: {text}" for text in (*data["counter_signals"], *taken["counter_signals"])]
    for one in data["missing_evidence"]:
        report.skip(one["what"], one["instead"])


def ledger(time: dict[str, Any], total: float) -> list[str]:
    shown = [(name, value) for name, value in time["parts"].items() if value > 0.005 * total]
    return ["where the time goes: " + ", ".join(f"{name} {value / total:.0%}" for name, value in shown)]


def refuse_nothing_fits(report: Report, given: Inputs, found: Found) -> None:
    if found.best is None:
        report.skip("a plan", f"none fits in {format_bytes(given.capacity)}: more devices, a smaller sequence, or a looser space")
