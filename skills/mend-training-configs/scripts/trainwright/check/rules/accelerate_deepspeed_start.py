# helpers/trainwright/check/rules/accelerate_deepspeed_start.py without its comments
from __future__ import annotations

from collections.abc import Iterator

from trainwright.check.deepspeed_file import problems
from trainwright.check.facts import table
from trainwright.check.launcher import plugin_config
from trainwright.check.rules.accelerate_deepspeed import names_file
from trainwright.check.rules.accelerate_launch import hit, set_to, stopped
from trainwright.check.subject import AccelerateConfig
from trainwright.emit.accelerate_file import nearest, shown
from trainwright.report import Severity
from trainwright.rules import Hit, rule


@rule(
    "ACC021",
    Severity.WARNING,
    AccelerateConfig,
    fails_at="launcher",
    checked="run",
    source="accelerate-1.15.0-launch-env",
    covers=("ADS-LAUNCHER-PDSH",),
)
def deepspeed_on_several_machines(config: AccelerateConfig) -> Iterator[Hit]:
    """DeepSpeed on several machines without a launcher that knows them."""
    if config.kind != "deepspeed" or config.launch.machines <= 1:
        return
    name = config.value("deepspeed_multinode_launcher")
    known = (None, *table("accelerate")["multinode_launchers"])
    if name in known and name != "standard" and not config.value("deepspeed_hostfile"):
        message = f"{'is missing, so pdsh is taken' if name is None else name} with no deepspeed_hostfile: only the local machine is seen"
        fix = set_to(config, "deepspeed_multinode_launcher", "standard", note="or name a deepspeed_hostfile")
        yield hit(config, "deepspeed_multinode_launcher", message, fix=fix, fails_at="never")


@rule(
    "ACC034",
    Severity.ERROR,
    AccelerateConfig,
    fails_at="launcher",
    checked="run",
    source="accelerate-1.15.0-launch-env",
    covers=("ADS-LAUNCHER-NAME",),
)
def unknown_multinode_launcher(config: AccelerateConfig) -> Iterator[Hit]:
    """A deepspeed_multinode_launcher that DeepSpeed does not know is handed on and refused there."""
    name, known = config.value("deepspeed_multinode_launcher"), table("accelerate")["multinode_launchers"]
    if config.kind == "deepspeed" and config.launch.machines > 1 and name is not None and name not in known:
        near = nearest(name, known, 0.5)
        fix = set_to(config, "deepspeed_multinode_launcher", near) if near else None
        yield hit(config, "deepspeed_multinode_launcher", f"{shown(name)} is not one of {', '.join(known)}", fix=fix)


_ARGUMENTS = {
    ("zero_optimization", "stage"): "zero_stage",
    ("zero_optimization", "offload_optimizer", "device"): "offload_optimizer_device",
    ("zero_optimization", "offload_param", "device"): "offload_param_device",
}


def _engine(config: AccelerateConfig) -> Iterator[Hit]:
    """What DeepSpeedConfig refuses of the config that the plugin makes of the file's keys."""
    for problem in problems(plugin_config(config.launch)):
        argument = _ARGUMENTS.get(tuple(map(str, problem.path)), "")
        if argument and not str(config.value(argument)).startswith("$"):
            yield hit(config, argument, f"{shown(config.value(argument))} {problem.why}", fails_at="engine start")


@rule(
    "ACC022",
    Severity.ERROR,
    AccelerateConfig,
    fails_at="plugin",
    checked="run",
    source="accelerate-1.15.0-deepspeed",
    covers=("ADS-MISSING-FILE", "FP8-MSAMP-Z3", "FP8-MSAMP-CASE"),
)
def deepspeed_plugin_stops(config: AccelerateConfig) -> Iterator[Hit]:
    """The DeepSpeed plugin stops at the file it is given, or at a stage that MS-AMP does not know."""
    if config.kind != "deepspeed":
        return
    if config.missing:
        message = f"{shown(config.missing)} is not in the current folder, and a path is looked up in the folder that the job starts in"
        typed_here = config.launch.where is not None and config.launch.where.path == "--cli"
        yield hit(config, "deepspeed_config_file", message, severity=None if typed_here else Severity.WARNING)
    if config.no_json:
        message = f"{shown(config.value('deepspeed_config_file'))} is {config.no_json}: Accelerate reads JSON alone"
        yield hit(config, "deepspeed_config_file", message)
    yield from stopped(config, "msamp")
    if not names_file(config):
        yield from _engine(config)
    backend = config.value("fp8_backend")
    if str(config.value("mixed_precision")).lower() == "fp8" and isinstance(backend, str) and backend.upper() == "MSAMP" != backend:
        message = f"{backend}: only the upper-case word MSAMP enables MS-AMP with DeepSpeed"
        yield hit(config, "fp8_backend", message, severity=Severity.WARNING, fails_at="never", fix=set_to(config, "fp8_backend", "MSAMP"))
