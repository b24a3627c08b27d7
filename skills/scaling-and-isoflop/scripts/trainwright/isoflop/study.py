# isoflop/study.py without its comments
from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright.document import load_mapping
from trainwright.errors import UserError
from trainwright.isoflop import planning, trainer
from trainwright.isoflop.columns import SCHEMA
from trainwright.isoflop.ladder import Member
from trainwright.output import make_folder, write_text
from trainwright.report import finite

ROW = "isoflop.json"
_SAID = ("finished", "diverged", "failed")
_STATES = {"completed": "finished", "nonfinite": "diverged"}


@dataclass(frozen=True, slots=True)
class Study:

    folder: str
    plan: dict[str, Any]

    @property
    def runs(self) -> list[dict[str, Any]]:
        return list(self.plan["runs"])

    def member(self, run: Mapping[str, Any]) -> Member:
        row = next(row for row in self.plan["members"] if row["name"] == run["member"])
        kinds = {key: str(row.get(key) or default) for key, default in (("modality", "text"), ("regime", "e2e"), ("variant", ""))}
        return Member(row["name"], row["config"], **kinds)

    def attempts(self, run: Mapping[str, Any]) -> list[str]:
        found = [os.path.join(self.folder, "runs", run["id"])]
        while os.path.isdir(following := os.path.join(self.folder, "runs", f"{run['id']}.{len(found) + 1}")):
            found.append(following)
        return found

    def row(self, run: Mapping[str, Any]) -> dict[str, Any] | None:
        path = os.path.join(self.attempts(run)[-1], ROW)
        if not os.path.exists(path):
            return None
        value: dict[str, Any] = load_mapping(path, "json").value
        if value.get("fingerprint") != planning.fingerprint(self.plan, run):
            raise UserError(f"{path}: is of other settings than the plan's {run['id']}; name another --scaling-study-dir")
        return value

    def rows(self) -> list[dict[str, Any]]:
        return [row for run in self.runs if (row := self.row(run)) is not None]


def open_study(folder: str, plan_path: str | None) -> Study:
    kept = os.path.join(folder, "plan.yaml")
    if plan_path is None and not os.path.exists(kept):
        raise UserError(f"{folder} holds no plan.yaml; name one: --plan FILE")
    path = plan_path or kept
    plan = load_mapping(path, "yaml").value if path.endswith((".yaml", ".yml")) else load_mapping(path).value
    planning.judge(plan, path)
    return Study(os.path.abspath(folder), plan)


@contextmanager
def held(study: Study) -> Iterator[None]:
    import fcntl

    make_folder(os.path.join(study.folder, "runs"))
    try:
        lock = open(os.path.join(study.folder, "lock"), "a")
    except OSError as problem:
        raise UserError(f"cannot write in {study.folder}: {problem.strerror or problem}; name a writable place") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{study.folder}: another `isoflop launch` is at work in it") from None
        write_text(os.path.join(study.folder, "plan.yaml"), planning.dump(study.plan))
        yield


def request(study: Study, run: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
    study.member(run).write(study.folder)
    if study.plan.get("trainer"):
        return _users(study, run, timeout_s)
    run_dir, _ = _place(study, run)
    return {"kind": "reference", "job": job_of(study, run, timeout_s), "run_dir": run_dir, "stall_s": min(timeout_s, 600.0)}


def job_of(study: Study, run: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
    run_dir, resume = _place(study, run)
    member, said = study.member(run), dict(study.plan.get("job") or {})
    said.pop("threads", None)
    job = {
        **said, "model": member.place(study.folder), "backend_config": os.path.join(study.folder, "backend.yaml"), "world_size": 1,
        "run_dir": run_dir,
        "steps": run["steps"], "micro_batch": run["batch"], "seq_len": run["seq_len"], "learning_rate": run["lr"],
        "schedule": run.get("schedule", "cosine"), "warmup_steps": run["warmup_steps"], "seed": run["seed"], "timeout_s": timeout_s,
        **_evaluations(run, said.get("eval_windows") or 0), "modality": member.modality, "regime": member.regime,
        "variant": member.variant, "resume": resume,
    }
    if member.modality != "text":
        job |= {"order": "walk", "single_pass": False, "tokens": "bytes"}
    return job


def _evaluations(run: Mapping[str, Any], windows: int) -> dict[str, Any]:
    passed = run.get("checkpoints") or [] if run.get("schedule") == "constant" else []
    return {"eval_every": run["steps"], "eval_at": ",".join(map(str, passed))} if windows else {}


def _place(study: Study, run: Mapping[str, Any]) -> tuple[str, str]:
    tried = study.attempts(run)
    for number in range(len(tried), 0, -1):
        if any(Path(tried[number - 1], "checkpoints").glob("step_*/complete.json")):
            return os.path.join(study.folder, "runs", f"{run['id']}.{number + 1}"), tried[number - 1]
    return tried[0], ""


def values(study: Study, run: Mapping[str, Any]) -> dict[str, Any]:
    member, run_dir = study.member(run), study.attempts(run)[0]
    named = {"run_dir": run_dir, "model": member.place(study.folder), "warmup": run["warmup_steps"], "run_id": run["id"]}
    kinds = {"modality": member.modality, "regime": member.regime, "variant": member.variant}
    same = ("tokens", "steps", "batch", "seq_len", "lr", "seed", "budget", "params", "flops")
    return {**named, **kinds, **{key: run[key] for key in same}}


def _users(study: Study, run: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
    own, told = trainer.of_mapping(study.plan["trainer"], "the plan"), values(study, run)
    argv = [trainer.filled(word, told) for word in own.argv]
    return {"kind": "trainer", "argv": argv, "run_dir": told["run_dir"], "results": trainer.results_path(own, told), "timeout_s": timeout_s}


def close(study: Study, run: Mapping[str, Any], code: int, words: str) -> dict[str, Any] | None:
    if code == 130 or code < 0:
        return None
    found = _users_end(study, run, code, words) if study.plan.get("trainer") else _reference_end(study, run, code, words)
    row = {**_planned(study, run), **found, "fingerprint": planning.fingerprint(study.plan, run)}
    write_text(os.path.join(study.attempts(run)[-1], ROW), json.dumps(finite(row), indent=1) + "\n")
    return row


def _planned(study: Study, run: Mapping[str, Any]) -> dict[str, Any]:
    member = next(row for row in study.plan["members"] if row["name"] == run["member"])
    counts = member["params"]
    same = ("budget", "params", "tokens", "steps", "lr", "seed", "batch_tokens", "flops_per_token", "flops", "schedule")
    text = member.get("modality", "text") == "text"
    return {
        "experiment": os.path.basename(study.folder),
        "run_id": run["id"],
        **{key: run[key] for key in same if key in run},
        "planned_steps": run["steps"],
        "warmup": run["warmup_steps"],
        "params_nonembed": counts.get("nonembedding"),
        "params_head": counts.get("head"),
        "params_embed": counts.get("embedding"),
        "flops_rule": member.get("flops_rule"),
        "family": member.get("modality", "text"),
        "backbone": "" if text else member["name"].rpartition("-")[0],
        "regime": "" if text else member.get("regime"),
    }


def _reference_end(study: Study, run: Mapping[str, Any], code: int, words: str) -> dict[str, Any]:
    lines = [line for place in study.attempts(run) for line in trainer.results_of(os.path.join(place, "perf", "rank0.jsonl"))]
    steps = [line for line in lines if line.get("kind") == "step"]
    last = steps[-1] if steps else {}
    end: dict[str, Any] = next((line for line in reversed(lines) if line.get("kind") == "end"), {})
    error = end.get("error") or {}
    state = "finished" if code == 0 and last.get("step") == run["steps"] else _STATES.get(str(error.get("type")), "failed")
    loss = last.get("eval_loss", last.get("loss")) if state == "finished" else None
    header = next((line for line in lines if line.get("kind") == "header"), {})
    seconds = sum(step["step_time_s"] for step in steps)
    done = {int(line["step"]): int(line["tokens"]) for line in steps}
    windows = (study.plan.get("job") or {}).get("eval_windows") or 0
    return {
        "loss": loss, "state": state, "steps": last.get("step", 0), "wall_sec": seconds,
        "tokens_per_sec": sum(int(step["tokens"]) for step in steps) / seconds if seconds else None,
        "eval_tokens": windows * run["seq_len"] if "eval_loss" in last else None,
        "data_sha": (header.get("data") or {}).get("sha256"),
        "error": "" if state == "finished" else _why(error, words),
        **({} if state == "finished" else {"tokens": sum(done.values()), "flops": sum(done.values()) * run["flops_per_token"]}),
    }


def _why(error: Mapping[str, Any], words: str) -> str:
    said = " ".join(str(error.get(key) or "") for key in ("exception", "message")).strip()
    return (said or words or "its process ended without a word")[:400]


def _users_end(study: Study, run: Mapping[str, Any], code: int, words: str) -> dict[str, Any]:
    own = trainer.of_mapping(study.plan["trainer"], "the plan")
    rows = trainer.results_of(trainer.results_path(own, values(study, run)))
    loss, line = trainer.last_loss(rows)
    said = next((str(row["state"]) for row in reversed(rows) if row.get("state")), "")
    state = said if said in _SAID else _STATES.get(said, "finished" if code == 0 else "failed")
    ended = rows[-1].get("loss") if rows else None
    if line and not (math.isfinite(loss) and (type(ended) is not float or math.isfinite(ended))):
        state = "diverged"
    measured = {key: line[key] for key in ("tokens", "params", "flops", "flops_per_token") if type(line.get(key)) in (int, float)}
    steps = line.get("step")
    missing = "" if line else f"no line with a loss in {trainer.results_path(own, values(study, run))}"
    if missing and state == "finished":
        state = "failed"
    return {
        **measured, "loss": loss if state == "finished" else None, "state": state, "steps": steps if type(steps) is int else run["steps"],
        "tokens_per_sec": trainer.throughput(rows), "error": "" if state == "finished" else (missing or words)[:400],
    }


def table(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    names = [name for name in SCHEMA if name in SCHEMA[:6] or any(row.get(name) not in (None, "") for row in rows)]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*names, "error"])
    for row in sorted(rows, key=lambda row: (row["budget"], row["params"], row["seed"])):
        said = [row.get(name) for name in names]
        error = re.sub(r"\s+", " ", str(row.get("error") or ""))
        writer.writerow([*("" if value is None else repr(value) if type(value) is float else value for value in said), error])
    return text.getvalue()
