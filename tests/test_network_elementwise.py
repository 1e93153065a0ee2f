"""Element-wise layers of a network: bytes by hand, beside the times and in none of them."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

import npusim
from npusim.base.errors import ArgumentError, ConfigError
from npusim.cli.main import main
from npusim.networks.network import NetworkResult
from npusim.workloads import ElementwiseLayer, Workload, load_workload, workload_yaml
from npusim.workloads.elementwise import KINDS, together

NET = """\
description: a layer, and three that multiply nothing
layers:
  conv: {cin: 16, cout: 32, spatial: [6, 5], kernel: 3}

elementwise:
  - {kind: relu, shape: [32, 4, 3], count: 5}
  - {kind: max_pool, shape: [32, 4, 3], out: [32, 2, 1]}
  - {kind: add, shape: [32, 4, 3], input_gradient: no}
"""

#: Elements of the shapes above.
BIG, SMALL = 32 * 4 * 3, 32 * 2


@pytest.fixture
def net(tmp_path: Path) -> Workload:
    path = tmp_path / "net.yaml"
    path.write_text(NET, encoding="utf-8")
    return load_workload(path)


def timed(net: Workload, passes: str = "training", **options: Any) -> NetworkResult:
    usual = {"device": "tiny", "batch": 2, "passes": passes, "elementwise": True}
    return npusim.network(net, **{**usual, **options})


#: Elements that the three layers read and write: forward and backward.
READ = {"forward": (BIG, BIG, 2 * BIG), "backward": (2 * BIG, BIG + 2 * SMALL, 0)}
WRITTEN = {"forward": (BIG, SMALL, BIG), "backward": (BIG, BIG, 0)}


@pytest.mark.parametrize("passes", ["forward", "backward", "training"])
def test_bytes_and_times_by_hand(passes: str, net: Workload) -> None:
    both = [name for name in READ if passes in (name, "training")]
    read = [2 * 2 * sum(READ[name][at] for name in both) for at in range(3)]  # images, fp16
    written = [2 * 2 * sum(WRITTEN[name][at] for name in both) for at in range(3)]
    result = timed(net, passes)
    moved = sum(1 for a, b in zip(read, written, strict=True) if a + b)
    assert list(result.elementwise.read_bytes) == read[:moved]
    assert list(result.elementwise.written_bytes) == written[:moved]
    # The tiny device has 64 bytes per cycle each way, and 1 GHz.
    cycles = [max(a, b) / 64 for a, b in zip(read, written, strict=True)]
    assert list(result.elementwise.one_us) == pytest.approx([n / 1e3 for n in cycles[:moved]])
    assert result.elementwise_us == pytest.approx((5 * cycles[0] + cycles[1] + cycles[2]) / 1e3)


def test_no_other_figure_contains_them(net: Workload) -> None:
    result, plain = timed(net), timed(net, elementwise=False)
    assert (result.cycles, result.energy_uj) == (plain.cycles, plain.energy_uj)
    told, other = result.to_json(), plain.to_json()
    assert (other.pop("elementwise_us"), other.pop("elementwise")) == (None, [])
    assert told.pop("elementwise_us") == result.elementwise_us
    assert [row["kind"] for row in told.pop("elementwise")] == ["relu", "max_pool", "add"]
    left_out = "not in the time: 5 x relu, 1 x add, 1 x max_pool (elementwise=True"
    (note,) = {*other["notes"]} - {*told["notes"]}
    assert note.startswith(left_out)
    other["notes"].remove(note)
    assert told == other
    assert "traffic only" not in plain.text()
    assert len(plain.elementwise) == 0


def test_a_bus_of_reads_and_writes_is_shared(net: Workload) -> None:
    device = npusim.load_device("ascend910b2")
    rows = timed(net, device=device).elementwise_rows()
    bus = device.links["hbm"].bytes_per_cycle
    for row in rows:
        cycles = float((row["read_bytes"] + row["written_bytes"]) / bus)
        assert row["one_us"] == pytest.approx(device.time_us(cycles))


def test_reports_mark_them(net: Workload, tmp_path: Path) -> None:
    result = timed(net)
    text = result.text()
    assert f"{result.elementwise_us:.3f} us of traffic only, not in the time; together" in text
    assert "\nELEMENT-WISE" in text
    result.write(tmp_path / "net.csv")
    with (tmp_path / "net.csv").open(newline="", encoding="utf-8") as file:
        marks = [(row["layer"], row["bottleneck"]) for row in csv.DictReader(file)]
    assert marks[1:] == [(kind, "traffic only") for kind in ("relu", "max_pool", "add")]
    result.report(tmp_path / "net.html")
    assert "Traffic only: what they read" in (tmp_path / "net.html").read_text(encoding="utf-8")
    assert "traffic only" in result._repr_html_()
    names = [label.get_text() for label in result.plot().get_yticklabels()]
    assert names == ["conv", "5 x relu", "1 x max_pool", "1 x add"]


def test_a_network_that_lists_none_says_so(net: Workload) -> None:
    plain = Workload(name="plain", description="", layers=net.layers)
    result = timed(plain)
    assert result.elementwise_us == 0
    assert "no element-wise layers are known of plain" in result.notes


def test_the_command_and_sweeps(net: Workload, tmp_path: Path) -> None:
    path = tmp_path / "again.yaml"
    path.write_text(workload_yaml(net), encoding="utf-8")
    assert load_workload(path).elementwise == net.elementwise
    assert main(["net", str(path), "--device", "tiny", "--elementwise"]) == 0
    vary = {"elementwise": "no,yes"}
    plain, told = npusim.sweep(
        network=str(path), device="tiny", vary=vary, store=None, jobs=1
    ).rows()
    assert told["elementwise_us"] == timed(net, "backward", batch=1).elementwise_us
    assert plain.get("elementwise_us") is None
    assert told["time_us"] == plain["time_us"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{kind: relo, shape: [4]}", "net.yaml:5: elementwise[0].kind: unknown kind 'relo'; did y"),
        ("{kind: relu}", "net.yaml:5: elementwise[0]: missing key 'shape'; add it here"),
        ("{kind: relu, shape: [0]}", "net.yaml:5: elementwise[0].shape[0]: expected an integer of"),
        ("{kind: relu, shape: [4], name: x}", "net.yaml:5: elementwise[0].name: unknown key 'name"),
    ],
)
def test_malformed_files_name_the_line(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(NET.partition("  - ")[0].rstrip("\n") + f"\n  - {line}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_workload(path)
    want = message.replace(":5:", f":{len(path.read_text().splitlines())}:")
    assert want in str(caught.value)


def test_every_kind_moves_its_output_and_its_gradient() -> None:
    for kind in KINDS:
        layer = ElementwiseLayer(kind=kind, shape=(7,))
        there, back = layer.moved("forward"), layer.moved("backward")
        assert there.read >= 7
        assert there.written == 7
        assert back.read >= 7
        assert back.written >= 7
        step = layer.moved("training")
        assert step == (there.read + back.read, there.written + back.written)
    with pytest.raises(ArgumentError, match="unknown kind 'conv'"):
        ElementwiseLayer(kind="conv", shape=(7,))


def test_layers_alike_are_one() -> None:
    one = ElementwiseLayer(kind="relu", shape=(3, 4))
    other = ElementwiseLayer(kind="relu", shape=(4, 3), count=2)
    assert [(x.shape, x.count) for x in together([one, other, one])] == [((3, 4), 2), ((4, 3), 2)]
