# plan/decide.py without its comments
from __future__ import annotations

import math
from typing import Any

from trainwright.cost.footprint import GIB
from trainwright.parallel import Plan
from trainwright.plan.inputs import Inputs
from trainwright.plan.search import PAIR_SPREAD, Found, Priced, chance, differences, kind_of, ties

RUN_NOISE = 0.04
PROBES, PROBE_STEPS, WARM_STEPS, RELAUNCH_S = 2, 20, 5, 300.0
MOST_PROBES = 3


def decision(given: Inputs, found: Found, steps: int | None) -> dict[str, Any]:
    found_best, fallback = found.best, found.fallback
    if found_best is None or fallback is None:
        return _answer("none", None, steps)
    decided = _decided(given, found, found_best, fallback, steps)
    taken = found_best if decided["take"] == "best" else fallback
    lighter = found.lighter(taken)
    return {**decided, "too_tight": _too_tight(given, found), "if_out_of_memory": lighter and _lighter(lighter, taken, given)}


def _too_tight(given: Inputs, found: Found) -> dict[str, Any] | None:
    plain, fallback = found.simplest, found.fallback
    if plain is None or fallback is None or plain.plan == fallback.plan:
        return None
    return {"name": plain.plan.name, "memory_bytes": round(plain.bytes), "capacity": round(given.capacity)}


def _lighter(one: Priced, taken: Priced, given: Inputs) -> dict[str, Any]:
    slower = None if given.machine.device.missing() else one.seconds / taken.seconds
    changes = {name: getattr(one.plan, name) for name in differences(one.plan, taken.plan)}
    return {"name": one.plan.name, "changes": changes, "memory_bytes": round(one.bytes), "step_time_over_taken": slower}


def _decided(given: Inputs, found: Found, best: Priced, fallback: Priced, steps: int | None) -> dict[str, Any]:
    if given.machine.device.missing():
        return {**_answer("unknown", "fallback", steps), "measure": given.machine.device.missing()}
    gain = fallback.seconds / best.seconds - 1
    overhead = PROBES * (RELAUNCH_S + PROBE_STEPS * best.seconds)
    saved = fallback.seconds - best.seconds
    even = math.ceil(overhead / saved) if saved > 0 else None
    kind = _kind(best, fallback, gain, steps, even)
    probes = _probes(found, best, fallback) if kind == "tie" else []
    numbers = {"gain": gain, "probability": chance(gain), "break_even_steps": even, "overhead_s": overhead}
    return {**_answer(kind, "best" if kind in ("best", "same") else "fallback", steps), **numbers, "probes": probes}


def _answer(kind: str, take: str | None, steps: int | None) -> dict[str, Any]:
    numbers = dict.fromkeys(("gain", "probability", "break_even_steps", "overhead_s"))
    notes = dict.fromkeys(("measure", "too_tight", "if_out_of_memory"))
    return {"kind": kind, "take": take, **numbers, "steps": steps, "probes": [], **notes}


def _kind(best: Priced, fallback: Priced, gain: float, steps: int | None, even: int | None) -> str:
    if best.plan == fallback.plan:
        return "same"
    if ties(gain):
        return "tie"
    return "short" if steps is not None and even is not None and steps < even else "best"


def _probes(found: Found, best: Priced, fallback: Priced) -> list[dict[str, Any]]:
    third = next((one for one in found.fitting if kind_of(one.plan) not in (kind_of(best.plan), kind_of(fallback.plan))), None)
    runs = [_probe(fallback.plan, "the fallback: what the others have to beat", fallback, best)]
    runs.append(_probe(best.plan, "the predicted best", best, best))
    if third is not None and third.seconds <= best.seconds * math.exp(PAIR_SPREAD):
        runs.append(_probe(third.plan, "of another kind, and as likely to be first as the model's error goes", third, best))
    return runs[:MOST_PROBES]


def _probe(plan: Plan, why: str, one: Priced, best: Priced) -> dict[str, Any]:
    row = {"name": plan.name, "plan": plan.to_json(), "why": why, "steps": PROBE_STEPS, "warm_steps": WARM_STEPS}
    return {**row, "predicted_over_best": one.seconds / best.seconds, "decides_above": math.expm1(RUN_NOISE)}


def said(found: dict[str, Any]) -> list[str]:
    lines, tight, one = _said(found), found["too_tight"], found["if_out_of_memory"]
    if tight is not None:
        needs = f"{tight['memory_bytes'] / GIB:.1f} of {tight['capacity'] / GIB:.1f} GiB"
        lines.append(f"  simpler, but no fallback: {tight['name']} takes {needs}, within the memory model's own error")
    if one is None:
        return lines
    slower = "" if one["step_time_over_taken"] is None else f", step time x {one['step_time_over_taken']:.2f}"
    return [*lines, f"  should it run out of memory: {one['name']} ({one['memory_bytes'] / GIB:.1f} GiB{slower})"]


def _said(found: dict[str, Any]) -> list[str]:
    kind, tight = found["kind"], found["too_tight"]
    fits = "with room in memory" if tight else "that fits"
    words = {
        "none": "nothing to decide",
        "same": "the best: no simpler plan near it leaves room in memory" if tight else "the simplest plan that fits is the fastest",
        "unknown": f"open until the device is profiled; the fallback is the simplest plan {fits}",
    }
    if kind in words:
        return [f"decision: {words[kind]}"]
    likely = "over 99%" if found["probability"] > 0.99 else f"{found['probability']:.0%}"
    sure = f"{found['gain']:.1%} faster than the fallback, {likely} sure"
    if kind == "tie":
        why = "leaves room in memory and is simpler" if tight else "is simpler"
        lines = [f"decision: a tie (predicted {sure}, within the model's own error): take the fallback, it {why}"]
        probes = [f"  probe: {one['name']} ({one['why']})" for one in found["probes"]]
        runs = f"  {PROBE_STEPS} steps each, the first {WARM_STEPS} left out; a difference above {RUN_NOISE:.0%} decides"
        return [*lines, *probes, runs]
    if kind == "short":
        ends = f"{found['steps']:,} steps end before the gain has paid for {PROBES} probe runs ({found['break_even_steps']:,} steps)"
        return [f"decision: the fallback: {ends}"]
    return [f"decision: the best ({sure}); it pays from step {found['break_even_steps']:,} on"]


def planning(given: Inputs, found: Found, decided: dict[str, Any]) -> dict[str, Any]:
    fallback = found.fallback.seconds if found.fallback else 0.0
    runs = len(decided["probes"])
    seconds = runs * (RELAUNCH_S + PROBE_STEPS * fallback)
    return {"plans_priced": found.priced, "device_seconds": 0, "probe_device_seconds": seconds * given.job.devices if runs else 0.0}
