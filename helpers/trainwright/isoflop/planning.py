"""Budgets x sizes to runs: tokens, steps, batch, learning rate, warm-up, cost. Every rule has a name and can be replaced.

Legend: C budget in FLOP, N weights, D tokens, T tokens of a sequence, B sequences of a step, d width.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainwright.errors import UserError
from trainwright.isoflop import shapes
from trainwright.isoflop.trainer import of_mapping

SCHEMA = "trainwright/isoflop-plan/1"
TOLERANCE = 0.01
UNDERCOOKED = 900  # steps: below, runs of small models were still far from their loss (seen at widths 16 to 96)
LR_RULES = {
    "width": "lr = min(cap, k sqrt(B) / d): within 2x of the best at d = 16 to 96 with k 0.11, cap 0.03; k 0.33 is used for larger models",
    "steplaw": "lr = 1.79 N^-0.713 D^0.307 (arXiv 2503.04715), N without embedding",
    "fixed": "the same for every run",
}
BATCH_RULES = {
    "sqrt": "B = round(k sqrt(D / reference)), within [least, most]; never a power of two by force, which bends the curves",
    "steplaw": "0.58 D^0.571 tokens a step (arXiv 2503.04715)",
    "fixed": "the same for every run",
}
PARAMS = ("matmul", "total", "nonembedding", "trainable")


@dataclass(frozen=True, slots=True)
class Rules:
    """What turns a budget and a size into a run."""

    lr: str = "width"
    lr_value: float = 0.11  # k of `width`, the rate of `fixed`
    lr_cap: float = 0.03
    batch: str = "sqrt"
    batch_value: float = 8.0  # k of `sqrt`, sequences of `fixed`
    batch_reference: float = 2.5e6
    batch_least: int = 2
    batch_most: int = 32
    warmup: float = 0.1  # share of the run's steps
    schedule: str = "cosine"
    params: str = "matmul"  # what N counts: every definition gives another exponent
    least_ratio: float = 0.0  # tokens per parameter that a run needs, and may have
    most_ratio: float = math.inf

    def to_json(self) -> dict[str, Any]:
        said = {name: getattr(self, name) for name in self.__dataclass_fields__}
        said["most_ratio"] = None if math.isinf(self.most_ratio) else self.most_ratio
        return {**said, "lr_says": LR_RULES[self.lr], "batch_says": BATCH_RULES[self.batch]}


@dataclass(frozen=True, slots=True)
class Hardware:
    """Named hardware: dense peak in FLOP/s, the share of it that is assumed, how many devices."""

    name: str
    peak: float | None
    reason: str
    mfu: float
    devices: int


@dataclass(slots=True)
class Planned:
    """The runs, and the pairs of budget and member that have none, with the reason."""

    runs: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[dict[str, Any]] = field(default_factory=list)


def plan_runs(
    budgets: Sequence[float],
    members: Sequence[Mapping[str, Any]],
    rules: Rules,
    seeds: Sequence[int],
    hardware: Hardware | None = None,
    grid: Mapping[float, Sequence[str]] | None = None,
) -> Planned:
    """One run for each budget, member and seed; `grid` names the members of each budget, else all that the rules allow.

    `members` are rows of a calibration. Raises UserError where nothing can run.
    """
    planned = Planned()
    for budget in sorted(set(budgets)):
        for member in members:
            if grid is not None and member["name"] not in grid.get(budget, ()):
                continue
            found = _run(budget, member, rules, hardware)
            if isinstance(found, str):
                planned.left_out.append({"budget": _exact(budget), "member": member["name"], "reason": found})
                continue
            planned.runs += [{"id": f"c{_short(budget)}-{member['name']}-s{seed}", **found, "seed": seed} for seed in seeds]
    if not planned.runs:
        reasons = "; ".join(f"{row['member']} at {row['budget']:g}: {row['reason']}" for row in planned.left_out[:3])
        raise UserError(f"no run fits these budgets and sizes ({reasons})")
    _checkpoints(planned.runs)
    return planned


def _run(budget: float, member: Mapping[str, Any], rules: Rules, hardware: Hardware | None) -> dict[str, Any] | str:
    """The run, or why there is none."""
    per_token, seq_len = float(member["flops_per_token"]), int(member["seq_len"])
    params = member["params"].get(rules.params)
    if params is None:
        return f"params by the rule {rules.params} are unknown; calibrate with torch"
    tokens = budget / per_token
    if not rules.least_ratio <= tokens / params <= rules.most_ratio:
        return f"{tokens / params:.3g} tokens per parameter"
    sized = _steps(tokens, seq_len, rules)
    if sized is None:
        return f"{tokens:.4g} tokens cannot be cut into whole steps within {TOLERANCE:.0%} of the budget"
    batch, steps = sized
    done = steps * batch * seq_len
    flops = done * per_token
    return {
        "member": member["name"],
        "budget": _exact(budget),
        "params": params,
        "tokens": done,
        "steps": steps,
        "batch": batch,
        "batch_tokens": batch * seq_len,
        "seq_len": seq_len,
        "lr": _rate(batch, done, member, rules),
        "warmup_steps": max(1, int(rules.warmup * steps)) if rules.warmup else 0,
        "schedule": rules.schedule,
        "flops_per_token": per_token,
        "flops": flops,
        "off_budget": flops / budget - 1,
        **_cost(flops, done, member, hardware),
    }


def _steps(tokens: float, seq_len: int, rules: Rules) -> tuple[int, int] | None:
    """Sequences a step, and steps: the rule's batch, or the next smaller one that keeps the budget."""
    batch = _batch(tokens, seq_len, rules)
    for size in range(batch, 0, -1):
        steps = round(tokens / (size * seq_len))
        if steps >= 1 and abs(steps * size * seq_len / tokens - 1) <= TOLERANCE:
            return size, steps
    return None


def _batch(tokens: float, seq_len: int, rules: Rules) -> int:
    if rules.batch == "fixed":
        return max(1, round(rules.batch_value))
    wanted = rules.batch_value * math.sqrt(tokens / rules.batch_reference) if rules.batch == "sqrt" else 0.58 * tokens**0.571 / seq_len
    return min(max(round(wanted), rules.batch_least), rules.batch_most)


def _rate(batch: int, tokens: int, member: Mapping[str, Any], rules: Rules) -> float:
    if rules.lr == "fixed":
        return rules.lr_value
    if rules.lr == "width":
        rate = min(rules.lr_cap, rules.lr_value * math.sqrt(batch) / member["width"])
    else:
        rate = 1.79 * float(member["params"]["nonembedding"]) ** -0.713 * tokens**0.307
    return float(f"{rate:.4g}")


def _cost(flops: float, tokens: int, member: Mapping[str, Any], hardware: Hardware | None) -> dict[str, Any]:
    """Seconds here by the measured throughput, device hours there by peak and assumed MFU; None with the reason."""
    rate = (member.get("measured") or {}).get("tokens_per_sec")
    cost: dict[str, Any] = {"seconds_here": tokens / rate if rate else None}
    if not rate:
        cost["seconds_reason"] = member.get("measured_reason") or "no throughput was measured"
    if hardware is not None:
        hours = flops / (hardware.peak * hardware.mfu) / 3600 if hardware.peak else None
        cost |= {"device_hours": hours, "hours": None if hours is None else hours / hardware.devices}
        if hours is None:
            cost["hours_reason"] = hardware.reason
    return cost


def _checkpoints(runs: list[dict[str, Any]]) -> None:
    """For approach 1: the steps of each run at which it has spent a lower budget of the plan."""
    budgets = sorted({run["budget"] for run in runs})
    for run in runs:
        per_step = run["flops_per_token"] * run["batch_tokens"]
        run["checkpoints"] = [round(c / per_step) for c in budgets if c < run["budget"] and c / per_step >= 1]


def document(planned: Planned, members: Sequence[Mapping[str, Any]], rules: Rules, extra: Mapping[str, Any]) -> dict[str, Any]:
    """The plan as it is written: it holds every config, so that it can run elsewhere."""
    used = {run["member"] for run in planned.runs}
    kept = ("name", "config", "modality", "regime", "variant", "width", "layers", "seq_len", "params", "flops_rule", "flops_per_token")
    return {
        "schema": SCHEMA,
        "rules": rules.to_json(),
        "flop_tolerance": TOLERANCE,
        **extra,
        "members": [{key: member[key] for key in kept if key in member} for member in members if member["name"] in used],
        "runs": planned.runs,
        "left_out": planned.left_out,
    }


def dump(plan: Mapping[str, Any]) -> str:
    """YAML, or where PyYAML is missing JSON, which YAML readers take too."""
    try:
        import yaml
    except ImportError:
        return json.dumps(plan, indent=1) + "\n"
    text: str = yaml.safe_dump(json.loads(json.dumps(plan)), sort_keys=False, width=140, default_flow_style=None)
    return text


def judge(plan: Mapping[str, Any], where: str) -> None:
    """Raises UserError where a plan is none, or a field of it is not what it has to be."""
    if plan.get("schema") != SCHEMA:
        raise UserError(f'{where}: is no plan; "schema" has to be {SCHEMA}: `isoflop plan` writes one')
    members, runs = plan.get("members"), plan.get("runs")
    if not isinstance(members, list) or not isinstance(runs, list) or not runs:
        raise UserError(f"{where}: holds no members or no runs")
    parts = [("member", row, shapes.wrong(row, shapes.MEMBER, shapes.MEMBER_MAY)) for row in members]
    parts += [("run", row, shapes.wrong(row, shapes.RUN, shapes.RUN_MAY)) for row in runs]
    parts += [("left_out", row, shapes.wrong(row, shapes.LEFT_OUT)) for row in _listed(plan, "left_out", where)]
    if plan.get("hardware") is not None:
        parts.append(("hardware", {}, shapes.wrong(plan["hardware"], shapes.HARDWARE)))
    for kind, row, problem in parts:
        if problem:
            called = next((str(row[key]) for key in ("id", "name") if key in row), "") if isinstance(row, dict) else ""
            raise UserError(f"{where}: {kind}{f' {called:.60}' if called else ''}: {problem}")
    _belong(members, runs, where)
    for key in ("job", "rules"):
        if plan.get(key) is not None and not isinstance(plan[key], dict):
            raise UserError(f"{where}: {key} is no mapping")
    if plan.get("trainer") is not None:
        of_mapping(plan["trainer"] if isinstance(plan["trainer"], dict) else {}, where)


def _listed(plan: Mapping[str, Any], key: str, where: str) -> list[Any]:
    rows = plan.get(key) or []
    if not isinstance(rows, list):
        raise UserError(f"{where}: {key} is no list")
    return rows


def _belong(members: Sequence[Mapping[str, Any]], runs: Sequence[Mapping[str, Any]], where: str) -> None:
    """Raises UserError for a name that stands twice, and a run of no member."""
    for kind, key, rows in (("member", "name", members), ("run", "id", runs)):
        seen: set[str] = set()
        for row in rows:
            if row[key] in seen:
                raise UserError(f"{where}: {kind} {row[key]} stands there a second time")
            seen.add(row[key])
    names = {member["name"] for member in members}
    if lost := next((run for run in runs if run["member"] not in names), None):
        raise UserError(f"{where}: run {lost['id']} names no member of the plan")


def fingerprint(plan: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    """What identifies a run's settings: an edited plan never takes up another's results."""
    member = next(member for member in plan["members"] if member["name"] == run["member"])
    told = ("budget", "steps", "batch", "seq_len", "lr", "warmup_steps", "schedule", "seed")
    about: dict[str, Any] = {
        "member": [member.get(key) for key in ("config", "modality", "regime", "variant")],
        "run": {key: run.get(key) for key in told},
    }
    about |= {"job": plan.get("job"), "trainer": plan.get("trainer")}
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _exact(budget: float) -> float | int:
    return int(budget) if float(budget).is_integer() and abs(budget) < 2**100 else budget


def _short(budget: float) -> str:
    """1.5e19 -> "1.5e19": every digit, so that near budgets stay apart."""
    mantissa, _, exponent = f"{budget:.15e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
