"""``npusim.network``: its totals are sums, its layers the operator's own, its gaps are told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import npusim
from npusim.base.errors import ArgumentError
from npusim.base.records import replace
from npusim.networks.network import GRADIENTS, NetworkResult
from npusim.results.facts.network_rows import KERNEL_COLUMNS, LAYER_COLUMNS
from npusim.workloads import Workload, load_workload
from tests.tables import rows
from tests.texts import text_of

DEVICE = "ascend910b2"

NET = text_of("two_layers.yaml")
#: Layers that convolution_backward cannot state, or cannot run.
BAD = """\
  line: {cin: 16, cout: 16, spatial: [9], kernel: 2, padding: [[0, 1]], count: 3}
  wide: {cin: 16, cout: 16, spatial: [9, 300], kernel: [1, 256]}
  wide_too: {cin: 16, cout: 16, spatial: [9, 300], kernel: [1, 256]}
"""


@pytest.fixture
def net(tmp_path: Path) -> Workload:
    path = tmp_path / "net.yaml"
    path.write_text(NET, encoding="utf-8")
    return load_workload(path)


@pytest.fixture
def gaps(tmp_path: Path) -> Workload:
    path = tmp_path / "gaps.yaml"
    path.write_text(NET + BAD, encoding="utf-8")
    return load_workload(path)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The keywords of every ``convolution_backward`` that is called."""
    seen: list[dict[str, Any]] = []
    real: Callable[..., npusim.Result] = npusim.ops.convolution_backward

    def counted(*operands: Any, **options: Any) -> npusim.Result:
        seen.append(options)
        return real(*operands, **options)

    monkeypatch.setattr(npusim.ops, "convolution_backward", counted)
    return seen


def timed(net: Workload, **options: Any) -> NetworkResult:
    return npusim.network(net, **{"device": DEVICE, "batch": 2, **options})


def test_a_layer_is_the_call_of_the_operator(net: Workload) -> None:
    layer = timed(net, gradients=("bias", "weight", "input")).layers.set_index("layer").loc["first"]
    r = npusim.ops.convolution_backward(
        npusim.spec((2, 32, 14, 14), "fp16"),
        npusim.spec((2, 16, 14, 14), "fp16"),
        npusim.spec((32, 16, 3, 3), "fp16"),
        (32,),
        padding=1,
        device=DEVICE,
    )
    assert (layer.cycles, layer.one_us) == (r.cycles, r.time_us)
    own = r.kernels[r.kernels.macs > 0]
    assert layer.own_us == pytest.approx(own.time_us.sum() - own.launch_us.sum())
    bounds = r.bounds[(r.bounds.of == "problem") & r.bounds.kernel.isin(own.name)]
    cube = bounds[bounds.resource == "cube"].cycles.sum()
    assert r.device.time_us(int(cube)) <= layer.own_problem_us
    assert layer.own_problem_us == pytest.approx(own.problem_us.sum())
    bounds = r.bounds[(r.bounds.of == "program") & r.bounds.kernel.isin(own.name)]
    sums = bounds.groupby("resource").cycles.sum()
    assert layer.own_bound == sums.idxmax()
    assert layer.own_bound_us == pytest.approx(r.device.time_us(int(sums.max())))
    assert 0 < layer.own_problem_us < layer.own_us < layer.one_us
    by_kernel = r.kernels.groupby("name").time_us.sum()
    assert layer.input_us == by_kernel.pop("conv_backprop_input")
    assert layer.weight_us == by_kernel.pop("conv_backprop_filter")
    assert layer.bias_us == by_kernel.pop("bias_grad")
    assert set(by_kernel.index) == {"trans_data", "cast"}
    assert layer.other_us == pytest.approx(by_kernel.sum())
    assert layer.launch_us == pytest.approx(r.kernels.launch_us.sum())
    others = r.kernels[r.kernels.name.isin(by_kernel.index)]
    assert layer.layout_us == pytest.approx(others.time_us.sum() - others.launch_us.sum())
    assert layer.bottleneck == "launches"
    assert layer.total_us == pytest.approx(2 * r.time_us)


@pytest.mark.parametrize("name", ["spread", "lopsided"])
def test_every_size_reaches_the_operator(name: str, net: Workload) -> None:
    sizes: dict[str, dict[str, Any]] = {
        "spread": {"shapes": ((2, 32, 4, 3), (2, 32, 8, 9), (32, 16, 3, 3)),
                   "stride": [1, 2], "dilation": 2, "groups": 2},
        "lopsided": {"shapes": ((2, 16, 9, 8), (2, 16, 9, 8), (16, 16, 2, 2)),
                     "padding": [0, 1, 1, 0]},
    }  # fmt: skip
    dy, x, w = (npusim.spec(shape, "bf16") for shape in sizes[name].pop("shapes"))
    r = npusim.ops.convolution_backward(
        dy, x, w, output_mask=(True, True, False), device=DEVICE, start="warm", **sizes[name]
    )
    result = timed(net, dtype="bf16", start="warm")
    assert {one.layer.name: one.result and one.result.problem for one in result.timed}[name] == (
        r.problem
    )
    assert result.layers.set_index("layer").cycles[name] == r.cycles


def test_processes_change_nothing(gaps: Workload) -> None:
    """Also layers that are refused, and those that share a result."""
    seen = []
    here = timed(gaps)
    there = timed(gaps, jobs=2, progress=lambda *told: seen.append(told))
    assert there.to_json() == here.to_json()
    distinct = len({name.partition(" ")[2] for name, *_ in seen})
    assert [told[1:] for told in seen] == [("layers", n + 1, distinct) for n in range(distinct)]
    with pytest.raises(npusim.ArgumentError, match="jobs is 0; it must be at least 1"):
        timed(gaps, jobs=0)


def test_totals_are_sums(net: Workload) -> None:
    result = timed(net)
    layers, kernels = result.layers, result.kernels
    assert tuple(layers.columns) == LAYER_COLUMNS
    assert tuple(kernels.columns) == KERNEL_COLUMNS
    assert list(layers.layer) == ["first", "twin", "spread", "lopsided"]
    assert result.cycles == (layers.cycles * layers["count"]).sum()
    assert result.time_us == result.device.time_us(result.cycles)
    assert layers.total_us.sum() == pytest.approx(result.time_us)
    assert kernels.time_us.sum() == pytest.approx(result.time_us)
    assert "time_us" not in layers, "a column of this name adds up to the network's time"
    assert layers.share.sum() == pytest.approx(1)
    assert kernels.share.sum() == pytest.approx(1)
    parts = layers.input_us + layers.weight_us + layers.bias_us + layers.other_us
    assert list(parts) == pytest.approx(list(layers.one_us))
    assert list(layers.one_us * layers["count"]) == pytest.approx(list(layers.total_us))
    clock = float(result.device.clock_hz) / 1e6
    assert list(kernels.cycles / clock + kernels.launch_us) == pytest.approx(list(kernels.time_us))
    assert kernels.set_index("kernel").launches["conv_backprop_input"] == layers["count"].sum() == 5
    assert list(kernels.time_us) == sorted(kernels.time_us, reverse=True)


def test_equal_layers_are_simulated_once_and_nothing_keeps_a_timeline(
    net: Workload, calls: list[dict[str, Any]]
) -> None:
    result = timed(net)
    assert len(calls) == 3
    assert result.timed[0].result is result.timed[1].result
    assert all(call["timeline"] is False for call in calls)
    assert all(
        run.timeline is None for one in result.timed if one.result for run in one.result.runs
    )


def test_parts_that_are_summed_belong_to_the_weight(net: Workload) -> None:
    one_tile = replace(net.convolutions[0], kernel=(1, 1), padding=((0, 0),) * 2)  # so K is split
    net = replace(net, layers=(one_tile,))
    result = timed(net, gradients=["weight"], deterministic=True, batch=256)
    times = result.kernels.set_index("kernel").time_us
    row = result.layer_rows()[0]
    whole = times["conv_backprop_filter"] + times["sum_parts"]
    assert row["weight_us"] * row["count"] == pytest.approx(whole)


def test_only_a_layer_with_a_bias_has_its_gradient_and_adds_it_going_forward(net: Workload) -> None:
    """``first`` has one, ``lopsided`` has none."""
    bare = replace(net, layers=tuple(replace(one, bias=False) for one in net.layers))
    every = {"gradients": ["weight", "bias"], "passes": "training"}
    found, without = (timed(one, **every).layers.set_index("layer") for one in (net, bare))
    assert found.bias_us["first"] > 0
    assert not any(without.bias_us)
    assert found.one_us["lopsided"] == without.one_us["lopsided"]
    found, without = (timed(one, passes="forward").layers.set_index("layer") for one in (net, bare))
    assert found.one_us["first"] > without.one_us["first"]
    assert found.one_us["lopsided"] == without.one_us["lopsided"]


def test_what_the_times_rest_on_is_said_once_for_all_layers(net: Workload) -> None:
    result = timed(net, gradients=["input", "weight", "bias"])
    said = [note for note in result.notes if "assumed figure" in note]
    behind = {name for one in result.timed if one.result and one.result.replay
              for name in one.result.replay.figures}  # fmt: skip
    known = result.device.provenance
    assumed = [name for name in behind if known[name].confidence == "assumed"]
    each = {note for one in result.timed if one.result for note in one.result.notes}
    assert each
    assert len(said) == 1
    assert f"the time rests on {len(assumed)} assumed figures" in said[0]
    assert result.text().count("the time rests on") == 1


UNEVEN = (
    "padding is [0, 1]; before and after may differ in 2-D layers only: pad the input first and "
    "state no padding, or state this layer in 2-D with a height of 1"
)


def test_a_layer_that_fails_costs_only_itself(net: Workload, gaps: Workload) -> None:
    whole, result = timed(net), timed(gaps)
    assert [one.layer.name for one in result.failed] == ["line", "wide", "wide_too"]
    assert (result.cycles, result.time_us) == (whole.cycles, whole.time_us)
    rows = {row["layer"]: row for row in result.to_json()["layers"]}
    assert rows["first"] == whole.layer_rows()[0]
    assert rows["line"]["error"] == UNEVEN
    assert "weight.shape is (16, 16, 1, 256)" in rows["wide"]["error"]
    assert rows["wide"]["cycles"] is rows["wide"]["total_us"] is rows["wide"]["share"] is None
    assert result.to_json()["complete"] is False
    assert repr(result).endswith(f" {result.cycles} cycles, 3 of 7 layers not simulated>")
    lines = result.text().splitlines()
    assert "partial     3 of 7 layers not simulated; see below" in lines
    assert next(line for line in lines if line.startswith("line ")).endswith("  not simulated")
    assert " ".join(f"- line: {UNEVEN}".split()) in " ".join(result.text().split())
    assert any(line.startswith("- wide, wide_too: ") for line in lines), "a reason is told once"
    assert next(line for line in lines if line.startswith("total")).split()[1] == "5"


def test_rules_refuse_a_layer_and_hardware_takes_it(net: Workload) -> None:
    flat = net.convolutions[2]
    deep = replace(
        flat,
        name="deep",
        spatial=(5, 5, 5),
        kernel=(3, 3, 3),
        stride=(1, 1, 1),
        padding=((1, 1),) * 3,
        dilation=(1, 1, 1),
    )
    net = replace(net, layers=(flat, deep))
    refused = timed(net, dtype="bf16").failed
    assert [one.layer.name for one in refused] == ["deep"]
    assert "groups is 2" in refused[0].error
    assert not timed(net, dtype="bf16", rules="hardware").failed


@rows("tests/data/mistakes/calls.yaml", "wrong_arguments", "options, message")
def test_wrong_arguments(
    options: dict[str, Any], message: str, net: Workload, calls: list[dict[str, Any]]
) -> None:
    with pytest.raises(ArgumentError) as caught:
        timed(net, **options)
    assert str(caught.value) == message
    assert not calls


def test_a_network_of_which_nothing_can_be_simulated_is_an_error(gaps: Workload) -> None:
    with pytest.raises(ArgumentError) as caught:
        timed(replace(gaps, layers=gaps.layers[-3:]))
    assert str(caught.value) == f"no layer of gaps can be simulated; line: {UNEVEN}"


def test_progress_says_which_layer(net: Workload) -> None:
    seen: list[str] = []

    def progress(kernel: str, phase: str, done: int, total: int) -> None:
        assert phase == "timing"
        assert 0 <= done <= total
        seen.append(kernel)

    timed(net, progress=progress)
    layers = dict.fromkeys(" ".join(kernel.split()[:2]) for kernel in seen)
    assert list(layers) == ["first (1/3)", "spread (2/3)", "lopsided (3/3)"]
    assert "spread (2/3) conv_backprop_filter" in seen


def test_the_report_of_resnet50_is_at_most_80_columns_wide() -> None:
    text = npusim.network("resnet50", device=DEVICE, gradients=["weight"]).text()
    assert max(map(len, text.splitlines())) <= 80
    assert "res5_shortcut" in text
    assert "\n  1024->2048 14x14 1x1/2\n" in text
    assert GRADIENTS[0] not in text.partition("KERNELS")[0]


NEW = """\
description: what else networks have
layers:
  image: {cin: 16, cout: 32, spatial: [8, 8], kernel: 3, padding: 1}
  up: {cin: 32, cout: 16, spatial: [8, 8], kernel: 4, stride: 2, padding: 1, transposed: yes}
  fc: {cin: 64, cout: 100, rows: 5, count: 2}
"""


@pytest.fixture
def other(tmp_path: Path) -> Workload:
    path = tmp_path / "other.yaml"
    path.write_text(NEW, encoding="utf-8")
    return load_workload(path)


def test_nothing_trained_comes_before_the_first_layer(other: Workload) -> None:
    result = timed(other)
    layers = result.layers.set_index("layer")
    assert layers.input_us["image"] == 0 < layers.weight_us["image"]
    assert result.untrained == ("image",)
    assert "without the input gradient of image" in result.notes[0]
    whole = timed(other, every_input=True)
    assert (whole.layers.input_us > 0).all()
    assert not whole.untrained
    assert not timed(other, gradients=["weight"]).untrained, "it has no input gradient to leave out"


def test_a_layer_with_nothing_to_compute_has_no_row(other: Workload) -> None:
    assert list(timed(other, gradients=["input"]).layers.layer) == ["up", "fc"]
    alone = replace(other, layers=other.layers[:1])
    with pytest.raises(ArgumentError, match="every_input=True"):
        timed(alone, gradients=["input"])


def test_a_linear_layer_is_two_products(other: Workload) -> None:
    result = timed(other, batch=3)
    row = result.layers.set_index("layer").loc["fc"]
    kernels = result.kernels.set_index("kernel")
    assert row.rows == 5
    assert row.input_us * 2 == pytest.approx(kernels.time_us["linear_backprop_input"])
    assert row.weight_us * 2 == pytest.approx(kernels.time_us["linear_backprop_weight"])
    assert kernels.useful_macs["linear_backprop_weight"] == 2 * 3 * 5 * 64 * 100
    forward = npusim.ops.matmul(
        npusim.spec((15, 100), "fp16"), npusim.spec((100, 64), "fp16"), out_dtype="fp16",
        device=DEVICE,
    )  # fmt: skip
    assert row.input_us == pytest.approx(forward.time_us), "dx is dy @ w, both as they lie"
    assert "\n  64->100 x5\n" in result.text()


def test_linear_layers_are_computed_as_convolutions_are(other: Workload) -> None:
    """fp32 operands are kept, rounded to HF32 on the way, or cast where there is no fp32."""
    by_math = [timed(other, dtype="fp32", cube_math_type=math).timed[-1].result for math in (0, 1)]
    assert [one.dtype for one in by_math if one is not None] == ["fp32", "hf32"]
    cast = timed(other, dtype="fp32", device="ascend910", cube_math_type=1).timed[-1].result
    assert cast is not None
    assert [run.name for run in cast.runs if run.macs == 0] == ["cast"] * 3
