"""Diagnose a run: the findings of its rules, the diagnoses they state, and what was measured."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from typing import Any

from trainwright.diagnose.measure import Measures, measure
from trainwright.diagnose.run_folder import Run
from trainwright.report import Finding
from trainwright.rules import check_all, load_all


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What happened in a run. `diagnoses` are in the order of the findings; a healthy run has none."""

    findings: list[Finding]
    diagnoses: list[dict[str, Any]]
    measures: Measures

    @property
    def first_class(self) -> str:
        """The class of the first diagnosis; "" of a run in which nothing went wrong."""
        return str(self.diagnoses[0]["class"]) if self.diagnoses else ""

    def to_json(self) -> dict[str, Any]:
        """The `data` of `diagnose` (command.schema.json)."""
        return {"diagnoses": self.diagnoses, "run": self.measures.to_json()}


def diagnose(run: Run) -> Diagnosis:
    """The Diagnosis of a run as read_run gives it."""
    load_all("diagnose")
    findings = check_all(run)
    stated = [{"rule": finding.rule, **finding.data["diagnosis"]} for finding in findings]
    return Diagnosis([_placed(finding, run) for finding in findings], stated, measure(run))


def _placed(finding: Finding, run: Run) -> Finding:
    """The finding with its place as the caller can open it; a diagnosis names files as the run's folder has them."""
    where = finding.where
    if where and os.path.isdir(run.path):
        where = dataclasses.replace(where, path=os.path.join(run.path, where.path))
    return dataclasses.replace(finding, where=where, data={})
