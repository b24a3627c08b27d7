"""The tables of accelerators, nodes and sites: every figure sourced, the schema kept, odd machines described, names looked up."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from trainwright import hardware, host
from trainwright.errors import MissingPackageError, UserError
from trainwright.hardware import Figure, accelerator, bundled, load, node, site, site_of_host
from trainwright.report import CHECKED

ROOT = Path(__file__).resolve().parents[1]
TABLE: dict[str, dict[str, Any]] = yaml.safe_load(hardware.TABLE.read_text(encoding="utf-8"))
SOURCES = yaml.safe_load((ROOT / "references/sources.yaml").read_text(encoding="utf-8"))
SCHEMA = json.loads(hardware.TABLE.with_name("hardware.schema.json").read_text(encoding="utf-8"))
GIB = 2**30


def wrong(table: Any) -> list[str]:
    """What the schema has against a table."""
    Draft202012Validator.check_schema(SCHEMA)
    return [f"{list(error.absolute_path)}: {error.message}" for error in Draft202012Validator(SCHEMA).iter_errors(table)]


def figures(value: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every mapping of a table that is a figure, with its path."""
    if isinstance(value, dict) and ("value" in value or "cpus" in value):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from figures(item, f"{path}.{key}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from figures(item, f"{path}.{number}")


def test_the_table_keeps_its_schema() -> None:
    assert wrong(TABLE) == []


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda t: t["accelerators"]["h200"]["memory_bytes"].pop("source"), "source"),
        (lambda t: t["accelerators"]["h200"]["memory_bytes"].pop("date"), "date"),
        (lambda t: t["accelerators"]["h200"]["memory_bytes"].pop("per"), "per"),
        (lambda t: t["accelerators"]["h200"]["memory_bytes"].update(value=None), "reason"),
        (lambda t: t["accelerators"]["h200"]["memory_bytes"].update(value="312e12"), "number"),
        (lambda t: t["nodes"]["aurora"]["links"][2].pop("from"), "from"),
        (lambda t: t["nodes"]["aurora"].pop("reserved_cores"), "reserved_cores"),
        (lambda t: t["sites"]["aurora"].update(scheduler="cron"), "cron"),
    ],
)
def test_the_schema_refuses_what_is_not_whole(spoil: Any, complaint: str) -> None:
    table = yaml.safe_load(hardware.TABLE.read_text(encoding="utf-8"))
    spoil(table)
    assert complaint in " ".join(wrong(table))


@pytest.mark.parametrize(("path", "figure"), list(figures(TABLE)))
def test_every_figure_has_source_date_and_per_or_a_reason(path: str, figure: dict[str, Any]) -> None:
    value = figure["value"] if "value" in figure else figure["cpus"]
    if value is None:
        assert len(figure["reason"]) > 8, "an unknown says why"
        return
    assert figure["source"] in SOURCES, "its address stands once, in references/sources.yaml"
    assert re.match(r"20\d\d", figure["date"]) and figure["checked"] in CHECKED
    assert "cpus" in figure or (type(value) in (int, float) and figure["per"]), "YAML 1.1 reads 312.0e12 as text"


@pytest.mark.parametrize("name", TABLE["accelerators"])
def test_an_accelerator_is_plausible(name: str) -> None:
    found = accelerator(name)
    assert found.name == name and found.per in ("device", "tile", "GCD", "card")
    assert found.memory.value is None or 14 * 10**9 < found.memory.value < 300 * 10**9
    assert found.peak_bf16.value is None or 1e14 < found.peak_bf16.value < 3e15, "dense, of one addressable device"
    assert found.measured_bf16.value is None or (found.peak_bf16.value or 0) * 0.45 < found.measured_bf16.value < (
        found.peak_bf16.value or 0
    )
    assert found.measured_bf16.value is not None or found.measured_bf16.reason
    assert found.memory_bandwidth.value is None or 5e11 < found.memory_bandwidth.value < 1e13


@pytest.mark.parametrize(
    ("name", "teraflops"),
    # ml-engineering at 744d01e and torchtitan at b5bcd76, per addressable device; torch's own sheet for each is named in sources.yaml.
    [
        *(("a100-40gb", 312), ("a100-80gb", 312), ("h100-sxm", 989.4), ("h100-pcie", 756), ("h200", 989), ("b200", 2250), ("l40s", 362)),
        *(("mi250x-gcd", 191.5), ("mi300x", 1307.4), ("gaudi2", 432), ("gaudi3", 1677), ("max-1550-tile", 298.2), ("max-1550-card", 596.4)),
        *(
            ("tpu-v4", 275),
            ("tpu-v5e", 197),
            ("tpu-v5p", 459),
            ("tpu-v6e", 918),
            ("h20", 148),
            ("b300", 2250),
            ("gb300", 2500),
            ("a40", 149.7),
        ),
    ],
)
def test_the_dense_bf16_peaks(name: str, teraflops: float) -> None:
    assert accelerator(name).peak_bf16.value == pytest.approx(teraflops * 1e12)


def test_a_peak_and_a_measurement_are_told_apart() -> None:
    tile = accelerator("max-1550-tile")
    assert tile.peak_bf16.note.startswith("a peak") and tile.measured_bf16.note.startswith("a measurement")
    assert (tile.peak_bf16.value, tile.measured_bf16.value) == (298.2e12, 256e12) and tile.per == "tile"
    assert accelerator("a100-80gb").measured_bf16.value == 271.2e12 and accelerator("gaudi3").measured_bf16.value == 1243e12


def test_what_has_no_peak_says_why() -> None:
    for name in ("v100-16gb", "v100-32gb"):
        found = accelerator(name)
        assert found.peak_bf16.value is None and "no bf16" in found.peak_bf16.reason and found.peak_fp16.value == 125e12
    assert accelerator("h100-pcie").measured_bf16.value is None and accelerator("h100-pcie").measured_bf16.reason


def test_aurora_as_its_guides_tell() -> None:
    found = node("aurora")
    assert (found.num_devices, found.cards.value, found.cores.value, found.sockets, found.nics.value) == (12, 6, 104, 2, 8)
    assert found.reserved_cpus == (0, 52, 104, 156) and not found.mixed
    card, inside, network = (found.link(level) for level in ("card", "node", "network"))
    assert card and inside and network
    assert (card.group, card["measured_bytes_per_s"].value, card["both_measured_bytes_per_s"].value) == (2, 185e9, 269e9)
    assert inside["measured_bytes_per_s"].value == 15e9 and network["bytes_per_s"].value == 25e9
    assert inside["alpha_s"].value is None and inside["alpha_s"].reason


def test_links_may_differ_by_direction() -> None:
    host_link = node("aurora").link("host")
    assert host_link and (host_link.origin, host_link.target) == ("host", "device")
    assert host_link["node_measured_bytes_per_s"].value == 318e9 and host_link["reverse_node_measured_bytes_per_s"].value == 257e9


def test_a_group_of_two_is_the_slowest_on_mi300x() -> None:
    pair, whole = (node("mi300x-platform").link(level) for level in ("pair", "node"))
    assert pair and whole and (pair["measured_bytes_per_s"].value, whole["measured_bytes_per_s"].value) == (47.7e9, 312.9e9)


@pytest.mark.parametrize("name", TABLE["nodes"])
def test_a_node_names_devices_that_are_known(name: str) -> None:
    found = node(name)
    assert all(group.accelerator in (*TABLE["accelerators"], "cpu") for group in found.devices)
    assert [link.level for link in found.links] == sorted(
        (link.level for link in found.links), key=["card", "pair", "node", "host", "network"].index
    ), "innermost first"
    assert all(link.group is None or link.group <= found.num_devices for link in found.links)


@pytest.mark.parametrize("name", TABLE["sites"])
def test_a_site_names_nodes_that_are_known(name: str) -> None:
    found = site(name)
    assert found.nodes and all(kind in TABLE["nodes"] for kind, _ in found.nodes)
    for pattern in (*found.hosts, *found.login_hosts):
        re.compile(pattern)
    assert found.checked in CHECKED and found.checked != "hardware", "nobody here ran a job there"


@pytest.mark.parametrize(
    ("hostname", "name", "login"),
    [
        ("x4305c2s6b0n0", "aurora", False),
        ("x4305c2s6b0n0.hsn.cm.aurora.alcf.anl.gov", "aurora", False),
        ("aurora-uan-0011", "aurora", True),
        ("x1921c0s0b0n0", "sunspot", False),
        ("x3005c0s7b0n0", "polaris", False),
        ("polaris-login-02.hsn.cm.polaris.alcf.anl.gov", "polaris", True),
        ("nid001234.chn.perlmutter.nersc.gov", "perlmutter", False),
        ("login07.chn.perlmutter.nersc.gov", "perlmutter", True),
        ("X4305C2S6B0N0", "aurora", False),
    ],
)
def test_a_host_belongs_to_its_site(hostname: str, name: str, login: bool) -> None:
    found = site_of_host(hostname)
    assert found is not None and (found[0].name, found[1]) == (name, login)


@pytest.mark.parametrize(
    "hostname", ["", "laptop", "login1", "login07.elsewhere.org", "x9305c2s6b0n0", "nid12", "my-x4305c2s6b0n0", "a" * 10_000]
)
def test_any_other_host_belongs_to_none(hostname: str) -> None:
    assert site_of_host(hostname) is None


def test_a_site_with_one_kind_of_node_stands_for_it() -> None:
    assert node("sunspot").name == "aurora" and node("Aurora").name == "aurora"
    with pytest.raises(UserError, match="several kinds of nodes; name one of perlmutter-gpu, perlmutter-gpu-80gb"):
        node("perlmutter")
    with pytest.raises(UserError, match="there is no node 'dgx-a200'; did you mean dgx-a100"):
        node("dgx-a200")
    with pytest.raises(UserError, match="there is no site 'mars'"):
        site("mars")


MIXED = """
accelerators:
  old:
    title: an older card
    per: device
    device: cuda
    names: []
    memory_bytes: {value: 32000000000, per: device, source: this-machine, date: "2026-11-29", checked: run}
    peak_bf16_flops: {value: null, per: device, reason: nobody measured it}
    memory_bytes_per_s: {value: null, per: device, reason: nobody measured it}
nodes:
  mixed:
    title: two kinds of devices, and a link that is faster one way
    devices: [{accelerator: h100-sxm, count: 2}, {accelerator: old, count: 2}]
    cards: {value: 4, per: node, source: this-machine, date: "2026-11-29", checked: run}
    sockets: 1
    cores: {value: 16, per: node, source: this-machine, date: "2026-11-29", checked: run}
    threads_per_core: 2
    reserved_cores: {cpus: [], source: this-machine, date: "2026-11-29", checked: run}
    host_memory_bytes: {value: 64000000000, per: node, source: this-machine, date: "2026-11-29", checked: run}
    nics: {value: 1, per: node, source: this-machine, date: "2026-11-29", checked: run}
    links:
      - level: node
        kind: between the kinds
        group: 4
        shape: tree
        duplex: half
        from: h100-sxm
        to: old
        bytes_per_s: {value: 6.3e+10, per: pair, source: this-machine, date: "2026-11-29", checked: run}
        reverse_bytes_per_s: {value: 3.1e+10, per: pair, source: this-machine, date: "2026-11-29", checked: run}
sites:
  lab:
    title: a site with two kinds of nodes
    nodes:
      - {node: mixed, count: {value: 2, per: site, source: this-machine, date: "2026-11-29", checked: run}}
      - {node: dgx-h100, count: {value: 1, per: site, source: this-machine, date: "2026-11-29", checked: run}}
    scheduler: slurm
    launcher: srun
    hosts: ['^lab[0-9]+']
    login_hosts: []
    stack: null
    topology: null
    interactive: null
    checked: run
"""


def test_mixed_devices_and_one_way_links_can_be_described(tmp_path: Path) -> None:
    (tmp_path / "lab.yaml").write_text(MIXED)
    assert wrong(yaml.safe_load(MIXED)) == []
    table = load(str(tmp_path / "lab.yaml"))
    found = node("mixed", table)
    assert found.mixed and found.num_devices == 4 and [(g.accelerator, g.count) for g in found.devices] == [("h100-sxm", 2), ("old", 2)]
    link = found.links[0]
    assert (link.origin, link.target, link["bytes_per_s"].value, link["reverse_bytes_per_s"].value) == ("h100-sxm", "old", 6.3e10, 3.1e10)
    assert found.reserved_cpus == () and accelerator("old", table).memory_bytes == 32 * 10**9
    assert [kind for kind, _ in site("lab", table).nodes] == ["mixed", "dgx-h100"]
    known = [accelerator(group.accelerator, table).name for group in found.devices]
    assert known == ["h100-sxm", "old"] and node("dgx-h100", table).num_devices == 8, "what a profile does not hold is in the bundled table"
    assert accelerator("cpu", table).per == "machine"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("accelerators: {a: 1}\n", "is no hardware profile"),
        ("accelerators: {a: {title: x, per: device}}\n", "is no hardware profile: KeyError"),
        ("nodes: [1]\n", "is no hardware profile"),
        ("accelerators: {a: {title: x, per: device, device: cuda, memory_bytes: {value: 8e10, per: device}}}\n", "a dot and a sign"),
        ("- 1\n", "mapping"),
    ],
)
def test_a_profile_that_is_none_is_refused_in_one_line(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(text)
    with pytest.raises(UserError, match=said) as caught:
        load(str(tmp_path / "p.yaml"))
    assert "\n" not in str(caught.value)


def test_the_table_holds_no_address() -> None:
    assert "http" not in hardware.TABLE.read_text(encoding="utf-8")


def test_the_table_is_read_once() -> None:
    assert bundled() is bundled()


def test_a_figure_shows_what_it_has() -> None:
    assert Figure(None, reason="why").to_json() == {"value": None, "reason": "why"}
    assert Figure(1.0, "s", "2026", "run", per="tile").to_json() == {
        "value": 1.0,
        "source": "s",
        "date": "2026",
        "checked": "run",
        "per": "tile",
    }


@pytest.mark.parametrize("said", ["a100-80gb", "A100-80GB", "a100_80gb", " A100 80gb "])
def test_names_are_read_generously(said: str) -> None:
    assert accelerator(said).name == "a100-80gb"


@pytest.mark.parametrize(
    ("said", "hint"),
    [("a100", "did you mean a100-40gb or a100-80gb"), ("h100", "did you mean h100-sxm"), ("abacus", "known are"), ("", "known are")],
)
def test_an_unknown_name_gets_the_nearest_and_the_list(said: str, hint: str) -> None:
    with pytest.raises(UserError, match="there is no accelerator") as caught:
        accelerator(said)
    assert hint in str(caught.value) and str(caught.value).endswith("tpu-v6e, cpu")


def test_a_name_of_any_length_makes_a_short_line() -> None:
    with pytest.raises(UserError) as caught:
        accelerator("x" * 10**6)
    assert len(str(caught.value)) < 500


def test_without_pyyaml_a_name_ends_with_the_line_to_type_and_cpu_works(monkeypatch: pytest.MonkeyPatch) -> None:
    bundled.cache_clear()
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "yaml" else find(name, *rest))
    with pytest.raises(MissingPackageError, match="pip install pyyaml"):
        accelerator("a100-80gb")
    assert accelerator("cpu").memory_bytes


def test_cpu_is_this_machine() -> None:
    found = accelerator("CPU")
    assert found.per == "machine" and found.device == "cpu" and found.memory_bytes == host.memory_bytes()
    assert found.peak_bf16.value is None and found.peak_bf16.reason
    assert found.to_json()["memory"]["checked"] == "run"
