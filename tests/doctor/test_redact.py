"""The report to share: whatever a name is hidden in, it does not come out; what a maintainer needs does."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.check.traps import VARIABLES
from trainwright.doctor import redact
from trainwright.doctor.asking import PACKAGES
from trainwright.environment import Device, Environment, Torch, Unmet, from_json
from trainwright.report import Finding, Severity

FORMS = (
    "{0}",
    "1.{0}",
    "2.10.0+{0}",
    "/home/{0}/lib",
    "{0}@host",
    "{0}.local",
    "node-{0}",
    "{0}:{0}",
    "1,{0},2",
    "ring {0}",
    "lib{0}.so.1",
    "NVIDIA {0}",
)


def hostile(text: str) -> Environment:
    """An environment that has `text` wherever a text can stand."""
    return Environment(
        variables=dict.fromkeys(VARIABLES, text) | {text: "1"},
        versions=dict.fromkeys(PACKAGES, text) | {text: "1.0", "torch": f"2.10.0+{text}"},
        python=text,
        torch=Torch("broken", text, text, text, text, f"ImportError: {text}: lib{text}.so.2", (text, "gloo")),
        devices=(Device(text, text, 1), Device("cuda", f"NVIDIA {text} 80GB")),
        seen=(text, "nvidia"),
        nvidia_driver=text,
        unmet=(Unmet(text, f"{text}>=1", text), Unmet("torch", f"numpy>={text}", f"1.0+{text}")),
        user_packages=(text,),
        modules=(text, f"frameworks/{text}", f"{text}/1.0", f"conda/2024.1-{text}"),
        site=text,
        role=text,
        scheduler=text,
        shadows=("queue.py",),
    )


def shared(environment: Environment) -> str:
    finding = Finding("ENV002", Severity.ERROR, "a message with everything in it", fails_at="engine start")
    return json.dumps(redact.report(environment, [finding], "0.1.0"))


@given(st.text("abcdefghijklmnopqrstuvwxyz", min_size=7, max_size=20), st.sampled_from(FORMS))
def test_no_word_of_ones_own_comes_through(secret: str, form: str) -> None:
    assert f"zq{secret}" not in shared(hostile(form.format(f"zq{secret}"))).lower()


@given(st.text(max_size=40))
def test_any_text_at_all_is_survived_and_read_back(text: str) -> None:
    report = redact.report(hostile(text), [], "0.1.0")
    body = dict(report["environment"])
    body["variables"] = {key: value for key, value in body["variables"].items() if value != redact.HIDDEN}
    assert from_json(body, "report").torch.state == "broken"


@pytest.mark.parametrize("address", ["10.1.2.3", "192.168.0.7:29500", "fe80::1", "node17", "x4305c2s6b0n0.hsn.cm.aurora.alcf.anl.gov"])
def test_an_address_is_hidden_though_it_is_of_digits(address: str) -> None:
    text = shared(Environment(variables=dict.fromkeys(VARIABLES, address)))
    assert address not in text


def test_what_a_maintainer_needs_is_there() -> None:
    environment = Environment(
        variables={
            "CCL_ALLREDUCE_SCALEOUT": "direct:0-1048576;rabenseifner:1048577-max",
            "CCL_WORKER_AFFINITY": "42,43,44",
            "ONEAPI_DEVICE_SELECTOR": "opencl:gpu;level_zero:gpu",
            "FI_PROVIDER": "cxi",
            "LD_PRELOAD": "/usr/lib64/libpil4dfs.so",
            "MASTER_ADDR": "10.0.0.1",
        },
        versions={"torch": "2.10.0a0+git449b176", "accelerate": "1.15.0", "numpy": "2.0.2", "deepspeed": "0.18.5+cu126"},
        python="3.12.8",
        torch=Torch("broken", "2.10.0a0+git449b176", xpu="20250302", error="ImportError: libsycl.so.8: undefined symbol: urDeviceWaitExp"),
        devices=(Device("xpu", "Intel(R) Data Center GPU Max 1550", 68702699520), Device("cuda", "NVIDIA H100 80GB HBM3", 1)),
        modules=("frameworks/2025.3.1", "oneapi", "mine/1"),
        site="aurora",
        role="batch",
        scheduler="pbs",
        nodes=2,
    )
    found = redact.harmless(environment)
    assert found["variables"] == {
        "CCL_ALLREDUCE_SCALEOUT": "direct:0-1048576;rabenseifner:1048577-max",
        "CCL_WORKER_AFFINITY": "42,43,44",
        "ONEAPI_DEVICE_SELECTOR": "opencl:gpu;level_zero:gpu",
        "FI_PROVIDER": "cxi",
        "LD_PRELOAD": "libpil4dfs.so",
        "MASTER_ADDR": redact.HIDDEN,
    }
    assert found["versions"] == environment.versions and found["torch"]["error"] == "ImportError libsycl.so.8"
    assert [device["name"] for device in found["devices"]] == ["Intel(R) Data Center GPU Max 1550", "NVIDIA H100 80GB HBM3"]
    assert found["modules"] == ("frameworks/2025.3.1", "oneapi", "<module>") and (found["site"], found["nodes"]) == ("aurora", 2)


def test_every_field_of_an_environment_was_thought_of() -> None:
    assert set(redact.harmless(Environment())) == {one.name for one in fields(Environment)} | {"schema"}


def test_a_user_called_as_a_library_word_is_taken_out_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "rocky")
    monkeypatch.setenv("PBS_ACCOUNT", "Climate-9")
    assert redact._without_names({"a": ["rocky/x", "Rocky", "rock"], "b": "climate", "c": 3}) == {
        "a": ["<name>", "<name>", "rock"],
        "b": "<name>",
        "c": 3,
    }
    monkeypatch.setenv("USER", "torch")
    assert redact._without_names("torch") == "torch", "a user whose name the report is made of"


def test_a_site_is_told_and_its_host_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "node", lambda: "polaris-login-02.hsn.cm.polaris.alcf.anl.gov")
    report = redact.report(Environment(site="polaris", role="login", variables={"MASTER_ADDR": "polaris-login-02"}), [], "0.1.0")
    assert report["environment"]["site"] == "polaris" and "login-02" not in json.dumps(report)


def test_the_file_that_is_written(tmp_path: Path, doctor: Callable[..., Any], interpreter: Callable[..., str]) -> None:
    python = interpreter("raise OSError('/home/zqalice/lib/libcudart.so.13: cannot open shared object file')", torch="2.13.0+zqalice")
    names = {"USER": "zqalice", "PBS_ACCOUNT": "zqproject", "MASTER_ADDR": "zqhost", "LOADEDMODULES": "zqproject/1:frameworks/2025.3.1"}
    (tmp_path / "zqproject").mkdir()
    code, envelope, _ = doctor("--python", python, "--timeout", "30s", "--report", "shared.json", folder=tmp_path / "zqproject", **names)
    text = (tmp_path / "zqproject" / "shared.json").read_text()
    assert code == 1 and "zq" not in text and str(tmp_path) not in text and "/home" not in text
    assert text.count("/") == 5, "two schemas and a module, no path"
    again = json.loads(text)
    assert (
        again["environment"]["torch"]["error"] == "OSError libcudart.so.13" and again["environment"]["versions"]["torch"] == "2.13.0+local"
    )
    assert {row["rule"] for row in again["findings"]} == {one["rule"] for one in envelope["findings"]}
    code, second, _ = doctor("--from", "shared.json", folder=tmp_path / "zqproject")
    assert code == 1 and "ENV002" in {one["rule"] for one in second["findings"]}, "a maintainer judges it again"
