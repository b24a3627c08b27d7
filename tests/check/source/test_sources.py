"""Sources taken apart: names, values, conditions on ranks, options; hostile sources; facts and files that a source gives its job."""

from __future__ import annotations

import ast
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.check.source.facts import facts_of, references_of
from trainwright.check.source.module import Module, take_apart
from trainwright.check.source.options import options_of
from trainwright.check.source.parse import parse_source
from trainwright.check.source.ranks import rank_sign
from trainwright.check.source.values import UNKNOWN, Symbol, Unknown
from trainwright.cli import main
from trainwright.document import DocumentError
from trainwright.errors import Exit

Check = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Check:
    """Writes files (`job__sh="..."`) and judges the first."""
    monkeypatch.chdir(tmp_path)

    def run(*options: str, **files: str) -> tuple[int, dict[str, Any]]:
        names = [name.replace("__", ".") for name in files]
        for name, text in zip(names, files.values(), strict=True):
            Path(name).write_text(text)
        code = main(["check", names[0], *options, "--format", "json", "--limit", "0"])
        return code, json.loads(capsys.readouterr().out)

    return run


def module(text: str) -> Module:
    return take_apart(ast.parse(text))


def fired(envelope: dict[str, Any], above: str = "info") -> set[str]:
    return {finding["rule"] for finding in envelope["findings"] if finding["severity"] != above}


# --- values and names ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2 * 3", 7),
        ("-2 ** 4", -16),
        ("'a' + 'b'", "ab"),
        ("[1, 2, (3,)]", [1, 2, [3]]),
        ("{'a': 1, 'b': None}", {"a": 1, "b": None}),
        ("dict(a=1, b=True)", {"a": 1, "b": True}),
        ("not True", False),
        ("N * 2", 16),
        ("torch.bfloat16", Symbol("torch.bfloat16")),
        ("Strategy.FULL", Symbol("torch.distributed.fsdp.ShardingStrategy.FULL")),
        ("f(1)", UNKNOWN),
        ("TWICE", UNKNOWN),
        ("1 / 0", UNKNOWN),
        ("10 ** 10 ** 10", UNKNOWN),
        ("'a' * 10 ** 9", UNKNOWN),
        ("f'{x}'", UNKNOWN),
    ],
)
def test_what_an_expression_is_worth(text: str, value: Any) -> None:
    source = "import torch\nfrom torch.distributed.fsdp import ShardingStrategy as Strategy\nN = 8\nTWICE = 1\nTWICE = 2\n"
    node = ast.parse(text, mode="eval").body
    assert module(source).value(node) == value


@settings(max_examples=40)
@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
)
def test_a_literal_is_worth_itself(value: Any) -> None:
    assert module("").value(ast.parse(repr(value), mode="eval").body) == value


def test_unknown_is_no_value() -> None:
    assert not UNKNOWN and repr(UNKNOWN) == "unknown" and isinstance(UNKNOWN, Unknown)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import torch.distributed as dist\ndist.barrier()", "torch.distributed.barrier"),
        ("from torch import distributed\ndistributed.barrier()", "torch.distributed.barrier"),
        ("import torch\ntorch.distributed.barrier()", "torch.distributed.barrier"),
        ("from accelerate import Accelerator as A\na = A()\na.prepare()", "accelerate.Accelerator().prepare"),
        (
            "from accelerate import Accelerator\nclass T:\n  def f(self):\n    self.a = Accelerator()\n    self.a.prepare()",
            "accelerate.Accelerator().prepare",
        ),
        ("import deepspeed\ne, _, _ = deepspeed.initialize()\ne.step()", "deepspeed.initialize()[0].step"),
        ("import accelerate\ndef f(accelerator):\n  accelerator.prepare()", "accelerate.Accelerator().prepare"),
        ("a = b = A()\na.f()", "a.f"),
    ],
)
def test_calls_have_their_full_names(text: str, name: str) -> None:
    assert module(text).calls[-1].name == name


# --- ranks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("test", "holds", "sign"),
    [
        ("rank == 0", True, 1),
        ("rank != 0", True, -1),
        ("rank == 0", False, -1),
        ("not rank", True, 1),
        ("rank > 0", True, -1),
        ("rank >= 0", True, 0),
        ("rank != -1", True, 0),
        ("local_rank in [-1, 0]", True, 1),
        ("args.local_rank not in (-1, 0)", True, -1),
        ("dist.get_rank() == 0", True, 1),
        ("0 == dist.get_rank()", True, 1),
        ("dist.get_rank(group) == 0", True, 0),
        ("int(os.environ['RANK']) == 0", True, 1),
        ("accelerator.is_main_process", True, 1),
        ("not accelerator.is_local_main_process", True, -1),
        ("trainer.is_world_process_zero()", True, 1),
        ("master_process", True, 1),
        ("rank == 0 and step % 100 == 0", True, 1),
        ("rank == 0 and step % 100 == 0", False, 0),
        ("rank == 0 and dist.is_initialized()", False, -1),
        ("not dist.is_initialized() or rank == 0", True, 1),
        ("save_everywhere or rank == 0", True, 0),
        ("world_size == 1 or rank == 0", True, 1),
        ("world_size > 1", True, 0),
        ("main_proc", True, 1),
        ("step == 0", True, 0),
        ("lora_rank == 0", True, 0),
    ],
)
def test_conditions_that_tell_ranks_apart(test: str, holds: bool, sign: int) -> None:
    assert rank_sign(module("main_proc = rank == 0"), ast.parse(test, mode="eval").body, holds) == sign


MEET = {
    "a pair of conditions": "if rank != 0:\n    dist.barrier()\nload()\nif rank == 0:\n    dist.barrier()",
    "both branches": "if rank == 0:\n    x = 1\n    dist.broadcast(x, 0)\nelse:\n    dist.broadcast(y, 0)",
    "a group": "if rank == 0:\n    dist.all_reduce(x, group=g)",
    "point to point": "if rank == 0:\n    dist.send(x, 1)\nelse:\n    dist.recv(x, 0)",
    "before leaving": "if rank != 0:\n    dist.barrier()\n    return\nsave()\ndist.barrier()",
    "one condition, both ways": "if verbose or rank != 0:\n    dist.all_reduce(x)\n    return\ndist.all_reduce(x)",
    "some steps": "if rank == 0 and verbose:\n    return\ndist.barrier()",
    "an error": "try:\n    f()\nexcept OSError:\n    if rank == 0:\n        dist.barrier()",
}
HANG = {
    "under a condition": "if rank == 0:\n    dist.barrier()",
    "behind a return": "if rank != 0:\n    return\nsave()\ndist.barrier()",
    "through a name": "main = rank == 0\nif main:\n    dist.all_reduce(x)",
    "nested": "if rank == 0:\n    for x in y:\n        if x:\n            dist.all_reduce(x)",
    "in a function": "if rank == 0:\n    sync()",
}


def _in_function(body: str) -> str:
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    return f"import torch.distributed as dist\n\ndef sync():\n    dist.barrier()\n\ndef run(rank, verbose):\n{lines}"


@pytest.mark.parametrize("body", MEET.values(), ids=MEET)
def test_collectives_that_meet(check: Check, body: str) -> None:
    assert "SRC001" not in fired(check(train__py=_in_function(body))[1])


@pytest.mark.parametrize("body", HANG.values(), ids=HANG)
def test_collectives_that_hang(check: Check, body: str) -> None:
    code, envelope = check(train__py=_in_function(body))
    assert "SRC001" in fired(envelope) and code == Exit.FINDINGS


# --- the job around a source -----------------------------------------------------------------------------------------

PARSER = """
import argparse

def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--mode", choices=["a", "b"])
    parser.add_argument("--backend", default="nccl")
    return parser.parse_args()

args = parse()
print(args.lr, args.steps, args.mode, args.backend)
"""


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("--steps 10", []),
        ("--steps 10 --lr=1e-4 --mode a", []),
        ("--st 10", []),
        ("--steps ten", ["--steps"]),
        ("--steps 10 --mode c", ["--mode"]),
        ("--lr 0.1", ["--steps"]),
        ("--steps 10 --learning-rate 1", ["--learning-rate"]),
        ("$ARGS", []),
        ("--steps 10 --lr -1e-3", []),
    ],
)
def test_launch_lines_against_the_parser(check: Check, words: str, found: list[str]) -> None:
    _, envelope = check(job__sh=f"torchrun --nproc_per_node 2 train.py {words}\n", train__py=PARSER)
    assert [f["path"] for f in envelope["findings"] if f["rule"] == "SRC012"] == found


def test_the_deepspeed_launcher_adds_a_flag(check: Check) -> None:
    assert "SRC012" in fired(check(job__sh="deepspeed train.py --steps 10\n", train__py=PARSER)[1])
    local = PARSER.replace('"--lr"', '"--local_rank", type=int)\n    parser.add_argument("--lr"')
    assert "SRC012" not in fired(check(job__sh="deepspeed train.py --steps 10\n", train__py=local)[1])


def test_a_default_of_the_parser_counts_where_the_launch_line_leaves_it(check: Check) -> None:
    source = PARSER + "import torch.distributed as dist\nimport torch\ntorch.xpu.set_device(0)\ndist.init_process_group(args.backend)\n"
    line = "torchrun --nproc_per_node 2 train.py --steps 10"
    assert "SRC009" in fired(check("--device", "xpu", job__sh=f"{line}\n", train__py=source)[1])
    assert "SRC009" not in fired(check("--device", "xpu", job__sh=f"{line} --backend xccl\n", train__py=source)[1])
    assert "SRC009" not in fired(check("--device", "xpu", train__py=source)[1]), "alone, the launch line is not known"


def test_parsers_that_cannot_be_seen_whole_are_left_alone() -> None:
    seen = options_of(module(PARSER))
    assert seen is not None and seen.whole and seen.namespaces == {"args"}
    for more in ("parser.parse_known_args()", "parser.add_argument(*names)", "other.add_options(parser)", "parser.add_subparsers()"):
        part = options_of(module(PARSER.replace("    return parser", f"    {more}\n    return parser")))
        assert part is not None and not part.whole, more
    assert options_of(module("import argparse\na = argparse.ArgumentParser()\nb = argparse.ArgumentParser()")) is None


def test_what_is_not_literal_is_told_as_not_checked(check: Check) -> None:
    source = "from accelerate import Accelerator\naccelerator = Accelerator(mixed_precision=choose())\n"
    assert {"name": "train.py:2", "reason": "mixed_precision of Accelerator() is not literal"} in check(train__py=source)[1]["not_checked"]


def test_facts_of_a_source() -> None:
    text = (
        "import torch, deepspeed\nfrom accelerate import Accelerator\nfrom transformers import LlamaForCausalLM, BitsAndBytesConfig\n"
        "quant = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_storage=torch.uint8)\n"
        "model = LlamaForCausalLM.from_pretrained(path, device_map='auto', torch_dtype=torch.float16)\n"
        "opt = torch.optim.SGD(model.parameters())\naccelerator = Accelerator(gradient_accumulation_steps=4)\n"
        "model, opt = accelerator.prepare(model, opt)\n"
    )
    assert dict(facts_of(module(text))) == {
        "gradient_accumulation_steps": 4,
        "trainer": False,
        "quantization": {"load_in_4bit": True, "bnb_4bit_quant_storage": "uint8"},
        "device_map": "auto",
        "torch_dtype": "float16",
        "model_class": "LlamaForCausalLM",
        "optimizer": "torch.optim.SGD",
    }


def test_a_source_names_and_holds_deepspeed_configs(check: Check) -> None:
    names = 'from transformers import TrainingArguments\narguments = TrainingArguments("out", deepspeed="ds.json")\n'
    assert [(r.target, r.reader) for r in references_of(module(names))] == [("ds.json", "transformers")]
    _, envelope = check(train__py=names, ds__json='{"zero_optimization": {"stage": 2, "overlap_com": true}}')
    assert "DS002" in fired(envelope) and {row["path"] for row in envelope["data"]["files"]} == {"train.py", "ds.json"}
    holds = (
        "import deepspeed\nCONFIG = {\n    'train_batch_size': 8,\n    'gradient_clipping': 1.0,\n"
        "    'zero_optimization': {'stage': 2, 'overlap_com': True},\n}\nengine, *_ = deepspeed.initialize(model=m, config=CONFIG)\n"
    )
    held = [f for f in check(train__py=holds)[1]["findings"] if f["rule"] == "DS002"]
    assert held and held[0]["where"].startswith("train.py")
    direct = holds.replace("CONFIG)", "{'train_batch_size': 8, 'gradient_clipping': 1.0,\n  'zero_optimization': {'stage': 9}})")
    places = [f["where"] for f in check(train__py=direct)[1]["findings"] if f["path"].startswith("zero_optimization.stage")]
    assert places and places[0].startswith("train.py:8:")


# --- hostile and foreign sources -------------------------------------------------------------------------------------

DEEP = {
    "brackets": "(" * 10_000 + ")" * 10_000,
    "unary": "-" * 10_000 + "1",
    "attributes": "a" + ".b" * 10_000,
    "calls": "a" + "()" * 10_000,
    "sums": "1" + "+1" * 10_000,
    "conditions": "if a:\n pass\n" + "elif a:\n pass\n" * 10_000,
    "lambdas": "lambda:" * 10_000 + "1",
    "subscripts": "a" + "[0]" * 10_000,
    "comparisons": "a" + "<a" * 10_000,
    "names": "a=" * 10_000 + "1",
    "blocks": "".join(" " * depth + "if rank == 0:\n" for depth in range(99)) + " " * 99 + "dist.barrier()\n",
    "data": "x = [" + "1," * 20_000 + "]",
    "statements": "f(x);" * 4_000,
}


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_nothing_nested_is_a_fault(check: Check, text: str) -> None:
    code, envelope = check(train__py=text)
    assert code in (Exit.OK, Exit.USAGE, Exit.FINDINGS)
    assert all(f["rule"] in ("DOC001", "SRC001") for f in envelope["findings"])


@pytest.mark.parametrize(
    "text",
    [
        'print "hello"\n',
        "try:\n    f()\nexcept IOError, e:\n    pass\n",
        "exec 'x = 1'\n",
        "x = 0777\n",
        "if a <> b:\n    pass\n",
        "raise E, 'no'\n",
    ],
)
def test_python_2_is_told_in_one_line(check: Check, text: str) -> None:
    code, envelope = check(train__py=text)
    assert code == Exit.USAGE
    (finding,) = envelope["findings"]
    assert finding["rule"] == "DOC001" and "Python 2" in finding["message"]


def test_binary_and_large_sources_are_refused(check: Check) -> None:
    with pytest.raises(DocumentError):
        parse_source("a\0b", "x.py")
    Path("large.py").write_text("x = 1\n" * 200_000)
    began = time.process_time()
    assert check("large.py", binary__py="\0\1\2")[0] == Exit.USAGE
    assert time.process_time() - began < 60


def test_a_source_is_never_run(check: Check) -> None:
    check(train__py="open('ran', 'w').write('x')\nimport os; os.mkdir('ran')\n")
    assert not Path("ran").exists()


@given(st.text(alphabet="abdirnk=0:()[]{}.,'\n #+-*/%!<>ftuo1", max_size=80))
def test_no_text_is_a_fault(text: str) -> None:
    try:
        tree = parse_source(text, "x.py")
    except DocumentError:
        return
    taken = take_apart(tree)
    options_of(taken)
    list(facts_of(taken))
    references_of(taken)
