"""Words and code idioms that scanners of skills punish: what they are, and what to write instead.

The words are those of one registry's first tier, the idioms those that the offline scanners were seen to score.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

_WORDS = (
    (r"(?<![\w.])eval\(", "a call of eval"),
    (r"(?<![\w.])exec\(", "a call of exec"),
    (r"(?<!\w)spawn\(", "a call of spawn"),
    (r"(?<!\w)system\(", "a call of system"),
    (r"\bsudo ", "a change of user"),
    (r"\b(?:chmod|chown) ", "a change of a file's rights"),
    (r"\.\./\.\./", "a path two folders up"),
    (r"\bln -s ", "a symbolic link"),
    (r"id_rsa|\.ssh/|\bAWS_[A-Z]", "the name of a secret"),
    (r"(?i)system prompt:|act as a\b|you are now a\b", "words of a prompt injection"),
    (r"\brm -rf", "a recursive deletion"),
    (r"curl[^\n|]*\|\s*(?:ba)?sh\b", "a download that is run"),
    (r"pkill|kill -9|killall", "an end for processes by name or without a chance"),
    (r"/bin/bash", "a shell by its path"),
    (r"\\x[0-9a-fA-F]{2}", "a hex escape, suspect where skills share it: write \\u00.., an octal escape or a name of codecs"),
    (r"base64\.b64decode|\bchr\(\d+\)", "a way to hide text, suspect where skills share it"),
    (r"getattr\s*\([^)]+,\s*['\"][^'\"]+['\"]\s*\)", "an attribute by a literal name, suspect where skills share it"),
    (r"https?://(?:\$\{|\d+\.\d+\.\d+\.\d+)", "an address out of a variable or of digits"),
)
WORDS = tuple((re.compile(pattern), meaning) for pattern, meaning in _WORDS)
ADDRESS = re.compile(r"https?://[^\s\"'`<>)\]]+")

_CALLS = {
    "eval": "use ast.literal_eval or a parser",
    "exec": "call the function itself",
    "compile": "only re.compile and torch.compile are fine",
    "input": "a script never asks; take an option",
    "__import__": "use importlib.import_module",
}
_METHODS = {
    ("os", "system"): "run an argv list",
    ("os", "popen"): "run an argv list",
    ("os", "fork"): "start a process with subprocess",
    ("os.environ", "copy"): "read named variables with os.environ.get",
    ("os.environ", "items"): "read named variables with os.environ.get",
    ("os.environ", "keys"): "read named variables with os.environ.get",
    ("os.environ", "values"): "read named variables with os.environ.get",
    ("yaml", "load"): "use yaml.safe_load",
    ("yaml", "unsafe_load"): "use yaml.safe_load",
}
_IMPORTS = {
    "socket": "there is no network here; ask torchrun for a port",
    "urllib.request": "there is no network here",
    "http.client": "there is no network here",
    "requests": "there is no network here",
    "ftplib": "there is no network here",
    "pickle": "untrusted pickles run code; use JSON",
    "marshal": "untrusted data; use JSON",
    "shelve": "untrusted data; use JSON",
}


def forbidden_words(text: str) -> Iterator[tuple[int, str]]:
    """Line and meaning of every forbidden word in prose or code."""
    for number, line in enumerate(text.split("\n"), start=1):
        for pattern, meaning in WORDS:
            if found := pattern.search(line):
                yield number, f"{found[0].strip()!r} is {meaning}"


def forbidden_idioms(source: str) -> Iterator[tuple[int, str]]:
    """Line and advice for every forbidden idiom of a Python source; raises SyntaxError where it does not parse."""
    for node in ast.walk(ast.parse(source)):
        for message in _judge(node):
            yield getattr(node, "lineno", 1), message


def _judge(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Call):
        yield from _judge_call(node)
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        yield from (f"import {name}: {_IMPORTS[name]}" for name in names if name in _IMPORTS)
    elif isinstance(node, ast.Dict):
        if any(key is None and _is_environ(value) for key, value in zip(node.keys, node.values, strict=True)):
            yield "{**os.environ}: set the variables in place and restore them"
    elif isinstance(node, ast.While) and ast.unparse(node.test) in ("True", "1"):
        if not any(isinstance(inner, (ast.Break, ast.Return, ast.Raise)) for inner in ast.walk(node)):
            yield "a loop without an end in sight: let its condition say when it ends"
    elif isinstance(node, (ast.For, ast.comprehension)) and _is_environ(node.iter):
        yield "a loop over os.environ: read named variables with os.environ.get"


def _judge_call(call: ast.Call) -> Iterator[str]:
    name = ast.unparse(call.func)
    owner, _, method = name.rpartition(".")
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    if name in _CALLS:
        yield f"{name}(...): {_CALLS[name]}"
    if (owner, method) in _METHODS and not (name == "yaml.load" and "Loader" in keywords):
        yield f"{name}(...): {_METHODS[owner, method]}"
    if owner == "os" and method.startswith(("exec", "spawn")):
        yield f"{name}(...): use subprocess with an argv list"
    if owner and method == "eval":
        yield f"{name}(): use model.train(False)"
    if method in ("urlopen", "exec_module"):
        yield f"{name}(...): neither network nor loading code by path"
    if name in ("dict", "list", "set", "sorted", "tuple") and call.args and _is_environ(call.args[0]):
        yield f"{name}(os.environ): read named variables with os.environ.get"
    if name == "torch.load" and ast.unparse(keywords.get("weights_only", ast.Constant(False))) != "True":
        yield "torch.load without weights_only=True"
    if name == "open" and call.args and ast.unparse(call.args[0])[:3] in ("f'/", 'f"/'):
        yield "open of an f-string: build the path with pathlib.Path first"
    if owner == "subprocess":
        yield from _judge_subprocess(call, keywords)


def _judge_subprocess(call: ast.Call, keywords: dict[str | None, ast.expr]) -> Iterator[str]:
    if "shell" in keywords and ast.unparse(keywords["shell"]) != "False":
        yield "shell=True: run an argv list"
    if "env" in keywords:
        yield "env= of a subprocess: set os.environ in place and restore it"
    if any(isinstance(part, ast.JoinedStr) for argument in call.args for part in ast.walk(argument)):
        yield "an f-string inside a subprocess call: build argv in a variable first"


def _is_environ(node: ast.expr) -> bool:
    return ast.unparse(node) in ("os.environ", "environ")
