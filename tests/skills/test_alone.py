"""A skill's folder copied alone, also by an installer that leaves every `_*` file out, answers from its own copy of the library."""

from __future__ import annotations

import fnmatch
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from trainwright.cli import COMMANDS
from trainwright.rules import load_all

STRATEGY, RUN, DEBUG = "distributed-strategy", "run-distributed-training", "debug-distributed-training"
BACKENDS, CODE, MEND = "distributed-training-backends", "training-code-checks", "mend-training-configs"
PLAN = "choose-parallel-training-plan"
SCALING = "scaling-and-isoflop"
SKILLS = sorted({skill for command in COMMANDS.values() for skill in command.skills})
MODEL, RIGHT, TYPO = (f"evals/files/{name}" for name in ("llama-7b.json", "fsdp-right.yaml", "typo.json"))
JOB = ["--model", MODEL, "--devices", "8", "--seq-len", "2048"]
JSON_CALLS = {
    (STRATEGY, "estimate"): (JOB, 0),
    (STRATEGY, "advise"): ([*JOB, "--memory", "80GiB"], 0),
    (STRATEGY, "explain"): (["ADV001"], 0),
    (STRATEGY, "rules"): ([], 0),
    (BACKENDS, "check"): ([TYPO], 1),
    (BACKENDS, "explain"): (["ACC001"], 0),
    (BACKENDS, "rules"): ([], 0),
    (CODE, "check"): (["evals/files/hang.py"], 1),
    (CODE, "explain"): (["SRC001"], 0),
    (CODE, "rules"): ([], 0),
    (MEND, "check"): (["evals/files/zero2.json", "--diff"], 1),
    (RUN, "launch"): (["--model", MODEL, "--backend-config", TYPO, "--run-dir", "out", "--nproc", "2"], 2),
    (DEBUG, "diagnose"): (["evals/files/run-oom/rank0.jsonl"], 1),
    (DEBUG, "doctor"): ([], 0),
    (SCALING, "isoflop"): (["calibrate", "--model", "tiny", "--widths", "64", "128", "--no-measure"], 0),
    (DEBUG, "explain"): (["RUN001"], 0),
    (DEBUG, "rules"): ([], 0),
    (PLAN, "plan"): (["emit", "--plan", "tp=8,dp_shard=2,zero_stage=1", "--model", "7b", "--global-batch", "64", "--emit", "megatron"], 0),
    (PLAN, "explain"): (["PLN001"], 0),
    (PLAN, "rules"): ([], 0),
}
_ENVIRONMENTS = ("check.rules.environment", "check.rules.environment_variables")
_BOTH = ("check.rules.documents", "check.rules.job*")
RULES = {  # what a skill carries, as patterns of modules
    STRATEGY: ("advise.rules.*",),
    BACKENDS: (*_BOTH, "check.rules.accelerate*", "check.rules.deepspeed*", "check.rules.fsdp", "check.rules.quantization"),
    CODE: (*_BOTH, "check.rules.source*", "check.rules.arguments", "check.rules.megatron"),
    PLAN: ("plan.rules.*",),
    DEBUG: ("diagnose.rules.*", *_ENVIRONMENTS),
}
WITHOUT = {BACKENDS: "check.rules.accelerate_model"}  # it needs the models, which that skill does not read


@pytest.fixture(scope="module", params=["as it is", "without _ files"])
def copies(request: pytest.FixtureRequest, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds a copy of each skill; beside them PyYAML, and an installed trainwright that none may take."""
    place = tmp_path_factory.mktemp("copied alone")
    left_out = ["__pycache__", *(["_*"] if request.param == "without _ files" else [])]
    for name in SKILLS:
        shutil.copytree(root / "skills" / name, place / name, ignore=shutil.ignore_patterns(*left_out))
    shutil.copytree(Path(yaml.__file__).parent, place / "packages" / "yaml", ignore=shutil.ignore_patterns("__pycache__"))
    other = place / "installed" / "trainwright"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("raise SystemExit('the installed package was taken')\n")
    return place


def python(alone: Path, *arguments: str, with_yaml: bool = True) -> subprocess.CompletedProcess[str]:
    """Run Python in a skill's folder with the standard library, PyYAML where wanted, and no installed package but a false trainwright."""
    paths = [str(alone.parent / "installed"), *([str(alone.parent / "packages")] if with_yaml else [])]
    argv = ["env", "-i", f"PYTHONPATH={':'.join(paths)}", sys.executable, "-B", "-S", *arguments]
    return subprocess.run(argv, cwd=alone, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)


def own_rules(skill: str) -> set[str]:
    """The codes of the rules that a skill carries."""
    modules = {code: rule.find.__module__.removeprefix("trainwright.") for code, rule in load_all().items()}
    return {
        code
        for code, module in modules.items()
        if module != WITHOUT.get(skill) and any(fnmatch.fnmatchcase(module, pattern) for pattern in RULES[skill])
    }


def run(alone: Path, name: str, *arguments: str, with_yaml: bool = True) -> subprocess.CompletedProcess[str]:
    return python(alone, str(alone / "scripts" / f"{name}.py"), *arguments, with_yaml=with_yaml)


def test_every_script_of_every_skill_is_called_here() -> None:
    assert set(JSON_CALLS) == {(skill, name) for name, command in COMMANDS.items() for skill in command.skills}


@pytest.mark.parametrize(("skill", "name"), JSON_CALLS)
@pytest.mark.parametrize("with_yaml", [True, False], ids=["with PyYAML", "without PyYAML"])
def test_json_inputs_need_no_package(copies: Path, skill: str, name: str, with_yaml: bool) -> None:
    arguments, code = JSON_CALLS[skill, name]
    done = run(copies / skill, name, *arguments, "--format", "json", with_yaml=with_yaml)
    assert done.returncode == code, done.stderr
    assert json.loads(done.stdout)["command"] == name


def test_yaml_inputs(copies: Path) -> None:
    done = run(copies / BACKENDS, "check", "evals/files/fsdp2.yaml", "--world-size", "8", "--device", "cuda")
    assert (done.returncode, done.stderr) == (0, "")
    done = run(copies / RUN, "launch", "--model", MODEL, "--backend-config", RIGHT, "--run-dir", "out")
    assert done.returncode == 0, done.stderr
    assert not (copies / RUN / "out").exists(), "without --execute nothing is written"


@pytest.mark.parametrize("form", ["text", "json"])
def test_yaml_without_pyyaml_is_3_with_the_line_to_type(copies: Path, form: str) -> None:
    done = run(copies / BACKENDS, "check", "evals/files/fsdp2.yaml", "--format", form, with_yaml=False)
    assert done.returncode == 3 and "pip install pyyaml" in done.stdout + done.stderr
    assert done.stderr.count("\n") <= 1 and "Traceback" not in done.stderr


def test_the_strategy_is_written_and_read_again(copies: Path, tmp_path: Path) -> None:
    written = tmp_path / "chosen.yaml"
    done = run(copies / STRATEGY, "advise", *JOB, "--memory", "80GiB", "--emit", str(written))
    assert done.returncode == 0, done.stderr
    done = run(copies / BACKENDS, "check", str(written), "--world-size", "8", "--device", "cuda", "--fail-on", "warning")
    assert done.returncode == 0, done.stdout
    done = run(copies / RUN, "launch", "--model", MODEL, "--backend-config", str(written), "--device", "cuda", "--run-dir", "out")
    assert done.returncode == 0 and "--nproc-per-node 8" in done.stdout, done.stderr


@pytest.mark.parametrize("skill", [BACKENDS, CODE])
def test_what_a_copy_of_check_does_not_do_is_not_in_its_help_and_told_when_asked(copies: Path, skill: str) -> None:
    text = run(copies / skill, "check", "--help").stdout
    assert "--show-effective" in text and not [name for name in ("--fix", "--convert", "--schema", "--model", "sarif") if name in text]
    done = run(copies / skill, "check", TYPO, "--fix")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and f"the skill {MEND}" in done.stderr


def test_the_copy_that_mends(copies: Path, tmp_path: Path) -> None:
    """Every act of the package, from the copy: a fix in place, a conversion that checks clean, a schema, SARIF, a baseline."""
    here = tmp_path / "launch.yaml"
    shutil.copy(copies / MEND / "evals/files/launch.yaml", here)
    done = run(copies / MEND, "check", str(here), "--fix")
    assert done.returncode == 1 and "mixed_precision: 'no'" in here.read_text(), done.stderr
    assert "fix: " in done.stdout and "explain" not in done.stdout, "this copy has no explain"
    done = run(copies / MEND, "check", str(here), "--show-effective")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and f"the skill {BACKENDS} does" in done.stderr
    made = tmp_path / "made.yaml"
    done = run(copies / MEND, "check", "evals/files/fsdp1.yaml", "--convert", "fsdp2", "--emit", str(made))
    assert done.returncode == 0 and "fsdp_version: 2" in made.read_text(), done.stderr
    assert run(copies / BACKENDS, "check", str(made), "--world-size", "8").returncode == 0
    assert json.loads(run(copies / MEND, "check", "--schema", "deepspeed").stdout)["type"] == "object"
    assert json.loads(run(copies / MEND, "check", str(here), "--format", "sarif").stdout)["version"] == "2.1.0"
    known = str(tmp_path / "known.json")
    run(copies / MEND, "check", str(here), "--write-baseline", known)
    assert run(copies / MEND, "check", str(here), "--baseline", known).returncode == 0


def test_a_copy_says_which_rules_it_does_not_hold(copies: Path) -> None:
    """Nothing found without a rule is no verdict."""
    config = str(copies / BACKENDS / TYPO)
    done = json.loads(run(copies / CODE, "check", config, "--format", "json").stdout)
    assert {"name": "Accelerate files", "reason": "this copy holds no rules on them"} in done["not_checked"]
    source = str(copies / CODE / "evals/files/hang.py")
    done = json.loads(run(copies / BACKENDS, "check", source, config, "--format", "json").stdout)
    assert {"name": source, "reason": "this copy judges no Python sources"} in done["not_checked"]


@pytest.mark.parametrize("skill", SKILLS)
def test_the_copy_answers_not_the_repository(copies: Path, skill: str) -> None:
    source = copies / skill / "scripts" / "trainwright" / "version.py"
    before = source.read_text()
    source.write_text('VERSION = "99.0.0"\n')
    try:
        code = "import sys; sys.path.insert(0, 'scripts'); from trainwright.cli import main; sys.exit(main(['--version']))"
        assert python(copies / skill, "-c", code).stdout == "trainwright 99.0.0\n"
    finally:
        source.write_text(before)


@pytest.mark.parametrize("skill", RULES)
def test_it_knows_the_rules_of_its_own_commands(copies: Path, skill: str) -> None:
    rows = json.loads(run(copies / skill, "rules", "--format", "json").stdout)["data"]["rules"]
    assert rows and {row["rule"] for row in rows} == own_rules(skill)


@pytest.mark.parametrize("skill", RULES)
def test_the_pages_of_a_skill_name_rules_that_it_can_explain(copies: Path, skill: str) -> None:
    page = (copies / skill / "SKILL.md").read_text()
    codes = {word for word in page.replace("`", " ").replace("(", " ").replace(")", " ").replace(",", " ").split() if word in load_all()}
    assert codes and [code for code in codes if run(copies / skill, "explain", code).returncode] == []


@pytest.mark.parametrize("skill", RULES)
def test_a_rule_of_another_skill_is_one_line(copies: Path, skill: str) -> None:
    foreign = next(code for code in load_all() if code not in own_rules(skill))
    done = run(copies / skill, "explain", foreign)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1) and "in this copy" in done.stderr


@pytest.mark.parametrize("skill", SKILLS)
def test_a_command_that_is_not_in_the_copy_says_who_has_it(copies: Path, skill: str) -> None:
    for name, command in COMMANDS.items():
        if skill in command.skills:
            continue
        code = f"import sys; sys.path.insert(0, 'scripts'); from trainwright.cli import main; sys.exit(main(['{name}']))"
        done = python(copies / skill, "-c", code)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1), done.stderr
        assert f"does not hold {name}; " in done.stderr
        assert all(other in done.stderr for other in command.skills or ["the repository"])


@pytest.mark.parametrize("skill", SKILLS)
def test_the_overview_lists_only_what_is_there(copies: Path, skill: str) -> None:
    code = "import sys; sys.path.insert(0, 'scripts'); from trainwright.cli import main; sys.exit(main(sys.argv[1:]))"
    done = python(copies / skill, "-c", code, "--help")
    listed = {line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")}
    assert done.returncode == 0 and listed == {name for name, command in COMMANDS.items() if skill in command.skills}
    done = python(copies / skill, "-c", code, "chekc")
    assert done.returncode == 2 and "demo" not in done.stderr and all(name in done.stderr for name in listed)


@pytest.mark.parametrize("skill", SKILLS)
def test_nothing_was_left_in_the_folder(copies: Path, skill: str, root: Path) -> None:
    run(copies / skill, next(name for owner, name in JSON_CALLS if owner == skill))
    theirs = {path.relative_to(copies / skill).as_posix() for path in (copies / skill).rglob("*")}
    ours = {path.relative_to(root / "skills" / skill).as_posix() for path in (root / "skills" / skill).rglob("*")}
    assert theirs <= ours and not [path for path in theirs if "__pycache__" in path]


@pytest.mark.long
def test_a_job_runs_from_the_copied_folders_and_leaves_no_trace_in_them(copies: Path, tmp_path: Path) -> None:
    """Two CPU ranks of a preset: chosen by one copy, run by the next, told by the third; each folder stays as it was."""
    before = sorted(path.relative_to(copies).as_posix() for path in copies.rglob("*"))
    config, out = (str(path) for path in (tmp_path / "a b.yaml", tmp_path / "my run"))

    def call(skill: str, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        script = str(copies / skill / "scripts" / f"{name}.py")
        argv = ["env", "-i", f"PYTHONPATH={copies / 'installed'}", sys.executable, script, *arguments]
        return subprocess.run(argv, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=280)

    job = ["--model", "llama-demo", "--seq-len", "32"]
    chosen = call(STRATEGY, "advise", *job, "--devices", "2", "--memory", "300MiB", "--device", "cpu", "--emit", config)
    assert chosen.returncode == 0, chosen.stderr
    done = call(RUN, "launch", *job, "--backend-config", config, "--run-dir", out, "--steps", "3", "--execute", "--format", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["data"]["diagnosis"] is None and [end["status"] for end in report["data"]["ends"]] == ["completed"] * 2
    assert DEBUG in report["not_checked"][-1]["reason"]
    told = call(DEBUG, "diagnose", out)
    assert told.returncode == 0, told.stdout + told.stderr
    done = call(RUN, "launch", *job, "--backend-config", config, "--run-dir", out, "--memory-cap", "20MiB", "--force", "--execute")
    assert done.returncode == 4 and "failed in" in done.stdout and DEBUG in done.stdout, done.stdout + done.stderr
    assert sorted(path.relative_to(copies).as_posix() for path in copies.rglob("*")) == before
