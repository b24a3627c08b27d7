# check/script.py without its comments
from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from trainwright.check.flags import SHELLS, command_of, is_wrapper, split
from trainwright.check.subject import Command
from trainwright.report import Location

ENDINGS = (".sh", ".bash", ".sbatch", ".slurm", ".pbs", ".job", ".lsf")
MAX_LINES = 20_000
_LONGEST = 65_536
_ASSIGN = re.compile(r"^(?:export\s+|declare\s+-x\s+)?([A-Za-z_]\w*)(\+?)=(\"[^\"]*\"|'[^']*'|[^\s;&|]*)")
_ARRAY = re.compile(r"^\s*(?:local\s+|declare\s+-a\s+)?([A-Za-z_]\w*)(\+?)=\((.*?)\)\s*$", re.DOTALL)
_OPENS = re.compile(r"^\s*(?:local\s+|declare\s+-a\s+)?[A-Za-z_]\w*\+?=\([^)]*$")
_TEXT_OPENS = re.compile(r"^\s*(?:export\s+|local\s+)?[A-Za-z_]\w*=\"[^\"]*$")
_WHOLE = re.compile(r"\"(\$\{(\w+)\[@\]\})\"")
_USE = re.compile(r"\$\{(\w+)(?:\[[@*]\])?(?::-([^}]{0,1000}))?\}|\$(\w+)")
_INNER = re.compile(r"(?:^|[\s/])(?:ba|z|da|k)?sh\s+(?:-\w+\s+)*-\w*c\s+([\"'])")
_DEPTH = 4
_OPENING, _CLOSING = ("if", "case", "for", "while", "until", "select"), ("fi", "esac", "done")
_HERE = re.compile(r"\$\(pwd\)|`pwd`|\$PWD\b|\$\{PWD\}")
_PRODUCT = re.compile(r"\$\(\(([\w\s*${}]{1,200})\)\)")
_SUBSTITUTED = re.compile(r"\$\([^()]{0,1000}\)|`[^`]{0,1000}`")
_HEREDOC = re.compile(r"<<-?\s*[\"']?(\w+)[\"']?")
_COUNT = re.compile(r"^#(?:SBATCH|PBS|BSUB)\s+(.*)$")


@dataclass(slots=True, eq=False, repr=False)
class Script:

    path: str
    commands: list[Command] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    places: dict[str, Location] = field(default_factory=dict)
    nodes: int | None = None
    gpus_per_node: int | None = None
    tasks_per_node: int | None = None
    gpu_type: str = ""
    folder: str = ""
    more_devices: bool = False


def is_script(path: str, text: str) -> bool:
    first = text[:200].split("\n", 1)[0]
    return path.endswith(ENDINGS) or (first.startswith("#!") and re.search(r"\b(ba|da|z|k)?sh\b", first) is not None)


def read_script(path: str, text: str) -> Script:
    script = Script(path)
    known = Known()
    for number, line in _lines(text):
        where = Location(path, number, 1)
        if line.lstrip().startswith("#"):
            _directive(script, line.strip())
            known.update(_of_scheduler(script))
            continue
        for part in _parts(_answered(line, known)):
            first = part.split(None, 1)[0]
            known.depth = max(known.depth - (first in _CLOSING), 0)
            _part(script, part, known, where)
            known.depth += first in _OPENING
    for name in known.varied & {*script.environment}:
        script.environment[name] = f"${name}"
    return script


class Known(dict[str, str]):

    def __init__(self) -> None:
        super().__init__()
        self.depth = 0
        self.varied: set[str] = set()

    def assign(self, name: str, value: str) -> None:
        if self.depth and self.get(name, value) != value:
            self.varied.add(name)
            del self[name]
        elif not (self.depth and name in self.varied):
            self.varied.discard(name)
            self[name] = value


def _of_scheduler(script: Script) -> dict[str, str]:
    asked = {
        "SLURM_NNODES": script.nodes,
        "SLURM_JOB_NUM_NODES": script.nodes,
        "SLURM_GPUS_ON_NODE": script.gpus_per_node,
        "SLURM_NTASKS_PER_NODE": script.tasks_per_node,
    }
    return {name: str(count) for name, count in asked.items() if count}


def _lines(text: str) -> Iterator[tuple[int, str]]:
    buffer, start, until, closes = "", 0, "", ""
    for number, line in enumerate(text.split("\n")[:MAX_LINES], start=1):
        if closes.startswith("-c"):
            buffer = buffer[:-1] + line if buffer.endswith("\\") else f"{buffer} ; {line}"
            if closes[2] in line or len(buffer) > _LONGEST:
                yield start, buffer
                buffer, start, closes = "", 0, ""
            continue
        if closes:
            buffer += " " + (line.split(" #")[0].rstrip().removesuffix("\\") if not line.lstrip().startswith("#") else "")
            if closes in line or len(buffer) > _LONGEST:
                yield start, buffer
                buffer, start, closes = "", 0, ""
            continue
        if not buffer and (_OPENS.match(line) or _TEXT_OPENS.match(line)):
            buffer, start, closes = line.rstrip().removesuffix("\\"), number, ")" if _OPENS.match(line) else '"'
            continue
        if until:
            until = "" if line.strip() == until else until
            continue
        start = start or number
        if line.rstrip().endswith("\\"):
            buffer += line.rstrip()[:-1] + " "
            continue
        whole, at, buffer, start = buffer + line, start, "", 0
        if (inner := _INNER.search(whole)) and whole.count(inner[1], inner.end()) == 0:
            buffer, start, closes = whole, at, "-c" + inner[1]
            continue
        if match := _HEREDOC.search(whole):
            until = match[1]
        yield at, whole
    if buffer:
        yield start, buffer


def _parts(line: str) -> list[str]:
    parts, part, quote = [], "", ""
    index = 0
    while index < len(line):
        letter = line[index]
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in ";|&" and line[index - 1 : index] not in (">", "<", "\\"):
            parts.append(part)
            part = ""
            index += 1
            continue
        part += letter
        index += 1
    return [p.strip() for p in [*parts, part] if p.strip()]


def _part(script: Script, part: str, known: Known, where: Location, depth: int = 0) -> None:
    if array := _ARRAY.match(part):
        before = known.get(array[1], "") + " " if array[2] else ""
        known.assign(array[1], before + _fill(" ".join(array[3].split()), known))
        return
    rest = part
    for word in ("if ", "then ", "do ", "else ", "time ", "exec "):
        rest = rest[len(word) :].lstrip() if rest.startswith(word) else rest
    while match := _ASSIGN.match(rest):
        name, value = match[1], _fill(match[3].strip("\"'"), known)
        value = f"{known.get(name, '')}{value}"[:65536] if match[2] else value
        after = rest[match.end() :].lstrip()
        known.assign(name, value)
        if rest.startswith(("export", "declare")) or after:
            script.environment[name] = value
            script.places[name] = where
        rest = after
    if not rest:
        return
    words = split(_fill(rest, known))
    if words[:1] == ["cd"] and len(words) > 1 and "$" not in words[1]:
        script.folder = words[1]
    elif words[:1] == ["export"]:
        for name in words[1:]:
            if name in known or name in known.varied:
                script.environment[name] = known.get(name, f"${name}")
                script.places[name] = where
    elif inner := _inner(words) if depth < _DEPTH else "":
        for each in _parts(inner):
            _part(script, each, known, where, depth + 1)
    elif command := command_of(words, where):
        script.commands.append(command)


def _inner(words: list[str]) -> str:
    if words[:1] == ["eval"]:
        return " ".join(words[1:])
    if not words or not is_wrapper(words[0]):
        return ""
    for index, word in enumerate(words[:-1]):
        if word.startswith("-") and not word.startswith("--") and word.endswith("c") and _shell_before(words, index):
            return words[index + 1]
    return ""


def _shell_before(words: list[str], index: int) -> bool:
    while index > 0 and words[index].startswith("-"):
        index -= 1
    return words[index].rpartition("/")[2] in SHELLS


def _fill(text: str, known: dict[str, str]) -> str:

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        found = known.get(name, match[2] if match[2] is not None else match[0])
        return found if len(found) < 4096 else match[0]

    return _USE.sub(value, _WHOLE.sub(lambda match: match[1] if match[2] in known else match[0], text))[:65536]


def _answered(line: str, known: dict[str, str]) -> str:
    line = _HERE.sub(".", line) if "PWD" in line or "pwd" in line else line
    line = _PRODUCT.sub(lambda match: _product(match, known), line) if "$((" in line else line
    for _ in range(3) if "$(" in line or "`" in line else ():
        line = _SUBSTITUTED.sub("$_", line)
    return line


def _product(match: re.Match[str], known: dict[str, str]) -> str:
    factors = [known.get(name := word.strip(" \t${}"), name) for word in match[1].split("*")]
    if not all(factor.isdecimal() and len(factor) < 9 for factor in factors):
        return "$_"
    total = 1
    for factor in factors[:4]:
        total *= int(factor)
    return str(total)


def _directive(script: Script, line: str) -> None:
    match = _COUNT.match(line)
    if not match:
        return
    text = match[1]
    script.more_devices |= not line.startswith("#SBATCH") or re.search(r"--exclusive(?!=)|\bhetjob\b", text) is not None
    if found := re.search(r"(?:--gpus-per-node[= ]|--gpus[= ]|--gres[= ]gpu:)([A-Za-z][\w.-]*)", text):
        script.gpu_type = found[1]
    for pattern, name in (
        (r"(?:--nodes[= ]|-N\s*)(\d+)\b", "nodes"),
        (r"--gpus-per-node[= ](?:\w+:)?(\d+)", "gpus_per_node"),
        (r"--gres[= ]gpu:(?:[\w.-]+:)?(\d+)", "gpus_per_node"),
        (r"--ntasks-per-node[= ](\d+)", "tasks_per_node"),
        (r"select=(\d+)", "nodes"),
        (r"ngpus=(\d+)", "gpus_per_node"),
        (r"mpiprocs=(\d+)", "tasks_per_node"),
    ):
        if found := re.search(pattern, text):
            setattr(script, name, int(found[1][:9]))
