# plan/drawing.py without its comments
from __future__ import annotations

from collections.abc import Sequence

from trainwright.page import COLOURS, Html, element, join
from trainwright.parallel import Plan
from trainwright.plan.timeline import Slot, Timeline
from trainwright.units import format_seconds

WIDTH, LEFT = 960, 78
NAMESPACE = "//".join(("http:", "www.w3.org/2000/svg"))
MOST_SLOTS, MOST_STAGES, MOST_SENDINGS = 3000, 64, 300
FORWARD, BACKWARD, WEIGHTS = COLOURS[0], COLOURS[1], COLOURS[2]
HUES = {"forward": FORWARD, "backward": BACKWARD, "weights": WEIGHTS}
ALONE = Html(
    "<style>svg{color-scheme:light dark;--ink:#1c2024;--soft:#60646c;--line:#d9dce1;--back:#fff;--card:#eef0f3;background:var(--back)}"
    "@media(prefers-color-scheme:dark){svg{--ink:#edeef0;--soft:#a5abb5;--line:#3a3f46;--back:#15181b;--card:#23282d}}"
    "text{fill:var(--ink);font:12px system-ui,sans-serif}.soft{fill:var(--soft)}.axis{stroke:var(--line)}</style>"
)


def timeline(one: Timeline, plan: Plan, alone: bool = False) -> Html:
    every = -(-one.stages // MOST_STAGES)
    rows = list(range(0, one.stages, every))
    height = max(min(26.0, 460 / len(rows)), 7.0)
    scale = (WIDTH - LEFT - 12) / one.seconds
    top = {stage: 6 + i * (height + 3) for i, stage in enumerate(rows)}
    bottom = 6 + len(rows) * (height + 3)
    parts = [_lane(stage, top[stage], height, one) for stage in rows if height >= 9 or stage % 4 == 0]
    parts += [
        element("rect", x=LEFT, y=y, width=one.seconds * scale, height=height, style="fill:var(--line);opacity:.6") for y in top.values()
    ]
    parts += [_slot(slot, top[slot.stage], height, scale, plan) for slot in one.slots if slot.stage in top]
    if len(one.sendings) <= MOST_SENDINGS:
        for sent in one.sendings:
            if sent.origin in top and sent.target in top:
                y1, y2 = (top[stage] + height / 2 for stage in (sent.origin, sent.target))
                x1, x2 = LEFT + sent.start * scale, LEFT + sent.end * scale
                parts.append(element("line", x1=x1, x2=x2, y1=y1, y2=y2, style="stroke:var(--ink);stroke-width:.7;opacity:.55"))
    parts += _time_axis(one.seconds, scale, bottom)
    extra: dict[str, str | int | float] = {"xmlns": NAMESPACE, "width": WIDTH} if alone else {}
    return element("svg", *([ALONE] if alone else []), *parts, viewBox=f"0 0 {WIDTH} {bottom + 24:.0f}", role="img", **extra)


def _lane(stage: int, y: float, height: float, one: Timeline) -> Html:
    words = f"stage {stage}" if height >= 9 else str(stage)
    size = min(12.0, height + 2)
    label = element("text", words, x=LEFT - 8, y=y + height / 2 + size / 3, text_anchor="end", style=f"font-size:{size:.1f}px")
    return join(label, element("title", f"stage {stage} works {one.busy(stage):.0%} of the time"))


def _slot(slot: Slot, y: float, height: float, scale: float, plan: Plan) -> Html:
    chunk, microbatch, start, end = slot.chunk, slot.microbatch, slot.start, slot.end
    width = max((end - start) * scale - 0.4, 0.2)
    shade = 1 - 0.55 * (chunk // plan.pp) / max(plan.virtual_stages, 1)
    tip = element("title", f"stage {slot.stage}, {slot.kind} of microbatch {microbatch}, chunk {chunk}: {format_seconds(end - start)}")
    box = element(
        "rect", tip, x=LEFT + start * scale, y=y, width=width, height=height, fill=HUES[slot.kind], fill_opacity=round(shade, 2), rx=1.5
    )
    word = str(microbatch)
    if width < 7 * len(word) + 4 or height < 13:
        return box
    text = element(
        "text",
        word,
        x=LEFT + (start + end) / 2 * scale,
        y=y + height / 2 + 4,
        text_anchor="middle",
        style="fill:#fff;stroke:none;font-size:11px",
    )
    return join(box, text)


def _time_axis(seconds: float, scale: float, y: float) -> list[Html]:
    marks = [element("line", x1=LEFT, x2=LEFT + seconds * scale, y1=y + 2, y2=y + 2, class_="axis")]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        anchor = "start" if share == 0 else "end" if share == 1 else "middle"
        said = format_seconds(share * seconds) if share else "0"
        marks.append(element("text", said, x=LEFT + share * seconds * scale, y=y + 18, text_anchor=anchor, class_="soft"))
    return marks


MOST_NODES = 16
SIDE, GAP = 26, 4


def coordinates(plan: Plan, rank: int) -> dict[str, int]:
    found = {}
    for axis, size in (("tp", plan.tp), ("cp", plan.cp), ("dp_shard", plan.dp_shard), ("dp_replicate", plan.dp_replicate), ("pp", plan.pp)):
        rank, found[axis] = divmod(rank, size)
    return found


def mesh(plan: Plan, per_node: int) -> Html:
    nodes = -(-plan.world_size // per_node)
    count = min(nodes, MOST_NODES)
    columns = max(n for n in range(1, min(per_node, 8) + 1) if per_node % n == 0 or n == 4)
    wide, tall = columns * (SIDE + GAP) + 14, -(-per_node // columns) * (SIDE + GAP) + 30
    across = max((WIDTH - 4) // (wide + 10), 1)
    boxes = [
        _node(plan, node, per_node, columns, 2 + node % across * (wide + 10), 2 + node // across * (tall + 8)) for node in range(count)
    ]
    height = -(-count // across) * (tall + 8) + 4
    return element("svg", *boxes, viewBox=f"0 0 {WIDTH} {height}", role="img")


def _node(plan: Plan, node: int, per_node: int, columns: int, x: float, y: float) -> Html:
    ranks = range(node * per_node, min((node + 1) * per_node, plan.world_size))
    wide, tall = columns * (SIDE + GAP) + 10, -(-per_node // columns) * (SIDE + GAP) + 24
    parts = [element("rect", x=x, y=y, width=wide, height=tall, rx=7, style="fill:var(--card);stroke:var(--line)")]
    parts.append(element("text", f"node {node}", x=x + 8, y=y + 15, class_="soft", style="stroke:none"))
    for at, rank in enumerate(ranks):
        where = coordinates(plan, rank)
        left, down = x + 7 + at % columns * (SIDE + GAP), y + 21 + at // columns * (SIDE + GAP)
        parts.append(_device(plan, rank, where, left, down))
        if where["tp"] and at % columns:
            parts.append(element("rect", x=left - GAP, y=down + SIDE / 2 - 3, width=GAP, height=6, style="fill:var(--ink)"))
    return join(*parts)


def _device(plan: Plan, rank: int, where: dict[str, int], x: float, y: float) -> Html:
    dp = where["dp_replicate"] * plan.dp_shard + where["dp_shard"]
    hue = COLOURS[(where["pp"] if plan.pp > 1 else dp) % len(COLOURS)]
    tip = element("title", f"rank {rank}: " + ", ".join(f"{axis} {at}" for axis, at in where.items()))
    box = element("rect", tip, x=x, y=y, width=SIDE, height=SIDE, rx=4, fill=hue)
    style = f"fill:#fff;stroke:none;font-size:{11 if dp < 1000 else 9}px"
    return join(box, element("text", str(dp), x=x + SIDE / 2, y=y + SIDE / 2 + 4, text_anchor="middle", style=style))


MOST_POINTS = 600


def front(
    points: Sequence[tuple[float, float]], line: Sequence[tuple[float, float]], named: Sequence[tuple[str, float, float]], limit: float
) -> Html:
    top, height = 14, 300
    right = max(limit, *(x for x, _ in points)) * 1.04
    seconds = [y for _, y in points]
    low, high = min(seconds), max(*seconds, min(seconds) * 1.01)

    def place(x: float, y: float) -> tuple[float, float]:
        return LEFT + x / right * (WIDTH - LEFT - 20), top + (high - y) / (high - low) * (height - 2 * top)

    step = -(-len(points) // MOST_POINTS)
    dots = [element("circle", cx=px, cy=py, r=2.5, style="fill:var(--soft);opacity:.45") for px, py in (place(*p) for p in points[::step])]
    path = " ".join(f"{px:.1f},{py:.1f}" for px, py in (place(*p) for p in line))
    dots.append(element("polyline", points=path, fill="none", stroke=COLOURS[2], stroke_width=2))
    x, _ = place(limit, low)
    edge = element("line", x1=x, x2=x, y1=top, y2=height, stroke="var(--bad)", stroke_width=2, stroke_dasharray="5 4")
    axes = [
        element("line", x1=LEFT, x2=WIDTH - 20, y1=height, y2=height, class_="axis"),
        element("line", x1=LEFT, x2=LEFT, y1=top, y2=height, class_="axis"),
        element("text", format_seconds(high), x=LEFT - 8, y=top + 8, text_anchor="end", class_="soft"),
        element("text", format_seconds(low), x=LEFT - 8, y=height - top + 4, text_anchor="end", class_="soft"),
        element("text", "0", x=LEFT, y=height + 18, class_="soft"),
        element("text", f"capacity {limit:.1f} GiB", x=x - 6, y=height + 18, text_anchor="end", style="fill:var(--bad)"),
        element("text", "memory of the fullest rank", x=(LEFT + x) / 2 - 40, y=height + 18, text_anchor="middle", class_="soft"),
    ]
    marks = [_mark(letter, *place(x, y), i) for i, (letter, x, y) in enumerate(named)]
    return element("svg", *axes, edge, *dots, *marks, viewBox=f"0 0 {WIDTH} {height + 28}", role="img")


def _mark(letter: str, x: float, y: float, number: int) -> Html:
    circle = element("circle", cx=x, cy=y, r=9, fill=COLOURS[5] if number == 0 else COLOURS[0])
    return join(circle, element("text", letter, x=x, y=y + 4, text_anchor="middle", style="fill:#fff;stroke:none;font-size:11px"))
