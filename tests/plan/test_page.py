"""The page and its pictures: whole, bounded, and with nothing of the input in it that is markup."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import pytest

from trainwright.cli import main
from trainwright.parallel import Plan
from trainwright.plan import drawing
from trainwright.plan.timeline import play

JOB = ("--model", "7b", "--accelerator", "a100", "--devices", "16", "--network", "200Gbps", "--memory", "80GiB", "--global-batch", "64")


def made(tmp_path: Path, *arguments: str) -> str:
    path = tmp_path / "plan.html"
    assert main(["plan", *arguments, "--html", str(path), "--format", "json", "--output", str(tmp_path / "out.json")]) in (0, 1)
    return path.read_text(encoding="utf-8")


def svgs(text: str) -> list[ET.Element]:
    return [ET.fromstring(one) for one in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]


def test_a_search(tmp_path: Path) -> None:
    text = made(tmp_path, "search", *JOB, "--micro-batches", "1,2")
    for title in ("A step in time", "Where the step goes", "Memory by rank", "The mesh over the nodes", "Time and memory", "What to mind"):
        assert f"<h2>{title}</h2>" in text
    assert len(svgs(text)) == 5 and "decision: " in text and "<script" not in text and "http" not in text.replace("http://www.w3.org", "")


def test_a_pipeline(tmp_path: Path) -> None:
    plans = [
        f"--plan=tp=2,pp=4,dp_shard=2,zero_stage=1,micro_batch=1,{more}" for more in ("schedule=1f1b", "schedule=gpipe,recompute=full")
    ]
    text = made(tmp_path, "compare", *JOB, *plans)
    assert "The pipeline in time" in text and "stage 3" in text and "waiting (bubble)" in text


def test_a_device_never_profiled_has_a_page_without_times(tmp_path: Path) -> None:
    text = made(tmp_path, "search", "--model", "7b", "--node", "aurora", "--devices", "24", "--global-batch", "48", "--micro-batches", "1")
    assert "never profiled" in text and "Not drawn" in text and "node 1" in text


def test_the_timeline_as_a_file(tmp_path: Path) -> None:
    path = tmp_path / "step.svg"
    plan = "tp=2,pp=4,dp_shard=2,zero_stage=1,schedule=1f1b"
    assert main(["plan", "compare", *JOB, "--plan", plan, "--plan", "dp_shard=16,zero_stage=3", "--svg", str(path), "--quiet"]) == 0
    root = ET.fromstring(path.read_text(encoding="utf-8"))
    assert root.tag.endswith("svg") and "prefers-color-scheme" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("pp", [2, 16, 64, 200])
def test_a_picture_of_many_stages_stays_small(pp: int) -> None:
    plan = Plan(pp=pp, schedule="1f1b")
    one = play(plan, [1.0] * pp, [2.0] * pp, 0.1, 4)
    root = ET.fromstring(str(drawing.timeline(one, plan)))
    height = float(root.attrib["viewBox"].split()[3])
    assert height <= 720
    boxes = [box for box in root.iter("rect") if float(box.attrib["x"]) < drawing.LEFT - 0.01]
    assert not boxes
    tops = sorted(
        float(text.attrib["y"])
        for text in root.iter("text")
        if text.attrib.get("text-anchor") == "end" and "font-size" in text.attrib.get("style", "")
    )
    assert all(b - a >= 9 for a, b in pairwise(tops)), "names of stages overlap"


@pytest.mark.parametrize("plan", [Plan(dp_shard=24, tp=2, zero_stage=3), Plan(pp=4, tp=4, dp_shard=64, zero_stage=1, schedule="1f1b")])
def test_every_rank_has_its_own_place(plan: Plan) -> None:
    seen = {tuple(drawing.coordinates(plan, rank).values()) for rank in range(plan.world_size)}
    assert len(seen) == plan.world_size
    ET.fromstring(str(drawing.mesh(plan, 12)))


def test_a_name_is_escaped(tmp_path: Path) -> None:
    model = tmp_path / "<b>x.json"
    model.write_text((Path(__file__).parents[2] / "helpers/trainwright/models/tiny/config.json").read_text())
    text = made(tmp_path, "search", "--model", str(model), *JOB[2:], "--micro-batches", "1")
    assert "<b>x" not in text
