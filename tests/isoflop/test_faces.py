"""The actions as their users run them: forms of output, exit codes, what is loaded, pictures."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

from trainwright import cli
from trainwright.isoflop.command import ACTIONS

Rows = list[dict[str, Any]]
Simulated = Callable[..., Rows]
Ask = Callable[..., tuple[int, dict[str, Any]]]
Write = Callable[..., str]
SCHEMA = json.loads((Path(__file__).resolve().parents[2] / "helpers/trainwright/isoflop/isoflop.schema.json").read_text())


def test_every_form_of_a_fit(simulated: Simulated, write: Write, ask: Ask, tmp_path: Path) -> None:
    file = write([*simulated(), {"params": 1e6, "tokens": 1e8, "flops": 6e14, "loss": -1, "budget": 6e14}])
    json_file, md, html = (str(tmp_path / name) for name in ("f.json", "f.md", "f.html"))
    code, said = ask(
        "fit", "--csv", file, "--bootstrap", "60", "--output-json", json_file, "--output-md", md, "--html", html,
        "--forecast-flops", "1e22", "--forecast-run", "1e9", "2e10", "--compare", "1.8,400,2000,0.34,0.37", "--recipe", "porian",
    )  # fmt: skip
    data = said["data"]
    jsonschema.validate(data, SCHEMA)
    assert code == 0 and data["verdict"] == "identified" and data["remedy"] is None
    written = json.loads(Path(json_file).read_text())
    assert written == data
    three = next(fit for fit in written["fits"] if fit["approach"] == "3")
    assert three["exponents"]["a"] == three["parameters"]["beta"] / (three["parameters"]["alpha"] + three["parameters"]["beta"])
    assert set(three["intervals"]) == {"E", "A", "B", "alpha", "beta", "a", "b"} and three["rows_excluded"] == 1
    low, high = three["intervals"]["a"]
    assert low < three["exponents"]["a"] < high
    text = Path(md).read_text()
    for words in ("# IsoFLOP fit: identified", "## Checklist", "## Excluded rows", "above zero", "held-out error", "**loss**"):
        assert words in text
    page = Path(html).read_text()
    assert page.count("<svg") == 7 and "<script" not in page and "above zero" in page
    forecasts = data["forecasts"]
    assert (
        len(forecasts) == 5
        and all(row["intervals"] for row in forecasts)
        and forecasts[0]["params"] * forecasts[0]["tokens"] * 6 == pytest.approx(1e22)
    )
    flat = next(row["flat"] for row in forecasts if "flat" in row)
    assert flat[0] < forecasts[1]["params"] < flat[1]


def test_a_forecast_counts_flops_as_the_rows_do(simulated: Simulated, write: Write, ask: Ask) -> None:
    """At small widths C is up to 12 N D: the surface's optimum is taken at the rows' own factor."""
    rows = [{**row, "flops": 2 * row["flops"], "budget": 2 * row["budget"]} for row in simulated(sigma=0.0005)]
    _, said = ask("fit", "--csv", write(rows), "--approach", "2", "3", "--bootstrap", "60", "--forecast-flops", "2e20")
    two, three = said["data"]["forecasts"]
    assert two["params"] == pytest.approx(three["params"], rel=0.05) and two["tokens"] == pytest.approx(three["tokens"], rel=0.05)
    assert three["params"] * three["tokens"] * 12 == pytest.approx(2e20)
    assert three["intervals"]["params"][0] < three["params"] < three["intervals"]["params"][1]


def test_the_text_prints_the_checklist_in_full(simulated: Simulated, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["isoflop", "fit", "--csv", write(simulated()), "--approach", "2", "--bootstrap", "60"]) == 0
    said = capsys.readouterr().out
    for item in (
        "form",
        "N",
        "D",
        "C",
        "loss",
        "learning rate",
        "schedule",
        "checkpoints",
        "objective",
        "optimizer and starts",
        "excluded rows",
        "intervals",
    ):
        assert f"\n  {item}: " in said
    assert "verdict: identified (approach 2)" in said and "held-out error" in said


@pytest.mark.parametrize("kind", ["case", "stratified", "cluster", "dirichlet", "wild", "residual", "parametric"])
def test_every_kind_of_bootstrap_holds_the_truth(simulated: Simulated, write: Write, ask: Ask, kind: str) -> None:
    _, said = ask("fit", "--csv", write(simulated(seed=4)), "--approach", "2", "vpnls", "--bootstrap", "80", "--bootstrap-kind", kind)
    for fit in said["data"]["fits"]:
        low, high = fit["intervals"]["a"]
        assert fit["bootstrap"]["kind"] == kind and low < 0.5139 < high and high - low < 0.25


def test_same_seed_same_answer(simulated: Simulated, write: Write, ask: Ask) -> None:
    file = write(simulated())
    one, two, other = (
        ask("fit", "--csv", file, "--approach", "2", "--bootstrap", "50", "--seed", seed)[1]["data"]["fits"] for seed in ("1", "1", "2")
    )
    assert one == two and one[0]["intervals"] != other[0]["intervals"]


def test_a_good_study_is_identified_and_a_narrow_one_is_not(simulated: Simulated, write: Write, ask: Ask) -> None:
    for spread, verdict in ((10.0, "identified"), (1.1, "underdetermined")):
        _, said = ask("fit", "--csv", write(simulated(spread=spread, sigma=0.006, seed=2)), "--bootstrap", "120")
        assert said["data"]["verdict"] == verdict
        if verdict != "identified":
            assert said["data"]["reasons"] and said["data"]["remedy"]["reached"] and said["data"]["remedy"]["runs"]


@pytest.mark.parametrize("seed", range(3))
def test_hopeless_studies_are_answered_too(simulated: Simulated, write: Write, ask: Ask, seed: int) -> None:
    file = write(simulated(spread=1.03, sigma=0.012, points=5, budgets=3, seed=seed))
    code, said = ask("fit", "--csv", file, "--bootstrap", "30")
    jsonschema.validate(said["data"], SCHEMA)
    assert code in (0, 1) and said["data"]["verdict"] == "underdetermined"


def test_approach_one_on_curves(write: Write, ask: Ask, simulated: Simulated) -> None:
    from trainwright.isoflop.power import REFERENCE

    rows = [
        {"run": f"r{k}", "params": n, "tokens": d, "loss": float(REFERENCE.loss(n, d))}
        for k, n in enumerate(1e6 * 2**i for i in range(10))
        for d in (n * 0.3 * 1.4**j for j in range(24))
    ]
    _, said = ask("fit", "--csv", write(rows), "--bootstrap", "60")
    one = said["data"]["fits"][0]
    assert one["approach"] == "1" and one["exponents"]["a"] == pytest.approx(REFERENCE.exponent, abs=0.04) and one["verdict"] == "weak"
    _, said = ask("fit", "--csv", write(simulated()), "--approach", "1")
    assert "no column names the run" in said["data"]["fits"][0]["refused"]


def test_plot_writes_svg_without_any_library(simulated: Simulated, write: Write, ask: Ask, tmp_path: Path) -> None:
    code, said = ask(
        "plot", "--csv", write(simulated()), "--bootstrap", "60", "--outdir", str(tmp_path / "p"), "--html", str(tmp_path / "p.html")
    )
    jsonschema.validate(said["data"], SCHEMA)
    assert code == 0 and len(said["data"]["written"]) == 7 and (tmp_path / "p.html").read_text().startswith("<!doctype html>")
    for path in said["data"]["written"]:
        assert ElementTree.parse(path).getroot().tag.endswith("svg")


def test_plot_png_and_pdf(simulated: Simulated, write: Write, ask: Ask, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    code, said = ask(
        "plot", "--csv", write(simulated()), "--approach", "2", "--bootstrap", "60", "--outdir", str(tmp_path), "--image", "png", "pdf"
    )
    heads = {Path(path).read_bytes()[:4] for path in said["data"]["written"]}
    assert code == 0 and heads == {b"\x89PNG", b"%PDF"}


def test_png_without_matplotlib_is_exit_3(
    simulated: Simulated, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Ask
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, said = ask("plot", "--csv", write(simulated()), "--bootstrap", "0", "--outdir", str(tmp_path / "x"), "--image", "png")
    assert code == 3 and "pip install matplotlib" in said["findings"][0]["message"]


@pytest.mark.parametrize("action", ACTIONS)
def test_help_loads_no_numpy(action: str) -> None:
    code = "import sys; from trainwright.cli import main; main(sys.argv[1:]); sys.exit('numpy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, "isoflop", action, "--help"], env={"PYTHONPATH": "helpers"}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and done.stdout.startswith(f"usage: trainwright isoflop {action}") and "--fail-on" in done.stdout


@pytest.mark.parametrize(
    "wrong",
    [["fit"], ["fit", "--csv", "x", "--level", "1.5"], ["fit", "--csv", "x", "--approach", "4"], ["plot", "--csv", "x"], ["nothing"], []],
)
def test_usage(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["isoflop", *wrong]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("action", ["", *ACTIONS])
def test_every_action_has_its_help(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["isoflop", *filter(None, [action]), "--help"]) == 0
    assert "examples:" in capsys.readouterr().out
