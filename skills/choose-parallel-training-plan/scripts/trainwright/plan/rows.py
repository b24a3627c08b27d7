# plan/rows.py without its comments
from __future__ import annotations

import codecs
import csv
import io
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from trainwright.cost.layers import Network, network
from trainwright.cost.machine import Machine, machine
from trainwright.document import read_text
from trainwright.errors import UserError
from trainwright.model import ModelSpec
from trainwright.parallel import Loss, Plan, PlanError, Precision, Recompute
from trainwright.parts import Attention, Block, Decoder, Embedding, Head, Mlp, Norm, Run

GIB = 2**30
SHARDED = {
    "none": (0, True),
    "ddp": (0, True),
    "zero1": (1, True),
    "distributed_optimizer": (1, True),
    "distopt": (1, True),
    "zero2": (2, True),
    "zero3": (3, True),
    "fsdp": (3, True),
    "fsdp2": (3, True),
    "fsdp_full": (3, True),
    "fsdp_grad_op": (3, False),
    "shard_grad_op": (3, False),
}
RECOMPUTED: dict[str, Recompute] = {"none": "none", "selective": "selective", "selective_op": "selective_op", "full": "full"}
FALSE = ("0", "0.0", "false", "no", "none")
NEEDED = ("hardware", "n_gpus", "layers", "hidden", "heads", "vocab")
LARGEST_COUNTS = {"layers": 10_000, "hidden": 10**6, "heads": 10**5, "kv_heads": 10**5}
LOSS_ASSUMED = "loss eager (not stated)"
LARGEST_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class Row:

    number: int
    cells: Mapping[str, str]
    network: Network | None = None
    machine: Machine | None = None
    plan: Plan | None = None
    seq_len: int = 0
    global_batch: int = 0
    reason: str = ""
    assumed: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.cells.get("row_id") or f"row {self.number}"

    @property
    def source(self) -> str:
        return self.cells.get("source") or "this file"

    @property
    def seconds(self) -> float | None:
        return self._measured("step_time_s")

    @property
    def memory_gib(self) -> float | None:
        return self._measured("mem_gb")

    @property
    def oom(self) -> bool | None:
        word = self.cells.get("oom", "").strip().lower()
        return None if word == "" else word in ("1", "true", "yes")

    def _measured(self, name: str) -> float | None:
        try:
            value = float(self.cells.get(name, "") or "nan")
        except ValueError:
            return None
        return value if math.isfinite(value) and value > 0 else None

    @property
    def workload(self) -> tuple[Any, ...]:
        names = ("source", "hardware", "precision", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq", "gbs", "n_gpus")
        return tuple(self.cells.get(name, "") for name in names)


def read_rows(path: str) -> tuple[list[str], list[Row]]:
    text = read_text(path).removeprefix(codecs.BOM_UTF8.decode())
    try:
        reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        columns = list(reader.fieldnames or ())
        if twice := [name for name, count in Counter(columns).items() if count > 1 and name]:
            raise UserError(f"{path}: the column {twice[0][:80]!r} stands there twice; which one counts?")
        if lost := [name for name in NEEDED if name not in columns]:
            raise UserError(f"{path}: the columns {', '.join(lost)} are missing; give those of throughput.csv")
        cells = [{str(k): v or "" for k, v in line.items() if k is not None and not isinstance(v, list)} for line in reader]
    except csv.Error as problem:
        raise UserError(f"{path}: is no CSV: {problem}") from None
    if len(cells) > LARGEST_ROWS:
        raise UserError(f"{path}: {len(cells)} rows are more than the {LARGEST_ROWS} that are read")
    return columns, [row_of(number, line) for number, line in enumerate(cells, start=2)]


def row_of(number: int, cells: Mapping[str, str]) -> Row:
    try:
        return _row(number, cells)
    except UserError as problem:
        return Row(number, cells, reason=str(problem))


class _Cells:

    def __init__(self, cells: Mapping[str, str]) -> None:
        self.cells = cells
        self.assumed: list[str] = []

    def number(self, name: str, default: float | None = None) -> float:
        text = self.cells.get(name, "").strip()
        if not text:
            if default is None:
                raise UserError(f"{name} is not given")
            return default
        try:
            value = float(text)
        except ValueError:
            raise UserError(f"{name} {text[:40]!r} is no number") from None
        if not math.isfinite(value):
            raise UserError(f"{name} {text[:40]!r} is not finite")
        return value

    def count(self, name: str, default: int | None = None, assume: str = "") -> int:
        if assume and not self.cells.get(name, "").strip():
            self.assumed.append(f"{name} {default} ({assume})")
        value = self.number(name, default)
        largest = LARGEST_COUNTS.get(name, 10**7)
        if default == 0 == value:
            return 0
        if value != int(value) or not 0 < value <= largest:
            raise UserError(f"{name} is {value:g}; it has to be a whole number from 1 to {largest:,}")
        return int(value)

    def flag(self, name: str, default: bool) -> bool:
        word = self.word(name)
        return default if not word else word not in FALSE

    def word(self, name: str) -> str:
        return self.cells.get(name, "").strip().lower()


def _row(number: int, cells: Mapping[str, str]) -> Row:
    c = _Cells(cells)
    seq = c.count("seq")
    net = _network(
        cells.get("model", "") or "model",
        c.count("layers"),
        c.count("hidden"),
        c.count("heads"),
        c.count("kv_heads", c.count("heads")),
        c.count("ffn", 4 * c.count("hidden")),
        c.flag("gated", False),
        c.count("vocab"),
        c.flag("tied_embed", True),
        seq,
    )
    if c.count("hidden") % c.count("heads"):
        c.assumed.append(f"heads {_whole_heads(c.count('hidden'), c.count('heads'))}: {c.count('heads')} do not divide the width")
    devices = c.count("n_gpus")
    inter = c.number("inter_gbps_per_gpu", 0.0) * 1e9 / 8
    memory = c.number("gpu_mem_gb", 0.0) * GIB or None
    found = machine(cells["hardware"], devices, c.count("gpus_per_node", 0) or None, inter or None, memory)
    batch = c.count("gbs")
    plan = _plan(c, devices, batch, net)
    batch = _whole(c, batch, plan.dp * plan.micro_batch)
    if "loss mode:" not in c.word("notes"):
        c.assumed.append(LOSS_ASSUMED)
    return Row(number, cells, net, found, plan, seq, batch, "", tuple(c.assumed))


@cache
def _network(name: str, layers: int, hidden: int, heads: int, kv: int, ffn: int, gated: bool, vocab: int, tied: bool, seq: int) -> Network:
    heads, kv = (heads, kv) if hidden % heads == 0 else (_whole_heads(hidden, heads),) * 2
    dim = max(hidden // heads, 1)
    norm = Norm("rms" if gated else "layer", bias=not gated)
    attention = Attention(heads, kv, dim, dim, qkv_bias=not gated, out_bias=not gated, fused=kv == heads)
    block = Block(hidden, attention, Mlp(ffn, gated, bias=not gated), norm)
    decoder = Decoder("row", "Block", Embedding(vocab, hidden), (Run(layers, block),), norm, Head(tied), seq)
    return network(ModelSpec(name, "row", decoder))


def _whole(c: _Cells, batch: int, at_once: int) -> int:
    if batch < at_once:
        raise PlanError(f"global batch {batch} is less than dp x micro batch = {at_once}")
    passes = -(-batch // at_once)
    if passes * at_once != batch:
        c.assumed.append(f"{passes} passes: global batch {batch} is no multiple of {at_once}")
    return passes * at_once


def _whole_heads(hidden: int, heads: int) -> int:
    fitting = [n for n in range(1, hidden // 8 + 1) if hidden % (8 * n) == 0]
    return min(fitting, key=lambda n: (abs(n - heads), n)) if fitting else 1


def _plan(c: _Cells, devices: int, batch: int, net: Network) -> Plan:
    tp, pp, cp, ep = (c.count(name, 1) for name in ("tp", "pp", "cp", "ep"))
    if devices > 1 and not any(c.word(name) for name in ("dp", "tp", "pp")):
        raise PlanError("the plan is not stated: dp, tp and pp are empty")
    dp = c.count("dp", max(devices // (tp * pp * cp), 1))
    if dp * tp * pp * cp != devices:
        raise PlanError(f"dp {dp} x tp {tp} x pp {pp} x cp {cp} is not the {devices} devices of the row")
    stage, reshard = _sharded(c)
    virtual = c.count("vpp", 1) if pp > 1 else 1
    recompute, budget = _recompute(c)
    micro = c.count("mbs", 1 if pp > 1 else max(min(batch // dp, 4), 1), "not stated")
    return Plan(
        dp_replicate=dp if stage == 0 else 1,
        dp_shard=1 if stage == 0 else dp,
        tp=tp,
        sequence_parallel=c.flag("seq_par", False) and tp > 1,
        pp=pp,
        cp=cp,
        ep=ep,
        virtual_stages=virtual,
        micro_batch=micro,
        schedule=_schedule(c, pp, virtual),
        recompute=recompute,
        activation_budget=budget,
        zero_stage=stage,
        reshard_after_forward=reshard,
        loss=_loss(c),
        precision=_precision(c),
        gradient_bytes=_gradient_bytes(c, stage),
        compiled=c.flag("compile", False),
        flash_attention=c.flag("flash", True),
        async_tp="asynctp" in c.word("notes"),
        overlap_gradients=pp == 1,
        one_rail=c.word("dp_shard").startswith("zero3"),
    )


def _sharded(c: _Cells) -> tuple[int, bool]:
    word = c.word("dp_shard").replace("-", "_")
    known = [name for name in SHARDED if name in word]
    if word and not known:
        c.assumed.append(f"nothing sharded: dp_shard {word[:40]!r} is not known")
    return SHARDED[max(known, key=len)] if known else SHARDED["none"]


def _schedule(c: _Cells, pp: int, virtual: int) -> Any:
    if pp == 1:
        return "none"
    word = c.word("schedule").replace("_", "-")
    if virtual > 1:
        return "interleaved"
    return {"gpipe": "gpipe", "afab": "gpipe", "zero-bubble": "zero-bubble"}.get(word, "1f1b")


def _recompute(c: _Cells) -> tuple[Recompute, float]:
    word = c.word("recompute").replace("-", "_") or "none"
    if word.startswith("act_budget_"):
        try:
            budget = float(word.rpartition("_")[2])
        except ValueError:
            budget = math.nan
        if not 0 < budget <= 1:
            raise UserError(f"recompute {word[:40]!r}: a budget is a share of activations, above 0 and at most 1")
        return ("budget", budget) if budget < 1 else ("none", 1.0)
    known = [name for name in RECOMPUTED if word.startswith(name)]
    if not known:
        c.assumed.append(f"no recompute: {word[:40]!r} is not known")
    return RECOMPUTED[max(known, key=len)] if known else "none", 1.0


def _loss(c: _Cells) -> Loss:
    word = c.word("notes").partition("loss mode:")[2].strip().split(";")[0]
    return "compiled" if word.startswith(("compiled", "chunked-backward")) else "eager"


def _precision(c: _Cells) -> Precision:
    word = c.word("precision")
    known: tuple[Precision, ...] = ("fp8", "bf16", "fp16", "fp32")
    found = next((one for one in known if one in word), None)
    if found is None:
        c.assumed.append("precision bf16 (not stated)")
    return found or "bf16"


def _gradient_bytes(c: _Cells, stage: int) -> int:
    return 4 if "fp32grad" in c.word("precision") or stage == 3 else 2
