"""Rows of measured runs: what each column becomes, and text that is none of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainwright.plan.rows import NEEDED, Row, row_of

CELLS = {
    "hardware": "A100-SXM-80GB(JeanZay)", "gpu_mem_gb": "80", "gpus_per_node": "8", "inter_gbps_per_gpu": "50", "n_gpus": "384",
    "layers": "72", "hidden": "14336", "heads": "64", "ffn": "57344", "gated": "0", "vocab": "250880", "seq": "2048", "tied_embed": "1",
    "gbs": "2048", "mbs": "4", "dp": "8", "tp": "8", "pp": "6", "cp": "1", "ep": "1", "vpp": "1", "dp_shard": "zero1", "seq_par": "0",
    "schedule": "1f1b", "recompute": "full", "precision": "bf16_fp32grad", "flash": "0",
}  # fmt: skip


def row(**cells: str) -> Row:
    return row_of(2, {**CELLS, **cells})


def test_the_columns_of_a_run() -> None:
    found = row()
    plan, machine = found.plan, found.machine
    assert found.reason == "" and plan is not None and machine is not None
    assert (plan.dp_shard, plan.tp, plan.pp, plan.zero_stage, plan.schedule, plan.recompute) == (8, 8, 6, 1, "1f1b", "full")
    assert (plan.gradient_bytes, plan.flash_attention, plan.precision) == (4, False, "bf16")
    assert machine.device.name == "a100" and machine.levels[-1].bandwidth(2) == 50e9 / 8
    assert found.network is not None and found.network.num_layers == 72


def test_words_for_sharding() -> None:
    for word, stage, reshard in (
        ("fsdp_full", 3, True),
        ("fsdp_grad_op", 3, False),
        ("zero2-like(reduce-scatter)", 2, True),
        ("none", 0, True),
    ):
        plan = row(dp_shard=word).plan
        assert plan is not None and (plan.zero_stage, plan.reshard_after_forward) == (stage, reshard)
    odd = row(dp_shard="magic")
    assert odd.plan is not None and odd.plan.zero_stage == 0 and any("'magic'" in one for one in odd.assumed)


def test_a_budget_is_a_share_of_activations() -> None:
    plan = row(recompute="act_budget_0.5").plan
    assert plan is not None and (plan.recompute, plan.activation_budget) == ("budget", 0.5)
    whole = row(recompute="act_budget_1.0").plan
    assert whole is not None and whole.recompute == "none"


def test_heads_that_do_not_divide_the_width_are_assumed() -> None:
    found = row(heads="96")
    assert found.network is not None and found.network.kinds[0].heads == 112
    assert any("do not divide the width" in one for one in found.assumed)


def test_what_cannot_be_a_run_says_why() -> None:
    assert "is not the 384 devices" in row(dp="7").reason
    assert "seq is not given" in row(seq="").reason
    assert "layers is 0" in row(layers="0").reason
    assert "layers is 1e+09" in row(layers="1000000000").reason
    assert "inter_gbps_per_gpu" in row(inter_gbps_per_gpu="many").reason
    assert "no network is given" in row(inter_gbps_per_gpu="").reason
    assert "carries nothing" in row(inter_gbps_per_gpu="-1").reason
    assert "there is no accelerator 'ZX81'" in row(hardware="ZX81").reason


def test_a_batch_that_leaves_a_rest_takes_one_more_pass() -> None:
    found = row(gbs="2040")
    assert found.global_batch == 2048 and any("64 passes" in one for one in found.assumed)
    assert "is less than" in row(gbs="16").reason
    assert "not stated" in row(dp="", tp="", pp="").reason
    assert "a budget is a share" in row(recompute="act_budget_x").reason


def test_an_unstated_micro_batch_is_assumed() -> None:
    found = row(mbs="")
    assert found.plan is not None and found.plan.micro_batch == 1 and "mbs 1 (not stated)" in found.assumed


TEXT = st.one_of(
    st.text(max_size=12), st.sampled_from(["", "0", "-1", "1e400", "nan", "inf", "1_0", "0x10", "9" * 30, "fsdp_full", "act_budget_x"])
)


@given(st.dictionaries(st.sampled_from(sorted(CELLS)), TEXT, max_size=6))
def test_any_cells_make_a_row_or_a_reason(cells: dict[str, str]) -> None:
    found = row(**cells)
    assert (found.plan is None) == bool(found.reason)
    assert set(NEEDED) <= set(CELLS)
