"""The page of a run holds its numbers, and nothing of a log becomes markup."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trainwright.cli import main


def write_run(folder: Path, message: str) -> None:
    """Two fabricated ranks: five steps each, the second failed."""
    (folder / "perf").mkdir(parents=True)
    for rank in (0, 1):
        rows: list[dict[str, Any]] = [{"kind": "header", "rank": rank, "world_size": 2, "pid": 1, "job": {"world_size": 2, "steps": 5}}]
        rows += [{"kind": "step", "step": s, "step_time_s": 0.5 + rank / 4, "tokens": 100, "loss": 5.0 - s / 4} for s in range(1, 6)]
        error = {"type": "exception", "exception": "ValueError", "message": message, "phase": "forward"}
        rows.append({"kind": "end", "status": "failed" if rank else "completed", "steps": 5, "error": error if rank else None})
        (folder / "perf" / f"rank{rank}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_page_tells_outcome_speed_and_cause(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "<script>alert(1)</script>")
    page = tmp_path / "run.html"
    assert main(["diagnose", str(tmp_path / "run"), "--html", str(page), "--fail-on", "never", "--output", str(tmp_path / "text")]) == 0
    text = page.read_text()
    assert "<script" not in text and "&lt;script&gt;" in text
    assert ">failed<" in text and "750.0 ms" in text and "267" in text  # 200 tokens in the slower rank's 0.75 s
    assert text.count("<polyline") == 3


def test_no_page_is_built_unless_asked_for(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "x")
    main(["diagnose", str(tmp_path / "run"), "--output", str(tmp_path / "text")])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "text"]
