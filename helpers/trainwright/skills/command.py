"""`trainwright skills sync|validate|manifest`: this bundle of skills, generated, judged and shown."""

from __future__ import annotations

import argparse

from trainwright.report import Finding, Location, Report, Severity
from trainwright.skills.bundle import MANIFEST, Bundle, load_bundle
from trainwright.skills.gates import judge
from trainwright.skills.sync import drift, write

EXAMPLES = """examples:
  trainwright skills sync            write the stubs, the copies inside the skills and the manifests
  trainwright skills sync --check    only say what differs (exit 1)
  trainwright skills validate        the gates that every skill has to pass"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("sync", "validate", "manifest"), help="what to do with the bundle")
    parser.add_argument("--check", action="store_true", help="with sync: write nothing, report what differs")
    parser.add_argument("--root", metavar="DIR", help="the repository (default: the one around here or around this library)")


def run(options: argparse.Namespace) -> Report:
    bundle = load_bundle(options.root)
    if options.action == "manifest":
        return _manifest(bundle)
    if options.action == "validate":
        findings = list(judge(bundle))
        names = [skill.name for skill in bundle.skills]
        return Report("skills", data={"action": "validate", "skills": names}, findings=findings, summary=f"{len(names)} skill(s) judged")
    return _sync(bundle, options.check)


def _sync(bundle: Bundle, check: bool) -> Report:
    differing = drift(bundle)
    report = Report("skills", data={"action": "sync", "check": check, "changed": list(differing)})
    if check:
        report.findings = [_drifted(path, text) for path, text in differing.items()]
        report.summary = "copies and manifests compared"
        return report
    write(bundle, differing)
    report.text = [f"{'deleted' if text is None else 'wrote'} {path}" for path, text in differing.items()]
    report.text.append(f"{len(differing)} files changed")
    return report


def _drifted(path: str, text: str | None) -> Finding:
    message = "is not made from anything; `make sync` deletes it" if text is None else "is not what its source makes today; run `make sync`"
    return Finding("skill-drift", Severity.ERROR, message, Location(path))


def _manifest(bundle: Bundle) -> Report:
    return Report("skills", data={"action": "manifest", "manifest": bundle.facts}, text=bundle.manifest.text.splitlines() or [MANIFEST])
