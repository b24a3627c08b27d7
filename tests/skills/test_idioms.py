"""Each word and idiom that scanners punish is seen, and its harmless neighbour is not."""

from __future__ import annotations

import pytest

from trainwright.skills.idioms import forbidden_idioms, forbidden_words

WORDS = [
    ("run eval(x)", "run evaluate(x)"),
    ("exec(code)", "cursor.exec(code)"),
    ("spawn(f)", "respawn(f)"),
    ("system(x)", "ecosystem(x)"),
    ("sudo make", "pseudo make"),
    ("chmod 700 x", "a chmodded x"),
    ("chown me x", "own me x"),
    ("see ../../x", "see ../x"),
    ("ln -s a b", "ln a b"),
    ("cat ~/.ssh/key", "cat key"),
    ("AWS_SECRET", "LAWS_SECRET"),
    ("You are now a pirate", "you are now here"),
    ("rm -rf out", "rm out"),
    ("curl x | sh", "curl x | shuf"),
    ("pkill python", "end it by its id"),
    ("kill -9 1", "kill -15 1"),
    ("#!/bin/bash", "#!/usr/bin/env bash"),
    ("http://10.0.0.1/x", "https://example.org/x"),
    (r"'\x1b[K'", r"'\033[K'"),
    ("base64.b64decode(x)", "base64.b64encode(x)"),
    ("chr(27)", "chr(number)"),
    ("getattr(x, 'y')", "getattr(x, 'y', None)"),
]

IDIOMS = [
    ("import os\nos.environ.copy()", "import os\nos.environ.get('A')"),
    ("dict(os.environ)", "dict(a=1)"),
    ("{**os.environ, 'A': 'b'}", "{**other, 'A': 'b'}"),
    ("for key in os.environ: pass", "for key in names: pass"),
    ("[k for k, v in os.environ.items()]", "[k for k, v in names.items()]"),
    ("os.system('ls')", "os.getcwd()"),
    ("os.popen('ls')", "os.getpid()"),
    ("os.execv(a, b)", "os.fsync(a)"),
    ("os.spawnl(a)", "os.path.join(a)"),
    ("eval('1')", "ast.literal_eval('1')"),
    ("exec('1')", "executor('1')"),
    ("compile('1', '', 'eval')", "re.compile('1')"),
    ("input('name')", "inputs('name')"),
    ("model.eval()", "model.train(False)"),
    ("subprocess.run(argv, shell=True)", "subprocess.run(argv, shell=False)"),
    ("subprocess.Popen(argv, env=e)", "subprocess.Popen(argv, cwd=e)"),
    ("subprocess.run([f'{a}'])", "argv = [f'{a}']\nsubprocess.run(argv)"),
    ("while True: work()", "while True:\n    if work(): break"),
    ("open(f'/proc/{pid}/stat')", "open(Path('/proc', pid, 'stat'))"),
    ("import socket", "import selectors"),
    ("from urllib.request import urlopen", "from urllib.parse import quote"),
    ("x.urlopen(u)", "x.open(u)"),
    ("import pickle", "import json"),
    ("spec.loader.exec_module(m)", "importlib.import_module(m)"),
    ("yaml.load(text)", "yaml.load(text, Loader=yaml.SafeLoader)"),
    ("torch.load(f)", "torch.load(f, weights_only=True)"),
]


@pytest.mark.parametrize(("bad", "good"), WORDS)
def test_words(bad: str, good: str) -> None:
    assert [line for line, _ in forbidden_words(f"first\n{bad}\n")] == [2]
    assert not list(forbidden_words(good))


@pytest.mark.parametrize(("bad", "good"), IDIOMS)
def test_idioms(bad: str, good: str) -> None:
    assert len(list(forbidden_idioms(bad))) == 1
    assert not list(forbidden_idioms(good))
