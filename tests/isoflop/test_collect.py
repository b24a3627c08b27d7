"""`isoflop collect`: run folders, event files, exports; windows, pieces, and what is left out."""

from __future__ import annotations

import csv
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.errors import UserError
from trainwright.isoflop.events import crc32c, masked, read_events

Ask = Callable[..., tuple[int, dict[str, Any]]]


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8") as file:
        return list(csv.DictReader(file))


def make_run(
    folder: Path, losses: list[float | None], side: dict[str, Any] | None = None, status: str = "completed", ranks: int = 2
) -> None:
    """A run folder as launch leaves it; every step 1000 tokens a rank."""
    (folder / "perf").mkdir(parents=True)
    for rank in range(ranks):
        header = {
            "kind": "header",
            "rank": rank,
            "started": "2026-01-01",
            "parameters": 1_000_000,
            "job": {"steps": len(losses), "learning_rate": 0.001, "seed": 3},
        }
        steps = [{"kind": "step", "step": k, "tokens": 1000, "loss": loss} for k, loss in enumerate(losses, 1)]
        end = [{"kind": "end", "status": status}] if status else []
        (folder / "perf" / f"rank{rank}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [header, *steps, *end]))
    if side is not None:
        (folder / "isoflop.json").write_text(json.dumps(side))


def test_run_folders(tmp_path: Path, ask: Ask) -> None:
    make_run(tmp_path / "runs" / "a", [5.0, 4.0, 3.0, 2.0], {"flops_per_token": 6.5e6, "budget": 5.2e10, "experiment": "x"})
    make_run(tmp_path / "runs" / "b", [5.0, 4.0], status="failed")
    make_run(tmp_path / "runs" / "c", [5.0, None])
    make_run(tmp_path / "runs" / "d", [5.0], status="")
    out = tmp_path / "out.csv"
    code, said = ask("collect", str(tmp_path / "runs"), "--eval-window", "2", "--csv", str(out))
    (row,) = rows_of(out)
    assert code == 0 and row["run_id"] == "a" and float(row["loss"]) == 2.5 and row["tokens"] == "8000" and row["params"] == "1000000"
    assert float(row["flops"]) == 8000 * 6.5e6 and row["seed"] == "3" and row["state"] == "finished" and row["experiment"] == "x"
    assert float(row["loss_std"]) == pytest.approx(0.70710678)
    reasons = {r["row"].split("/runs/")[1].split("/")[0]: r["reason"] for r in said["data"]["excluded"]}
    assert reasons["b"] == "the run's state is failed" and reasons["d"] == "the run's state is killed" and "not finite" in reasons["c"]


def constant_run(folder: Path, size: float, steps: int, passed: tuple[int, ...]) -> None:
    """A run at a constant rate, evaluated at its end and where it passed lower budgets."""
    make_run(folder, [9.0] * steps, {"params": size, "flops_per_token": 6 * size, "budget": 1e30, "schedule": "constant"}, ranks=1)
    lines = [json.loads(line) for line in (folder / "perf" / "rank0.jsonl").read_text().splitlines()]
    for line in lines:
        if line.get("step") in (*passed, steps):
            line["eval_loss"] = 1.8 + 400 / size**0.35 + 400 / (1000.0 * line["step"]) ** 0.35
    (folder / "perf" / "rank0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_every_evaluation_is_a_row_and_approach_1_reads_them(tmp_path: Path, ask: Ask) -> None:
    for k in range(7):
        size = 4e3 * 2.0**k
        constant_run(tmp_path / "runs" / f"r{k}", size, 400, (3, 6, 12, 25, 50, 100, 200))
    out = tmp_path / "out.csv"
    code, said = ask("collect", str(tmp_path / "runs"), "--every-eval", "--csv", str(out))
    rows = rows_of(out)
    assert code == 0 and said["data"]["rows"] == {"read": 56, "used": 56, "excluded": 0, "not_selected": 0}
    first = next(row for row in rows if row["run_id"] == "r0" and row["steps"] == "12")
    assert (first["tokens"], first["flops"], first["loss"] != "9") == ("12000", str(int(12000 * 24e3)), True) and "budget" not in first
    code, said = ask("fit", "--csv", str(out), "--approach", "1", "--bootstrap", "50")
    assert said["data"]["fits"][0]["exponents"]["a"] == pytest.approx(0.5, abs=0.06)
    assert ask("collect", str(tmp_path / "runs"), "--every-eval", "--eval-window", "2")[0] == 2


def test_a_point_of_a_decaying_run_is_told_and_not_fitted(tmp_path: Path, ask: Ask) -> None:
    constant_run(tmp_path / "r", 1e5, 100, (20, 40))
    side = json.loads((tmp_path / "r" / "isoflop.json").read_text())
    (tmp_path / "r" / "isoflop.json").write_text(json.dumps({**side, "schedule": "cosine"}))
    _, said = ask("collect", str(tmp_path / "r"), "--every-eval")
    assert said["data"]["rows"]["used"] == 1
    assert all("unmatched schedule" in row["reason"] for row in said["data"]["excluded"]) and len(said["data"]["excluded"]) == 2


def test_missing_stays_missing(tmp_path: Path, ask: Ask) -> None:
    make_run(tmp_path / "a", [5.0, 4.0])
    out = tmp_path / "out.csv"
    ask("collect", str(tmp_path / "a"), "--csv", str(out))
    (row,) = rows_of(out)
    assert row["experiment"] == "" and "budget" not in row and "mfu" not in row


def test_pieces_of_one_run_are_joined_and_the_later_counts(tmp_path: Path, ask: Ask) -> None:
    make_run(tmp_path / "p1", [5.0, 4.0, 3.9], {"run_id": "r"}, status="failed")
    folder = tmp_path / "p2" / "perf"
    folder.mkdir(parents=True)
    rows: list[dict[str, Any]] = [{"kind": "header", "rank": 0, "started": "2026-01-02", "parameters": 1_000_000, "job": {"steps": 5}}]
    rows += [{"kind": "step", "step": k, "tokens": 2000, "loss": 6.0 - k} for k in (3, 4, 5)] + [{"kind": "end", "status": "completed"}]
    (folder / "rank0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "p2" / "isoflop.json").write_text('{"run_id": "r", "tokens": 10000}')
    out = tmp_path / "out.csv"
    code, said = ask("collect", str(tmp_path), "--eval-window", "3", "--csv", str(out))
    (row,) = rows_of(out)
    assert code == 0 and float(row["loss"]) == 2.0 and row["steps"] == "5" and row["tokens"] == "10000"
    assert any("later piece of run r (1 steps were run again" in note for note in said["data"]["notes"])


def test_the_checksum() -> None:
    assert crc32c(b"123456789") == 0xE3069283 and crc32c(b"") == 0  # the check value of CRC-32C


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def field(number: int, wire: int, data: bytes) -> bytes:
    return varint(number << 3 | wire) + (varint(len(data)) if wire == 2 else b"") + data


def record(data: bytes) -> bytes:
    head = struct.pack("<Q", len(data))
    return head + struct.pack("<I", masked(head)) + data + struct.pack("<I", masked(data))


def event(step: int, tensor: bool = False, **values: float) -> bytes:
    summary = b""
    for tag, value in values.items():
        packed = struct.pack("<f", value)
        scalar = field(8, 2, field(1, 0, varint(1)) + field(4, 2, packed)) if tensor else field(2, 5, packed)
        summary += field(1, 2, field(1, 2, tag.replace("__", "/").encode()) + scalar)
    return record(field(1, 1, struct.pack("<d", 1.0)) + field(2, 0, varint(step)) + field(5, 2, summary))


VERSION = record(field(1, 1, struct.pack("<d", 1.0)) + field(3, 2, b"brain.Event:2"))


def test_event_files(tmp_path: Path, ask: Ask) -> None:
    folder = tmp_path / "run7"
    folder.mkdir()
    first = folder / "events.out.tfevents.100.host"
    first.write_bytes(VERSION + b"".join(event(k, eval__loss=4 - k / 10, seen=k * 512.0) for k in range(6)))
    again = folder / "events.out.tfevents.200.host"
    again.write_bytes(VERSION + b"".join(event(k, True, eval__loss=5 - k / 10, seen=k * 512.0) for k in range(5, 9)) + b"\x05\x00")
    out = tmp_path / "out.csv"
    code, said = ask(
        "collect",
        str(tmp_path),
        "--columns",
        "tokens=seen",
        "--set",
        "params=1e6",
        "flops_per_token=7e6",
        "--eval-window",
        "2",
        "--csv",
        str(out),
    )
    (row,) = rows_of(out)
    assert code == 0 and row["run_id"] == "run7" and float(row["loss"]) == pytest.approx(4.25, abs=1e-6) and row["tokens"] == "4096"
    assert float(row["flops"]) == 4096 * 7e6 and row["steps"] == "8"
    notes = " ".join(said["data"]["notes"])
    assert "ends in half a record" in notes and "later piece of run run7" in notes


def test_damaged_event_files(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1"
    good = VERSION + event(1, loss=3.0) + event(2, loss=2.0)
    spoiled = bytearray(good)
    spoiled[-6] ^= 1
    path.write_bytes(bytes(spoiled))
    found = read_events(str(path))
    assert found.values == {"loss": {1: 3.0}} and "wrong checksum" in found.notes[0]
    path.write_bytes(b"not an event file at all")
    with pytest.raises(UserError, match="is no TensorBoard event file"):
        read_events(str(path))
    path.write_bytes(VERSION + record(bytes(2 << 20)) + event(3, loss=1.0))
    assert read_events(str(path)).values == {"loss": {3: 1.0}}


@given(st.binary(max_size=200), st.integers(0, 60))
def test_any_bytes_after_a_good_record(tmp_path_factory: pytest.TempPathFactory, junk: bytes, cut: int) -> None:
    path = tmp_path_factory.mktemp("tb") / "events.out.tfevents.1"
    path.write_bytes(VERSION + event(1, loss=3.0) + record(junk) + junk[:cut])
    assert read_events(str(path)).values.get("loss", {}).get(1) == 3.0


def test_an_export_of_runs_and_their_histories(tmp_path: Path, ask: Ask) -> None:
    (tmp_path / "runs.csv").write_text(
        "Name,State,N,tokens,flops\nbig,finished,2e6,1e8,1.2e15\nsmall,finished,1e6,1e8,6e14\nlost,crashed,3e6,1e8,1.8e15\n"
    )
    (tmp_path / "history.csv").write_text(
        '"Step","big - val/loss","big - val/loss__MIN","small - val/loss","ghost - val/loss"\n1,4,4,5,1\n2,3,3,4,1\n3,2,2,,1\n'
    )
    out = tmp_path / "out.csv"
    code, said = ask("collect", str(tmp_path / "runs.csv"), str(tmp_path / "history.csv"), "--eval-window", "2", "--csv", str(out))
    losses = {row["run_id"]: float(row["loss"]) for row in rows_of(out)}
    assert code == 0 and losses == {"big": 2.5, "small": 4.5}
    assert "state is crashed" in str(said["data"]["excluded"]) and any(
        "'ghost' has a history and no row" in note for note in said["data"]["notes"]
    )


def test_windows_over_a_table_of_checkpoints(tmp_path: Path, ask: Ask) -> None:
    lines = [
        f"{run},{n},{k * 1e6},{loss}"
        for run, n, losses in (("a", 1e6, [5, 4, 3, 2]), ("b", 2e6, [4, 3, "", 2.5]))
        for k, loss in enumerate(losses, 1)
    ]
    (tmp_path / "t.csv").write_text("run,params,tokens,loss\n" + "\n".join(lines) + "\n")
    out = tmp_path / "out.csv"
    ask("collect", str(tmp_path / "t.csv"), "--eval-window", "2", "--csv", str(out))
    assert {row["run_id"]: float(row["loss"]) for row in rows_of(out)} == {"a": 2.5, "b": 2.75}
    ask("collect", str(tmp_path / "t.csv"), "--csv", str(out))
    assert len(rows_of(out)) == 7


def test_collecting_again_changes_nothing(
    tmp_path: Path, ask: Ask, simulated: Callable[..., list[dict[str, Any]]], write: Callable[..., str]
) -> None:
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    ask("collect", write(simulated()), "--csv", str(one))
    ask("collect", str(one), "--csv", str(two))
    assert one.read_text() == two.read_text() and len(rows_of(two)) == 28
    assert [float(r["loss"]) for r in rows_of(two)] == [r["loss"] for r in simulated()]


def test_nothing_to_collect(tmp_path: Path, ask: Ask) -> None:
    for paths, words in (([str(tmp_path)], "holds no run folder"), ([str(tmp_path / "no")], "no such file")):
        code, said = ask("collect", *paths)
        assert code == 2 and words in said["findings"][0]["message"]
    make_run(tmp_path / "a", [5.0], status="failed")
    code, said = ask("collect", str(tmp_path), "--csv", str(tmp_path / "out.csv"))
    assert code == 1 and not (tmp_path / "out.csv").exists() and said["findings"][0]["rule"] == "iso-no-rows"
