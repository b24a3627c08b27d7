"""The environment that rules judge: read back as written, refused where it is none, and tolerant of what is left out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.check.rules import environment, environment_variables
from trainwright.check.traps import VARIABLES
from trainwright.environment import Device, Environment, Torch, Unmet, from_json
from trainwright.errors import UserError
from trainwright.rules import check_all

assert environment and environment_variables
WHOLE = Environment(
    variables={"FI_PROVIDER": "cxi"},
    versions={"torch": "2.13.0"},
    python="3.11.7",
    torch=Torch("ok", "2.13.0", cuda="12.6", backends=("gloo", "nccl")),
    devices=(Device("cuda", "NVIDIA H200", 1), Device("cuda", "NVIDIA H200", None)),
    seen=("nvidia",),
    nvidia_driver="580.1",
    unmet=(Unmet("a", "b>=1", None),),
    user_packages=("numpy",),
    modules=("x/1",),
    site="aurora",
    role="batch",
    scheduler="pbs",
    nodes=2,
    ranks_per_node=12,
    processors=208,
    memory_bytes=2**40,
    shm_bytes=2**30,
    shadows=("queue.py",),
)


def test_what_is_written_is_read_back() -> None:
    assert from_json(json.loads(json.dumps(WHOLE.to_json())), "x") == WHOLE
    assert from_json(json.loads(json.dumps(Environment().to_json())), "x") == Environment() == from_json({}, "x")


def test_what_jobs_compute_on() -> None:
    assert WHOLE.uses("cuda") and not WHOLE.uses("xpu") and WHOLE.aurora
    assert Environment(torch=Torch(xpu="20250")).uses("xpu") and not Environment(torch=Torch(xpu="20250"), seen=("nvidia",)).uses("xpu")
    assert Environment(seen=("habana",)).uses("hpu") and not Environment().uses("cuda")


def test_versions_are_compared_as_numbers() -> None:
    assert WHOLE.at_least("torch", 2, 9) is True and WHOLE.at_least("torch", 2, 14) is False and WHOLE.at_least("numpy", 1) is None
    assert Environment(versions={"torch": "from source"}).at_least("torch", 2) is None


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_KEYS = st.sampled_from([*WHOLE.to_json(), "x"])


@given(st.dictionaries(_KEYS, _JSON, max_size=6))
def test_anything_is_an_environment_that_rules_can_judge_or_a_mistake_in_one_line(row: dict[str, Any]) -> None:
    try:
        found = from_json(row, "file.json")
    except UserError as problem:
        assert str(problem).startswith("file.json is no recorded environment") and "\n" not in str(problem)
        return
    assert isinstance(check_all(found), list)


@given(
    st.dictionaries(st.sampled_from(VARIABLES), st.text(max_size=30)),
    st.sampled_from(["aurora", "polaris", None]),
)
def test_no_value_of_a_variable_breaks_a_rule(variables: dict[str, str], site: str | None) -> None:
    found = Environment(
        variables=variables, site=site, nodes=2, ranks_per_node=4, processors=8, seen=("nvidia", "intel"), versions={"torch": "2.8"}
    )
    assert all(finding.message for finding in check_all(found))


@pytest.mark.parametrize("key", ["torch", "devices", "unmet", "variables", "versions", "modules"])
def test_a_part_of_another_kind_is_refused(key: str) -> None:
    with pytest.raises(UserError):
        from_json({key: 3}, "x")
