# check/rules/accelerate_versions.py without its comments
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
    """A key that the job's release of Accelerate does not have yet.

    A top-level key that it does not know makes it refuse the whole file; a key in a block is ignored without a word (a warning).
    Judged only where the release is known (`--accelerate`, `--python`, `--context`), and no later than the last of thirteen compared
    releases that lacks the key.

    Bad `accelerate.yaml` with `--accelerate 1.5.0`:

        distributed_type: FSDP
        num_processes: 4
        mixed_precision: bf16
        fsdp_config:
          fsdp_auto_wrap_policy: NO_WRAP
        parallelism_config:
          parallelism_config_dp_shard_size: 4

    Good `accelerate.yaml` with `--accelerate 1.12.0`:

        distributed_type: FSDP
        num_processes: 4
        mixed_precision: bf16
        fsdp_config:
          fsdp_version: 2
          fsdp_auto_wrap_policy: NO_WRAP
        parallelism_config:
          parallelism_config_dp_shard_size: 4
    """
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
    since = _since(history, key)
    compared = sorted({row[0] for row in history.values() if row[0]}, key=release)
    earlier = [each for each in ("0.21.0", *compared) if before(each, since)]
    return bool(since and earlier) and not before(earlier[-1], version)


def _since(history: dict[str, list[str]], key: str) -> str:
    return history.get(key, [""])[0]
