"""A small bundle to break: one real skill's page, references and evals, with a library of one file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

NAME = "distributed-strategy"
MANIFEST = """\
name: trainwright
description: "Agent skills."
license: Apache-2.0
author: Trainwright contributors
python: ">=3.10"
category: development
keywords: [a]
skills:
  distributed-strategy:
    library: ["**/*.py"]
    references: [strategies.md]
# ---- below this line `make sync` writes ----
"""
README = """\
# x
<!-- commands:start -->
old
<!-- commands:end -->
<!-- skills:start -->
<!-- skills:end -->
last line
"""


@pytest.fixture
def small(root: Path, tmp_path: Path) -> Path:
    """The root of a bundle in which everything is in order."""
    for folder in (f"skills/{NAME}", "references"):
        shutil.copytree(root / folder, tmp_path / folder, ignore=shutil.ignore_patterns("scripts", "__pycache__"))
    library = tmp_path / "helpers" / "trainwright"
    library.mkdir(parents=True)
    (library / "__init__.py").write_text("")
    (library / "cli.py").write_text('"""What every stub imports."""\n')
    (library / "one.py").write_text('"""One."""\n')
    (tmp_path / "README.md").write_text(README)
    (tmp_path / "skill-manifest.yaml").write_text(MANIFEST)
    return tmp_path


@pytest.fixture
def skill(small: Path) -> Path:
    """The folder of the small bundle's skill."""
    return small / "skills" / NAME
