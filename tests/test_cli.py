"""The one contract of every command: where output goes, what the exit code means, how mistakes and faults look."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from trainwright import cli
from trainwright.errors import Exit, JobError, MissingPackageError, UserError
from trainwright.report import Finding, Location, Report, Severity
from trainwright.version import VERSION

Face = Callable[[Callable[[argparse.Namespace], Report]], None]


@pytest.fixture
def face(monkeypatch: pytest.MonkeyPatch) -> Face:
    """Make `trainwright probe` run a given function."""

    def install(run: Callable[[argparse.Namespace], Report]) -> None:
        module = types.ModuleType("probe_face")
        vars(module).update(run=run, add_arguments=lambda parser: parser.add_argument("--html"), EXAMPLES="example: probe")
        monkeypatch.setitem(sys.modules, "probe_face", module)
        monkeypatch.setitem(cli.COMMANDS, "probe", cli.Command("probe", "probe_face", "a command for the tests"))

    return install


def findings(count: int, severity: Severity = Severity.WARNING) -> Report:
    rows = [Finding(f"TST{n:03}", severity, f"message {n}", Location("a.json", n)) for n in range(1, count + 1)]
    return Report("probe", findings=rows, data={"n": count})


def test_no_arguments_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == Exit.USAGE
    captured = capsys.readouterr()
    assert all(f"  {name} " in captured.out + captured.err for name in cli.COMMANDS)


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == cli.main(["--version"]) == Exit.OK
    assert capsys.readouterr().out.endswith(f"trainwright {VERSION}\n")


def test_unknown_command_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["chekc\x1b[2J", "x"]) == Exit.USAGE
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert "there is no command" in captured.err and "check" in captured.err and "\x1b" not in captured.err


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_is_short_and_says_the_exit_codes(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, "--help"]) == Exit.OK
    text = capsys.readouterr().out
    assert text.count("\n") < 60 and max(map(len, text.splitlines())) <= 200
    assert "exit codes: 0" in text and "example" in text and "--format" in text


@pytest.mark.parametrize("command", cli.COMMANDS)
@pytest.mark.parametrize("flags", [["--no-such-flag"], ["--limit", "-1"], ["--limit", "x"], ["--fail-on", "fatal"], ["--format", "xml"]])
def test_bad_flags_are_usage_errors(command: str, flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, *flags]) == Exit.USAGE
    captured = capsys.readouterr()
    assert captured.out == "" and "Traceback" not in captured.err and "usage:" in captured.err


@pytest.mark.parametrize("command", cli.COMMANDS)
@pytest.mark.parametrize("json_asked", [["--format", "json"], ["--format=json"]])
def test_bad_flags_are_one_envelope_where_json_is_asked(command: str, json_asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, *json_asked, "--no-such-flag"]) == Exit.USAGE
    answer = json.loads(capsys.readouterr().out)
    assert (answer["status"], answer["command"], [row["rule"] for row in answer["findings"]]) == ("usage", command, ["USAGE"])


@pytest.mark.parametrize(("text", "found"), [("hang", "SRC001"), ("ACC-DT", "ACC003"), ("barrier", "SRC001"), ("acc003", "ACC003")])
def test_rules_are_found_by_the_words_of_their_titles(text: str, found: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rules", "--filter", text]) == Exit.OK
    rows = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert found in rows and "DS013" not in rows, "hang is no part of changed"


def test_a_filter_that_fits_no_rule_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rules", "--filter", "no such rule"]) == Exit.OK
    assert capsys.readouterr().out.startswith("no rule has 'no such rule'")


@pytest.mark.parametrize(
    ("severity", "fail_on", "code"),
    [
        (Severity.WARNING, [], 0),
        (Severity.ERROR, [], 1),
        (Severity.WARNING, ["--fail-on", "warning"], 1),
        (Severity.INFO, ["--fail-on", "info"], 1),
        (Severity.INFO, ["--fail-on", "warning"], 0),
        (Severity.ERROR, ["--fail-on", "never"], 0),
    ],
)
def test_fail_on(face: Face, severity: Severity, fail_on: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    face(lambda options: findings(1, severity))
    assert cli.main(["probe", "--format", "json", *fail_on]) == code
    assert json.loads(capsys.readouterr().out)["status"] == ("findings" if code else "ok")


@pytest.mark.parametrize(("limit", "shown"), [([], 20), (["--limit", "3"], 3), (["--limit", "0"], 30), (["--limit", "30"], 30)])
def test_limit_cuts_what_is_shown_and_says_so(face: Face, limit: list[str], shown: int, capsys: pytest.CaptureFixture[str]) -> None:
    face(lambda options: findings(30))
    cli.main(["probe", "--format", "json", *limit])
    answer = json.loads(capsys.readouterr().out)
    assert (len(answer["findings"]), answer["truncated"], answer["counts"]["warning"]) == (shown, shown < 30, 30)
    cli.main(["probe", *limit])
    assert ("more findings" in capsys.readouterr().out) is (shown < 30)


def test_limit_never_cuts_a_file(face: Face, tmp_path: Path) -> None:
    face(lambda options: findings(30))
    cli.main(["probe", "--format", "json", "--limit", "3", "--output", str(tmp_path / "a.json")])
    assert len(json.loads((tmp_path / "a.json").read_text())["findings"]) == 30


def test_output_replaces_the_file_whole_and_leaves_nothing_beside_it(
    face: Face, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    face(lambda options: findings(2))
    target = tmp_path / "report.txt"
    target.write_text("old" * 10_000)
    with open(target) as reader:
        assert cli.main(["probe", "--output", str(target)]) == Exit.OK
        assert reader.read() == "old" * 10_000, "whoever has the old file open keeps it: it was replaced, not rewritten"
    captured = capsys.readouterr()
    assert captured.out == "" and str(target) in captured.err
    assert "TST002" in target.read_text() and os.listdir(tmp_path) == ["report.txt"]


@pytest.mark.parametrize("where", ["no/such/folder/a.json", "file/a.json", ".", "", "x" * 300])
def test_unwritable_output(
    face: Face, tmp_path: Path, where: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    face(lambda options: findings(0))
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["probe", "--output", where]) == Exit.USAGE
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and "cannot write" in captured.err
    assert os.listdir(tmp_path) == ["file"]


def test_quiet_says_nothing_on_stderr(face: Face, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    face(lambda options: findings(1))
    cli.main(["probe", "--quiet", "--output", str(tmp_path / "a")])
    assert capsys.readouterr().err == ""


def test_html_page_is_written(face: Face, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    face(lambda options: Report("probe", page="<p>x</p>"))
    assert cli.main(["probe", "--html", str(tmp_path / "a.html")]) == Exit.OK
    assert (tmp_path / "a.html").read_text() == "<p>x</p>"


@pytest.mark.parametrize(
    ("problem", "code"),
    [(UserError("a\nb"), 2), (MissingPackageError("nothing", "this"), 3), (JobError("it failed"), 4), (KeyboardInterrupt(), 130)],
)
def test_a_mistake_is_one_line(face: Face, problem: BaseException, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    def run(options: argparse.Namespace) -> Report:
        raise problem

    face(run)
    assert cli.main(["probe"]) == code
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and captured.err.startswith("trainwright probe: ")


@pytest.mark.parametrize(("problem", "code", "status"), [(UserError("what"), 2, "usage"), (JobError("it failed"), 4, "failed")])
def test_a_mistake_is_a_report_in_json(face: Face, problem: UserError, code: int, status: str, capsys: pytest.CaptureFixture[str]) -> None:
    def run(options: argparse.Namespace) -> Report:
        raise problem

    face(run)
    assert cli.main(["probe", "--format", "json"]) == code
    answer = json.loads(capsys.readouterr().out)
    assert answer["status"] == status and answer["findings"][0]["message"] == str(problem)
    envelope = ("schema", "command", "version", "status", "counts", "findings", "inferred", "not_checked", "data", "truncated")
    assert tuple(answer) == envelope


def test_a_job_that_failed_sets_the_exit_code(face: Face) -> None:
    face(lambda options: Report("probe", exit=Exit.FAILED))
    assert cli.main(["probe", "--fail-on", "never"]) == Exit.FAILED


def test_a_fault_of_ours_is_70_and_names_its_place(face: Face, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    face(lambda options: Report("probe", data=1 / 0))
    monkeypatch.delenv("TRAINWRIGHT_DEBUG", raising=False)
    assert cli.main(["probe"]) == Exit.FAULT
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert "test_cli.py:" in captured.err and "ZeroDivisionError" in captured.err
    monkeypatch.setenv("TRAINWRIGHT_DEBUG", "1")
    assert cli.main(["probe"]) == Exit.FAULT
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["rules"], ["rules", "--format", "json"], ["explain", "nonsense"]])
def test_a_closed_pipe_is_quiet(root: Path, arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    argv = [sys.executable, "-m", "trainwright.cli", *arguments]
    done = subprocess.run(argv, env={"PYTHONPATH": str(root / "helpers")}, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writing)
    assert "Broken" not in done.stderr and "Traceback" not in done.stderr
    assert done.returncode == (Exit.USAGE if "explain" in arguments else Exit.OK)


def test_output_is_utf8_wherever_it_runs(run_command: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = run_command("explain", "\u00e9\u4e2d", LC_ALL="C", PYTHONIOENCODING="ascii")
    assert done.returncode == Exit.USAGE and "Traceback" not in done.stderr


def test_explain_and_rules_agree(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schemas = {name: json.loads((root / f"helpers/trainwright/{name}.schema.json").read_text()) for name in ("rules", "explain")}
    assert cli.main(["rules", "--format", "json", "--limit", "1"]) == Exit.OK
    data = json.loads(capsys.readouterr().out)["data"]
    jsonschema.validate(data, schemas["rules"])
    rules = data["rules"]
    assert len(rules) >= 5, "`rules` is never cut"
    for row in rules:
        assert cli.main(["explain", row["name"], "--format", "json"]) == Exit.OK
        page = json.loads(capsys.readouterr().out)["data"]
        jsonschema.validate(page, schemas["explain"])
        assert page["rule"] == row["rule"] and row["title"] == page["page"].splitlines()[0]


def test_explain_offers_the_nearest_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rules", "--format", "json"]) == Exit.OK
    code = json.loads(capsys.readouterr().out)["data"]["rules"][0]["rule"]
    assert cli.main(["explain", code + "9"]) == Exit.USAGE
    assert code in capsys.readouterr().err


@pytest.mark.parametrize("module", ["trainwright.nothing", "trainwright.nothing.command", "trainwright.check.nothing"])
def test_a_command_whose_package_is_not_here(module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(cli.COMMANDS, "absent", cli.Command("absent", module, "not in this copy", ("one-skill", "two-skill")))
    assert cli.main(["absent", "--help"]) == Exit.MISSING
    captured = capsys.readouterr()
    wanted = "trainwright absent: this copy of the library does not hold absent; the skill one-skill or two-skill has it\n"
    assert (captured.out, captured.err) == ("", wanted)
    assert cli.main(["--help"]) == Exit.OK
    assert "absent" not in capsys.readouterr().out


def test_a_face_that_misses_another_module_is_a_fault_and_not_a_command_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken_face.py").write_text("import trainwright.nothing\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(cli.COMMANDS, "broken", cli.Command("broken", "broken_face", "broken"))
    assert cli.main(["broken"]) == Exit.FAULT
    assert "trainwright.nothing" in capsys.readouterr().err
