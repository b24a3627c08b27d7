"""One truth: what every strategy trains is what one process trains with the same global batch.

Tolerances follow from the number format. A sum of n rounded terms is off by about eps sqrt(n) of its size, whatever the order
(Higham and Mary, SIAM J. Sci. Comput. 41, 2019); n here: the labels of a step times the longest product in the model. Losses
and norms may differ by that share; parameters after k updates by k times that share of what the updates have changed.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
HAS_DEEPSPEED = importlib.util.find_spec("deepspeed") is not None
pytestmark = [pytest.mark.long]

HELPERS = Path(__file__).resolve().parents[2] / "helpers"
LLAMA: dict[str, object] = {"model_type": "llama", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
LLAMA |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5}
MODELS = {
    "llama": LLAMA,
    "tied": LLAMA | {"tie_word_embeddings": True},
    "mixture": LLAMA | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 2},
}
SAMPLES, GLOBAL, SEQ = 8 * 3 + 5, 8, 16  # three full steps, and one of 5 samples
STEPS = math.ceil(SAMPLES / GLOBAL)
TERMS = GLOBAL * SEQ * 256
EPS32, EPS16, EPSB = (torch.finfo(t).eps for t in (torch.float32, torch.float16, torch.bfloat16))
EXACT = EPS32 * math.sqrt(TERMS)  # 2.2e-5
Case = dict[str, Any]


def case(strategy: Case, ranks: int, rounds: int = 1, model: str = "llama", config: Case | None = None, **job: Any) -> Case:
    """A case on `ranks` ranks: 8 samples a step in `rounds` rounds, AdamW with an epsilon that does not magnify noise."""
    fields: Case = {"steps": 9, "samples": SAMPLES, "micro_batch": GLOBAL // (ranks * rounds), "accumulation": rounds, "seq_len": SEQ}
    fields |= {"learning_rate": 1e-2, "eps": 1e-4, "clip_norm": 0.5, "schedule": "cosine", "warmup_steps": 1, "min_lr_ratio": 0.3}
    return {"strategy": strategy, "model": model, "config": config or {}, "job": fields | job}


def zero(stage: int) -> Case:
    sizes = dict.fromkeys(("reduce_bucket_size", "allgather_bucket_size", "stage3_prefetch_bucket_size"), 20_000)
    return {"zero_optimization": {"stage": stage, **sizes}}


SINGLE, DDP = {"kind": "single"}, {"kind": "ddp"}
FULL: Case = {"kind": "fsdp", "wrap_classes": ["LlamaDecoderLayer"]}
KEPT = FULL | {"reshard_after_forward": False}
MIXED = FULL | {"wrap_classes": ["MixtralDecoderLayer"]}
STAGES = {stage: {"kind": "zero", "zero_stage": stage} for stage in (1, 2, 3)}

IMAGE: Case = {"modality": "text_image", "regime": "projector_only", "seq_len": 32}  # most of its weights are frozen


def exact_cases(ranks: int) -> dict[str, Case]:
    """What has to equal one process within rounding."""
    found: dict[str, Case] = {
        "ddp": case(DDP, ranks),
        "full_shard": case(FULL, ranks),
        "full_shard, 2 rounds": case(FULL, ranks, 2),
        "shard_grad_op": case(KEPT, ranks),
        "shard_grad_op, 2 rounds": case(KEPT, ranks, 2),
        "full_shard, each 2nd block recomputed": case(FULL, ranks, activation_checkpoint_every=2),
    }
    if ranks > 1:
        found |= {
            "ddp, 2 rounds": case(DDP, ranks, 2),
            "ddp, static graph": case(DDP, ranks, static_graph=True),
            "ddp, static graph, 2 rounds": case(DDP, ranks, 2, static_graph=True),
            "ddp, unused parameters sought": case(DDP, ranks, find_unused_parameters=True),
            "ddp, small buckets": case(DDP, ranks, bucket_mb=0.01),
            "full_shard, matrices decay": case(FULL, ranks, decay="matrices", weight_decay=0.3),
            "ddp, compiled": case(DDP, ranks, compile="eager"),
            "full_shard, whole gradients": case(FULL, ranks, 2, whole_gradients=True),
            "full_shard, tied": case(FULL, ranks, model="tied"),
            "ddp, tied": case(DDP, ranks, model="tied"),
        }
    if ranks == 2:
        found |= {"ddp, experts": case(DDP, 2, model="mixture"), "full_shard, experts": case(MIXED, 2, model="mixture")}
        found |= {"ddp, projector": case(DDP, 2, **IMAGE), "full_shard, projector": case(FULL, 2, **IMAGE)}
    if ranks == 4:
        for name, base in (("hsdp", FULL), ("hsdp, kept", KEPT)):
            found |= {name: case(base | {"replicas": 2}, 4), f"{name}, 2 rounds": case(base | {"replicas": 2}, 4, 2)}
        found["hsdp, whole gradients"] = case(FULL | {"replicas": 2}, 4, 2, whole_gradients=True)
        found["hsdp, experts"] = case(MIXED | {"replicas": 2}, 4, model="mixture")
    if HAS_DEEPSPEED:
        found |= {f"zero_{stage}": case(kind, ranks, config=zero(stage)) for stage, kind in STAGES.items()}
        if ranks > 1:
            found |= {f"zero_{stage}, 2 rounds": case(kind, ranks, 2, config=zero(stage)) for stage, kind in STAGES.items()}
        if ranks == 2:
            found["zero_2, experts"] = case(STAGES[2], 2, model="mixture", config=zero(2))
    return found


def rough_cases(ranks: int) -> dict[str, Case]:
    """What has a tolerance of its own."""
    bf16 = {"precision": "bf16"}
    found = {
        "ddp, fp16 hook": case(DDP, ranks, comm_hook="fp16"),
        "ddp, PowerSGD": case(DDP, ranks, comm_hook="powersgd", powersgd_rank=2, powersgd_start=2),
        "ddp, bf16": case(DDP | bf16, ranks),
        "full_shard, bf16": case(FULL | bf16, ranks),
    }
    if HAS_DEEPSPEED:
        found["zero_2, bf16"] = case(STAGES[2] | bf16, ranks, config=zero(2) | {"bf16": {"enabled": True}})
    return found


FAULTS: dict[str, Case] = {
    "norm of one rank": case(FULL, 2),
    "clipped before the sum": case(DDP, 2),
    "no all-reduce": case(DDP, 2),
    "short step weighed as full": case(FULL, 2),
}
LOCAL: Case = {"steps": 4, "samples": None, "micro_batch": 4}


def world_cases(ranks: int) -> dict[str, Case]:
    found = {f"{name} on {ranks}": value for name, value in {**exact_cases(ranks), **(rough_cases(ranks) if ranks == 2 else {})}.items()}
    if ranks == 1:
        found |= {model: case(SINGLE, 1, model=model) for model in MODELS}
        found |= {"projector": case(SINGLE, 1, **IMAGE)}
        found |= {"matrices decay": case(SINGLE, 1, decay="matrices", weight_decay=0.3)}
        found |= {"4 rounds": case(SINGLE, 1, 4), "bf16": case(SINGLE | {"precision": "bf16"}, 1)}
        found |= {f"by hand, period {n}": case(SINGLE, 1, **LOCAL) | {"ranks": 2, "period": n} for n in (1, 3)}
    if ranks == 2:
        found |= {f"fault: {name}": value | {"fault": name} for name, value in FAULTS.items()}
        found |= {f"local, period {n}": case(DDP, 2, local_sgd_steps=n, **LOCAL) for n in (1, 3)}
        found["local, uneven"] = case(DDP, 2, local_sgd_steps=2, samples=8 * 2 + 3)
    return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    """What a case came to; all cases of a world of ranks run in one go, at the first question."""
    out, found = tmp_path_factory.mktemp("truth"), dict[str, Case]()
    for name, config in MODELS.items():
        (out / f"{name}.json").write_text(json.dumps(config))

    def ask(name: str) -> Case:
        ranks = next(ranks for ranks in (1, 2, 4) if name in world_cases(ranks))
        if name not in found:
            found.update(run_world(out, ranks))
        assert "error" not in found[name], found[name]["error"]
        return found[name]

    return ask


def run_world(out: Path, ranks: int) -> dict[str, Case]:
    rows = [{"name": str(index), **value} for index, value in enumerate(world_cases(ranks).values())]
    (out / f"cases{ranks}.json").write_text(json.dumps(rows))
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(HELPERS), "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    script = str(Path(__file__).parent / "ranks" / "truth.py")
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", script, str(out), str(rank), str(ranks)],
            env=variables,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for rank in range(ranks)
    ]
    try:
        said = [process.communicate(timeout=300)[1].decode()[-2000:] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * ranks, said
    return {name: torch.load(out / f"{index}.pt") for index, name in enumerate(world_cases(ranks))}


def changed(found: Case, other: Case) -> float:
    """How far two runs' parameters are apart, as a share of what the first has changed since its start (2-norms)."""
    apart = sum(((found["parameters"][name] - value).double() ** 2).sum() for name, value in other["parameters"].items())
    made = sum(((value - other["start"][name]).double() ** 2).sum() for name, value in other["parameters"].items())
    return float((apart / made).sqrt())


def differences(found: Case, one: Case) -> tuple[float, float, float]:
    """Largest relative difference of a loss and of a norm, and the parameters'."""
    assert found["parameters"].keys() == one["parameters"].keys() and len(found["loss"]) == len(one["loss"]) == STEPS
    pairs = [(found[what], one[what]) for what in ("loss", "norm")]
    loss, norm = (max(abs(a - b) / b for a, b in zip(*pair, strict=True)) for pair in pairs)
    return loss, norm, changed(found, one)


def one_process(name: str) -> str:
    return next((word for word in ("tied", "experts", "projector", "matrices decay") if word in name), "llama").replace(
        "experts", "mixture"
    )


@pytest.mark.parametrize("name", [f"{name} on {ranks}" for ranks in (1, 2, 4) for name in exact_cases(ranks)])
def test_a_strategy_trains_what_one_process_does(name: str, trained: Callable[[str], Case]) -> None:
    found, one = trained(name), trained(one_process(name))
    loss, norm, parameters = differences(found, one)
    print(f"{name}: loss {loss:.1e} norm {norm:.1e} parameters {parameters:.1e}")
    assert loss <= EXACT and norm <= EXACT and parameters <= STEPS * EXACT
    assert found["rate"] == one["rate"] and found["apart"] == 0.0
    assert found["live"]["name"].startswith(name.split(" ")[0].split(",")[0].replace("full_shard", "fsdp").replace("shard_grad_op", "fsdp"))


def test_rounds_of_one_process_are_its_one_batch(trained: Callable[[str], Case]) -> None:
    loss, norm, parameters = differences(trained("4 rounds"), trained("llama"))
    assert loss <= EXACT and norm <= EXACT and parameters <= STEPS * EXACT


# The hook rounds each rank's gradient to fp16 once: a share eps of every element, so of the norm too. bf16: every product is
# rounded to eps, and the blocks' errors add: (layers + head) eps; AdamW turns the sign of a gradient near nothing, which
# its updates show k times. PowerSGD sends 2 of 32 directions: no bound but what its error feedback makes up for.
ROUGH = {
    "ddp, fp16 hook": ("llama", EPS16, EPS16, STEPS * EPS16 * 4),
    "ddp, bf16": ("bf16", EPSB, 4 * EPSB, STEPS * 4 * EPSB),
    "full_shard, bf16": ("bf16", 4 * EPSB, 8 * EPSB, STEPS * 8 * EPSB),
    "zero_2, bf16": ("bf16", 4 * EPSB, 8 * EPSB, STEPS * 8 * EPSB),
    "ddp, PowerSGD": ("llama", 0.01, 1.0, 1.0),
}


@pytest.mark.parametrize("name", rough_cases(2))
def test_a_coarser_number_or_message_stays_within_its_own_tolerance(name: str, trained: Callable[[str], Case]) -> None:
    reference, loss, norm, parameters = ROUGH[name]
    found = trained(f"{name} on 2")
    apart = differences(found, trained(reference))
    print(f"{name}: loss {apart[0]:.1e} norm {apart[1]:.1e} parameters {apart[2]:.1e}")
    assert apart[0] <= loss and apart[1] <= norm and apart[2] <= parameters
    assert max(apart) > EXACT, "and it is not what a step without it computes"
    assert found["apart"] == 0.0


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_trainer_fails_the_comparison(fault: str, trained: Callable[[str], Case]) -> None:
    """By ten times the tolerance at least, so the tolerance is no veil."""
    loss, norm, parameters = differences(trained(f"fault: {fault}"), trained("llama"))
    print(f"{fault}: loss {loss:.1e} norm {norm:.1e} parameters {parameters:.1e}")
    assert parameters > 10 * STEPS * EXACT or loss > 10 * EXACT


@pytest.mark.parametrize("period", [1, 3])
def test_local_sgd_is_the_mean_of_models_trained_apart(period: int, trained: Callable[[str], Case]) -> None:
    """Equal: losses and parameters of models that each rank trains alone and a hand averages. Not equal, even with period 1: one
    process at the global batch, for AdamW of a mean gradient is not the mean of AdamW's steps."""
    found, expected = trained(f"local, period {period}"), trained(f"by hand, period {period}")
    assert max(abs(a - b) / b for a, b in zip(found["loss"], expected["loss"], strict=True)) <= EXACT
    assert changed(expected, found) <= STEPS * EXACT and found["apart"] == 0.0
    assert found["live"]["period"] == period
    assert changed(trained("local, period 3"), trained("local, period 1")) > 0.01


def test_local_sgd_with_a_rank_that_runs_out_ends_with_equal_copies(trained: Callable[[str], Case]) -> None:
    found = trained("local, uneven")
    assert len(found["loss"]) == 3 and found["apart"] == 0.0 and all(map(math.isfinite, found["loss"] + found["norm"]))
