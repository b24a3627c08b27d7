# cli.py without its comments
from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn, TextIO

from trainwright.errors import Exit, UserError
from trainwright.report import Finding, Location, Report, Severity, printable
from trainwright.version import VERSION


@dataclass(frozen=True, slots=True)
class Command:

    name: str
    face: str
    summary: str
    skills: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()


_STRATEGY, _BACKENDS, _CODE, _MEND, _PLAN, _RUN, _DEBUG, _SCALING = (
    "distributed-strategy",
    "distributed-training-backends",
    "training-code-checks",
    "mend-training-configs",
    "choose-parallel-training-plan",
    "run-distributed-training",
    "debug-distributed-training",
    "scaling-and-isoflop",
)
_CHECKING = (_BACKENDS, _CODE, _MEND)
_JUDGING = (_STRATEGY, _BACKENDS, _CODE, _PLAN, _DEBUG)
COMMANDS = {
    command.name: command
    for command in (
        Command("check", "trainwright.check.command", "are these config files right, judged together as one job", _CHECKING),
        Command("explain", "trainwright.explain", "the page of a rule: why it matters, a bad and a good example", _JUDGING),
        Command("rules", "trainwright.rules_list", "every rule with its severity, source and the traps it covers", _JUDGING),
        Command("estimate", "trainwright.advise.estimate", "the memory ledger per rank of each strategy", (_STRATEGY,)),
        Command("advise", "trainwright.advise.command", "which strategy, why, how sure, and its config file", (_STRATEGY,)),
        Command("plan", "trainwright.plan.command", "which parallel plan: search, ledger, decision, emit", (_PLAN,)),
        Command("launch", "trainwright.launch.command", "run a job from its checked config, one folder per run", (_RUN,), ("run",)),
        Command("diagnose", "trainwright.diagnose.command", "what a run did: throughput, failing rank, out of memory", (_DEBUG,)),
        Command("doctor", "trainwright.doctor.command", "what is this machine and stack, what is wrong, what next", (_DEBUG,)),
        Command("isoflop", "trainwright.isoflop.command", "scaling studies: power, plan, launch, collect, fit, plot", (_SCALING,)),
        Command("demo", "trainwright.demo", "the main job, end to end, on this machine", extras=("run",)),
        Command("skills", "trainwright.skills.command", "sync, validate and manifest of this skill bundle"),
    )
}
EXIT_CODES = (
    "exit codes: 0 nothing found, 1 findings, 2 usage or unreadable input, 3 a package or part is missing, "
    "4 the job failed, 70 a fault of ours, 130 interrupted"
)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    if not arguments or arguments[0] in ("-h", "--help", "--version"):
        try:
            _show(f"trainwright {VERSION}\n" if arguments[:1] == ["--version"] else f"{overview()}\n")
        except UserError as problem:
            _say(f"trainwright: {problem}")
            return problem.exit
        return Exit.OK if arguments else Exit.USAGE
    command = COMMANDS.get(arguments[0])
    if command is None:
        _say(f"trainwright: there is no command {arguments[0][:80]!r}; the commands are {', '.join(here())}")
        return Exit.USAGE
    return _run(command, arguments[1:])


def here() -> dict[str, Command]:
    return {name: command for name, command in COMMANDS.items() if _holds(command.face)}


def _holds(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def overview() -> str:
    commands = here()
    width = max(map(len, commands))
    rows = "\n".join(f"  {c.name:{width}}  {c.summary}" for c in commands.values())
    return f"usage: trainwright COMMAND [options]\n\n{rows}\n\ntrainwright COMMAND --help shows the options\n{EXIT_CODES}"


class _AbsentError(UserError):

    exit = Exit.MISSING


def _face(command: Command) -> Any:
    try:
        return importlib.import_module(command.face)
    except ModuleNotFoundError as problem:
        if not f"{command.face}.".startswith(f"{problem.name}."):
            raise
    place = f"the skill {' or '.join(command.skills)} has it" if command.skills else "the repository and the installed package have it"
    raise _AbsentError(f"this copy of the library does not hold {command.name}; {place}")


def _run(command: Command, arguments: list[str]) -> int:
    options = argparse.Namespace(format="text", output="-", limit=20, fail_on=Severity.ERROR, quiet=False)
    try:
        face = _face(command)
        _parser(command, face).parse_args(arguments, namespace=options)
        report = _answer(command, face, options)
        code = report.outcome(options.fail_on)
        _emit(report, options)
        for note in report.notes if not options.quiet else []:
            _say(f"trainwright {command.name}: {note}")
    except _UsageError as problem:
        if _wants_json(arguments):
            options.format, options.output = "json", "-"
            _emit(Report(command.name, findings=[Finding("USAGE", Severity.ERROR, problem.message)], exit=Exit.USAGE), options)
        return Exit.USAGE
    except SystemExit as stop:
        return int(stop.code or 0)
    except UserError as problem:
        _say(f"trainwright {command.name}: {problem}")
        return problem.exit
    except KeyboardInterrupt:
        _say(f"trainwright {command.name}: interrupted")
        return Exit.INTERRUPTED
    except Exception as fault:
        return _fault(command, fault)
    return int(code)


def _answer(command: Command, face: Any, options: argparse.Namespace) -> Report:
    try:
        report: Report = face.run(options)
        return report
    except UserError as problem:
        if options.format == "text":
            raise
        _say(f"trainwright {command.name}: {problem}")
        where: Location | None = getattr(problem, "where", None)
        message = getattr(problem, "reason", str(problem))
        return Report(command.name, findings=[Finding(problem.rule, Severity.ERROR, message, where)], exit=problem.exit)


class _UsageError(SystemExit):

    def __init__(self, message: str) -> None:
        super().__init__(2)
        self.message = message


class _Parser(argparse.ArgumentParser):

    def error(self, message: str) -> NoReturn:
        text = printable(message.replace("\n", " "))[:500]
        try:
            super().error(text)
        except SystemExit:
            raise _UsageError(text) from None


def _wants_json(arguments: Sequence[str]) -> bool:
    return "--format=json" in arguments or "--format json" in " ".join(arguments)


class _Help(argparse.RawDescriptionHelpFormatter):

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_width())


def _width() -> int:
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns[:6]) > 0:
        return max(int(columns[:6]) - 2, 20)
    try:
        return max(os.get_terminal_size(sys.__stdout__.fileno()).columns - 2, 20)
    except (OSError, ValueError, AttributeError):
        return 78


def _parser(command: Command, face: Any) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=f"trainwright {command.name}",
        description=command.summary,
        epilog=f"{getattr(face, 'EXAMPLES', '').strip()}\n\n{EXIT_CODES}".strip(),
        formatter_class=_Help,
        allow_abbrev=False,
    )
    own = face.add_arguments(parser)
    for each in own if isinstance(own, list) else [parser]:
        _add_common(each, face)
    return parser


def _add_common(parser: argparse.ArgumentParser, face: Any) -> None:
    common = parser.add_argument_group("report")
    formats = vars(face).get("FORMATS", ("text", "json"))
    about = "text for people, json for programs" if "sarif" not in formats else "for people, programs, code scanning"
    common.add_argument("--format", choices=formats, default="text", help=f"{about} (default text)")
    common.add_argument("--output", metavar="FILE", default="-", help="write the whole report to FILE instead of stdout (-)")
    common.add_argument("--limit", type=_limit, metavar="N", default=20, help="show at most N findings, 0 for all (default 20)")
    common.add_argument(
        "--fail-on", type=_fail_on, metavar="LEVEL", default=Severity.ERROR, help="exit 1 from error (default), warning, info or never"
    )
    common.add_argument("--quiet", action="store_true", help="no progress and no notes on stderr, findings only in text")


def _limit(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a count of findings (0 shows all)")
    return int(text)


def _fail_on(text: str) -> Severity | None:
    levels: dict[str, Severity | None] = {s.word: s for s in Severity} | {"never": None}
    if text not in levels:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of error, warning, info, never")
    return levels[text]


def _emit(report: Report, options: argparse.Namespace) -> None:
    limit = options.limit if options.output == "-" else 0
    text = _text(report, options, limit)
    html = getattr(options, "html", None)
    if options.output == "-" and not (html and report.page):
        _show(text)
        return
    from trainwright.output import write_text

    if html and report.page:
        write_text(html, report.page)
    if options.output == "-":
        _show(text)
        return
    write_text(options.output, text)
    if not options.quiet:
        counts = ", ".join(f"{count} {word}{'s' * (count > 1)}" for word, count in report.counts().items() if count)
        _say(f"trainwright {report.command}: wrote {options.output}{counts and f' ({counts})'}")


def _text(report: Report, options: argparse.Namespace, limit: int) -> str:
    if options.format == "sarif" and importlib.util.find_spec("trainwright.sarif"):
        from trainwright.sarif import to_sarif

        return to_sarif(report, int(report.outcome(options.fail_on)))
    return report.to_json(options.fail_on, limit) if options.format == "json" else report.to_text(limit, options.quiet)


def _show(text: str) -> None:
    if sys.stdout is None:
        raise UserError("standard output is closed; give --output FILE")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop(sys.stdout)
    except OSError as problem:
        _drop(sys.stdout)
        raise UserError(f"cannot write to standard output: {problem.strerror or problem}; give --output FILE") from None


def _drop(stream: TextIO) -> None:
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _fault(command: Command, fault: Exception) -> int:
    import traceback

    try:
        os.getcwd()
    except OSError:
        _say(f"trainwright {command.name}: the current folder is gone; go to one that exists")
        return Exit.USAGE
    if os.environ.get("TRAINWRIGHT_DEBUG"):
        traceback.print_exception(fault)
    frame = traceback.extract_tb(fault.__traceback__)[-1]
    place = f"{os.path.basename(frame.filename)}:{frame.lineno}"
    _say(f"trainwright {command.name}: a fault of ours at {place}: {type(fault).__name__}: {fault}; TRAINWRIGHT_DEBUG=1 shows the trace")
    return Exit.FAULT


def _say(line: str) -> None:
    if sys.stderr is None:
        return
    try:
        print(printable(line.replace("\n", " ")), file=sys.stderr, flush=True)
    except OSError:
        _drop(sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
