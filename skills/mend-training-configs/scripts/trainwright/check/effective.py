# helpers/trainwright/check/effective.py without its comments
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from trainwright.check.deepspeed_file import BATCH, LENIENT, blocks, unread
from trainwright.check.facts import table
from trainwright.check.gather import Gatherer
from trainwright.check.launcher import Launch, environment, torchrun
from trainwright.check.subject import AccelerateConfig, Context, DeepSpeedConfig
from trainwright.emit.accelerate_file import shown
from trainwright.emit.accelerate_file import table as keys
from trainwright.report import Report

NOTHING = "nothing: it is dropped without a word"
_TO_TORCHRUN = {
    "num_processes": "nproc_per_node",
    "num_machines": "nnodes",
    "machine_rank": "node_rank",
    "rdzv_backend": "rdzv_backend",
    "main_process_port": "master_port",
    "main_process_ip": "rdzv_endpoint",
}
_LAUNCHER_ALONE = ("compute_environment", "distributed_type", "use_cpu", "gpu_ids", "num_machines", "machine_rank", "main_process_ip")


def show(report: Report, paths: Sequence[str], context: Context, line: str = "", dialect: str = "", together: bool = False) -> None:
    gathered = Gatherer(context, Report("check"), dialect, together).gather(paths, line)
    rows = []
    for _, subjects in gathered.jobs:
        for subject in subjects:
            if isinstance(subject, AccelerateConfig):
                rows += list(accelerate_rows(subject))
            elif isinstance(subject, DeepSpeedConfig):
                rows += list(deepspeed_rows(subject))
    report.data["effective"] = rows
    report.text += _lines(rows)


def _row(file: str, key: str, written: Any, source: str, reaches: Any, via: str, read_by: str, default: Any) -> dict[str, Any]:
    return {
        "file": file,
        "key": key,
        "written": written,
        "source": source,
        "reaches": reaches,
        "via": via,
        "read_by": read_by,
        "default": default,
    }


def accelerate_rows(config: AccelerateConfig) -> Iterator[dict[str, Any]]:
    if config.kind == "sagemaker":
        return
    launch = config.launch
    variables = {argument: (name, value) for name, (value, argument) in reversed(environment(launch).items())}
    seen = set()
    for setting in config.file.settings:
        if setting.key in keys()["blocks"] and setting.value in (None, {}):
            continue
        argument = setting.flag
        seen.add(argument)
        if setting.path != config.file.place(argument) and argument in config.file.winners:
            other = config.file.winners[argument].key
            yield _row(config.document.path, setting.key, setting.value, "file", None, "", f"nothing: {other} stands over it", None)
            continue
        yield _argument(config, setting.key, setting.value, argument, variables)
    for argument, value in launch.typed.items():
        if argument not in seen and argument not in ("config_file",):
            seen.add(argument)
            yield _argument(config, f"--{argument}", value, argument, variables)
    for argument, (name, value) in variables.items():
        if argument not in seen and argument in table("accelerate")["flags"]:
            source = "default"
            yield _row(config.document.path, argument, None, source, value, name, _reader(name), value)


def _argument(config: AccelerateConfig, key: str, written: Any, argument: str, variables: dict[str, tuple[str, str]]) -> dict[str, Any]:
    launch, path = config.launch, config.document.path
    typed = argument in launch.typed
    source = "command line" if typed else "file"
    default = table("accelerate")["flags"].get(argument, ["", None])[1]
    if not key.startswith("--") and not _is_read(config, key, argument):
        return _row(path, key, written, source, None, "", NOTHING, None)
    value = launch.arguments.get(argument, written)
    if argument in keys()["lose_to_flag"] and not typed and value != written:
        told = torchrun(launch).get(_TO_TORCHRUN.get(argument, ""), value)
        return _row(
            path, key, written, "default", told, f"--{argument} {default}", "nothing: the flag's default stands over the file", default
        )
    if argument in variables:
        name, reaches = variables[argument]
        return _row(path, key, written, source, reaches, name, _reader(name), default)
    told = torchrun(launch)
    if _TO_TORCHRUN.get(argument) in told:
        flag = _TO_TORCHRUN[argument]
        return _row(path, key, written, source, told[flag], f"torchrun --{flag}", "torchrun", default)
    return _row(path, key, written, source, *_elsewhere(config, argument, value), default)


def _is_read(config: AccelerateConfig, key: str, argument: str) -> bool:
    return any(setting.is_read for setting in config.file.settings if setting.key == key and setting.flag == argument)


def _elsewhere(config: AccelerateConfig, argument: str, value: Any) -> tuple[Any, str, str]:
    block = next((name for name, names in keys()["blocks"].items() if argument in names), "")
    kinds = {"fsdp_config": "fsdp", "deepspeed_config": "deepspeed", "megatron_lm_config": "megatron"}
    if block in kinds and config.kind != kinds[block]:
        return None, "", f"nothing: the job is {config.kind}, not {kinds[block]}"
    if block == "fp8_config":
        return None, "", "nothing: mixed_precision is not fp8"
    if argument.endswith("_nvme_path"):
        return "none", "", "nothing: the launcher never exports it"
    if block == "deepspeed_config":
        return value, "the deepspeed command line", "DeepSpeed's launcher on several machines"
    if block == "dynamo_config" and config.kind == "deepspeed":
        return None, "", "nothing: the DeepSpeed launcher exports no dynamo variable"
    if block == "parallelism_config":
        return value, "", "nothing: its axis is 1, or the job uses no parallelism config"
    if argument in _LAUNCHER_ALONE or argument in keys()["cluster"]:
        return value, "", f"the launcher ({config.kind})"
    return value, "", "the launcher"


def _reader(variable: str) -> str:
    row = table("accelerate")["readers"].get(variable)
    return str(row[0]) if row else "the worker"


def plugin_fields(launch: Launch, constructor: dict[str, Any]) -> dict[str, Any]:
    given = environment(launch)
    found = {}
    for variable, row in table("accelerate")["readers"].items():
        owner, _, field = row[0].partition(".")
        if not field:
            continue
        value = constructor.get(field)
        found[f"{owner}.{field}"] = value if value is not None else given[variable][0] if variable in given else row[1]
    return found


def deepspeed_rows(config: DeepSpeedConfig) -> Iterator[dict[str, Any]]:
    dropped = set(unread(config.values))
    path = config.document.path
    for place, value in _leaves(config.values, ()):
        key = ".".join(map(str, (*config.prefix, *place)))
        if place in dropped or place[:1] in dropped or place[:2] in dropped:
            yield _row(path, key, value, "file", None, "", NOTHING, None)
            continue
        reaches, via = _filled(config, place, value)
        yield _row(path, key, value, "file", reaches, via, "DeepSpeedConfig", _default(place))


def _leaves(value: dict[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, item in value.items():
        if isinstance(item, dict) and item and len(path) < 6:
            yield from _leaves(item, (*path, str(key)))
        else:
            yield (*path, str(key)), item


def _filled(config: DeepSpeedConfig, place: tuple[str, ...], value: Any) -> tuple[Any, str]:
    if value != "auto":
        return value, ""
    strict = ".".join(place[:-1]) in blocks()
    if not config.fills_auto:
        return (_default(place), "dropped: the default runs") if strict else ("auto", "nobody fills it")
    given = config.context.training_args
    names = {
        BATCH[1]: "per_device_train_batch_size",
        BATCH[2]: "gradient_accumulation_steps",
        "gradient_clipping": "max_grad_norm",
        "lr": "learning_rate",
        "weight_decay": "weight_decay",
        "warmup_max_lr": "learning_rate",
    }
    name = names.get(place[-1], "")
    who = "Transformers" if config.reader == "transformers" else "Accelerate"
    return given.get(name), f"filled by {who}" + (f" from {name}" if name else "")


def _default(place: tuple[str, ...]) -> Any:
    block = blocks().get(".".join(place[:-1]))
    if block is not None and place[-1] in block:
        return block[place[-1]][1]
    return table("deepspeed")["lookups"].get(".".join(place)) if len(place) == 1 or place[0] in LENIENT else None


def _lines(rows: list[dict[str, Any]]) -> list[str]:
    told = [row for row in rows if row["source"] != "default" or row["written"] is not None]
    lines = []
    for file in dict.fromkeys(row["file"] for row in rows):
        mine = [row for row in told if row["file"] == file]
        width = min(max((len(row["key"]) for row in mine), default=0), 48)
        lines.append(f"{file}: what each key becomes")
        for row in mine:
            becomes = "-" if row["reaches"] is None else shown(row["reaches"])
            via = f" via {row['via']}" if row["via"] else ""
            lines.append(f"  {row['key']:{width}}  {shown(row['written'])} -> {becomes}{via}; read by {row['read_by']}{_standard(row)}")
        unasked = sum(row["file"] == file for row in rows) - len(mine)
        if unasked:
            lines.append(f"  and {unasked} arguments reach the worker with their defaults (--format json lists them)")
    return lines


def _standard(row: dict[str, Any]) -> str:
    return f" (default {shown(row['default'])})" if row["default"] is not None else ""
