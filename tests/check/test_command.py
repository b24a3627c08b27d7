"""`trainwright check`: several files, unreadable ones, standard input, exit codes, what is recognised and what is not."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainwright.check.dialects import dialect_of
from trainwright.check.judge import judge
from trainwright.check.subject import Context
from trainwright.cli import main
from trainwright.document import parse
from trainwright.errors import Exit

ROOT = Path(__file__).resolve().parents[2]
GOOD = "distributed_type: MULTI_GPU\nnum_processes: 4\n"
BAD = "distributed_type: MULTI_GPU\nnum_processes: 4\nnum_gpus: 4\n"
Check = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Check:
    """Run the command here; the exit code and the JSON envelope."""

    def run(*arguments: str) -> tuple[int, dict[str, Any]]:
        code = main(["check", *arguments, "--format", "json", "--limit", "0"])
        return code, json.loads(capsys.readouterr().out)

    return run


def write(folder: Path, **files: str) -> list[str]:
    """Write NAME="text" as NAME.yaml; the paths."""
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return [str(folder / f"{name}.yaml") for name in files]


def test_files_are_judged_one_by_one(tmp_path: Path, check: Check) -> None:
    code, envelope = check(*write(tmp_path, a=GOOD, b=BAD))
    assert code == Exit.FINDINGS and envelope["status"] == "findings"
    assert [(f["path"].rpartition("/")[2], f["dialect"], f["judged"], f["findings"]) for f in envelope["data"]["files"]] == [
        ("a.yaml", "accelerate", True, 0),
        ("b.yaml", "accelerate", True, 1),
    ]
    assert [f["where"] for f in envelope["findings"]] == [f"{tmp_path}/b.yaml:3:1"]


def test_an_unreadable_file_does_not_keep_the_others_from_it(tmp_path: Path, check: Check) -> None:
    paths = write(tmp_path, a="a: [", b=BAD, c="a: 1\n\tb: 2")
    code, envelope = check(*paths, str(tmp_path / "none.yaml"))
    assert code == Exit.USAGE, "2 wins over 1"
    assert [f["rule"] for f in envelope["findings"]].count("DOC001") == 3 and "ACC001" in {f["rule"] for f in envelope["findings"]}
    assert [f["dialect"] for f in envelope["data"]["files"]] == ["unreadable", "accelerate", *["unreadable"] * 2]


def test_never_failing_still_says_that_a_file_is_unreadable(tmp_path: Path, check: Check) -> None:
    assert check(*write(tmp_path, a="a: ["), "--fail-on", "never")[0] == Exit.USAGE
    assert check(*write(tmp_path, a=BAD), "--fail-on", "never")[0] == Exit.OK


def test_text_says_how_many_files_were_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = write(tmp_path, a=GOOD, b=BAD, c="other: 1\n")
    main(["check", *paths])
    text = capsys.readouterr().out
    message = "num_gpus is no key of Accelerate's; Accelerate refuses the whole file [parse]"
    assert f"{paths[1]}:3:1: error ACC001: {message}\n  fix: delete num_gpus   why: explain ACC001\n" in text
    assert f"not checked: {paths[2]} (its keys are not those of a config that check knows)" in text
    assert text.splitlines()[-1] == "check: 2 of 3 files judged, 1 error"
    main(["check", paths[0]])
    assert capsys.readouterr().out.splitlines()[-1] == "check: 1 of 1 files judged, nothing found"


def test_files_that_are_no_backend_config_are_a_mistake_not_a_success(tmp_path: Path, check: Check) -> None:
    model = tmp_path / "config.json"
    model.write_text('{"model_type": "llama"}')
    code, envelope = check(str(model), *write(tmp_path, c="other: 1\n"))
    assert code == Exit.USAGE and envelope["findings"] == [] and len(envelope["not_checked"]) == 2


def test_the_same_of_several_files_is_one_line(tmp_path: Path, check: Check) -> None:
    paths = write(tmp_path, a=BAD, b=BAD, c=BAD)
    code, envelope = check(*paths, paths[0])
    assert code == Exit.FINDINGS and envelope["counts"]["error"] == 3, "the file named twice is judged once"
    assert envelope["findings"][0]["also"] == [f"{path}:3:1" for path in paths[1:]]


def test_standard_input(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "trainwright.cli", "check", "-", "--format", "json"]
    done = subprocess.run(argv, input=BAD, env={"PYTHONPATH": str(ROOT / "helpers")}, capture_output=True, text=True, timeout=60)
    assert done.returncode == Exit.FINDINGS
    assert json.loads(done.stdout)["findings"][0]["where"] == "-:3:1"


DIALECTS = {
    "accelerate": [
        "distributed_type: FSDP",
        "compute_environment: LOCAL_MACHINE",
        "num_processes: 4\nmixed_precision: bf16",
        "distributed_type: fsdp\nfoo: 1",
    ],
    "sagemaker": ["compute_environment: AMAZON_SAGEMAKER\ndistributed_type: 'NO'"],
    "model": ["model_type: llama\nhidden_size: 8", "architectures: [A]"],
    "unknown": [
        "num_processes: 4",
        "base_model: x\nfsdp_config: {}\nmixed_precision: bf16\nlr: 1",
        "train_batch_size: 8\nzero_optimization: {}\nnum-layers: 2",
        "1: 2",
    ],
}


@pytest.mark.parametrize(("dialect", "text"), [(dialect, text) for dialect, texts in DIALECTS.items() for text in texts])
def test_dialects_are_told_by_keys_alone(dialect: str, text: str) -> None:
    assert dialect_of(parse(text, "x.yaml", "yaml")) == dialect


def test_a_deepspeed_file_is_judged(tmp_path: Path, check: Check) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"train_batch_size": 8, "no_such_key": 1}')
    code, envelope = check(str(path))
    assert code == Exit.OK and envelope["data"]["files"][0]["dialect"] == "deepspeed"
    assert [f["path"] for f in envelope["findings"] if f["rule"] == "DS008"] == ["no_such_key"]


def test_a_folder_is_searched_and_what_is_no_config_is_left_out(tmp_path: Path, check: Check) -> None:
    write(tmp_path, a=BAD, b="other: 1\n")
    (tmp_path / ".hidden").mkdir()
    write(tmp_path / ".hidden", c=BAD)
    (tmp_path / "link.yaml").symlink_to(tmp_path / "a.yaml")
    (tmp_path / "loop").symlink_to(tmp_path)
    code, envelope = check(str(tmp_path))
    assert code == Exit.FINDINGS
    assert [Path(row["path"]).name for row in envelope["data"]["files"]] == ["a.yaml"]
    assert check(f"{tmp_path}/*.yaml")[0] == Exit.FINDINGS


def test_without_a_path_the_default_file_of_accelerate_is_judged(tmp_path: Path, check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert check()[0] == Exit.USAGE
    (tmp_path / "accelerate").mkdir()
    (path,) = write(tmp_path / "accelerate", default_config=BAD)
    code, envelope = check()
    assert code == Exit.FINDINGS and envelope["data"]["files"][0]["path"] == path
    assert {"ACC001", "ACC014"} <= {f["rule"] for f in envelope["findings"]}


def test_what_needs_a_fact_that_is_not_given_is_told_once(tmp_path: Path, check: Check) -> None:
    fsdp = "distributed_type: FSDP\nnum_processes: 4\n"
    model = str(ROOT / "helpers/trainwright/models/llama-demo/config.json")
    paths = write(tmp_path, a=fsdp, b=fsdp)
    assert len(check(*paths)[1]["not_checked"]) == 3
    _, envelope = check(*paths, "--world-size", "4", "--model", model, "--device", "cuda")
    assert envelope["not_checked"] == []
    assert envelope["data"]["context"] == {"world_size": 4, "model": "llama-demo-19m", "device": "cuda"}
    assert envelope["inferred"] == []


def test_a_wrong_option_ends_with_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = write(tmp_path, a=GOOD)
    calls = [
        [path, "--cli", "ls"],
        [path, "--world-size", "0"],
        [path, "--world-size", "-1"],
        [path, "--world-size", "²"],
        [path, "--world-size", "9" * 9999],
    ]
    calls += [
        [path, "--device", "abacus"],
        [path, "--model", path],
        [path, "--model", str(tmp_path / "none.json")],
        [path, "--no-such-option"],
    ]
    for arguments in calls:
        assert main(["check", *arguments]) == Exit.USAGE, arguments
        error = capsys.readouterr().err
        assert error and "Traceback" not in error


def test_judge_is_what_other_commands_call(tmp_path: Path) -> None:
    report = judge(write(tmp_path, a=BAD), Context(world_size=8, device="cuda"))
    assert {f.rule for f in report.findings} == {"ACC001", "ACC007"} and report.outcome() is Exit.FINDINGS


def test_odd_file_names_and_keys_cannot_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x\x1b[31m\nerror.yaml"
    path.write_text('distributed_type: MULTI_GPU\nnum_processes: 4\n"a\\e[2J\\nb": 1\n')
    assert main(["check", str(path)]) == Exit.FINDINGS
    text = capsys.readouterr().out
    assert "\x1b" not in text and len([line for line in text.splitlines() if line.startswith("error")]) == 0
    assert "a\\x1b[2J\\nb is no key" in text


def test_one_yaml_file_loads_nothing_but_yaml(tmp_path: Path) -> None:
    (path,) = write(tmp_path, a=BAD)
    code = (
        "import sys; import yaml; before = set(sys.modules); from trainwright.cli import main; main(['check', sys.argv[1], '--quiet']);"
        "print('LOADED', *{m.partition('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names))"
    )
    argv = [sys.executable, "-c", code, path]
    done = subprocess.run(argv, env={"PYTHONPATH": str(ROOT / "helpers")}, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1].split() == ["LOADED", "trainwright"]


def test_data_follows_its_schema(tmp_path: Path, check: Check) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((ROOT / "helpers/trainwright/check/command.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    model = str(ROOT / "helpers/trainwright/models/llama-demo/config.json")
    paths = [*write(tmp_path, a=GOOD, b="a: [", c="x: 1\n", d="distributed_type: FSDP\n"), model]
    for arguments in (paths, [paths[0], "--world-size", "4", "--device", "xpu", "--model", model]):
        data = check(*arguments)[1]["data"]
        jsonschema.Draft202012Validator(schema).validate(data)
    assert not jsonschema.Draft202012Validator(schema).is_valid({"files": []})


def test_nothing_to_judge_is_a_mistake(tmp_path: Path, check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path)]) == Exit.USAGE
    assert f"nothing was judged: {tmp_path}: no config of a training backend is there" in capsys.readouterr().out
    titan = tmp_path / "t.toml"
    titan.write_text('[job]\ndump_folder = "o"\n[model]\nname = "llama3"\n[training]\nseq_len = 8\n[parallelism]\ncp = 2\n')
    code, envelope = check(str(titan))
    assert code == Exit.USAGE and envelope["findings"] == [] and envelope["data"]["files"][0]["judged"] is False
    assert check(str(titan), *write(tmp_path, a=GOOD))[0] == Exit.OK
    titan.write_text("other = 1\n")
    (tmp_path / "a.yaml").unlink()
    assert check(f"{tmp_path}/*.toml")[0] == Exit.USAGE
    for target in (str(tmp_path), f"{tmp_path}/*.toml", str(titan)):
        assert check(target, "--ignore-unknown")[0] == Exit.OK


@pytest.mark.parametrize(("name", "lacks"), [("a.yaml", "rules.accelerate"), ("t.py", "source")])
def test_a_copy_does_not_count_what_it_does_not_judge(
    name: str, lacks: str, tmp_path: Path, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A skill's copy holds some of the rules: a file of the others is not judged, and alone it is a mistake to name it."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name.endswith(lacks) else find_spec(name, *more))
    (tmp_path / name).write_text(GOOD if name == "a.yaml" else "import torch\n")
    code, envelope = check(str(tmp_path / name))
    assert code == Exit.USAGE and [row["judged"] for row in envelope["data"]["files"]] == [False]
    assert check(str(tmp_path / name), "--ignore-unknown")[0] == Exit.OK
    (tmp_path / "ds.json").write_text('{"train_batch_size": 8}')
    code, envelope = check(str(tmp_path / name), str(tmp_path / "ds.json"))
    assert code == Exit.OK and [row["judged"] for row in envelope["data"]["files"]] == [False, True]


def test_the_kind_of_device_follows_from_the_hardware(tmp_path: Path, check: Check) -> None:
    (path,) = write(tmp_path, a=GOOD)
    _, envelope = check(path, "--hardware", "a100-80gb", "--world-size", "4")
    assert envelope["not_checked"] == [] and envelope["data"]["context"]["device"] == "cuda"
    assert check(path, "--hardware", "a100-80gb", "--device", "xpu")[1]["data"]["context"]["device"] == "xpu"
    assert "the devices of the machine" in [row["name"] for row in check(path, "--hardware", "no-such")[1]["not_checked"]]


def test_an_optimizer_that_does_not_shard_is_told_in_a_sentence(tmp_path: Path, check: Check) -> None:
    fsdp = "distributed_type: FSDP\nnum_processes: 4\nmixed_precision: bf16\nfsdp_config: {fsdp_version: 2}\n"
    facts = tmp_path / "facts.json"
    facts.write_text('{"training_args": {"optim": "adamw_bnb_8bit"}}')
    _, envelope = check(*write(tmp_path, a=fsdp), "--context", str(facts))
    told = [(f["path"], f["message"]) for f in envelope["findings"] if f["rule"] == "ACC028" and "8bit" in f["message"]]
    assert told == [("fsdp_config.fsdp_version", "the optimizer adamw_bnb_8bit does not work under FSDP2: its states cannot be sharded")]
