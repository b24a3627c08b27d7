# helpers/trainwright/check/rules/job_environment.py without its comments
from __future__ import annotations

from collections.abc import Iterator

from trainwright.check.subject import Job
from trainwright.report import Fix, Severity
from trainwright.rules import Hit, rule


@rule(
    "JOB020",
    Severity.ERROR,
    Job,
    fails_at="engine start",
    checked="source",
    source="optimum-habana-training-args",
    covers=("DYN-HPU-LAZY",),
)
def compile_in_lazy_mode(job: Job) -> Iterator[Hit]:
    """torch.compile for Gaudi (hpu_backend) with PT_HPU_LAZY_MODE=1: the two exclude each other."""
    if job.environment.get("PT_HPU_LAZY_MODE") != "1":
        return
    by_file = any(str(config.value("dynamo_backend")).upper() == "HPU_BACKEND" for config in job.accelerate)
    if by_file or any("hpu_backend" in source.text and "torch.compile" in source.text for source in job.sources):
        fix = Fix({"PT_HPU_LAZY_MODE": "0"})
        yield Hit(
            "PT_HPU_LAZY_MODE=1 with torch.compile (hpu_backend): they exclude each other",
            job.places.get("PT_HPU_LAZY_MODE"),
            "PT_HPU_LAZY_MODE",
            fix,
        )
