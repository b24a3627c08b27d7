"""Fit the few scalars of the hardware to measured steps: factors on constants, held near 1 by a prior, robust to single wild rows.

Minimises the sum of rho(log(predicted / measured) / noise) + (log factor / width)^2, rho the Student-t loss of 4 degrees, by
Gauss-Newton steps on reweighted residuals with a numerical Jacobian. One "sustained" factor for each kind of device; the rest are
shared. With few rows the prior holds what they do not tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trainwright.cost.constants import CALIBRATED, Constants, changed
from trainwright.cost.step import StepModel, StepTime
from trainwright.errors import UserError
from trainwright.plan.rows import Row

NOISE = 0.04  # of one measured step, in logarithms: what repeated runs of one config differ by where nothing else is known
FREEDOM = 4.0  # of the Student-t
ROUNDS = 12
DELTA = 0.02  # of a numerical derivative, in logarithms
PER_DEVICE = ("sustained", "attention")


@dataclass(frozen=True, slots=True)
class Fit:
    """Factors on constants, "name" or "name:device"; `rows` were used."""

    factors: dict[str, float]
    rows: int

    def constants(self, device: str) -> Constants:
        """The shipped constants as this fit has them for one kind of device."""
        found = {}
        for name, factor in self.factors.items():
            plain, _, only = name.partition(":")
            if only in ("", device):
                found[plain] = factor
        return changed(Constants(), **found)

    def to_json(self) -> dict[str, Any]:
        return {"factors": dict(sorted(self.factors.items())), "rows": self.rows}


SHIPPED = Fit({}, 0)


def step_of(row: Row, fit: Fit = SHIPPED) -> StepTime | None:
    """The step of a row, None where it has no plan or its device no figures to predict one with."""
    if row.network is None or row.machine is None or row.plan is None or unprofiled(row):
        return None
    model = StepModel(row.network, row.machine, row.seq_len, row.global_batch, fit.constants(row.machine.device.name))
    return model.step(row.plan)


def unprofiled(row: Row) -> str:
    """What to measure before the step of this row's device can be predicted; "" where nothing is missing."""
    device = row.machine.device if row.machine else None
    return device.missing() if device else ""


def fit_rows(rows: Sequence[Row]) -> Fit:
    """The factors that fit the measured steps of `rows`; raises UserError where none can be used."""
    usable = [row for row in rows if row.seconds and _possible(row)]
    if not usable:
        raise UserError("no row has both a measured step_time_s and a plan that the model can price")
    names = _names(usable)
    return Fit(_gauss_newton(usable, names), len(usable))


def _possible(row: Row) -> bool:
    try:
        return step_of(row) is not None
    except UserError:
        return False


def _names(rows: Sequence[Row]) -> list[str]:
    devices = sorted({row.machine.device.name for row in rows if row.machine})
    return [name for plain in CALIBRATED for name in ([f"{plain}:{d}" for d in devices] if plain in PER_DEVICE else [plain])]


def _gauss_newton(rows: Sequence[Row], names: list[str]) -> dict[str, float]:
    import numpy as np

    widths = np.array([CALIBRATED[name.partition(":")[0]] for name in names])
    logs = np.zeros(len(names))

    def residuals(at: Any) -> Any:
        fit = Fit(dict(zip(names, map(math.exp, at), strict=True)), 0)
        return np.array([_log_error(row, fit) for row in rows]) / NOISE

    now = residuals(logs)
    for _ in range(ROUNDS):
        weights = (FREEDOM + 1) / (FREEDOM + now**2)
        slopes = np.stack([(residuals(logs + DELTA * unit) - now) / DELTA for unit in np.eye(len(names))], axis=1)
        normal = slopes.T @ (weights[:, None] * slopes) + np.diag(1 / widths**2)
        step = np.linalg.solve(normal, slopes.T @ (weights * now) + logs / widths**2)
        step *= min(1.0, 0.5 / max(np.abs(step).max(), 1e-12))
        logs = logs - step
        now = residuals(logs)
        if np.abs(step).max() < 1e-3:
            break
    return {name: float(f"{math.exp(value):.4g}") for name, value in zip(names, logs, strict=True)}


def _log_error(row: Row, fit: Fit) -> float:
    step, seconds = step_of(row, fit), row.seconds
    assert step is not None and seconds is not None
    return math.log(step.seconds / seconds)


Errors = Callable[[Row, Fit], float]
