"""Two networks side by side: results, files, and what cannot be compared."""

from __future__ import annotations

import copy
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import npusim
from npusim.base.errors import ArgumentError
from npusim.networks.run.step_result import StepResult
from npusim.results.facts import fusion_matching
from npusim.results.network_comparison import NetworkComparison

pytestmark = pytest.mark.compiled


@cache
def facts() -> dict[str, Any]:
    return npusim.network("dcgan", device="ascend910").to_json()


def changed() -> dict[str, Any]:
    """The same with one layer 5 us longer, another that failed, and a kernel that is new."""
    other = copy.deepcopy(facts())
    first, second = other["layers"][:2]
    first["total_us"] += 5.0
    first["bottleneck"] = "pipe FIX"
    second |= {"total_us": None, "error": "no tiling fits"}
    other["kernels"].append(dict(other["kernels"][0], kernel="new", time_us=7.0))
    other["time_us"] += 5.0
    other["dtype"] = "bf16"
    return other


@pytest.fixture
def written(tmp_path: Path) -> tuple[str, str]:
    paths = tmp_path / "a.json", tmp_path / "b.json"
    for path, one in zip(paths, (facts(), changed()), strict=True):
        path.write_text(json.dumps(one), encoding="utf-8")
    return str(paths[0]), str(paths[1])


def test_every_change_is_a_row() -> None:
    c = NetworkComparison(a=facts(), b=changed(), labels=("A", "B"))
    first, second = (row["layer"] for row in facts()["layers"][:2])
    rows = {(row["part"], row["name"], row["what"]): row for row in c.rows}
    assert rows["network", "", "dtype"]["b"] == "bf16"
    assert rows["network", "", "time_us"]["change"] == pytest.approx(5)
    assert rows["layer", first, "total_us"]["change"] == pytest.approx(5)
    assert rows["layer", first, "bottleneck"]["b"] == "pipe FIX"
    assert rows["layer", second, "total_us"]["b"] is None
    assert rows["layer", second, "error"]["b"] == "no tiling fits"
    assert rows["kernel", "new", "time_us"]["a"] is None
    assert {part for part, *_ in rows} == {"network", "layer", "kernel"}
    assert len(c.table) == len(c.rows)
    assert c.to_json()["changes"] == list(c.rows)
    assert c.speedup == pytest.approx(facts()["time_us"] / (facts()["time_us"] + 5))


def test_the_text_tells_the_largest_changes_first(written: tuple[str, str]) -> None:
    text = npusim.compare_networks(*written, labels=("one", "two")).text()
    assert max(map(len, text.splitlines())) <= 80
    for words in (
        "LAYERS",
        "KERNELS",
        "+5.0",
        "dtype: fp16 -> bf16",
        "error: none -> no tiling fits",
    ):
        assert words in text
    names = [row["layer"] for row in facts()["layers"]]
    lines = [line for line in text.splitlines() if line.strip().startswith(tuple(names))]
    assert names[1] in lines[0], "the layer without a time lost most"


def test_layers_of_one_name_are_told_apart() -> None:
    twice = copy.deepcopy(facts())
    twice["layers"].append(dict(twice["layers"][0]))
    c = NetworkComparison(a=facts(), b=twice, labels=("A", "B"))
    assert {row["name"] for row in c.rows} == {f"{facts()['layers'][0]['layer']} #2"}


def test_a_number_is_no_network(written: tuple[str, str]) -> None:
    with pytest.raises(ArgumentError, match="it is a result, or the file of one"):
        npusim.compare_networks(3, written[0])  # type: ignore[arg-type]


# -- batches -------------------------------------------------------------------------------------


def test_images_a_second_lead_where_batches_differ() -> None:
    c = NetworkComparison(a=facts(), b={**facts(), "batch": 4}, labels=("A", "B"))
    us = facts()["time_us"]
    assert c.rates == pytest.approx([1e6 / us, 4e6 / us])
    assert c.speedup == pytest.approx(4)
    head = c.text().splitlines()[:4]
    assert head[2].startswith("speed")
    assert head[2].endswith("images/s, +300.0 %")
    assert head[3].startswith("time")
    assert head[3].endswith("us an image, -75.0 %")
    assert "LAYERS (us an image, of all that are alike)" in c.text()
    layer = facts()["layers"][0]
    row = next(line for line in c.text().splitlines() if line.startswith(f"  {layer['layer']}"))
    assert row.endswith("-75.0 %")
    assert c.to_json()["speedup"] == pytest.approx(4)
    assert repr(c).endswith("images/s>")
    rows = {(row["part"], row["name"], row["what"]): row for row in c.rows}
    assert rows["network", "", "time_us_per_image"]["b"] == pytest.approx(us / 4)
    assert rows["layer", layer["layer"], "total_us_per_image"]["b"] == layer["total_us"] / 4
    energy_uj = facts()["energy_uj"]
    assert rows["network", "", "energy_uj_per_image"]["b"] == pytest.approx(energy_uj / 4)
    assert "energy an image: " in c.text()
    # The cards of a step take a batch each.
    cards = NetworkComparison(a=facts(), b={**facts(), "cards": 8}, labels=("A", "B"))
    assert cards.speedup == pytest.approx(8)


def test_a_comparison_is_drawn_and_short_in_a_notebook(tmp_path: Path) -> None:
    c = NetworkComparison(a=facts(), b=changed(), labels=("A", "B"))
    ax = c.plot()
    names = [tick.get_text() for tick in ax.get_yticklabels()]
    assert {row["layer"] for row in facts()["layers"]} <= {*names}
    shown = c._repr_html_()
    assert shown.count("<tr>") <= 12
    assert "<pre" not in shown
    assert "A is 1." in shown
    c.save(tmp_path / "both.html")
    page = (tmp_path / "both.html").read_text(encoding="utf-8")
    assert page.count("<table") == 3  # the largest changes, all layers, all kernels
    same = NetworkComparison(a=facts(), b=facts(), labels=("A", "B"))
    assert "No difference" in same._repr_html_()


# -- fusions -------------------------------------------------------------------------------------


def kind(phase: str, name: str, us: float) -> dict[str, Any]:
    return {"phase": phase, "kind": name, "kernels": 1, "us": us, "launch_us": 1.0, "bytes": 8}


def operation(name: str, kind: str, us: float, phase: str = "forward") -> dict[str, Any]:
    fixed = {"launch_us": 1.0, "error": "", "converts": "", "phase": phase, "kernels": ["k"]}
    return {"operation": name, "kind": kind, "us": us, "count": 1, **fixed}


def test_kinds_that_one_side_fuses_are_one_row() -> None:
    fused = [
        kind("forward", "convolution output + bias + activation", 9),
        kind("forward", "activation", 1),
        kind("forward", "linear", 3),
        kind("backward", "linear", 5),
        kind("backward", "convolution input + activation gradient", 2),
        kind("backward", "bias gradient", 7),
    ]
    plain = [
        kind("forward", "convolution output", 4),
        kind("forward", "activation", 3),
        kind("forward", "bias", 2),
        kind("backward", "linear", 4),
        kind("backward", "convolution input", 1),
        kind("backward", "activation gradient", 1),
        kind("backward", "bias gradient", 8),
        kind("backward", "layouts", 8),
    ]
    us = {name: (a.get("us"), b.get("us")) for name, a, b in fusion_matching.kinds(fused, plain)}
    assert us == {
        "convolution output + bias + activation": (10, 9),
        "linear, forward": (3, None),
        "linear, backward": (5, 4),
        "convolution input + activation gradient": (2, 2),
        "bias gradient": (7, 8),
        "layouts": (None, 8),
    }


def test_kinds_that_both_sides_fuse_stay_apart() -> None:
    both = [kind("forward", "update + sum", 2), kind("forward", "update", 3)]
    pairs = {name: a["us"] for name, a, _ in fusion_matching.kinds(both, both)}
    assert pairs == {"update + sum": 2, "update": 3}


def test_an_operation_has_what_is_fused_into_it_as_its_partner() -> None:
    fused = [
        operation("relu.output", "convolution output + bias + activation", 9),
        operation("conv.bias", "bias gradient", 4, "backward"),
        operation("relu_2.output", "activation", 1),
    ]
    plain = [
        operation("first.output", "convolution output", 50),
        operation("conv.output", "convolution output", 5),
        {**operation("conv.output to NC1HWC0", "layouts", 40), "converts": "conv.output"},
        operation("conv.bias", "bias", 2),
        operation("relu.output", "activation", 1),
        operation("relu_2.output", "activation", 1),
        operation("conv.bias", "bias gradient", 3, "backward"),
    ]
    for swapped in (False, True):
        sides = (plain, fused) if swapped else (fused, plain)
        pairs = {name: (a, b) for name, a, b in fusion_matching.operations(*sides)}
        assert "conv.output" not in pairs
        a, b = reversed(pairs["relu.output"]) if swapped else pairs["relu.output"]
        assert (a["us"], b["us"]) == (9, 8)
        assert b["kind"] == "convolution output, bias, activation"
        assert b["launches"] == 3
        assert {one["kind"] for one in pairs["conv.bias"]} == {"bias gradient"}
        assert {} in pairs["first.output"]
        assert "conv.output to NC1HWC0" not in pairs
        [(value, *converted)] = fusion_matching.conversions(*sides)
        assert value == "conv.output"
        assert {} in converted


def test_operations_of_one_name_are_the_partner_of_one_that_does_both() -> None:
    fused = [
        operation("other.weight", "convolution weight", 7),
        operation("relu.gradient", "convolution input + sum + activation gradient", 9),
    ]
    plain = [
        operation("conv.input", "convolution input", 5),
        operation("other.weight", "convolution weight", 7),
        operation("relu.gradient", "sum", 2),
        operation("relu.gradient", "activation gradient", 1),
    ]
    for sides in ((fused, plain), (plain, fused)):
        pairs = {name: (a, b) for name, a, b in fusion_matching.operations(*sides)}
        assert set(pairs) == {"other.weight", "relu.gradient"}
        assert sorted(row["us"] for row in pairs["relu.gradient"]) == [8, 9]


BIASED = """
description: two convolutions with bias
layers:
  one: {cin: 16, cout: 16, spatial: [14, 14], kernel: 3, padding: 1, bias: yes}
  two: {cin: 16, cout: 16, spatial: [14, 14], kernel: 3, padding: 1, bias: yes}
graph:
  - input > one > relu > two > relu
"""


def test_steps_of_chips_that_fuse_differently_have_all_kinds_on_both_sides(tmp_path: Path) -> None:
    file = tmp_path / "biased.yaml"
    file.write_text(BIASED, encoding="utf-8")
    sides = [
        npusim.step(str(file), device=device, batch=1, mode="graph", fusions="graph_engine")
        for device in ("ascend910", "ascend910b2")
    ]
    c = npusim.compare_networks(*sides)
    assert any(" + bias" in row["kind"] for row in c.a["kinds"])
    assert not any(" + bias" in row["kind"] for row in c.b["kinds"])
    assert not [name for part in ("kind", "operation") for name in alone(c, part)]
    assert all_times_are_there(c)


def alone(c: NetworkComparison, part: str) -> list[str]:
    """Rows that one side lacks."""
    return [name for name, a, b in c.pairs(part) if not (a and b)]


def all_times_are_there(c: NetworkComparison) -> bool:
    """True if the kinds add up to the time of each side, and operations with conversions do."""
    kinds, operations, converted = (part.times for part in c.times_of_parts())
    for times in (kinds, [*operations, *converted]):
        assert sum(row.a or 0.0 for row in times) == pytest.approx(c.a["compute_us"])
        assert sum(row.b or 0.0 for row in times) == pytest.approx(c.b["compute_us"])
    return True


@cache
def step(mode: str) -> StepResult:
    return npusim.step("resnet18", device="ascend910b2", mode=mode)


@cache
def step_facts(mode: str) -> dict[str, Any]:
    return step(mode).to_json()


def test_of_two_modes_it_says_what_is_launched() -> None:
    eager, graph = step_facts("eager"), step_facts("graph")
    c = npusim.compare_networks(step("eager"), step("graph"))
    numbers = {number.fact.name: (number.a, number.b) for number in c.launched()}
    for place, facts_of_side in enumerate((eager, graph)):
        rows = facts_of_side["operations"]
        conversions = [row for row in rows if row["converts"]]
        assert numbers["conversions"][place] == len(conversions)
        assert numbers["operations"][place] == len(rows) - len(conversions)
        assert numbers["kernels"][place] == sum(len(row["kernels"]) for row in rows)
        launch_us = sum(row["launch_us"] for row in rows)
        assert numbers["launches_us"][place] == pytest.approx(launch_us)
        convert_us = sum(row["us"] - row["launch_us"] for row in conversions)
        assert numbers["layouts_us"][place] == pytest.approx(convert_us)
        parts = [values[place] for name, values in numbers.items() if name.endswith("_us")]
        assert sum(parts) == pytest.approx(facts_of_side["time_us"])
    fused_eager, fused_graph = numbers["fused"]
    assert fused_eager == 0
    assert fused_graph == sum(graph["fused"].values())
    assert numbers["conversions"][0] > 10 * numbers["conversions"][1]
    assert not alone(c, "kind")
    assert not alone(c, "operation")
    assert all_times_are_there(c)


def test_text_and_figure_of_two_modes_lead_with_what_is_launched(tmp_path: Path) -> None:
    c = npusim.compare_networks(step("eager"), step("graph"))
    text = c.text()
    assert max(map(len, text.splitlines())) <= 80
    assert text.index("LAUNCHED") < text.index("KINDS") < text.index("CONVERTED VALUES")
    assert re.search(r"\n  conversions of layouts +\d+ +\d+ +-\d+ +-9\d\.\d %", text)
    assert "(#A, #B: kernels launched)" in text
    assert [tick.get_text() for tick in c.plot().get_yticklabels()] == ["A  eager", "B  graph"]
    kinds = [tick.get_text() for tick in c.plot(what="times").get_yticklabels()]
    assert "layouts, backward" in kinds
    assert "What is launched" in c._repr_html_()
    c.save(tmp_path / "modes.html")
    assert "kernels that convert" in (tmp_path / "modes.html").read_text(encoding="utf-8")
    with pytest.raises(ArgumentError, match="what is 'kinds'; it is one of times, launched"):
        c.plot(what="kinds")
    layers = NetworkComparison(a=facts(), b=changed(), labels=("A", "B"))
    with pytest.raises(ArgumentError, match="drawn of whole steps, and these are layers"):
        layers.plot(what="launched")


def test_bytes_and_energy_of_a_batch_are_of_one_image() -> None:
    graph = {**step_facts("graph"), "written_back_bytes": 3 << 20}  # all of it fits the L2
    c = NetworkComparison(a=graph, b={**graph, "batch": 2}, labels=("A", "B"))
    for what in ("energy_uj", "fetched_bytes", "written_back_bytes"):
        [row] = [row for row in c.rows if row["what"] == f"{what}_per_image"]
        assert row["b"] == pytest.approx(graph[what] / 2)
    text = c.text()
    assert re.search(r"written back to main memory an image: [\d.]+ \wiB -> [\d.]+ \wiB", text)
    assert "fetched_bytes" not in text


def test_what_one_side_does_not_launch_takes_it_no_time() -> None:
    without = copy.deepcopy(step_facts("graph"))
    gone = [row for row in without["kinds"] if row["kind"] == "update"]
    without["kinds"] = [row for row in without["kinds"] if row["kind"] != "update"]
    failed = without["operations"][0]
    failed |= {"us": 0.0, "launch_us": 0.0, "error": "no tiling fits"}
    c = NetworkComparison(a=step_facts("graph"), b=without, labels=("A", "B"))
    kinds, operations, _ = c.times_of_parts()
    update = kinds.times[0]
    assert (update.name, update.b, update.launches_b) == ("update", 0.0, 0)
    assert update.a == pytest.approx(gone[0]["us"])
    row = next(line for line in c.text().splitlines() if line.startswith("  update "))
    assert "-100.0 %" in row
    assert [times.b for times in operations.times if times.name == failed["operation"]] == [None]


def test_the_exchange_between_cards_is_a_kind() -> None:
    one, eight = (
        npusim.step("resnet18", device="ascend910", mode="graph", cards=cards) for cards in (1, 8)
    )
    c = npusim.compare_networks(one, eight)
    exchange = next(row for row in c.pairs("kind") if row.name == "exchange between cards")
    assert not exchange.a
    assert exchange.b["us"] == pytest.approx(eight.time_us - eight.compute_us)
    assert c.per_image
    of_an_image = sum(row.b or 0.0 for row in next(c.times_of_parts()).times)
    assert of_an_image == pytest.approx(eight.time_us / 8)
