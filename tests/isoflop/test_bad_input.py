"""Rows that no fit may rest on: each is left out with its reason, or the whole is refused by name; never a number that looks measured."""

from __future__ import annotations

import csv
import json
import math
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright import cli
from trainwright.errors import UserError
from trainwright.isoflop.columns import mapping
from trainwright.isoflop.rows import Wishes, study
from trainwright.isoflop.table import read_tables

Rows = list[dict[str, Any]]
Simulated = Callable[..., Rows]
Ask = Callable[..., tuple[int, dict[str, Any]]]
Write = Callable[..., str]
Read = Callable[..., Any]
SCHEMA = json.loads((Path(__file__).resolve().parents[2] / "helpers/trainwright/isoflop/isoflop.schema.json").read_text())
FAST = ("--bootstrap", "60")


def reasons(said: dict[str, Any]) -> dict[int, str]:
    """Line of the file -> why it is out."""
    return {int(row["row"].rpartition(":")[2]): row["reason"] for row in said["data"]["excluded"]}


# What is done to the fourth row (line 5 of the file), and words of the reason.
SPOILED: list[tuple[dict[str, Any], str]] = [
    ({"loss": ""}, "loss is missing"),
    ({"loss": "nan"}, "not finite"),
    ({"loss": "inf"}, "not finite"),
    ({"loss": "-2.5"}, "above zero"),
    ({"loss": "0"}, "above zero"),
    ({"loss": "diverged"}, "no number"),
    ({"params": "1.3B"}, "no plain number (a unit"),
    ({"tokens": "1,000,000"}, "no plain number"),
    ({"params": ""}, "params is missing"),
    ({"tokens": "1e400"}, "not finite"),
    ({"state": "crashed"}, "state is crashed"),
    ({"state": "running"}, "state is running"),
    ({"tokens_x": 1 / 4096}, "in place of tokens"),
    ({"flops_x": 1e-6}, "another unit"),
    ({"flops_x": 1 / 3}, "counted as 2ND among 6ND"),
    ({"flops_x": 3.0}, "counted as 6ND among 2ND"),
    ({"cooked": 0.6}, "undercooked"),
    ({"schedule": "constant"}, "mixed schedules"),
    ({"steps": 500, "planned_steps": 1000}, "before its decay ended"),
]


@pytest.mark.parametrize(("change", "reason"), SPOILED)
def test_one_bad_row_is_out_with_its_reason(simulated: Simulated, write: Write, ask: Ask, change: dict[str, Any], reason: str) -> None:
    rows = [{**row, "state": "finished", "schedule": "cosine", "steps": 1000, "planned_steps": 1000} for row in simulated()]
    bad = rows[3]
    for name in ("tokens", "flops"):
        bad[name] *= change.get(f"{name}_x", 1.0)
    for name in ("tokens", "flops"):
        bad[name] *= change.get("cooked", 1.0)
    bad |= {key: value for key, value in change.items() if key in bad}
    if "flops_x" in change:
        bad["budget"] = bad["flops"]
    code, said = ask("fit", "--csv", write(rows), "--approach", "2", *FAST)
    assert code == 0 and list(reasons(said)) == [5] and reason in reasons(said)[5]
    assert said["data"]["rows"] == {"read": 28, "used": 27, "excluded": 1, "not_selected": 0}
    jsonschema.validate(said["data"], SCHEMA)


def test_tokens_of_one_step(simulated: Simulated, write: Write, read: Read) -> None:
    rows = [{**row, "steps": 1000} for row in simulated()]
    del rows[0]["flops"]
    for row in rows:
        row.pop("flops", None)
        row.pop("budget")
    rows[2]["tokens"] /= 1000
    found = read(write(rows))
    assert len(found) == 27 and "tokens of one step" in found.excluded[0]["reason"]


def test_duplicates_and_respawns(simulated: Simulated, write: Write, read: Read) -> None:
    rows = simulated()
    rows += [dict(rows[0]), {**rows[1], "loss": rows[1]["loss"] + 0.1}]
    path = write(rows)
    found = read(path)
    assert {row["row"].rpartition(":")[2]: row["reason"].split(":")[0] for row in found.excluded} == {
        "3": "run again",
        "30": f"duplicate of {path}".split(":")[0],
    }
    assert len(read(path, repeats="all")) == 29
    assert read(path, repeats="min").loss.max() == pytest.approx(max(row["loss"] for row in rows[:28]))
    mean = read(path, repeats="mean")
    assert len(mean) == 28 and rows[1]["loss"] + 0.05 in mean.loss.tolist()


def test_a_seed_column_tells_repeats_apart(simulated: Simulated, write: Write, read: Read) -> None:
    rows = [{**row, "seed": seed, "loss": row["loss"] + seed / 1000} for row in simulated() for seed in (0, 1)]
    assert len(read(write(rows))) == 56
    words = [{**row, "optimizer": name} for row in simulated() for name in ("adamw", "muon")]
    assert len(read(write(words, "words.csv"))) == 56


def test_a_duplicated_column_is_refused(write: Write, ask: Ask) -> None:
    code, said = ask("fit", "--csv", write("params,tokens,loss,loss\n1e6,1e8,3.1,3.2\n"))
    assert code == 2 and "stands 2 times" in said["findings"][0]["message"]


REFUSED = {
    "": "is empty",
    "params,tokens,loss\n": "no rows",
    "params,tokens\n1e6,1e8\n": "no column holds loss",
    "params,loss\n1e6,3\n": "no column holds tokens",
    "params,tokens,loss\n1e6,1e8,nan\n2e6,1e8,nan\n": "no row may be fitted",
    "\0\0\0": "is binary",
    '{"params": 1}\n[1]\n': "is no JSON object",
}


@pytest.mark.parametrize("text", REFUSED)
def test_refused_by_name(write: Write, ask: Ask, text: str) -> None:
    code, said = ask("fit", "--csv", write(text))
    assert code == 2 and REFUSED[text] in said["findings"][0]["message"] and said["data"] is None


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, ask: Ask) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    os.mkfifo(tmp_path / "events.out.tfevents.1")
    for action in (("fit", "--csv"), ("collect",)):
        code, said = ask(*action, str(tmp_path / "pipe.csv"))
        assert code == 2 and "no plain file" in said["findings"][0]["message"]
    (tmp_path / "loop.csv").symlink_to("loop.csv")
    code, said = ask("collect", str(tmp_path))
    assert code == 2 and "holds no run folder" in said["findings"][0]["message"]


def test_semicolons_and_broken_lines(simulated: Simulated, write: Write, read: Read) -> None:
    rows = simulated()
    lines = [";".join(map(str, row.values())) for row in rows]
    assert len(read(write(";".join(rows[0]) + "\n" + "\n".join(lines) + "\n"))) == 28
    found = read(write("".join(json.dumps(row) + "\n" for row in rows) + '{"params": 1e6, "tok', "cut.jsonl"))
    assert len(found) == 28 and [row["reason"] for row in found.excluded] == ["is no JSON object"]
    with pytest.raises(UserError, match="holds no params that can be read .*2: 1 cells under a header of 3"):
        read(write("params,tokens,loss\n1e6\n,,\n"))


def test_few_replicates_are_no_interval_and_least_squares_are_asked_by_name(simulated: Simulated, write: Write, ask: Ask) -> None:
    table = write(simulated())
    code, said = ask("fit", "--csv", table, "--bootstrap", "19")
    assert code == 2 and "20 replicates" in said["findings"][0]["message"]
    code, said = ask("fit", "--csv", table, "--bootstrap", "0", "--approach", "3", "--delta", "inf")
    assert code == 0 and said["data"]["settings"]["delta"] == "inf"


@pytest.mark.parametrize("shape", [lambda i: 3.0, lambda i: 4 - 0.03 * (i - 2) ** 2, lambda i: 4 - 0.1 * i + 0.001 * i * i])
def test_surfaces_without_an_optimum_are_drawn_and_told(
    write: Write, ask: Ask, tmp_path: Path, capsys: pytest.CaptureFixture[str], shape: Callable[[int], float]
) -> None:
    """Flat, concave and edge-only budgets: no number stands first, and no curve of optima is drawn."""
    sizes = (1e6, 1e7, 1e8, 1e9, 1e10)
    rows = [{"params": n, "tokens": c / 6 / n, "flops": c, "loss": shape(i)} for c in (1e17, 1e18, 1e19) for i, n in enumerate(sizes)]
    page = tmp_path / "fit.html"
    assert cli.main(["isoflop", "fit", "--csv", write(rows), *FAST, "--html", str(page), "--forecast-flops", "1e20"]) == 0
    text = capsys.readouterr().out
    assert "verdict: underdetermined" in text and "approach 3: a = " not in text and "vpnls: a = " not in text
    assert all("(underdetermined)" in line for line in text.splitlines() if line.startswith("forecast"))
    assert "not told by these rows" in page.read_text()


@pytest.mark.parametrize("points", [1, 2, 3])
def test_too_few_sizes_are_no_parabola(simulated: Simulated, write: Write, ask: Ask, points: int) -> None:
    code, said = ask("fit", "--csv", write(simulated(points=points)), "--approach", "2", *FAST)
    fit = said["data"]["fits"][0]
    assert code == 1 and fit["exponents"]["a"] is None and "sizes a parabola needs" in fit["refused"] and not fit["intervals"]
    assert said["data"]["verdict"] == "underdetermined"


def test_one_budget_gives_no_exponent(simulated: Simulated, write: Write, ask: Ask) -> None:
    code, said = ask("fit", "--csv", write([row for row in simulated() if row["flops"] < 2e17]), "--bootstrap", "30")
    two, three, vpnls = said["data"]["fits"]
    assert code == 0 and two["exponents"]["a"] is None and two["refused"]
    assert {three["verdict"], vpnls["verdict"], said["data"]["verdict"]} <= {"weak", "underdetermined"}
    assert three["verdict"] == "underdetermined"


def test_a_concave_budget_has_no_minimum(simulated: Simulated, write: Write, ask: Ask) -> None:
    rows = simulated()
    for row in rows[:7]:
        row["loss"] = 8 - row["loss"]
    code, said = ask("fit", "--csv", write(rows), "--approach", "2", *FAST)
    first, *others = said["data"]["budgets"]
    assert code == 0 and first["params"] is None and "concave" in first["refused"] and all(b["params"] for b in others)


@pytest.mark.parametrize("side", [-1, 1])
def test_a_minimum_at_the_edge_is_no_optimum(simulated: Simulated, write: Write, ask: Ask, side: int) -> None:
    rows = [row for k, row in enumerate(simulated(points=9, spread=30, sigma=0.001)) if (k % 9 >= 5 if side > 0 else k % 9 <= 3)]
    _, said = ask("fit", "--csv", write(rows), "--approach", "2", *FAST)
    assert all(b["params"] is None and ("edge" in b["refused"] or "significant" in b["refused"]) for b in said["data"]["budgets"])
    assert said["data"]["fits"][0]["exponents"]["a"] is None and said["data"]["verdict"] == "underdetermined"


def test_pure_noise_is_underdetermined(write: Write, ask: Ask, simulated: Simulated) -> None:
    rows = [{**row, "loss": 3 + random.Random(k).gauss(0, 0.05)} for k, row in enumerate(simulated())]
    _, said = ask("fit", "--csv", write(rows), *FAST)
    assert said["data"]["verdict"] == "underdetermined" and "look for rows" in said["data"]["remedy"]["reason"]


def test_rows_of_two_studies_are_told(simulated: Simulated, write: Write, ask: Ask) -> None:
    rows = [{**row, "dataset": name} for name, seed in (("c4", 0), ("web", 1)) for row in simulated(seed=seed)]
    _, said = ask("fit", "--csv", write(rows), "--approach", "2", *FAST)
    assert any(f["rule"] == "iso-mixed" and "'c4'" in f["message"] for f in said["findings"])
    _, said = ask("fit", "--csv", write(rows), "--where", "dataset=c4", "--approach", "2", *FAST)
    assert said["data"]["rows"]["not_selected"] == 28 and not any(f["rule"] == "iso-mixed" for f in said["findings"])


def test_cells_too_many_are_listed(write: Write, read: Read) -> None:
    found = read(write("params,tokens,loss\n1e6,1e8,3.1\n1e6,1e8\n2e6,1e8,3\n"))
    assert len(found) == 2 and "2 cells under a header of 3" in found.excluded[0]["reason"]


def test_ties_of_the_highest_loss_go_too(write: Write, read: Read) -> None:
    found = read(
        write("params,tokens,loss\n" + "".join(f"{k}e6,1e8,{loss}\n" for k, loss in enumerate([5, 5, 4, 3, 2], 1))), exclude_highest_loss=1
    )
    assert found.loss.tolist() == [4, 3, 2]


def test_derived_fields_are_said(write: Write, ask: Ask, simulated: Simulated) -> None:
    rows = [{"params": r["params"], "flops": r["flops"], "loss": r["loss"]} for r in simulated()]
    _, said = ask("fit", "--csv", write(rows), "--flops-rule", "2nd", "--approach", "3", *FAST)
    told = {row["name"]: row for row in said["inferred"]}
    assert told["tokens"]["value"] == "C = 2 N D" and "--flops-rule 2nd" in told["tokens"]["source"]


def test_the_order_of_rows_does_not_matter(simulated: Simulated, write: Write, read: Read) -> None:
    rows = simulated()
    one = read(write(rows))
    random.Random(0).shuffle(rows)
    two = read(write(rows, "shuffled.csv"))
    assert sorted(zip(one.params, one.loss, one.budgets, strict=True)) == sorted(zip(two.params, two.loss, two.budgets, strict=True))


CELLS = st.one_of(
    st.floats().map(str),
    st.integers().map(str),
    st.sampled_from(["", "nan", "-inf", "1e3", "3B", '"', "a,b", "0x10", "1_0"]),
    st.text(max_size=5),
)


@given(st.lists(st.tuples(CELLS, CELLS, CELLS, CELLS), max_size=12))
def test_any_cells_are_taken_or_left_out_with_a_reason(tmp_path_factory: pytest.TempPathFactory, cells: list[tuple[str, ...]]) -> None:
    path = tmp_path_factory.mktemp("any") / "t.csv"
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("params", "tokens", "flops", "loss"), *cells])
    try:
        found = study(read_tables([str(path)], mapping([], [], [])), Wishes(repeats="all"))
    except UserError:
        return
    assert len(found) + len(found.excluded) <= len(cells) and all(row["reason"] for row in found.excluded)
    for values in (found.params, found.tokens, found.flops, found.loss):
        assert all(math.isfinite(v) and v > 0 for v in values)


@pytest.mark.long
def test_a_million_rows(tmp_path: Path, ask: Ask) -> None:
    """Memory is linear: the numbers take 8 bytes a field, and what is fitted at once is cut into pieces."""
    import resource

    import numpy as np

    from trainwright.isoflop.power import REFERENCE

    rng = np.random.default_rng(0)
    flops = 10 ** rng.uniform(17, 21, 1_000_000)
    n = REFERENCE.optimal_params(flops) * np.exp(rng.uniform(-1.5, 1.5, len(flops)))
    loss = REFERENCE.loss(n, flops / 6 / n) * np.exp(rng.normal(0, 0.004, len(flops)))
    path = tmp_path / "million.csv"
    np.savetxt(path, np.stack([n, flops / 6 / n, flops, loss], 1), delimiter=",", header="params,tokens,flops,loss", comments="")
    out = tmp_path / "out.csv"
    code, said = ask("collect", str(path), "--csv", str(out))
    assert code == 0 and said["data"]["rows"]["used"] == 1_000_000
    code, said = ask("fit", "--csv", str(out), "--approach", "3", "--bootstrap", "20")
    assert said["data"]["fits"][0]["exponents"]["a"] == pytest.approx(REFERENCE.exponent, abs=2e-3)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 * 2**20  # KiB


def test_a_column_that_is_not_there_is_answered_with_those_that_are(ask: Ask, write: Write) -> None:
    row = {"params": 1e6, "tokens": 1e8, "loss": 3.0} | {f"c{number}": 1 for number in range(40)}
    code, said = ask("fit", "--csv", write([row]), "--where", "dataset=x")
    words = said["findings"][0]["message"]
    assert code == 2 and "there is no column 'dataset' for --where; the columns are 'params', 'tokens', 'loss', 'c0'" in words
    assert words.endswith("and 23 more")
