"""`plan emit`, and the file that `plan search --emit` writes: one plan in the words of a backend."""

from __future__ import annotations

from typing import Any

from trainwright.emit.backends import adapted, backend, emit, expressible
from trainwright.emit.planned import Planned
from trainwright.output import write_text
from trainwright.parallel import Plan
from trainwright.plan.inputs import Inputs
from trainwright.plan.search import Adapt
from trainwright.report import Report


def planned(given: Inputs, plan: Plan) -> Planned:
    return Planned(plan, given.job.global_batch, given.job.seq_len, given.job.network.num_layers, given.model)


def adapter(given: Inputs, name: str) -> Adapt:
    """A search's view of a backend: the plan as it would run there, or why it cannot."""
    backend(name)

    def adapt(plan: Plan) -> Plan | str:
        other = adapted(name, planned(given, plan))
        reasons = expressible(name, other)
        return f"{name} cannot express {reasons[0]}" if reasons else other.plan

    return adapt


def write(given: Inputs, plan: Plan, name: str, path: str | None, report: Report) -> dict[str, Any]:
    """The plan for a backend, written to `path` where one is given; raises NotExpressibleError."""
    if path:
        report.text.append(f"wrote {path}: {backend(name).title}")
    return written(planned(given, plan), name, path)


def written(job: Planned, name: str, path: str | None) -> dict[str, Any]:
    """The text for a backend and what it is written for; to `path` where one is given."""
    one, text = backend(name), emit(name, job)
    if path:
        write_text(path, text)
    return {"backend": name, "written_for": one.title, "file": path, "usual_file": one.file, "text": text}
