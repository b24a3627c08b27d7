# helpers/trainwright/check/rules/accelerate_versions.py without its comments
from __future__ import annotations

from collections.abc import Iterator

from trainwright.check.facts import before, release, table
from trainwright.check.rules.accelerate_launch import hit
from trainwright.check.subject import AccelerateConfig
from trainwright.report import Fix, Severity
from trainwright.rules import Hit, rule


@rule(
    "ACC037",
    Severity.ERROR,
    AccelerateConfig,
    fails_at="parse",
    checked="source",
    source="accelerate-releases",
)
def key_of_a_later_release(config: AccelerateConfig) -> Iterator[Hit]:
    """A key that the job's release of Accelerate does not have yet."""
    version = config.context.versions.get("accelerate")
    if version is None or config.kind == "sagemaker":
        return
    history = table("accelerate")["history"]
    late = [setting for setting in config.file.settings if _lacks(history, setting.flag, version)]
    for setting in late:
        message = f"was first seen in Accelerate {_since(history, setting.flag)}, and the job has {version}"
        top = len(setting.path) == 1
        severity, stage = (None, "") if top else (Severity.WARNING, "never")
        end = "it refuses the whole file" if top else "it is ignored without a word"
        yield Hit(
            f"{setting.key} {message}: {end}", config.document.at(*setting.path), setting.key, Fix({setting.key: None}), severity, stage
        )
    blocks = {setting.path[0] for setting in late if len(setting.path) > 1}
    for block in sorted(blocks - {setting.path[0] for setting in late if len(setting.path) == 1}):
        if _lacks(history, block, version):
            yield hit(config, block, f"was first seen in Accelerate {_since(history, block)}: {version} refuses the whole file")


def _lacks(history: dict[str, list[str]], key: str, version: str) -> bool:
    """Whether a release is known not to have a key: it is no later than the last compared one without it."""
    since = _since(history, key)
    compared = sorted({row[0] for row in history.values() if row[0]}, key=release)
    earlier = [each for each in ("0.21.0", *compared) if before(each, since)]
    return bool(since and earlier) and not before(earlier[-1], version)


def _since(history: dict[str, list[str]], key: str) -> str:
    """The first compared release that has a key; "" where the first one has it already, or where the key is not known."""
    return history.get(key, [""])[0]
