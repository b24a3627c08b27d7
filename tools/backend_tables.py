#!/usr/bin/env python3
"""Write helpers/trainwright/check/tables/*.json from the installed accelerate, deepspeed and transformers.

Run as `python tools/backend_tables.py [HISTORY_FOLDER]` in an environment with the three. HISTORY_FOLDER holds acc_history.txt and
ds_history.txt (first and last release of each key); without it the histories already in the tables are kept. `--check` only compares.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import enum
import importlib
import importlib.metadata
import inspect
import io
import json
import os
import re
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TABLES = Path(__file__).resolve().parents[1] / "helpers/trainwright/check/tables"
Json = dict[str, Any]


# --- accelerate -----------------------------------------------------------------------------------------------------


def accelerate_table() -> Json:
    launch = importlib.import_module("accelerate.commands.launch")
    utils = importlib.import_module("accelerate.utils.launch")
    sagemaker = importlib.import_module("accelerate.commands.config.config_args").SageMakerConfig
    vars(utils)["is_fp8_available"] = lambda: True
    vars(utils)["is_port_in_use"] = lambda port=None: False
    parser = launch.launch_command_parser()
    parsed = vars(parser.parse_args(["train.py"]))
    flags: Json = {}
    for action in (a for a in parser._actions if a.dest != "help"):
        flags.setdefault(action.dest, _flag(action, parsed[action.dest]))  # two actions may share one
    return {
        "version": importlib.metadata.version("accelerate"),
        "flags": flags,
        "environment": _folded(_environment(parser, utils)),
        "readers": dict(sorted(_readers())),
        "sagemaker": [f.name for f in dataclasses.fields(sagemaker)],
        "multinode_launchers": list(importlib.import_module("accelerate.utils.constants").DEEPSPEED_MULTINODE_LAUNCHERS),
    }


def _flag(action: argparse.Action, default: Any) -> list[Any]:
    """[type, default, choices, option strings that are not --dest with - or _]"""
    kind = "flag" if action.nargs == 0 else getattr(action.type, "__name__", None) or "str"
    if action.nargs not in (0, None):
        kind = "rest"
    plain = {f"--{action.dest}", f"--{action.dest.replace('_', '-')}"}
    default = None if action.dest.startswith("training_script") else default
    row = [kind, default, list(action.choices) if action.choices else None, [o for o in action.option_strings if o not in plain]]
    while len(row) > 2 and not row[-1]:
        row.pop()
    return row


def _environment(parser: Any, utils: Any) -> Json:
    """group -> [[variable, argument, "lower" or "", "none" where None is left out]], by probing the launcher's own functions."""
    groups: dict[str, tuple[Any, Json]] = {
        "base": (utils.prepare_multi_gpu_env, {}),
        "fsdp": (utils.prepare_multi_gpu_env, {"use_fsdp": True}),
        "megatron": (utils.prepare_multi_gpu_env, {"use_megatron_lm": True}),
        "parallelism": (
            utils.prepare_multi_gpu_env,
            {"use_parallelism_config": True, "parallelism_config_cp_size": 2, "parallelism_config_sp_size": 2},
        ),
        "fp8": (utils.prepare_multi_gpu_env, {"mixed_precision": "fp8"}),
        "deepspeed": (lambda a: utils.prepare_deepspeed_cmd_env(a)[1], {"deepspeed_fields_from_accelerate_config": ""}),
        "simple": (lambda a: utils.prepare_simple_launcher_cmd_env(a)[1], {}),
    }
    found: Json = {}
    for group, (prepare, changes) in groups.items():
        rows = _probe(parser, prepare, changes)
        known = found.get("base", []) if group != "base" else []
        found[group] = [row for row in rows if row not in known]
    return found


def _probe(parser: Any, prepare: Any, changes: Json) -> list[list[str]]:
    def run(**more: Any) -> dict[str, str]:
        arguments = parser.parse_args(["train.py"])
        start = {"num_processes": 2, "num_machines": 1, "mixed_precision": "no", "dynamo_backend": "no", "debug": False, "use_cpu": False}
        for key, value in (start | changes | more).items():
            setattr(arguments, key, value)
        with contextlib.redirect_stdout(io.StringIO()):
            environment = prepare(arguments)
        ours = ("ACCELERATE_", "FSDP_", "MEGATRON_LM_", "PARALLELISM_CONFIG_", "MASTER_", "CUDA_VISIBLE")
        return {k: str(v) for k, v in environment.items() if k.startswith(ours)}

    base = run()
    rows: list[list[str]] = []
    for action in parser._actions:
        for word in (9, "SeNtInEl") if action.nargs != 0 or action.dest.startswith(("dynamo_", "fp8_")) else ():
            try:
                changed = run(**{action.dest: word})
            except (ValueError, TypeError, AttributeError, OSError, SystemExit, AssertionError):
                continue
            for name in [n for n, v in changed.items() if v.lower() == str(word).lower() and v != base.get(n)]:
                lower = "lower" if changed[name] == "sentinel" else ""
                row = [name, action.dest, lower, "none" if _skips_none(run, action.dest, name) else ""]
                previous = next((r for r in rows if r[:2] == row[:2]), None)
                if previous is None:
                    rows.append(row)
                else:
                    previous[2] = previous[2] or lower
    return sorted(rows)


def _skips_none(run: Any, dest: str, name: str) -> bool:
    try:
        return name not in run(**{dest: None})
    except (ValueError, TypeError, AttributeError, AssertionError):
        return False


def _readers() -> Iterator[tuple[str, list[str]]]:
    """(environment variable, ["Class.field" or "Class", default as written, conversion]) from the source of accelerate's worker side."""
    root = Path(importlib.import_module("accelerate").__file__ or "").parent
    for name in ("utils/dataclasses.py", "parallelism_config.py", "state.py", "accelerator.py", "utils/other.py"):
        tree = ast.parse((root / name).read_text())
        for cls in [n for n in tree.body if isinstance(n, ast.ClassDef)]:
            for function in [n for n in cls.body if isinstance(n, ast.FunctionDef)]:
                yield from _reads(cls.name, function)


def _reads(owner: str, function: ast.FunctionDef) -> Iterator[tuple[str, list[str]]]:
    prefixes = {
        t.id: s.value.value
        for s in ast.walk(function)
        if isinstance(s, ast.Assign) and isinstance(s.value, ast.Constant) and isinstance(s.value.value, str)
        for t in s.targets
        if isinstance(t, ast.Name)
    }
    for statement in ast.walk(function):
        if not isinstance(statement, (ast.Assign, ast.If)):
            continue
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        field = next((t.attr for t in targets if isinstance(t, ast.Attribute)), "")
        scope = statement.value if isinstance(statement, ast.Assign) else statement.test
        for call in [n for n in ast.walk(scope) if isinstance(n, ast.Call)]:
            named = ast.unparse(call.func)
            asks = named in ("os.environ.get", "parse_flag_from_env", "parse_choice_from_env", "os.getenv") and call.args
            if asks and (name := _name_of(call.args[0], prefixes)):
                default = ast.unparse(call.args[1]) if len(call.args) > 1 else ""
                wrapper = next((w for w in ("int", "float", "str_to_bool") if f"{w}({ast.unparse(call)}" in ast.unparse(scope)), "")
                yield name, [f"{owner}.{field}" if field else owner, default, *([wrapper] if wrapper else [])]


def _name_of(node: ast.expr, prefixes: dict[str, str]) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.BinOp) and isinstance(node.left, ast.Name) and isinstance(node.right, ast.Constant):
        return prefixes.get(node.left.id, "?") + str(node.right.value) if node.left.id in prefixes else ""
    if isinstance(node, ast.JoinedStr):
        parts = [p.value if isinstance(p, ast.Constant) else prefixes.get(ast.unparse(getattr(p, "value", p)), "?") for p in node.values]
        return "".join(map(str, parts)) if "?" not in parts else ""
    return ""


# --- deepspeed ------------------------------------------------------------------------------------------------------

MODELS = {
    "zero_optimization": "deepspeed.runtime.zero.config:DeepSpeedZeroConfig",
    "bf16": "deepspeed.runtime.precision_config:DeepSpeedBF16Config",
    "fp16": "deepspeed.runtime.precision_config:DeepSpeedFP16Config",
    "comms_logger": "deepspeed.comm.config:CommsLoggerConfig",
    "compile": "deepspeed.compile.config:CompileConfig",
    "tensor_parallel": "deepspeed.runtime.tensor_parallel.config:TPTrainingConfig",
    "hybrid_engine": "deepspeed.runtime.config:HybridEngineConfig",
    "timers.throughput": "deepspeed.utils.config:DeepSpeedThroughputTimerConfig",
    "tensorboard": "deepspeed.monitor.config:TensorBoardConfig",
    "wandb": "deepspeed.monitor.config:WandbConfig",
    "csv_monitor": "deepspeed.monitor.config:CSVConfig",
    "comet": "deepspeed.monitor.config:CometConfig",
    "weight_quantization": "deepspeed.inference.config:WeightQuantConfig",
}


class Recording(dict[str, Any]):
    """A mapping that notes what is looked up in it, and answers blocks with mappings that note it too."""

    log: Json

    def __init__(self, log: Json, path: str = "", values: Json | None = None) -> None:
        super().__init__(values or {})
        self.log, self.path = log, path

    def _note(self, key: str, default: Any = None) -> None:
        self.log.setdefault(f"{self.path}{key}", default if isinstance(default, (str, int, float, bool, type(None))) else {})

    def get(self, key: str, default: Any = None) -> Any:
        self._note(key, default)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self._note(str(key))
        return super().__contains__(key)

    def __getitem__(self, key: str) -> Any:
        self._note(key)
        return super().__getitem__(key)


def deepspeed_table() -> Json:
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    config = importlib.import_module("deepspeed.runtime.config")
    schedules = importlib.import_module("deepspeed.runtime.lr_schedules")
    blocks: Json = {}
    for name, place in MODELS.items():
        module, cls = place.split(":")
        _model(blocks, name, getattr(importlib.import_module(module), cls))
    torch = importlib.import_module("torch")
    return {
        "version": importlib.metadata.version("deepspeed"),
        "blocks": blocks,
        "lookups": _lookups(config),
        "removed_top": sorted(config._REMOVED_TOP_LEVEL_CONFIG_KEYS),
        "removed_zero": sorted(config._REMOVED_ZERO_CONFIG_KEYS),
        "optimizers": config.DEEPSPEED_OPTIMIZERS,
        "torch_optimizers": sorted(
            n for n, c in vars(torch.optim).items() if isinstance(c, type) and issubclass(c, torch.optim.Optimizer) and n != "Optimizer"
        ),
        "schedulers": {name: _parameters(getattr(schedules, name)) for name in schedules.VALID_LR_SCHEDULES},
        "torch_schedulers": sorted(
            n
            for n, c in vars(torch.optim.lr_scheduler).items()
            if isinstance(c, type) and (issubclass(c, torch.optim.lr_scheduler.LRScheduler) or n == "ReduceLROnPlateau")
        ),
        "dtypes": sorted({str(k) for k in config.DtypeEnum._value2member_map_}),
    }


def _parameters(cls: type) -> Json:
    return {
        name: None if p.default is inspect.Parameter.empty else p.default
        for name, p in inspect.signature(cls).parameters.items()
        if name not in ("self", "optimizer", "last_batch_iteration")
    }


def _model(blocks: Json, name: str, cls: Any) -> None:
    """name -> {key: [type, default, "gt=0" constraint, successor of a deprecated key]}; nested models get rows of their own."""
    rows: Json = {}
    blocks[name] = rows
    for field, info in cls.model_fields.items():
        key = info.alias or field
        extra = info.json_schema_extra or {}
        constraint = ",".join(re.findall(r"\w+=[\d.]+", " ".join(map(str, info.metadata))))
        row = [_type(blocks, f"{name}.{key}", info.annotation), _plain(info.get_default(call_default_factory=True)), constraint]
        row += [f"!{extra.get('new_param', '')}" if extra.get("deprecated") else ""] + ([field] if field != key else [])
        while len(row) > 2 and not row[-1]:
            row.pop()
        rows[key] = row


def _type(blocks: Json, name: str, hint: Any) -> str:
    """bool, int, float, str, list, dict, any, "a|b" of choices, "{}" for a nested model; "?" in front where None is allowed."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if type(None) in inner:
        return f"?{_type(blocks, name, next(i for i in inner if i is not type(None)))}"
    if origin is typing.Literal:
        return "=" + "|".join(map(str, inner))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return ("#" if issubclass(hint, int) else "=") + "|".join(dict.fromkeys(str(getattr(m, "value", m)) for m in hint))
    if hasattr(hint, "model_fields"):
        _model(blocks, name, hint)
        return "{}"
    if origin in (list, dict, tuple):
        return {list: "list", dict: "dict", tuple: "list"}[origin] + ("/str" if inner == (str,) else "")
    if origin is typing.Union:
        return "str or int" if set(inner) == {str, int} else "any"
    names = {bool: "bool", int: "int", float: "float", str: "str", Path: "path", list: "list", tuple: "list", dict: "dict"}
    return names.get(hint, "dtype" if "dtype" in str(hint) else "any")


def _plain(value: Any) -> Any:
    if hasattr(type(value), "model_fields"):
        return {}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (str, bool, int, float, list, type(None))):
        return value
    return str(value) if "dtype" in type(value).__name__ or isinstance(value, dict) else None


def _lookups(config: Any) -> Json:
    log: Json = {}
    for enabled in (False, True):
        values: Json = {"train_batch_size": 1}
        for block in ("activation_checkpointing", "flops_profiler", "aio", "autotuning", "checkpoint", "data_types", "expert_parallel"):
            values[block] = Recording(log, f"{block}.", {"enabled": enabled} if block == "flops_profiler" else {})
        for block in ("data_efficiency", "torch_autocast", "optimizer", "scheduler", "datastates_ckpt", "timers", "pipeline"):
            values[block] = Recording(log, f"{block}.", {"enabled": enabled, "type": "Adam", "params": {}})
        values["autotuning"]["enabled"] = enabled
        values["checkpoint"]["parallel_write"] = Recording(log, "checkpoint.parallel_write.")
        efficiency = values["data_efficiency"]
        efficiency["data_sampling"] = Recording(log, "data_efficiency.data_sampling.", {"enabled": enabled})
        efficiency["data_sampling"]["curriculum_learning"] = Recording(log, "data_efficiency.data_sampling.curriculum_learning.", {})
        efficiency["data_sampling"]["dynamic_batching"] = Recording(log, "data_efficiency.data_sampling.dynamic_batching.", {})
        efficiency["data_routing"] = Recording(log, "data_efficiency.data_routing.", {"enabled": enabled})
        efficiency["data_routing"]["random_ltd"] = Recording(log, "data_efficiency.data_routing.random_ltd.", {})
        recording = Recording(log, "", values)
        # A copy is made of what is given, so the copy has to record too.
        config.copy = type("copying", (), {"copy": staticmethod(lambda given: given)})
        with contextlib.suppress(Exception):
            config.DeepSpeedConfig(recording)
    for key, value in vars(importlib.import_module("deepspeed.module_inject.auto_ep_config").AutoEPConfig()).items():
        log[f"expert_parallel.{key}"] = _plain(value)
    for key in config.get_pipeline_config({}):
        log[f"pipeline.{key}"] = config.get_pipeline_config({})[key]
    return {key: value for key, value in sorted(log.items()) if key not in config._REMOVED_TOP_LEVEL_CONFIG_KEYS}


# --- transformers ---------------------------------------------------------------------------------------------------


def arguments_table() -> Json:
    arguments = importlib.import_module("transformers").TrainingArguments
    rows = {f.name: None if f.default is dataclasses.MISSING else _plain(f.default) for f in dataclasses.fields(arguments) if f.init}
    layers = _layers()
    single = {family: names[0].removeprefix(family) for family, names in layers.items() if len(names) == 1 and names[0].startswith(family)}
    return {
        "version": importlib.metadata.version("transformers"),
        "arguments": rows,
        "layers": {family: names for family, names in layers.items() if family not in single},
        "one_layer": _by_value(single),
        "no_hidden_size": _by_value(_no_hidden_size()),
        "choices": _choices(),
    }


def _layers() -> dict[str, list[str]]:
    """Family as its classes are called ("Bert") -> the layers that its models never split, of families of one model alone."""
    root = Path(importlib.import_module("transformers").__file__ or "").parent / "models"
    found = {}
    for file in sorted(root.glob("*/modeling_*.py")):
        configs = "".join(other.read_text() for other in file.parent.glob("configuration_*.py"))
        if "sub_configs" in configs:
            continue  # a model of several models: any layer of any family may be in it
        classes = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef)]
        said = [
            s.value for cls in classes for s in cls.body if isinstance(s, ast.Assign) and ast.unparse(s.targets[0]) == "_no_split_modules"
        ]
        layers = {str(ast.literal_eval(item)) for value in said if isinstance(value, ast.List) for item in value.elts}
        for cls in (cls for cls in classes if cls.name.endswith("PreTrainedModel")):
            found[cls.name.removesuffix("PreTrainedModel")] = sorted(layers)
    return {family: layers for family, layers in found.items() if layers}


def _folded(groups: Json) -> Json:
    """A variable that is its argument in capitals is written as "": check/facts.py unfolds it."""
    return {group: [["" if row[0] == row[1].upper() else row[0], *row[1:]] for row in rows] for group, rows in groups.items()}


def _by_value(rows: dict[str, str]) -> dict[str, str]:
    """{"Llama": "DecoderLayer", ...} -> {"DecoderLayer": "Llama ...", ...}: as check/facts.py unfolds it."""
    found: dict[str, list[str]] = {}
    for name, value in rows.items():
        found.setdefault(value, []).append(name)
    return {value: " ".join(names) for value, names in sorted(found.items())}


def _choices() -> dict[str, list[str]]:
    """Argument -> the words that its enumeration takes."""
    utils = importlib.import_module("transformers.trainer_utils")
    names = importlib.import_module("transformers.training_args").OptimizerNames
    enumerations = {
        "optim": names,
        "lr_scheduler_type": utils.SchedulerType,
        "eval_strategy": utils.IntervalStrategy,
        "logging_strategy": utils.IntervalStrategy,
        "save_strategy": utils.SaveStrategy,
        "hub_strategy": utils.HubStrategy,
    }
    return {name: [member.value for member in enumeration] for name, enumeration in enumerations.items()}


def _no_hidden_size() -> dict[str, str]:
    """Family ("CLIP") -> "text" where only the text part of its config has a hidden size, "none" where nothing has."""
    mapping = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    found = {}
    for name in mapping:
        try:
            config = mapping[name]()
        except Exception:  # a config that cannot be made without others
            continue
        sizes = [
            any(hasattr(part, key) for key in ("hidden_size", "hidden_sizes")) for part in (config, getattr(config, "text_config", None))
        ]
        if not sizes[0]:
            found[type(config).__name__.removesuffix("Config")] = "text" if sizes[1] else "none"
    return dict(sorted(found.items()))


# --- histories ------------------------------------------------------------------------------------------------------

HISTORY = re.compile(r"^\s*(?P<name>--\w+|\('\w+', '\w+'\)|\w+:)?.*?\[(?P<since>[\d.]+)\.\.(?P<until>[\d.]+)\]")


def history(path: Path) -> Json:
    """key, or "Class.key" -> [first release seen with it, last one], where it is not in all of them."""
    rows: Json = {}
    section = ""
    found: list[tuple[str, str, str]] = []
    for line in path.read_text().splitlines():
        if line.startswith("## "):
            section = line[3:].strip()
        elif match := HISTORY.match(line):
            name = re.sub(r"[:'()\s]", "", match["name"] or "")
            if name.startswith("--"):
                found.append((name[2:], match["since"], match["until"]))
            elif "," in name:
                owner, key = name.split(",")
                found.append((key if owner != "SageMakerConfig" else f"sagemaker.{key}", match["since"], match["until"]))
            else:
                found.append((f"{section}.{name}", match["since"], match["until"]))
    first, last = min((v(s), s) for _, s, _ in found)[1], max((v(u), u) for *_, u in found)[1]
    for name, since, until in found:
        if (since, until) != (first, last):
            rows[name] = [since if since != first else "", until if until != last else ""]
    return rows


def v(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


# --- writing --------------------------------------------------------------------------------------------------------


def text_of(table: Json) -> str:
    """Compact JSON, one line for each row of a large part: small, and a diff can be read."""
    lines = []
    for key, value in table.items():
        if isinstance(value, dict) and len(str(value)) > 140:
            rows = ",\n  ".join(f"{json.dumps(k)}: {json.dumps(i, separators=(',', ':'), default=str)}" for k, i in value.items())
            lines.append(f"{json.dumps(key)}: {{\n  {rows}\n }}")
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'), default=str)}")
    return "{\n " + ",\n ".join(lines) + "\n}\n"


def main(argv: list[str]) -> int:
    check = "--check" in argv
    folders = [Path(a) for a in argv if not a.startswith("--")]
    stale = []
    for name, make, file in (
        ("accelerate", accelerate_table, "acc_history.txt"),
        ("deepspeed", deepspeed_table, "ds_history.txt"),
        ("arguments", arguments_table, ""),
    ):
        target = TABLES / f"{name}.json"
        table = make()
        if file:
            kept = json.loads(target.read_text()).get("history", {}) if target.exists() else {}
            table["history"] = history(folders[0] / file) if folders else kept
        text = text_of(table)
        if not target.exists() or target.read_text() != text:
            stale.append(name)
            if not check:
                target.write_text(text)
    print("changed:" if stale else "nothing changed", *stale)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
