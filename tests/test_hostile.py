"""What a hostile trial found, one test each: bounds that must hold, links that must not be followed, streams that may be gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainwright import probe
from trainwright.cli import main
from trainwright.document import DocumentError, parse
from trainwright.output import write_text
from trainwright.presets import preset_path

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "helpers" / "trainwright" / "models" / "llama-demo" / "config.json"
LLAMA_7B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}
FSDP = "distributed_type: FSDP\nnum_processes: {ranks}\nfsdp_config:\n  fsdp_version: 2\n"


def test_an_alias_bomb_behind_byte_order_marks_is_bounded() -> None:
    """A line that starts with U+FEFF is a comment to libyaml and a key to PyYAML: the bound is PyYAML's own."""
    levels = ["a: 1", "\ufeff#a: &a [x,x,x,x,x,x,x,x,x]"]
    levels += [f"\ufeff#{n}: &{n} [{','.join([f'*{last}'] * 9)}]" for last, n in zip("abcdefgh", "bcdefghi", strict=True)]
    with pytest.raises(DocumentError, match="values once its aliases are expanded"):
        parse("\n".join(levels) + "\n", "x.yaml", "yaml")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 0x" + "f" * 5000 + "\n"),
        ("a.yaml", "distributed_type: FSDP\nnum_processes: '" + "9" * 5000 + "'\n"),
        ("a.yaml", "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: '" + "9" * 5000 + "'\n"),
        ("a.yaml", "distributed_type: FSDP\n? 0x" + "f" * 5000 + "\n: 1\n"),
        ("a.yaml", "distributed_type: FSDP\nnum_processes: " + ":".join("1" * 20000) + "\n"),
        ("a.json", json.dumps({"distributed_type": "FSDP", **{f"k{n}": n for n in range(60_000)}})),
        ("a.json", json.dumps({"distributed_type": "x" * 1_000_000})),
    ],
)
def test_absurd_numbers_and_counts_are_judged_or_refused(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert main(["check", str(tmp_path / name), "--output", str(tmp_path / "out")]) in (1, 2)


LONG = "x" * 5000


@pytest.mark.parametrize("path", [LONG, f"{LONG}/{LONG}.json", f"{LONG}.safetensors"])
@pytest.mark.parametrize(
    "line",
    [
        ["estimate", "--devices", "8", "--model"],
        ["diagnose"],
        ["check"],
        ["doctor", "--from"],
        ["doctor", "--python"],
        ["launch", "--model", "tiny", "--run-dir", "out", "--backend-config"],
        ["launch", "--model", "tiny", "--backend-config", "FSDP", "--nproc", "1", "--execute", "--run-dir"],
        ["advise", "--model", "tiny", "--devices", "1", "--memory", "1GiB", "--emit"],
        ["demo", "--out"],
    ],
    ids=lambda line: " ".join(line),
)
def test_a_path_that_no_system_takes_is_one_line(
    line: list[str], path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FSDP").write_text("distributed_type: MULTI_GPU\nuse_cpu: true\nnum_processes: 1\n")
    assert main([*line, path]) in (1, 2)
    said = capsys.readouterr()
    assert "a fault of ours" not in said.err + said.out and said.err.count("\n") <= 1 and len(said.err) < 40_000


@pytest.mark.parametrize("name", [LONG, "x\0y", ".", ""])
def test_an_index_may_name_any_file(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(Path(preset_path("tiny")).read_text())
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"a": name}}))
    assert main(["estimate", "--model", str(path), "--devices", "8", "--output", str(tmp_path / "out")]) == 0


def test_a_planted_link_is_not_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for pid in range(os.getpid(), os.getpid() + 20):
        (tmp_path / f".out.txt.{pid}.partial").symlink_to(victim)
    write_text(tmp_path / "out.txt", "report")
    assert victim.read_text() == "mine" and not (tmp_path / "out.txt").is_symlink()


def test_demo_does_not_follow_links_in_the_place_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(probe, "importable", lambda name: True)
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "trainwright-demo.txt").symlink_to(tmp_path / "victim")
    assert main(["demo", "--out", str(tmp_path / "out")]) == 2
    assert "holds links" in capsys.readouterr().err and (tmp_path / "victim").read_text() == "mine"


def test_a_job_that_this_machine_cannot_hold_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(probe, "importable", lambda name: True)
    monkeypatch.setattr(probe, "free_memory_bytes", lambda: 16 * 2**30)
    model, config = tmp_path / "config.json", tmp_path / "fsdp.yaml"
    model.write_text(json.dumps(LLAMA_7B))
    for ranks, spec in ((2, model), (4096, MODEL)):
        config.write_text(FSDP.format(ranks=ranks))
        arguments = ["--model", str(spec), "--backend-config", str(config), "--run-dir", str(tmp_path / "run"), "--device", "cpu"]
        assert main(["launch", *arguments, "--execute"]) == 2
        assert "of memory, and 16.0 GiB is free" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_models_name_cannot_forge_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA_7B, "name": "x\nerror ACC999: forged"}))
    main(["estimate", "--model", str(path), "--devices", "2"])
    assert not any(line.startswith("error ACC999") for line in capsys.readouterr().out.splitlines())


def shell(line: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """The shell line, with T for the command of this tree."""
    script = f'T() {{ "{sys.executable}" -m trainwright.cli "$@"; }}; {line}'
    variables = {"PATH": os.defpath, "PYTHONPATH": str(ROOT / "helpers")}
    return subprocess.run(
        ["bash", "-c", script], cwd=cwd, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("line", ["T --help >/dev/full", "T --help >&-", "T rules >/dev/full", "T rules >&-", "T rules >&- 2>&-"])
def test_a_stream_that_is_full_or_closed_is_a_usage_error(line: str) -> None:
    done = shell(line)
    assert done.returncode == 2 and "Traceback" not in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_stderr_changes_no_exit_code_and_no_json() -> None:
    assert shell("T estimate --model nope.json --devices 2 2>/dev/full").returncode == 2
    done = shell("T estimate --model nope.json --devices 2 --format json 2>&-")
    assert done.returncode == 2 and json.loads(done.stdout)["status"] == "usage"


def test_a_deleted_working_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    done = shell("rmdir ../gone; T rules --output x", cwd=tmp_path / "gone")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
