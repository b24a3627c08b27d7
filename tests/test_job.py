"""job.json: what is written reads back, and each mistake is told in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.errors import UserError
from trainwright.job import Job, read


def job(**fields: Any) -> Job:
    return Job(**{"model": "/m/config.json", "backend_config": "/c/fsdp.yaml", "world_size": 4, **fields})


@given(
    world_size=st.integers(1, 64),
    steps=st.integers(1, 10**6),
    learning_rate=st.floats(1e-9, 10) | st.just(1),
    memory_cap_bytes=st.none() | st.integers(1, 2**40),
    seed=st.integers(0, 2**32),
)
def test_a_job_reads_back(tmp_path_factory: pytest.TempPathFactory, **fields: Any) -> None:
    path = str(tmp_path_factory.mktemp("job") / "job.json")
    job(**fields).write(path)
    assert read(path) == job(**fields)


MISTAKES: dict[str, list[Any]] = {
    "world_size": [0, -1, 5000, 2.0, "4", None, True],
    "device": ["tpu", "", 3],
    "steps": [0, 1.5, "12", 2**60],
    "micro_batch": [0, False],
    "seq_len": [1, None],
    "learning_rate": [0, -1e-3, float("nan"), float("inf"), 1e30, "1e-3", 10**400],
    "seed": [-1, 2**70],
    "memory_cap_bytes": [0, -5, "300MiB", 1.5],
    "track_memory_steps": [-1],
    "eval_at": [5, "a", "1,,2", "-1", "1.5", "1,"],
    "timeout_s": [0, float("nan")],
    "model": ["config.json", "", None, "/a\0b"],
    "backend_config": ["fsdp.yaml", 7],
    "run_dir": ["/a\0b", None],
    "resume": ["/a\0b", "run"],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in MISTAKES.items() for value in values], ids=lambda x: f"{x!r:.20}"
)
def test_each_mistake_is_one_line_that_names_the_field(field: str, value: Any) -> None:
    with pytest.raises(UserError) as caught:
        job(**{field: value})
    assert field in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize("field", ["regime", "variant", "data"])
def test_what_would_mean_nothing_is_refused(field: str) -> None:
    """A regime of a text model, and a path beside generated signals, would be passed over in silence."""
    value, modality = {"regime": ("projector_only", "text"), "variant": ("W2X", "text"), "data": ("/d", "text_image")}[field]
    with pytest.raises(UserError, match=rf"\b{field}\b"):
        job(modality=modality, **{field: value})
    assert getattr(job(modality="text" if field == "data" else "text_ts", **{field: value}), field) == value


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(UserError, match=r"steps 0 is less than 1; seq_len 1 is less than 2; device 'tpu' is not one of"):
        job(steps=0, seq_len=1, device="tpu")


Change = Callable[[dict[str, Any]], object]
FILES: dict[str, tuple[Change, str]] = {
    "another schema": (lambda rows: rows.update(schema="x"), "is no job file"),
    "a field missing": (lambda rows: rows.pop("world_size"), "world_size is missing"),
    "a field too many": (lambda rows: rows.update(stepz=3), "'stepz' is no field of a job"),
    "a wrong value": (lambda rows: rows.update(steps="3"), "steps is '3', not a whole number"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_job(name: str, tmp_path: Path) -> None:
    change, words = FILES[name]
    rows = job().to_json()
    change(rows)
    (tmp_path / "job.json").write_text(json.dumps(rows))
    with pytest.raises(UserError, match=words) as caught:
        read(str(tmp_path / "job.json"))
    assert str(caught.value).startswith(str(tmp_path / "job.json"))


def test_defaults_stand_in_for_fields_left_out(tmp_path: Path) -> None:
    rows = {"schema": "trainwright/job/1", "model": "/m", "backend_config": "/c", "world_size": 2}
    (tmp_path / "job.json").write_text(json.dumps(rows))
    assert read(str(tmp_path / "job.json")).steps == 12
