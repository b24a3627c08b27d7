# helpers/trainwright/check/rules/accelerate_launch.py without its comments
from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from trainwright.check.files import default_accelerate_file
from trainwright.check.launcher import Stop, default_of, stops
from trainwright.check.subject import AccelerateConfig
from trainwright.emit.accelerate_file import shown, table
from trainwright.report import Fix, Severity
from trainwright.rules import Hit, rule

_BLOCK_OF = {"fsdp_config": "FSDP", "deepspeed_config": "DEEPSPEED", "megatron_lm_config": "MEGATRON_LM"}
_HOST = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$|^\[?[0-9A-Fa-f:]+\]?$")


def hit(config: AccelerateConfig, argument: str, message: str, **more: Any) -> Hit:
    """A finding at a launcher argument, named as the file spells it."""
    key = config.key(argument)
    return Hit(f"{key} {message}", config.at(argument), key, **more)


def set_to(config: AccelerateConfig, argument: str, value: Any, **more: Any) -> Fix:
    return Fix({config.key(argument): value}, **more)


def stopped(config: AccelerateConfig, *kinds: str) -> Iterator[Hit]:
    """The launcher's stops of these kinds as findings."""
    for stop in stops(config.launch):
        if stop.kind in kinds:
            yield told(config, stop)


def told(config: AccelerateConfig, stop: Stop) -> Hit:
    fix = set_to(config, stop.argument, stop.instead) if stop.instead is not None else None
    return hit(config, stop.argument, f"{shown(config.value(stop.argument))} {stop.why}", fix=fix, fails_at=stop.fails_at)


@rule(
    "ACC008",
    Severity.WARNING,
    AccelerateConfig,
    fails_at="never",
    checked="run",
    source="accelerate-1.15.0-launch",
    covers=("ACC-KEY-IGNORED-TOP", "ACC-DOWNCAST-STR", "TPU-DOWNCAST"),
)
def key_that_loses_to_a_flag(config: AccelerateConfig) -> Iterator[Hit]:
    """A top-level key loses to the default of the launcher's flag of that name: only the command line can set it."""
    if config.kind == "sagemaker":
        return
    lost = [key for key in table()["lose_to_flag"] if _loses(config, key)]
    matter = [key for key in lost if _matters(config, key)]
    for keys, severity in ((matter, Severity.WARNING), ([key for key in lost if key not in matter], Severity.INFO)):
        if keys:
            written = ", ".join(f"{key} {shown(config.document.get(key))}" for key in keys)
            used = ", ".join(f"--{key} {default_of(key)}" for key in keys)
            message = f"{written}: never reaches the launcher, whose {used} counts"
            yield Hit(message, config.document.at(keys[0]), keys[0], Fix(dict.fromkeys(keys), safe=True), severity, data={"keys": keys})


def _loses(config: AccelerateConfig, key: str) -> bool:
    value = config.document.get(key)
    return value is not None and value != config.value(key) and key not in config.launch.typed


def _matters(config: AccelerateConfig, key: str) -> bool:
    value = config.document.get(key)
    if key in ("downcast_bf16", "tpu_use_sudo"):
        return config.kind == "tpu" and value not in (False, "no", "NO", "false")
    if key == "enable_cpu_affinity":
        return bool(value)
    return config.launch.machines > 1 and key == "rdzv_backend"


@rule(
    "ACC009",
    Severity.ERROR,
    AccelerateConfig,
    fails_at="first step",
    checked="run",
    source="accelerate-1.15.0-launch-env",
    covers=("ACC-NM-NOIP", "ACC-NM-RDZV", "ACC-NP-DIV", "ACC-IP-FORMAT"),
)
def machines_that_do_not_meet(config: AccelerateConfig) -> Iterator[Hit]:
    """Several machines without what they need to find each other, or with ranks that do not spread over them."""
    machines = config.launch.machines
    if machines <= 1 or config.kind in ("sagemaker", "tpu"):
        return
    yield from stopped(config, "address")
    yield from _address(config)
    count = config.whole("num_processes")
    if count and (count % machines or count < machines):
        per, total = max(count // machines, 1), max(count // machines, 1) * machines if count >= machines else count * machines
        message = f"{count} does not spread over {machines} machines: {count // machines} each are started; it counts all ranks"
        fix = set_to(config, "num_processes", total, note=f"{per} on each machine")
        yield hit(config, "num_processes", message, fix=fix, severity=Severity.WARNING, fails_at="never")
    rank = config.whole("machine_rank")
    if rank is not None and not 0 <= rank < machines:
        yield hit(config, "machine_rank", f"{rank} is none of the {machines} machines, which count from 0")
    if config.document.get("rdzv_backend") not in (None, "static") and "rdzv_backend" not in config.launch.typed:
        message = f"{shown(config.document.get('rdzv_backend'))} is ignored: static is used, and each machine needs its own machine_rank"
        where = config.document.at("rdzv_backend")
        yield Hit(f"rdzv_backend {message}", where, "rdzv_backend", severity=Severity.WARNING, fails_at="never")
    elif config.context.same_file_on_every_node and "machine_rank" not in config.launch.typed:
        message = f"{config.value('machine_rank')} is the same on every machine that reads this file: give --machine_rank on each"
        yield hit(config, "machine_rank", message)


def _address(config: AccelerateConfig) -> Iterator[Hit]:
    address = config.value("main_process_ip")
    by_hostfile = config.kind == "deepspeed" and config.value("deepspeed_hostfile")
    if address in (None, "") and config.kind != "simple":
        if not by_hostfile and "--main_process_ip" not in config.launch.unread:
            yield hit(config, "main_process_ip", "is missing: the machines wait for each other at no address")
    elif isinstance(address, str) and "$" not in address and not _HOST.match(address):
        bare = address.rpartition("@")[2].rpartition("/")[2].partition(":")[0]
        yield hit(
            config,
            "main_process_ip",
            f"{shown(address)} is no bare host name or IP",
            fix=set_to(config, "main_process_ip", bare, safe=True),
        )
    elif isinstance(address, str) and address.count(":") == 1:
        host, _, port = address.partition(":")
        fix = Fix(
            {config.key("main_process_ip"): host, "main_process_port": int(port) if port.isdecimal() else None}, safe=port.isdecimal()
        )
        yield hit(config, "main_process_ip", f"{shown(address)} holds a port, which becomes part of the name", fix=fix)


@rule(
    "ACC010",
    Severity.ERROR,
    AccelerateConfig,
    fails_at="launcher",
    checked="run",
    source="accelerate-1.15.0-launch",
    covers=("ACC-GPUIDS-ONE", "ACC-GPUIDS-COUNT"),
)
def devices_against_ranks(config: AccelerateConfig) -> Iterator[Hit]:
    """gpu_ids names another number of devices than the ranks of a machine."""
    one = list(stopped(config, "gpu_ids"))
    yield from one
    ids, count = config.value("gpu_ids"), config.whole("num_processes")
    if one or not isinstance(ids, str) or ids == "all" or not count or config.kind in ("simple", "tpu", "sagemaker"):
        return
    named, each = len(ids.split(",")), count // config.launch.machines
    if named < each:
        yield hit(
            config, "gpu_ids", f"{shown(ids)} names {named} devices for {each} ranks of a machine: ranks share one", fails_at="first step"
        )
    elif named > each:
        more = {"severity": Severity.WARNING, "fails_at": "never"}
        yield hit(config, "gpu_ids", f"{shown(ids)} names {named} devices, and {each} ranks run on a machine: the others idle", **more)


@rule(
    "ACC011",
    Severity.WARNING,
    AccelerateConfig,
    fails_at="never",
    checked="run",
    source="accelerate-1.15.0-launch",
    covers=("ACC-TYPE-MISMATCH", "ACC-CLI-KIND"),
)
def block_of_another_kind(config: AccelerateConfig) -> Iterator[Hit]:
    """A filled block belongs to another kind of job than the one that starts: it is ignored without a word."""
    if config.kind == "sagemaker" or config.file.kind == "":
        return
    runs = {
        "deepspeed": "DEEPSPEED",
        "fsdp": "FSDP",
        "megatron": "MEGATRON_LM",
        "multi_gpu": "MULTI_GPU",
        "tpu": "XLA",
        "simple": "one process",
    }
    now = runs[config.kind]
    typed = [flag for flag in ("cpu", "multi_gpu", "tpu", "use_deepspeed", "use_fsdp", "use_megatron_lm") if config.launch.typed.get(flag)]
    for block, kind in _BLOCK_OF.items():
        value = config.document.get(block)
        if not isinstance(value, dict) or not value or kind == now:
            continue
        if typed and config.file.kind == kind:
            message = f"{block} is ignored: --{typed[0]} on the command line switches {kind} off"
            yield Hit(message, config.document.at(block), block, Fix({f"--{typed[0]}": None}))
        else:
            said = config.document.get("distributed_type")
            message = f"{block} is ignored: distributed_type is {said if isinstance(said, str) else 'NO'}"
            yield Hit(message, config.document.at(block), block, Fix({"distributed_type": kind}, note="or delete the block"))
    if typed and config.document.get("parallelism_config") and not config.value("use_parallelism_config"):
        message = f"parallelism_config is ignored: --{typed[0]} on the command line needs --use_parallelism_config beside it"
        yield Hit(message, config.document.at("parallelism_config"), "parallelism_config")


@rule(
    "ACC012",
    Severity.WARNING,
    AccelerateConfig,
    fails_at="never",
    checked="run",
    source="accelerate-1.15.0-launch-env",
    covers=("ACC-MULTICPU-ONE",),
)
def one_process_for_many_cpus(config: AccelerateConfig) -> Iterator[Hit]:
    """MULTI_CPU without an mpirun_hostfile: accelerate launch starts one plain process, whatever num_processes says."""
    count = config.whole("num_processes")
    if config.file.kind == "MULTI_CPU" and config.kind == "simple" and count and count > 1 and not config.value("mpirun_hostfile"):
        message = f"MULTI_CPU without mpirun_hostfile: `accelerate launch` starts one process, not {count}"
        yield hit(config, "distributed_type", message, severity=Severity.INFO if config.context.device == "cpu" else None)


@rule(
    "ACC013",
    Severity.ERROR,
    AccelerateConfig,
    fails_at="launcher",
    checked="run",
    source="accelerate-1.15.0-config-args",
    covers=("ACC-SAGEMAKER",),
)
def sagemaker_file(config: AccelerateConfig) -> Iterator[Hit]:
    """A file for Amazon SageMaker, which accelerate launch of 1.10 to 1.15 cannot start."""
    if config.document.get("compute_environment") == "AMAZON_SAGEMAKER":
        message = "compute_environment AMAZON_SAGEMAKER: `accelerate launch` stops, as a SageMaker config lacks what it asks for"
        yield Hit(message, config.document.at("compute_environment"), "compute_environment")


@rule(
    "ACC014",
    Severity.WARNING,
    AccelerateConfig,
    fails_at="never",
    checked="source",
    source="accelerate-1.15.0-launch",
    covers=("ACC-DEFAULT-FILE",),
)
def default_file_of_the_machine(config: AccelerateConfig) -> Iterator[Hit]:
    """The file is the one that every accelerate launch on this machine takes when none is named."""
    said = (config.context.path or "").replace("\\", "/")
    here = default_accelerate_file()
    is_here = here is not None and os.path.realpath(here) == os.path.realpath(config.document.path)
    if is_here or re.search(r"accelerate/default_config\.(ya?ml|json)$", said):
        message = "this is the default file: every `accelerate launch` without --config_file on the machine takes it"
        yield Hit(message, config.document.at())


@rule(
    "ACC015",
    Severity.ERROR,
    AccelerateConfig,
    fails_at="launcher",
    checked="run",
    source="accelerate-1.15.0-launch",
)
def argument_the_launcher_refuses(config: AccelerateConfig) -> Iterator[Hit]:
    """A flag, or a value of the file beside one, at which the launcher or a worker's plugin stops."""
    if config.file.kind and config.document.get("compute_environment") in (None, "LOCAL_MACHINE"):
        found = stopped(config, "paradigm", "conversion", "count", "fp8")
        yield from (hit for hit in found if hit.path != "num_processes")
