# isoflop/power.py without its comments
from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from trainwright.isoflop import approach2
from trainwright.isoflop.approach3 import jacobian
from trainwright.isoflop.newton import Array
from trainwright.isoflop.surface import Design, Surface

REFERENCE = Surface(E=1.817218, A=477.826, B=2143.417, alpha=0.347311, beta=0.367172)
WIDE, NARROW = 0.2, 0.1
Z90 = 3.289707
INTERIOR_BAD, INTERIOR_GOOD = 0.5, 0.9


@dataclass(frozen=True, slots=True, eq=False)
class Plan:

    params: Array
    tokens: Array
    flops: Array
    surface: Surface
    sigma: float
    relative: bool = False

    @property
    def noise(self) -> Array:
        return self.sigma / (np.ones(len(self.params)) if self.relative else self.surface.loss(self.params, self.tokens))

    def with_runs(self, params: Array, tokens: Array, flops: Array) -> Plan:
        n, d, c = (np.concatenate([old, new]) for old, new in ((self.params, params), (self.tokens, tokens), (self.flops, flops)))
        return Plan(n, d, c, self.surface, self.sigma, self.relative)


@dataclass(frozen=True, slots=True)
class Power:

    sd_exponent: float
    sd: dict[str, float]
    condition: float
    interior: float | None
    interior_by_budget: dict[float, float]
    spread: dict[float, float]
    sizes: dict[float, int]
    correlation: float
    cost: float

    @property
    def width(self) -> float:
        return Z90 * self.sd_exponent

    @property
    def verdict(self) -> str:
        if self.width > WIDE or (self.interior is not None and self.interior < INTERIOR_BAD):
            return "underdetermined"
        good = self.width <= NARROW and len(self.interior_by_budget) > 2 and (self.interior or 0.0) >= INTERIOR_GOOD
        return "identified" if good else "weak"


def exponent_gradient(surface: Surface) -> Array:
    total = (surface.alpha + surface.beta) ** 2
    return np.array([0.0, -surface.beta / total, 0.0, surface.alpha / total, 0.0])


def information(plan: Plan) -> tuple[Array, Design]:
    design = Design.of(plan.params, plan.tokens)
    surface = plan.surface
    point = design.unknowns(np.array([[surface.E, surface.A, surface.B, surface.alpha, surface.beta]]))[0]
    return jacobian(design, point) / plan.noise[:, None], design


def condition(surface: Surface, params: Array, tokens: Array) -> float:
    with np.errstate(over="ignore"):
        term_a, term_b = params**-surface.alpha, tokens**-surface.beta
    columns = (np.ones_like(params), term_a, term_b, term_a * np.log(params), term_b * np.log(tokens))
    return _condition(np.stack(columns, axis=1))


def _condition(j: Array) -> float:
    if not np.isfinite(j).all():
        return float("inf")
    lengths = np.linalg.norm(j, axis=0)
    if not (lengths > 0).all() or not np.isfinite(lengths).all():
        return float("inf")
    values = np.linalg.svd(j / lengths, compute_uv=False)
    return float(values[0] / values[-1]) if len(values) == j.shape[1] and values[-1] > 1e-15 * values[0] else float("inf")


def variances(j: Array) -> Array:
    if _condition(j) > 1e12:
        return np.full((5, 5), np.inf)
    lengths = np.linalg.norm(j, axis=0)
    _, values, vt = np.linalg.svd(j / lengths, full_matrices=False)
    root = vt.T / values / lengths[:, None]
    return np.asarray(root @ root.T)


def predicted_sd(plan: Plan) -> float:
    covariance, gradient = variances(information(plan)[0]), exponent_gradient(plan.surface)
    return float(np.sqrt(gradient @ covariance @ gradient)) if np.isfinite(covariance).all() else float("inf")


def power(plan: Plan, draws: int = 2000, seed: int = 0) -> Power:
    j, _ = information(plan)
    covariance = variances(j)
    sd = {name: float(np.sqrt(covariance[k, k])) for k, name in ((1, "alpha"), (3, "beta"))}
    sd |= {"E": float(np.sqrt(covariance[4, 4])) * plan.surface.E}
    by_budget, interior, groups = minima(plan, draws, seed)
    log_n, log_d = np.log(plan.params), np.log(plan.tokens)
    return Power(
        sd_exponent=predicted_sd(plan),
        sd=sd,
        condition=condition(plan.surface, plan.params, plan.tokens),
        interior=interior,
        interior_by_budget=by_budget,
        spread={group.flops: group.spread for group in groups},
        sizes={group.flops: group.distinct for group in groups},
        correlation=float(np.corrcoef(log_n, log_d)[0, 1]) if log_n.std() > 0 and log_d.std() > 0 else 1.0,
        cost=float(plan.flops.sum()),
    )


def minima(plan: Plan, draws: int, seed: int) -> tuple[dict[float, float], float | None, list[approach2.Group]]:
    groups = approach2.groups_of(plan.params, plan.tokens, plan.flops)
    rng = np.random.default_rng(seed)
    loss = plan.surface.loss(plan.params, plan.tokens)
    by_budget: dict[float, float] = {}
    for group in groups:
        if group.distinct < approach2.LEAST_POINTS:
            continue
        y = loss[group.rows] * np.exp(plan.noise[group.rows] * rng.normal(size=(draws, len(group.rows))))
        _, inside = approach2.vertices(group, approach2.parabolas(group, y, np.ones((1, len(group.rows)))))
        by_budget[group.flops] = float(inside.mean())
    return by_budget, float(np.prod(list(by_budget.values()))) if len(by_budget) > 1 else None, groups


def assumed_optimum(budget: float, factor: float = 6.0) -> float:
    return float(REFERENCE.optimal_params(np.array(budget), factor))


def around_optimum(
    surface: Surface,
    budgets: Array,
    points: int,
    spread: float,
    sigma: float,
    factor: float = 6.0,
    relative: bool = False,
    offset: float = 1.0,
    repeats: int = 1,
) -> Plan:
    offsets = np.repeat(offset * np.exp(np.linspace(-0.5, 0.5, points) * np.log(spread)), repeats)
    params = (surface.optimal_params(budgets, factor)[:, None] * offsets).ravel()
    flops = np.repeat(budgets, len(offsets))
    return Plan(params, flops / (factor * params), flops, surface, sigma, relative)


def ladder(surface: Surface, budgets: Array, sizes: Array, sigma: float, factor: float = 6.0, relative: bool = False) -> Plan:
    params = np.tile(sizes, len(budgets))
    flops = np.repeat(budgets, len(sizes))
    return Plan(params, flops / (factor * params), flops, surface, sigma, relative)


@dataclass(frozen=True, slots=True)
class Remedy:

    runs: tuple[tuple[float, float, float], ...]
    cost: float
    sd_exponent: float
    interior: float | None
    reached: bool


_LARGEST_SET = 64
_OFFSETS = np.exp(np.linspace(-1, 1, 9) * np.log(8.0))


def remedy(plan: Plan, target_sd: float, draws: int = 500) -> Remedy:
    factor = float(np.median(plan.flops / (plan.params * plan.tokens)))
    groups = approach2.groups_of(plan.params, plan.tokens, plan.flops)
    chosen = [g.flops for g in groups if g.distinct >= approach2.LEAST_POINTS]
    if len(chosen) < 3:
        chosen = [g.flops for g in sorted(groups, key=lambda g: (-g.distinct, g.flops))[:4]]
    budgets = _enough_budgets(np.unique(chosen))
    extra = _for_minima(plan, budgets, factor, draws)
    candidates = _candidates(plan, budgets, factor)
    extra = _greedy(plan, extra, candidates, target_sd)
    extra = _pruned(plan, extra, target_sd, draws)
    return _outcome(plan, extra, target_sd, draws)


Run = tuple[float, float, float]


def _extended(plan: Plan, runs: list[Run]) -> Plan:
    if not runs:
        return plan
    flops, params, tokens = np.array(runs).T
    return plan.with_runs(params, tokens, flops)


def _enough_budgets(budgets: Array) -> Array:
    budgets = np.asarray(budgets)
    while len(budgets) < 3:
        budgets = np.concatenate([[budgets[0] / 3], budgets])
    return budgets


def _runs_at(plan: Plan, budget: float, offsets: Array, factor: float) -> list[Run]:
    centre = float(plan.surface.optimal_params(np.array(budget), factor))
    return [(budget, centre * float(o), budget / (factor * centre * float(o))) for o in offsets]


def _candidates(plan: Plan, budgets: Array, factor: float) -> list[Run]:
    wider = np.concatenate([budgets, [budgets[0] / 3, budgets[0] / 10]])
    return [run for budget in wider.tolist() for run in _runs_at(plan, budget, _OFFSETS, factor)]


def _for_minima(plan: Plan, budgets: Array, factor: float, draws: int) -> list[Run]:
    extra: list[Run] = []
    share = INTERIOR_GOOD ** (1 / len(budgets))
    for budget in budgets.tolist():
        here = plan.flops == budget
        for reach in (0.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0):
            offsets = np.exp(np.array([-1.0, -0.5, 0.5, 1.0]) * np.log(reach)) if reach else np.zeros(0)
            runs = _runs_at(plan, budget, offsets, factor)
            trial = _extended(replace(plan, params=plan.params[here], tokens=plan.tokens[here], flops=plan.flops[here]), runs)
            if len(trial.flops) and min(minima(trial, draws, 1)[0].values(), default=0.0) >= share:
                break
        extra += runs
    return extra


def _greedy(plan: Plan, extra: list[Run], candidates: list[Run], target_sd: float) -> list[Run]:
    gradient = exponent_gradient(plan.surface)
    extra = list(extra)
    every, _ = information(_extended(plan, extra + candidates))
    rows, held = every[len(every) - len(candidates) :], every[: len(every) - len(candidates)]
    gram = held.T @ held + 1e-9 * np.diag((every**2).sum(0))
    inverse = np.linalg.inv(gram)
    used = np.zeros(len(candidates), int)
    cost = np.array([run[0] for run in candidates])
    while gradient @ inverse @ gradient > target_sd**2 and len(extra) < _LARGEST_SET:
        reach = rows @ inverse
        gain = (reach @ gradient) ** 2 / (1 + np.einsum("ci,ci->c", reach, rows))
        best = int(np.argmax(np.where(used < 3, gain / cost, -1.0)))
        if used[best] >= 3:
            break
        used[best] += 1
        extra.append(candidates[best])
        inverse = inverse - np.outer(reach[best], reach[best]) / (1 + reach[best] @ rows[best])
    return extra


def _pruned(plan: Plan, extra: list[Run], target_sd: float, draws: int) -> list[Run]:
    if not _reached(plan, extra, target_sd, draws):
        return extra
    for run in sorted(extra, key=lambda run: -run[0]):
        fewer = list(extra)
        fewer.remove(run)
        if _reached(plan, fewer, target_sd, draws):
            extra = fewer
    return extra


def _reached(plan: Plan, extra: list[Run], target_sd: float, draws: int) -> bool:
    new = power(_extended(plan, extra), draws, 1)
    return new.sd_exponent <= target_sd and len(new.interior_by_budget) >= 3 and (new.interior or 0.0) >= INTERIOR_GOOD


def _outcome(plan: Plan, extra: list[Run], target_sd: float, draws: int) -> Remedy:
    new = power(_extended(plan, extra), draws, 1)
    runs = tuple(sorted(extra))
    return Remedy(runs, sum(run[0] for run in runs), new.sd_exponent, new.interior, _reached(plan, extra, target_sd, draws))
