"""Launch lines: which words are flags of the launcher, which is the script, and which words are the script's own."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trainwright.check.facts import table
from trainwright.check.subject import Command, Context
from trainwright.report import Location

LAUNCHERS = ("accelerate", "torchrun", "deepspeed", "python", "mpirun", "srun")
_WRAPPERS = re.compile(
    r"srun|mpirun|mpiexec|mpiexec\.hydra|aprun|jsrun|ibrun|prun|time|timeout|nohup|exec|env|stdbuf|numactl|taskset|nsys|ncu|"
    r"singularity|apptainer|docker|podman|shifter|uv|poetry|pixi|conda|mamba|ray|ssh|pdsh"
)
SHELLS = ("bash", "sh", "zsh", "dash", "ksh")
# Flags of torchrun, deepspeed and python that stand alone; every other one takes a value.
_ALONE = {
    "torchrun": ("standalone", "no_python", "m", "module", "run_path", "use_env"),
    "deepspeed": (
        "no_python",
        "module",
        "no_local_rank",
        "no_ssh",
        "force_multi",
        "save_pid",
        "enable_each_rank_log",
        "bind_cores_to_core",
    ),
    "python": ("u", "O", "OO", "B", "E", "I", "s", "S", "v", "b", "q", "i"),
}
_OF_CONFIGS = ("llamafactory-cli", "axolotl")  # NAME train CONFIG
_COUNTS = {"nproc_per_node": "nproc", "nproc-per-node": "nproc", "nnodes": "nnodes", "num_gpus": "nproc", "num_nodes": "nnodes"}


_WORDS_OF_ARRAY = re.compile(r"\$\{\w+\[[@*]\]\}")  # any number of words, flags among them


def split(line: str) -> list[str]:
    """The words of a shell line; on quotes that do not close, what stands between blanks."""
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return line.split()


def command_of(words: Sequence[str], where: Location | None = None) -> Command | None:
    """The launch that a line starts, behind whatever wraps it; None where it starts none."""
    for index, word in enumerate(words[:60]):
        name = word.rpartition("/")[2]
        if name == "accelerate":
            after = list(words[index + 1 :])
            return _accelerate(after[1:], where) if after[:1] == ["launch"] else None
        if name == "accelerate-launch":
            return _accelerate(list(words[index + 1 :]), where)
        if name in ("torchrun", "deepspeed"):
            return replace(_other(name, list(words[index + 1 :]), where), wrapper=tuple(words[:index]))
        if name.startswith("python"):
            command = _python(list(words[index + 1 :]), where)
            return replace(command, typed=_ranks_of_wrapper(words[:index])) if command and command.launcher == "python" else command
        if name in _OF_CONFIGS and words[index + 1 : index + 2] == ["train"]:
            return Command("python", tuple(words[index + 1 :]), {}, "", tuple(words[index + 2 :]), where)
        if index == 0 and not is_wrapper(word):
            return None
    return None


def is_wrapper(word: str) -> bool:
    """Whether a line that starts with this word may start something else behind it."""
    name = word.rpartition("/")[2]
    return _WRAPPERS.fullmatch(name) is not None or name in SHELLS or "=" in word or name.startswith(("$", "-"))


def _ranks_of_wrapper(words: Sequence[str]) -> dict[str, Any]:
    """The ranks that mpirun, mpiexec or srun start: -n 16, -np 16, --ntasks=16."""
    if not words or words[0].rpartition("/")[2] not in ("mpirun", "mpiexec", "mpiexec.hydra", "srun", "aprun"):
        return {}
    for index, word in enumerate(words):
        name, _, value = word.partition("=")
        count = value or "".join(words[index + 1 : index + 2])
        if name in ("-n", "-np", "--np", "--ntasks") and count.isdecimal() and count.strip("0") not in ("", "1"):
            return {"nproc": count}
    return {}


def _python(words: list[str], where: Location | None) -> Command | None:
    for index, word in enumerate(words):
        if word == "-m" and index + 1 < len(words):
            module, rest = words[index + 1], words[index + 2 :]
            if module in ("torch.distributed.run", "torch.distributed.launch"):
                return _other("torchrun", rest, where)
            if module == "accelerate.commands.launch":
                return _accelerate(rest, where)
            return Command("python", tuple(words), {}, module.replace(".", "/") + ".py", tuple(rest), where)
        if word == "-c":
            return None
        if not word.startswith("-"):
            return Command("python", tuple(words), {}, word, tuple(words[index + 1 :]), where) if word.endswith(".py") else None
    return None


def _other(launcher: str, words: list[str], where: Location | None) -> Command:
    typed: dict[str, Any] = {}
    index = 0
    while index < len(words):
        word = words[index]
        if not word.startswith("-"):
            break
        name, has_value, value = word.lstrip("-").partition("=")
        index += 1
        if not has_value and name not in _ALONE[launcher]:
            value = words[index] if index < len(words) else ""
            index += 1
        typed[_COUNTS.get(name, name.replace("-", "_"))] = value if has_value or name not in _ALONE[launcher] else True
    script = words[index] if index < len(words) else ""
    return Command(launcher, tuple(words), typed, script, tuple(words[index + 1 :]), where)


def _accelerate(words: list[str], where: Location | None) -> Command:
    """As argparse does it: the first word that is no flag, nor the value of one, is the script; all after it is the script's."""
    names = _options()
    flags = table("accelerate")["flags"]
    typed: dict[str, Any] = {}
    problems: list[str] = []
    index = 0
    while index < len(words):
        word = words[index]
        if not word.startswith("-"):
            break
        name, has_value, value = word.partition("=")
        argument = names.get(name)
        index += 1
        if argument is None:
            problems.append(f"{name} is no flag of accelerate launch")
            continue
        kind = flags[argument][0]
        if kind == "flag":
            typed[argument] = name not in ("--no_tpu_cluster", "--no-tpu-cluster")
            if has_value:
                problems.append(f"{name} takes no value")
        else:
            if not has_value:
                value = words[index] if index < len(words) else ""
                index += 1
            typed[argument] = _typed(argument, kind, value, problems)
    script = words[index] if index < len(words) else ""
    return Command("accelerate", tuple(words), typed, script, tuple(words[index + 1 :]), where, tuple(problems))


def _options() -> dict[str, str]:
    names = {}
    for argument, row in table("accelerate")["flags"].items():
        names[f"--{argument}"] = names[f"--{argument.replace('_', '-')}"] = argument
        for option in row[3] if len(row) > 3 else ():
            names[option] = argument
    names["--no_tpu_cluster"] = names["--no-tpu-cluster"] = "tpu_use_cluster"
    return names


def _typed(argument: str, kind: str, value: str, problems: list[str]) -> Any:
    if value.startswith("$") or "$" in value:
        return value  # the shell fills it
    choices = table("accelerate")["flags"][argument][2:3]
    if choices and choices[0] and value not in choices[0]:
        problems.append(f"--{argument} {value}: the choices are {', '.join(map(str, choices[0]))}")
    try:
        if kind in ("int", "float"):
            return {"int": int, "float": float}[kind](value)
    except ValueError:
        problems.append(f"--{argument} {value}: is no {'whole ' if kind == 'int' else ''}number")
        return None
    return bool(value) if kind == "bool" else value


def script_arguments(words: Sequence[str]) -> dict[str, Any]:
    """`--name value`, `--name=value` and lone `--name` of a script's own words; values as YAML-like scalars."""
    found: dict[str, Any] = {}
    index = 0
    while index < len(words):
        name, has_value, value = words[index].partition("=")
        index += 1
        if not name.startswith("--"):
            continue
        key = name[2:].replace("-", "_")
        if has_value:
            found[key] = scalar(value)
        elif index < len(words) and not _is_flag(words[index]) and not _WORDS_OF_ARRAY.fullmatch(words[index]):
            found[key] = scalar(words[index])
            index += 1
        else:
            found[key] = True
    return found


def _is_flag(word: str) -> bool:
    return word.startswith("--") or (word.startswith("-") and not word[1:2].isdigit() and len(word) > 1)


def scalar(text: str) -> Any:
    """A word of a command line as number, true or false, else the text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text) if len(text) <= 30 and text[:1] in "+-.0123456789" else text
        except ValueError:
            continue
    return text


def command_of_context(context: Context) -> Command | None:
    """The launch line that `--context` gives as "cli": whole, or from the launcher's flags on."""
    words = list(context.cli)
    if not words:
        return None
    return command_of(words if words[0].endswith(LAUNCHERS) else ["accelerate", "launch", *words], Location("--context"))


def flags_of(context: Context) -> dict[str, Any]:
    command = command_of_context(context)
    return dict(command.typed) if command and command.launcher == "accelerate" else {}


def ranks_of(command: Command) -> int | None:
    """The ranks that a launch line asks for, where it says so in numbers."""
    typed = command.typed
    if command.launcher == "accelerate":
        value = typed.get("num_processes")
        return value if type(value) is int and value > 0 else None
    processes, nodes = typed.get("nproc"), typed.get("nnodes", "1")
    if (
        isinstance(processes, str)
        and processes.isdecimal()
        and isinstance(nodes, str)
        and nodes.isdecimal()
        and len(processes + nodes) < 10
    ):
        return int(processes) * int(nodes) or None
    return None
