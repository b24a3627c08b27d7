"""Every command line of `plan` in the skill's page and in the README does what it says, in a folder with the files that it names."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from trainwright.cli import main

ROOT = Path(__file__).resolve().parents[2]
SKILL = ROOT / "skills" / "choose-parallel-training-plan"
CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}


def lines() -> list[str]:
    skill = re.findall(r"SKILL_DIR/scripts/plan\.py ([^`\n|]*)", (SKILL / "SKILL.md").read_text())
    readme = re.findall(r"^trainwright plan ([^#\n]*)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(skill) >= 9 and len(readme) >= 7
    return sorted({line.strip() for line in (*skill, *readme)})


@pytest.mark.parametrize("line", lines())
def test_a_line_of_the_pages_answers(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(json.dumps(CONFIG))
    for name in ("runs.csv", "rows.csv"):
        shutil.copy(SKILL / "evals" / "files" / "runs.csv", name)
    words = shlex.split(line)
    assert main(["plan", *words]) == 0
    for option in ("--emit-file", "--html", "--save", "--output"):
        if option in words:
            assert Path(words[words.index(option) + 1]).stat().st_size > 100
