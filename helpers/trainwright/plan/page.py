"""The page of a search: what to run and why, its pipeline in time, memory against capacity, the mesh over the nodes, the front."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from trainwright import page
from trainwright.cost.footprint import GIB
from trainwright.page import Bar, Html, cards, element, join, paragraph, section, stacked_bars, table
from trainwright.parallel import Plan
from trainwright.plan import decide, drawing, timeline
from trainwright.plan.inputs import Inputs
from trainwright.plan.search import Found
from trainwright.units import format_seconds

LETTERS = "ABCDEFGH"
MEMORY = ("parameters", "gradients", "optimizer", "gathered", "activations", "logits", "workspace", "fixed")
SLOWER = 3.0  # times the fastest: plans beyond are left out of the picture


def document(given: Inputs, found: Found, data: dict[str, Any]) -> str:
    """The whole page; `data` is what search or compare answered."""
    entries = _entries(data)
    taken = entries[0][1]
    plan = _plan_of(taken)
    job = data["job"]
    lead = (
        f"{job['model']}, {job['devices']:,} x {given.machine.device.name}, {job['global_batch']:,} sequences of {job['seq_len']:,} tokens"
    )
    parts = [
        cards(_headline(given, taken, data)),
        *([paragraph(*(join(line, Html("<br>")) for line in decide.said(data["decision"])))] if "decision" in data else []),
        section("The pipeline in time" if plan.pp > 1 else "A step in time", *_timeline(given, plan)),
        section("Where the step goes", *_ledger(entries)),
        section("Memory by rank", *_memory(given, taken, plan)),
        section("The mesh over the nodes", *_mesh(given, plan)),
        section("Time and memory", *_front(given, found, entries)),
        section("What to mind", *_mind(data, taken)),
        section("Figures behind it", _figures(data)),
    ]
    return page.document(f"Plan: {plan.name}", lead, *parts)


def _entries(data: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """What is run first, then the others, each plan once."""
    if data["action"] == "compare":
        ordered = sorted(data["plans"], key=lambda one: one["time"]["seconds"] if one["time"] else 0.0)
        return [(f"plan {i + 1}", one) for i, one in enumerate(ordered)]
    order = ("best", "fallback") if data["decision"]["take"] == "best" else ("fallback", "best")
    named = [(name, data[name]) for name in order] + [("alternative", one) for one in data["alternatives"]]
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for name, one in named:
        key = str(one["plan"])
        found[key] = (f"{found[key][0]} and {name}" if key in found else name, one)
    return list(found.values())


def _plan_of(entry: dict[str, Any]) -> Plan:
    split = entry["plan"]["layer_split"]
    fields = {name: entry["plan"][name] for name in Plan.__slots__}
    return Plan(**{**fields, "layer_split": None if split is None else tuple(split)})


def _headline(given: Inputs, entry: dict[str, Any], data: dict[str, Any]) -> list[tuple[str, str, str]]:
    step, memory = entry["step_time_s"], entry["memory_bytes"]
    fits = entry["fits"]
    shown = [(entry["plan"]["name"], "the plan to run" if "decision" in data else "the fastest of those compared", "")]
    if step is not None:
        shown.append((format_seconds(step["value"]), f"a step, {step['low']:.3g} to {step['high']:.3g} s ({step['tag']})", ""))
    else:
        shown.append(("unknown", "step time: the device was never profiled", "warn"))
    tone = "good" if fits else "bad"
    shown.append((f"{memory['value'] / GIB:.1f} GiB", f"on the fullest rank, of {given.capacity / GIB:.1f} ({memory['tag']})", tone))
    if "decision" in data:
        space = data["space"]
        proven = "proven best of the space" if data["proven"] else "of a thinned space: not proven"
        shown.append((f"{space['size']:,} plans", f"looked at, {data['fitting']:,} fit; {proven}", ""))
    return shown


# --- sections -----------------------------------------------------------------------------------------------------------


def play(given: Inputs, plan: Plan) -> tuple[timeline.Timeline, int]:
    """The plan's step as events, and how many microbatches it has in all."""
    model = given.steps
    split = model.split(plan)
    forward, backward = [], []
    for number, chunk in enumerate(model.chunks(plan, split)):
        passes = [(count, model.layer_pass(kind, plan)) for kind, count in enumerate(chunk) if count]
        head = model.head(plan) if number == plan.chunks - 1 else None
        forward.append(sum(n * one.forward for n, one in passes) + (head.forward if head else 0.0))
        backward.append(sum(n * one.backward for n, one in passes) + (head.backward if head else 0.0))
    whole = plan.microbatches(model.global_batch)
    return timeline.play(plan, forward, backward, model.transfer(plan), timeline.shown(plan, whole, drawing.MOST_SLOTS)), whole


def timeline_svg(given: Inputs, plan: Plan) -> str:
    """The timeline alone, as a file."""
    return str(drawing.timeline(play(given, plan)[0], plan, alone=True)) + "\n"


def _timeline(given: Inputs, plan: Plan) -> list[Html]:
    if given.machine.device.missing():
        return [paragraph(f"Not drawn: no step time before this is measured: {given.machine.device.missing()}.", tone="soft")]
    played, whole = play(given, plan)
    words = f"The first {played.microbatches} of {whole} microbatches" if played.microbatches < whole else f"All {whole} microbatches"
    idle = 1 - sum(played.busy(stage) for stage in range(plan.pp)) / plan.pp
    after = "; gradients and update come after them" if plan.pp > 1 else ""
    said = f"{words}{after}. Stages wait {idle:.0%} of this time. Numbers are microbatches; lighter is a later chunk of a stage."
    kinds = [("forward", drawing.FORWARD), ("backward", drawing.BACKWARD)]
    kinds += [("backward of weights", drawing.WEIGHTS)] * (plan.schedule == "zero-bubble") + [("waiting (bubble)", "var(--line)")]
    legend = element("div", *(element("span", element("i", style=f"background:{hue}"), name) for name, hue in kinds), class_="legend")
    return [paragraph(said, tone="soft"), drawing.timeline(played, plan), legend]


def _ledger(entries: list[tuple[str, dict[str, Any]]]) -> list[Html]:
    if any(one["time"] is None for _, one in entries):
        return [paragraph("Unknown before the device is profiled.", tone="soft")]
    bars = []
    for letter, (name, one) in zip(LETTERS, entries, strict=False):
        parts = tuple((part, value) for part, value in one["time"]["parts"].items() if value > 0.004 * one["time"]["seconds"])
        bars.append(Bar(f"{letter}: {name}", parts, format_seconds(one["time"]["seconds"])))
    return [stacked_bars(bars)]


def _memory(given: Inputs, entry: dict[str, Any], plan: Plan) -> list[Html]:
    """Stages whose ledgers are alike within a hundredth share a bar."""
    bars = []
    rows = entry["memory"]["stages"]
    for _, same in groupby(rows, key=lambda row: (row["layers"], round(row["total"] / GIB, 1))):
        group = list(same)
        first, last = group[0]["stage"], group[-1]["stage"]
        label = "every rank" if plan.pp == 1 else f"stage {first}" if first == last else f"stages {first} to {last}"
        one = max(group, key=lambda row: row["total"])
        peak = max(one["workspace"], one["logits"])  # of the loss and a layer's workspace only the larger is alive at the peak
        values = {**one, "workspace": peak if one["workspace"] == peak else 0, "logits": peak if one["logits"] == peak else 0}
        values["fixed"] += one["slack"] + one["buffers"]
        segments = tuple((name, values[name] / GIB) for name in MEMORY if values[name])
        bars.append(Bar(label, segments, f"{one['total'] / GIB:.1f} GiB, {one['layers']} layers"))
    each = plan.world_size // plan.pp
    words = f"{each:,} ranks a stage, all alike. Fixed: device context, buffers, what the allocator holds around tensors."
    return [paragraph(words, tone="soft"), stacked_bars(bars, given.capacity / GIB, f"capacity {given.capacity / GIB:.1f} GiB")]


def _mesh(given: Inputs, plan: Plan) -> list[Html]:
    node, nodes = given.machine.node, -(-plan.world_size // given.machine.node)
    left = f" The first {drawing.MOST_NODES} of {nodes:,} nodes are drawn." if nodes > drawing.MOST_NODES else ""
    colour = "the pipeline stage" if plan.pp > 1 else "the data-parallel rank"
    words = f"Ranks from innermost to outermost: tp, cp, dp_shard, dp_replicate, pp. Colour is {colour}, the number the data-parallel rank"
    bars = "; bars join a tensor-parallel group." if plan.tp > 1 else "."
    return [paragraph(words + bars + left, tone="soft"), drawing.mesh(plan, node)]


def _front(given: Inputs, found: Found, entries: list[tuple[str, dict[str, Any]]]) -> list[Html]:
    if given.machine.device.missing() or not found.fitting:
        return [paragraph("No step time is said before the device is profiled.", tone="soft")]
    fastest = min(one.seconds for one in found.fitting)
    points = [(one.bytes / GIB, one.seconds) for one in found.fitting if one.seconds <= SLOWER * fastest]
    line = [(one.bytes / GIB, one.seconds) for one in found.front() if one.seconds <= SLOWER * fastest]
    named = [
        (letter, one["memory_bytes"]["value"] / GIB, one["time"]["seconds"])
        for letter, (_, one) in zip(LETTERS, entries, strict=False)
        if one["time"]["seconds"] <= SLOWER * fastest
    ]
    rows = [
        (letter, name, one["plan"]["name"], format_seconds(one["time"]["seconds"]), f"{one['memory_bytes']['value'] / GIB:.1f} GiB")
        for letter, (name, one) in zip(LETTERS, entries, strict=False)
    ]
    words = f"Every plan that fits and is at most {SLOWER:g} times as slow as the fastest; the line is the front."
    head = ("", "", "plan", "step", "fullest rank")
    return [paragraph(words, tone="soft"), drawing.front(points, line, named, given.capacity / GIB), table(head, rows, (3, 4))]


def _mind(data: dict[str, Any], entry: dict[str, Any]) -> list[Html]:
    signals = [*data.get("counter_signals", []), *entry["counter_signals"]]
    broken = [one["name"] for one in entry["invariants"] if not one["holds"]]
    rows = [("does not hold", name) for name in broken] + [("mind", text) for text in signals]
    rows += [("missing", f"{one['what']}: {one['instead']}") for one in data.get("missing_evidence", [])]
    return [table(("", ""), rows)] if rows else [paragraph("Nothing speaks against it.", tone="good")]


def _figures(data: dict[str, Any]) -> Html:
    figures = data["figures"]
    rows = [(name, _number(one["value"]), one["tag"], one["source"]) for name, one in figures["device"].items() if isinstance(one, dict)]
    for level in figures["links"]:
        rates = ", ".join(f"{_number(rate)} B/s at {ranks}" for ranks, rate in level["bus_bytes_per_s"].items())
        rows.append((f"links: {level['name']}", rates, level["tag"], level["source"]))
    return table(("figure", "value", "kind", "source"), rows)


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"
