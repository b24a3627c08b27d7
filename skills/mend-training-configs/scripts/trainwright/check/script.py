# helpers/trainwright/check/script.py without its comments
from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from trainwright.check.flags import command_of, split
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
_USE = re.compile(r"\$\{(\w+)(?:\[[@*]\])?(?::-([^}]*))?\}|\$(\w+)")
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


def is_script(path: str, text: str) -> bool:
    first = text[:200].split("\n", 1)[0]
    return path.endswith(ENDINGS) or (first.startswith("#!") and re.search(r"\b(ba|da|z|k)?sh\b", first) is not None)


def read_script(path: str, text: str) -> Script:
    script = Script(path)
    known: dict[str, str] = {}
    for number, line in _lines(text):
        where = Location(path, number, 1)
        if line.lstrip().startswith("#"):
            _directive(script, line.strip())
            continue
        for part in _parts(line):
            _part(script, part, known, where)
    return script


def _lines(text: str) -> Iterator[tuple[int, str]]:
    buffer, start, until, closes = "", 0, "", ""
    for number, line in enumerate(text.split("\n")[:MAX_LINES], start=1):
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


def _part(script: Script, part: str, known: dict[str, str], where: Location) -> None:
    if array := _ARRAY.match(part):
        before = known.get(array[1], "") + " " if array[2] else ""
        known[array[1]] = before + _fill(" ".join(array[3].split()), known)
        return
    rest = part
    for word in ("if ", "then ", "do ", "else ", "time ", "exec "):
        rest = rest[len(word) :].lstrip() if rest.startswith(word) else rest
    while match := _ASSIGN.match(rest):
        name, value = match[1], _fill(match[3].strip("\"'"), known)
        value = f"{known.get(name, '')}{value}"[:65536] if match[2] else value
        after = rest[match.end() :].lstrip()
        known[name] = value
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
            if name in known:
                script.environment[name] = known[name]
                script.places[name] = where
    elif command := command_of(words, where):
        script.commands.append(command)


def _fill(text: str, known: dict[str, str]) -> str:

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        found = known.get(name, match[2] if match[2] is not None else match[0])
        return found if len(found) < 4096 else match[0]

    return _USE.sub(value, _WHOLE.sub(lambda match: match[1] if match[2] in known else match[0], text))[:65536]


def _directive(script: Script, line: str) -> None:
    match = _COUNT.match(line)
    if not match:
        return
    text = match[1]
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
