"""Rules on a job as a whole: its launch lines and the environment set beside them."""

from __future__ import annotations

from collections.abc import Iterator

from trainwright.check.subject import Command, Job
from trainwright.report import Fix, Severity
from trainwright.rules import Hit, rule

_WORDS = ("true", "false", "1", "0", "yes", "no", "on", "off")


@rule(
    "JOB001",
    Severity.ERROR,
    Job,
    fails_at="launcher",
    checked="run",
    source="accelerate-1.15.0-launch",
    covers=("ACC-CLI-STORETRUE", "DYN-TYPO-CHOICE", "MEG-BOOL-CLI"),
)
def launch_line_misread(job: Job) -> Iterator[Hit]:
    """A launch line that accelerate launch reads otherwise than it was meant.

    A flag such as `--same_network` or `--use_fsdp` takes no value: a word behind it becomes the training script, and every later flag
    an argument of that script. `type=bool` flags of Megatron take any word for true. `--dynamo_backend torhchxla_trace_once`, the one
    spelling that the command line offers, is refused by the worker. Unknown flags and choices are refused at once, and so is a
    `--config_file` that is not there (judged of `--cli` alone: what a script names may lie elsewhere).

    Bad `job.sh`:

        accelerate launch --use_fsdp true --num_processes 4 train.py

    Good `job.sh`:

        accelerate launch --use_fsdp --num_processes 4 train.py
    """
    for command in job.commands:
        if command.launcher == "accelerate":
            yield from _misread(command)


def _misread(command: Command) -> Iterator[Hit]:
    for problem in command.problems:
        yield Hit(problem, command.where)
    if command.script.lower() in _WORDS:
        index = len(command.words) - len(command.script_words) - 1
        flag = command.words[index - 1] if index > 0 else ""
        message = f"{flag} takes no value: the word {command.script} becomes the training script, and all that follows its arguments"
        yield Hit(message, command.where, flag, Fix({flag: ""}, note=f"leave out {command.script}"))
    if command.typed.get("dynamo_backend") == "torhchxla_trace_once":
        yield Hit("--dynamo_backend torhchxla_trace_once: the worker knows torchxla_trace_once alone; name it in the file", command.where)
    for argument, value in command.typed.items():
        before = command.words[: len(command.words) - len(command.script_words)]
        if (
            argument.startswith("megatron_lm_")
            and value is True
            and any(w.lower() in ("false", "0", "no") for w in _after(before, argument))
        ):
            message = f"--{argument} false is true: any word is, leave the flag out"
            yield Hit(message, command.where, f"--{argument}", severity=Severity.WARNING, fails_at="never")


def _after(words: tuple[str, ...], argument: str) -> list[str]:
    """The values that stand behind a flag."""
    names = (f"--{argument}", f"--{argument.replace('_', '-')}")
    return [words[i + 1] for i, word in enumerate(words[:-1]) if word in names] + [
        w.partition("=")[2] for w in words if w.startswith(names) and "=" in w
    ]
